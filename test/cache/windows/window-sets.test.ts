// Layer sets where a call has failed, and where rows are shared or make room: what slots keep, give back and may not be
// given again. Pages of 64 KiB, rows of 4 tokens and 2 pages in each set; one layer keeps all tokens, one sees six.

import { ahead, isKvError, type KvCache, type ModelShape } from 'virtual-kv';

import { cacheTest, type BenchOptions } from '../../helpers/cache.js';

const model: ModelShape = {
  layers: 2, kvHeads: 64, headDim: 128, dtype: 'float16',
  layerSets: [
    { kind: 'full', layers: [0], layout: 'per-layer' },
    { kind: 'window', layers: [1], windowTokens: 6, layout: 'per-layer' },
  ],
};
const onlyWindows: ModelShape = { ...model, layerSets: [{ kind: 'window', layers: [0, 1], windowTokens: 6, layout: 'per-layer' }] };
const options: BenchOptions = { model, prefixCache: 'off', mapper: 'off', memoryBudgetBytes: 400 * 65_536, maxTokens: 500 };
const always = 1_000_000;

/** Pages that are lost to requests that wait for some. */
const withheldPages = ({ pool }: KvCache): number => (pool as unknown as { withheldPages(): number }).withheldPages();

/** The tensor of the window's keys. */
const windowKeys = 2;

cacheTest('a new sequence finds none of the rows that the driver kept of the last one', { ...options, slots: 1 }, (t, bench) => {
  const { cache, mock } = bench;
  const before = bench.sequenceOf(10);
  mock.failCall('cuMemUnmap', { times: always });
  before.release();
  mock.clearFailures();
  t.is(cache.counts().sets[1]!.mappedRows, 2, 'the driver has refused');
  const next = bench.sequenceOf(3);
  t.is(next.firstToken(windowKeys), 0);
  t.is(cache.counts().sets[1]!.mappedRows, 1);
  cache.stamp(next, 0, 3, 1);
  t.is(cache.verifyStamp(next, 0, 3, 1), 0);
});

cacheTest('neither does a fork', { ...options, slots: 2 }, (t, bench) => {
  const { cache, mock } = bench;
  const before = bench.sequenceOf(18);
  const parent = bench.sequenceOf(10);
  cache.stamp(parent, 0, 10, 1);
  mock.failCall('cuMemUnmap', { times: always });
  before.release();
  mock.clearFailures();
  t.is(cache.counts().sets[1]!.mappedRows, 4, 'the driver has refused');
  const fork = parent.fork();
  t.is(fork.firstToken(windowKeys), 4);
  t.is(cache.counts().sets[1]!.mappedRows, 4);
  t.is(cache.verifyStamp(fork, 0, 10, 1), 0);
});

cacheTest('an admission that fails sets nothing aside', {
  ...options, slots: 1, passTokens: 16, scrub: 'between-tenants', device: { hasGarbage: true },
}, (t, bench) => {
  const { cache, mock } = bench;
  bench.sequenceOf(40, 'a').release();
  const before = bench.pool();
  mock.failCall('cuMemsetD8Async', { times: always });
  t.throws(() => cache.acquire({ promptTokens: 100, tenant: 'b' }), { code: 'KV_DRIVER_CALL_FAILED' });
  mock.clearFailures();
  t.deepEqual(bench.pool(), before);
});

cacheTest('room that a call took before it failed is known to be gone', {
  ...options, model: onlyWindows, rollbackTokens: 8,
}, (t, bench) => {
  const { cache, mock } = bench;
  const parent = bench.sequenceOf(16);
  const fork = parent.fork();
  fork.truncate(9);
  mock.failCall('cuMemMap', { times: always });
  t.throws(() => { bench.prepare(fork, 3); }, { code: 'KV_DRIVER_CALL_FAILED' });
  mock.clearFailures();
  t.throws(() => { cache.stamp(fork, 9, 7, 1); }, { code: 'KV_COPY_OUT_OF_RANGE' });
});

cacheTest('pages of rows that a fork shares too are not counted on for a prompt', {
  ...options, passTokens: 16, memoryBudgetBytes: (32 + 12 + 8) * 65_536,
}, (t, bench) => {
  const { cache } = bench;
  const sequence = cache.acquire({ promptTokens: 64 });
  bench.compute(sequence, 16);
  sequence.fork();
  const other = cache.acquire({ promptTokens: 0 });
  bench.prepare(other, 8);
  bench.discard();
  bench.compute(sequence, 16); // its rows 2 and 3 are the fork's, and give no pages for the next pass
  t.is(bench.cache.counts().sets[1]!.mappedRows, 2 + 2 + 2);
  bench.compute(sequence, 16);
  t.is(sequence.length, 48, 'the other\'s rows ahead have made room');
});

