// Fences: a released slot is neither given to anybody nor unmapped until what may still use it is over. On the simulated
// device streams do their work when told, and unmapping memory that queued work uses is a misuse it remembers.

import { subscribe, unsubscribe } from 'node:diagnostics_channel';

import test from 'ava';

import { Driver, KvCache, onDemand, PagePool } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { cacheTest, cacheTests, pageBytes, rowTokens, tinyModel, type BenchOptions, type CacheBench } from '../helpers/cache.js';
import { nativeOf } from '../helpers/native-of.js';
import { refuses } from '../helpers/refuses.js';

const manual: BenchOptions = { device: { streams: 'manual' } };

/** A stream of the driver with a kernel on it that writes the first token of a slot. */
function busyStream(bench: CacheBench, slot: number): bigint {
  const stream = nativeOf(bench.driver).createStream();
  const { address, strides } = bench.cache.tensors[0]!;
  bench.mock.queueWork(stream, [{ address: address + BigInt(slot * strides.slotBytes), bytes: 1024, access: 'write' }]);
  return stream;
}

/** The slot is given to nobody: its rows cannot be had, its number cannot be leased. */
function assertUntouchable(bench: CacheBench, slot: number): void {
  const { cache, t } = bench;
  const others = Array.from({ length: cache.counts().idleSlots }, () => cache.acquire());
  t.false(others.some((sequence) => sequence.slot === slot));
  t.throws(() => cache.acquire(), { code: 'KV_NO_FREE_SLOT' });
  t.throws(() => bench.prepare(others[0]!, cache.layout.maxTokens), { code: 'KV_OUT_OF_PAGES' });
  t.is(cache.metrics.unmaps, 0);
  for (const sequence of others) sequence.release();
}

// Steps

cacheTests('a slot released behind a step is free when that step is complete, and not before', { rows: 4, slots: 3 }, (t, bench) => {
  const { cache } = bench;
  const sequence = bench.sequenceOf(3 * rowTokens);
  sequence.release({ fence: { step: 5 } });
  t.true(sequence.isReleased);
  for (const step of [0, 3, 4]) {
    cache.completeStep(step);
    t.like(cache.counts(), { retiringSlots: 1, idleSlots: 2, idleRows: 0, reclaimablePages: 0 });
    assertUntouchable(bench, sequence.slot);
  }
  cache.completeStep(6);
  t.like(cache.counts(), { retiringSlots: 0, idleSlots: 3, idleRows: 3 });
  t.is(cache.acquire({ promptTokens: 3 * rowTokens }).slot, sequence.slot);
});

cacheTests('a step that is complete already is no fence', {}, (t, bench) => {
  const { cache } = bench;
  cache.completeStep(5);
  cache.completeStep(2);
  bench.sequenceOf(1).release({ fence: { step: 5 } });
  t.like(cache.counts(), { retiringSlots: 0, idleSlots: 8 });
  bench.sequenceOf(1).release({ fence: { step: 6 } });
  t.like(cache.counts(), { retiringSlots: 1 });
});

cacheTests('several slots wait for their own steps', {}, (t, bench) => {
  const { cache } = bench;
  for (const step of [3, 1, 2, 3]) bench.sequenceOf(1).release({ fence: { step } });
  const waiting = [1, 2, 3].map((step) => {
    cache.completeStep(step);
    return cache.counts().retiringSlots;
  });
  t.deepEqual(waiting, [3, 2, 0]);
});

// Streams

cacheTest('a slot released behind a stream is not touched before the work on it is done', { ...manual, rows: 4, slots: 3 }, (t, bench) => {
  const { cache, mock } = bench;
  const sequence = bench.sequenceOf(3 * rowTokens);
  const stream = busyStream(bench, sequence.slot);
  sequence.release({ fence: { stream } });
  t.like(cache.counts(), { retiringSlots: 1 });
  assertUntouchable(bench, sequence.slot);
  mock.completeStream(stream);
  t.like(cache.counts(), { retiringSlots: 0, idleRows: 3 });
  const growing = cache.acquire({ promptTokens: 4 * rowTokens });
  t.is(growing.slot, sequence.slot);
  nativeOf(bench.driver).destroyStream(stream);
});

cacheTest('work queued after the release does not hold the slot back', manual, (t, bench) => {
  const { cache, mock } = bench;
  const [first, second] = [bench.sequenceOf(10), bench.sequenceOf(10)];
  const stream = busyStream(bench, first.slot);
  first.release({ fence: { stream } });
  mock.completeStream(stream);
  const { address, strides } = cache.tensors[0]!;
  mock.queueWork(stream, [{ address: address + BigInt(second.slot * strides.slotBytes), bytes: 1, access: 'read' }]);
  t.like(cache.counts(), { retiringSlots: 0 });
  mock.completeStream(stream);
  nativeOf(bench.driver).destroyStream(stream);
});

