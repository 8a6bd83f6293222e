import test from 'ava';

import { mix32, Random } from '#internal/base/random.js';

const numbers = (seed: number): number[] => {
  const random = new Random(seed);
  return Array.from({ length: 8 }, () => random.next());
};

test('a seed gives the same numbers on every machine, and near seeds give others', (t) => {
  t.deepEqual(numbers(1).slice(0, 3).map((value) => value * 2 ** 32), [715_207_652, 1_026_902_757, 2_083_560_519]);
  t.is(new Set([0, 1, 2, -1, 2 ** 32, 2 ** 40 + 1, Number.MAX_SAFE_INTEGER].flatMap(numbers)).size, 7 * 8);
});

test('distributions have the means that were asked for', (t) => {
  const random = new Random(9);
  const count = 200_000;
  const mean = (draw: () => number): number => Array.from({ length: count }, draw).reduce((sum, value) => sum + value, 0) / count;
  const isNear = (value: number, wanted: number, within: number): boolean => t.true(Math.abs(value - wanted) < within, `${value}`);
  isNear(mean(() => random.next()), 0.5, 0.005);
  isNear(mean(() => random.integer(10)), 4.5, 0.05);
  isNear(mean(() => (random.chance(0.3) ? 1 : 0)), 0.3, 0.005);
  isNear(mean(() => random.normal()), 0, 0.01);
  isNear(mean(() => random.normal() ** 2), 1, 0.02);
  isNear(mean(() => random.exponential(3)), 3, 0.05);
  isNear(mean(() => Math.log(random.lognormal(100, 2))), Math.log(100), 0.03);
});

test('mix32 gives different results for different second words', (t) => {
  const answers = new Set(Array.from({ length: 100_000 }, (_, at) => mix32(1, at)));
  t.is(answers.size, 100_000);
});
