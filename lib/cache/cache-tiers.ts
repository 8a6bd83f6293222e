// CacheTiers: the tiers below a cache's device as its prefixes use them: opened and closed with it, filled in the background, asked for
// what was demoted. Made only where the cache has tiers.

import { createHash } from 'node:crypto';

import { createError } from '../base/errors.js';
import { number } from '../base/options.js';
import type { TimeHistogram } from '../base/time-histogram.js';
import type { PrefixDomain } from '../prefix/domain.js';
import type { SelectionCounts } from '../importance/selection-totals.js';
import { probesOf, type ReadImportance } from '../importance/probes.js';
import type { ModelShape } from '../layout/model-shape.js';
import type { PromptEncoder } from '../prefix/prompt-encoder.js';
import { ImportanceMeans } from '../prefix/importance/importance-means.js';
import { BlockKeys } from '../tiers/block-keys.js';
import type { GetMiss, PutRefusal, Tier, TierStatistics } from '../tiers/tier.js';
import type { OpenTier } from '../tiers/open-tier.js';
import { RaisedBlocks } from '../tiers/raised-blocks.js';
import { TierSet } from '../tiers/tier-set.js';
import { BlockCopies } from './block-copies.js';
import type { CachedRows } from './cached-rows.js';
import { Demotions } from './demotions.js';
import type { FinishedTexts } from './finished-texts.js';
import type { Promotion, PromotionEnd } from './promotion.js';
import { mostPromotions, Promotions, type PromotionRequest } from './promotions.js';
import type { RowSharing } from './row-sharing.js';
import { Reordering, type ReorderingCounts, type ReorderOptions } from './reordering.js';
import { Selections } from './selections.js';
import type { SlotFences } from './slot-fences.js';
import type { SlotLeases } from './slot-leases.js';
import type { SlotMemory } from './slot-memory.js';
import type { Steps } from './steps.js';
import { TextPlaces, type TextPlace, type TiersExplanation } from './text-places.js';
import { Transfers } from './transfers.js';

/** Slots beside those of users: one for what goes down, the others for what comes up. */
export const transferSlots = mostPromotions + 1;

const atLeastZero = number(0);

/** What one tier has, and what it did since the cache was opened. */
export interface TierMetrics {
  /** Its name among the tiers of the cache. */
  readonly name: string;
  /** `failed`: it could not be opened, and is out of service. */
  readonly state: 'opening' | 'open' | 'failed' | 'closed';
  /** Blocks of the tier that the cache knows. */
  readonly blocks: number;
  /** Bytes that these take of its capacity. */
  readonly bytes: number;
  /** Bytes that it may have; undefined: the store bounds itself. */
  readonly capacityBytes: number | undefined;
  /** Blocks that were put. */
  readonly storedBlocks: number;
  /** Their bytes. */
  readonly storedBytes: number;
  /** Tokens that came to the device from it. */
  readonly promotedTokens: number;
  /** Bytes that it gave, of tiers that lend none of their memory. */
  readonly loadedBytes: number;
  /** Blocks that the cache removed to make room. */
  readonly evictedBlocks: number;
  /** Blocks that came back with other bytes than were stored, and were dropped. */
  readonly damagedBlocks: number;
  /** Blocks that it did not take, by reason. */
  readonly refusals: Readonly<Record<PutRefusal, number>>;
  /** Blocks that it did not give, by reason. */
  readonly misses: Readonly<Record<GetMiss, number>>;
  /** Milliseconds before a load's first byte, as measured; undefined: not yet. */
  readonly latencyMs: number | undefined;
  /** Bytes a millisecond from then on, as measured; undefined: not yet. */
  readonly bytesPerMs: number | undefined;
  /** How long it took to give a block, of tiers that lend none of their memory. */
  readonly getTimes: TimeHistogram;
  /** How long it took to store one. */
  readonly putTimes: TimeHistogram;
  /** The tier's own. */
  readonly own: TierStatistics;
}

