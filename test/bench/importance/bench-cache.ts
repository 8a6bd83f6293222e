// A cache whose text lies on a disk of a given bandwidth, and requests that go on behind it: time to the first token, bytes and chunks read, and how far
// the answer is from the exact one.

import { setTimeout as sleep } from 'node:timers/promises';

import { diskTier, hostTier, KvCache, type Sequence, type SelectionOptions, type Tier, type TierKeeping } from 'virtual-kv';

import { LlamaEngine } from '#internal/llama/engine.js';
import type { LlamaModel } from '#internal/llama/model.js';
import { mostLikely } from '../../helpers/logits.js';

export const suffixTokens = 16;
export const answerTokens = 32;
/** Requests that read a text before its blocks are reordered. */
const notesBeforeReordering = 6;

/** A tier whose reads take as long as their bytes need at a bandwidth, one behind the other. */
export class Throttled {
  bytesPerMs = Infinity;
  /** Bytes that were read. */
  readBytes = 0;
  /** Ranges with a checksum of their own in them. */
  chunks = 0;
  readonly tier: Tier;
  #freeAtMs = 0;

  constructor(inner: Tier) {
    const pass = async (bytes: number): Promise<void> => {
      this.readBytes += bytes;
      if (this.bytesPerMs === Infinity) return;
      this.#freeAtMs = Math.max(performance.now(), this.#freeAtMs) + bytes / this.bytesPerMs;
      await sleep(this.#freeAtMs - performance.now());
    };
    this.tier = {
      name: 'disk', isLasting: true, takesOnlyWholeBlocks: false, capacityBytes: inner.capacityBytes, admitAfter: inner.admitAfter,
      open: (context) => inner.open(context), put: (record, payload) => inner.put(record, payload), remove: (keys) => inner.remove(keys),
      statistics: () => inner.statistics(), close: () => inner.close(), sizeOf: (bytes) => inner.sizeOf!(bytes),
      chunkBytes: inner.chunkBytes, reorder: (key, order) => inner.reorder!(key, order),
      get: async (key, payload, signal) => {
        const got = await inner.get(key, payload, signal);
        this.chunks += Math.ceil(payload.length / inner.chunkBytes!);
        await pass(payload.length);
        return got;
      },
      getTokens: async (key, parts, into, signal) => {
        const got = await inner.getTokens!(key, parts, into, signal);
        this.chunks += got.chunks;
        await pass(got.readBytes);
        return got;
      },
    };
  }
}

/** How a request's prefix comes. */
export type Way = { readonly name: string } & ({ readonly selection: SelectionOptions } | { readonly isComputed: boolean });

/** What a request should answer: its tokens, and the logits behind each of the answer. */
export interface ExactAnswer {
  readonly tokens: Int32Array;
  readonly logits: readonly Float32Array[];
}

/** How far an answer is from the exact one. */
export interface Quality {
  /** Share of the answer's tokens that are the exact ones, given the exact ones before. */
  readonly agreement: number;
  /** Of the exact answer. */
  readonly perplexity: number;
  /** Mean over the answer's tokens, in nats, of the exact distribution to this one. */
  readonly divergence: number;
}

export interface BenchRules {
  /** KV heads of each layer whose keys are stored once more; 0: none. */
  readonly probeHeads: number;
  /** Tokens of a stored block. Default 64. */
  readonly blockTokens?: number;
  /** Memory above the disk, and what it keeps. Then requests leave their text to others. */
  readonly memory?: { readonly bytes: number; readonly keeps: TierKeeping };
}

export interface Measured extends Quality {
  readonly way: string;
  readonly ratio: number | undefined;
  readonly firstTokenMs: number;
  readonly readBytes: number;
  readonly chunks: number;
  /** Bytes that were chosen, or looked at to choose: read without anything else. */
  readonly neededBytes: number;
  readonly fallBacks: number;
}

/** A text: what is stored of it, and what a request goes on with. */
export interface Text {
  readonly tokens: Int32Array;
  readonly prefix: number;
}

export class Bench {
  readonly cache: KvCache;
  readonly throttled: Throttled;
  readonly #model: LlamaModel;
  /** Whether requests leave their text to others. */
  readonly #isShared: boolean;
  readonly #engine: LlamaEngine;
  /** Of a token, over all layers. */
  readonly #keyBytes: number;
  readonly #probeBytes: number;

