import test from 'ava';

import { bestFit } from '#internal/cache/slot-choice.js';

import { idleSlots, permutations } from '../helpers/idle-slots.js';

const two = { slot: 4, rows: 2, lastUsed: 10 };
const five = { slot: 9, rows: 5, lastUsed: 20 };
const eight = { slot: 1, rows: 8, lastUsed: 30 };

for (const [neededRows, chosen] of [
  [0, two], [1, two], [2, two], [3, five], [5, five], [6, eight], [8, eight], [9, eight], [1000, eight],
] as const) {
  test(`of slots with 2, 5 and 8 rows, ${neededRows} rows go to that with ${chosen.rows}, in whatever order they stand`, (t) => {
    for (const order of permutations([two, five, eight])) t.is(bestFit(idleSlots(...order), neededRows), chosen.slot);
  });
}

test('of two slots that fit alike the one released longest ago is taken', (t) => {
  const [old, recent] = [{ slot: 7, rows: 3, lastUsed: 1 }, { slot: 2, rows: 3, lastUsed: 2 }];
  for (const order of permutations([old, recent, eight])) t.is(bestFit(idleSlots(...order), 3), old.slot);
  for (const order of permutations([old, recent, two])) t.is(bestFit(idleSlots(...order), 4), old.slot);
});

test('an empty slot is left alone while a used one has enough', (t) => {
  const empty = { slot: 0, rows: 0, lastUsed: 0 };
  for (const order of permutations([empty, two])) {
    t.is(bestFit(idleSlots(...order), 1), two.slot);
    t.is(bestFit(idleSlots(...order), 3), two.slot, 'the most of those with too few');
    t.is(bestFit(idleSlots(...order), 0), empty.slot);
  }
});

test('the only candidate is taken', (t) => {
  t.is(bestFit(idleSlots(five), 0), five.slot);
  t.is(bestFit(idleSlots(five), 100), five.slot);
});
