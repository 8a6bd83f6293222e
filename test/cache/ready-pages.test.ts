// Pages that the mapper creates ahead: a cold pool does not make the JavaScript thread wait for the device.

import test from 'ava';

import { KvCache, onDemand, PagePool } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { CacheBench, pageBytes, rowTokens, tinyModel } from '../helpers/cache.js';

const rowPages = 4;
const rowBytes = rowPages * pageBytes;

test('a pool that was never used has its pages created before the first prompt comes', async (t) => {
  const bench = new CacheBench(t, { growth: onDemand(), mapper: 'background', readyBytes: 5 * rowBytes, rows: 8 });
  await bench.cache.settled();
  t.like(bench.pool(), { createdPages: 20, freePages: 20 });
  const before = bench.mock.callCounts().cuMemCreate;
  bench.mock.failCall('cuMemCreate', { times: 1000 }); // no call of this thread may need it
  const sequence = bench.sequenceOf(5 * rowTokens);
  await bench.cache.settled();
  t.is(sequence.mappedRows, 5);
  bench.mock.clearFailures();
  t.true(bench.mock.callCounts().cuMemCreate >= before);
  bench.close();
});

test('pages that a step took are created again, up to the budget and no further', async (t) => {
  const bench = new CacheBench(t, { growth: onDemand(), mapper: 'background', readyBytes: 3 * rowBytes, rows: 8 });
  await bench.cache.settled();
  const sequence = bench.sequenceOf(2 * rowTokens);
  await bench.cache.settled();
  t.like(bench.pool(), { mappedPages: 2 * rowPages, freePages: 3 * rowPages });
  bench.compute(sequence, 4 * rowTokens);
  await bench.cache.settled();
  t.like(bench.pool(), { mappedPages: 6 * rowPages, freePages: 2 * rowPages, createdPages: 8 * rowPages });
  bench.close();
});

test('a device without room for more ends the creating ahead, and is no late error', async (t) => {
  const bench = new CacheBench(t, {
    growth: onDemand(), mapper: 'background', readyBytes: 6 * rowBytes, headroomBytes: rowBytes, rows: 8,
    device: { memoryBytes: 4 * rowBytes },
  });
  await bench.cache.settled();
  t.is(bench.pool().freePages, 3 * rowPages);
  t.is(bench.cache.metrics.lateErrors, 0);
  bench.close();
});

test('what the device refuses while creating ahead is a late error, and creating goes on with the next step', async (t) => {
  const device = new MockDevice({ granularityBytes: pageBytes, memoryBytes: 64 * rowBytes });
  device.failCall('cuMemCreate', { nth: 3 });
  const cache = new KvCache({
    model: tinyModel, slots: 2, maxTokens: 1024, driver: device.driver, pageBytes, memoryBudgetBytes: 16 * rowBytes, readyBytes: 2 * rowBytes,
    growth: onDemand(),
  });
  await cache.settled();
  t.is(cache.pool.counts().freePages, 2);
  const batch = cache.createBatch();
  const sequence = cache.acquire();
  batch.add(sequence, 1);
  cache.prepare(batch);
  cache.commit(batch);
  await cache.settled();
  t.is(cache.metrics.lateErrors, 1);
  t.is(cache.pool.counts().freePages, 2 * rowPages);
  sequence.release();
  cache.close();
  device.assertNoLeaks();
  device.close();
});

test('a lowered budget takes what was created ahead, and two caches of a pool create for one target', async (t) => {
  const device = new MockDevice({ granularityBytes: pageBytes, memoryBytes: 64 * rowBytes });
  device.setLatencyNs('cuMemCreate', 2_000_000); // both mappers are within a call at once
  const pool = new PagePool({ memoryBudgetBytes: 16 * rowBytes, driver: device.driver, pageBytes, readyBytes: 4 * rowBytes });
  const caches = [1, 2].map(() => new KvCache({ model: tinyModel, slots: 2, maxTokens: 1024, pool, growth: onDemand() }));
  for (const cache of caches) await cache.settled();
  t.is(pool.counts().freePages, 4 * rowPages);
  pool.setBudget(2 * rowBytes);
  t.like(pool.counts(), { createdPages: 2 * rowPages, freePages: 2 * rowPages });
  for (const cache of caches) cache.close();
  pool.close();
  device.assertNoLeaks();
  device.close();
});

test('a page that is being created ahead is in no count yet, and not missing from what can be had', async (t) => {
  const device = new MockDevice({ granularityBytes: pageBytes, memoryBytes: 64 * rowBytes });
  device.setLatencyNs('cuMemCreate', 3_000_000);
  const cache = new KvCache({
    model: tinyModel, slots: 2, maxTokens: 1024, driver: device.driver, pageBytes, memoryBudgetBytes: 4 * rowBytes, readyBytes: 4 * rowBytes,
    growth: onDemand(),
  });
  for (let free = 0; free < 4 * rowPages;) {
    const { createdPages, freePages, mappedPages } = cache.pool.counts();
    t.deepEqual([mappedPages, createdPages], [0, freePages]);
    t.is(cache.counts().admissiblePages, 4 * rowPages);
    free = freePages;
  }
  await cache.settled();
  cache.close();
  device.assertNoLeaks();
  device.close();
});

test('growth to the whole budget waits for the page that is being created ahead, and is not refused', (t) => {
  const device = new MockDevice({ granularityBytes: pageBytes, memoryBytes: 64 * rowBytes });
  device.setLatencyNs('cuMemCreate', 3_000_000);
  const cache = new KvCache({
    model: tinyModel, slots: 2, maxTokens: 1024, driver: device.driver, pageBytes, memoryBudgetBytes: 4 * rowBytes, readyBytes: 4 * rowBytes,
    growth: onDemand(),
  });
  while (cache.pool.counts().freePages < 2) { /* the mapper creates */ }
  const sequence = cache.acquire();
  const batch = cache.createBatch();
  batch.add(sequence, 4 * rowTokens);
  cache.prepare(batch);
  t.like(cache.pool.counts(), { mappedPages: 4 * rowPages, freePages: 0, createdPages: 4 * rowPages });
  cache.discard(batch);
  sequence.release();
  cache.close();
  device.assertNoLeaks();
  device.close();
});
