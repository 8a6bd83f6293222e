// LlamaPlace: a model on one machine: its weights, and the arithmetic that reads them. On host the weights are the model's own, and
// each engine whose passes are awaited has a stream with arithmetic of its own; on a device the weights are a copy, in one stretch
// of the device's memory, and all engines over that driver share it and a stream.

import { DenseKernels, DeviceMemory, type DenseKernelsOptions, type Driver, type Weight } from '../index.js';

import { inHalves } from './head-pairs.js';
import { mapWeights, type LlamaWeights } from './weights.js';

export interface LlamaPlace {
  readonly weights: LlamaWeights;
  readonly dense: DenseKernels;
  /** What everything is queued on; on host 0n where each call computes before it returns. */
  readonly stream: bigint;
  /** Keeps the weights until what is queued so far is done, whatever else is forgotten. */
  keep(): void;
  /** Drops what is queued and has not begun; on a device it is done all the same. */
  drop(): void;
  /** Behind a pass, before its answer is read. Throws KV_MODEL_INVALID when a mapped file has changed. */
  check(): void;
}

/** On host, with a stream. */
export class HostPlace implements LlamaPlace {
  readonly weights: LlamaWeights;
  readonly dense: DenseKernels;
  readonly stream: bigint;
  readonly #driver: Driver;

  constructor(weights: LlamaWeights, driver: Driver, options: DenseKernelsOptions) {
    this.weights = weights;
    this.#driver = driver;
    this.stream = driver.acquireStream();
    try {
      this.dense = new DenseKernels({ ...options, driver, stream: this.stream });
    } catch (error) {
      driver.releaseStream(this.stream);
      throw error;
    }
  }

  keep(): void {
    this.#driver.workOn(this.stream, 'LlamaEngine')?.keep(this.weights);
  }

  drop(): void {
    this.#driver.workOn(this.stream, 'LlamaEngine')?.drop();
  }

  check(): void {
    for (const file of this.weights.files) file.check();
  }

  close(): void {
    this.dense.close();
    this.#driver.releaseStream(this.stream);
  }
}

/** Mapped weights are copied in pieces of so many bytes. */
const pieceBytes = 2 ** 24;
/** Arrays start on lines of memory. */
const alignmentBytes = 256;

/** Where bytes are in the device's memory. */
interface Stretch {
  readonly at: number;
  readonly bytes: number;
}

/** What is put in halves: rows of queries' and keys' weights, and elements of their biases. */
function rowsOfHeads({ layers, pairs }: LlamaWeights): Map<Weight['data'], number> {
  const rows = new Map<Weight['data'], number>();
  if (pairs === 'halves') return rows;
  for (const { weight, bias } of layers.flatMap(({ query, key }) => [query, key])) {
    rows.set(weight.data, weight.outputs);
    if (bias !== undefined) rows.set(bias, weight.outputs);
  }
  return rows;
}

export class DevicePlace implements LlamaPlace {
  readonly weights: LlamaWeights;
  readonly dense: DenseKernels;
  readonly stream: bigint;
  readonly #driver: Driver;
  readonly #memory: DeviceMemory;

  /** Copies the weights. Throws what the driver throws, for example KV_OUT_OF_DEVICE_MEMORY, and then keeps nothing. */
  constructor(weights: LlamaWeights, headDim: number, driver: Driver, options: DenseKernelsOptions) {
    const places = new Map<Weight['data'], Stretch>(); // a tied head is the embedding's data
    let bytes = 0;
    mapWeights(weights, (data, length) => {
      if (!places.has(data)) {
        places.set(data, { at: bytes, bytes: length });
        bytes += Math.ceil(length / alignmentBytes) * alignmentBytes;
      }
      return data;
    });
    this.#memory = new DeviceMemory({ driver, bytes });
    this.#driver = driver;
    let stream: bigint | undefined;
    try {
      const rows = rowsOfHeads(weights);
      for (const [data, place] of places) this.#write(data, place, weights, rows.get(data), headDim);
      for (const file of weights.files) file.check();
      this.stream = stream = driver.acquireStream();
      this.dense = new DenseKernels({ ...options, driver, stream });
    } catch (error) {
      if (stream !== undefined) driver.releaseStream(stream);
      this.#memory.close();
      throw error;
    }
    const { address } = this.#memory;
    this.weights = { ...mapWeights(weights, (data) => address + BigInt(places.get(data)!.at)), pairs: 'halves' };
  }

  /** The driver knows what is queued. */
  keep(): void {}

  drop(): void {}

  /** It has a copy. */
  check(): void {}

  /** @param rows Of heads, which are put in halves; undefined: it is written as it is. */
  #write(data: Weight['data'], { at, bytes }: Stretch, { files }: LlamaWeights, rows: number | undefined, headDim: number): void {
    if (rows !== undefined) {
      const stored = typeof data === 'bigint' ? new Uint8Array(bytes) : new Uint8Array(data.buffer, data.byteOffset, bytes);
      if (typeof data === 'bigint') files.find((file) => file.copy(stored, data));
      return this.#memory.write(new Uint8Array(inHalves(stored, rows, headDim)), at);
    }
    if (typeof data !== 'bigint') return this.#memory.write(data, at);
    for (let done = 0; done < bytes; done += pieceBytes) {
      const piece = new Uint8Array(Math.min(pieceBytes, bytes - done));
      files.find((file) => file.copy(piece, data + BigInt(done)));
      this.#memory.write(piece, at + done);
    }
  }

  /** When no pass is under way. */
  close(): void {
    this.dense.close();
    this.#driver.releaseStream(this.stream);
    this.#memory.close();
  }
}
