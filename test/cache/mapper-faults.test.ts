// Failures of the mapper: no call waits for it, so they are counted and published; nothing is half mapped, the growth happens
// in the foreground when it must, and the next wish is tried like the first.

import { subscribe, unsubscribe } from 'node:diagnostics_channel';

import test from 'ava';

import { ahead, isKvError, type KvCache } from 'virtual-kv';

import { cacheTest, cacheTests, CacheBench, rowTokens, type DriverName } from '../helpers/cache.js';
import { assertNothingHeld } from '../helpers/nothing-held.js';
import { keptSequence } from './fault-scenarios.js';

interface LateMessage {
  readonly cache: unknown;
  readonly error: unknown;
  readonly lateErrors: number;
}

/** What is published about a cache while `body` runs; the channel is the whole process's. */
async function published(cache: KvCache, body: () => Promise<void>): Promise<readonly LateMessage[]> {
  const messages: LateMessage[] = [];
  const listen = (message: unknown) => {
    if ((message as LateMessage).cache === cache) messages.push(message as LateMessage);
  };
  subscribe('virtual-kv:late-error', listen);
  try {
    await body();
  } finally {
    unsubscribe('virtual-kv:late-error', listen);
  }
  return messages;
}

const kinds: Readonly<Record<DriverName, readonly string[]>> = {
  mock: ['cuCtxPushCurrent', 'cuMemCreate', 'cuMemMap', 'cuMemSetAccess'], host: ['mmap-map'],
};

for (const [on, calls] of Object.entries(kinds) as [DriverName, readonly string[]][]) {
  for (const call of calls) {
    test(`a failure of ${call} in the mapper is late, undone, and made good later (${on})`, async (t) => {
      let late = 0;
      for (let nth = 1; nth <= 12; nth += 1) late += await failInMapper(new CacheBench(t, { on, growth: ahead(2 * rowTokens) }), call, nth);
      t.true(late >= (call === 'cuCtxPushCurrent' ? 2 : 8), `${late} failures`);
    });
  }
}

/** Returns the late errors that came of it. */
async function failInMapper(bench: CacheBench, call: string, nth: number): Promise<number> {
  const { t, cache } = bench;
  const { sequence, key } = keptSequence(bench, 1);
  await cache.settled();
  t.is(sequence.mappedRows, 3);
  const before = cache.metrics.foregroundMaps;
  bench.fail(call, nth, bench.device === undefined ? 1 : 999);
  const messages = await published(cache, async () => {
    bench.compute(sequence, rowTokens);
    await cache.settled();
    bench.compute(sequence, rowTokens);
    await cache.settled();
  });
  bench.forgiveAll();
  const { lateErrors, droppedRequests } = cache.metrics;
  t.is(droppedRequests, 0);
  t.is(messages.length, lateErrors);
  for (const { error } of messages) t.true(isKvError(error, 'KV_DRIVER_CALL_FAILED'));
  t.is(sequence.length, 3 * rowTokens, 'no step failed');
  t.is(cache.metrics.foregroundMaps, before, 'nor had it to wait');
  cache.verify();
  bench.compute(sequence, 1);
  await cache.settled();
  t.is(sequence.mappedRows, 6, 'the next wish was granted');
  t.is(cache.verifyStamp(sequence, 0, rowTokens, key), 0);
  sequence.release();
  assertNothingHeld(t, cache);
  bench.close();
  return lateErrors;
}

cacheTests('what the mapper could not map is mapped in `prepare`', { growth: ahead(rowTokens) }, async (t, bench) => {
  const { cache, device } = bench;
  const sequence = bench.sequenceOf(1);
  await cache.settled();
  t.is(sequence.mappedRows, 2);
  bench.fail(device === undefined ? 'mmap-map' : 'cuMemMap', 1, device === undefined ? 1 : 999);
  bench.compute(sequence, rowTokens);
  await cache.settled();
  t.is(sequence.mappedRows, 2);
  t.is(bench.changes(() => bench.prepare(sequence, rowTokens)).foreground, 4);
  bench.commit();
});

cacheTest('late errors that pile up unheard are counted, and the last one is published', { growth: ahead(64) }, async (t, bench) => {
  const { cache, mock } = bench;
  const sequences = [1, 2, 3].map(() => bench.sequenceOf(1));
  await cache.settled();
  mock.failCall('cuMemMap', { times: 3 });
  const batch = bench.batchOf(...sequences.map((sequence) => [sequence, 64] as const));
  cache.prepare(batch);
  const messages = await published(cache, async () => {
    cache.commit(batch);
    await cache.settled();
  });
  t.is(cache.metrics.lateErrors, 3);
  t.is(messages.at(-1)!.lateErrors, 3);
});

cacheTest('a device that is full starves the mapper; that is no error', {
  growth: ahead(300), device: { memoryBytes: 12 * 65536 },
}, async (t, bench) => {
  const sequence = bench.sequenceOf(1);
  await bench.cache.settled();
  t.is(sequence.mappedRows, 3);
  t.is(bench.cache.metrics.lateErrors, 0);
  t.true(bench.cache.metrics.droppedRequests > 0);
});

cacheTest('a row that the mapper cannot undo puts the idle slot out of service, and another is kept warm', {
  eagerRows: 2, slots: 3,
}, async (t, bench) => {
  const { cache, mock } = bench;
  await cache.settled();
  mock.failCall('cuMemMap', { nth: 7 }); // the third tensor of the second row: two are mapped already
  mock.failCall('cuMemUnmap', { times: 1000 });
  const first = cache.acquire({ promptTokens: 2 * rowTokens, reserve: 'none' });
  t.is(first.mappedRows, 2, 'from here on only the mapper maps');
  await cache.settled();
  mock.clearFailures();
  t.like(cache.counts(), { quarantinedSlots: 1, idleSlots: 1, activeSlots: 1 });
  t.is(bench.pool().quarantinedPages, 2);
  t.is(cache.metrics.lateErrors, 1);
  const second = cache.acquire({ promptTokens: 2 * rowTokens });
  bench.compute(second, 2 * rowTokens);
  t.throws(() => cache.acquire(), { code: 'KV_NO_FREE_SLOT' });
  for (const sequence of [first, second]) sequence.release();
  await cache.settled();
  cache.pool.setBudget(1);
  t.is(bench.driver.memory().livePages, bench.pool().quarantinedPages + cache.counts().mappedPages);
});
