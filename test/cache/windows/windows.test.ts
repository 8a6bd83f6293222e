// Layer sets with windows and chunks: how many rows are mapped at each moment, what is set aside, what refuses, and that
// rows go only behind the passes that read them. Pages of 64 KiB, tokens of 16 KiB in a tensor, so rows of 4 tokens; one
// layer keeps all tokens, one sees a window of 6, per-layer: a row is two pages in its set.

import test, { type ExecutionContext } from 'ava';

import { ahead, isKvError, Kernels, KvCache, OnlineScheduler, type EnginePass, type ModelShape, type Sequence } from 'virtual-kv';

import { CacheBench, cacheTest, cacheTests, withCache, type BenchOptions } from '../../helpers/cache.js';
import { nativeOf } from '../../helpers/native-of.js';
import { refuses } from '../../helpers/refuses.js';

const rowTokens = 4;
const windowTokens = 6;

const model: ModelShape = {
  layers: 2, kvHeads: 64, headDim: 128, dtype: 'float16',
  layerSets: [
    { kind: 'full', layers: [0], layout: 'per-layer' },
    { kind: 'window', layers: [1], windowTokens, layout: 'per-layer' },
  ],
};
const options: BenchOptions = { model, prefixCache: 'off', mapper: 'off', memoryBudgetBytes: 400 * 65_536, maxTokens: 500 };

/** The tensor of the window's keys. */
const windowKeys = 2;

/** Rows [first, end) of the only sequence in the window's set, and pages mapped in all. */
function mapped({ cache }: CacheBench, sequence: Sequence): { first: number; end: number; pages: number } {
  const { sets, mappedPages } = cache.counts();
  const first = sequence.firstToken(windowKeys) / rowTokens;
  return { first, end: first + sets[1]!.mappedRows, pages: mappedPages };
}

cacheTests('a prompt is mapped whole, and the rows behind the window go with the commit', options, (t, bench) => {
  const sequence = bench.cache.acquire({ promptTokens: 10, reserve: 'none' });
  bench.prepare(sequence, 10);
  t.deepEqual(mapped(bench, sequence), { first: 0, end: 3, pages: 12 });
  bench.commit();
  t.deepEqual(mapped(bench, sequence), { first: 1, end: 3, pages: 10 });
  for (let length = 10; length < 410; length += 1) {
    bench.compute(sequence, 1);
    const { first, end } = mapped(bench, sequence);
    t.is(first, Math.floor((length + 1 - windowTokens + 1) / rowTokens));
    t.true(end - first <= 3);
    if (length + 1 === 20) t.deepEqual({ first, end }, { first: 3, end: 5 });
  }
  t.deepEqual(mapped(bench, sequence), { first: 101, end: 103, pages: 2 * 103 + 2 * 2 });
  t.is(bench.pool().createdPages, 2 * 103 + 2 * 3, 'three rows of the window, over and over');
  sequence.release();
  t.is(bench.cache.counts().sets[1]!.mappedPages, 0);
});

cacheTest('a prompt in passes needs the window and one pass', { ...options, passTokens: 16 }, (t, bench) => {
  const sequence = bench.cache.acquire({ promptTokens: 100 });
  t.is(bench.pool().earmarkedPages, 50 + 12);
  let most = 0;
  for (let length = 0; length < 100; length += 16) {
    bench.prepare(sequence, Math.min(16, 100 - length));
    most = Math.max(most, bench.cache.counts().sets[1]!.mappedRows);
    t.true(bench.pool().mappedPages + bench.pool().earmarkedPages <= 62);
    bench.commit();
  }
  t.is(most, 6);
  t.deepEqual(mapped(bench, sequence), { first: 23, end: 25, pages: 54 });
  t.is(bench.pool().earmarkedPages, 2, 'a third row for single tokens');
});

