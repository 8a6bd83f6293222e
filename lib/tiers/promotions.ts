// Promotions: bring stored text back to the device ahead of the request that needs it. What comes is cached as if a
// sequence had computed it; the request then finds it. A promotion stops where going on would cost more than computing,
// at its deadline, and when it is cancelled; what has come by then stays. A hint is a promotion that no request waits
// for: requests come first, and it takes its time.

import { setMaxListeners } from 'node:events';

import type { CachedRows } from '../cache/cached-rows.js';
import { after } from '../device/wait.js';
import type { PrefixDomain } from '../prefix/domain.js';
import { aborted, ForeignBlocks, type FindRequest, type Unasked } from './foreign-blocks.js';
import { type LoadClock, processClock } from './load-clock.js';
import { LoadDeadline, PrefillRate } from './load-estimate.js';
import { type LoadComparison, LoadPlan, type MissingBlocks, type WantedBlocks } from './load-plan.js';
import { PromotionTotals, type Promotion, type PromotionEnd, type PromotionRequest } from './promotion.js';
import type { StoredBlock } from './stored-texts.js';
import { type Attempt, type BroughtText, TextLoad } from './text-load.js';
import type { TierSet } from './tier-set.js';
import type { Transfers } from './transfers.js';

/** Promotions that load at the same time; others wait for one of them. */
export const mostPromotions = 3;
/** Of these, hints. */
const mostHints = 1;

/** A load under way. */
interface Running {
  loading: Promise<unknown>;
  /** How often blocks came. */
  arrivals: number;
}

export class Promotions {
  readonly prefill = new PrefillRate();
  readonly totals: PromotionTotals;
  readonly #cached: CachedRows;
  readonly #tiers: TierSet;
  readonly #transfers: Transfers;
  readonly #foreign: ForeignBlocks;
  /** Those under way, by the key of the first block that each brings. */
  readonly #running = new Map<string, Running>();
  /** What ends those that are not over. */
  readonly #limits = new Set<AbortController>();
  /** Of these, of placements. */
  readonly #placements = new Set<AbortController>();
  #hints = 0;
  #waiting = 0;
  /** What is loaded from now on is timed by it. */
  clock: LoadClock = processClock;

  constructor(cached: CachedRows, tiers: TierSet, transfers: Transfers, now: () => number) {
    this.totals = new PromotionTotals(now);
    this.#cached = cached;
    this.#tiers = tiers;
    this.#transfers = transfers;
    this.#foreign = new ForeignBlocks(tiers, this.prefill);
  }

  /** Tokens of a text behind the first `cachedTokens` that tiers are known to have. */
  demotedTokens(domain: PrefixDomain, text: Int32Array, cachedTokens: number): number {
    return this.missing(domain, text, Math.max(0, text.length - 1), cachedTokens).tokens - cachedTokens;
  }

  /** Never rejects for what a tier does; for what the driver refuses. */
  async promote(request: PromotionRequest): Promise<Promotion> {
    const limit = new AbortController();
    this.#limits.add(limit);
    if (request.isPlacement === true) this.#placements.add(limit);
    setMaxListeners(0, limit.signal); // one for each block under way
    const stopTimer =
      request.deadlineMs === undefined ? undefined : after(() => { limit.abort('deadline'); }, request.deadlineMs);
    const abort = (): void => { limit.abort('aborted'); };
    request.signal?.addEventListener('abort', abort, { once: true });
    if (request.signal?.aborted === true) abort();
    const loadDeadline = new LoadDeadline(limit, this.clock);
    const beganMs = this.clock.now();
    try {
      const promotion = {
        ...await this.#promote({ ...request, limit, loadDeadline, over: aborted(limit.signal) }),
        milliseconds: this.clock.now() - beganMs,
      };
      const { domain, text, isHint, isPlacement } = request;
      if (isPlacement === true) return promotion;
      const { cachedTokens } = promotion;
      const left =
        promotion.end === 'complete' ? undefined : this.missing(domain, text, text.length, cachedTokens).blocks[0];
      this.totals.note(promotion, isHint, left?.key);
      return promotion;
    } finally {
      this.#limits.delete(limit);
      this.#placements.delete(limit);
      stopTimer?.();
      loadDeadline.end();
      request.signal?.removeEventListener('abort', abort);
    }
  }