cacheTest('what is set aside for a prompt outlasts rows ahead that made room for others', {
  ...options, passTokens: 16, memoryBudgetBytes: (32 + 12 + 20) * 65_536,
}, (t, bench) => {
  const { cache } = bench;
  const sequence = cache.acquire({ promptTokens: 64 });
  bench.prepare(sequence, 32);
  bench.discard();
  bench.compute(cache.acquire({ promptTokens: 0 }), 20);
  bench.compute(sequence, 16);
  t.is(bench.pool().earmarkedPages, 2 * (16 - 8) + 2 * 2, 'eight rows where all is kept, and two of six in the window');
});

cacheTest('rows ahead stay where a row is copied that a fork shares', { ...options, rollbackTokens: 6 }, (t, bench) => {
  const sequence = bench.sequenceOf(16);
  const fork = sequence.fork();
  bench.prepare(fork, 10);
  bench.discard();
  fork.truncate(13);
  const rows = bench.cache.counts().sets[1]!.mappedRows;
  bench.compute(fork, 3);
  t.is(bench.cache.counts().sets[1]!.mappedRows, rows);
});

cacheTest('no sequence gets a slot that the driver has ruined in a window set, nor the pages of that slot', {
  ...options, slots: 2, memoryBudgetBytes: 40 * 65_536,
}, (t, bench) => {
  const { cache, mock } = bench;
  const sequence = bench.sequenceOf(8);
  bench.prepare(sequence, 1);
  mock.failCall('cuMemUnmap', { nth: 2, times: always });
  mock.failCall('cuMemMap', { times: always });
  bench.commit(); // row 0 goes, but for its values
  mock.clearFailures();
  t.is(cache.metrics.lateErrors, 1);
  t.is(withheldPages(cache), 0);
  sequence.release();
  t.is(cache.counts().quarantinedSlots, 1);
  t.is(withheldPages(cache), 2 * 2, 'rows 1 and 2 of the window');
  const { admissibleTokens } = cache.counts();
  const largest = cache.acquire({ promptTokens: admissibleTokens });
  t.throws(() => cache.acquire(), { code: 'KV_NO_FREE_SLOT' });
  bench.compute(largest, admissibleTokens);
  largest.release();
  t.true(isKvError(t.throws(() => cache.acquire({ promptTokens: admissibleTokens + 4 })), 'KV_OUT_OF_PAGES'));
});

cacheTest('a window slides on beside one that the driver has ruined, as far as the sequence goes', {
  ...options, model: {
    ...model, layers: 3, layerSets: [
      ...model.layerSets!, { kind: 'window', layers: [2], windowTokens: 9, layout: 'per-layer' },
    ],
  },
}, (t, bench) => {
  const { cache, mock } = bench;
  const sequence = bench.sequenceOf(8);
  bench.prepare(sequence, 20);
  bench.discard();
  bench.prepare(sequence, 1);
  mock.failCall('cuMemUnmap', { nth: 2, times: always });
  mock.failCall('cuMemMap', { times: always });
  bench.commit();
  mock.clearFailures();
  bench.compute(sequence, 6);
  t.is(sequence.firstToken(4), 4);
  t.is(cache.counts().sets[2]!.mappedRows, 7 - 1);
  sequence.release();
  t.is(cache.metrics.lateErrors, 1);
});

cacheTest('a sequence that is released keeps its rows until all work that uses it is over', options, (t, bench) => {
  const { cache } = bench;
  const sequence = bench.sequenceOf(8);
  const batch = bench.batchOf([sequence, 8]);
  cache.prepare(batch);
  cache.commit(batch, { fence: { step: 1 } });
  const { mappedRows } = cache.counts().sets[1]!;
  sequence.release({ fence: { step: 2 } });
  cache.completeStep(1);
  t.is(cache.counts().sets[1]!.mappedRows, mappedRows);
  cache.completeStep(2);
  t.is(cache.counts().sets[1]!.mappedRows, 0);
});

