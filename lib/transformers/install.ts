// install: has programs on transformers.js keep K and V in a cache of this package. It stands in for
// `InferenceSession.create` of the onnxruntime-node that transformers.js uses; a decoder that can be rewritten gets a
// session over a cache, and all else the session that it had.

import * as path from 'node:path';

import type { Dtype } from '../base/dtypes.js';
import { isKvError } from '../base/errors.js';
import { integer, oneOf, optional, readOptions, string, withDefault, type Field } from '../base/options.js';
import { KvCache, PagePool, type KvCacheOptions, type PrefixCacheOptions } from '../index.js';
import { attendable } from '../kernels/kernel-layers.js';
import { pageBytesWithin } from '../layout/layout.js';
import { modelError } from '../llama/model-error.js';
import { planDecoder, type DecoderPlan } from '../onnx/decoder-graph.js';
import { readGraph } from '../onnx/graph.js';
import { readModelFile } from '../onnx/model-file.js';
import { OnnxDecoder } from '../onnx/index.js';
import { checkOutputs, DecoderSession } from './decoder-session.js';
import type { ForwardLoop, ForwardTotals } from './forward-loop.js';
import { findRuntime, type CreateSession, type FoundRuntime } from './runtime.js';

/** Options of `install`. */
export interface InstallOptions {
  /** Bytes of memory for the K and V of all models together: at least one row of each. */
  readonly memoryBudgetBytes: number;
  /**
   * Texts of a model that can be held at once: rows of batches, of calls under way and of pasts that are kept. 1 …
   * 1,048,576. Default 32.
   */
  readonly slots?: number | undefined;
  /** Tokens of a text. 1 … 2³¹ − 1. Default: what the graph has positions for, at most 32,768. */
  readonly maxTokens?: number | undefined;
  /** Type of K and V in the cache: `float32`, `float16` or `bfloat16`. Default: the graph's. */
  readonly dtype?: Dtype | undefined;
  /**
   * Threads that compute a model, 0 … 1,024; `session_options.intraOpNumThreads` goes first. Default 0: one per
   * processor.
   */
  readonly threads?: number | undefined;
  /** Tokens of prompts that are computed in a pass beside those that decode, 1 … 2³¹ − 1. Default 512. */
  readonly prefillTokensPerStep?: number | undefined;
  /**
   * Milliseconds that a call waits for slots or pages while other calls have them; 0: it rejects at once. Default
   * 60,000.
   */
  readonly waitMs?: number | undefined;
  /** Bytes of a page, a power of two. Default: so that the budget has about 16,384, and 64 KiB … 2 MiB. */
  readonly pageBytes?: number | undefined;
  /** As of `KvCache`, for every model: policy, tiers. `off`: only the pasts that are given are known. Default: on. */
  readonly prefixCache?: PrefixCacheOptions | 'off' | undefined;
  /**
   * A file of the program, or its folder, from where `@huggingface/transformers` is found. Default: the program that
   * was started, the folder it was started in, this package's.
   */
  readonly from?: string | undefined;
}

const asIs: Field<KvCacheOptions['prefixCache']> = (value) => value as KvCacheOptions['prefixCache']; // checked by KvCache
const mostSlots = 2 ** 20;
const most = 2 ** 31 - 1;

const spec = {
  memoryBudgetBytes: integer({ min: 1 }),
  slots: withDefault(integer({ min: 1, max: mostSlots }), 32),
  maxTokens: optional(integer({ min: 1, max: most })),
  dtype: optional(oneOf(attendable)),
  threads: withDefault(integer({ max: 1024 }), 0),
  prefillTokensPerStep: withDefault(integer({ min: 1, max: most }), 512),
  waitMs: withDefault(integer({ max: most }), 60_000),
  pageBytes: optional(integer({ min: 1 })),
  prefixCache: asIs,
  from: optional(string),
};

