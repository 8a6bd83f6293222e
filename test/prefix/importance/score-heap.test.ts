import test from 'ava';

import { Random } from '#internal/base/random.js';
import { ScoreHeap } from '#internal/prefix/importance/score-heap.js';
import { seedOf } from '../../helpers/seed.js';

const seed = seedOf('score heap');

test(`the top of a heap is that of a full sort, over 10,000 random updates (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const heap = new ScoreHeap();
  const model = new Map<number, number>();
  for (let turn = 0; turn < 10_000; turn += 1) {
    const extent = random.integer(200);
    if (random.chance(0.3)) {
      t.is(heap.delete(extent), model.delete(extent));
    } else {
      const score = random.integer(50);
      heap.set(extent, score);
      model.set(extent, score);
    }
    const [least] = [...model].toSorted(([a, scoreA], [b, scoreB]) => scoreA - scoreB || a - b);
    t.is(heap.top, least?.[0]);
    t.is(heap.size, model.size);
    t.is(heap.scoreOf(extent), model.get(extent));
    t.is(heap.has(extent), model.has(extent));
  }
});
