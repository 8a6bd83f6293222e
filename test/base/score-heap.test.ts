import { Random } from '#internal/base/random.js';
import { ScoreHeap } from '#internal/base/score-heap.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('score heap');

slow('10,000 updates, each sorted')(`the top of a heap is that of a full sort, over 10,000 random updates (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const heap = new ScoreHeap();
  const model = new Map<number, readonly [score: number, tie: number]>();
  for (let turn = 0; turn < 10_000; turn += 1) {
    const extent = random.integer(200);
    if (random.chance(0.3)) {
      t.is(heap.delete(extent), model.delete(extent));
    } else {
      const [score, tie] = [random.integer(50), random.integer(3)];
      if (tie === 0) heap.set(extent, score);
      else heap.set(extent, score, tie);
      model.set(extent, [score, tie]);
    }
    const [least] = [...model].toSorted(([a, [scoreA, tieA]], [b, [scoreB, tieB]]) => scoreA - scoreB || tieA - tieB || a - b);
    t.is(heap.top, least?.[0]);
    t.is(heap.size, model.size);
    t.is(heap.scoreOf(extent), model.get(extent)?.[0]);
    t.is(heap.has(extent), model.has(extent));
  }
});
