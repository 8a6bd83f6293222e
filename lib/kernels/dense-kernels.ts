// DenseKernels: what a transformer computes besides attention, on the CPU: matrix products, RMSNorm, rotary positions, SwiGLU.
//
// Activations are Float32Arrays [row, width], contiguous; only their first `rows` rows count. Every call does its work before
// it returns, on all threads where that pays, and allocates nothing. A row's result does not depend, not by a bit, on the
// other rows of the call: batches and chunks may be cut in any way. For one Node thread. It knows nothing of caches.

import { createError } from '../errors/index.js';
import { native, type NativeDense } from '../memory/native.js';
import { checkInteger } from '../options.js';
import { readDenseKernelsOptions, type DenseKernelsOptions } from './dense-options.js';
import type { RowDtype } from './kernels-options.js';

/** A matrix as models store it: `[outputs, inputs]`, 16-bit floats as their bits. It must not change its length. */
export interface Weight {
  readonly data: Float32Array | Uint16Array;
  readonly dtype: RowDtype;
  readonly outputs: number;
  readonly inputs: number;
}

/** One product of an input: `output[row, o] = Σ input[row, i] · weight[o, i]`. */
export interface Product {
  readonly weight: Weight;
  /** `[outputs]`, added to each row. */
  readonly bias?: Float32Array | undefined;
  /** `[row, outputs]`. */
  readonly output: Float32Array;
  /** `add`: to what `output` holds (a residual). Default `replace`. */
  readonly mode?: 'replace' | 'add' | undefined;
}

const dtypeNumbers: Readonly<Record<RowDtype, number>> = { float32: 0, float16: 1, bfloat16: 2 };

export class DenseKernels {
  /** What runs: `avx512`, `avx2` or `portable`. */
  readonly target: string;
  readonly #native: NativeDense;
  /** Arguments of one `multiply`, kept so that a step makes no new array. */
  readonly #arguments: (Parameters<NativeDense['multiply']>[number])[] = [];

  /** Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
  constructor(options: DenseKernelsOptions = {}) {
    const { threads, instructions } = readDenseKernelsOptions(options);
    this.#native = new (native().NativeDense)(threads, instructions);
    this.target = this.#native.target();
  }

  /**
   * Products of one input with one or more weights, as one piece of work: Q, K and V together, or gate and up. Outputs overlap
   * neither each other nor the input. One row is bound by memory: each weight is read once. Many rows are bound by arithmetic.
   * Throws KV_INVALID_OPTION when a weight has another number of inputs or a buffer is too short; nothing was written then.
   */
  multiply(input: Float32Array, rows: number, ...products: readonly Product[]): void {
    const owner = 'DenseKernels.multiply';
    const inputs = products[0]?.weight.inputs ?? 0;
    checkFloats(owner, 'input', input, rows, inputs);
    const given = this.#arguments;
    given.length = 0;
    given.push(input, rows, inputs);
    for (const { weight, bias, output, mode } of products) {
      checkInteger(owner, 'weight.inputs', weight.inputs, inputs, inputs);
      checkWeight(owner, weight);
      if (bias !== undefined) checkFloats(owner, 'bias', bias, 1, weight.outputs);
      checkFloats(owner, 'output', output, rows, weight.outputs);
      given.push(weight.data, dtypeNumbers[weight.dtype], weight.outputs, bias, output, mode === 'add');
    }
    this.#native.multiply(...given);
  }

  /** RMSNorm: `output[row] = input[row] / √(mean of squares + epsilon) · weight`; `output` may be `input`. Throws KV_INVALID_OPTION. */
  normalize(input: Float32Array, rows: number, weight: Float32Array, epsilon: number, output: Float32Array): void {
    const owner = 'DenseKernels.normalize';
    checkFloats(owner, 'input', input, rows, weight.length);
    checkFloats(owner, 'output', output, rows, weight.length);
    this.#native.normalize(input, rows, weight, weight.length, epsilon, output);
  }

  /**
   * Turns `[row, head, dim]` to positions, in place: the pair (i, i + dim / 2) by the angle whose cosine and sine are
   * `table[position, 0, i]` and `table[position, 1, i]`, i < dim / 2. Throws KV_INVALID_OPTION when the table is too short.
   */
  rotate(rows: Float32Array, count: number, shape: { readonly heads: number; readonly dim: number },
    positions: Int32Array, table: Float32Array): void {
    const owner = 'DenseKernels.rotate';
    const { heads, dim } = shape;
    checkInteger(owner, 'dim', dim, 2);
    checkFloats(owner, 'rows', rows, count, heads * dim);
    checkInteger(owner, 'positions.length', positions.length, count);
    const mostPosition = Math.floor(table.length / dim) - 1;
    for (let row = 0; row < count; row += 1) {
      const position = positions[row]!;
      if (position < 0 || position > mostPosition) checkInteger(owner, `positions[${row}]`, position, 0, mostPosition);
    }
    this.#native.rotate(rows, count, heads, dim, positions, table);
  }

  /** SwiGLU: `output = gate · sigmoid(gate) · up`, the first `count` elements; `output` may be either. Throws KV_INVALID_OPTION. */
  gate(gate: Float32Array, up: Float32Array, count: number, output: Float32Array): void {
    const owner = 'DenseKernels.gate';
    checkFloats(owner, 'gate', gate, count, 1);
    checkFloats(owner, 'up', up, count, 1);
    checkFloats(owner, 'output', output, count, 1);
    this.#native.gate(gate, up, count, output);
  }

  /** `output[row] = table[tokens[row]]`, as floats: the embedding. Throws KV_INVALID_OPTION when a token is not in the table. */
  gather(table: Weight, tokens: Int32Array, rows: number, output: Float32Array): void {
    const owner = 'DenseKernels.gather';
    checkWeight(owner, table);
    checkInteger(owner, 'tokens.length', tokens.length, rows);
    checkFloats(owner, 'output', output, rows, table.inputs);
    for (let row = 0; row < rows; row += 1) {
      const token = tokens[row]!;
      if (token < 0 || token >= table.outputs) checkInteger(owner, `tokens[${row}]`, token, 0, table.outputs - 1);
    }
    this.#native.gather(table.data, dtypeNumbers[table.dtype], table.inputs, tokens, rows, output);
  }
}

function checkFloats(owner: string, option: string, buffer: Float32Array, rows: number, width: number): void {
  if (!Number.isSafeInteger(rows) || rows < 0) checkInteger(owner, 'rows', rows);
  if (buffer instanceof Float32Array && buffer.length >= rows * width) return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner, option, expected: `a Float32Array of at least ${rows} × ${width} elements`,
    received: buffer instanceof Float32Array ? `one of ${buffer.length}` : buffer,
  });
}

function checkWeight(owner: string, { data, dtype, outputs, inputs }: Weight): void {
  const wanted = dtype === 'float32' ? Float32Array : Uint16Array;
  if (data instanceof wanted && data.length >= outputs * inputs) return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner, option: 'weight.data', expected: `a ${wanted.name} of at least ${outputs} × ${inputs} elements`,
    received: data instanceof wanted ? `one of ${data.length}` : data,
  });
}
