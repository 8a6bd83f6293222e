// PassBuffers: the activations of a pass, by name: Float32Arrays on host, addresses of memory of their own on a device. Made for
// the largest pass so far and reused. Growing loses a buffer's content, so it may grow only where a pass begins to use it.

import { DeviceMemory, type DenseKernels, type Driver, type FloatBuffer } from '../index.js';
import { kernelsOf } from '../kernels/load-kernels.js';

import type { LlamaConfig } from './config.js';
import { sharedFloats } from '../base/typed-arrays.js';

/** Where a pass keeps what it computes; each is [row, …]. */
export interface Activations {
  readonly hidden: FloatBuffer;
  readonly normalized: FloatBuffer;
  readonly queries: FloatBuffer;
  readonly keys: FloatBuffer;
  readonly values: FloatBuffer;
  readonly attended: FloatBuffer;
  readonly gate: FloatBuffer;
  readonly up: FloatBuffer;
  /** Of the rows whose logits are computed. */
  readonly last: FloatBuffer;
  readonly logits: FloatBuffer;
}

export class PassBuffers {
  readonly #driver: Driver;
  /** Kernels of the CPU take arrays. */
  readonly #isOnCpu: boolean;
  readonly #stream: bigint;
  readonly #arrays = new Map<string, Float32Array>();
  readonly #memories = new Map<string, DeviceMemory>();
  /** By name, the table that its memory holds. */
  readonly #written = new Map<string, Float32Array>();

  /** `stream`: what the passes are queued on. */
  constructor(driver: Driver, stream: bigint) {
    this.#driver = driver;
    this.#isOnCpu = kernelsOf(driver) === 'cpu';
    this.#stream = stream;
  }

  /** Room for so many rows, and the logits of so many. */
  activations({ hidden, queryHeads, kvHeads, headDim, intermediate, vocabularyTokens }: LlamaConfig, rows: number, last: number): Activations {
    return {
      hidden: this.#floats('hidden', rows * hidden),
      normalized: this.#floats('normalized', rows * hidden),
      queries: this.#floats('queries', rows * queryHeads * headDim),
      keys: this.#floats('keys', rows * kvHeads * headDim),
      values: this.#floats('values', rows * kvHeads * headDim),
      attended: this.#floats('attended', rows * queryHeads * headDim),
      gate: this.#floats('gate', rows * intermediate),
      up: this.#floats('up', rows * intermediate),
      last: this.#floats('last', last * hidden),
      logits: this.#floats('logits', last * vocabularyTokens),
    };
  }

  /** Puts a table where the pass can read it. It must not change, but another table may replace it. */
  table(name: string, values: Float32Array): FloatBuffer {
    if (this.#isOnCpu) return values;
    const memory = this.#memory(name, values.length);
    if (this.#written.get(name) !== values) memory.write(values, 0, this.#stream);
    this.#written.set(name, values);
    return memory.address;
  }

  /** The first logits, once all that was queued is done; the same array every time, and perhaps longer. */
  readLogits(elements: number): Float32Array {
    return this.#read('logits', elements);
  }

  /** The queries of a layer likewise. */
  readQueries(elements: number): Float32Array {
    return this.#read('queries', elements).subarray(0, elements);
  }

  /** Floats where the pass can read them, until the same name is used again: nothing that reads them may be queued by then. */
  floatsOf(name: string, values: Float32Array, elements: number): FloatBuffer {
    if (this.#isOnCpu) return values;
    const memory = this.#memory(name, elements);
    memory.write(values, 0, this.#stream);
    return memory.address;
  }

  /** The first hidden states likewise, and no more of them. */
  readHidden(elements: number): Float32Array {
    return this.#read('hidden', elements).subarray(0, elements);
  }

  /** Replaces rows of hidden states, from a row on; behind what is queued, and on host queued itself. */
  writeHidden(values: Float32Array, row: number, width: number, dense: DenseKernels): void {
    const memory = this.#memories.get('hidden');
    if (memory !== undefined) return memory.write(values, 4 * row * width, this.#stream);
    const count = values.length / width;
    const data = sharedFloats(values.length); // the caller's may change before the pass is over
    data.set(values);
    const indices = Int32Array.from({ length: count }, (_, index) => index);
    dense.gather({ data, dtype: 'float32', outputs: count, inputs: width }, indices, count, this.#array('hidden', 0).subarray(row * width));
  }

  /** Waits for all queued work. */
  finish(): void {
    for (const memory of this.#memories.values()) return memory.read(new Uint8Array(0), 0, this.#stream);
  }

  close(): void {
    for (const memory of this.#memories.values()) memory.close();
    this.#memories.clear();
    this.#written.clear();
  }

  #floats(name: string, elements: number): FloatBuffer {
    return this.#isOnCpu ? this.#array(name, elements) : this.#memory(name, elements).address;
  }

  #array(name: string, elements: number): Float32Array {
    const held = this.#arrays.get(name);
    if (held !== undefined && held.length >= elements) return held;
    const array = sharedFloats(elements);
    this.#arrays.set(name, array);
    return array;
  }

  #read(name: string, elements: number): Float32Array {
    const array = this.#array(name, elements);
    this.#memories.get(name)?.read(array.subarray(0, elements), 0, this.#stream);
    return array;
  }

  #memory(name: string, elements: number): DeviceMemory {
    const held = this.#memories.get(name);
    if (held !== undefined && held.bytes >= 4 * elements) return held;
    held?.close();
    this.#memories.delete(name);
    this.#written.delete(name);
    const memory = new DeviceMemory({ driver: this.#driver, bytes: 4 * Math.max(1, elements) });
    this.#memories.set(name, memory);
    return memory;
  }
}
