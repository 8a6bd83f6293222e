// How rows come: on demand, ahead by the mapper, eagerly for the next request, and set aside for a whole prompt.

import test from 'ava';

import { ahead, onDemand, type Sequence } from 'virtual-kv';

import { SlotChoice } from '#internal/cache/slot-choice.js';

import { cacheTest, cacheTests, pageBytes, rowTokens, withCache, type CacheBench } from '../helpers/cache.js';

const rowPages = 4;

// On demand

cacheTests('a row appears with the first token that needs it, and not before', {}, (t, bench) => {
  const sequence = bench.cache.acquire();
  t.is(sequence.mappedRows, 0);
  for (let tokens = 1; tokens <= 3 * rowTokens; tokens += 1) {
    const isNewRow = (tokens - 1) % rowTokens === 0;
    const expected = { foreground: isNewRow ? rowPages : 0, background: 0, unmaps: 0 };
    t.deepEqual(bench.changes(() => bench.compute(sequence, 1)), expected, `token ${tokens}`);
  }
  t.is(sequence.length, 3 * rowTokens);
  t.like(bench.cache.counts(), { mappedRows: 3, mappedPages: 12, usedTokens: 192, activeSlots: 1, idleSlots: 7 });
});

cacheTests('every token that has memory keeps what was written there, through all later growth', { rows: 40 }, (t, bench) => {
  const { cache } = bench;
  const sequences = [1, 2, 3].map(() => cache.acquire());
  for (const chunk of [1, 63, 64, 65, 100, 7, 128]) {
    for (const [index, sequence] of sequences.entries()) {
      bench.prepare(sequence, chunk);
      cache.stamp(sequence, sequence.length, chunk, index);
      bench.commit();
      t.true(bench.isIntact(sequence, index));
    }
  }
  for (const [index, sequence] of sequences.entries()) {
    t.true(bench.isIntact(sequence, index));
    t.is(cache.verifyStamp(sequence, 0, sequence.length, 99), sequence.length, 'another key matches nowhere');
  }
});

cacheTests('a whole batch grows together or not at all', { rows: 3 }, (t, bench) => {
  const { cache } = bench;
  const [first, second] = [bench.sequenceOf(rowTokens), bench.sequenceOf(rowTokens)];
  cache.stamp(first, 0, rowTokens, 1);
  const batch = bench.batchOf([first, 1], [second, 1]);
  const error = t.throws(() => cache.prepare(batch), { code: 'KV_OUT_OF_PAGES' });
  t.like(error, { details: { needRows: 2, haveRows: 1, needPages: 8, havePages: 4, slots: [first.slot, second.slot] } });
  t.false(batch.isPrepared);
  t.deepEqual([first.mappedRows, second.mappedRows], [1, 1]);
  t.true(bench.isIntact(first, 1));
  second.release();
  batch.clear();
  batch.add(first, 1);
  cache.prepare(batch);
  cache.commit(batch);
  t.is(first.mappedRows, 2);
});

cacheTests('`discard` keeps the memory and not the tokens', {}, (t, bench) => {
  const sequence = bench.cache.acquire();
  bench.prepare(sequence, 100);
  bench.discard();
  t.is(sequence.length, 0);
  t.is(sequence.mappedRows, 2);
  t.is(bench.changes(() => bench.compute(sequence, 100)).foreground, 0);
});

cacheTests('truncated tokens can be computed again in the same memory', {}, (t, bench) => {
  const sequence = bench.sequenceOf(200);
  bench.cache.stamp(sequence, 0, 200, 5);
  sequence.truncate(70);
  t.is(sequence.length, 70);
  t.is(bench.changes(() => bench.compute(sequence, 130)).foreground, 0);
  t.is(bench.cache.verifyStamp(sequence, 0, 200, 5), 0);
  sequence.truncate(200);
  sequence.truncate(0);
  t.is(sequence.length, 0);
});

// Ahead

async function decode(bench: CacheBench, sequence: Sequence, steps: number): Promise<void> {
  for (let step = 0; step < steps; step += 1) {
    bench.compute(sequence, 1);
    await bench.cache.settled();
  }
}

