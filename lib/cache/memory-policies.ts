// The policies of memory, all pure: growth (how far ahead of its length a sequence should have memory), placement
// (which idle slot a new sequence gets) and reclaim (from which slot rows are taken when pages are needed). They see
// plain numbers and the cache's own arrays, so that a step allocates nothing.

import { checkInteger } from '../base/options.js';

/** Slots that a placement or reclaim policy chooses from. The arrays must not be changed or kept. */
export interface IdleSlots {
  /** How many candidates there are. */
  count: number;
  /** The candidates: the first `count` entries. */
  readonly slots: Int32Array;
  /** Rows mapped in each slot. */
  readonly rows: Int32Array;
  /**
   * Rows of each candidate that hold nothing that is needed: all of a retired slot, the unused tail of an active one.
   */
  readonly surplusRows: Int32Array;
  /** 1 for candidates that a sequence uses: only their tail is surplus. */
  readonly isActive: Uint8Array;
  /** When each slot was released or acquired last: larger is later. */
  readonly lastUsed: Float64Array;
}

/**
 * `lengthTokens`: tokens of the sequence that are valid. `earmarkedTokens`: tokens that memory was earmarked for at
 * `acquire` (its whole prompt; 0 without). Returns the tokens that should be mapped soon; less than `lengthTokens`
 * means nothing, Infinity as many as a slot has. What is no number is refused (KV_INVALID_OPTION) once the commit is
 * done.
 */
export type GrowthPolicy = (lengthTokens: number, earmarkedTokens: number) => number;

/** Maps nothing ahead: rows appear in `prepare`, when they are needed. The fewest pages, and the longest steps. */
export function onDemand(): GrowthPolicy {
  return (lengthTokens) => lengthTokens;
}

/**
 * Maps ahead in the background: the whole earmarked prompt, whose pages are set aside for it anyway, and then the row
 * that the next `tokens` tokens will touch. Default 16: enough steps for the mapper to be done before the row is
 * needed.
 */
export function ahead(tokens = 16): GrowthPolicy {
  checkInteger('ahead', 'tokens', tokens, 1);
  return (lengthTokens, earmarkedTokens) => Math.max(lengthTokens + tokens, earmarkedTokens);
}

/**
 * Returns one of the candidates' slots. `neededRows` is what the prompt needs, 0 when it is not known. `count` is at
 * least 1.
 */
export type PlacementPolicy = (idle: IdleSlots, neededRows: number) => number;

/**
 * The slot whose mapped rows fit best: the fewest of those with enough, else the most of those with too few; so that
 * the least is mapped now and the least left unused. Among equals the one released longest ago.
 */
export function bestFit(): PlacementPolicy {
  return ({ count, slots, rows, lastUsed }, neededRows) => {
    let best = slots[0]!;
    for (let index = 1; index < count; index += 1) {
      const slot = slots[index]!;
      const order = compareFit(rows[slot]!, rows[best]!, neededRows);
      if (order < 0 || (order === 0 && lastUsed[slot]! < lastUsed[best]!)) best = slot;
    }
    return best;
  };
}

/** Negative when `rows` fits better than `other`. */
export function compareFit(rows: number, other: number, neededRows: number): number {
  const isEnough = rows >= neededRows;
  if (isEnough !== other >= neededRows) return isEnough ? -1 : 1;
  return isEnough ? rows - other : other - rows;
}

/** Returns one of the candidates' slots; each has surplus rows. `count` is at least 1. */
export type ReclaimPolicy = (idle: IdleSlots, neededRows: number) => number;

/**
 * Rows that no new sequence can be given in place first: the unused tails of active slots, then those behind the text
 * of retired ones, the longest first. Then retired slots that hold nothing, the one with fewest rows first, so that a
 * long prompt finds many in one slot; among equals the one released longest ago. The default: on a trace whose memory
 * is full it maps a sixth less than `leastRecentlyUsed`.
 */
export function tailsFirst(): ReclaimPolicy {
  return ({ count, slots, rows, surplusRows, isActive, lastUsed }) => {
    const rank = (slot: number): number => (isActive[slot] === 1 ? 0 : surplusRows[slot]! < rows[slot]! ? 1 : 2);
    let best = slots[0]!;
    for (let index = 1; index < count; index += 1) {
      const slot = slots[index]!;
      const order = rank(slot) - rank(best) ||
        (rank(slot) < 2 ? surplusRows[best]! - surplusRows[slot]! : surplusRows[slot]! - surplusRows[best]!)
          || lastUsed[slot]! - lastUsed[best]!;
      if (order < 0) best = slot;
    }
    return best;
  };
}

/**
 * The unused tails of active slots first, since they hold nothing, the longest first; then retired slots, the one
 * released longest ago first.
 */
export function leastRecentlyUsed(): ReclaimPolicy {
  return ({ count, slots, surplusRows, isActive, lastUsed }) => {
    let best = slots[0]!;
    for (let index = 1; index < count; index += 1) {
      const slot = slots[index]!;
      if (isActive[slot] !== isActive[best]) {
        if (isActive[slot] === 1) best = slot;
      } else if (isActive[slot] === 1 ? surplusRows[slot]! > surplusRows[best]! : lastUsed[slot]! < lastUsed[best]!) {
        best = slot;
      }
    }
    return best;
  };
}
