// Placement policies: which idle slot a new sequence gets. Pure.

import type { IdleSlots } from './idle-slots.js';

/** Returns one of the candidates' slots. `neededRows` is what the prompt needs, 0 when it is not known. `count` is at least 1. */
export type PlacementPolicy = (idle: IdleSlots, neededRows: number) => number;

/**
 * The slot whose mapped rows fit best: the fewest of those with enough, else the most of those with too few; so that the
 * least is mapped now and the least left unused. Among equals the one released longest ago.
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
function compareFit(rows: number, other: number, neededRows: number): number {
  const isEnough = rows >= neededRows;
  if (isEnough !== other >= neededRows) return isEnough ? -1 : 1;
  return isEnough ? rows - other : other - rows;
}