  constructor(model: LlamaModel, directory: string, { probeHeads, blockTokens = 64, memory }: BenchRules) {
    this.throttled = new Throttled(diskTier({ directory, bytes: 2 ** 30, admit: 'all', durability: 'none', chunkBytes: 4096 }));
    this.cache = new KvCache({
      model: model.shape('float16'), slots: 4, maxTokens: 4096, memoryBudgetBytes: 2 ** 29, driver: 'host',
      prefixCache: {
        tiers: memory === undefined ? [this.throttled.tier] : [hostTier(memory), this.throttled.tier], modelId: 'bench', tierBlockTokens: blockTokens, reorderAfter: 0, importance: probeHeads === 0 ? undefined : { probeHeads },
      },
    });
    this.#model = model;
    this.#isShared = memory !== undefined;
    const { layers, kvHeads, headDim } = model.config;
    this.#keyBytes = layers * kvHeads * headDim * 2;
    this.#probeBytes = layers * Math.min(probeHeads, kvHeads) * headDim * 2;
    this.#engine = new LlamaEngine({ model, cache: this.cache });
  }

  /** Computes a text's prefix, which then lies on the disk alone. */
  async store({ tokens, prefix }: Text): Promise<void> {
    const sequence = this.cache.acquire({ tokens: tokens.subarray(0, prefix) });
    await this.compute(sequence, tokens, prefix - sequence.length);
    sequence.release();
    await this.drop();
  }

  async drop(): Promise<void> {
    await this.cache.prefixes.tiers!.settled();
    (this.cache.prefixes as unknown as { readonly index: { clear(): void } }).index.clear();
    this.cache.counts();
  }

  /** The exact answer to a text, and the logits behind each of its tokens. */
  async answer(text: Text, answered = answerTokens): Promise<ExactAnswer> {
    const sequence = this.cache.acquire({ tokens: text.tokens });
    const all = new Int32Array(text.tokens.length + answered);
    all.set(text.tokens);
    const logits = [await this.compute(sequence, all, text.tokens.length - sequence.length)];
    for (let at = text.tokens.length; at < all.length; at += 1) {
      all[at] = mostLikely(logits.at(-1)!);
      if (at + 1 < all.length) logits.push(await this.compute(sequence, all, 1));
    }
    sequence.release();
    return { tokens: all, logits };
  }

  /** A request that goes on behind the prefix. `exact`: what it should answer. */
  async request({ tokens, prefix }: Text, way: Way, exact: ExactAnswer): Promise<Measured> {
    const before = this.#counts(way);
    const { sequence, logits: first, milliseconds } = await this.#begin(tokens, prefix, way, exact.tokens);
    const { readBytes, chunks, fallBacks, neededBytes } = this.#counts(way);
    const logits = [first];
    while (logits.length < exact.logits.length) logits.push(await this.compute(sequence, exact.tokens, 1));
    sequence.release();
    await this.drop();
    return {
      way: way.name, ratio: 'selection' in way ? way.selection.ratio : undefined, firstTokenMs: milliseconds, readBytes: readBytes - before.readBytes, chunks: chunks - before.chunks,
      neededBytes: neededBytes - before.neededBytes, fallBacks: fallBacks - before.fallBacks, ...qualityOf(logits, exact, tokens.length),
    };
  }