test('a scheduler computes a prompt in passes of the tokens that are set aside for one, whatever a step has', async (t) => {
  await withCache(t, { ...options, passTokens: 16, memoryBudgetBytes: 62 * 65_536 }, async ({ cache }) => {
    const passes: number[] = [];
    const compute = (pass: EnginePass) => {
      passes.push(...pass.tokenCounts.subarray(0, pass.length));
      return { logits: new Float32Array(16 * pass.length) };
    };
    const scheduler = new OnlineScheduler({ cache, engine: { vocabularyTokens: 16, prefill: compute, decode: compute }, prefillTokensPerStep: 64 });
    await scheduler.submit({ tokens: Array.from({ length: 100 }, () => 1), maxNewTokens: 1 }).result;
    t.deepEqual(passes, [16, 16, 16, 16, 16, 16, 4]);
    await scheduler.close();
  });
});

test('a prompt is admitted with the pages that it needs at once, and refused with one fewer', async (t) => {
  for (const pages of [61, 62]) {
    await withCache(t, { ...options, passTokens: 16, memoryBudgetBytes: pages * 65_536 }, ({ cache }) => {
      const before = cache.pool.counts();
      if (pages === 62) return void cache.acquire({ promptTokens: 100 });
      const error = t.throws(() => cache.acquire({ promptTokens: 100 }));
      t.true(isKvError(error, 'KV_OUT_OF_PAGES'));
      if (isKvError(error, 'KV_OUT_OF_PAGES')) t.like(error.details, { needPages: 62, havePages: 61 });
      t.deepEqual(cache.pool.counts(), before);
    });
  }
});

cacheTest('rows that a step may still read stay until it is complete', options, (t, bench) => {
  const sequence = bench.sequenceOf(12);
  t.deepEqual(mapped(bench, sequence), { first: 1, end: 3, pages: 10 });
  const { cache } = bench;
  bench.prepare(sequence, 1);
  const batch = bench.batchOf([sequence, 1]);
  bench.discard();
  cache.prepare(batch);
  cache.commit(batch, { fence: { step: 7 } });
  for (let length = 13; length < 16; length += 1) bench.compute(sequence, 1);
  bench.prepare(sequence, 1);
  t.deepEqual(mapped(bench, sequence), { first: 1, end: 5, pages: 18 });
  cache.completeStep(7);
  t.deepEqual(mapped(bench, sequence), { first: 2, end: 5, pages: 16 });
  bench.commit();
});

/**
 * An engine that computes `tokens` tokens, `chunk` in a pass, and queues so many passes more before one is over. Its work
 * reads what the layer sees, and the mock tells where that has gone. Returns the most rows of the window at once.
 */
function mostRowsAhead(t: ExecutionContext, bench: CacheBench, by: 'steps' | 'streams', { passes, chunk, tokens }: {
  readonly passes: number; readonly chunk: number; readonly tokens: number;
}): number {
  const { cache, mock } = bench;
  const native = nativeOf(bench.driver);
  const streams = Array.from({ length: passes + 1 }, () => native.createStream());
  const sequence = cache.acquire({ promptTokens: tokens, reserve: 'none' });
  const { tokenBytes } = cache.tensors[windowKeys]!;
  const seenFrom = (length: number): number => Math.max(0, length - windowTokens + 1);
  const lengths: number[] = []; // before each pass, by step
  let most = 0;
  const complete = (step: number): void => {
    mock.completeStream(streams[step % streams.length]!);
    if (by === 'steps') cache.completeStep(step);
  };
  for (let step = 0; sequence.length < tokens; step += 1) {
    const from = sequence.length;
    lengths.push(from);
    const batch = bench.batchOf([sequence, Math.min(chunk, tokens - from)]);
    cache.prepare(batch);
    const end = from + batch.tokensAt(0);
    const oldest = lengths[Math.max(0, step - passes)]!;
    const rows = { first: Math.floor(seenFrom(oldest) / rowTokens), end: Math.ceil(end / rowTokens) };
    t.like(mapped(bench, sequence), rows, `pass ${step}`);
    most = Math.max(most, rows.end - rows.first);
    const stream = streams[step % streams.length]!;
    const address = sequence.address(windowKeys) + BigInt(seenFrom(from) * tokenBytes);
    mock.queueWork(stream, [{ address, bytes: (end - seenFrom(from)) * tokenBytes, access: 'read' }]);
    cache.commit(batch, { fence: by === 'steps' ? { step } : { stream } });
    if (step >= passes) complete(step - passes);
  }
  for (let step = Math.max(0, lengths.length - passes); step < lengths.length; step += 1) complete(step);
  t.is(mapped(bench, sequence).first, Math.floor(seenFrom(tokens) / rowTokens));
  sequence.release();
  for (const stream of streams) native.destroyStream(stream);
  return most;
}