cacheTest('a slot behind one stream does not wait for another', manual, (t, bench) => {
  const { cache, mock } = bench;
  const [first, second] = [bench.sequenceOf(10), bench.sequenceOf(10)];
  const streams = [busyStream(bench, first.slot), busyStream(bench, second.slot)] as const;
  first.release({ fence: { stream: streams[0] } });
  second.release({ fence: { stream: streams[1] } });
  mock.completeStream(streams[1]);
  t.like(cache.counts(), { retiringSlots: 1 });
  t.is(cache.acquire({ promptTokens: 10 }).slot, second.slot);
  mock.completeStream(streams[0]);
  t.like(cache.counts(), { retiringSlots: 0 });
  for (const stream of streams) nativeOf(bench.driver).destroyStream(stream);
});

cacheTest('an event of a fence is destroyed when it has passed', manual, (t, bench) => {
  const sequence = bench.sequenceOf(10);
  sequence.release({ fence: { stream: 0n } });
  t.is(bench.cache.counts().retiringSlots, 0, 'nothing was queued on the default stream');
  t.like(bench.mock.callCounts(), { cuEventCreate: 1, cuEventRecord: 1, cuEventDestroy: 1 });
});

cacheTest('`close` waits for the streams of fences before it unmaps', manual, (t, bench) => {
  const { cache, mock } = bench;
  const sequence = bench.sequenceOf(100);
  const stream = busyStream(bench, sequence.slot);
  sequence.release({ fence: { stream } });
  cache.close();
  t.is(mock.pendingWork, 0);
  t.deepEqual(mock.misuses(), []);
  nativeOf(bench.driver).destroyStream(stream);
});

cacheTest('`close` does not touch a stream that the engine has destroyed when its work was done', manual, (t, bench) => {
  const { cache, mock } = bench;
  const sequence = bench.sequenceOf(100);
  const stream = busyStream(bench, sequence.slot);
  sequence.release({ fence: { stream } });
  mock.completeStream(stream);
  nativeOf(bench.driver).destroyStream(stream);
  cache.close();
  t.deepEqual(mock.misuses(), []);
});

cacheTest('on host, where work is done when a call returns, a stream is no fence for long', { on: 'host' }, (t, bench) => {
  bench.sequenceOf(10).release({ fence: { stream: 0n } });
  t.like(bench.cache.counts(), { retiringSlots: 0, idleSlots: 8 });
});

cacheTests('a fence of a stream that does not exist is refused, and the sequence stays alive', {}, (t, bench) => {
  const sequence = bench.sequenceOf(10);
  const release = (): void => { sequence.release({ fence: { stream: 12_345n } }); };
  if (bench.driver.kind === 'host') refuses(t, release, 'KV_INVALID_OPTION', { option: 'fence.stream' });
  else refuses(t, release, 'KV_DRIVER_MISUSE', { call: 'cuEventRecord', address: 12_345 });
  t.false(sequence.isReleased);
  t.like(bench.cache.counts(), { activeSlots: 1, retiringSlots: 0 });
  bench.compute(sequence, 1);
  bench.device?.clearMisuses();
});

// Batches

cacheTests('a sequence released while it is prepared retires when its batch is committed or discarded', { rows: 4, slots: 3 }, (t, bench) => {
  const { cache } = bench;
  for (const end of ['commit', 'discard'] as const) {
    const sequence = bench.sequenceOf(rowTokens);
    const batch = bench.batchOf([sequence, rowTokens]);
    cache.prepare(batch);
    sequence.release();
    t.like(cache.counts(), { retiringSlots: 1, idleRows: 0 });
    assertUntouchable(bench, sequence.slot);
    cache[end](batch);
    t.like(cache.counts(), { retiringSlots: 0, idleRows: 2 });
  }
});

cacheTests('released while prepared and behind a step, a slot waits for both', {}, (t, bench) => {
  const { cache } = bench;
  for (const isStepFirst of [true, false]) {
    const sequence = bench.sequenceOf(10);
    const batch = bench.batchOf([sequence, 1]);
    cache.prepare(batch);
    const step = isStepFirst ? 1 : 2;
    sequence.release({ fence: { step } });
    if (isStepFirst) cache.completeStep(step);
    else cache.commit(batch);
    t.is(cache.counts().retiringSlots, 1);
    if (isStepFirst) cache.commit(batch);
    else cache.completeStep(step);
    t.is(cache.counts().retiringSlots, 0);
  }
});

// What a driver refuses

cacheTest('a fence that cannot be recorded leaves the sequence as it was', manual, (t, bench) => {
  const { cache } = bench;
  const sequence = bench.sequenceOf(10);
  for (const call of ['cuEventCreate', 'cuEventRecord']) {
    bench.fail(call, 1);
    t.throws(() => sequence.release({ fence: { stream: 0n } }), { code: 'KV_DRIVER_CALL_FAILED' });
    t.false(sequence.isReleased);
    t.like(cache.counts(), { activeSlots: 1, retiringSlots: 0, usedTokens: 10 });
  }
  bench.compute(sequence, 1);
  sequence.release({ fence: { stream: 0n } });
});