/** What `install` put in the place of stock sessions. Made by `install`. */
export class TransformersMemory {
  readonly #options: ReturnType<typeof readInstallOptions>;
  readonly #found: FoundRuntime;
  readonly #stock: CreateSession;
  readonly #ours: CreateSession;
  readonly #pool: PagePool;
  readonly #sessions = new Set<DecoderSession>();
  /** Sessions that are not open yet. */
  readonly #opening = new Set<Promise<DecoderSession>>();
  readonly #loops = new Set<ForwardLoop>();
  readonly #warned = new Set<string>();
  #closing: Promise<void> | undefined;

  /** @internal Use `install`. */
  constructor(options: ReturnType<typeof readInstallOptions>, found: FoundRuntime) {
    const { memoryBudgetBytes, pageBytes = pageBytesWithin(memoryBudgetBytes) } = options;
    const { InferenceSession } = found.runtime;
    this.#options = options;
    this.#found = found;
    this.#pool = new PagePool({ memoryBudgetBytes, driver: 'host', pageBytes });
    this.#stock = InferenceSession.create;
    this.#ours = (model, ...rest) => this.#create(model, rest);
    InferenceSession.create = this.#ours;
  }

  /** The caches of the models that run on them, in the order in which they were loaded. */
  get caches(): readonly KvCache[] {
    return this.#liveSessions().map(({ cache }) => cache);
  }

  /** Sums over these models, since each was loaded. */
  get totals(): Readonly<ForwardTotals> {
    const sums: ForwardTotals = { calls: 0, passes: 0, computedTokens: 0, cachedTokens: 0, mostRows: 0 };
    for (const { totals } of this.#liveSessions()) {
      for (const name of ['calls', 'passes', 'computedTokens', 'cachedTokens'] as const) sums[name] += totals[name];
      sums.mostRows = Math.max(sums.mostRows, totals.mostRows);
    }
    return sums;
  }

