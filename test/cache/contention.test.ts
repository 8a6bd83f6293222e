// The mapper and `prepare` want the same pages: nobody is refused for want of pages that are only on their way.

import { ahead } from 'virtual-kv';

import { cacheTest, rowTokens } from '../helpers/cache.js';

/** Every map takes a while, so that a row of the mapper is always half mapped when the foreground comes. */
const mapNs = 500_000;

cacheTest('the row that the mapper is just mapping for a sequence is not missing', { rows: 1, growth: ahead(8) }, (t, bench) => {
  for (let round = 0; round < 10; round += 1) {
    bench.mock.setLatencyNs('cuMemMap', mapNs);
    const sequence = bench.cache.acquire();
    bench.compute(sequence, rowTokens);
    t.is(sequence.mappedRows, 1);
    sequence.release();
    bench.cache.pool.setBudget(1);
    bench.cache.pool.setBudget(2 ** 30);
    bench.cache.pool.setBudget(bench.cache.layout.rowBytes);
  }
});

cacheTest('rows that the mapper is mapping ahead for others are given up', { rows: 4, growth: ahead(2 * rowTokens) }, (t, bench) => {
  const { cache } = bench;
  bench.mock.setLatencyNs('cuMemMap', mapNs);
  const sequences = [cache.acquire(), cache.acquire()] as const;
  for (let round = 0; round < 10; round += 1) {
    const [one, other] = round % 2 === 0 ? sequences : [sequences[1], sequences[0]];
    bench.compute(one, 1);
    bench.compute(other, 3 * rowTokens - other.length);
    t.is(other.mappedRows, 3);
    for (const sequence of sequences) sequence.truncate(0);
  }
});

cacheTest('an earmark takes the rows that the mapper is mapping ahead for others', { rows: 4, growth: ahead(3 * rowTokens) }, (t, bench) => {
  const { cache } = bench;
  bench.mock.setLatencyNs('cuMemMap', mapNs);
  for (let round = 0; round < 10; round += 1) {
    const busy = cache.acquire();
    bench.compute(busy, 1);
    const reserved = cache.acquire({ promptTokens: 3 * rowTokens });
    bench.compute(reserved, 3 * rowTokens);
    t.is(reserved.mappedRows, 3);
    for (const sequence of [busy, reserved]) sequence.release();
  }
});

cacheTest('what cannot be had is refused all the same, and the mapper goes on afterwards', {
  rows: 4, growth: ahead(rowTokens),
}, async (t, bench) => {
  const { cache } = bench;
  bench.mock.setLatencyNs('cuMemMap', mapNs);
  const [one, other] = [cache.acquire(), cache.acquire()];
  bench.compute(one, 1);
  const error = t.throws(() => bench.prepare(other, 4 * rowTokens), { code: 'KV_OUT_OF_PAGES' });
  t.like(error, { details: { needRows: 4 - other.mappedRows, havePages: 12 - 4 * other.mappedRows } });
  await cache.settled();
  cache.pool.setBudget(2 ** 30);
  bench.compute(one, 1);
  await cache.settled();
  t.is(one.mappedRows, 2);
});

cacheTest('lowering the budget takes back what the mapper is just mapping', { rows: 16, growth: ahead(1000) }, (t, bench) => {
  const { cache, driver } = bench;
  bench.mock.setLatencyNs('cuMemMap', mapNs);
  const sequence = bench.sequenceOf(1);
  for (const rows of [6, 3, 1]) {
    cache.pool.setBudget(rows * cache.layout.rowBytes);
    t.true(driver.memory().livePages <= 4 * rows);
    t.true(sequence.mappedRows <= rows);
    cache.pool.setBudget(16 * cache.layout.rowBytes);
    bench.compute(sequence, 1);
    sequence.truncate(1);
  }
});
