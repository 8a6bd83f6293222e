// DenseKernels: what a transformer computes besides attention, on the CPU or on a GPU: matrix products, RMSNorm, rotary
// positions, gates, soft caps.
//
// Activations are floats [row, width], contiguous; only their first `rows` rows count. On the CPU a call computes
// before it returns, on all threads where that pays; on a GPU, or a stream of a host driver, it queues work. It
// allocates nothing. A row's result does not depend, to the bit, on the other rows of the call, unless cuBLAS
// multiplies: batches and chunks may be cut in any way. For one Node thread. It knows nothing of caches.

import { createError } from '../../base/errors.js';
import type { Driver } from '../../device/driver.js';
import type { NativeDense } from '../../device/native-kernels.js';
import { native } from '../../device/native.js';
import type { StreamWork } from '../../device/stream-work.js';
import { giveBackTo, unclosed, type Membership } from '../../device/weak-users.js';
import { checkInteger, isAddress } from '../../base/options.js';
import { isInt32Array, lengthOf, typedArrayKind } from '../../base/typed-arrays.js';
import {
  float32, int8, ProductArguments, readActivation, readCap, readFactor, readNorm, readRotationShape, readWeight,
  type ReadNorm, type ReadRotation, type ReadWeight,
} from './dense-arguments.js';
import {
  int8Block, type Activation, type FloatBuffer, type Norm, type Product, type RotationShape, type Weight,
} from './dense-operands.js';
import { readDenseKernelsOptions, type DenseKernelsOptions } from './dense-options.js';
import { kernelModule } from '../load-kernels.js';
import { checkShared } from '../kernels-options.js';

/**
 * What a transformer computes besides attention: matrix products, RMSNorm, rotary positions, gates, soft caps,
 * gathering rows. For one Node thread.
 */
export class DenseKernels {
  /**
   * The code that multiplies: `avx512`, `avx2` or `portable` on the CPU, on a GPU `cublas 12.8`, or the package's
   * kernel, `sm_90`.
   */
  readonly target: string;
  /** The device's driver, or the stream's; undefined on the CPU without a stream. */
  readonly #driver: Driver | undefined;
  /** On a stream of the host driver, what is queued there. */
  readonly #work: StreamWork | undefined;
  readonly #isOnDevice: boolean;
  readonly #native: NativeDense;
  readonly #membership: Membership<undefined> | undefined;
  /** Arguments of one `multiply`, kept so that a step makes no new array; undefined while a call reads its own. */
  #arguments: ProductArguments | undefined;
  /** Members read from the objects of one call. */
  readonly #norm: ReadNorm = { weight: 0n, width: 0, epsilon: 0, adds: false };
  readonly #shape: ReadRotation = { heads: 0, dim: 0, areNeighbours: false };
  readonly #table: ReadWeight = { data: 0n, dtype: 0, outputs: 0, inputs: 0 };
  /** The checked positions or tokens of one call. */
  #numbers = new Int32Array(64);
  #isClosed = false;