cacheTests('steady decode maps nothing in the foreground once the mapper is ahead', { growth: ahead(8) }, async (t, bench) => {
  const sequences = [bench.sequenceOf(50), bench.sequenceOf(120)];
  await bench.cache.settled();
  const before = bench.cache.metrics;
  for (const sequence of sequences) await decode(bench, sequence, 3 * rowTokens);
  const after = bench.cache.metrics;
  t.is(after.foregroundMaps, before.foregroundMaps);
  t.true(after.backgroundMaps > before.backgroundMaps);
  t.is(after.droppedRequests, 0);
  t.is(after.lateErrors, 0);
});

cacheTests('`ahead(n)` maps the row that the next n tokens touch, and no further', { growth: ahead(10) }, async (t, bench) => {
  const sequence = bench.sequenceOf(rowTokens - 10);
  await bench.cache.settled();
  t.is(sequence.mappedRows, 1);
  await decode(bench, sequence, 1);
  t.is(sequence.mappedRows, 2);
  await decode(bench, sequence, rowTokens - 1);
  t.is(sequence.mappedRows, 2);
});

cacheTests('nothing is mapped ahead beyond the end of a slot', { growth: ahead(500), maxTokens: 160 }, async (t, bench) => {
  const sequence = bench.sequenceOf(1);
  await bench.cache.settled();
  t.is(sequence.mappedRows, 3, '160 tokens end inside the third row');
  bench.compute(sequence, 159);
  await bench.cache.settled();
  t.is(sequence.mappedRows, 3);
});

cacheTests('the mapper takes free pages and never a row from anybody', { rows: 3, growth: ahead(rowTokens) }, async (t, bench) => {
  const idle = bench.sequenceOf(1);
  await bench.cache.settled();
  t.is(idle.mappedRows, 2);
  idle.release();
  const busy = bench.cache.acquire({ promptTokens: 3 * rowTokens, reserve: 'none' });
  t.is(busy.slot, idle.slot);
  bench.compute(busy, 2 * rowTokens);
  await bench.cache.settled();
  t.is(busy.mappedRows, 3);
  const other = bench.cache.acquire();
  await bench.cache.settled();
  t.is(other.mappedRows, 0);
  t.true(bench.cache.metrics.droppedRequests > 0);
  t.is(bench.cache.metrics.unmaps, 0);
});

cacheTests('without a mapper every row is mapped in `prepare`', { growth: ahead(200), mapper: 'off' }, async (t, bench) => {
  const sequence = bench.sequenceOf(1);
  await bench.cache.settled();
  t.is(sequence.mappedRows, 1);
  bench.compute(sequence, rowTokens);
  t.like(bench.cache.metrics, { foregroundRows: 2, backgroundRows: 0 });
});

// Nothing is asked for before the first commit: the mapper's calls would keep those of `prepare` waiting, as long as it pleases the system.
cacheTest('a released sequence gets no more rows ahead', { growth: (tokens) => (tokens > 0 ? 900 : 0) }, async (t, bench) => {
  bench.mock.setLatencyNs('cuMemMap', 100_000_000);
  const sequence = bench.sequenceOf(1);
  sequence.release();
  const { mappedRows } = bench.cache.counts();
  t.true(mappedRows < 14);
  await bench.cache.settled();
  t.true(bench.cache.counts().mappedRows <= mappedRows + 1, 'the row at hand was finished');
});

for (const [what, growth] of [
  ['negative', () => -1], ['infinite', () => Infinity], ['a fraction', (tokens: number) => tokens + 0.5],
] as const) {
  cacheTests(`a growth policy may return ${what}`, { growth }, async (t, bench) => {
    const sequence = bench.sequenceOf(rowTokens);
    await bench.cache.settled();
    const expected = { negative: 1, infinite: 16, 'a fraction': 2 }[what];
    t.is(sequence.mappedRows, expected);
  });
}

cacheTests('a growth policy that throws leaves a finished commit, and no slot without a handle', {
  growth: (tokens) => { if (tokens === 7) throw new Error('policy'); return tokens; },
}, (t, bench) => {
  const { cache } = bench;
  const [first, second] = [bench.sequenceOf(6), bench.sequenceOf(3)];
  const batch = bench.batchOf([first, 1], [second, 1]);
  cache.prepare(batch);
  t.throws(() => cache.commit(batch), { message: 'policy' });
  t.deepEqual([first.length, second.length], [7, 4]);
  t.false(batch.isPrepared);
  bench.compute(first, 1);
});

cacheTests('an `acquire` whose growth policy throws leases nothing', { growth: () => { throw new Error('policy'); } }, (t, { cache }) => {
  t.throws(() => cache.acquire({ promptTokens: 100 }), { message: 'policy' });
  t.like(cache.counts(), { activeSlots: 0, idleSlots: 8 });
  t.is(cache.pool.counts().earmarkedPages, 0);
});

