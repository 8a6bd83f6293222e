// Texts that may make way as a whole: a few that the policy would let go next, none that it would keep.

import test from 'ava';

import { adaptive, importance, lfu, lru, priority, slru, type EvictionPolicyFactory } from '#internal/prefix/index.js';
import { checkedPolicy } from './checked-policy.js';
import { SimulatedOwner } from './simulated-owner.js';

/** Rows of one token; a text that shares nothing with others. */
const ownerWith = (policy: EvictionPolicyFactory): SimulatedOwner => new SimulatedOwner({ tokenUnits: 1, rowUnits: 1, policy: checkedPolicy(policy) });
const textOf = (name: number, tokens = 4): Int32Array => Int32Array.from({ length: tokens }, (_, at) => 1000 * name + at);

function use(owner: SimulatedOwner, text: Int32Array, level = 0): void {
  const sequence = owner.acquire(text, { level });
  owner.commit(sequence, text.length);
  owner.release(sequence);
}

/** Those texts of which something is still there, after as many rows were evicted. */
function left(owner: SimulatedOwner, names: readonly number[], evictedRows: number): number[] {
  owner.evict(evictedRows);
  return names.filter((name) => owner.cached(textOf(name)) > 0);
}

const orders: readonly (readonly [string, EvictionPolicyFactory])[] = [['lru', lru()], ['lfu', lfu()], ['slru', slru()], ['adaptive', adaptive()]];
for (const [name, policy] of orders) {
  test(`${name}: of many equal texts, the eight used longest ago may go as a whole`, (t) => {
    const owner = ownerWith(policy);
    const names = Array.from({ length: 200 }, (_, at) => at);
    for (const text of names) use(owner, textOf(text));
    t.is(owner.index.victims(new Int32Array(8)), 8);
    t.is(owner.evictText((count) => count - 1), 4);
    t.deepEqual(names.filter((text) => owner.cached(textOf(text)) < 4), [7]);
    t.deepEqual(left(owner, [0, 1, 2], 8), [2], 'the order of the others stays');
  });

  test(`${name}: in a small pool only what is next may go as a whole`, (t) => {
    const owner = ownerWith(policy);
    for (const text of [0, 1, 2, 3]) use(owner, textOf(text));
    t.is(owner.index.victims(new Int32Array(8)), 1);
    owner.evictText(() => 0);
    t.deepEqual([0, 1, 2, 3].map((text) => owner.cached(textOf(text))), [0, 4, 4, 4]);
  });
}

test('priority: only texts of the lowest level may go as a whole, and no pinned one', (t) => {
  const owner = ownerWith(priority({ pinnedLevel: 2 }));
  for (let text = 0; text < 97; text += 1) use(owner, textOf(text), 1);
  for (const text of [97, 98, 99]) use(owner, textOf(text));
  for (const text of [100, 101]) use(owner, textOf(text), 2);
  t.is(owner.index.victims(new Int32Array(8)), 3);
  for (const text of [99, 98, 97]) {
    owner.evictText((count) => count - 1);
    t.is(owner.cached(textOf(text)), 0);
  }
  owner.evict(Infinity);
  t.is(owner.index.victims(new Int32Array(8)), 0);
  t.deepEqual([100, 101].map((text) => owner.cached(textOf(text))), [4, 4]);
});

test('importance: what goes extent by extent does not go as a whole', (t) => {
  const owner = ownerWith(importance({ extentTokens: 4 }));
  for (const text of [1, 2]) use(owner, textOf(text, 8));
  t.is(owner.index.victims(new Int32Array(8)), 0);
});
