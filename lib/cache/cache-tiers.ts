// CacheTiers: the tiers below a cache's device as its prefixes use them: opened and closed with it, filled in the background, asked for
// what was demoted. Made only where the cache has tiers.

import { createHash } from 'node:crypto';

import { createError } from '../base/errors.js';
import { number } from '../base/options.js';
import type { PrefixDomain } from '../prefix/domain.js';
import type { CachedExtent, SelectedExtent } from '../prefix/eviction/eviction-policy.js';
import { probesOf, type ReadImportance } from '../importance/probes.js';
import type { ModelShape } from '../layout/model-shape.js';
import type { PromptEncoder } from '../prefix/prompt-encoder.js';
import { ImportanceMeans } from '../tiers/importance-means.js';
import { BlockKeys } from '../tiers/block-keys.js';
import type { Tier } from '../tiers/tier.js';
import type { LoadClock } from '../tiers/load-clock.js';
import type { OpenTier } from '../tiers/open-tier.js';
import type { PlacedBlocks } from '../tiers/placed-blocks.js';
import { RaisedBlocks } from '../tiers/raised-blocks.js';
import { selectedOf } from '../tiers/selected-extent.js';
import { isOverBeforeSilence } from '../tiers/tier-calls.js';
import { TierSet } from '../tiers/tier-set.js';
import { BlockCopies } from './block-copies.js';
import type { CachedRows } from './cached-rows.js';
import { Demotions } from './demotions.js';
import type { FinishedTexts } from './finished-texts.js';
import type { Promotion, PromotionRequest } from './promotion.js';
import { mostPromotions, Promotions } from './promotions.js';
import { RaisedTexts } from './raised-texts.js';
import type { RowSharing } from './row-sharing.js';
import { Reordering, type ReorderOptions } from './reordering.js';
import { Selections } from './selections.js';
import type { SlotLeases } from './slot-leases.js';
import type { SlotMemory } from './slot-memory.js';
import type { Steps } from './steps.js';
import { tierMetrics, type TiersMetrics } from './tiers-metrics.js';
import { TextPlaces, type TextPlace, type TiersExplanation } from './text-places.js';
import { Transfers } from './transfers.js';

/** Slots beside those of users: one for what goes down, the others for what comes up. */
export const transferSlots = mostPromotions + 1;

const atLeastZero = number(0);

/** What a cache with tiers was given. */
export interface CacheTiersRules {
  readonly tiers: readonly Tier[];
  readonly modelId: string | undefined;
  readonly blockTokens: number | undefined;
  readonly importance: ReadImportance | undefined;
  /** Requests that selected between two runs of reordering; 0: none by itself. */
  readonly reorderAfter: number;
  readonly tierCloseTimeoutMs: number;
  readonly model: ModelShape;
  /** A clock in milliseconds that neither throws nor calls the cache. */
  readonly now: () => number;
}

export interface CacheTiersCollaborators {
  readonly leases: SlotLeases;
  readonly steps: Steps;
  readonly sharing: RowSharing;
  readonly cached: CachedRows;
  readonly finished: FinishedTexts;
  readonly encoder: PromptEncoder;
}

/** The tiers below a cache's device: `cache.prefixes.tiers`. */
export class CacheTiers {
  readonly #set: TierSet;
  readonly #leases: SlotLeases;
  readonly #copies: BlockCopies;
  readonly #transfers: Transfers;
  readonly #demotions: Demotions;
  readonly #promotions: Promotions;
  readonly #places: TextPlaces;
  /** Parts of stored text for sequences that are given no more. @internal */
  readonly selections: Selections;
  readonly #reordering: Reordering;
  readonly #raised: RaisedBlocks;
  readonly #raisedTexts: RaisedTexts;
  readonly #finished: FinishedTexts;
  readonly #ready: Promise<void>;
  readonly #report: (error: unknown) => void;
  readonly #closeTimeoutMs: number;
  /** Tiers that did not answer while they were closed, and how many calls. */
  readonly #silent = new Map<string, number>();
  #closing: Promise<void> | undefined;

