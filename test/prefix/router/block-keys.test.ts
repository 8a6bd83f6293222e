import test from 'ava';

import { prefixDomain, PromptEncoder, type ItemNames } from '#internal/prefix/index.js';
import { blockKey, blockKeys, domainKey, formatBlockKey, hashWords } from '#internal/prefix/router/block-keys.js';
import { Random } from '#internal/base/random.js';
import { seedOf } from '../../helpers/seed.js';

const keysOf = (text: readonly number[], blockTokens: number, parts = {}, names?: ItemNames): string[] =>
  blockKeys(prefixDomain(parts), Int32Array.from(text), blockTokens, names).map(formatBlockKey);

// Vectors computed with the Python package mmh3 5, which wraps the reference implementation.

test('the hash is MurmurHash3_x86_128', (t) => {
  const expected = [
    'fb8489880d45d85e', '03415bab9e424192', '4ebfe883201f5c60', 'd0c61f9e817fcac4', 'ff9e3162ded4a68d', '005d97ee609f6a5f',
    '9a9171faaf2b039c', '34de223d461c56a4', '2ee49dc74a5e590b', '4f7dcbb2c36efbf1',
  ];
  expected.forEach((hash, length) => {
    t.is(formatBlockKey(hashWords(Int32Array.from({ length: 12 }, (_, at) => at + 1), length, 7)), hash, `of ${length} words`);
  });
});

test('keys are the same in every process', (t) => {
  t.is(formatBlockKey(domainKey({})), '3079b2c4ed35129a');
  t.is(formatBlockKey(domainKey({ namespace: '', tenant: '' })), '1bbf9b35476bb3c6');
  t.is(formatBlockKey(domainKey({ namespace: 'weights-2', tenant: 'a', salt: 'sü', adapter: '\ud800' })), '4559b9a1f7a25caf');
  t.deepEqual(keysOf([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 4), ['ac5da97bbe4412d2', 'e313729752a7b541']);
  const most = 2 ** 31 - 1;
  t.deepEqual(keysOf([1, 2, 3, most, 1, 2, 3, most, 1, 2, 3, most], 3, { namespace: '', tenant: '' }), [
    'f43956fb0d59d4a7', '67f5ba753fac9580', '92ba97f9fba5cb60', 'e5cf4d032c71e774',
  ]);
});

test('a key stands for all tokens up to the end of its block', (t) => {
  const text = Array.from({ length: 32 }, (_, at) => at);
  const keys = keysOf(text, 8);
  t.is(keys.length, 4);
  t.deepEqual(keysOf(text.slice(0, 23), 8), keys.slice(0, 2), 'a longer text begins with the same keys');
  for (let at = 0; at < 32; at += 1) {
    const other = keysOf(text.with(at, 99), 8);
    other.forEach((key, block) => { t.is(key === keys[block], block < Math.floor(at / 8), `token ${at}, block ${block}`); });
  }
});

test('each part of a domain has a place of its own', (t) => {
  const parts = ['namespace', 'tenant', 'salt', 'adapter'] as const;
  const values = ['', 'a', 'b', 'ab', 'a\0', '\ud800', '\ud801', '�'];
  const domains = parts.flatMap((part) => values.map((value) => ({ [part]: value })));
  const keys = [{}, ...domains, { tenant: 'a', salt: 'b' }, { tenant: 'b', salt: 'a' }, { tenant: 'a', adapter: 'b' }]
    .map((domain) => formatBlockKey(domainKey(domain)));
  t.is(new Set(keys).size, keys.length);
});

test('an item counts by its name and its place, whatever number it has', (t) => {
  const start = (item: number): number => -2 * item - 1;
  const on = (item: number): number => -2 * item - 2;
  const names = (...list: readonly string[]): ItemNames => ({ nameOf: (number) => list[number] });
  const one = keysOf([5, start(0), on(0), on(0), 6, 7], 3, {}, names('item cat'));
  t.deepEqual(keysOf([5, start(3), on(3), on(3), 6, 7], 3, {}, names('', '', '', 'item cat')), one, 'another number');
  const others = [
    keysOf([5, start(0), on(0), on(0), 6, 7], 3, {}, names('item dog')),
    keysOf([5, start(0), on(0), on(0), 6, 7], 3, {}, names('embedding cat')),
    keysOf([start(0), on(0), on(0), 5, 6, 7], 3, {}, names('item cat')),
    keysOf([5, start(0), start(0), on(0), 6, 7], 3, {}, names('item cat')),
    keysOf([5, start(0), on(0), on(0), 6, 7], 3),
    keysOf([5, 0, 0, 0, 6, 7], 3, {}, names('item cat')),
  ];
  t.is(new Set([one, ...others].map((keys) => keys[0])).size, 7, 'first blocks differ');
  t.is(new Set([one, ...others].map((keys) => keys[1])).size, 7, 'and all that follow');
});

test('texts of two processes with the same items have the same keys', (t) => {
  const items = [{ at: 2, length: 3, kind: 'item', hash: 'cat' }, { at: 6, length: 1, kind: 'embedding', hash: 'cat' }] as const;
  const keys = [[], [{ at: 0, length: 1, kind: 'item', hash: 'dog' }] as const].map((before) => {
    const texts = new PromptEncoder({ index: { forTexts: () => { /* none yet */ } } });
    texts.encode([0, 0], before);
    return keysOf([...texts.encode([1, 2, 0, 0, 0, 3, 0, 4], items)], 4, {}, texts);
  });
  t.deepEqual(keys[0], keys[1]);
});

const seed = seedOf('a change of one bit changes half of the key');
test(`a change of one bit changes half of the key (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const flips = new Float64Array(64);
  const rounds = 4000;
  for (let round = 0; round < rounds; round += 1) {
    const text = Int32Array.from({ length: 1 + random.integer(20) }, () => random.integer(2 ** 31));
    const parent = { high: random.integer(2 ** 32) | 0, low: random.integer(2 ** 32) | 0 };
    const before = blockKey(parent, text, 0, text.length);
    text[random.integer(text.length)]! ^= 1 << random.integer(31);
    const after = blockKey(parent, text, 0, text.length);
    for (let bit = 0; bit < 32; bit += 1) {
      flips[bit]! += ((before.low ^ after.low) >>> bit) & 1;
      flips[32 + bit]! += ((before.high ^ after.high) >>> bit) & 1;
    }
  }
  for (const count of flips) t.true(Math.abs(count / rounds - 0.5) < 0.05, `${count} of ${rounds}`);
});
