import test from 'ava';

import type { TierPut } from 'virtual-kv';

import { chunksHolding, orderByImportance, rowsOfOrder } from '#internal/tiers/selection/importance-means.js';
import { ReorderingWorld } from './reordering-world.js';
import { selectedWeights } from './selected-weights.js';

const blockTokens = 8;

/** Blocks of eight tokens by name, in chunks of two. */
class World {
  readonly orders = new Map<string, number[]>();
  readonly #keys: string[] = [];
  answer: () => TierPut = () => ({ isStored: true });
  readonly made = new ReorderingWorld({
    name: 'made', chunkBytes: 2,
    reorder: (key, order) => {
      this.orders.set(key, [...order]);
      return Promise.resolve(this.answer());
    },
  }, 1);

  /** Requests selected these tokens of a block, so many times; the tier has the block. */
  note(key: string, selected: readonly number[], times: number): void {
    this.add(key);
    for (let time = 0; time < times; time += 1) this.made.means.note(key, selectedWeights(selected, blockTokens));
  }

  add(key: string): void {
    if (!this.#keys.includes(key)) this.#keys.push(key);
    this.made.add(key, new Int32Array(blockTokens).fill(this.#keys.indexOf(key)));
  }
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
  const world = new World();
  const { made, orders } = world;
  world.note('dense', [0, 1], 9);
  world.note('read often', [0, 7], 5);
  world.note('read seldom', [2, 5], 4);
  world.note('read thrice', [0, 7], 3);
  t.is(await made.run(1), 1);
  t.deepEqual([...orders], [['read often', [0, 7, 1, 2, 3, 4, 5, 6]]]);
  t.is(await made.run(8), 1);
  t.deepEqual([...orders.keys()], ['read often', 'read seldom']);
  t.is(await made.run(8), 0);
  world.note('read often', [1, 6], 50);
  t.is(await made.run(8), 1, 'importance has wandered');
  t.deepEqual(orders.get('read often')!.slice(0, 2), [1, 6]);
  t.deepEqual(made.reordering.counts, { notedBlocks: 4, reorderedBlocks: 3, refusedBlocks: 0 });
});

test('one run at a time, which a signal ends; a block that is refused is forgotten', async (t) => {
  const world = new World();
  const { made, orders } = world;
  for (const key of ['a', 'b', 'c']) world.note(key, [0, 7], 4);
  const stop = new AbortController();
  world.answer = () => {
    stop.abort();
    return { isStored: false, reason: 'full' };
  };
  const run = made.run(8, stop.signal);
  t.is(await made.run(8), 0);
  t.is(await run, 0);
  t.is(orders.size, 1);
  t.deepEqual(made.reordering.counts, { notedBlocks: 2, reorderedBlocks: 0, refusedBlocks: 1 });
  world.answer = () => ({ isStored: true });
  t.is(await made.run(8), 2);
  t.is(made.means.of([...orders.keys()][0]!), undefined);
});

test('a block that the tier does not have is passed over, and what was noted of it is kept', async (t) => {
  const world = new World();
  const { made, orders } = world;
  for (const key of ['a', 'b']) world.note(key, [0, 7], 4);
  made.lose('a');
  t.is(await made.run(1), 1, 'it takes no turn of the others');
  t.deepEqual([...orders.keys()], ['b']);
  world.add('a');
  t.is(await made.run(8), 1);
  t.deepEqual(made.reordering.counts, { notedBlocks: 2, reorderedBlocks: 2, refusedBlocks: 0 });
});
