// CacheTiers: the tiers below a cache's device as its prefixes use them: opened and closed with it, filled in the
// background, asked for what was demoted. Made only where the cache has tiers.

import { createError } from '../base/errors.js';
import { formatCount } from '../base/format.js';
import { number } from '../base/options.js';
import type { PrefixDomain, TextScope } from '../prefix/domain.js';
import type { CachedExtent, SelectedExtent } from '../prefix/eviction/eviction-policy.js';
import type { LoadClock } from './load-clock.js';
import type { OpenTier } from './open-tier.js';
import type { PlacedBlocks } from './placed-blocks.js';
import { selectedOf } from './selection/importance-means.js';
import { isOverBeforeSilence } from './tier-calls.js';
import type { DroppedBlocks, TierSet } from './tier-set.js';
import type { ChoiceFollowers } from './selection/choice-followers.js';
import { HeldText, type Transfers } from './transfers.js';
import type { Demotions } from './demotions.js';
import type { Promotion, PromotionRequest } from './promotion.js';
import type { Promotions } from './promotions.js';
import type { ReorderOptions } from './selection/reordering.js';
import type { Selections } from './selection/selections.js';
import { tierMetrics, type TiersMetrics } from './tiers-metrics.js';
import { TextPlaces, type TextPlace, type TiersExplanation } from './text-places.js';

const atLeastZero = number(0);

/** The parts that a cache's tiers are made of, by `openTiers`. @internal */
export interface TiersAtWork {
  readonly set: TierSet;
  /** To and from the device. */
  readonly transfers: Transfers;
  /** What goes down. */
  readonly demotions: Demotions;
  /** What comes up. */
  readonly promotions: Promotions;
  /** What is made of the tokens that selections choose. */
  readonly followers: ChoiceFollowers;
  /** What is given in part. */
  readonly selections: Selections;
}

/** The tiers below a cache's device: `cache.prefixes.tiers`. */
export class CacheTiers {
  readonly #parts: TiersAtWork;
  readonly #places: TextPlaces;
  readonly #ready: Promise<void>;
  readonly #report: (error: unknown) => void;
  readonly #closeTimeoutMs: number;
  /** Tiers that did not answer while they were closed, and how many calls. */
  readonly #silent = new Map<string, number>();
  #closing: Promise<void> | undefined;

