// Native sampling beside the plain one: equal tokens for random and adversarial logits, but where the random number lies within the rounding of floats
// of the border between two (sampling-borders.ts), with all instruction sets of this machine.

import test from 'ava';

import { native } from '#internal/device/native.js';
import { Random } from '#internal/base/random.js';
import { BatchSampler } from '#internal/serving/batch-sampler.js';
import { randomSampler, rulesOf, greedy, uniformOf, type KnownSampler, type SamplerOptions } from '#internal/serving/sampling.js';
import { draw } from '#internal/serving/plain-sampling.js';
import { tokensWithinRounding } from '../helpers/sampling-borders.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';
import { scale } from '../runner/tier.js';

const seed = seedOf('native sampling');
const instructions = (['avx512', 'avx2', 'portable'] as const)
  .filter((name) => new (native().NativeSampling)({ threads: 1, instructions: name }).target() === name);

const kinds: Readonly<Record<string, (random: Random) => (token: number) => number>> = {
  normal: (random) => () => 3 * random.normal(),
  flat: () => () => 1.5,
  'nearly flat': (random) => () => 1 + 1e-6 * random.integer(3),
  'few values': (random) => () => random.integer(4),
  'negative and positive zero': (random) => () => (random.chance(0.5) ? 0 : -0),
  ascending: () => (token) => token / 100,
  denormal: (random) => () => 1e-45 * random.integer(1000),
  extreme: (random) => () => (random.chance(0.5) ? 1 : -1) * 2 ** (random.integer(250) - 125),
  'all but some -Infinity': (random) => () => (random.chance(0.02) ? random.normal() : -Infinity),
  'some -Infinity': (random) => () => (random.chance(0.3) ? -Infinity : random.normal()),
};

function randomOptions(random: Random, vocabulary: number): SamplerOptions {
  const some = <T>(value: T): T | undefined => (random.chance(0.5) ? value : undefined);
  return {
    temperature: some(0.1 + 2 * random.next()), topK: some(1 + random.integer(random.chance(0.5) ? 50 : vocabulary)), topP: some(random.next()),
    minP: some(random.chance(0.5) ? random.next() : 0.01 * random.next()), repetitionPenalty: some(0.5 + random.next()),
    presencePenalty: some(random.normal()), frequencyPenalty: some(random.normal()), seed: random.integer(2 ** 31),
    logitBias: some(Array.from({ length: random.integer(5) }, () => [random.integer(vocabulary), random.chance(0.3) ? -Infinity : random.normal()] as const)),
  };
}

const greedyRules = rulesOf(greedy)!;

for (const name of instructions) {
  test(`native choices are those of the plain sampler, or a neighbour's within the rounding of floats, with ${name} (seed ${seed})`, (t) => {
    const random = new Random(seed);
    let different = 0;
    let count = 0;
    let shared = 0; // by more than one token
    for (let round = 0; round < 60 * scale; round += 1) {
      const vocabulary = [1, 3, 61, 64, 1000, 1024, 1025, 5000][random.integer(8)]!;
      const sampler = new BatchSampler({ vocabularyTokens: vocabulary, threads: 1 + random.integer(3), instructions: name });
      const kind = Object.keys(kinds)[random.integer(Object.keys(kinds).length)]!;
      const of = kinds[kind]!(random);
      const rows = 1 + random.integer(5);
      const logits = Float32Array.from({ length: rows * vocabulary }, (_, at) => of(at % vocabulary));
      const answering = Array.from({ length: rows }, () => {
        const tokens = Int32Array.from({ length: 30 }, () => random.integer(vocabulary + 2));
        return { seed: random.integer(2 ** 40), generatedTokens: random.integer(100), sampledText: { tokens, length: 20, promptTokens: 8 } };
      });
      const given: KnownSampler[] = answering.map(() => (random.chance(0.1) ? greedyRules : rulesOf(randomSampler(randomOptions(random, vocabulary)))!));
      sampler.begin(rows, 0);
      given.forEach((rules, row) => { sampler.add(row, rules, answering[row]!); });
      const before = logits.slice();
      sampler.choose(logits);
      t.deepEqual(logits, before);
      given.forEach((rules, row) => {
        const { seed: own, generatedTokens, sampledText } = answering[row]!;
        const expected = draw(logits.subarray(row * vocabulary, (row + 1) * vocabulary), rules, uniformOf(own, generatedTokens), sampledText);
        const within = tokensWithinRounding(logits.subarray(row * vocabulary, (row + 1) * vocabulary), rules, uniformOf(own, generatedTokens), sampledText);
        const what = `${kind}, ${vocabulary} tokens: ${sampler.tokens[row]}, not ${expected}; rounding allows ${[...within].join()}; ${JSON.stringify(rules)}`;
        t.true(within.has(expected), what);
        t.true(within.has(sampler.tokens[row]!), what);
        count += 1;
        different += Number(sampler.tokens[row] !== expected);
        shared += Number(within.size > 1);
      });
    }
    t.log(`${different} of ${count} differ from the plain sampler, of ${shared} that may`);
    t.true(shared <= 2 + count / 50); // else the bounds would say little
  });

  test(`log-probabilities and the most likely tokens are those of plain sums, with ${name} (seed ${seed})`, (t) => {
    const random = new Random(seed);
    for (const [kind, makes] of Object.entries(kinds)) {
      const vocabulary = 1 + random.integer(3000);
      const best = 1 + random.integer(20);
      const of = makes(random);
      const logits = Float32Array.from({ length: vocabulary }, (_, token) => of(token));
      if (Math.max(...logits) === -Infinity) logits[0] = 0;
      const sampler = new BatchSampler({ vocabularyTokens: vocabulary, threads: 1, instructions: name });
      sampler.begin(1, best);
      sampler.add(0, greedyRules, { seed: 0, generatedTokens: 0, sampledText: { tokens: new Int32Array(0), length: 0, promptTokens: 0 } });
      sampler.choose(logits);
      const largest = Math.max(...logits);
      const total = largest + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - largest), 0));
      const sorted = [...logits.keys()].sort((a, b) => (logits[a] === logits[b] ? a - b : logits[b]! - logits[a]!));
      t.is(sampler.tokens[0], sorted[0], kind);
      for (let place = 0; place < best; place += 1) {
        t.is(sampler.bestTokens[place], sorted[place] ?? -1, `${kind}, place ${place}`);
        if (place >= sorted.length) continue;
        const expected = logits[sorted[place]!]! - total;
        const actual = sampler.bestLogProbabilities[place]!;
        t.true(actual === expected || Math.abs(actual - expected) < 1e-5 * (1 + Math.abs(expected)), `${kind}: ${actual}, not ${expected}`);
      }
      t.is(sampler.logProbabilities[0], sampler.bestLogProbabilities[0]);
    }
  });
}

