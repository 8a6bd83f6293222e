// BlockRanking against a plain list that is searched as a whole.

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { BlockRanking } from '#internal/tiers/block-order.js';
import { StoredBlock } from '#internal/tiers/stored-texts.js';
import { seedOf } from '../helpers/seed.js';

const seed = seedOf('block ranking');

test(`the block that goes is that of a search through all (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const root = new StoredBlock('root', undefined, new Int32Array(0));
  const blocks = Array.from({ length: 40 }, (_, number) => new StoredBlock(`${number}`, root, Int32Array.of(number)));
  const worths = blocks.map(() => 1 + random.integer(9));
  const ranking = new BlockRanking(({ tokens }) => worths[tokens[0]!]!);
  const model = new Map<StoredBlock, { rank: number; order: number }>();
  const orders = new Map<StoredBlock, number>();
  let [next, went] = [0, 0];
  const orderOf = (block: StoredBlock): number => {
    const known = model.has(block) ? orders.get(block)! : next++;
    orders.set(block, known);
    return known;
  };
  for (let turn = 0; turn < 5_000; turn += 1) {
    const block = blocks[random.integer(blocks.length)]!;
    const action = random.integer(10);
    if (action < 6) {
      block.uses += 1;
      const order = orderOf(block);
      ranking.set(block);
      model.set(block, { rank: worths[block.tokens[0]!]! * block.uses, order });
    } else if (action < 7) {
      ranking.delete(block);
      model.delete(block);
    } else if (random.chance(0.02)) {
      for (const each of blocks) each.uses /= 2;
      for (const [each, known] of model) known.rank = worths[each.tokens[0]!]! * each.uses;
      ranking.refresh();
    } else {
      const kept = new Set(blocks.filter(() => random.chance(0.3)));
      const [least] = [...model].filter(([each]) => !kept.has(each)).sort(([, a], [, b]) => a.rank - b.rank || a.order - b.order);
      t.is(ranking.take((each) => kept.has(each)), least?.[0]);
      if (least === undefined) continue;
      model.delete(least[0]);
      went += 1;
    }
    const other = blocks[random.integer(blocks.length)]!;
    t.is(ranking.has(other), model.has(other));
    t.is(ranking.isAboveLowest(other), [...model.values()].some(({ rank }) => rank < worths[other.tokens[0]!]! * other.uses));
  }
  t.true(went > 500);
});