for (const by of ['steps', 'streams'] as const) {
  for (const [passes, most, mostOfOne] of [[0, 6, 3], [1, 10, 3], [2, 14, 3], [8, 25, 5]] as const) {
    const title = `an engine that runs ${passes} passes ahead on ${by} keeps what they read, and no more`;
    cacheTest(title, { ...options, device: { streams: 'manual' } }, (t, bench) => {
      t.is(mostRowsAhead(t, bench, by, { passes, chunk: 16, tokens: 100 }), most);
      t.is(mostRowsAhead(t, bench, by, { passes, chunk: 1, tokens: 200 }), mostOfOne);
      t.deepEqual(bench.mock.misuses(), []);
    });
  }
}

cacheTest('tokens are taken back as far as what layers see is mapped', { ...options, rollbackTokens: 3 }, (t, bench) => {
  const sequence = bench.sequenceOf(21);
  t.is(mapped(bench, sequence).first, 3);
  const error = t.throws(() => { sequence.truncate(16); });
  t.true(isKvError(error, 'KV_WINDOW_PASSED'));
  if (isKvError(error, 'KV_WINDOW_PASSED')) {
    t.deepEqual(error.details, { slot: sequence.slot, length: 21, tokens: 16, nearestTokens: 17, rollbackTokens: 3 });
  }
  t.is(sequence.length, 21);
  sequence.truncate(17);
  bench.compute(sequence, 4);
  t.is(sequence.length, 21);
});

cacheTests('a fork has its parent\'s window, and neither writes over the other', options, (t, bench) => {
  const { cache } = bench;
  const parent = bench.sequenceOf(10);
  cache.stamp(parent, 0, 10, 1);
  const pages = bench.pool().mappedPages;
  const child = parent.fork();
  t.is(bench.pool().mappedPages, pages + 2, 'the last row of the window is copied');
  t.is(cache.verifyStamp(child, 0, 10, 1), 0);
  for (const [sequence, key] of [[parent, 2], [child, 3]] as const) {
    bench.compute(sequence, 3);
    cache.stamp(sequence, 10, 3, key);
  }
  t.deepEqual([parent, child].map((sequence) => cache.verifyStamp(sequence, 6, 4, 1)), [0, 0]);
  t.is(cache.verifyStamp(parent, 10, 3, 2) + cache.verifyStamp(child, 10, 3, 3), 0);
});

cacheTest('a fork that takes tokens back writes to a row of its own', { ...options, rollbackTokens: 6 }, (t, bench) => {
  const { cache } = bench;
  const parent = bench.sequenceOf(16);
  cache.stamp(parent, 0, 16, 1);
  const child = parent.fork();
  child.truncate(13);
  bench.compute(child, 2);
  cache.stamp(child, 13, 2, 2);
  t.is(cache.verifyStamp(parent, 8, 8, 1), 0);
  t.is(cache.verifyStamp(child, 8, 5, 1), 0);
  t.is(cache.verifyStamp(child, 13, 2, 2), 0);
});

cacheTest('a view of a window begins with its first token', { ...options, on: 'host' }, (t, bench) => {
  const { cache } = bench;
  const sequence = bench.sequenceOf(10);
  cache.stamp(sequence, 4, 6, 5);
  const { strides, tokenBytes } = cache.tensors[windowKeys]!;
  t.is(sequence.firstToken(0), 0);
  t.is(sequence.firstToken(windowKeys), 4);
  const view = sequence.view(windowKeys);
  t.is(view.length, 8 * tokenBytes / strides.elementBytes);
  t.true(view.some((element) => element !== 0));
  bench.compute(sequence, 7);
  t.is(view.length, 0, 'detached before its rows go');
});

