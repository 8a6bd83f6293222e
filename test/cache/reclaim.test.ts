// Which slot a new sequence gets, and whose rows are taken back when pages are short.

import type { Sequence } from 'virtual-kv';

import { cacheTest, cacheTests, rowTokens } from '../helpers/cache.js';

const rowPages = 4;

cacheTests('a released slot keeps its pages until they are needed', { rows: 10 }, (t, bench) => {
  const { cache } = bench;
  const idle = bench.sequenceOf(4 * rowTokens);
  const active = bench.sequenceOf(rowTokens);
  idle.release();
  t.like(cache.counts(), { idleRows: 4, reclaimablePages: 16, mappedRows: 5 });
  bench.compute(active, 5 * rowTokens);
  t.is(cache.metrics.unmaps, 0);
  bench.compute(active, rowTokens);
  t.is(cache.metrics.unmaps, rowPages);
  t.is(cache.counts().idleRows, 3, 'one row was short, and one was taken');
});

cacheTests('the rows of the slot that was released longest ago go first, from its end', { rows: 9 }, (t, bench) => {
  const { cache } = bench;
  const sequences = [bench.sequenceOf(3 * rowTokens), bench.sequenceOf(3 * rowTokens), bench.sequenceOf(3 * rowTokens)] as const;
  for (const index of [1, 0] as const) sequences[index].release();
  bench.compute(sequences[2], rowTokens);
  const rows = (index: 0 | 1) => slotRows(cache.inspect(), sequences[index]);
  t.deepEqual([rows(0), rows(1)], [3, 2]);
  bench.compute(sequences[2], 3 * rowTokens);
  t.deepEqual([rows(0), rows(1)], [2, 0]);
});

cacheTests('the unused tail of an active sequence is taken before a retired slot', { rows: 8 }, (t, bench) => {
  const { cache } = bench;
  const [tail, idle, growing] = [bench.sequenceOf(4 * rowTokens), bench.sequenceOf(2 * rowTokens), bench.sequenceOf(2 * rowTokens)];
  cache.stamp(tail, 0, 4 * rowTokens, 1);
  idle.release();
  tail.truncate(rowTokens + 1);
  t.is(cache.counts().reclaimablePages, 4 * rowPages);
  bench.compute(growing, 2 * rowTokens);
  t.is(tail.mappedRows, 2);
  t.is(cache.counts().idleRows, 2);
  t.is(cache.verifyStamp(tail, 0, tail.length, 1), 0);
  bench.compute(growing, 2 * rowTokens);
  t.is(tail.mappedRows, 2, 'what it needs is never taken');
  t.is(cache.counts().idleRows, 0);
  t.throws(() => bench.prepare(growing, 1), { code: 'KV_OUT_OF_PAGES' });
});

cacheTests('the tail that is being computed is not unused', { rows: 4 }, (t, bench) => {
  const { cache } = bench;
  const [computing, growing] = [bench.sequenceOf(2 * rowTokens), bench.sequenceOf(rowTokens)];
  computing.truncate(1);
  const batch = bench.batchOf([computing, 2 * rowTokens - 1]);
  cache.prepare(batch);
  bench.compute(growing, rowTokens);
  t.throws(() => bench.prepare(growing, 1), { code: 'KV_OUT_OF_PAGES' });
  cache.discard(batch);
  bench.compute(growing, 1);
  t.is(computing.mappedRows, 1);
});

cacheTests('rows that were earmarked are not unused', { rows: 6 }, (t, bench) => {
  const reserved = bench.cache.acquire({ promptTokens: 4 * rowTokens });
  bench.compute(reserved, 4 * rowTokens);
  reserved.truncate(1);
  const growing = bench.sequenceOf(2 * rowTokens);
  t.throws(() => bench.prepare(growing, 1), { code: 'KV_OUT_OF_PAGES' });
  t.is(reserved.mappedRows, 4);
});