  /** Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION, and on a GPU KV_KERNELS_REFUSED or the driver's error. */
  constructor(options: DenseKernelsOptions = {}) {
    const { driver, ...rest } = readDenseKernelsOptions(options);
    this.#driver = driver;
    this.#work = driver?.workOn(rest.stream, 'DenseKernels');
    this.#isOnDevice = driver !== undefined && this.#work === undefined;
    this.#native = new (native().NativeDense)(driver?.native, { ...rest, module: driver && kernelModule(driver) });
    this.target = this.#native.target();
    this.#membership = driver?.addUser(this.#native);
    if (driver !== undefined) unclosed.register(this, giveBackTo(driver, 'A DenseKernels', this.#native), this);
  }

  /** Whether `close` was called. Every other call then throws KV_CLOSED. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /**
   * Multiplies one input with one or more weights, as one piece of work: Q, K and V together, or gate and up. Outputs
   * must overlap neither each other nor the input. One row is bound by memory: each weight is read once. Many rows are
   * bound by arithmetic. Throws KV_INVALID_OPTION when a weight has another number of inputs or a buffer is too short;
   * nothing was written then. All calls throw KV_CLOSED, and on a GPU the driver's error.
   */
  multiply(input: FloatBuffer, rows: number, ...products: readonly Product[]): void {
    const owner = 'DenseKernels.multiply';
    const given = this.#arguments ?? new ProductArguments();
    this.#arguments = undefined; // a getter that calls `multiply` must not overwrite these
    given.read(owner, input, rows, products);
    this.#arguments = given;
    this.#checkOpen();
    checkInteger(owner, 'rows', rows);
    this.#checkFloats(owner, 'input', input, rows, given.inputs);
    for (let product = 0; product < products.length; product += 1) {
      const outputs = given.outputs(product);
      const bias = given.bias(product);
      this.#checkMatrix(owner, 'weight.data', given.weightData(product), given.dtype(product), outputs, given.inputs);
      if (bias !== undefined) this.#checkFloats(owner, 'bias', bias, 1, outputs);
      this.#checkFloats(owner, 'output', given.output(product), rows, outputs);
    }
    this.#native.multiply(...given.list);
  }

  /**
   * RMSNorm: `output[row] = input[row] / √(mean of squares + epsilon) · weight`, added to the output's content where
   * `norm.mode` is `add`; `output` may be `input`. Throws KV_INVALID_OPTION.
   */
  normalize(input: FloatBuffer, rows: number, norm: Norm, output: FloatBuffer): void {
    const owner = 'DenseKernels.normalize';
    const { weight, width, epsilon, adds } = readNorm(owner, norm, this.#norm);
    this.#checkOpen();
    checkInteger(owner, 'rows', rows);
    this.#checkFloats(owner, 'weight', weight, 1, width);
    this.#checkFloats(owner, 'input', input, rows, width);
    this.#checkFloats(owner, 'output', output, rows, width);
    this.#native.normalize(input, rows, weight, width, epsilon, output, adds);
  }

  /**
   * Rotates `[row, head, dim]` to positions, in place: the pair (i, i + dim / 2) by the angle whose cosine and sine are
   * `table[position, 0, i]` and `table[position, 1, i]`, i < dim / 2. With `pairs: 'neighbours'`, on the CPU and up to
   * 1,024 elements a head, a pair is read from (2 i, 2 i + 1), as a Llama's GGUF file has them, and written as ever.
   * Positions are read during the call; on a GPU they may be the address of int32 numbers, read when the kernel runs.
   * Throws KV_INVALID_OPTION when the table is too short, unless it is an address.
   */
  rotate(
    rows: FloatBuffer, count: number, shape: RotationShape, positions: Int32Array | bigint, table: FloatBuffer,
  ): void {
    const owner = 'DenseKernels.rotate';
    const { heads, dim, areNeighbours } = readRotationShape(owner, shape, this.#isOnDevice, this.#shape);
    this.#checkOpen();
    checkInteger(owner, 'count', count);
    this.#checkFloats(owner, 'rows', rows, count, heads * dim);
    this.#checkFloats(owner, 'table', table, 1, dim);
    const most = typeof table === 'bigint' ? 2 ** 31 - 1 : Math.floor(lengthOf(table) / dim) - 1;
    const checked = this.#checkNumbers(owner, 'positions', positions, count, most);
    this.#native.rotate(rows, count, heads, dim, checked, table, areNeighbours);
  }

  /**
   * `output = activation(gate) · up`, the first `count` elements; `output` may be either. SwiGLU by default, where the
   * activation is gate · sigmoid(gate); with `gelu-tanh` GELU by its tanh formula. Throws KV_INVALID_OPTION.
   */
  gate(
    gate: FloatBuffer, up: FloatBuffer, count: number, output: FloatBuffer, activation: Activation = 'silu',
  ): void {
    const owner = 'DenseKernels.gate';
    const number = readActivation(owner, activation);
    this.#checkOpen();
    checkInteger(owner, 'count', count);
    this.#checkFloats(owner, 'gate', gate, count, 1);
    this.#checkFloats(owner, 'up', up, count, 1);
    this.#checkFloats(owner, 'output', output, count, 1);
    this.#native.gate(gate, up, count, output, number);
  }

  /**
   * Soft cap, in place: `values = cap · tanh(values / cap)`, the first `count` elements. A NaN stays one. Throws
   * KV_INVALID_OPTION.
   */
  cap(values: FloatBuffer, count: number, cap: number): void {
    const owner = 'DenseKernels.cap';
    readCap(owner, cap);
    this.#checkOpen();
    checkInteger(owner, 'count', count);
    this.#checkFloats(owner, 'values', values, count, 1);
    this.#native.cap(values, count, cap);
  }

  /**
   * `output[row] = table[tokens[row]] · factor`, as floats: the embedding, or a selection of rows. Tokens are read
   * during the call; on a GPU they may be an address, as `rotate`'s positions. Throws KV_INVALID_OPTION when a token is
   * not in the table.
   */
  gather(table: Weight, tokens: Int32Array | bigint, rows: number, output: FloatBuffer, factor = 1): void {
    const owner = 'DenseKernels.gather';
    readFactor(owner, factor);
    const { data, dtype, outputs, inputs } = readWeight(owner, 'table', table, this.#table);
    this.#checkOpen();
    checkInteger(owner, 'rows', rows);
    this.#checkMatrix(owner, 'table.data', data, dtype, outputs, inputs);
    this.#checkFloats(owner, 'output', output, rows, inputs);
    const checked = this.#checkNumbers(owner, 'tokens', tokens, rows, outputs - 1);
    this.#native.gather(data, dtype, inputs, checked, rows, output, factor);
  }

  /** Frees its memory on the device; queued work must be over, and on host is waited for. Idempotent. */
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
    this.#checkBuffer(owner, option, buffer, 'Float32Array', rows, width);
  }

  #checkMatrix(owner: string, option: string, data: Weight['data'], dtype: number, rows: number, width: number): void {
    if (dtype !== int8) {
      return this.#checkBuffer(owner, option, data, dtype === float32 ? 'Float32Array' : 'Uint16Array', rows, width);
    }
    if (this.#isOnDevice) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option: option.replace('data', 'dtype'),
        expected: "'float32', 'float16' or 'bfloat16' on a device", received: 'int8',
      });
    }
    this.#checkBuffer(owner, option, data, 'Uint8Array', rows, width / int8Block.elements * int8Block.bytes);
  }

  #checkBuffer(
    owner: string, option: string, buffer: Weight['data'], kind: 'Float32Array' | 'Uint16Array' | 'Uint8Array',
    rows: number, width: number,
  ): void {
    if (typeof buffer === 'bigint') {
      if (isAddress(buffer) && buffer > 0n) return;
    } else if (!this.#isOnDevice && typedArrayKind(buffer) === kind && lengthOf(buffer) >= rows * width) {
      if (this.#work === undefined) return;
      checkShared(owner, option, buffer);
      this.#work.keep(buffer);
      return;
    }
    const isOnDevice = this.#isOnDevice;
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner, option,
      expected: isOnDevice ? 'the address of device memory, a bigint'
        : `a ${kind} of at least ${rows} × ${width} elements`,
      received: !isOnDevice && typedArrayKind(buffer) === kind ? `one of ${lengthOf(buffer as Float32Array)}` : buffer,
    });
  }

  /**
   * Checks the first `count` numbers, each at most `most`, in a copy, since another thread may write to the array. On a
   * device returns an address as it is.
   */
  #checkNumbers(
    owner: string, option: string, numbers: Int32Array | bigint, count: number, most: number,
  ): Int32Array | bigint {
    const isOnDevice = this.#isOnDevice;
    if (isOnDevice && isAddress(numbers) && numbers > 0n) return numbers;
    if (!isInt32Array(numbers)) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner, option, received: numbers,
        expected: isOnDevice ? 'an Int32Array, or the address of device memory' : 'an Int32Array',
      });
    }
    if (lengthOf(numbers) < count) checkInteger(owner, `${option}.length`, lengthOf(numbers), count);
    if (this.#numbers.length < count) this.#numbers = new Int32Array(2 * count);
    const copy = this.#numbers;
    for (let index = 0; index < count; index += 1) {
      const number = numbers[index]!;
      if (number < 0 || number > most) checkInteger(owner, `${option}[${index}]`, number, 0, most);
      copy[index] = number;
    }
    return copy;
  }

  #checkOpen(): void {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation: 'compute', owner: 'DenseKernels' });
    this.#work?.keep(this);
  }
}
