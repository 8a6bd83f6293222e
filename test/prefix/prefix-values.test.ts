// Values at the exact end of a cached text: found only there, gone with the text, and never too many. Rows of 4 tokens.

import test from 'ava';

import { prefixDomain, sharedDomain } from '#internal/prefix/index.js';
import type { SimulatedOwner, SimulatedSequence } from './simulated-owner.js';
import { join, owned, run } from './texts.js';

function computed(owner: SimulatedOwner, text: Int32Array): SimulatedSequence {
  const sequence = owner.acquire(text);
  if (sequence.computed < text.length) owner.commit(sequence, text.length);
  return sequence;
}

function valueAt(owner: SimulatedOwner, text: Int32Array, domain = sharedDomain): unknown {
  return owner.index.match(domain, text).value;
}

test('a value is found at the exact end of its text and nowhere else', (t) => {
  const owner = owned();
  const logits = new Float32Array(4);
  const sequence = computed(owner, run(0, 10));
  t.true(owner.index.keepValue(sequence.path, logits));
  t.is(valueAt(owner, run(0, 10)), logits);
  t.is(valueAt(owner, run(0, 9)), undefined);
  t.is(valueAt(owner, run(0, 11)), undefined);
  t.is(valueAt(owner, new Int32Array(0)), undefined);
  t.is(valueAt(owner, run(0, 10), prefixDomain({ tenant: 'a' })), undefined);
  owner.release(sequence);
  t.is(valueAt(owner, run(0, 10)), logits);
});

test('a value stays when its text goes on, branches or is joined again', (t) => {
  const owner = owned();
  const sequence = computed(owner, run(0, 10));
  owner.index.keepValue(sequence.path, 'ten');
  sequence.text = run(0, 20);
  owner.commit(sequence, 20);
  owner.index.keepValue(sequence.path, 'twenty');
  owner.release(sequence);
  owner.release(computed(owner, join(run(0, 14), run(70, 6))));
  owner.release(computed(owner, join(run(0, 3), run(80, 6))));
  owner.release(computed(owner, join(run(0, 10), run(90, 6))));
  t.is(valueAt(owner, run(0, 10)), 'ten');
  t.is(valueAt(owner, run(0, 20)), 'twenty');
  owner.evict(2);
  owner.verify();
  t.is(valueAt(owner, run(0, 10)), 'ten');
});

test('a value goes with the first token of its text that goes', (t) => {
  const owner = owned();
  const sequence = computed(owner, run(0, 10));
  owner.index.keepValue(sequence.path, 'ten');
  owner.release(sequence);
  owner.evict(1);
  owner.release(computed(owner, run(0, 10)));
  t.is(valueAt(owner, run(0, 10)), undefined);
});

test('a value goes when its sequence takes a token of the text back', (t) => {
  const owner = owned();
  const sequence = computed(owner, run(0, 10));
  owner.index.keepValue(sequence.path, 'ten');
  owner.truncate(sequence, 9);
  owner.commit(sequence, 10);
  t.is(valueAt(owner, run(0, 10)), undefined);
});

test('a new value takes the place of the one there', (t) => {
  const owner = owned({ endValues: 2 });
  const sequence = computed(owner, run(0, 10));
  for (const value of ['a', 'b', 'c']) {
    owner.index.keepValue(sequence.path, value);
    t.is(valueAt(owner, run(0, 10)), value);
  }
});

test('of too many values, the one used longest ago goes', (t) => {
  const owner = owned({ endValues: 2 });
  const values = (): unknown[] => [0, 100, 200].map((first) => valueAt(owner, run(first, 4)));
  for (const first of [0, 100]) owner.index.keepValue(computed(owner, run(first, 4)).path, first);
  owner.release(owner.acquire(run(0, 4)));
  owner.index.keepValue(computed(owner, run(200, 4)).path, 200);
  t.deepEqual(values(), [0, undefined, 200]);
});

test('looking at a value is no use of it', (t) => {
  const owner = owned({ endValues: 2 });
  for (const first of [0, 100]) owner.index.keepValue(computed(owner, run(first, 4)).path, first);
  t.is(valueAt(owner, run(0, 4)), 0);
  owner.index.keepValue(computed(owner, run(200, 4)).path, 200);
  t.deepEqual([0, 100, 200].map((first) => valueAt(owner, run(first, 4))), [undefined, 100, 200]);
});

test('a request takes all of its prompt where a value is kept at its end, and all but a token otherwise', (t) => {
  const owner = owned();
  const sequence = computed(owner, run(0, 10));
  t.is(owner.index.match(sharedDomain, run(0, 10)).tokens, 9);
  owner.index.keepValue(sequence.path, 'ten');
  t.is(owner.index.match(sharedDomain, run(0, 10)).tokens, 10);
  t.is(owner.index.match(sharedDomain, run(0, 9)).tokens, 8);
  t.is(owner.index.match(sharedDomain, run(0, 12)).tokens, 10);
  const hit = owner.index.match(sharedDomain, run(0, 10));
  hit.limitTo(9);
  t.deepEqual([hit.tokens, hit.value], [9, undefined], 'not for a hit that was shortened');
});

test('nothing is kept for a sequence that is not stored, has no token, or where no values are wanted', (t) => {
  const owner = owned();
  const unstored = owner.acquire(run(0, 4), { isStored: false });
  t.false(owner.index.keepValue(unstored.path, 1));
  t.false(owner.index.keepValue(owner.acquire(run(0, 4)).path, 1));
  const without = owned({ endValues: 0 });
  t.false(without.index.keepValue(computed(without, run(0, 4)).path, 1));
});
