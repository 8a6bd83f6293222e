// SelectionWorld: a small random model over a cache whose text lies in tiers alone, and the same model without any cache.

import type { ExecutionContext } from 'ava';

import { hostTier, KvCache, type Driver, type EvictionPolicyFactory, type KvCacheOptions, type SelectionOptions, type Sequence, type Tier, type TokenSelector } from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import { attentionScores, countAt } from '#internal/tiers/selection/selectors.js';
import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { dropFromDevice } from '../cache/tiers/device-index.js';
import { PlainTier } from '../cache/tiers/plain-tier.js';
import { randomLlama, removeFolder, withAlikeHeads, writeLlama, type LlamaSizes } from '../helpers/made-llama.js';
import { standingClock, timeLoadsBy } from '../helpers/patient.js';
import { PlainLlama, type PlainSelection } from '../helpers/plain-llama.js';

export const sizes: LlamaSizes = { layers: 3, hidden: 24, intermediate: 40, queryHeads: 8, kvHeads: 4, headDim: 16, vocabularyTokens: 50 };
export const MiB = 2 ** 20;

export interface SelectionWorldOptions extends Partial<Omit<KvCacheOptions, 'model' | 'pool' | 'driver' | 'prefixCache'>> {
  readonly tiers?: readonly Tier[];
  readonly driver?: Driver | undefined;
  readonly dtype?: 'float32' | 'float16' | 'bfloat16';
  readonly probeHeads?: number;
  /** The device's eviction policy. */
  readonly policy?: EvictionPolicyFactory;
  /** Whether all heads look at much the same tokens, so that probe heads are trusted, or each at its own. Default `apart`. */
  readonly heads?: 'alike' | 'apart';
  /** Numbers of a head. Default that of `sizes`. */
  readonly headDim?: number;
  /** Tokens of a stored block. Default 16. */
  readonly blockTokens?: number;
  /** As `prefixCache.poolRows` and `prefixCache.tenantRows`. */
  readonly poolRows?: number | undefined;
  readonly tenantRows?: number | undefined;
  /** As `prefixCache.reorderAfter`. */
  readonly reorderAfter?: number | undefined;
}

/** A selector that notes what it was asked and what it chose, by layer. */
export function noted(selector: TokenSelector): TokenSelector & { readonly chosen: Map<number, number[] | undefined> } {
  const chosen = new Map<number, number[] | undefined>();
  return {
    name: 'noted', looksAt: selector.looksAt, chosen,
    select: (choice) => {
      const tokens = selector.select(choice);
      chosen.set(choice.layer, tokens && [...tokens]);
      return tokens;
    },
  };
}

/** What each layer is to choose of [from, to), by all queries and keys of a text: those of `queryTokens` new tokens count. Default: all. */
export function choiceOf(selector: TokenSelector, ratio: number, from: number, to: number, queryTokens = Infinity): PlainSelection['choose'] {
  return (layer, queries, keys) => {
    const { queryHeads, kvHeads, headDim: dim } = sizes;
    const keyHeads = selector.looksAt === 'keys' ? kvHeads : 3;
    const flat = (rows: readonly Float64Array[], width: number): Float32Array => Float32Array.from(rows.flatMap((row) => [...row.subarray(0, width)]));
    const rows = queries.slice(to, to + queryTokens);
    const scores = attentionScores(flat(rows, queryHeads * dim), flat(keys.slice(from, to), keyHeads * dim), {
      rows: rows.length, queryHeads, kvHeads, keyHeads, dim, tokens: to - from, scale: 1 / Math.sqrt(dim),
    });
    const chosen = selector.select({ layer, tokens: to - from, count: countAt(ratio, to - from), scores: selector.looksAt === 'nothing' ? [] : scores });
    return new Set(chosen === undefined ? Array.from({ length: to - from }, (_, token) => from + token) : Array.from(chosen, (token) => from + token));
  };
}

export class SelectionWorld {
  readonly cache: KvCache;
  readonly model: LlamaModel;
  readonly engine: LlamaEngine;
  readonly plain: PlainLlama;
  readonly #t: ExecutionContext;
  readonly #folder: string;

