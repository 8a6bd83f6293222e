import test from 'ava';

import { Heap } from '#internal/base/heap.js';
import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';

const seed = seedOf('heap');

interface Item {
  readonly name: number;
  score: number;
  index: number;
}

const order = (a: Item, b: Item): number => a.score - b.score || a.name - b.name;

test(`the first of a heap is that of a full sort, over 3,000 random changes (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const heap = new Heap<Item>(order, (item, index) => { item.index = index; });
  let model: Item[] = [];
  for (let turn = 0; turn < 3_000; turn += 1) {
    const action = random.integer(100);
    const item = model[random.integer(Math.max(1, model.length))];
    if (action < 45 || item === undefined) {
      const made = { name: turn, score: random.integer(50), index: -1 };
      model.push(made);
      heap.push(made);
    } else if (action < 70) {
      item.score = random.integer(50);
      heap.update(item.index);
    } else if (action < 85) {
      heap.remove(item.index);
      model = model.filter((each) => each !== item);
    } else if (action < 98) {
      const [least] = model.toSorted(order);
      t.is(heap.shift(), least);
      model = model.filter((each) => each !== least);
    } else if (action < 99) {
      heap.retain(({ score }) => score % 3 !== 0);
      model = model.filter(({ score }) => score % 3 !== 0);
    } else {
      t.deepEqual(heap.clear().toSorted(order), model.toSorted(order));
      model = [];
    }
    t.is(heap.first, model.toSorted(order)[0]);
    t.is(heap.length, model.length);
  }
});
