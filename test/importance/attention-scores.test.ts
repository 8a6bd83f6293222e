// Scores against the formula, written out; and the floats that stored keys and values are read as.

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { attentionScores, type ScoreShapes } from '#internal/tiers/selection/selectors.js';
import { floatsOf } from '#internal/base/dtypes.js';
import { seedOf } from '../helpers/seed.js';

const seed = seedOf('attention scores');

/** The mean of softmax(scale · q · K) over rows and the query heads of KV head `head`, one product after the other. */
function plainScores(queries: Float32Array, keys: Float32Array, { rows, queryHeads, kvHeads, keyHeads, dim, tokens, scale }: ScoreShapes, head: number): number[] {
  const means = Array.from({ length: tokens }, () => 0);
  const group = queryHeads / kvHeads;
  for (let row = 0; row < rows; row += 1) {
    for (let queryHead = 0; queryHead < queryHeads; queryHead += 1) {
      if (Math.floor(queryHead / group) !== head) continue;
      const weights = means.map((_, token) => {
        let product = 0;
        for (let at = 0; at < dim; at += 1) product += queries[(row * queryHeads + queryHead) * dim + at]! * keys[(token * keyHeads + head) * dim + at]!;
        return Math.exp(scale * product);
      });
      const whole = weights.reduce((sum, weight) => sum + weight, 0);
      weights.forEach((weight, token) => { means[token]! += weight / whole / (rows * group); });
    }
  }
  return means;
}

test(`scores are the mean attention of each probe head, whatever the shapes (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const floats = (length: number): Float32Array => Float32Array.from({ length }, () => 4 * random.next() - 2);
  const shapes: readonly (readonly [rows: number, queryHeads: number, kvHeads: number, keyHeads: number, dim: number, tokens: number])[] = [
    [1, 1, 1, 1, 4, 1], [1, 8, 2, 2, 16, 30], [3, 6, 2, 1, 8, 33], [5, 4, 4, 3, 8, 17], [16, 16, 16, 3, 24, 40], [2, 12, 4, 3, 5, 9],
  ];
  for (const [rows, queryHeads, kvHeads, keyHeads, dim, tokens] of shapes) {
    const [queries, keys] = [floats(rows * queryHeads * dim), floats(tokens * keyHeads * dim)];
    const own = { rows, queryHeads, kvHeads, keyHeads, dim, tokens, scale: 0.3 };
    const scores = attentionScores(queries, keys, own);
    t.is(scores.length, keyHeads);
    for (const [head, score] of scores.entries()) {
      const expected = plainScores(queries, keys, own, head);
      t.is(score.length, tokens);
      for (let token = 0; token < tokens; token += 1) t.true(Math.abs(score[token]! - expected[token]!) < 1e-6, `head ${head}, token ${token}`);
    }
  }
});

test('products that no exponential holds still give shares that sum to one', (t) => {
  const [scores] = attentionScores(Float32Array.of(3e3, -3e3), Float32Array.of(1, 0, 0.5, 0.5, 0, 1), { rows: 1, queryHeads: 1, kvHeads: 1, keyHeads: 1, dim: 2, tokens: 3, scale: 1 });
  t.deepEqual([...scores!], [1, 0, 0]);
  t.deepEqual([...attentionScores(new Float32Array(2), new Float32Array(0), { rows: 1, queryHeads: 1, kvHeads: 1, keyHeads: 1, dim: 2, tokens: 0, scale: 1 })[0]!], []);
});

function bytesOf(halves: readonly number[]): Uint8Array {
  return Uint8Array.from(halves.flatMap((half) => [half & 255, half >> 8]));
}

test('halves are read as the numbers that they are: normal, subnormal, signed zeros, infinities, and no numbers', (t) => {
  const halves = [0x3c00, 0xc000, 0x3555, 0x0400, 0x03ff, 0x0001, 0x8001, 0x7bff, 0x0000, 0x8000, 0x7c00, 0xfc00, 0x7e00];
  const numbers = [1, -2, 0.333251953125, 2 ** -14, 1023 * 2 ** -24, 2 ** -24, -(2 ** -24), 65_504, 0, -0, Infinity, -Infinity, Number.NaN];
  t.deepEqual([...floatsOf(bytesOf(halves), 'float16')], numbers);
  t.deepEqual([...floatsOf(bytesOf([0x3f80, 0xc000, 0x4049, 0x0001, 0x8000, 0x7f80, 0x7fc0]), 'bfloat16')], [1, -2, 3.140625, 2 ** -133, -0, Infinity, Number.NaN]);
  const floats = Float32Array.of(1.5, -0, Math.fround(1e-40), Infinity);
  t.deepEqual([...floatsOf(new Uint8Array(floats.buffer), 'float32')], [...floats]);
  t.throws(() => floatsOf(new Uint8Array(4), 'int8'), { code: 'KV_INTERNAL' });
});