  /**
   * Models that are loaded from now on run as before; those that run on caches end, as by `model.dispose()`: their
   * calls reject with KV_CLOSED or KV_ABORTED, and finished text is stored in tiers. Rejects with KV_TIER_STALLED.
   * Idempotent.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    const { InferenceSession } = this.#found.runtime;
    if (InferenceSession.create === this.#ours) InferenceSession.create = this.#stock;
    await Promise.allSettled(this.#opening);
    const ends = await Promise.allSettled([...this.#sessions].map((session) => session.release()));
    this.#pool.close();
    for (const end of ends) if (end.status === 'rejected') throw end.reason;
  }

  /** Those that transformers.js has not disposed of. */
  #liveSessions(): readonly DecoderSession[] {
    for (const session of this.#sessions) if (session.cache.isClosed) this.#sessions.delete(session);
    return [...this.#sessions];
  }

  async #create(model: unknown, rest: readonly unknown[]): Promise<unknown> {
    const { InferenceSession } = this.#found.runtime;
    const stock = (): Promise<unknown> => this.#stock.call(InferenceSession, model, ...rest);
    if (this.#closing !== undefined) return stock();
    try {
      const plan = await readPlan(model, rest[0] as SessionOptions | undefined);
      if (plan === undefined || this.#closing !== undefined) return await stock();
      const opening = this.#openSession(plan, rest[0] as SessionOptions | undefined);
      this.#opening.add(opening);
      return await opening.finally(() => this.#opening.delete(opening));
    } catch (error) {
      if (!isKvError(error, 'KV_MODEL_INVALID') && !isKvError(error, 'KV_ONNX_FAILED')) throw error;
      this.#warn(error.message);
      return stock();
    }
  }

  async #openSession({ plan, folder, file }: Plan, options: SessionOptions | undefined): Promise<DecoderSession> {
    const { slots, maxTokens, dtype, threads, prefillTokensPerStep, waitMs, prefixCache } = this.#options;
    const { runtime, library } = this.#found;
    checkOutputs(plan);
    const decoder = await OnnxDecoder.openPlan(plan, {
      library,
      folder,
      file,
      threads: options?.intraOpNumThreads ?? threads,
    });
    try {
      // transformers.js counts positions of some models from 1.
      const positions =
        (decoder.maxTokens ?? most) - (plan.graph.inputs.some(({ name }) => name === 'position_ids') ? 1 : 0);
      const cache = new KvCache({
        model: decoder.model(dtype === undefined ? {} : { dtype }),
        pool: this.#pool,
        slots,
        maxTokens: maxTokens ?? Math.min(positions, 32_768),
        prefixCache,
      });
      try {
        await cache.prefixes.tiers?.ready();
        const session = new DecoderSession({
          plan,
          decoder,
          cache,
          runtime,
          prefillTokensPerStep,
          waitMs,
          loops: this.#loops,
        });
        this.#sessions.add(session);
        return session;
      } catch (error) {
        cache.close();
        throw error;
      }
    } catch (error) {
      decoder.close();
      throw error;
    }
  }

  /** Once for each model. */
  #warn(problem: string): void {
    if (this.#warned.has(problem)) return;
    this.#warned.add(problem);
    process.emitWarning(`A model runs as before, not on virtual-kv's memory. ${problem}`, { code: 'KV_MODEL_INVALID' });
  }
}

/**
 * Has `from_pretrained` of transformers.js, from now on, keep the K and V of decoders in memory of this package;
 * nothing else of a program changes. Prompts find what is cached of them, and calls at the same time are computed
 * together. Models that cannot be rewritten run as before, with one warning that names the node. Throws
 * KV_DEPENDENCY_MISSING without `@huggingface/transformers` 4 or later, KV_ONNX_UNAVAILABLE where its onnxruntime-node
 * has no library for this machine, KV_UNKNOWN_OPTION, KV_INVALID_OPTION, and what the host driver throws.
 */
export function install(options: InstallOptions): TransformersMemory {
  const read = readInstallOptions(options);
  return new TransformersMemory(read, findRuntime(read.from));
}

const readInstallOptions = (options: InstallOptions) => readOptions('install', options, spec);

/** The part of onnxruntime's session options that counts here. */
interface SessionOptions {
  readonly executionProviders?: readonly (string | { readonly name: string })[];
  readonly intraOpNumThreads?: number;
  readonly externalData?: readonly unknown[];
}

interface Plan {
  readonly plan: DecoderPlan;
  /** Of files beside the graph; '': there are none. */
  readonly folder: string;
  /** The graph's own; '': it was given by its bytes. */
  readonly file: string;
}

/** A decoder with a past; undefined for another model. Throws KV_MODEL_INVALID for one that cannot be rewritten. */
async function readPlan(model: unknown, options: SessionOptions | undefined): Promise<Plan | undefined> {
  const source = typeof model === 'string' ? model : 'A model given by its bytes';
  const bytes = typeof model === 'string' ? await readModelFile(model).catch(() => undefined) : bytesOf(model);
  if (bytes === undefined || !isDecoder(bytes, source)) return undefined; // stock sessions refuse it by their words
  const [provider = 'cpu'] = options?.executionProviders ?? [];
  const device = typeof provider === 'string' ? provider : provider.name;
  if (device !== 'cpu') throw modelError(`${source} is to be computed by ${device}. Load it with \`device: 'cpu'\`.`);
  if ((options?.externalData?.length ?? 0) > 0)
    throw modelError(`${source} has weights beside it that are given as bytes. Give the model by its path.`);
  return {
    plan: planDecoder(bytes, source),
    folder: typeof model === 'string' ? path.dirname(path.resolve(model)) : '',
    file: typeof model === 'string' ? path.basename(model) : '',
  };
}

function bytesOf(model: unknown): Uint8Array | undefined {
  if (model instanceof Uint8Array) return model;
  return model instanceof ArrayBuffer ? new Uint8Array(model) : undefined;
}

function isDecoder(bytes: Uint8Array, source: string): boolean {
  try {
    return readGraph(bytes, source).inputs.some(({ name }) => name.startsWith('past_key_values.'));
  } catch {
    return false;
  }
}
