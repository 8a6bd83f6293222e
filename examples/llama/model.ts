// LlamaModel: a model's config, weights and arithmetic, loaded once; engines over different caches may share it, on the CPU and
// on devices, where its weights are copied once for all engines. It has the model shape for a cache.

import { DenseKernels, type DenseKernelsOptions, type Driver, type Dtype, type ModelShape } from 'virtual-kv';

import { readLlamaConfig, type LlamaConfig } from './config.js';
import { DevicePlace, type LlamaPlace } from './place.js';
import { RotaryTable } from './rotary-table.js';
import { Safetensors } from './safetensors.js';
import { readLlamaWeights, type LlamaWeights } from './weights.js';

export class LlamaModel implements LlamaPlace {
  readonly config: LlamaConfig;
  readonly weights: LlamaWeights;
  readonly dense: DenseKernels;
  readonly rotary: RotaryTable;
  readonly stream = 0n;
  readonly #options: DenseKernelsOptions;
  /** On devices, with the engines that use each. */
  readonly #places = new Map<Driver, { readonly place: DevicePlace; users: number }>();

  /** Loads a Hugging Face folder: config.json and safetensors. `options` are for the arithmetic, wherever. Throws ModelError. */
  constructor(folder: string, options: Omit<DenseKernelsOptions, 'driver'> = {}) {
    this.#options = options;
    this.dense = new DenseKernels(options);
    this.config = readLlamaConfig(folder);
    this.weights = readLlamaWeights(new Safetensors(folder), this.config, this.dense);
    this.rotary = new RotaryTable(this.config);
  }

  /** Returns the model on the driver's machine; each caller must release it. Throws what the driver throws. */
  acquirePlace(driver: Driver): LlamaPlace {
    if (driver.kind === 'host') return this;
    const held = this.#places.get(driver) ?? { place: new DevicePlace(this.weights, driver, this.#options), users: 0 };
    this.#places.set(driver, held);
    held.users += 1;
    return held.place;
  }

  /** The last release frees the copy of the weights. */
  releasePlace(driver: Driver): void {
    const held = this.#places.get(driver);
    if (held === undefined || (held.users -= 1) > 0) return;
    this.#places.delete(driver);
    held.place.close();
  }

  /** The `model` of a KvCache for it; K and V may be kept in another type than the weights'. */
  shape(dtype: Dtype = this.weights.embedding.dtype): ModelShape {
    const { layers, kvHeads, headDim } = this.config;
    return { layers, kvHeads, headDim, dtype };
  }
}