slow('all thread counts and instructions')('the same tokens are chosen with every number of threads and all instructions', (t) => {
  const random = new Random(seed);
  const vocabulary = 40_000;
  const rows = 6;
  const logits = Float32Array.from({ length: rows * vocabulary }, () => random.normal());
  const rules = rulesOf(randomSampler({ topP: 0.95, minP: 1e-4 }))!;
  const all = instructions.flatMap((name) => [1, 2, 3].map((threads) => {
    const sampler = new BatchSampler({ vocabularyTokens: vocabulary, threads, instructions: name });
    const tokens: number[] = [];
    for (let index = 0; index < 20; index += 1) {
      sampler.begin(rows, 3);
      for (let row = 0; row < rows; row += 1) {
        sampler.add(row, rules, { seed: row, generatedTokens: index, sampledText: { tokens: new Int32Array(0), length: 0, promptTokens: 0 } });
      }
      sampler.choose(logits);
      tokens.push(...sampler.tokens.subarray(0, rows), ...sampler.bestLogProbabilities.subarray(0, 3 * rows));
    }
    return tokens;
  }));
  t.true(new Set(all[0]).size > 50);
  for (const tokens of all) t.deepEqual(tokens, all[0]);
});

test('a logit that is NaN is chosen, and of infinite ones the first', (t) => {
  for (const name of instructions) {
    const sampler = new BatchSampler({ vocabularyTokens: 200, threads: 1, instructions: name });
    const chosen = (logits: Float32Array, rules: KnownSampler): number => {
      sampler.begin(1, 2);
      sampler.add(0, rules, { seed: 1, generatedTokens: 0, sampledText: { tokens: new Int32Array(0), length: 0, promptTokens: 0 } });
      sampler.choose(logits);
      return sampler.tokens[0]!;
    };
    for (const rules of [greedyRules, rulesOf(randomSampler({ topK: 5, topP: 0.5 }))!, rulesOf(randomSampler())!]) {
      const logits = new Float32Array(200);
      logits[150] = Infinity;
      logits[170] = Infinity;
      t.is(chosen(logits, rules), 150);
      logits[160] = NaN;
      logits[190] = NaN;
      t.is(chosen(logits, rules), 160);
      t.is(chosen(new Float32Array(200).fill(-Infinity), rules), 0);
      const one = new Float32Array(200).fill(-Infinity);
      one[77] = -3;
      t.is(chosen(one, rules), 77);
    }
  }
});

test('the addon refuses wrong numbers and arrays instead of reading past them', (t) => {
  const sampling = new (native().NativeSampling)({ threads: 1, instructions: 'auto' });
  const numbers = (change: Record<number, number> = {}): Float64Array => Float64Array.from({ length: 12 }, (_, at) => change[at] ?? [0, 1, 0, 1, 0, 1, 0, 0, 0.5, 2, 1, 1][at]!);
  const call = (change: Record<number, unknown> = {}): void => {
    const given: unknown[] = [new Float32Array(8), 8, 1, numbers(), 2, new Int32Array(1), new Float64Array(1), new Int32Array(2), new Float64Array(2),
      Int32Array.of(1, 2), Int32Array.of(3), Float32Array.of(1)];
    for (const [at, value] of Object.entries(change)) given[Number(at)] = value;
    sampling.choose(...given as number[]);
  };
  t.notThrows(() => { call(); });
  for (const change of [
    { 0: new Float32Array(7) }, { 0: 1n }, { 1: 0 }, { 1: 2 ** 40 }, { 2: 2 }, { 2: -1 }, { 3: new Float64Array(11) }, { 4: 3 }, { 5: new Int32Array(0) },
    { 6: new Float64Array(0) }, { 7: new Int32Array(1) }, { 8: new Float64Array(1) }, { 9: 'text' }, { 10: Int32Array.of(8) }, { 10: Int32Array.of(-1) },
    { 11: new Float32Array(0) }, { 3: numbers({ 0: 1 }) }, { 3: numbers({ 0: -1 }) }, { 3: numbers({ 1: NaN }) }, { 3: numbers({ 1: -1 }) },
    { 3: numbers({ 2: -1 }) }, { 3: numbers({ 3: 2 }) }, { 3: numbers({ 4: NaN }) }, { 3: numbers({ 5: 0 }) }, { 3: numbers({ 8: 2 }) },
    { 3: numbers({ 9: 3 }) }, { 3: numbers({ 10: 3 }) },
  ]) t.throws(() => { call(change); }, undefined, Object.keys(change).join());
});