test('`ahead` needs at least one token', (t) => {
  for (const tokens of [0, -1, 1.5, NaN]) t.throws(() => ahead(tokens), { instanceOf: RangeError });
  t.is(ahead(16)(100, 0), 116);
  t.is(onDemand()(100, 500), 100);
});

// Eager rows

cacheTests('one idle slot is kept warm, and the next prompt maps nothing', { eagerRows: 3 }, async (t, bench) => {
  const { cache } = bench;
  await cache.settled();
  t.like(cache.counts(), { mappedRows: 3, idleRows: 3, idleSlots: 8 });
  for (const round of [1, 2]) {
    const sequence = cache.acquire({ promptTokens: 3 * rowTokens });
    t.is(bench.changes(() => bench.compute(sequence, 3 * rowTokens)).foreground, 0, `round ${round}`);
    await cache.settled();
    t.is(cache.counts().idleRows, 3, 'another slot is warm now');
  }
});

cacheTests('a released slot with enough rows is warm already', { eagerRows: 2 }, async (t, bench) => {
  await bench.cache.settled();
  const sequence = bench.sequenceOf(3 * rowTokens);
  await bench.cache.settled();
  const before = bench.cache.metrics.backgroundMaps;
  sequence.release();
  bench.cache.acquire({ promptTokens: 2 * rowTokens });
  await bench.cache.settled();
  t.is(bench.cache.metrics.backgroundMaps, before);
});

cacheTests('eager rows are given up to a sequence that needs them', { eagerRows: 3, rows: 4 }, async (t, bench) => {
  await bench.cache.settled();
  const sequence = bench.cache.acquire({ promptTokens: 4 * rowTokens });
  bench.compute(sequence, 4 * rowTokens);
  await bench.cache.settled();
  t.is(sequence.mappedRows, 4);
  t.is(bench.cache.counts().idleRows, 0);
});

test('a prompt counts the rows that the mapper finishes while it is admitted', async (t) => {
  let waitFor = (): void => {};
  const { forText } = SlotChoice.prototype;
  SlotChoice.prototype.forText = function(promptRows) {
    waitFor();
    return forText.call(this, promptRows);
  };
  t.teardown(() => { SlotChoice.prototype.forText = forText; });
  await withCache(t, { eagerRows: 8, rows: 8, slots: 1 }, ({ mock, cache }) => {
    const reach = (maps: number): void => { while (mock.callCounts().cuMemMap < maps); };
    mock.setLatencyNs('cuMemMap', 2_000_000);
    for (let round = 0; round < 4; round += 1) {
      waitFor = () => {};
      cache.pool.setBudget(1); // every row goes back
      cache.pool.setBudget(8 * 4 * pageBytes);
      mock.resetCallCounts();
      cache.acquire({ reserve: 'none' }).release();
      reach(1); // in the first row: 28 pages are left, enough for 7 rows
      waitFor = () => reach(5); // in the second: 24 are, and 5 rows are missing
      const sequence = cache.acquire({ promptTokens: 7 * rowTokens });
      const { mappedPages } = cache.counts();
      t.is(cache.pool.counts().earmarkedPages + mappedPages, Math.max(7 * 4, mappedPages));
      sequence.release();
    }
  });
});

cacheTests('no more rows are eager than idle slots may have', { eagerRows: 4, idleRowsLimit: 2 }, async (t, bench) => {
  const { cache } = bench;
  await cache.settled();
  t.like(cache.counts(), { idleRows: 2 });
  const sequences = [1, 2, 3, 4].map(() => bench.sequenceOf(2 * rowTokens));
  await cache.settled();
  const { backgroundMaps, unmaps } = cache.metrics;
  for (const [round, sequence] of sequences.entries()) {
    sequence.release();
    await cache.settled();
    t.like(cache.counts(), { idleRows: 2 });
    t.like(cache.metrics, { backgroundMaps, unmaps: unmaps + 8 * (round + 1) }, 'two rows too many, and nothing is mapped for them');
  }
});

// A whole prompt

