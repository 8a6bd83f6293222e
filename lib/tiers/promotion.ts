// PromotionRequest: what is to be brought back to the device. Promotion: what that came to, and why it ended; and how
// all of them ended since the cache was opened, for metrics and for an operator's questions.

import { RecentMap } from '../base/recent-map.js';
import { TimeHistogram } from '../base/time-histogram.js';
import type { PrefixDomain } from '../prefix/domain.js';
import type { SelectedText } from './selection/selected-text.js';
import type { LoadComparison } from './load-plan.js';

export const promotionEnds =
  ['complete', 'deadline', 'aborted', 'recompute-cheaper', 'no-memory', 'corrupt', 'lost', 'unreachable'] as const;
/**
 * Why no more came: `complete`: all that is stored is on the device · `deadline`, `aborted`: it was ended before, by
 * the cache's closing also · `recompute-cheaper`: loading would take longer than computing, as measured, or a tier did
 * not say in time what others have stored there · `no-memory`: the device has no room that is not in use · `corrupt`:
 * what a tier has is not what was stored · `lost`: its store has dropped it · `unreachable`: a tier does not answer, or
 * is opening.
 */
export type PromotionEnd = (typeof promotionEnds)[number];

/** A prompt, and how long bringing its text may take. */
export interface PromotionRequest {
  readonly domain: PrefixDomain;
  readonly text: Int32Array;
  readonly priority: number;
  readonly deadlineMs: number | undefined;
  readonly signal: AbortSignal | undefined;
  /** Whether no request waits for it. */
  readonly isHint: boolean;
  /** A hint of the cache's own: for blocks that are known, and no use of their text. */
  readonly isPlacement?: boolean;
}

/** What a promotion brought. */
export interface Promotion {
  /** Tokens from the start of the prompt that are on the device now. */
  readonly cachedTokens: number;
  /** Of these, tokens that this promotion brought. */
  readonly promotedTokens: number;
  /** The same by the name of the tier they came from. */
  readonly promotedFrom: Readonly<Record<string, number>>;
  /** Why no more. */
  readonly end: PromotionEnd;
  /**
   * Loading against computing, as it was estimated before anything was loaded; undefined: tiers had nothing to load.
   */
  readonly estimate: LoadComparison | undefined;
  /**
   * What to acquire a sequence with that is given part of the stored text; undefined: it was not asked for, or there is
   * no more than is cached.
   */
  readonly selected?: SelectedText | undefined;
  /** How long it took. */
  readonly milliseconds: number;
}

/** Why text was left in its tiers, and when. */
export interface LeftInTiers {
  /** How the promotion ended that came there. */
  readonly end: Exclude<PromotionEnd, 'complete'>;
  /** Of the cache's clock (`prefixCache.now`). */
  readonly atMs: number;
}

/** How promotions ended, how long they took, and which text they left in its tiers. */
export class PromotionTotals {
  /** How many ended how, of those that requests waited for. */
  readonly ends = Object.fromEntries(promotionEnds.map((end) => [end, 0])) as Record<PromotionEnd, number>;
  /** The same of hints. */
  readonly hintEnds = Object.fromEntries(promotionEnds.map((end) => [end, 0])) as Record<PromotionEnd, number>;
  /** How long those that had something to load took, hints left out. */
  readonly times = new TimeHistogram([1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000]);
  readonly #now: () => number;
  /** By the key of the first block that was left. */
  readonly #left = new RecentMap<LeftInTiers>(1024);

  constructor(now: () => number) {
    this.#now = now;
  }

  /** @param left Key of the first block that could have been brought and was not. */
  note({ end, estimate, milliseconds }: Promotion, isHint: boolean, left: string | undefined): void {
    if (estimate !== undefined || end !== 'complete') (isHint ? this.hintEnds : this.ends)[end] += 1;
    if (estimate !== undefined && !isHint) this.times.observe(milliseconds);
    if (left === undefined || end === 'complete') return;
    this.#left.set(left, { end, atMs: this.#now() });
  }

  /** Why the block with this key was not brought lately; undefined: nothing tried to. */
  leftAt(key: string): LeftInTiers | undefined {
    return this.#left.get(key);
  }
}
