// LlamaModel: a model's config, weights and arithmetic, loaded once; engines over different caches may share it, on the CPU and
// on devices, where its weights are copied once for all engines. It has the model shape for a cache.

import { DenseKernels, type DenseKernelsOptions, type Driver, type Dtype, type ModelShape } from '../index.js';
import { kernelsOf } from '../kernels/load-kernels.js';

import { dtypes } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import { abortSignal, boolean, oneOf, optional, readOptions, string, withDefault } from '../base/options.js';
import { arithmeticFields } from '../kernels/dense/dense-options.js';
import { layerSetsOf } from '../layout/layer-set-shape.js';
import type { LlamaConfig } from './config.js';
import { loadModel, LoadedModel, loadOnThread, type WeightKind } from './load-model.js';
import { DevicePlace, HostPlace, type LlamaPlace } from './place.js';
import { RotaryTables } from './rotary-table.js';
import type { CopiedFile } from './weight-file.js';
import type { LlamaWeights } from './weights.js';
import { digestOf } from './weights-digest.js';

/** Options of `LlamaModel`: of its arithmetic, wherever, and of its weights. */
export interface LlamaModelOptions extends Omit<DenseKernelsOptions, 'driver'> {
  /**
   * `mapped`: weights stay in their files, in memory that all processes share; a file that is written to afterwards makes passes fail with
   * KV_MODEL_INVALID. One of which a later change might go unnoticed is copied, which `copiedFiles` tells. `copied`: they are read into
   * this process's own memory. `int8`: matrices become integers while loading, 32 with a common scale, for the CPU; answers change a little
   * (docs/kernels.md says how much). Default `mapped`.
   */
  readonly weights?: WeightKind | undefined;
}

/** Options of `LlamaModel.load`. */
export interface LlamaLoadOptions extends LlamaModelOptions {
  /** Gives up with KV_ABORTED, once nothing of the model is left. */
  readonly signal?: AbortSignal | undefined;
}

const spec = { weights: withDefault(oneOf(['mapped', 'copied', 'int8']), 'mapped'), ...arithmeticFields };
const loadSpec = { ...spec, signal: optional(abortSignal) };
const dtypeField = oneOf(dtypes);

/** A model's config and weights, loaded once; engines over different caches may share it. */
export class LlamaModel implements LlamaPlace {
  /** What its `config.json`, or its GGUF file's header, says. */
  readonly config: LlamaConfig;
  /** Its weights on the CPU, as they are in the file; or matrices as int8. */
  readonly weights: LlamaWeights;
  /**
   * Files that were to be `mapped` and are copied into this process's own memory, each with the reason
   * (docs/kernels.md#weights-in-files).
   */
  readonly copiedFiles: readonly CopiedFile[];
  /** The arithmetic on the CPU. */
  readonly dense: DenseKernels;
  /** Rotary positions. */
  readonly rotary: RotaryTables;
  /** 0: the model's own arithmetic computes before a call returns. */
  readonly stream = 0n;
  readonly #options: DenseKernelsOptions;
  #identity: string | undefined;
  /** On devices, with the engines that use each. */
  readonly #places = new Map<Driver, { readonly place: DevicePlace; users: number }>();

  /**
   * Loads a Hugging Face folder, config.json and safetensors; or a `.gguf` file with tensors of F32, F16, BF16 and Q8_0, which are computed with as
   * they are. The JavaScript thread waits; `load` leaves it free. Throws KV_MODEL_INVALID, KV_UNKNOWN_OPTION and KV_INVALID_OPTION.
   */
  constructor(model: string, options?: LlamaModelOptions);
  /** What was loaded already; `options` without `weights`. @internal */
  constructor(model: LoadedModel, options: DenseKernelsOptions);
  constructor(model: string | LoadedModel, given: LlamaModelOptions = {}) {
    const { weights: kind, ...options } = readOptions('LlamaModel', given, spec);
    this.#options = options;
    this.dense = new DenseKernels(options);
    const loaded = LoadedModel.isInstance(model) ? model : loadModel(model, kind, this.dense);
    loaded.close();
    this.config = loaded.config;
    this.weights = loaded.weights;
    this.copiedFiles = loaded.copiedFiles;
    this.rotary = new RotaryTables(this.config);
  }

  /**
   * The same model, read, checked and converted on a worker thread, so that this one goes on: for a program that serves meanwhile. Rejects as the
   * constructor throws, with KV_ABORTED, and with KV_INTERNAL when the thread ran out of memory or died otherwise; nothing is left then.
   */
  static async load(model: string, given: LlamaLoadOptions = {}): Promise<LlamaModel> {
    string(model, { owner: 'LlamaModel', option: 'model' });
    const { signal, weights: kind, ...options } = readOptions('LlamaModel', given, loadSpec);
    const { threads, instructions } = options;
    return new LlamaModel(await loadOnThread({ model, kind, options: { threads, instructions } }, signal), options);
  }

  /** Whether it is a model that was loaded, and no object that only has the prototype of one. @internal */
  static isInstance(value: unknown): value is LlamaModel {
    return typeof value === 'object' && value !== null && #places in value;
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
    if (kernelsOf(driver) === 'cpu') return passes === 'blocking' ? this : new HostPlace(this.weights, driver, this.#options);
    if (this.weights.embedding.dtype === 'int8') {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner: 'LlamaModel', option: 'weights', expected: `'mapped' or 'copied' on ${driver.info.deviceName}`, received: 'int8',
        hint: "Int8 weights are multiplied on the CPU only. Use `driver: 'host'`.",
      });
    }
    const held = this.#places.get(driver) ?? { place: new DevicePlace(this.weights, this.config.headDim, driver, this.#options), users: 0 };
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

  /**
   * The `model` of a KvCache for it, with the name of its weights for tiers: from another file, K and V of this one are never found. Throws
   * KV_MODEL_INVALID when a mapped file has changed. K and V may be kept in another type than the weights', where a narrow one moves answers (bfloat16 logits by up to 0.08 of 11).
   * With `slides` layers with windows or chunks are layer sets, which let go of what no token sees any more: the cache then needs
   * `prefixCache: 'off'`. Default: every layer keeps all tokens.
   */
  shape(dtype: Dtype = this.weights.dtype, { slides = false }: { readonly slides?: boolean | undefined } = {}): ModelShape {
    dtypeField(dtype, { owner: 'LlamaModel.shape', option: 'dtype' });
    boolean(slides, { owner: 'LlamaModel.shape', option: 'slides' });
    const { layers, kvHeads, headDim } = this.config;
    this.#identity ??= digestOf(this.config, this.weights);
    const shape = { layers, kvHeads, headDim, dtype, identity: this.#identity };
    return slides && this.config.layerAttention !== undefined ? { ...shape, layerSets: layerSetsOf(this.config.layerAttention) } : shape;
  }
}