cacheTests('two prompts that each fit, and not together, block each other without a reservation', { rows: 10 }, (t, bench) => {
  const [first, second] = [1, 2].map(() => bench.cache.acquire({ promptTokens: 6 * rowTokens, reserve: 'none' })) as [Sequence, Sequence];
  for (let chunk = 0; chunk < 5; chunk += 1) for (const sequence of [first, second]) bench.compute(sequence, rowTokens);
  for (const sequence of [first, second]) t.throws(() => bench.prepare(sequence, rowTokens), { code: 'KV_OUT_OF_PAGES' });
});

cacheTests('a prompt whose pages are set aside is computed in chunks whatever else happens', { rows: 10 }, (t, bench) => {
  const { cache } = bench;
  const first = cache.acquire({ promptTokens: 6 * rowTokens });
  t.is(bench.pool().earmarkedPages, 6 * rowPages);
  const refused = t.throws(() => cache.acquire({ promptTokens: 6 * rowTokens }), { code: 'KV_OUT_OF_PAGES' });
  t.like(refused, { details: { needRows: 6, haveRows: 4, needPages: 24, havePages: 16, slots: [] } });
  t.is(cache.counts().activeSlots, 1);
  const second = cache.acquire({ promptTokens: 4 * rowTokens });
  const greedy = cache.acquire();
  for (let chunk = 0; chunk < 6; chunk += 1) {
    t.throws(() => bench.prepare(greedy, 1), { code: 'KV_OUT_OF_PAGES' });
    bench.compute(first, rowTokens);
    if (chunk < 4) bench.compute(second, rowTokens);
  }
  t.is(bench.pool().earmarkedPages, 0);
  t.deepEqual([first.mappedRows, second.mappedRows], [6, 4]);
});

cacheTests('an earmark is kept across a refused growth beyond it, and ends with the sequence', { rows: 6 }, (t, bench) => {
  const { cache } = bench;
  const sequence = cache.acquire({ promptTokens: 4 * rowTokens });
  bench.compute(sequence, rowTokens);
  t.is(bench.pool().earmarkedPages, 3 * rowPages);
  t.throws(() => bench.prepare(sequence, 6 * rowTokens), { code: 'KV_OUT_OF_PAGES' });
  t.is(bench.pool().earmarkedPages, 3 * rowPages);
  sequence.release();
  t.is(bench.pool().earmarkedPages, 0);
  t.is(bench.sequenceOf(6 * rowTokens).mappedRows, 6);
});

cacheTests('the rows a slot kept count towards the earmark', { rows: 10 }, (t, bench) => {
  const { cache } = bench;
  bench.idleSlotOf(4);
  const sequence = cache.acquire({ promptTokens: 10 * rowTokens });
  t.is(sequence.mappedRows, 4);
  t.is(bench.pool().earmarkedPages, 6 * rowPages);
  bench.compute(sequence, 10 * rowTokens);
  t.is(cache.metrics.unmaps, 0);
});

cacheTests('idle rows of other slots are taken back to keep an earmark', { rows: 10 }, (t, bench) => {
  const { cache } = bench;
  const [small, large] = [bench.sequenceOf(3 * rowTokens), bench.sequenceOf(5 * rowTokens)];
  small.release();
  large.release();
  const sequence = cache.acquire({ promptTokens: 9 * rowTokens });
  t.is(sequence.slot, large.slot);
  t.is(sequence.mappedRows, 5);
  t.is(bench.pool().earmarkedPages, 4 * rowPages);
  t.is(cache.counts().idleRows, 1, 'two of the three idle rows were needed');
  bench.compute(sequence, 9 * rowTokens);
});

cacheTests('the rows of the slot that gets the earmark are not taken for it, though they were used longest ago', {
  rows: 6,
}, (t, bench) => {
  const [large, small] = [bench.sequenceOf(3 * rowTokens), bench.sequenceOf(2 * rowTokens)];
  large.release();
  small.release();
  const sequence = bench.cache.acquire({ promptTokens: 5 * rowTokens });
  t.is(sequence.slot, large.slot);
  t.is(sequence.mappedRows, 3);
  t.is(bench.cache.counts().idleRows, 1);
  bench.compute(sequence, 5 * rowTokens);
});

cacheTests('the mapper maps an earmarked prompt from the earmark', { rows: 10, growth: ahead(1) }, async (t, bench) => {
  const sequence = bench.cache.acquire({ promptTokens: 5 * rowTokens });
  await bench.cache.settled();
  t.is(sequence.mappedRows, 5);
  t.is(bench.pool().earmarkedPages, 0);
  t.is(bench.changes(() => bench.compute(sequence, 5 * rowTokens)).foreground, 0);
});