cacheTest('rows ahead come from the mapper, so that no step maps any', {
  ...options, mapper: 'background', growth: ahead(8),
}, async (t, bench) => {
  const { cache } = bench;
  const sequence = bench.sequenceOf(20);
  await cache.settled();
  const before = cache.metrics.foregroundMaps;
  for (let step = 0; step < 100; step += 1) {
    bench.compute(sequence, 1);
    await cache.settled();
  }
  t.is(cache.metrics.foregroundMaps, before);
  const { first, end } = mapped(bench, sequence);
  t.true(end - first <= 5);
});

cacheTest('a prompt in passes hands the rows that go to those of the next pass', {
  ...options, mapper: 'background', growth: ahead(8), passTokens: 16, scrub: 'between-tenants', device: { hasGarbage: true },
}, async (t, bench) => {
  const { cache } = bench;
  const sequence = cache.acquire({ promptTokens: 320, tenant: 'a' });
  for (let length = 0; length < 320; length += 16) {
    bench.compute(sequence, 16);
    cache.stamp(sequence, length, 16, 1);
    await cache.settled();
  }
  t.is(cache.verifyStamp(sequence, 0, 320, 1), 0);
  t.true(cache.metrics.handedRows >= 60, String(cache.metrics.handedRows));
  const { first, end } = mapped(bench, sequence);
  t.true(end - first <= 10);
});

cacheTest('rows go also where the system has no mapping for rows ahead, which is no error', {
  ...options, on: 'host', mappingLimit: 50, mapper: 'background', growth: ahead(8), passTokens: 16,
}, (t, bench) => {
  const { cache } = bench;
  const sequences: Sequence[] = [];
  let refusals = 0;
  for (let turn = 0; turn < 400; turn += 1) {
    try {
      if (sequences.length < 4) sequences.push(cache.acquire({ promptTokens: 60 }));
      const sequence = sequences[(turn * 7) % sequences.length]!;
      const { length } = sequence;
      if (length >= 180) sequences.splice(sequences.indexOf(sequence), 1)[0]!.release();
      else {
        const tokens = 1 + (turn * 31) % 12;
        bench.compute(sequence, tokens);
        cache.stamp(sequence, length, tokens, sequence.slot);
      }
      t.is(sequence.isReleased ? 0 : cache.verifyStamp(sequence, 0, sequence.length, sequence.slot), 0);
    } catch (error) {
      if (!isKvError(error, 'KV_OUT_OF_MAPPINGS')) throw error;
      refusals += 1;
      sequences.shift()?.release();
    }
  }
  t.is(cache.metrics.lateErrors, 0);
  t.true(refusals + cache.metrics.droppedRequests > 0);
});

/** No layer keeps all tokens. */
const onlyWindows: ModelShape = { ...model, layerSets: [{ kind: 'window', layers: [0, 1], windowTokens, layout: 'per-layer' }] };

cacheTest('a row that a fork maps is not exchanged under a step that may still use it', {
  ...options, model: onlyWindows, rollbackTokens: 6,
}, (t, bench) => {
  const { cache } = bench;
  const parent = bench.sequenceOf(16);
  const child = parent.fork();
  const batch = bench.batchOf([child, 1]);
  cache.prepare(batch);
  cache.commit(batch, { fence: { step: 1 } });
  child.truncate(11);
  const again = bench.batchOf([child, 3]);
  t.true(isKvError(t.throws(() => { cache.prepare(again); }), 'KV_WORK_QUEUED'));
  cache.completeStep(1);
  cache.prepare(again);
  cache.commit(again);
  t.is(child.length, 14);
});

cacheTest('nor under work on a stream, which is waited for', {
  ...options, model: onlyWindows, rollbackTokens: 6, device: { streams: 'manual' },
}, (t, bench) => {
  const { cache, mock } = bench;
  const stream = nativeOf(bench.driver).createStream();
  const child = bench.sequenceOf(16).fork();
  const batch = bench.batchOf([child, 1]);
  cache.prepare(batch);
  const { tokenBytes } = cache.tensors[windowKeys]!;
  const address = child.address(windowKeys) + BigInt(11 * tokenBytes);
  mock.queueWork(stream, [{ address, bytes: 6 * tokenBytes, access: 'read' }]);
  cache.commit(batch, { fence: { stream } });
  child.truncate(11);
  bench.compute(child, 3);
  t.is(mock.pendingWork, 0);
  t.deepEqual(mock.misuses(), []);
  nativeOf(bench.driver).destroyStream(stream);
});