cacheTests('a slot behind a fence is no candidate', { rows: 4 }, (t, bench) => {
  const waiting = bench.sequenceOf(3 * rowTokens);
  waiting.release({ fence: { step: 1 } });
  const growing = bench.sequenceOf(rowTokens);
  t.like(t.throws(() => bench.prepare(growing, 1), { code: 'KV_OUT_OF_PAGES' }), { details: { haveRows: 0 } });
  t.is(bench.cache.counts().reclaimablePages, 0);
  bench.cache.completeStep(1);
  bench.compute(growing, 1);
  t.is(bench.cache.metrics.unmaps, rowPages);
});

cacheTests('a growth that cannot be satisfied takes nothing from anybody', { rows: 6 }, (t, bench) => {
  const { cache } = bench;
  const [idle, growing] = [bench.sequenceOf(3 * rowTokens), bench.sequenceOf(rowTokens)];
  idle.release();
  const error = t.throws(() => bench.prepare(growing, 6 * rowTokens), { code: 'KV_OUT_OF_PAGES' });
  t.like(error, { details: { needRows: 6, haveRows: 5, havePages: 20 } });
  t.is(cache.counts().idleRows, 3);
  t.is(cache.metrics.unmaps, 0);
  t.is(growing.mappedRows, 1);
});

cacheTests('`idleRowsLimit` takes rows back at release, the least recently used first', { rows: 20, idleRowsLimit: 5 }, (t, bench) => {
  const { cache } = bench;
  const sequences = [3, 4, 6].map((rows) => bench.sequenceOf(rows * rowTokens)) as [Sequence, Sequence, Sequence];
  sequences[0].release();
  t.is(cache.metrics.unmaps, 0);
  sequences[1].release();
  t.deepEqual(sequences.map((sequence) => slotRows(cache.inspect(), sequence)), [1, 4, 6]);
  sequences[2].release();
  t.deepEqual(sequences.map((sequence) => slotRows(cache.inspect(), sequence)), [0, 0, 5]);
  t.is(bench.pool().freePages, 8 * rowPages, 'the pages stay free in the pool');
});

cacheTests('`idleRowsLimit: 0` keeps nothing mapped in retired slots', { idleRowsLimit: 0 }, (t, bench) => {
  bench.idleSlotOf(5);
  t.is(bench.cache.counts().mappedRows, 0);
});

// Placement

for (const [neededRows, chosenRows] of [[0, 2], [1, 2], [2, 2], [3, 5], [5, 5], [6, 8], [8, 8], [9, 8]] as const) {
  cacheTest(`of idle slots with 2, 5 and 8 rows a prompt of ${neededRows} gets that with ${chosenRows}`, {
    rows: 30, slots: 3,
  }, (t, bench) => {
    const slots = new Map([8, 2, 5].map((rows) => [rows, bench.sequenceOf(rows * rowTokens)]));
    for (const sequence of slots.values()) sequence.release();
    const sequence = bench.cache.acquire({ promptTokens: neededRows * rowTokens });
    t.is(sequence.slot, slots.get(chosenRows)!.slot);
    t.is(sequence.mappedRows, chosenRows);
  });
}

cacheTest('an untouched slot is not taken while a retired one fits', { rows: 30 }, (t, bench) => {
  const slot = bench.idleSlotOf(1);
  t.is(bench.cache.acquire({ promptTokens: rowTokens }).slot, slot);
});

cacheTest('a short prompt leaves a large retired slot to a long one', { rows: 30 }, (t, bench) => {
  const large = bench.idleSlotOf(10);
  t.not(bench.cache.acquire().slot, large, 'a prompt of unknown length fits an empty slot');
  t.is(bench.cache.acquire({ promptTokens: 9 * rowTokens }).slot, large);
});

/** Rows of a slot, also when no sequence has it. */
function slotRows(inspected: Readonly<Record<string, unknown>>, { slot }: Sequence): number {
  const slots = inspected['slots'] as readonly { readonly slot: number; readonly rows: number }[];
  return slots.find((entry) => entry.slot === slot)?.rows ?? 0;
}
