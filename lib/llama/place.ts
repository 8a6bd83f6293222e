// LlamaPlace: a model on one machine: its weights, and the arithmetic that reads them. On host the weights are the model's own, and
// each engine whose passes are awaited has a stream with arithmetic of its own; on a device the weights are a copy, in one stretch
// of the device's memory, and all engines over that driver share it and a stream.

import { DenseKernels, DeviceMemory, type DenseKernelsOptions, type Driver } from '../index.js';

import { mapWeights, type LlamaWeights } from './weights.js';

export interface LlamaPlace {
  readonly weights: LlamaWeights;
  readonly dense: DenseKernels;
  /** What everything is queued on; on host 0n where each call computes before it returns. */
  readonly stream: bigint;
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

  close(): void {
    this.dense.close();
    this.#driver.releaseStream(this.stream);
  }
}

/** Arrays start on lines of memory. */
const alignmentBytes = 256;

export class DevicePlace implements LlamaPlace {
  readonly weights: LlamaWeights;
  readonly dense: DenseKernels;
  readonly stream: bigint;
  readonly #driver: Driver;
  readonly #memory: DeviceMemory;

  /** Copies the weights. Throws what the driver throws, for example KV_OUT_OF_DEVICE_MEMORY, and then keeps nothing. */
  constructor(weights: LlamaWeights, driver: Driver, options: DenseKernelsOptions) {
    const places = new Map<ArrayBufferView, number>(); // a tied head is the embedding's array
    let bytes = 0;
    mapWeights(weights, (array) => {
      if (!places.has(array)) {
        places.set(array, bytes);
        bytes += Math.ceil(array.byteLength / alignmentBytes) * alignmentBytes;
      }
      return array;
    });
    this.#memory = new DeviceMemory({ driver, bytes });
    this.#driver = driver;
    let stream: bigint | undefined;
    try {
      for (const [array, at] of places) this.#memory.write(array, at);
      this.stream = stream = driver.acquireStream();
      this.dense = new DenseKernels({ ...options, driver, stream });
    } catch (error) {
      if (stream !== undefined) driver.releaseStream(stream);
      this.#memory.close();
      throw error;
    }
    const { address } = this.#memory;
    this.weights = mapWeights(weights, (array) => address + BigInt(places.get(array)!));
  }

  /** When no pass is under way. */
  close(): void {
    this.dense.close();
    this.#driver.releaseStream(this.stream);
    this.#memory.close();
  }
}
