// The dense arithmetic against plain loops in double precision, over random shapes, weights' types, vectors and threads; and
// the promise that a row's result does not depend on the other rows.

import test from 'ava';

import { DenseKernels, type Instructions, type RowDtype, type Weight } from 'virtual-kv';

import { native } from '#internal/device/native.js';
import { Random } from '#internal/base/random.js';
import { roundTo, toRows } from '../helpers/floats.js';
import { seedOf } from '../helpers/seed.js';
import { scale } from '../runner/tier.js';

const dtypes: readonly RowDtype[] = ['float32', 'float16', 'bfloat16'];

/** Random values of a type, as numbers. */
function randomValues(random: Random, dtype: RowDtype, length: number): number[] {
  return Array.from({ length }, () => roundTo(dtype, 2 * random.next() - 1));
}

function weightOf(dtype: RowDtype, values: readonly number[], outputs: number, inputs: number): Weight {
  return { data: toRows(dtype, values), dtype, outputs, inputs };
}

function worstOf(actual: ArrayLike<number>, expected: readonly number[]): number {
  return expected.reduce((worst, value, index) => {
    const difference = Math.abs(value - actual[index]!);
    return difference <= worst ? worst : difference; // NaN is the worst
  }, 0);
}

for (const instructions of native().cpuInstructions as readonly Instructions[]) {
  const seed = seedOf(`dense ${instructions}`);

  test(`products match plain sums, and a row does not depend on the other rows, with ${instructions} (seed ${seed})`, (t) => {
    const random = new Random(seed);
    const pick = <T>(choices: readonly T[]): T => choices[random.integer(choices.length)]!;
    for (let round = 0; round < 40 * scale; round += 1) {
      const [rows, inputs] = [pick([0, 1, 1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 40, 121, 250]), pick([1, 7, 16, 33, 64, 511, 1023, 1040, 2100])];
      const dense = new DenseKernels({ threads: pick([1, 2, 3]), instructions });
      const input = Float32Array.from(randomValues(random, 'float32', rows * inputs));
      const products = Array.from({ length: pick([1, 2, 3]) }, () => {
        const [outputs, dtype, mode] = [pick([1, 3, 16, 63, 64, 65, 200]), pick(dtypes), pick(['add', 'replace'] as const)];
        const values = randomValues(random, dtype, outputs * inputs);
        const bias = pick([undefined, Float32Array.from(randomValues(random, 'float32', outputs))]);
        const output = Float32Array.from(randomValues(random, 'float32', rows * outputs));
        return { weight: weightOf(dtype, values, outputs, inputs), values, bias, output, before: output.slice(), mode };
      });
      dense.multiply(input, rows, ...products.map(({ weight, bias, output, mode }) => ({ weight, bias, output, mode })));
      for (const { weight, values, bias, output, before, mode } of products) {
        const { outputs, dtype } = weight;
        const about = `round ${round}: ${rows} × ${inputs} → ${outputs}, ${dtype}, ${mode}`;
        const expected = Array.from(output, (_, at) => {
          const [row, o] = [Math.floor(at / outputs), at % outputs];
          let sum = (mode === 'add' ? before[at]! : 0) + (bias?.[o] ?? 0);
          for (let i = 0; i < inputs; i += 1) sum += input[row * inputs + i]! * values[o * inputs + i]!;
          return sum;
        });
        t.true(worstOf(output, expected) < 2e-6 * (8 + inputs ** 0.5), about);
        if (rows === 0) continue;
        const row = random.integer(rows);
        const alone = before.slice(row * outputs, (row + 1) * outputs);
        dense.multiply(input.subarray(row * inputs), 1, { weight, bias, output: alone, mode });
        t.deepEqual(alone, output.slice(row * outputs, (row + 1) * outputs), `${about}, row ${row} alone`);
      }
    }
  });

  test(`norms, rotations, gates, caps and embeddings match plain loops, with ${instructions} (seed ${seed})`, (t) => {
    const random = new Random(seed);
    for (let round = 0; round < 6 * scale; round += 1) {
      const dense = new DenseKernels({ threads: 1 + random.integer(3), instructions });
      const [rows, heads, half] = [1 + random.integer(70), 1 + random.integer(4), 1 + random.integer(70)];
      const [dim, width] = [2 * half, 2 * half * heads];
      const values = randomValues(random, 'float32', rows * width).map((value) => Math.fround(30 * value));
      const weight = Float32Array.from(randomValues(random, 'float32', width));

      const normalized = new Float32Array(rows * width);
      dense.normalize(Float32Array.from(values), rows, { weight, width, epsilon: 1e-5 }, normalized);
      const expectedNorms = values.map((value, at) => {
        const row = values.slice(at - (at % width), at - (at % width) + width);
        const mean = row.reduce((sum, x) => sum + x * x, 0) / width;
        return (value / Math.sqrt(mean + 1e-5)) * weight[at % width]!;
      });
      t.true(worstOf(normalized, expectedNorms) < 1e-5);
      const sums = Float32Array.from(values);
      const added = { weight, width, epsilon: 1e-5, mode: 'add' } as const;
      dense.normalize(Float32Array.from(values), rows, added, sums);
      t.true(worstOf(sums, values.map((value, at) => value + expectedNorms[at]!)) < 1e-5);

      const positions = Int32Array.from({ length: rows }, () => random.integer(9));
      const table = Float32Array.from({ length: 9 * dim }, () => 2 * random.next() - 1);
      const rotated = Float32Array.from(values);
      dense.rotate(rotated, rows, { heads, dim }, positions, table);
      const expectedTurns = values.map((value, at) => {
        const [i, angle] = [at % dim, positions[Math.floor(at / width)]! * dim + (at % half)];
        const [cosine, sine] = [table[angle]!, table[angle + half]!];
        return i < half ? value * cosine - values[at + half]! * sine : value * cosine + values[at - half]! * sine;
      });
      t.true(worstOf(rotated, expectedTurns) < 1e-5);
      const inTurns = rotated.map((_, at) => values[at - at % dim + at % 2 * half + Math.floor(at % dim / 2)]!); // their halves
      dense.rotate(inTurns, rows, { heads, dim, pairs: 'neighbours' }, positions, table);
      t.deepEqual(inTurns, rotated);

      const up = Float32Array.from(randomValues(random, 'float32', rows * width));
      const gated = new Float32Array(rows * width);
      dense.gate(Float32Array.from(values), up, rows * width, gated);
      t.true(worstOf(gated, values.map((x, at) => (x / (1 + Math.exp(-x))) * up[at]!)) < 1e-5);
      const gelu = (x: number): number => (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
      dense.gate(Float32Array.from(values), up, rows * width, gated, 'gelu-tanh');
      t.true(worstOf(gated, values.map((x, at) => gelu(x) * up[at]!)) < 1e-5);

      const capped = Float32Array.from(values);
      const holes = capped.map((value, at) => (at % 5 === 0 ? Number.NaN : value));
      dense.cap(capped, rows * width, 20);
      t.true(worstOf(capped, values.map((x) => 20 * Math.tanh(x / 20))) < 1e-5);
      dense.cap(holes, rows * width, 20);
      t.deepEqual(holes, capped.map((value, at) => (at % 5 === 0 ? Number.NaN : value)), 'what is no number stays so');

      const dtype = dtypes[random.integer(3)]!;
      const entries = randomValues(random, dtype, 11 * width);
      const tokens = Int32Array.from({ length: rows }, () => random.integer(11));
      const embedded = new Float32Array(rows * width);
      dense.gather(weightOf(dtype, entries, 11, width), tokens, rows, embedded);
      const plain = [...tokens].flatMap((token) => entries.slice(token * width, (token + 1) * width));
      t.deepEqual([...embedded], plain);
      dense.gather(weightOf(dtype, entries, 11, width), tokens, rows, embedded, 5.5);
      t.deepEqual([...embedded], plain.map((value) => Math.fround(5.5 * value)));
    }
  });
}

test('shapes that do not fit each other are refused before anything is written', (t) => {
  const dense = new DenseKernels();
  const weight: Weight = { data: new Float32Array(6), dtype: 'float32', outputs: 2, inputs: 3 };
  const [input, output, wide] = [new Float32Array(3), new Float32Array(2).fill(7), new Float32Array(2052)];
  t.throws(() => dense.multiply(input, 1, { weight, output }, { weight: { ...weight, inputs: 2 }, output }), { code: 'KV_INVALID_OPTION' });
  t.throws(() => dense.rotate(new Float32Array(4), 1, { heads: 1, dim: 4 }, Int32Array.of(1), new Float32Array(4)), { code: 'KV_INVALID_OPTION' });
  dense.rotate(wide, 1, { heads: 1, dim: 1024, pairs: 'neighbours' }, Int32Array.of(0), wide);
  t.deepEqual(output, new Float32Array(2).fill(7));
});
