import test from 'ava';

import type { TierPut } from 'virtual-kv';

import { chunksHolding, ImportanceMeans, orderByImportance, rowsOfOrder } from '#internal/tiers/selection/importance-means.js';
import { BlockReorderer, type ReorderingTier } from '#internal/tiers/selection/reordering.js';
import { selectedWeights } from './selected-weights.js';

interface World {
  readonly means: ImportanceMeans;
  readonly orders: Map<string, number[]>;
  /** Blocks that the tier does not have. */
  readonly absent: Set<string>;
  readonly reorderer: BlockReorderer;
  answer: (key: string) => Promise<TierPut>;
}

function world(): World {
  const means = new ImportanceMeans();
  const orders = new Map<string, number[]>();
  const rows = new Map<string, Int32Array>();
  const absent = new Set<string>();
  const tier: ReorderingTier = {
    has: (key) => !absent.has(key), rowsOf: (key) => rows.get(key),
    reorder: async (key, order) => {
      orders.set(key, [...order]);
      const put = await made.answer(key);
      if (put.isStored) rows.set(key, rowsOfOrder(order));
      return put;
    },
  };
  const made: World = {
    means, orders, absent,
    reorderer: new BlockReorderer({ tier, means, chunkTokens: 2, ratio: 0.25, leastNotes: 2 }),
    answer: () => Promise.resolve({ isStored: true }),
  };
  return made;
}

function note(means: ImportanceMeans, key: string, selected: readonly number[], times: number): void {
  for (let time = 0; time < times; time += 1) means.note(key, selectedWeights(selected, 8));
}

test('tokens that requests selected come first, the others stay in order', (t) => {
  const order = orderByImportance(Float32Array.of(1, 0, 0, 1));
  t.deepEqual([...order], [0, 3, 1, 2]);
  t.deepEqual([...rowsOfOrder(order)], [0, 2, 3, 1]);
  t.is(chunksHolding(Int32Array.of(0, 3), undefined, 2), 2);
  t.is(chunksHolding(Int32Array.of(0, 3), rowsOfOrder(order), 2), 1);
  t.deepEqual([...orderByImportance(Float32Array.of(0.5, 0, 2, 0.5, 0))], [2, 0, 3, 1, 4]);
});

test('the blocks that save most reads are reordered, each once', async (t) => {
  const { means, orders, reorderer } = world();
  note(means, 'dense', [0, 1], 9);
  note(means, 'read often', [0, 7], 5);
  note(means, 'read seldom', [2, 5], 2);
  note(means, 'read once', [0, 7], 1);
  t.is(await reorderer.run(1), 1);
  t.deepEqual([...orders], [['read often', [0, 7, 1, 2, 3, 4, 5, 6]]]);
  t.is(await reorderer.run(8), 1);
  t.deepEqual([...orders.keys()], ['read often', 'read seldom']);
  t.is(await reorderer.run(8), 0);
  note(means, 'read often', [1, 6], 50);
  t.is(await reorderer.run(8), 1, 'importance has wandered');
  t.deepEqual(orders.get('read often')!.slice(0, 2), [1, 6]);
  t.deepEqual(reorderer.counts, { reordered: 3, refused: 0 });
});

test('one run at a time, which a signal ends; a block that is refused is forgotten', async (t) => {
  const here = world();
  const { means, orders, reorderer } = here;
  for (const key of ['a', 'b', 'c']) note(means, key, [0, 7], 3);
  const stop = new AbortController();
  here.answer = () => {
    stop.abort();
    return Promise.resolve({ isStored: false, reason: 'full' });
  };
  const run = reorderer.run(8, stop.signal);
  t.is(await reorderer.run(8), 0);
  t.is(await run, 0);
  t.is(orders.size, 1);
  t.deepEqual(reorderer.counts, { reordered: 0, refused: 1 });
  here.answer = () => Promise.resolve({ isStored: true });
  t.is(await reorderer.run(8), 2);
  t.is(means.of([...orders.keys()][0]!), undefined);
});

test('a block that the tier does not have is passed over, and what was noted of it is kept', async (t) => {
  const { means, orders, absent, reorderer } = world();
  for (const key of ['a', 'b']) note(means, key, [0, 7], 3);
  absent.add('a');
  t.is(await reorderer.run(1), 1, 'it takes no turn of the others');
  t.deepEqual([...orders.keys()], ['b']);
  absent.clear();
  t.is(await reorderer.run(8), 1);
  t.deepEqual(reorderer.counts, { reordered: 2, refused: 0 });
});