cacheTest('nothing is set aside for a sequence that is released', { ...options, passTokens: 16 }, (t, bench) => {
  const { cache } = bench;
  cache.acquire({ promptTokens: 100 }).release({ fence: { step: 1 } });
  t.is(bench.pool().earmarkedPages, 0);
  cache.completeStep(1);
});

cacheTest('a row that was copied once is written on while steps are queued', {
  ...options, model: onlyWindows, rollbackTokens: 6,
}, (t, bench) => {
  const { cache } = bench;
  const fork = bench.sequenceOf(16).fork();
  fork.truncate(13);
  for (const step of [1, 2]) {
    const batch = bench.batchOf([fork, 1]);
    cache.prepare(batch);
    cache.commit(batch, { fence: { step } });
  }
  t.is(fork.length, 15);
  cache.completeStep(2);
});

cacheTest('the next sequence of a slot shares nothing that the last one did, and needs no room for it', {
  ...options, model: onlyWindows, slots: 2, memoryBudgetBytes: 40 * 65_536,
}, (t, bench) => {
  bench.sequenceOf(16).fork().release();
  const next = bench.cache.acquire({ promptTokens: 32 });
  bench.compute(next, 32);
  t.is(next.length, 32);
});

let isAhead = true;

cacheTest('rows ahead are handed to a sequence that asks for some, and not to the next of its slot', {
  ...options, slots: 1, mapper: 'background', growth: (length) => length + (isAhead ? 40 : 0),
}, async (t, bench) => {
  const { cache } = bench;
  isAhead = true;
  const first = bench.sequenceOf(1);
  await cache.settled();
  first.release();
  isAhead = false;
  bench.sequenceOf(16);
  t.is(cache.metrics.slidRows, 2);
  t.is(cache.metrics.handedRows, 0);
});

cacheTest('a prompt that is computed gives back at once what its passes needed', { ...options, passTokens: 18 }, (t, bench) => {
  const sequence = bench.cache.acquire({ promptTokens: 56 });
  for (const tokens of [18, 18, 18, 1, 1]) bench.compute(sequence, tokens);
  t.is(sequence.firstToken(windowKeys), 48, 'no row goes with the last passes');
  t.is(bench.pool().earmarkedPages, 2, 'one row, for single tokens');
});

cacheTest('a batch with a step in the way of one row copies none', { ...options, model: onlyWindows, rollbackTokens: 6 }, (t, bench) => {
  const { cache } = bench;
  const parent = bench.sequenceOf(16);
  const [free, busy] = [parent.fork(), parent.fork()];
  const step = bench.batchOf([busy, 1]);
  cache.prepare(step);
  cache.commit(step, { fence: { step: 1 } });
  for (const fork of [free, busy]) fork.truncate(13);
  const { mappedPages } = bench.pool();
  const batch = bench.batchOf([free, 1], [busy, 1]);
  t.throws(() => { cache.prepare(batch); }, { code: 'KV_WORK_QUEUED' });
  t.is(bench.pool().mappedPages, mappedPages);
  cache.completeStep(1);
  cache.prepare(batch);
  t.is(bench.pool().mappedPages, mappedPages + 2 * 4);
  cache.commit(batch);
});

cacheTest('the parent of a fork that takes tokens back writes to a row of its own', { ...options, model: onlyWindows, rollbackTokens: 6 }, (t, bench) => {
  const { cache } = bench;
  const parent = bench.sequenceOf(16);
  cache.stamp(parent, 0, 16, 1);
  const fork = parent.fork();
  parent.truncate(13);
  bench.compute(parent, 2);
  cache.stamp(parent, 13, 2, 2);
  t.is(cache.verifyStamp(fork, 8, 8, 1), 0);
});

/** Two sequences of one row each, with room for eight rows more. */
const tight: BenchOptions = { ...options, model: onlyWindows, memoryBudgetBytes: 40 * 65_536 };

cacheTest('rows that the driver kept of a released sequence make room', tight, (t, bench) => {
  const before = bench.sequenceOf(32);
  bench.mock.failCall('cuMemUnmap', { times: always });
  before.release();
  bench.mock.clearFailures();
  t.is(bench.pool().mappedPages, 4 * 2, 'the driver has refused');
  bench.compute(bench.sequenceOf(0), 40);
  t.is(bench.pool().createdPages, 40);
});

