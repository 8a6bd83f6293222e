// Promotion: what bringing stored text back to the device came to, and why it ended.

import type { SelectedText } from '../importance/selected-text.js';
import type { LoadComparison } from '../tiers/load-comparison.js';

export const promotionEnds = ['complete', 'deadline', 'aborted', 'recompute-cheaper', 'no-memory', 'corrupt', 'unreachable'] as const;
/**
 * Why no more came: `complete`: all that is stored is on the device · `deadline`, `aborted`: it was ended before · `recompute-cheaper`:
 * loading would take longer than computing, as measured · `no-memory`: the device has no room that is not in use · `corrupt`: what
 * a tier has is not what was stored · `unreachable`: a tier does not answer.
 */
export type PromotionEnd = (typeof promotionEnds)[number];

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
  /** Loading against computing, as it was estimated before anything was loaded; undefined: tiers had nothing to load. */
  readonly estimate: LoadComparison | undefined;
  /** What to acquire a sequence with that is given part of the stored text; undefined: it was not asked for, or there is no more than is cached. */
  readonly selected?: SelectedText | undefined;
  /** How long it took. */
  readonly milliseconds: number;
}