/** Of all tiers together. */
export interface TiersMetrics {
  /** One for each, in their order. */
  readonly tiers: readonly TierMetrics[];
  /** Finished texts that wait to be stored. */
  readonly waitingTexts: number;
  /** Finished texts of which a tier wanted more than it got: too many waited, or they were evicted too soon. */
  readonly droppedTexts: number;
  /** Loads and stores that ended early, since their pages were wanted. */
  readonly interruptedTransfers: number;
  /** Prompt tokens a millisecond that the engine computes, as measured; undefined: not yet. */
  readonly prefillTokensPerMs: number | undefined;
  /** Promotions that tiers had something for, by how they ended. */
  readonly promotions: Readonly<Record<PromotionEnd, number>>;
  /** The same of hints (`prefetch`). */
  readonly prefetches: Readonly<Record<PromotionEnd, number>>;
  /** How long those promotions took. */
  readonly promotionTimes: TimeHistogram;
  /** Blocks of which selections read, and that were brought to memory for it (`hostTier({ keeps })`). */
  readonly raisedBlocks: number;
  /** What selections came to; nothing of it is counted above. */
  readonly selections: SelectionCounts;
  /** What was stored anew in the order in which selections read it. */
  readonly reordering: ReorderingCounts;
}

/** What a cache with tiers was given. */
export interface CacheTiersRules {
  readonly tiers: readonly Tier[];
  readonly modelId: string | undefined;
  readonly blockTokens: number | undefined;
  readonly importance: ReadImportance | undefined;
  readonly model: ModelShape;
  /** A clock in milliseconds that neither throws nor calls the cache. */
  readonly now: () => number;
}

export interface CacheTiersCollaborators {
  readonly leases: SlotLeases;
  readonly steps: Steps;
  readonly sharing: RowSharing;
  readonly fences: SlotFences;
  readonly cached: CachedRows;
  readonly finished: FinishedTexts;
  readonly encoder: PromptEncoder;
}

/** The tiers below a cache's device: `cache.prefixes.tiers`. */
export class CacheTiers {
  readonly #set: TierSet;
  readonly #leases: SlotLeases;
  readonly #transfers: Transfers;
  readonly #demotions: Demotions;
  readonly #promotions: Promotions;
  readonly #places: TextPlaces;
  /** Parts of stored text for sequences that are given no more. @internal */
  readonly selections: Selections;
  readonly #reordering: Reordering;
  readonly #raised: RaisedBlocks;
  readonly #finished: FinishedTexts;
  readonly #ready: Promise<void>;
  #closing: Promise<void> | undefined;