  constructor(memory: SlotMemory, { leases, steps, sharing, cached, finished, encoder }: CacheTiersCollaborators, rules: CacheTiersRules) {
    const { tensors } = memory.layout;
    const probes = probesOf(tensors, rules.importance);
    const tensorTokenBytes = tensors.map(({ tokenBytes }) => tokenBytes);
    const stripeTokenBytes = [...tensorTokenBytes, ...probes.map(({ tokenBytes }) => tokenBytes)];
    const keys = new BlockKeys(tensors, rules.blockTokens ?? defaultBlockTokens(tensorTokenBytes));
    const { late } = memory;
    const means = new ImportanceMeans();
    const report = this.#report = (error: unknown): void => { late.report(error); };
    this.#closeTimeoutMs = rules.tierCloseTimeoutMs;
    const set = this.#set = new TierSet({
      tiers: rules.tiers, keys, namespace: namespaceOf(rules, keys), stripeTokenBytes, names: encoder,
      importantTokens: (key) => means.sumOf(key), lastingLevel: (level) => cached.index.lastingLevel(level), report,
    });
    this.#finished = finished;
    this.#leases = leases;
    this.#copies = new BlockCopies(memory.native, tensors.length, probes);
    this.#transfers = new Transfers(memory, leases, steps, cached.registry, this.#copies);
    this.#demotions = new Demotions(memory, cached.index, set, this.#transfers, finished, encoder);
    this.#promotions = new Promotions(cached, set, this.#transfers, encoder, rules.now);
    this.#places = new TextPlaces(set, this.#promotions, encoder);
    this.#raised = new RaisedBlocks(set, report);
    this.#raisedTexts = new RaisedTexts(memory, cached, this.#promotions, means);
    this.#reordering = new Reordering(set, means, tensorTokenBytes, { after: rules.reorderAfter, report });
    this.selections = new Selections(memory, { steps, sharing, promotions: this.#promotions }, set, {
      means, raised: this.#raised, raisedTexts: this.#raisedTexts, reordering: this.#reordering, probes,
    });
    this.#ready = set.open();
    this.#ready.catch(report);
  }

  /** Tokens of a stored block; the last one of a text may have fewer. */
  get blockTokens(): number {
    return this.#set.keys.blockTokens;
  }

  /** Which blocks tiers have got and lost, from now on. @internal */
  placedBlocks(): PlacedBlocks {
    return this.#set.placedBlocks();
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
    await this.#raisedTexts.settled();
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

  /** For tests: loads are timed by this clock from now on. @internal */
  timeLoadsBy(clock: LoadClock): void {
    this.#promotions.clock = clock;
  }

  /** Where a text lies of which `cachedTokens` tokens are on the device. @internal */
  stretches(domain: PrefixDomain, text: Int32Array, cachedTokens: number): readonly TextPlace[] {
    return this.#places.stretches(domain, text, cachedTokens);
  }

  /** @internal */
  explain(domain: PrefixDomain, text: Int32Array, cachedTokens: number): TiersExplanation {
    return this.#places.explain(domain, text, cachedTokens);
  }

  /** For the device's eviction policy. @internal */
  selectedOf(domain: PrefixDomain, extent: CachedExtent): SelectedExtent | undefined {
    return selectedOf(this.#set, this.selections.means, domain, extent);
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
   * The engine computed so many tokens of prompts in so long: by this loading and computing are compared. Schedulers say it by themselves. 0 tokens
   * say nothing. Throws KV_INVALID_OPTION unless both are numbers, at least 0.
   */
  hasPrefilled(tokens: number, milliseconds: number): void {
    atLeastZero(tokens, { owner: 'CacheTiers.hasPrefilled', option: 'tokens' });
    atLeastZero(milliseconds, { owner: 'CacheTiers.hasPrefilled', option: 'milliseconds' });
    this.#promotions.prefill.measured(tokens, milliseconds);
  }

  /** Ends loads and stores under way; returns whether there were any. @internal */
  interrupt(): boolean {
    return this.#transfers.interrupt();
  }

  /** @internal */
  setNamespace(namespace: string): void {
    this.#raisedTexts.setNamespace(namespace);
  }

  /** Drops what tiers have, and what waits to be stored. @internal */
  clear(): void {
    this.#demotions.clear();
    this.#raisedTexts.clear();
    this.#reordering.clear();
    this.#set.clear();
  }

  /** What each tier has, and what was done since the cache was opened. */
  metrics(): TiersMetrics {
    return {
      waitingTexts: this.#demotions.waiting, droppedTexts: this.#finished.dropped + this.#demotions.unstored, interruptedTransfers: this.#transfers.interrupted,
      staging: this.#copies.staging,
      prefillTokensPerMs: this.#promotions.prefill.tokensPerMs, promotions: { ...this.#promotions.totals.ends },
      prefetches: { ...this.#promotions.totals.hintEnds }, promotionTimes: this.#promotions.totals.times, selections: this.selections.totals.copy(),
      raisedBlocks: this.#raised.raised, raisedTokens: this.#raisedTexts.tokens, reordering: this.#reordering.counts,
      tiers: this.#set.all.map(tierMetrics),
    };
  }

  /**
   * Ends what is running; resolves when every tier is closed. Stores what is finished first, where the cache is still open. Rejects with KV_TIER_STALLED
   * where a tier of your own has answered nothing for `prefixCache.tierCloseTimeoutMs`, once the others are closed. Idempotent.
   */
  async close(): Promise<void> {
    void this.#raised.stop(); // what requests do not wait for
    void this.#raisedTexts.stop();
    if (this.#closing === undefined) await this.#untilSilence(this.settled().then(() => this.#set.written()));
    await this.#end();
  }

  /** The cache closes now: what was not stored is not. Its tiers are closed behind it. @internal */
  end(): void {
    const isAwaited = this.#closing !== undefined;
    const closing = this.#end();
    if (!isAwaited) closing.catch(this.#report);
  }

  #end(): Promise<void> {
    this.#promotions.stop();
    this.#demotions.stop();
    this.#transfers.forgetAll();
    for (const open of this.#set.all) open.cancelReads();
    this.#closing ??= this.#closeTiers([this.#reordering.stop(), this.#raised.stop(), this.#raisedTexts.stop()].filter((each) => each !== undefined));
    this.#closing.catch(() => { /* it is told to those that wait for it */ });
    return this.#closing;
  }

  async #closeTiers(ending: readonly Promise<unknown>[]): Promise<void> {
    if (ending.length > 0) await this.#untilSilence(Promise.allSettled(ending));
    await this.#untilSilence(this.#set.close());
    if (this.#silent.size === 0) return;
    const calls = [...this.#silent.values()].reduce((sum, each) => sum + each, 0);
    throw createError('KV_TIER_STALLED', { tiers: [...this.#silent.keys()], calls, timeoutMs: this.#closeTimeoutMs });
  }

  /** Waits for something that calls tiers, as long as they answer; else notes those that do not. */
  async #untilSilence(work: Promise<unknown>): Promise<void> {
    const { all } = this.#set;
    if (await isOverBeforeSilence(work, all.map(({ calls }) => calls), this.#closeTimeoutMs, this.#promotions.clock)) return;
    for (const { tier: { name }, calls: { underWay } } of all) {
      if (underWay > 0) this.#silent.set(name, Math.max(underWay, this.#silent.get(name) ?? 0));
    }
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