  async compute(sequence: Sequence, text: Int32Array, tokens: number): Promise<Float32Array> {
    const batch = this.cache.createBatch(1);
    batch.add(sequence, tokens);
    this.cache.prepare(batch);
    const from = sequence.length;
    const { logits } = await this.#engine[tokens === 1 ? 'decode' : 'prefill']({
      length: 1, slots: Int32Array.of(sequence.slot), positions: Int32Array.of(from), tokenCounts: Int32Array.of(tokens),
      tokens: text.slice(from, from + tokens), wantsLogits: Uint8Array.of(1), sequences: [sequence],
    });
    this.cache.commit(batch);
    return logits.slice(0, this.#engine.vocabularyTokens);
  }

  /** The same for its first token alone: milliseconds. What memory is brought for it is there when this resolves. */
  async firstToken({ tokens, prefix }: Text, way: Way): Promise<number> {
    const { sequence, milliseconds } = await this.#begin(tokens, prefix, way, tokens);
    sequence.release();
    await this.drop();
    return milliseconds;
  }

  /** Reads so often that importance is known, and has the disk's blocks stored in its order. Returns how many were. */
  async reorder(texts: readonly Text[], way: Way): Promise<number> {
    for (let round = 0; round < notesBeforeReordering; round += 1) for (const text of texts) await this.firstToken(text, way);
    return this.cache.prefixes.tiers!.reorder({ mostBlocks: 2 ** 20 });
  }

  async close(): Promise<void> {
    await this.cache.prefixes.tiers!.close();
    this.#engine.close();
    this.cache.close();
  }

  async #begin(tokens: Int32Array, prefix: number, way: Way, computed: Int32Array): Promise<{ readonly sequence: Sequence; readonly logits: Float32Array; readonly milliseconds: number }> {
    const { prefixes } = this.cache;
    const beganMs = performance.now();
    const promotion = 'selection' in way ? await prefixes.promote({ tokens, selection: way.selection }) : way.isComputed ? undefined : await prefixes.promote({ tokens });
    const sequence = this.cache.acquire({ tokens, selected: promotion?.selected, ...this.#isShared ? {} : { caching: 'read' } });
    if (promotion !== undefined && sequence.length < prefix) throw new Error(`${way.name}: ${sequence.length} of ${prefix} tokens came: ${promotion.end}`);
    const logits = await this.compute(sequence, computed, tokens.length - sequence.length);
    const milliseconds = performance.now() - beganMs;
    if (sequence.selection?.failure !== undefined) throw sequence.selection.failure;
    return { sequence, logits, milliseconds };
  }

  #counts(way: Way): { readonly readBytes: number; readonly chunks: number; readonly fallBacks: number; readonly neededBytes: number } {
    const { selections: { fallBacks, tokens, selectedTokens } } = this.cache.prefixes.tiers!.metrics();
    const { layers } = this.#model.config;
    const looksAt = 'selection' in way ? way.selection.selector!.looksAt : 'nothing';
    const looked = looksAt === 'probe-keys' ? this.#probeBytes : looksAt === 'keys' ? this.#keyBytes : 0;
    const chosen = looksAt === 'keys' ? this.#keyBytes : 2 * this.#keyBytes; // keys are there already
    const { readBytes, chunks } = this.throttled;
    return { readBytes, chunks, fallBacks, neededBytes: (tokens * looked + selectedTokens * chosen) / layers };
  }
}

function qualityOf(logits: readonly Float32Array[], exact: ExactAnswer, from: number): Quality {
  let [agreed, logLikelihood, divergence] = [0, 0, 0];
  for (const [index, row] of logits.entries()) {
    const token = exact.tokens[from + index]!;
    const [own, theirs] = [logProbabilities(row), logProbabilities(exact.logits[index]!)];
    agreed += mostLikely(row) === token ? 1 : 0;
    logLikelihood += own[token]!;
    for (let at = 0; at < own.length; at += 1) divergence += Math.exp(theirs[at]!) * (theirs[at]! - own[at]!);
  }
  const count = logits.length;
  return { agreement: agreed / count, perplexity: Math.exp(-logLikelihood / count), divergence: divergence / count };
}

export function logProbabilities(logits: Float32Array): Float64Array {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const whole = Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - most), 0)) + most;
  return Float64Array.from(logits, (logit) => logit - whole);
}
