// Progress and Patience of a promotion: how far it has come and how fast each tier was, and how long it waits before
// its request had better compute.

import type { LoadClock } from '../tiers/load-clock.js';
import { FreeTime } from '../tiers/free-time.js';
import { readsAtATime, type LoadEstimate, type TimedBytes } from '../tiers/load-estimate.js';
import type { Fetched, OpenTier } from '../tiers/open-tier.js';
import type { PromotionRequest } from './promotion.js';

/**
 * Of the latest blocks of a tier, by which its rate within a load is measured: as many as are read at a time. Reads
 * that begin together may end together, and the next ones as much later; over so many of them that is the tier's rate,
 * whether latency or bandwidth makes it.
 */
const latest = readsAtATime;

interface TierLoad {
  readonly first: TimedBytes;
  bytes: number;
  ms: number;
  /**
   * When the latest blocks were there, and how many bytes with each of them; before the first of them lies the latency.
   */
  readonly arrivals: { readonly atMs: number; readonly bytes: number }[];
}

/** How far a promotion has come, and what that took. */
export class Progress {
  tokens: number;
  readonly from: Record<string, number> = {};
  readonly #clock: LoadClock;
  readonly #loads = new Map<OpenTier, TierLoad>();
  #lastMs: number;

  constructor(tokens: number, clock: LoadClock) {
    this.tokens = tokens;
    this.#clock = clock;
    this.#lastMs = clock.now();
  }

  /** Blocks up to `tokens` are on the device; the last of them came as `fetched`. */
  reach(tokens: number, { from: open, payload }: Fetched): void {
    const brought = tokens - this.tokens;
    this.from[open.tier.name] = (this.from[open.tier.name] ?? 0) + brought;
    open.counts.promotedTokens += brought;
    this.tokens = tokens;
    this.waited(open, payload.length);
  }

  /** It waited for so many bytes of a tier. */
  waited(open: OpenTier | undefined, bytes: number): void {
    const nowMs = this.#clock.now();
    if (open !== undefined) {
      const milliseconds = nowMs - this.#lastMs;
      let load = this.#loads.get(open);
      if (load === undefined) {
        this.#loads.set(open, load = { first: { bytes, milliseconds }, bytes: 0, ms: 0, arrivals: [] });
      }
      load.bytes += bytes;
      load.ms += milliseconds;
      load.arrivals.push({ atMs: nowMs, bytes: load.bytes });
      if (load.arrivals.length > latest + 1) load.arrivals.shift();
    }
    this.#lastMs = nowMs;
  }

  /** How long it has waited for what comes next. */
  get waitingMs(): number {
    return this.#clock.now() - this.#lastMs;
  }

  /**
   * How long so many bytes more of each tier are likely to take, at the rate of its latest blocks; no time where fewer
   * than two of them came.
   */
  msOf(left: ReadonlyMap<OpenTier, number>): number {
    let sum = 0;
    for (const [open, bytes] of left) {
      const arrivals = this.#loads.get(open)?.arrivals ?? [];
      if (arrivals.length < 2) continue;
      const [first, last] = [arrivals[0]!, arrivals.at(-1)!];
      sum += ((last.atMs - first.atMs) / (last.bytes - first.bytes)) * bytes;
    }
    return sum;
  }

  /** Tells the tiers how fast they were. What `tried` was before no longer counts. */
  measure(tried: OpenTier | undefined): void {
    for (const [open, { bytes, ms, first }] of this.#loads) {
      if (open === tried) open.estimate.startOver();
      open.estimate.measured({ bytes, milliseconds: ms }, first);
    }
  }
}

/** By what a wait for a tier is measured. */
export interface WaitCost {
  /** How long the whole load of the tier was likely to take. */
  readonly loadMs: number;
  /** How long computing what is left would take; Infinity: not known. */
  readonly computeMs: number;
  /** Whether the tier is tried although it was slow: then it is not waited for as long as that took. */
  readonly isTrial: boolean;
}

/**
 * Of the time that computing takes: what a request waits for an answer beyond what that took before, and for what
 * others have stored.
 */
const share = 0.05;
/** The same where neither the engine nor the tier was measured. */
const firstAnswerMs = 250;

/** Ends a promotion that has waited too long. Time in which this thread computed is none. */
export class Patience {
  readonly #limit: AbortController;
  readonly #clock: LoadClock;
  #time: FreeTime | undefined;

  constructor(limit: AbortController, clock: LoadClock) {
    this.#limit = limit;
    this.#clock = clock;
  }

  /** How long a request waits for the next answer of a tier; Infinity: as long as it takes. */
  static answerMs(
    { isHint, deadlineMs }: PromotionRequest, estimate: LoadEstimate | undefined,
    { loadMs, computeMs, isTrial }: WaitCost,
  ): number {
    const answerMs = estimate?.answerMs;
    if (isHint) return Infinity;
    if (computeMs === Infinity) return answerMs === undefined && deadlineMs === undefined ? firstAnswerMs : Infinity;
    if (isTrial || answerMs === undefined) return share * computeMs;
    return share * computeMs + Math.min(answerMs, computeMs, estimate!.isMeasured ? loadMs : Infinity);
  }

  /**
   * How long a request waits to hear what others have stored of text that takes so long to compute, `leastMs` being how
   * long the fastest of the tier's latest answers took; Infinity: as long as it takes; 0: it is not waited for.
   */
  static findMs(
    { isHint, deadlineMs }: Pick<PromotionRequest, 'isHint' | 'deadlineMs'>, leastMs: number | undefined,
    computeMs: number,
  ): number {
    if (isHint) return Infinity;
    if (computeMs === Infinity) return deadlineMs === undefined ? firstAnswerMs + (leastMs ?? 0) : Infinity;
    const mostMs = share * computeMs;
    return leastMs !== undefined && leastMs > mostMs ? 0 : mostMs;
  }

  /** It lasts so long from now on; then, each time, as long as `moreMs` says, until that is nothing. */
  last(milliseconds: number, moreMs: (waitedMs: number) => number = () => 0): void {
    this.end();
    const time = this.#time = new FreeTime(this.#clock, 0, true);
    const lastFor = (ms: number): void => {
      if (ms === Infinity) return;
      const untilMs = time.milliseconds + ms;
      // What arrived while the engine had the thread is looked at first.
      time.at(untilMs, () => { time.at(untilMs, ask); });
    };
    const ask = (): void => {
      const ms = moreMs(time.milliseconds);
      if (ms > 0) {
        lastFor(ms);
        return;
      }
      this.end();
      this.#limit.abort('recompute-cheaper');
    };
    lastFor(milliseconds);
  }

  /** It is not counted any more. Returns how long that was. */
  end(): number {
    const ms = this.#time?.end() ?? 0;
    this.#time = undefined;
    return ms;
  }
}
