// LlamaModel: a model's config, weights and arithmetic, loaded once; engines over different caches may share it, on the CPU and
// on devices, where its weights are copied once for all engines. It has the model shape for a cache.

import { DenseKernels, type DenseKernelsOptions, type Driver, type Dtype, type ModelShape } from '../index.js';

import { createError } from '../base/errors.js';
import { oneOf } from '../base/options.js';
import type { LlamaConfig } from './config.js';
import { quantized } from './int8-weights.js';
import { openModelFiles } from './model-files.js';
import { DevicePlace, HostPlace, type LlamaPlace } from './place.js';
import { RotaryTable } from './rotary-table.js';
import type { WeightPlacement } from './weight-file.js';
import { readLlamaWeights, type LlamaWeights } from './weights.js';

/** Options of `LlamaModel`: of its arithmetic, wherever, and of its weights. */
export interface LlamaModelOptions extends Omit<DenseKernelsOptions, 'driver'> {
  /**
   * `mapped`: weights stay in their files, in memory that all processes share; a file that is written to afterwards makes passes fail with
   * KV_MODEL_INVALID, and never a wrong answer. One that was written within the last second or two is copied. `copied`: they are read into
   * this process's own memory. `int8`: matrices become integers while loading, 32 with a common scale, for the CPU; answers change a little
   * (docs/kernels.md says how much). Default `mapped`.
   */
  readonly weights?: WeightPlacement | 'int8' | undefined;
}

const placementField = oneOf(['mapped', 'copied', 'int8']);

/** A model's config and weights, loaded once; engines over different caches may share it. */
export class LlamaModel implements LlamaPlace {
  /** What its `config.json`, or its GGUF file's header, says. */
  readonly config: LlamaConfig;
  /** Its weights on the CPU, as they are in the file; or matrices as int8. */
  readonly weights: LlamaWeights;
  /** The arithmetic on the CPU. */
  readonly dense: DenseKernels;
  /** Rotary positions. */
  readonly rotary: RotaryTable;
  /** 0: the model's own arithmetic computes before a call returns. */
  readonly stream = 0n;
  readonly #options: DenseKernelsOptions;
  /** On devices, with the engines that use each. */
  readonly #places = new Map<Driver, { readonly place: DevicePlace; users: number }>();

  /**
   * Loads a Hugging Face folder, config.json and safetensors; or a `.gguf` file with tensors of F32, F16, BF16 and Q8_0, which are computed with as
   * they are. Throws KV_MODEL_INVALID, and KV_INVALID_OPTION.
   */
  constructor(model: string, { weights = 'mapped', ...options }: LlamaModelOptions = {}) {
    placementField(weights, { owner: 'LlamaModel', option: 'weights' });
    this.#options = options;
    this.dense = new DenseKernels(options);
    const isInt8 = weights === 'int8';
    const { config, tensors } = openModelFiles(model, isInt8 ? 'mapped' : weights);
    this.config = config;
    try {
      this.weights = readLlamaWeights(tensors, this.config, this.dense, (name, weight) => isInt8 && weight.dtype !== 'int8' ? quantized(name, weight, this.dense) : weight);
      for (const file of tensors.files) file.check();
    } finally {
      tensors.close();
    }
    this.rotary = new RotaryTable(this.config);
  }

  /** What it queues is done. */
  keep(): void {}

  /** What it queues is done. */
  drop(): void {}

  /** Behind what its weights computed. Throws KV_MODEL_INVALID when a mapped file has changed. */
  check(): void {
    for (const file of this.weights.files) file.check();
  }

  /**
   * Returns the model on the driver's machine; each caller must release it. On host with a stream of the caller's own where its passes
   * are awaited. Throws what the driver throws.
   */
  acquirePlace(driver: Driver, passes: 'awaited' | 'blocking'): LlamaPlace {
    if (driver.kind === 'host') return passes === 'blocking' ? this : new HostPlace(this.weights, driver, this.#options);
    if (this.weights.embedding.dtype === 'int8') {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner: 'LlamaModel', option: 'weights', expected: `'mapped' or 'copied' on ${driver.info.deviceName}`, received: 'int8',
        hint: "Int8 weights are multiplied on the CPU only. Use `driver: 'host'`.",
      });
    }
    const held = this.#places.get(driver) ?? { place: new DevicePlace(this.weights, driver, this.#options), users: 0 };
    this.#places.set(driver, held);
    held.users += 1;
    return held.place;
  }

  /** On a device the last release frees the copy of the weights. */
  releasePlace(driver: Driver, place: LlamaPlace): void {
    if (place instanceof HostPlace) return place.close();
    const held = this.#places.get(driver);
    if (held === undefined || (held.users -= 1) > 0) return;
    this.#places.delete(driver);
    held.place.close();
  }

  /** The `model` of a KvCache for it; K and V may be kept in another type than the weights'. */
  shape(dtype: Dtype = this.weights.dtype): ModelShape {
    const { layers, kvHeads, headDim } = this.config;
    return { layers, kvHeads, headDim, dtype };
  }
}
