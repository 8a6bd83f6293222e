// Int8 products against a plain reference, bit for bit, with every instruction set, any number of rows and threads; and what is refused.

import test from 'ava';

import { DenseKernels, type Instructions, type Weight } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { native } from '#internal/device/native.js';
import { Random } from '#internal/base/random.js';
import { roundTo, toRows } from '../helpers/floats.js';
import { refuses } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { scale } from '../runner/tier.js';

const seed = seedOf('int8');
const { fround } = Math;

/** A float16's value. */
function halfOf(bits: number): number {
  const [exponent, fraction] = [bits >> 10 & 31, bits & 1023];
  return (bits & 0x8000 ? -1 : 1) * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
}

function nearestEven(value: number): number {
  const below = Math.floor(value);
  if (value - below === 0.5) return below % 2 === 0 ? below : below + 1;
  return Math.round(value);
}

interface Block {
  readonly scale: number;
  readonly values: readonly number[];
}

/** A row of activations as the kernels cut it. */
function blocksOf(row: Float32Array): Block[] {
  return Array.from({ length: row.length / 32 }, (_, block) => {
    const values = [...row.subarray(32 * block, 32 * block + 32)];
    const largest = Math.max(...values.map(Math.abs));
    if (largest < 2 ** -100) return { scale: 0, values: values.map(() => 0) };
    const factor = fround(127 / largest);
    return { scale: fround(largest / 127), values: values.map((value) => nearestEven(fround(value * factor))) };
  });
}

/** Weights as they lie in memory. */
function storedBlocks(data: Uint8Array, row: number, inputs: number): Block[] {
  const view = new DataView(data.buffer, data.byteOffset);
  return Array.from({ length: inputs / 32 }, (_, block) => {
    const at = 34 * (row * inputs / 32 + block);
    return { scale: halfOf(view.getUint16(at, true)), values: Array.from({ length: 32 }, (_, i) => view.getInt8(at + 2 + i)) };
  });
}

/** The product of both, as kernels/dense/cpu/int8.h defines it. Doubles hold the fused sums exactly before they are rounded: see `fuse`. */
function dot(weights: readonly Block[], row: readonly Block[]): number {
  const lanes = new Float32Array(16);
  weights.forEach((weight, block) => {
    const by = fround(weight.scale * row[block]!.scale);
    for (let group = 0; group < 8; group += 1) {
      let sum = 0;
      for (let i = 4 * group; i < 4 * group + 4; i += 1) sum += weight.values[i]! * row[block]!.values[i]!;
      const lane = block % 2 * 8 + group;
      lanes[lane] = fuse(sum, by, lanes[lane]!);
    }
  });
  for (let half = 8; half >= 1; half /= 2) for (let lane = 0; lane < half; lane += 1) lanes[lane] = lanes[lane]! + lanes[lane + half]!;
  return lanes[0]!;
}

/** a · b + c, rounded once to float32: the product of a 17-bit and a 24-bit number is a double; where the sum is not, its error breaks the tie. */
function fuse(a: number, b: number, c: number): number {
  const product = a * b;
  const sum = product + c;
  const rounded = fround(sum);
  const part = sum - product;
  const error = (product - (sum - part)) + (c - part);
  if (error === 0 || rounded === sum) return rounded;
  // `sum` is exactly between two floats only where the error decides.
  const other = 2 * sum - rounded;
  if (fround(other) !== other || Math.abs(other - sum) !== Math.abs(rounded - sum)) return rounded;
  const [low, high] = [Math.min(rounded, other), Math.max(rounded, other)];
  return error > 0 ? high : low;
}

/** At an odd address: blocks need no other. */
function quantize(floats: Float32Array): Uint8Array {
  const into = new Uint8Array(new ArrayBuffer(floats.length / 32 * 34 + 1), 1);
  if (!native().quantizeRows(floats, into)) throw new Error('not finite');
  return into;
}

