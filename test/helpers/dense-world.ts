// DenseWorld: the same dense arithmetic on the CPU and on a device, over random numbers; a test lets it compute some rows, and every
// result of the device is compared with the CPU's.

import type { ExecutionContext } from 'ava';

import { DenseKernels, type DenseKernelsOptions, type Driver, type Product, type RowDtype } from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import { DeviceFloats } from './device-floats.js';
import { roundTo, toRows } from './floats.js';

const dtypes: readonly RowDtype[] = ['float32', 'float16', 'bfloat16'];

export class DenseWorld {
  readonly dense: DenseKernels;
  readonly #t: ExecutionContext;
  readonly #random: Random;
  readonly #driver: Driver;
  readonly #cpu = new DenseKernels();

  constructor(t: ExecutionContext, driver: Driver, random: Random, options: DenseKernelsOptions = {}) {
    this.#t = t;
    this.#random = random;
    this.#driver = driver;
    this.dense = new DenseKernels({ ...options, driver });
  }

  /** Products of one input with some weights; the input is exact in every type, so that nothing is lost where it is narrowed. */
  multiply(rows: number, inputs: number, outputs: readonly number[]): void {
    const elements = rows * inputs + 2 * outputs.reduce((sum, count) => sum + count * (inputs + rows), 0);
    const memory = new DeviceFloats(this.#driver, 4 * elements + 2 ** 16);
    const input = Float32Array.from({ length: rows * inputs }, () => (this.#random.integer(257) - 128) / 128);
    const products = outputs.map((count) => {
      const [dtype, mode] = [this.#pick(dtypes), this.#pick(['add', 'replace'] as const)];
      const data = toRows(dtype, [...this.#floats(count * inputs, dtype)]);
      const bias = this.#pick([undefined, this.#floats(count)]);
      return { weight: { data, dtype, outputs: count, inputs }, bias, output: this.#floats(rows * count), mode };
    });
    const put = (array: Float32Array | Uint16Array): bigint => memory.put(array, this.#pick([0, 0, 4]));
    const onDevice = products.map(({ weight, bias, output, mode }): Product & { readonly output: bigint } => ({
      weight: { ...weight, data: put(weight.data) }, bias: bias && put(bias), output: put(output), mode,
    }));
    this.#cpu.multiply(input, rows, ...products);
    this.dense.multiply(put(input), rows, ...onDevice);
    products.forEach(({ weight: { dtype, outputs: count }, output, mode }, index) => {
      const about = `${rows} × ${inputs} → ${count}, ${dtype}, ${mode}`;
      this.#compare(memory.read(onDevice[index]!.output, output.length), output, 2e-6 * (4 + inputs ** 0.5), about);
    });
    memory.close();
  }

  /** Norm, rotation, gate, soft cap and embedding of so many rows. */
  transform(rows: number, heads: number, dim: number): void {
    const { dense } = this;
    const width = heads * dim;
    const memory = new DeviceFloats(this.#driver, 4 * (5 * rows + 12) * width + 2 ** 16);
    const put = (array: Float32Array | Uint16Array): bigint => memory.put(array, this.#pick([0, 0, 4]));
    const same = (actual: bigint, expected: Float32Array, about: string): void =>
      this.#compare(memory.read(actual, expected.length), expected, 1e-5, `${about} of ${rows} × ${heads} × ${dim}`);
    const values = this.#floats(rows * width);
    const input = put(values);
    const norm = { weight: this.#floats(width), width, epsilon: 1e-5, mode: this.#pick(['add', 'replace'] as const) };
    const isInPlace = this.#pick([true, false]);
    const expected = isInPlace ? values.slice() : this.#floats(rows * width);
    const output = isInPlace ? input : put(expected);
    this.#cpu.normalize(values, rows, norm, expected);
    dense.normalize(input, rows, { ...norm, weight: put(norm.weight) }, output);
    same(output, expected, 'norm');

    const positions = Int32Array.from({ length: rows }, () => this.#random.integer(9));
    const table = this.#floats(9 * dim);
    this.#cpu.rotate(expected, rows, { heads, dim }, positions, table);
    dense.rotate(output, rows, { heads, dim }, positions, put(table));
    same(output, expected, 'rotation');

    const up = this.#floats(rows * width);
    const activation = this.#pick(['silu', 'gelu-tanh'] as const);
    this.#cpu.gate(expected, up, rows * width, expected, activation);
    dense.gate(output, put(up), rows * width, output, activation);
    same(output, expected, `gate by ${activation}`);

    const cap = this.#pick([0.5, 30]);
    this.#cpu.cap(expected, rows * width, cap);
    dense.cap(output, rows * width, cap);
    same(output, expected, `soft cap of ${cap}`);

    const dtype = this.#pick(dtypes);
    const data = toRows(dtype, [...this.#floats(11 * width, dtype)]);
    const tokens = Int32Array.from({ length: rows }, () => this.#random.integer(11));
    const factor = this.#pick([1, 5.5]);
    this.#cpu.gather({ data, dtype, outputs: 11, inputs: width }, tokens, rows, expected, factor);
    dense.gather({ data: put(data), dtype, outputs: 11, inputs: width }, tokens, rows, output, factor);
    this.#t.deepEqual(memory.read(output, rows * width), expected, `embedding of ${rows} × ${width}`);
    memory.close();
  }

  close(): void {
    this.dense.close();
  }

  #pick<T>(choices: readonly T[]): T {
    return choices[this.#random.integer(choices.length)]!;
  }

  #floats(length: number, dtype: RowDtype = 'float32'): Float32Array {
    return Float32Array.from({ length }, () => roundTo(dtype, 2 * this.#random.next() - 1));
  }

  /** `allowed`: of the larger of 1 and the largest expected value. */
  #compare(actual: Float32Array, expected: Float32Array, allowed: number, about: string): void {
    const largest = expected.reduce((most, value) => Math.max(most, Math.abs(value)), 1);
    const worst = expected.reduce((most, value, index) => {
      const difference = Math.abs(value - actual[index]!) / largest;
      return difference <= most ? most : difference; // NaN is the worst
    }, 0);
    this.#t.true(worst <= allowed, `${about}: off by ${worst}`);
  }
}