  constructor(
    t: ExecutionContext, random: Random,
    { tiers = [hostTier({ bytes: 16 * MiB })], driver, dtype = 'float32', probeHeads = 3, heads = 'apart', headDim = sizes.headDim, blockTokens = 16, policy, poolRows, tenantRows, reorderAfter, ...options }: SelectionWorldOptions = {},
  ) {
    const apart = randomLlama(random, { ...sizes, headDim }, { rope_theta: 100 });
    const made = heads === 'alike' ? withAlikeHeads(apart) : apart;
    this.#t = t;
    this.#folder = writeLlama(made);
    this.model = new LlamaModel(this.#folder, { threads: 1 });
    this.cache = new KvCache({
      model: this.model.shape(dtype), slots: 4, maxTokens: 512, memoryBudgetBytes: 2 ** 26, pageBytes: 65_536, layout: 'per-layer', driver: driver ?? 'host', ...options,
      prefixCache: { tiers, tierBlockTokens: blockTokens, modelId: 'test', importance: { probeHeads }, poolRows, tenantRows, reorderAfter, ...(policy && { policy }) },
    });
    timeLoadsBy(this.cache, standingClock); // a text whose load is given up is computed, and nothing of it selected
    this.engine = new LlamaEngine({ model: this.model, cache: this.cache });
    this.plain = new PlainLlama(made);
  }

  /** Computes a text exactly; it is in the tiers alone then. Returns its last logits. */
  async store(text: Int32Array): Promise<Float32Array> {
    const sequence = this.cache.acquire({ tokens: text });
    const logits = await this.compute(sequence, text, text.length - sequence.length);
    sequence.release();
    await this.cache.prefixes.tiers!.settled();
    dropFromDevice(this.cache);
    return logits;
  }

  /** A sequence that is given part of what tiers have of a text. */
  async lossy(text: Int32Array, selection: SelectionOptions): Promise<Sequence> {
    const { selected } = await this.cache.prefixes.promote({ tokens: text, selection });
    return this.cache.acquire({ tokens: text, selected });
  }

  /** Computes the next tokens of a text in one pass, and returns the logits behind them. */
  async compute(sequence: Sequence, text: Int32Array, tokens: number): Promise<Float32Array> {
    const batch = this.cache.createBatch();
    batch.add(sequence, tokens);
    this.cache.prepare(batch);
    const from = sequence.length;
    const { logits } = await this.engine[tokens === 1 ? 'decode' : 'prefill']({
      length: 1, slots: Int32Array.of(sequence.slot), positions: Int32Array.of(from), tokenCounts: Int32Array.of(tokens),
      tokens: text.slice(from, from + tokens), wantsLogits: Uint8Array.of(1), sequences: [sequence],
    });
    this.cache.commit(batch);
    return logits.slice(0, this.engine.vocabularyTokens);
  }

  /** Computes the rest of a text at once. */
  finish(sequence: Sequence, text: Int32Array): Promise<Float32Array> {
    return this.compute(sequence, text, text.length - sequence.length);
  }

  /** Nothing is left, but for `active` sequences; the counts of the cache and of its tiers agree. */
  async close({ active = 0 } = {}): Promise<void> {
    this.cache.verify();
    this.#t.is(this.cache.counts().activeSlots, active);
    await this.cache.prefixes.tiers!.close();
    this.engine.close();
    this.cache.close();
    removeFolder(this.#folder);
  }
}

export interface StoredText {
  readonly world: SelectionWorld;
  /** Of 90 tokens, the first 80 of which are in the tier alone. */
  readonly text: Int32Array;
  /** The logits behind it, of the model without a cache. */
  readonly exact: Float64Array;
}

export function textOf(random: Random, tokens: number): Int32Array {
  return Int32Array.from({ length: tokens }, () => random.integer(sizes.vocabularyTokens));
}

export async function storedText(t: ExecutionContext, random: Random, tier: Tier = new PlainTier('mine')): Promise<StoredText> {
  const world = new SelectionWorld(t, random, { tiers: [tier] });
  const text = textOf(random, 90);
  await world.cache.prefixes.tiers!.ready();
  await world.store(text.subarray(0, 80));
  const [exact] = world.plain.logits(text).slice(-1);
  return { world, text, exact: exact! };
}