for (const instructions of native().cpuInstructions as readonly Instructions[]) {
  test(`int8 products have the bits of a plain reference, whatever the other rows, with ${instructions} (seed ${seed})`, (t) => {
    const random = new Random(seed);
    const pick = <T>(choices: readonly T[]): T => choices[random.integer(choices.length)]!;
    for (let round = 0; round < 25 * scale; round += 1) {
      const [rows, inputs] = [pick([1, 1, 2, 3, 4, 5, 6, 8, 17, 40]), pick([32, 64, 96, 160, 512, 960])];
      const size = pick([1, 1e-3, 1e4]);
      const input = Float32Array.from({ length: rows * inputs }, () => size * random.normal() * (random.integer(9) === 0 ? 20 : 1));
      if (random.integer(3) === 0) input.fill(0, 0, 32);
      const dense = new DenseKernels({ threads: pick([1, 2, 3]), instructions });
      const products = Array.from({ length: pick([1, 2]) }, () => {
        const outputs = pick([1, 2, 3, 16, 31, 64, 65]);
        const data = random.integer(4) === 0
          ? Uint8Array.from({ length: outputs * inputs / 32 * 34 }, (_, at) => at % 34 === 1 ? random.integer(0x7c) : random.integer(256)) // −128 too
          : quantize(Float32Array.from({ length: outputs * inputs }, () => random.normal()));
        const bias = pick([undefined, Float32Array.from({ length: outputs }, () => random.normal())]);
        const output = Float32Array.from({ length: rows * outputs }, () => random.normal());
        const weight: Weight = { data, dtype: 'int8', outputs, inputs };
        return { weight, data, bias, output, before: output.slice(), mode: pick(['add', 'replace'] as const) };
      });
      const floats: Weight = { data: toRows('bfloat16', Array.from({ length: 2 * inputs }, () => roundTo('bfloat16', random.normal()))), dtype: 'bfloat16', outputs: 2, inputs };
      const beside = { weight: floats, output: new Float32Array(2 * rows) };
      dense.multiply(input, rows, ...products.map(({ weight, bias, output, mode }) => ({ weight, bias, output, mode })), beside);
      const alone = new Float32Array(2 * rows);
      dense.multiply(input, rows, { weight: floats, output: alone });
      t.deepEqual(beside.output, alone, 'float weights beside int8 ones');
      const cut = Array.from({ length: rows }, (_, row) => blocksOf(input.subarray(row * inputs, (row + 1) * inputs)));
      for (const { weight: { outputs }, data, bias, output, before, mode } of products) {
        const stored = Array.from({ length: outputs }, (_, o) => storedBlocks(data, o, inputs));
        const expected = Float32Array.from(output, (_, at) => {
          const [row, o] = [Math.floor(at / outputs), at % outputs];
          const sum = dot(stored[o]!, cut[row]!);
          const biased = bias === undefined ? sum : fround(sum + bias[o]!);
          return mode === 'add' ? fround(before[at]! + biased) : biased;
        });
        t.deepEqual(output, expected, `round ${round}: ${rows} × ${inputs} → ${outputs}, ${mode}`);
      }
    }
  });
}

test('rows of an int8 product that are more than a cache holds have the bits that each has alone', (t) => {
  const [rows, inputs, outputs] = [301, 960, 21];
  const random = new Random(seed);
  const input = Float32Array.from({ length: rows * inputs }, () => random.normal());
  const weight: Weight = { data: quantize(Float32Array.from({ length: outputs * inputs }, () => random.normal())), dtype: 'int8', outputs, inputs };
  for (const instructions of native().cpuInstructions as readonly Instructions[]) {
    const dense = new DenseKernels({ threads: 1, instructions });
    const output = new Float32Array(rows * outputs);
    dense.multiply(input, rows, { weight, output });
    for (let row = 0; row < rows; row += 1) {
      const alone = new Float32Array(outputs);
      dense.multiply(input.subarray(row * inputs, (row + 1) * inputs), 1, { weight, output: alone });
      t.deepEqual(output.subarray(row * outputs, (row + 1) * outputs), alone, `${instructions}, row ${row}`);
    }
  }
});

