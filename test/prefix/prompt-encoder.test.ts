// Texts of prompts with images and embeddings: equal content gives equal text, and nothing else does.

import test from 'ava';

import { PromptEncoder, sharedDomain, type PromptEncoderOptions, type PromptItem } from '#internal/prefix/index.js';
import { refuses } from '../helpers/refuses.js';
import { SimulatedOwner } from './simulated-owner.js';

const image = (at: number, length: number, hash: string): PromptItem => ({ at, length, kind: 'item', hash });
const empty = { forTexts: () => undefined };
const texts = (options: Partial<PromptEncoderOptions> = {}): PromptEncoder => new PromptEncoder({ index: empty, ...options });

test('plain tokens are their own text', (t) => {
  t.deepEqual(texts().encode([5, 0, 2 ** 31 - 1]), Int32Array.of(5, 0, 2 ** 31 - 1));
  t.deepEqual(texts().encode(new Int32Array(0)), new Int32Array(0));
});

test('an item stands for its content, whatever the tokens it covers, and leaves the others alone', (t) => {
  const made = texts();
  const text = made.encode([1, 9, 9, 9, 2], [image(1, 3, 'cat')]);
  t.deepEqual([text[0], text[4]], [1, 2]);
  t.true(text.subarray(1, 4).every((token) => token < 0));
  t.deepEqual(made.encode([1, -1, -1, -1, 2], [image(1, 3, 'cat')]), text);
  t.notDeepEqual(made.encode([1, 9, 9, 9, 2], [image(1, 3, 'dog')]), text);
});

test('an item and an embedding with the same hash are different contents', (t) => {
  const made = texts();
  const hash = 'same';
  t.notDeepEqual(made.encode([0, 0], [{ at: 0, length: 2, kind: 'item', hash }]),
    made.encode([0, 0], [{ at: 0, length: 2, kind: 'embedding', hash }]));
});

test('an item of another length is another content, from its first position on', (t) => {
  const made = texts();
  const long = made.encode([5, 0, 0, 0, 6], [image(1, 3, 'cat')]);
  const short = made.encode([5, 0, 0, 6], [image(1, 2, 'cat')]);
  t.is(short[0], long[0]);
  t.not(short[1], long[1]);
});

test('where items meet shows: two of the same content are not a longer one', (t) => {
  const made = texts();
  const twice = made.encode([0, 0, 0, 0], [image(0, 2, 'cat'), image(2, 2, 'cat')]);
  t.notDeepEqual(twice, made.encode([0, 0, 0, 0], [image(0, 4, 'cat')]));
  t.notDeepEqual(twice, made.encode([0, 0, 0, 0], [image(0, 1, 'cat'), image(1, 3, 'cat')]));
});

test('items may be given in any order, and the array given stays as it is', (t) => {
  const made = texts();
  const items = [image(3, 1, 'b'), image(0, 2, 'a')];
  const text = made.encode([0, 0, 7, 0], items);
  t.deepEqual(made.encode([0, 0, 7, 0], [...items].reverse()), text);
  t.is(items[0]!.hash, 'b');
});

for (const { title, tokens, items, option } of [
  { title: 'items that overlap', tokens: [0, 0, 0], items: [image(0, 2, 'a'), image(1, 1, 'b')], option: 'items[1].at' },
  { title: 'an item that goes beyond the tokens', tokens: [0, 0, 0], items: [image(2, 2, 'a')], option: 'items[0].length' },
  { title: 'an item behind the tokens', tokens: [0], items: [image(1, 1, 'a')], option: 'items[0].at' },
  { title: 'an item before the tokens', tokens: [0], items: [image(-1, 1, 'a')], option: 'items[0].at' },
  { title: 'an item of no position', tokens: [0], items: [image(0, 0, 'a')], option: 'items[0].length' },
  { title: 'an item without hash', tokens: [0], items: [image(0, 1, '')], option: 'items[0].hash' },
  { title: 'a negative token that no item covers', tokens: [1, -2, 0], items: [image(2, 1, 'a')], option: 'tokens[1]' },
  { title: 'a token that is no integer', tokens: [1, 1.5], items: [], option: 'tokens[1]' },
  { title: 'a token of more than 31 bits', tokens: [2 ** 31], items: [], option: 'tokens[0]' },
]) {
  test(`${title}: refused, and no name is given`, (t) => {
    const made = texts();
    refuses(t, () => { made.encode(tokens, items); }, 'KV_INVALID_OPTION', { option });
    t.is(made.count, 0);
  });
}

test('names that no cached or announced text has are forgotten, others never', (t) => {
  const owner = new SimulatedOwner({ tokenUnits: 1, rowUnits: 4 });
  const made = texts({ index: owner.index, firstSweepNames: 8 });
  const cached = made.encode([0, 0, 0, 0], [image(0, 4, 'cached')]);
  const sequence = owner.acquire(cached);
  owner.commit(sequence, 4);
  const announced = made.encode([0, 0, 0, 0], [image(1, 2, 'announced')]);
  owner.acquire(announced, { isAnnounced: true });
  for (let other = 0; other < 100; other += 1) made.encode([0], [image(0, 1, `other ${other}`)]);
  t.true(made.count <= 9, `${made.count}`);
  t.deepEqual(made.encode([0, 0, 0, 0], [image(0, 4, 'cached')]), cached);
  t.deepEqual(made.encode([0, 0, 0, 0], [image(1, 2, 'announced')]), announced);
});

test('a text that is committed after its names were forgotten matches no other content', (t) => {
  const owner = new SimulatedOwner({ tokenUnits: 1, rowUnits: 4 });
  const made = texts({ index: owner.index, firstSweepNames: 2 });
  const late = made.encode([0, 0, 0, 0], [image(0, 4, 'late')]);
  for (let other = 0; other < 10; other += 1) made.encode([0], [image(0, 1, `other ${other}`)]);
  owner.commit(owner.acquire(late), 4);
  for (let other = 0; other < 200; other += 1) {
    t.is(owner.cached(made.encode([0, 0, 0, 0], [image(0, 4, `another ${other}`)])), 0);
  }
});

test('names come round again without meeting those in use', (t) => {
  const owner = new SimulatedOwner({ tokenUnits: 1, rowUnits: 1 });
  const made = texts({ index: owner.index, firstSweepNames: 4, names: 16 });
  const kept = [0, 1, 2].map((number) => made.encode([0], [image(0, 1, `kept ${number}`)]));
  for (const text of kept) owner.commit(owner.acquire(text), 1);
  const inUse = new Set(kept.map((text) => text[0]));
  for (let other = 0; other < 100; other += 1) t.false(inUse.has(made.encode([0], [image(0, 1, `other ${other}`)])[0]));
  t.deepEqual([0, 1, 2].map((number) => made.encode([0], [image(0, 1, `kept ${number}`)])), kept);
});

test('half of an item that is cached matches half of it', (t) => {
  const owner = new SimulatedOwner({ tokenUnits: 1, rowUnits: 4 });
  const made = texts({ index: owner.index });
  const text = made.encode([1, 0, 0, 0, 0, 0], [image(1, 5, 'cat')]);
  owner.commit(owner.acquire(text), 4);
  t.is(owner.index.match(sharedDomain, text).tokens, 4);
});