cacheTest('rows ahead that made room for others are mapped again before they are written', {
  ...options, model: onlyWindows, memoryBudgetBytes: 40 * 65_536,
}, (t, bench) => {
  const { cache } = bench;
  const [first, other] = [bench.sequenceOf(4), bench.sequenceOf(4)];
  for (const tokens of [28, 20]) {
    bench.prepare(first, tokens);
    bench.discard();
  }
  t.is(bench.pool().mappedPages, 36);
  bench.compute(other, 28);
  other.release();
  bench.compute(first, 28);
  cache.stamp(first, 4, 28, 1);
  t.is(cache.verifyStamp(first, 4, 28, 1), 0);
});

cacheTest('what is set aside for a prompt stays so, whatever others ask for', {
  ...options, passTokens: 16, memoryBudgetBytes: (32 + 12 + 20) * 65_536,
}, (t, bench) => {
  const { cache } = bench;
  const sequence = cache.acquire({ promptTokens: 64 });
  bench.prepare(sequence, 16);
  bench.discard();
  const other = cache.acquire({ promptTokens: 0 });
  const error = t.throws(() => { bench.compute(other, 24); });
  t.true(isKvError(error, 'KV_OUT_OF_PAGES'));
  if (isKvError(error, 'KV_OUT_OF_PAGES')) t.like(error.details, { needPages: 24, havePages: 20 });
  bench.compute(other, 16);
  for (let length = 0; length < 64; length += 16) bench.compute(sequence, 16);
  t.is(sequence.length, 64);
});

cacheTest('a tenant finds nothing of another in a window', {
  ...options, on: 'host', scrub: 'between-tenants', memoryBudgetBytes: 40 * 65_536,
}, (t, bench) => {
  const { cache } = bench;
  const one = cache.acquire({ promptTokens: 40, reserve: 'none', tenant: 'a' });
  bench.prepare(one, 40);
  cache.stamp(one, 0, 40, 1);
  bench.commit();
  one.release();
  const other = cache.acquire({ promptTokens: 40, reserve: 'none', tenant: 'b' });
  bench.prepare(other, 40);
  t.is(bench.pool().createdPages, 40, 'all of them are the first tenant\'s');
  t.true(other.view(windowKeys).every((element) => element === 0));
  bench.commit();
  const fork = other.fork();
  other.release();
  bench.compute(fork, 4);
  t.true(fork.view(windowKeys).every((element) => element === 0));
});

test('text is not cached yet where layers let go of tokens, and options say so', (t) => {
  refuses(t, () => new KvCache({ model, slots: 1, maxTokens: 100, memoryBudgetBytes: 2 ** 24, driver: 'host' }),
    'KV_INVALID_OPTION', { option: 'prefixCache' });
});

cacheTest('kernels see as much of a layer as the cache keeps, and are refused more', { ...options, on: 'host' }, (t, bench) => {
  const { cache } = bench;
  const width = 64 * 128;
  const sequence = cache.acquire({ promptTokens: 40, reserve: 'none' });
  const row = (token: number): Float32Array => Float32Array.from({ length: width }, (_, index) => Math.sin(token * 31 + index));
  const [own, given] = [undefined, [undefined, { windowTokens }]].map((attention) => new Kernels({ cache, attention, threads: 1 }));
  for (let token = 0; token < 40; token += 1) {
    const batch = bench.batchOf([sequence, 1]);
    cache.prepare(batch);
    const answers = [own!, given!].map((kernels) => {
      kernels.append(1, batch, row(token), row(token + 1));
      const answer = new Float32Array(width);
      kernels.decodeAttention(1, batch, row(token + 2), answer);
      return answer;
    });
    t.deepEqual(answers[0], answers[1]);
    cache.commit(batch);
  }
  t.is(mapped(bench, sequence).first, 8);
  for (const rules of [{ windowTokens: windowTokens + 1 }, { chunkTokens: windowTokens + 1 }]) {
    refuses(t, () => new Kernels({ cache, attention: rules }),
      'KV_INVALID_OPTION', { option: 'attention', received: windowTokens + 1 });
  }
  for (const kernels of [own!, given!]) kernels.close();
});