  constructor(memory: SlotMemory, { leases, steps, sharing, fences, cached, finished, encoder }: CacheTiersCollaborators, rules: CacheTiersRules) {
    const { tensors } = memory.layout;
    const probes = probesOf(tensors, rules.importance);
    const tensorTokenBytes = tensors.map(({ tokenBytes }) => tokenBytes);
    const stripeTokenBytes = [...tensorTokenBytes, ...probes.map(({ tokenBytes }) => tokenBytes)];
    const keys = new BlockKeys(tensors, rules.blockTokens ?? defaultBlockTokens(tensorTokenBytes));
    const { late } = memory;
    const means = new ImportanceMeans();
    const report = (error: unknown): void => { late.report(error); };
    const set = this.#set = new TierSet({
      tiers: rules.tiers, keys, namespace: namespaceOf(rules, keys), stripeTokenBytes, names: encoder,
      importantTokens: (key) => means.sumOf(key), report,
    });
    this.#finished = finished;
    this.#leases = leases;
    this.#transfers = new Transfers(memory, leases, steps, fences, cached.registry, new BlockCopies(memory.native, tensors.length, probes));
    this.#demotions = new Demotions(memory, cached.index, set, this.#transfers, finished, encoder);
    this.#promotions = new Promotions(cached, set, this.#transfers, encoder, rules.now);
    this.#places = new TextPlaces(set, this.#promotions, encoder);
    this.#raised = new RaisedBlocks(set, report);
    this.selections = new Selections(memory, { steps, sharing, promotions: this.#promotions }, set, { means, raised: this.#raised, probes });
    this.#reordering = new Reordering(set, means, tensorTokenBytes, report);
    this.#ready = set.open();
    this.#ready.catch(report);
  }

  /** Tokens of a stored block; the last one of a text may have fewer. */
  get blockTokens(): number {
    return this.#set.keys.blockTokens;
  }

  /** Resolves when every tier is open; rejects with what the user must mend. */
  ready(): Promise<void> {
    return this.#ready;
  }

  /** Resolves when every text whose sequence is over, and its fence has passed, has been offered to the tiers, and none is on its way between them. */
  async settled(): Promise<void> {
    this.#leases.synchronize();
    await this.#demotions.settled();
    await this.#raised.settled();
  }

  /** Calls `visit` with every piece of stored text: an array that must not be kept, and the places [from, to) in it. @internal */
  forTexts(visit: (tokens: Int32Array, from: number, to: number) => void): void {
    this.#set.texts.forTexts(visit);
  }

  /** Whether a tier may have text that the cache has not heard of, since others store there too. */
  get mayHaveMore(): boolean {
    return this.#set.all.some(({ tier, state }) => state === 'open' && tier.find !== undefined);
  }

  /** @internal */
  demotedTokens(domain: PrefixDomain, text: Int32Array, cachedTokens: number): number {
    return this.#promotions.demotedTokens(domain, text, cachedTokens);
  }

  /** Throws KV_INTERNAL where the counts do not agree. @internal */
  verify(): void {
    this.#set.verify();
  }

  /** For tests: the tiers at work. @internal */
  get opened(): readonly OpenTier[] {
    return this.#set.all;
  }

  /** Where a text lies of which `cachedTokens` tokens are on the device. @internal */
  stretches(domain: PrefixDomain, text: Int32Array, cachedTokens: number): readonly TextPlace[] {
    return this.#places.stretches(domain, text, cachedTokens);
  }

  /** @internal */
  explain(domain: PrefixDomain, text: Int32Array, cachedTokens: number): TiersExplanation {
    return this.#places.explain(domain, text, cachedTokens);
  }

  /** @internal */
  promote(request: PromotionRequest): Promise<Promotion> {
    return this.#promotions.promote(request);
  }

  /**
   * Stores blocks of the fastest tier that can (`diskTier`) anew, tokens first that selections read most: later selections then read fewer chunks.
   * Bytes stay what they are for every reader. Call it when the disk has time. Resolves how many blocks were; 0 at once while another run is under
   * way. A block is considered once four selections have read of it, and stored anew where that spares a quarter of the chunks that hold the most
   * important quarter of its tokens. Rejects with KV_INVALID_OPTION, also where no tier can, and with KV_CLOSED.
   */
  reorder(options?: ReorderOptions): Promise<number> {
    return this.#reordering.run(options, this.#ready);
  }

  /**
   * The engine computed so many tokens of prompts in so long: by this loading and computing are compared. Schedulers say it by themselves. Throws
   * KV_INVALID_OPTION unless both are numbers, at least 0.
   */
  hasPrefilled(tokens: number, milliseconds: number): void {
    atLeastZero(tokens, { owner: 'CacheTiers.hasPrefilled', option: 'tokens' });
    atLeastZero(milliseconds, { owner: 'CacheTiers.hasPrefilled', option: 'milliseconds' });
    this.#promotions.prefill.measured(tokens, milliseconds);
  }

  /** Ends loads and stores under way. @internal */
  interrupt(): void {
    this.#transfers.interrupt();
  }

  /** Drops what tiers have, and what waits to be stored. @internal */
  clear(): void {
    this.#demotions.clear();
    this.#reordering.clear();
    this.#set.clear();
  }

  /** What each tier has, and what was done since the cache was opened. */
  metrics(): TiersMetrics {
    return {
      waitingTexts: this.#finished.count, droppedTexts: this.#finished.dropped + this.#demotions.unstored, interruptedTransfers: this.#transfers.interrupted,
      prefillTokensPerMs: this.#promotions.prefill.tokensPerMs, promotions: { ...this.#promotions.totals.ends },
      prefetches: { ...this.#promotions.totals.hintEnds }, promotionTimes: this.#promotions.totals.times, selections: this.selections.totals.copy(),
      raisedBlocks: this.#raised.raised, reordering: this.#reordering.counts,
      tiers: this.#set.all.map(({ tier, contents, counts, state, estimate }) => ({
        name: tier.name, state, blocks: contents.count, bytes: contents.bytes, capacityBytes: tier.capacityBytes,
        storedBlocks: counts.storedBlocks, storedBytes: counts.storedBytes, promotedTokens: counts.promotedTokens, loadedBytes: counts.loadedBytes,
        evictedBlocks: counts.evicted, damagedBlocks: counts.damaged, refusals: { ...counts.refusals }, misses: { ...counts.misses },
        latencyMs: estimate.latencyMs, bytesPerMs: estimate.bytesPerMs, getTimes: counts.getTimes, putTimes: counts.putTimes, own: tier.statistics(),
      })),
    };
  }

  /** Ends what is running; resolves when every tier is closed. Stores what is finished first, where the cache is still open. Idempotent. */
  async close(): Promise<void> {
    if (this.#closing === undefined) await this.settled();
    await this.end();
  }

  /** The cache closes now: what was not stored is not. @internal */
  end(): Promise<void> {
    this.#demotions.stop();
    this.#transfers.forgetAll();
    const ending = [this.#reordering.stop(), this.#raised.stop()].filter((each) => each !== undefined);
    this.#closing ??= ending.length === 0 ? this.#set.close() : Promise.allSettled(ending).then(() => this.#set.close());
    this.#closing.catch(() => { /* a tier's `close` does not reject */ });
    return this.#closing;
  }
}

/** About the bytes of a block: few enough that one is soon loaded, and enough for a disk and a network to be at their best. */
const blockBytes = 4 * 1024 * 1024;

/** A power of two, 16 … 256, by the model alone, so that processes with other layouts find the same blocks. */
function defaultBlockTokens(tensorTokenBytes: readonly number[]): number {
  const tokens = blockBytes / tensorTokenBytes.reduce((sum, bytes) => sum + bytes, 0);
  return Math.min(256, Math.max(16, 2 ** Math.floor(Math.log2(tokens))));
}

/**
 * Of the model's name, and of its tensors on this worker: which layers they are of, how many heads each has, and whose share of them; and of the
 * probe heads, which are in every block.
 */
function namespaceOf({ tiers, modelId, model, importance }: CacheTiersRules, keys: BlockKeys): string {
  const { tensor = 1, tensorRank } = model.parallel ?? {};
  const hasShare = tensor > 1 && model.attention !== 'latent'; // every worker has a latent tensor whole
  if (hasShare && tensorRank === undefined && tiers.some(({ isLasting }) => isLasting)) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner: 'KvCache', option: 'model.parallel.tensorRank', expected: `an integer, 0 … ${tensor - 1}`, received: undefined,
      hint: `The ${tensor} workers have tensors of the same shape: by it the tiers tell whose blocks they have.`,
    });
  }
  if (modelId === undefined && tiers.some(({ isLasting }) => isLasting)) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner: 'KvCache', option: 'prefixCache.modelId', expected: 'a string', received: undefined,
      hint: 'Blocks in tiers that outlive the process are found by it: name the weights and their revision.',
    });
  }
  const share = hasShare ? [tensor, tensorRank ?? 0] : [];
  const probes = importance === undefined ? [] : [{ probeHeads: importance.probeHeads }];
  return createHash('sha256').update(JSON.stringify(['virtual-kv tier', 1, modelId ?? '', keys.root({}), ...share, ...probes])).digest('hex');
}
