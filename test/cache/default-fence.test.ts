// What a commit fences that names nothing: the legacy default stream, unless the engine says that it awaits its work.

import test from 'ava';

import { Driver, KvCache, type CommitOptions, type KvCacheOptions } from 'virtual-kv';

import { cacheTest, rowTokens, tinyModel, type CacheBench } from '../helpers/cache.js';
import { buildFakeLibcuda, fakeLibcuda } from '../helpers/fake-libcuda.js';
import { nativeOf } from '../helpers/native-of.js';
import { hasCompiler } from '../helpers/native-probe.js';
import { refuses } from '../helpers/refuses.js';
import { slow } from '../runner/slow.js';

const manual = { device: { streams: 'manual' }, rows: 4, slots: 3, work: 'queued' } as const;

/** A stream of the engine's, which does not know it: a thread's default stream, ordered with the legacy one. */
const stream = 2n;

/** The slot of a sequence of three rows, released while work of its only step is queued. */
function releasedUnderWork(bench: CacheBench): number {
  const { cache, mock } = bench;
  const sequence = cache.acquire();
  const batch = bench.batchOf([sequence, 3 * rowTokens]);
  cache.prepare(batch);
  mock.queueWork(stream, [{ address: sequence.address(0), bytes: 1024, access: 'write' }]);
  cache.commit(batch);
  sequence.release();
  return sequence.slot;
}

/** Whether other sequences can have the slot and all of its rows now. */
function isTaken(bench: CacheBench, slot: number): boolean {
  const { cache } = bench;
  const others = [cache.acquire(), cache.acquire(), ...cache.counts().idleSlots > 0 ? [cache.acquire()] : []];
  const has = others.some((sequence) => sequence.slot === slot);
  if (has) bench.compute(others[0]!, 4 * rowTokens);
  else bench.t.throws(() => { bench.compute(others[0]!, 4 * rowTokens); }, { code: 'KV_OUT_OF_PAGES' });
  for (const sequence of others) sequence.release();
  return has;
}

cacheTest('a slot waits for work of any blocking stream, though the engine named none', manual, (t, bench) => {
  const slot = releasedUnderWork(bench);
  t.like(bench.cache.counts(), { retiringSlots: 1 });
  t.false(isTaken(bench, slot));
  bench.mock.completeAll();
  t.like(bench.cache.counts(), { retiringSlots: 0 });
  t.true(isTaken(bench, slot));
});

cacheTest('so does one of a pass that was discarded', manual, (t, bench) => {
  const { cache, mock } = bench;
  const sequence = cache.acquire();
  bench.prepare(sequence, rowTokens);
  mock.queueWork(stream, [{ address: sequence.address(0), bytes: 64, access: 'write' }]);
  bench.discard();
  sequence.release();
  t.like(cache.counts(), { retiringSlots: 1 });
  mock.completeAll();
  t.like(cache.counts(), { retiringSlots: 0 });
});

for (const [how, cacheOptions, options] of [
  ['the cache has `work: awaited`', { work: 'awaited' }, undefined],
  ['the commit says that its work is over', {}, { fence: 'awaited' }],
  ['the commit says so, of a cache with a stream', { stream: 0n }, { fence: 'awaited' }],
] as const satisfies readonly (readonly [string, Partial<KvCacheOptions>, CommitOptions | undefined])[]) {
  cacheTest(`a slot is free at once where ${how}`, { ...manual, ...cacheOptions }, (t, bench) => {
    const { cache } = bench;
    const sequence = cache.acquire();
    const batch = bench.batchOf([sequence, rowTokens]);
    cache.prepare(batch);
    cache.commit(batch, options);
    sequence.release();
    t.like(cache.counts(), { retiringSlots: 0, idleSlots: 3 });
  });
}

cacheTest('cached tokens are there when `acquire` returns, where no stream was named', manual, (t, bench) => {
  const { cache, mock } = bench;
  const prompt = Int32Array.from({ length: rowTokens + 10 }, (_, at) => at);
  const first = cache.acquire({ tokens: prompt });
  bench.compute(first, prompt.length);
  cache.stamp(first, 0, prompt.length, 7);
  mock.completeAll();
  const second = cache.acquire({ tokens: prompt }); // its last row is a copy
  t.is(second.cachedTokens, prompt.length - 1);
  t.is(mock.pendingWork, 0);
  t.is(cache.verifyStamp(second, 0, second.cachedTokens, 7), 0);
  first.release();
  second.release();
  mock.completeAll();
});

cacheTest('`awaited` is no fence of a release', { work: 'queued' }, (t, { cache }) => {
  const sequence = cache.acquire();
  t.throws(() => { sequence.release({ fence: 'awaited' as never }); }, { code: 'KV_INVALID_OPTION' });
  refuses(t, () => { cache.commit(cache.createBatch(), { fence: 'done' as never }); },
    'KV_INVALID_OPTION', { owner: 'KvCache.commit', option: 'fence', received: 'done' });
  sequence.release();
});

/** On which streams a commit of a cache over the simulated libcuda records an event. */
function fencedStreams(options: Partial<KvCacheOptions>): readonly bigint[] {
  const driver = Driver.open('cuda', { libraryPath: fakeLibcuda() });
  const cache = new KvCache({
    model: tinyModel, slots: 2, maxTokens: 4_096, memoryBudgetBytes: 16 * 2 ** 21, driver, headroomBytes: 0, ...options,
  });
  const native = nativeOf(driver);
  const streams = new Set<bigint>();
  const { recordEvent } = native;
  Object.defineProperty(native, 'recordEvent', { value: (stream: bigint) => {
    streams.add(stream);
    return recordEvent.call(native, stream);
  } });
  const sequence = cache.acquire({ promptTokens: 10 });
  const batch = cache.createBatch();
  batch.add(sequence, 10);
  cache.prepare(batch);
  cache.commit(batch);
  sequence.release();
  cache.close();
  driver.close();
  return [...streams];
}

(hasCompiler ? slow('opens a libcuda three times') : test.skip)('over a libcuda a commit fences the default stream, the one that is named, or none', (t) => {
  buildFakeLibcuda();
  t.deepEqual(fencedStreams({}), [0n]);
  t.deepEqual(fencedStreams({ stream: 2n }), [2n]);
  t.deepEqual(fencedStreams({ work: 'awaited' }), []);
});
