// PromotionTotals: how promotions ended, since the cache was opened, how long they took, and which text they left in its tiers: for metrics and
// for an operator's questions.

import { TimeHistogram } from '../base/time-histogram.js';
import { promotionEnds, type Promotion, type PromotionEnd } from './promotion.js';

/** Why text was left in its tiers, and when. */
export interface LeftInTiers {
  /** How the promotion ended that came there. */
  readonly end: Exclude<PromotionEnd, 'complete'>;
  /** Of the cache's clock (`prefixCache.now`). */
  readonly atMs: number;
}

/** Texts whose end is remembered. */
const most = 1024;

export class PromotionTotals {
  /** How many ended how, of those that requests waited for. */
  readonly ends = Object.fromEntries(promotionEnds.map((end) => [end, 0])) as Record<PromotionEnd, number>;
  /** The same of hints. */
  readonly hintEnds = Object.fromEntries(promotionEnds.map((end) => [end, 0])) as Record<PromotionEnd, number>;
  /** How long those that had something to load took, hints left out. */
  readonly times = new TimeHistogram([1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000]);
  readonly #now: () => number;
  /** By the key of the first block that was left. The oldest is first. */
  readonly #left = new Map<string, LeftInTiers>();

  constructor(now: () => number) {
    this.#now = now;
  }

  /** @param left Key of the first block that could have been brought and was not. */
  note({ end, estimate, milliseconds }: Promotion, isHint: boolean, left: string | undefined): void {
    if (estimate !== undefined || end !== 'complete') (isHint ? this.hintEnds : this.ends)[end] += 1;
    if (estimate !== undefined && !isHint) this.times.observe(milliseconds);
    if (left === undefined || end === 'complete') return;
    this.#left.delete(left);
    this.#left.set(left, { end, atMs: this.#now() });
    if (this.#left.size <= most) return;
    const [oldest] = this.#left.keys();
    this.#left.delete(oldest!);
  }

  /** Why the block with this key was not brought lately; undefined: nothing tried to. */
  leftAt(key: string): LeftInTiers | undefined {
    return this.#left.get(key);
  }
}
