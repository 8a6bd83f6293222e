// OnnxDecoder: a decoder's ONNX file, opened in the user's own onnxruntime with the cache's attention in it. It has the weights
// and the threads; engines over caches of its shape compute with it, one pass after the other.

import { availableParallelism } from 'node:os';
import * as path from 'node:path';
import { readFile } from 'node:fs/promises';

import type { Dtype } from '../base/dtypes.js';
import { createError, isKvError } from '../base/errors.js';
import { boolean, instanceOf, integer, oneOf, optional, readOptions, string, withDefault } from '../base/options.js';
import { Driver, loadKernels, type KvCache, type ModelShape } from '../index.js';
import { attendable } from '../kernels/kernel-layers.js';
import { kernelsOf } from '../kernels/load-kernels.js';
import { layerSetsOf } from '../layout/layer-set-shape.js';
import { maskWindows } from './causal-mask.js';
import { planDecoder, writeDecoder, type DecoderGraph, type DecoderPlan } from './decoder-graph.js';
import { OnnxEngine } from './engine.js';
import { graphDigest } from './graph-digest.js';
import { findLibrary } from './library.js';
import { readModelFile } from './model-file.js';
import { OnnxSession } from './session.js';
import { measureUnfused } from './unfused-attention.js';

/** Options of `OnnxDecoder.open`. */
export interface OnnxDecoderOptions {
  /** Threads that compute a pass, 1 … 1,024. Default: one per processor. */
  readonly threads?: number | undefined;
  /** Path of a libonnxruntime.so, 1.20 or later. Default: that of the program's own onnxruntime-node. */
  readonly library?: string | undefined;
  /**
   * Of the device that computes, by onnxruntime's CUDA provider: `Driver.open('cuda')`. The caches of the decoder are on it. It cannot be closed
   * before the decoder. Default: the CPU computes.
   */
  readonly driver?: Driver | undefined;
}

/** What the K and V of a decoder's cache are of. */
export interface OnnxModelOptions {
  /** Type of K and V in the cache: `float32`, `float16` or `bfloat16`. Default: the graph's. */
  readonly dtype?: Dtype | undefined;
  /**
   * Whether layers with windows let go of what no token sees any more (docs/layer-sets.md); the cache then needs `prefixCache: 'off'`.
   * Default false: every layer keeps all tokens.
   */
  readonly slides?: boolean | undefined;
}

/** Where and how a graph is computed. @internal */
export interface OnnxPlace {
  readonly library: string;
  /** Of files beside the graph; '': there are none. */
  readonly folder: string;
  /** The graph's own file in `folder`; '': it was given by its bytes. */
  readonly file: string;
  /** 0: one per processor. */
  readonly threads: number;
  /** Of a device; undefined: the CPU. */
  readonly driver?: Driver | undefined;
}

const spec = { threads: withDefault(integer({ min: 1, max: 1024 }), 0), library: optional(string), driver: optional(instanceOf(Driver)) };

/** A decoder in ONNX that computes over caches. Close it after its schedulers and before the process ends. */
export class OnnxDecoder {
  /** Tokens of the vocabulary. */
  readonly vocabularyTokens: number;
  /** Tokens of a sequence that the graph has positions for; undefined where it does not say. */
  readonly maxTokens: number | undefined;
  readonly #graph: DecoderGraph;
  readonly #session: OnnxSession;
  /** Of graph and weights. */
  readonly #identity: string;
  /** Of the device that computes; undefined: the CPU. */
  readonly #driver: Driver | undefined;

  private constructor(graph: DecoderGraph, session: OnnxSession, identity: string, driver: Driver | undefined) {
    this.#driver = driver;
    this.vocabularyTokens = graph.vocabularyTokens;
    this.maxTokens = graph.maxTokens;
    this.#graph = graph;
    this.#session = session;
    this.#identity = identity;
  }

  /**
   * Reads a `.onnx` file, puts the cache's attention in the place of its own, and opens it on a thread. Weights stay in their files, which must
   * not change before `close`. Rejects with KV_MODEL_INVALID, which names the node that cannot be computed, before a weight is read;
   * KV_ONNX_UNAVAILABLE without an onnxruntime since 1.20, on a device without its CUDA provider; KV_ONNX_FAILED when that refuses the graph;
   * KV_UNKNOWN_OPTION, KV_INVALID_OPTION; on a device as `loadKernels`.
   */
  static async open(file: string, options: OnnxDecoderOptions = {}): Promise<OnnxDecoder> {
    string(file, { owner: 'OnnxDecoder.open', option: 'file' });
    const read = readOptions('OnnxDecoder.open', options, spec);
    const driver = deviceOf(read.driver);
    const plan = planDecoder(await readModelFile(file), file);
    const folder = path.dirname(path.resolve(file));
    return OnnxDecoder.openPlan(plan, { library: read.library ?? findLibrary(), folder, file: path.basename(file), threads: read.threads, driver });
  }