  /** @internal Opens the tiers. @param report Hears of failures that no call reports. */
  constructor(parts: TiersAtWork, closeTimeoutMs: number, report: (error: unknown) => void) {
    this.#parts = parts;
    this.#places = new TextPlaces(parts.set, parts.promotions);
    this.#closeTimeoutMs = closeTimeoutMs;
    this.#report = report;
    this.#ready = parts.set.open();
    this.#ready.catch(report);
    // Where a tier of the user's never opens, the others get texts once it has been silent for too long.
    parts.demotions.startAfter(this.#isOver(this.#ready.catch(() => { /* those that have opened get it */ })));
  }

  /** Parts of stored text for sequences that are given no more. @internal */
  get selections(): Selections {
    return this.#parts.selections;
  }

  /** Tokens of a stored block; the last one of a text may have fewer. */
  get blockTokens(): number {
    return this.#parts.set.keys.blockTokens;
  }

  /** Which blocks tiers have got and lost, from now on. @internal */
  placedBlocks(): PlacedBlocks {
    return this.#parts.set.placedBlocks();
  }

  /** Resolves when every tier is open; rejects with what the user must mend. */
  ready(): Promise<void> {
    return this.#ready;
  }

  /**
   * Resolves when every text whose sequence is over, and its fence has passed, has been offered to the tiers, and none
   * is on its way between them. Text that cannot be read now, for queued work or want of room, waits on
   * (`waitingTexts`).
   */
  async settled(): Promise<void> {
    this.#parts.transfers.synchronize();
    await this.#parts.demotions.settled();
    await this.#parts.followers.settled();
  }

  /**
   * Calls `visit` with every piece of stored text: an array that must not be kept, and the places [from, to) in it.
   * @internal
   */
  forTexts(visit: (tokens: Int32Array, from: number, to: number) => void): void {
    this.#parts.set.texts.forTexts(visit);
  }

  /** Whether a tier may have text that the cache has not heard of, since others store there too. */
  get mayHaveMore(): boolean {
    return this.#parts.set.all.some(({ tier, state }) => state === 'open' && tier.find !== undefined);
  }

  /** @internal */
  demotedTokens(domain: PrefixDomain, text: Int32Array, cachedTokens: number): number {
    return this.#parts.promotions.demotedTokens(domain, text, cachedTokens);
  }

  /** Throws KV_INTERNAL where the counts do not agree. @internal */
  verify(): void {
    this.#parts.set.verify();
  }

  /** For tests: the tiers at work. @internal */
  get opened(): readonly OpenTier[] {
    return this.#parts.set.all;
  }

  /** For tests: loads are timed by this clock from now on. @internal */
  timeLoadsBy(clock: LoadClock): void {
    this.#parts.promotions.clock = clock;
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
    return selectedOf(this.#parts.set, this.#parts.followers.means, domain, extent);
  }

  /** @internal */
  promote(request: PromotionRequest): Promise<Promotion> {
    return this.#parts.promotions.promote(request);
  }

  /**
   * Stores blocks of the fastest tier that can (`diskTier`) anew, tokens first that selections read most: later
   * selections then read fewer chunks. Bytes stay what they are for every reader. Call it when the disk has time.
   * Resolves how many blocks were; 0 at once while another run is under way. A block is considered once four selections
   * have read of it, and stored anew where that spares a quarter of the chunks that hold its most important tokens, as
   * many as selections read of it on average. Rejects with KV_INVALID_OPTION, also where no tier can, and with
   * KV_CLOSED.
   */
  reorder(options?: ReorderOptions): Promise<number> {
    return this.#parts.followers.reordering.run(options, this.#ready);
  }

  /**
   * The engine computed so many tokens of prompts in so long: by this loading and computing are compared. Schedulers
   * say it by themselves. 0 tokens say nothing. Throws KV_INVALID_OPTION unless both are numbers, at least 0.
   */
  hasPrefilled(tokens: number, milliseconds: number): void {
    atLeastZero(tokens, { owner: 'CacheTiers.hasPrefilled', option: 'tokens' });
    atLeastZero(milliseconds, { owner: 'CacheTiers.hasPrefilled', option: 'milliseconds' });
    this.#parts.promotions.prefill.measured(tokens, milliseconds);
  }

  /** Keeps what the device has of a text from being evicted. @internal */
  hold(domain: PrefixDomain, text: Int32Array): HeldText {
    return new HeldText(this.#parts.transfers, domain, text);
  }

  /** Ends loads, stores and holds under way; returns whether there were any. @internal */
  interrupt(): boolean {
    return this.#parts.transfers.interrupt();
  }

  /** @internal */
  setNamespace(namespace: string): void {
    this.#parts.followers.raisedTexts.setNamespace(namespace);
  }

  /** Drops what tiers have, and what waits to be stored. @internal */
  clear(): void {
    this.#parts.demotions.clear();
    this.#parts.followers.clear();
    this.#parts.set.clear();
  }

  /**
   * Drops what the scope says from the tiers, and from what waits to be stored. Resolves when it is gone there, but in
   * tiers that have answered nothing for as long as closing would wait. @internal
   */
  drop(scope: TextScope): Promise<DroppedBlocks> {
    const { demotions, followers, promotions, set } = this.#parts;
    demotions.drop(scope);
    followers.raisedTexts.drop(scope);
    return set.drop(scope, (work, { calls }) =>
      isOverBeforeSilence(work, [calls], this.#closeTimeoutMs, promotions.clock));
  }

  /** What each tier has, and what was done since the cache was opened. */
  metrics(): TiersMetrics {
    const { set, transfers, demotions, promotions: { prefill, totals }, followers, selections } = this.#parts;
    return {
      waitingTexts: demotions.waiting, droppedTexts: demotions.dropped, interruptedTransfers: transfers.interrupted,
      staging: transfers.staging, prefillTokensPerMs: prefill.tokensPerMs, promotions: { ...totals.ends },
      prefetches: { ...totals.hintEnds }, promotionTimes: totals.times, selections: selections.totals.copy(),
      raisedBlocks: followers.raised.raised, raisedTokens: followers.raisedTexts.tokens,
      reordering: followers.reordering.counts, tiers: set.all.map(tierMetrics),
    };
  }

  /**
   * Ends what is running; resolves when every tier is closed. Stores what is finished first, where the cache is still
   * open; what cannot be read then counts as dropped (`droppedTexts`). Rejects with KV_TIER_STALLED where a tier of
   * your own has answered nothing for `prefixCache.tierCloseTimeoutMs`, once the others are closed. Idempotent.
   */
  async close(): Promise<void> {
    void this.#parts.followers.stopRaising(); // what requests do not wait for
    if (this.#closing === undefined) await this.#untilSilence(this.settled().then(() => this.#parts.set.written()));
    await this.#end();
  }

  /**
   * The cache closes now: what was not stored is not, and a warning says so once. Its tiers are closed behind it.
   * @internal
   */
  end(): void {
    const texts = this.#closing === undefined ? this.#parts.demotions.unfinished : 0;
    if (texts > 0) warnOfLoss(texts);
    const isAwaited = this.#closing !== undefined;
    const closing = this.#end();
    if (!isAwaited) closing.catch(this.#report);
  }

  #end(): Promise<void> {
    this.#parts.promotions.stop();
    this.#parts.demotions.stop();
    this.#parts.transfers.forgetAll();
    for (const open of this.#parts.set.all) open.cancelReads();
    this.#closing ??= this.#closeTiers(this.#parts.followers.stop());
    this.#closing.catch(() => { /* it is told to those that wait for it */ });
    return this.#closing;
  }

  async #closeTiers(stopping: readonly Promise<unknown>[]): Promise<void> {
    const ending = [...stopping, ...this.#parts.set.all.flatMap(({ unwanted }) => unwanted)];
    if (ending.length > 0) await this.#untilSilence(Promise.allSettled(ending));
    await this.#untilSilence(this.#parts.set.close());
    if (this.#silent.size === 0) return;
    const calls = [...this.#silent.values()].reduce((sum, each) => sum + each, 0);
    throw createError('KV_TIER_STALLED', { tiers: [...this.#silent.keys()], calls, timeoutMs: this.#closeTimeoutMs });
  }

  /** Waits for something that calls tiers, as long as they answer; else notes those that do not. */
  async #untilSilence(work: Promise<unknown>): Promise<void> {
    if (await this.#isOver(work)) return;
    for (const { tier: { name }, calls: { underWay } } of this.#parts.set.all) {
      if (underWay > 0) this.#silent.set(name, Math.max(underWay, this.#silent.get(name) ?? 0));
    }
  }

  /** Resolves whether it ended before tiers were silent for too long. */
  #isOver(work: Promise<unknown>): Promise<boolean> {
    const { set, promotions } = this.#parts;
    return isOverBeforeSilence(work, set.all.map(({ calls }) => calls), this.#closeTimeoutMs, promotions.clock);
  }
}

let hasWarned = false;

/** Once in a process. */
function warnOfLoss(texts: number): void {
  if (hasWarned) return;
  hasWarned = true;
  process.emitWarning(
    `A KvCache was closed while ${formatCount('finished text', texts)} had not been offered to its tiers: ${texts === 1 ? 'it is' : 'they are'} not stored. ` +
    'End it with `await cache.shutdown()`, or call `await cache.prefixes.tiers.close()` before `cache.close()`.',
    { code: 'KV_TEXT_NOT_STORED' },
  );
}