test('int8 weights are within half a step of what they were made of, and an embedding of them is exact', (t) => {
  const random = new Random(seed);
  const floats = Float32Array.from({ length: 5 * 64 }, () => random.normal());
  floats.fill(0, 32, 64);
  const data = quantize(floats);
  const table = new Float32Array(5 * 64);
  new DenseKernels().gather({ data, dtype: 'int8', outputs: 5, inputs: 64 }, Int32Array.of(0, 1, 2, 3, 4), 5, table);
  for (let row = 0; row < 5; row += 1) {
    const values = storedBlocks(data, row, 64).flatMap((block) => block.values.map((value) => fround(block.scale * value)));
    t.deepEqual([...table.subarray(64 * row, 64 * row + 64)], values.map((value) => value + 0));
    storedBlocks(data, row, 64).forEach(({ scale: step, values: integers }, block) => {
      integers.forEach((integer, i) => {
        const off = Math.abs(floats[64 * row + 32 * block + i]! - step * integer);
        t.true(off <= 0.57 * step, `${off} of ${step}`); // half a step, and what the scale lost in 16 bits times 127
      });
    });
  }
});

test('weights too small for the 16 bits of a scale are off by at most 127 · 2⁻²⁵ and 0.57 steps', (t) => {
  const random = new Random(seed);
  for (let exponent = -12; exponent >= -140; exponent -= 4) {
    const floats = Float32Array.from({ length: 32 }, () => 2 ** exponent * random.normal());
    const table = new Float32Array(32);
    new DenseKernels().gather({ data: quantize(floats), dtype: 'int8', outputs: 1, inputs: 32 }, Int32Array.of(0), 1, table);
    const most = 127 * 2 ** -25 + 0.57 * Math.max(...floats.map(Math.abs)) / 127;
    table.forEach((value, i) => t.true(Math.abs(value - floats[i]!) <= most, `2^${exponent}: ${floats[i]} became ${value}`));
  }
});

test('a row that is not finite gives no finite result, one too small is zero, and weights that are not finite are refused', (t) => {
  const data = quantize(new Float32Array(32).fill(1));
  for (const instructions of native().cpuInstructions as readonly Instructions[]) {
    for (const rows of [2, 7]) { // the last one is finite
      for (const [at, wrong] of [Infinity, -Infinity, NaN].entries()) {
        const output = new Float32Array(rows);
        const input = new Float32Array(32 * rows).fill(1);
        for (let row = 0; row < rows - 1; row += 1) input[32 * row + 3 + 11 * at] = wrong;
        new DenseKernels({ instructions }).multiply(input, rows, { weight: { data, dtype: 'int8', outputs: 1, inputs: 32 }, output });
        t.true(output.subarray(0, -1).every(Number.isNaN), `${instructions}, ${rows} rows, ${wrong}`);
        t.true(Math.abs(output[rows - 1]! - 32) < 0.01);
      }
      const output = new Float32Array(rows).fill(7);
      const small = new Float32Array(32 * rows).fill(2 ** -101);
      new DenseKernels({ instructions }).multiply(small, rows, { weight: { data, dtype: 'int8', outputs: 1, inputs: 32 }, output });
      t.deepEqual(output, new Float32Array(rows), instructions);
    }
  }
  for (const wrong of [NaN, Infinity, -Infinity, 1e30]) t.false(native().quantizeRows(new Float32Array(32).fill(wrong), new Uint8Array(34)));
});

test('rows of no whole blocks, and places of another length, are not quantized', (t) => {
  t.throws(() => native().quantizeRows(new Float32Array(31), new Uint8Array(34)), { code: 'KV_INTERNAL' });
  t.throws(() => native().quantizeRows(new Float32Array(64), new Uint8Array(35)), { code: 'KV_INTERNAL' });
});

test('int8 weights are refused on a device, by what is possible there', (t) => {
  const device = new MockDevice({ memoryBytes: 2 ** 24, granularityBytes: 65_536 });
  const dense = new DenseKernels({ driver: device.driver });
  const weight: Weight = { data: 4096n, dtype: 'int8', outputs: 2, inputs: 32 };
  refuses(t, () => dense.multiply(4096n, 1, { weight, output: 8192n }), 'KV_INVALID_OPTION', { option: 'weight.dtype' });
  refuses(t, () => dense.gather(weight, Int32Array.of(1), 1, 8192n), 'KV_INVALID_OPTION', { option: 'table.dtype' });
  dense.close();
  device.assertNoLeaks();
  device.close();
});
