// DenseKernels: what a transformer computes besides attention, on the CPU or on a GPU: matrix products, RMSNorm, rotary
// positions, SwiGLU.
//
// Activations are floats [row, width], contiguous; only their first `rows` rows count. On the CPU every call does its work
// before it returns, on all threads where that pays; on a GPU it is queued on the stream. It allocates nothing. A row's result
// does not depend, not by a bit, on the other rows of the call, unless cuBLAS multiplies: batches and chunks may be cut in any way.
// For one Node thread. It knows nothing of caches.

import { createError } from '../errors/index.js';
import type { Driver } from '../memory/driver.js';
import { native, type NativeDense } from '../memory/native.js';
import { giveBackTo, unclosed } from '../memory/unclosed.js';
import type { Membership } from '../memory/weak-users.js';
import { checkInteger } from '../options.js';
import { readDenseKernelsOptions, type DenseKernelsOptions } from './dense-options.js';
import { kernelImage } from './kernel-image.js';
import type { RowDtype } from './kernels-options.js';

/**
 * Floats: a Float32Array on the CPU, or the address of memory that the driver's device can use, which nobody can check. On a
 * GPU only addresses are taken.
 */
export type FloatBuffer = Float32Array | bigint;

/** A matrix as models store it: `[outputs, inputs]`, 16-bit floats as their bits, or the address of that. It must not change its length. */
export interface Weight {
  readonly data: Float32Array | Uint16Array | bigint;
  readonly dtype: RowDtype;
  readonly outputs: number;
  readonly inputs: number;
}

/** One product of an input: `output[row, o] = Σ input[row, i] · weight[o, i]`. */
export interface Product {
  readonly weight: Weight;
  /** `[outputs]`, added to each row. */
  readonly bias?: FloatBuffer | undefined;
  /** `[row, outputs]`. */
  readonly output: FloatBuffer;
  /** `add`: to what `output` holds (a residual). Default `replace`. */
  readonly mode?: 'replace' | 'add' | undefined;
}

/** What a row is normalized with. */
export interface Norm {
  /** `[width]` */
  readonly weight: FloatBuffer;
  readonly width: number;
  readonly epsilon: number;
}

const dtypeNumbers: Readonly<Record<RowDtype, number>> = { float32: 0, float16: 1, bfloat16: 2 };

export class DenseKernels {
  /** What multiplies: `avx512`, `avx2` or `portable` on the CPU, on a GPU `cublas 12.8` or our own kernel, `sm_90`. */
  readonly target: string;
  /** The device's; undefined on the CPU. */
  readonly #driver: Driver | undefined;
  readonly #native: NativeDense;
  /** Arguments of one `multiply`, kept so that a step makes no new array. */
  readonly #arguments: (Parameters<NativeDense['multiply']>[number])[] = [];

  readonly #membership: Membership<undefined> | undefined;
  #isClosed = false;

