import test from 'ava';

import { leastRecentlyUsed } from 'virtual-kv';

import { idleSlots, permutations, type Candidate } from '../helpers/idle-slots.js';

const choose = (candidates: readonly Candidate[], neededRows = 1): number => leastRecentlyUsed()(idleSlots(...candidates), neededRows);

test('of retired slots the one released longest ago is taken, however many rows it has', (t) => {
  const slots = [{ slot: 3, rows: 1, lastUsed: 10 }, { slot: 8, rows: 9, lastUsed: 11 }, { slot: 1, rows: 5, lastUsed: 12 }];
  for (const order of permutations(slots)) {
    t.is(choose(order), 3);
    t.is(choose(order, 100), 3);
  }
});

test('the unused tail of an active slot is taken before any retired slot', (t) => {
  const tail = { slot: 5, rows: 20, surplusRows: 1, isActive: true, lastUsed: 99 };
  for (const order of permutations([{ slot: 3, rows: 9, lastUsed: 1 }, tail, { slot: 4, rows: 7, lastUsed: 2 }])) t.is(choose(order), 5);
});

test('of several tails the longest is taken', (t) => {
  const tails = [
    { slot: 5, rows: 20, surplusRows: 2, isActive: true, lastUsed: 1 }, { slot: 6, rows: 4, surplusRows: 3, isActive: true, lastUsed: 9 },
    { slot: 7, rows: 30, surplusRows: 1, isActive: true, lastUsed: 0 },
  ];
  for (const order of permutations(tails)) t.is(choose(order), 6);
});

test('the only candidate is taken', (t) => {
  t.is(choose([{ slot: 2, rows: 1, lastUsed: 5 }]), 2);
});