cacheTest('rows of a pass that is prepared or queued, and of a sequence that is released behind a fence, make no room', tight, (t, bench) => {
  const { cache } = bench;
  const other = bench.sequenceOf(4);
  const refuse = (): void => { t.throws(() => { bench.compute(other, 12); }, { code: 'KV_OUT_OF_PAGES' }); };
  for (const end of ['discarded', 'released'] as const) {
    const sequence = bench.sequenceOf(4);
    const batch = bench.batchOf([sequence, 28]);
    cache.prepare(batch);
    refuse();
    cache.discard(batch, end === 'discarded' ? { fence: { step: 1 } } : {});
    if (end === 'released') sequence.release({ fence: { step: 2 } });
    refuse();
    cache.completeStep(end === 'released' ? 2 : 1);
    if (!sequence.isReleased) sequence.release();
  }
  bench.compute(other, 12);
  t.is(other.length, 16);
});

cacheTest('no more rows ahead are taken than make room', tight, (t, bench) => {
  const { cache } = bench;
  const [first, second, other] = [bench.sequenceOf(4), bench.sequenceOf(4), bench.sequenceOf(4)];
  for (const sequence of [first, second]) {
    bench.prepare(sequence, 12);
    bench.discard();
  }
  bench.prepare(other, 8);
  t.is(cache.counts().sets[0]!.mappedRows, 1 + 4 + 3);
  bench.commit();
});

cacheTest('rows ahead go as far as one pass', { ...options, mapper: 'background', growth: ahead(200), passTokens: 16 }, async (t, bench) => {
  bench.sequenceOf(4);
  await bench.cache.settled();
  t.is(bench.cache.counts().sets[1]!.mappedRows, 5);
});

cacheTest('rows ahead end with the slot', { ...options, mapper: 'background', growth: ahead(24), maxTokens: 40 }, async (t, bench) => {
  const sequence = bench.sequenceOf(10);
  while (sequence.length < 40) {
    await bench.cache.settled();
    bench.compute(sequence, 1);
    t.true(sequence.firstToken(windowKeys) / 4 + bench.cache.counts().sets[1]!.mappedRows <= 10);
  }
  t.is(bench.cache.metrics.lateErrors, 0);
});

cacheTest('a view of a window is detached when its sequence is released, whatever work is queued', { ...options, on: 'host' }, (t, bench) => {
  const { cache } = bench;
  const sequence = bench.sequenceOf(10);
  const view = sequence.view(windowKeys);
  t.true(view.length > 0);
  sequence.release({ fence: { step: 1 } });
  t.is(view.length, 0);
  cache.completeStep(1);
});

cacheTest('a view of a window is detached before a row is exchanged', { ...options, on: 'host', rollbackTokens: 6 }, (t, bench) => {
  const fork = bench.sequenceOf(16).fork();
  fork.truncate(13);
  const view = fork.view(windowKeys);
  t.true(view.length > 0);
  bench.prepare(fork, 1);
  t.is(view.length, 0);
  bench.commit();
});

cacheTest('a view of a window is detached where its rows ahead make room for others', {
  ...options, on: 'host', model: onlyWindows, memoryBudgetBytes: 40 * 65_536,
}, (t, bench) => {
  const [sequence, other] = [bench.sequenceOf(4), bench.sequenceOf(4)];
  bench.prepare(sequence, 28);
  bench.discard();
  const view = sequence.view(windowKeys);
  t.true(view.length > 0);
  bench.compute(other, 28);
  t.is(view.length, 0);
});

cacheTest('a slot that the driver has ruined in a window set does not keep rows of others in its batch', { ...options, slots: 2 }, (t, bench) => {
  const { cache, mock } = bench;
  const ruined = cache.acquire({ promptTokens: 40 });
  bench.prepare(ruined, 40);
  bench.discard(); // its rows are mapped
  bench.prepare(ruined, 39);
  mock.failCall('cuMemUnmap', { nth: 2, times: always });
  mock.failCall('cuMemMap', { times: always });
  bench.commit();
  mock.clearFailures();
  const other = bench.sequenceOf(8);
  t.deepEqual([cache.metrics.lateErrors, other.firstToken(windowKeys)], [1, 0]);
  const batch = bench.batchOf([ruined, 1], [other, 4]);
  cache.prepare(batch);
  cache.commit(batch); // the prompt is computed: less is set aside for it
  t.deepEqual([cache.metrics.lateErrors, other.firstToken(windowKeys)], [1, 4]);
  ruined.release();
});