  /** Whether requests or hints of users wait for a load that is under way: none is to be begun before theirs. */
  get isAwaited(): boolean {
    return this.#waiting > 0;
  }

  /** Ends placements that are under way, as `aborted`. */
  stopPlacements(): void {
    for (const limit of this.#placements) limit.abort('aborted');
  }

  /** Ends all that are under way, as `aborted`. */
  stop(): void {
    for (const limit of this.#limits) limit.abort('aborted');
  }

  async #promote(attempt: Attempt): Promise<Omit<Promotion, 'milliseconds'>> {
    const { domain, text, isHint, isPlacement, limit: { signal: limit } } = attempt;
    const unasked = isPlacement === true ? undefined : await this.findElsewhere(attempt, limit);
    let estimate: LoadComparison | undefined;
    const atFirst = this.cachedTokens(domain, text);
    let waitedMs = 0;
    for (;;) {
      const cachedTokens = this.cachedTokens(domain, text);
      const missing = this.missing(domain, text, text.length, cachedTokens);
      const first = missing.blocks[0];
      const ended = (end: PromotionEnd): Omit<Promotion, 'milliseconds'> => (
        { cachedTokens, promotedTokens: 0, promotedFrom: {}, end, estimate });
      if (first === undefined && unasked === undefined) return ended(this.#endAt(domain, text, cachedTokens));
      if (limit.aborted) return ended(limit.reason as PromotionEnd);
      if (first === undefined) return ended(unasked!);

      const plan = this.#plan(missing, cachedTokens);
      const now = plan.compare();
      estimate ??= now;
      const same = this.#running.get(first.key); // another prompt with the same text
      if (same !== undefined || this.#running.size >= mostPromotions || (isHint && this.#hints >= mostHints)) {
        const computeMs = this.prefill.milliseconds(now.tokens);
        const answerMs = LoadDeadline.answerMs(
          attempt, plan.sourceOf(first)?.estimate, { loadMs: now.loadMs, computeMs, isTrial: false });
        // Worth a wait is what another's load of this text brings, or what one of its own would spare.
        const worthMs = (): number => (same === undefined ? computeMs - now.loadMs
          : this.prefill.milliseconds(this.cachedTokens(domain, text) - atFirst));
        const before = waitedMs;
        if (isPlacement !== true && same === undefined) this.stopPlacements();
        waitedMs += await this.#await(
          attempt, same === undefined ? [...this.#running.values()] : [same], answerMs,
          () => worthMs() + answerMs - before);
        continue;
      }

      const wanted = isHint ? { ...missing, tried: undefined } : plan.worthLoading(now);
      if (wanted.blocks.length === 0) return ended('recompute-cheaper');
      plan.passOver();
      const brought = await this.#load(first, attempt, wanted);
      const nowCached = this.cachedTokens(domain, text);
      const rest = wanted.blocks.length < missing.blocks.length ? 'recompute-cheaper' : unasked ?? 'complete';
      const whole = rest === 'complete' ? this.#endAt(domain, text, nowCached) : rest;
      return { ...brought, cachedTokens: nowCached, estimate, end: brought.end === 'complete' ? whole : brought.end };
    }
  }

  /** Brings these blocks, the first of which is `first`, as far as that is worth it. */
  async #load(first: StoredBlock, attempt: Attempt, wanted: WantedBlocks): Promise<BroughtText> {
    const { isHint } = attempt;
    const running: Running = { loading: Promise.resolve(), arrivals: 0 };
    const transfer = this.#transfers.open(attempt, wanted.tokens, true);
    if (transfer === undefined) return { promotedTokens: 0, promotedFrom: {}, end: 'no-memory' };
    const loading = new TextLoad({
      tiers: this.#tiers, transfers: this.#transfers, transfer, prefill: this.prefill, attempt, wanted,
      clock: this.clock, noteArrival: () => { running.arrivals += 1; },
    }).run();
    running.loading = loading;
    this.#running.set(first.key, running);
    this.#hints += isHint ? 1 : 0;
    try {
      return await loading;
    } finally {
      this.#running.delete(first.key);
      this.#hints -= isHint ? 1 : 0;
    }
  }

  /**
   * Waits until one of these loads is over, as long as they bring something: `answerMs` for the next of it, and no
   * longer than `mostMs` says in all. Returns how long.
   */
  async #await(
    { loadDeadline, over, isPlacement }: Attempt, loads: readonly Running[], answerMs: number, mostMs: () => number,
  ): Promise<number> {
    const arrivals = (): number => loads.reduce((sum, load) => sum + load.arrivals, 0);
    let seen = arrivals();
    loadDeadline.last(Math.min(answerMs, mostMs()), (waitedMs) => {
      if (arrivals() === seen) return 0;
      seen = arrivals();
      return Math.min(answerMs, mostMs() - waitedMs);
    });
    const waiting = isPlacement === true ? 0 : 1;
    this.#waiting += waiting;
    await Promise.race([...loads.map(({ loading }) => loading), over]).catch(() => { /* it was told elsewhere */ });
    this.#waiting -= waiting;
    return loadDeadline.end();
  }

