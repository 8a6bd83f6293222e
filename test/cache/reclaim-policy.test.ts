import test from 'ava';

import { tailsFirst } from '#internal/cache/row-supply.js';

import { idleSlots, permutations, type Candidate } from '../helpers/idle-slots.js';

const choose = (candidates: readonly Candidate[]): number => tailsFirst(idleSlots(...candidates));

const retired = [
  { slot: 3, rows: 2, lastUsed: 10 }, { slot: 8, rows: 9, lastUsed: 11 }, { slot: 1, rows: 1, lastUsed: 13 }, { slot: 2, rows: 1, lastUsed: 12 },
];

test('of retired slots rows are taken of the one with fewest rows, and of several the one released longest ago', (t) => {
  for (const order of permutations(retired)) t.is(choose(order), 2);
});

test('rows are taken behind the text of a retired slot before those of any slot without text, the most of them first', (t) => {
  const behind = [{ slot: 5, rows: 20, surplusRows: 4, lastUsed: 99 }, { slot: 6, rows: 90, surplusRows: 3, lastUsed: 1 }];
  for (const order of permutations([...retired.slice(0, 2), ...behind])) t.is(choose(order), 5);
});

test('the unused tail of an active slot is taken before any retired slot', (t) => {
  const tail = { slot: 5, rows: 20, surplusRows: 1, isActive: true, lastUsed: 99 };
  for (const order of permutations([{ slot: 3, rows: 9, lastUsed: 1 }, tail, { slot: 4, rows: 7, lastUsed: 2 }])) t.is(choose(order), 5);
});

test('of several tails the longest is taken', (t) => {
  const several = [
    { slot: 5, rows: 20, surplusRows: 2, isActive: true, lastUsed: 1 }, { slot: 6, rows: 4, surplusRows: 3, isActive: true, lastUsed: 9 },
    { slot: 7, rows: 30, surplusRows: 1, isActive: true, lastUsed: 0 },
  ];
  for (const order of permutations(several)) t.is(choose(order), 6);
});

test('the only candidate is taken', (t) => {
  t.is(choose([{ slot: 2, rows: 1, lastUsed: 5 }]), 2);
});