  /** Opens a graph that was read. Rejects as `open`. @internal */
  static async openPlan(plan: DecoderPlan, place: OnnxPlace): Promise<OnnxDecoder> {
    const { folder, file } = place;
    return OnnxDecoder.#openPlan(plan, place).catch(async (error: unknown) => {
      const isFailed = isKvError(error, 'KV_ONNX_FAILED') || isKvError((error as Error).cause, 'KV_ONNX_FAILED');
      if (file === '' || !isFailed) throw error;
      const whole = await readFile(path.join(folder, file)); // 1.20 looks for weights beside the program, not beside the graph
      return OnnxDecoder.#openPlan(planDecoder(whole, plan.source), { ...place, file: '' });
    });
  }

  static async #openPlan(read: DecoderPlan, { library, folder, threads, driver }: OnnxPlace): Promise<OnnxDecoder> {
    const plan = { ...read, layers: await measureUnfused(read, { library, folder }) };
    const windows = await maskWindows(plan, { library, folder });
    const isOnDevice = driver !== undefined;
    const graph = writeDecoder(plan, windows, { isOnDevice });
    const identity = graphDigest(plan.graph, folder);
    if (isOnDevice) await loadKernels(driver);
    const session = await OnnxSession.open({ library, folder, threads: threads || availableParallelism(), model: graph.bytes, driver });
    return new OnnxDecoder({ ...graph, bytes: new Uint8Array(0) }, session, identity, driver);
  }

  /** What computes: `onnxruntime 1.30.0, CPU`, or the name of the device. */
  get target(): string {
    return `onnxruntime ${this.#session.version}, ${this.#driver?.info.deviceName ?? 'CPU'}`;
  }

  /**
   * The shape for `new KvCache({ model: decoder.model() })`, with the name of graph and weights for tiers. Throws
   * KV_UNKNOWN_OPTION, KV_INVALID_OPTION.
   */
  model(options: OnnxModelOptions = {}): ModelShape {
    const { dtype, slides } = readOptions('OnnxDecoder.model', options, {
      dtype: withDefault(oneOf(attendable), this.#graph.dtype), slides: withDefault(boolean, false),
    });
    const { layers } = this.#graph;
    const [first] = layers;
    const areAlike = layers.every(({ kvHeads, dim, valueDim }) => kvHeads === first!.kvHeads && dim === first!.dim && valueDim === first!.valueDim);
    return {
      layers: layers.length, kvHeads: first!.kvHeads, headDim: first!.dim, valueHeadDim: first!.valueDim, dtype,
      identity: this.#identity,
      ...areAlike ? {} : { layerShapes: layers.map(({ kvHeads, dim, valueDim }) => ({ kvHeads, headDim: dim, valueHeadDim: valueDim })) },
      ...slides && layers.some(({ window }) => window > 0) ? {
        layerSets: layerSetsOf(layers.map(({ window }) => ({ kind: window > 0 ? 'window' : 'full', tokens: window }))),
      } : {},
    };
  }

  /**
   * An engine over a cache of `model()`, for any scheduler; several may share the decoder. Throws KV_INVALID_OPTION for a cache of another
   * shape, of more tokens than `maxTokens`, or whose memory is not where the decoder computes; KV_CLOSED.
   */
  engine(cache: KvCache): OnnxEngine {
    if (this.#session.isClosed) throw createError('KV_CLOSED', { operation: 'make an engine', owner: 'OnnxDecoder' });
    return new OnnxEngine({ graph: this.#graph, session: this.#session, driver: this.#driver, cache });
  }

  /** Ends what is computed, which rejects, and gives the weights back. Idempotent. */
  close(): void {
    this.#session.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** The driver where it is of a device. Throws KV_INVALID_OPTION for one that no onnxruntime computes on. */
function deviceOf(driver: Driver | undefined): Driver | undefined {
  if (driver === undefined || kernelsOf(driver) === 'cpu') return undefined;
  if (driver.kind === 'cuda') return driver;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'OnnxDecoder.open', option: 'driver', expected: "one of kind 'cuda' or 'host'", received: `one of kind '${driver.kind}'`,
  });
}