  /** Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION, and on a GPU the driver's error; nothing stays then. */
  constructor(options: DenseKernelsOptions = {}) {
    const { driver, ...rest } = readDenseKernelsOptions(options);
    this.#driver = driver;
    this.#native = new (native().NativeDense)(driver?.native, { ...rest, image: driver && kernelImage(driver.info.computeCapability) });
    this.target = this.#native.target();
    this.#membership = driver?.addUser(this.#native);
    if (driver !== undefined) unclosed.register(this, giveBackTo(driver, 'A DenseKernels', this.#native), this);
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /**
   * Products of one input with one or more weights, as one piece of work: Q, K and V together, or gate and up. Outputs overlap
   * neither each other nor the input. One row is bound by memory: each weight is read once. Many rows are bound by arithmetic.
   * Throws KV_INVALID_OPTION when a weight has another number of inputs or a buffer is too short; nothing was written then. All
   * calls throw KV_CLOSED, and on a GPU the driver's error.
   */
  multiply(input: FloatBuffer, rows: number, ...products: readonly Product[]): void {
    const owner = 'DenseKernels.multiply';
    const inputs = products[0]?.weight.inputs ?? 0;
    this.#checkOpen();
    this.#checkFloats(owner, 'input', input, rows, inputs);
    const given = this.#arguments;
    given.length = 0;
    given.push(input, rows, inputs);
    for (const { weight, bias, output, mode } of products) {
      checkInteger(owner, 'weight.inputs', weight.inputs, inputs, inputs);
      this.#checkWeight(owner, weight);
      if (bias !== undefined) this.#checkFloats(owner, 'bias', bias, 1, weight.outputs);
      this.#checkFloats(owner, 'output', output, rows, weight.outputs);
      given.push(weight.data, dtypeNumbers[weight.dtype], weight.outputs, bias, output, mode === 'add');
    }
    this.#native.multiply(...given);
  }

  /** RMSNorm: `output[row] = input[row] / √(mean of squares + epsilon) · weight`; `output` may be `input`. Throws KV_INVALID_OPTION. */
  normalize(input: FloatBuffer, rows: number, { weight, width, epsilon }: Norm, output: FloatBuffer): void {
    const owner = 'DenseKernels.normalize';
    this.#checkOpen();
    checkInteger(owner, 'width', width, 1);
    this.#checkFloats(owner, 'weight', weight, 1, width);
    this.#checkFloats(owner, 'input', input, rows, width);
    this.#checkFloats(owner, 'output', output, rows, width);
    this.#native.normalize(input, rows, weight, width, epsilon, output);
  }

  /**
   * Turns `[row, head, dim]` to positions, in place: the pair (i, i + dim / 2) by the angle whose cosine and sine are
   * `table[position, 0, i]` and `table[position, 1, i]`, i < dim / 2. Positions are read during the call. Throws KV_INVALID_OPTION
   * when the table, where it is no address, is too short.
   */
  rotate(rows: FloatBuffer, count: number, shape: { readonly heads: number; readonly dim: number },
    positions: Int32Array, table: FloatBuffer): void {
    const owner = 'DenseKernels.rotate';
    const { heads, dim } = shape;
    this.#checkOpen();
    checkInteger(owner, 'dim', dim, 2);
    this.#checkFloats(owner, 'rows', rows, count, heads * dim);
    this.#checkFloats(owner, 'table', table, 0, dim);
    checkInteger(owner, 'positions.length', positions.length, count);
    const mostPosition = typeof table === 'bigint' ? Number.MAX_SAFE_INTEGER : Math.floor(table.length / dim) - 1;
    for (let row = 0; row < count; row += 1) {
      const position = positions[row]!;
      if (position < 0 || position > mostPosition) checkInteger(owner, `positions[${row}]`, position, 0, mostPosition);
    }
    this.#native.rotate(rows, count, heads, dim, positions, table);
  }

  /** SwiGLU: `output = gate · sigmoid(gate) · up`, the first `count` elements; `output` may be either. Throws KV_INVALID_OPTION. */
  gate(gate: FloatBuffer, up: FloatBuffer, count: number, output: FloatBuffer): void {
    const owner = 'DenseKernels.gate';
    this.#checkOpen();
    this.#checkFloats(owner, 'gate', gate, count, 1);
    this.#checkFloats(owner, 'up', up, count, 1);
    this.#checkFloats(owner, 'output', output, count, 1);
    this.#native.gate(gate, up, count, output);
  }

  /**
   * `output[row] = table[tokens[row]]`, as floats: the embedding, or some rows of other activations. Tokens are read during the
   * call. Throws KV_INVALID_OPTION when a token is not in the table.
   */
  gather(table: Weight, tokens: Int32Array, rows: number, output: FloatBuffer): void {
    const owner = 'DenseKernels.gather';
    this.#checkOpen();
    this.#checkWeight(owner, table);
    checkInteger(owner, 'tokens.length', tokens.length, rows);
    this.#checkFloats(owner, 'output', output, rows, table.inputs);
    for (let row = 0; row < rows; row += 1) {
      const token = tokens[row]!;
      if (token < 0 || token >= table.outputs) checkInteger(owner, `tokens[${row}]`, token, 0, table.outputs - 1);
    }
    this.#native.gather(table.data, dtypeNumbers[table.dtype], table.inputs, tokens, rows, output);
  }

  /** Gives back what it holds on the device; queued work must be over. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    this.#native.close();
    this.#isClosed = true;
    if (this.#membership !== undefined) this.#driver?.removeUser(this.#membership.memory);
    unclosed.unregister(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #checkFloats(owner: string, option: string, buffer: FloatBuffer, rows: number, width: number): void {
    if (!Number.isSafeInteger(rows) || rows < 0) checkInteger(owner, 'rows', rows);
    this.#checkBuffer(owner, option, buffer, Float32Array, rows, width);
  }

  #checkWeight(owner: string, { data, dtype, outputs, inputs }: Weight): void {
    this.#checkBuffer(owner, 'weight.data', data, dtype === 'float32' ? Float32Array : Uint16Array, outputs, inputs);
  }

  #checkBuffer(
    owner: string, option: string, buffer: FloatBuffer | Uint16Array, type: typeof Float32Array | typeof Uint16Array,
    rows: number, width: number,
  ): void {
    const isOnDevice = this.#driver !== undefined;
    if (typeof buffer === 'bigint' ? buffer > 0n : !isOnDevice && buffer instanceof type && buffer.length >= rows * width) return;
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner, option,
      expected: isOnDevice ? 'the address of device memory, a bigint' : `a ${type.name} of at least ${rows} × ${width} elements`,
      received: !isOnDevice && buffer instanceof type ? `one of ${buffer.length}` : buffer,
    });
  }

  #checkOpen(): void {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation: 'compute', owner: 'DenseKernels' });
  }
}