  /**
   * `complete` only where all that is stored is on the device: else what came is gone again, or a block before what is
   * stored was lost.
   */
  #endAt(domain: PrefixDomain, text: Int32Array, cachedTokens: number): PromotionEnd {
    if (this.missing(domain, text, text.length, cachedTokens).tokens > cachedTokens) return 'no-memory';
    const { blocks, partial, tokens } = this.#tiers.match(domain, text);
    const isStored = [...blocks, partial].some((
      block,
    ) => block !== undefined && block.tiers !== 0 && Math.min(block.to, tokens) > cachedTokens);
    return isStored ? 'lost' : 'complete';
  }

  /**
   * Blocks behind the first `cachedTokens` of text[0, limit) that tiers have, without a hole, and tokens up to where
   * they agree.
   */
  missing(domain: PrefixDomain, text: Int32Array, limit: number, cachedTokens: number): MissingBlocks {
    const { blocks, partial, tokens } = this.#tiers.match(domain, text, limit);
    const missing: StoredBlock[] = [];
    for (const block of partial === undefined ? blocks : [...blocks, partial]) {
      if (Math.min(block.to, tokens) <= cachedTokens) continue; // also where it goes on with other tokens
      if (block.tiers === 0) break;
      missing.push(block);
    }
    return { blocks: missing, tokens: Math.max(cachedTokens, Math.min(tokens, missing.at(-1)?.to ?? 0)) };
  }

  /**
   * Asks tiers whose blocks others store too, for whole blocks that are not known yet, for as long as that is worth it.
   * Returns why it is not known what all have.
   */
  findElsewhere(request: FindRequest, limit: AbortSignal): Promise<Unasked | undefined> {
    return this.#foreign.find(request, limit, this.clock);
  }

  /** Loading these blocks against computing their tokens; undefined: there are none. */
  compare(missing: MissingBlocks, cachedTokens: number): LoadComparison | undefined {
    return missing.blocks.length === 0 ? undefined : this.#plan(missing, cachedTokens).compare();
  }

  #plan(missing: MissingBlocks, cachedTokens: number): LoadPlan {
    return new LoadPlan(this.#tiers, missing, cachedTokens, this.prefill);
  }

  /** Tokens of the text's start that are on the device. */
  cachedTokens(domain: PrefixDomain, text: Int32Array): number {
    this.#cached.flushCommits();
    return this.#cached.index.match(domain, text, text.length).tokens;
  }
}