cacheTest('a fence that cannot be asked for is a late error; the calls around it succeed, and it is asked again', manual, async (t, bench) => {
  const { cache } = bench;
  const [first, second] = [bench.sequenceOf(10), bench.sequenceOf(10)];
  first.release({ fence: { stream: 0n } });
  const published: unknown[] = [];
  const listen = (message: unknown) => {
    if ((message as { cache: unknown }).cache === cache) published.push(message); // the channel is the whole process's
  };
  subscribe('virtual-kv:late-error', listen);
  for (const [index, call] of ['cuEventQuery', 'cuEventDestroy'].entries()) {
    bench.fail(call, 1);
    const batch = bench.batchOf([second, 1]);
    cache.prepare(batch);
    cache.commit(batch);
    t.is(second.length, 11 + index);
    t.is(cache.metrics.lateErrors, index + 1);
  }
  t.deepEqual(published, [], 'not in the middle of a call');
  await Promise.resolve();
  unsubscribe('virtual-kv:late-error', listen);
  t.like(published[0], { cache, lateErrors: 1, error: { code: 'KV_DRIVER_CALL_FAILED', call: 'cuEventQuery' } });
  t.like(published[1], { cache, lateErrors: 2, error: { code: 'KV_DRIVER_CALL_FAILED', call: 'cuEventDestroy' } });
  t.is(cache.counts().retiringSlots, 0);
});

cacheTest('a subscriber to late errors may use the cache, and close it', manual, async (t, bench) => {
  const { cache } = bench;
  const [first, second] = [bench.sequenceOf(10), bench.sequenceOf(10)];
  first.release({ fence: { stream: 0n } });
  const listen = (message: unknown) => {
    if ((message as { cache: unknown }).cache !== cache) return;
    second.release();
    cache.acquire();
    cache.close();
  };
  subscribe('virtual-kv:late-error', listen);
  bench.fail('cuEventQuery', 1);
  bench.compute(second, 1);
  t.is(second.length, 11);
  await Promise.resolve();
  unsubscribe('virtual-kv:late-error', listen);
  t.true(cache.isClosed);
});

cacheTest('one fence that cannot be asked for does not hold up the others', manual, (t, bench) => {
  const { cache } = bench;
  const sequences = [1, 2, 3].map(() => bench.sequenceOf(10));
  for (const sequence of sequences) sequence.release({ fence: { step: 1 } });
  const last = bench.sequenceOf(10);
  t.is(cache.counts().retiringSlots, 3);
  last.release({ fence: { stream: 0n } });
  bench.fail('cuEventQuery', 1);
  cache.completeStep(1);
  t.is(cache.metrics.lateErrors, 1);
  t.like(cache.counts(), { retiringSlots: 0, idleSlots: 8 });
});

test('a cache hears of queued work of another cache of its pool before it refuses for want of pages', (t) => {
  const device = new MockDevice({ granularityBytes: pageBytes, streams: 'manual' });
  const pool = new PagePool({ driver: device.driver, memoryBudgetBytes: 4 * 4 * pageBytes });
  const open = (): KvCache => new KvCache({ pool, model: tinyModel, slots: 2, maxTokens: 512, growth: onDemand(), prefixCache: 'off' });
  const [first, second] = [open(), open()];
  const stream = device.driver.acquireStream();
  const sequence = first.acquire({ promptTokens: 4 * rowTokens });
  const batch = first.createBatch();
  batch.add(sequence, 4 * rowTokens);
  first.prepare(batch);
  device.queueWork(stream, [{ address: sequence.address(0), bytes: 1024, access: 'write' }]);
  first.commit(batch, { fence: { stream } });
  sequence.release();
  t.throws(() => second.acquire({ promptTokens: rowTokens }), { code: 'KV_OUT_OF_PAGES' }, 'the work may still use all pages');
  device.completeStream(stream);
  second.acquire({ promptTokens: 4 * rowTokens }).release();
  for (const cache of [first, second]) cache.close();
  pool.close();
  device.driver.releaseStream(stream);
  device.assertNoLeaks();
});

test('a stream that the host driver lent is a fence of work that is over', (t) => {
  const driver = Driver.open('host');
  const cache = new KvCache({ driver, model: tinyModel, slots: 1, maxTokens: 64, memoryBudgetBytes: 2 ** 24, growth: onDemand() });
  const stream = driver.acquireStream();
  const batch = cache.createBatch();
  const sequence = cache.acquire({ stream });
  batch.add(sequence, 1);
  cache.prepare(batch);
  cache.commit(batch, { fence: { stream } });
  sequence.release({ fence: { stream } });
  t.is(cache.counts().idleSlots, 1);
  driver.releaseStream(stream);
  t.throws(() => cache.acquire().release({ fence: { stream } }), { code: 'KV_INVALID_OPTION' });
  cache.close();
  driver.close();
});
