import test from 'ava';

import { ImportanceMeans } from '#internal/tiers/selection/importance-means.js';
import { selectedWeights } from './selected-weights.js';

const list = (means: Float32Array | undefined): number[] => [...means ?? []].map((mean) => Math.round(mean * 1e4) / 1e4);

test('a mean is plain over the first notes, and fades after', (t) => {
  const means = new ImportanceMeans({ decay: 0.75 });
  means.note('a', Float32Array.of(1, 0, 4));
  t.deepEqual(list(means.of('a')), [1, 0, 4]);
  means.note('a', Float32Array.of(0, 1, 0));
  t.deepEqual(list(means.of('a')), [0.5, 0.5, 2]);
  for (let turn = 0; turn < 2; turn += 1) means.note('a', Float32Array.of(0, 1, 0));
  t.deepEqual(list(means.of('a')), [0.25, 0.75, 1]);
  for (let turn = 0; turn < 2; turn += 1) means.note('a', Float32Array.of(0, 0, 0));
  t.deepEqual(list(means.of('a')), [0.1406, 0.4219, 0.5625], 'each takes a quarter of what was there');
  t.is(means.notesOf('a'), 6);
});

test('of selections a mean is the share of requests that selected the token', (t) => {
  const means = new ImportanceMeans();
  means.note('a', selectedWeights([0, 3], 4));
  means.note('a', selectedWeights([0], 4));
  means.note('a', selectedWeights([], 4));
  t.deepEqual(list(means.of('a')), [0.6667, 0, 0, 0.3333]);
});

test('it forgets what was noted longest ago, and begins anew where a block has another length', (t) => {
  const means = new ImportanceMeans({ mostTokens: 10 });
  for (const key of ['a', 'b']) means.note(key, new Float32Array(4).fill(1));
  means.note('a', new Float32Array(4));
  means.note('c', new Float32Array(4));
  t.deepEqual(means.keys(), ['c', 'a']);
  t.deepEqual([means.blocks, means.tokens, means.of('b'), means.notesOf('b')], [2, 8, undefined, 0]);
  means.note('a', Float32Array.of(2, 2));
  t.deepEqual(list(means.of('a')), [2, 2]);
  t.is(means.tokens, 6);
  means.note('long', new Float32Array(1_000));
  t.deepEqual([means.keys(), means.tokens], [['long'], 1_000], 'the block that was noted last stays');
  means.forget('long');
  means.forget('long');
  t.deepEqual([means.blocks, means.tokens], [0, 0]);
});
