// Reclaim policies: from which slot rows are taken when pages are needed. Pure. Called again until enough is found; the cache
// takes rows from the end of the slot that is named, never more than its surplus.

import type { IdleSlots } from './idle-slots.js';

/** Returns one of the candidates' slots; each has surplus rows. `count` is at least 1. */
export type ReclaimPolicy = (idle: IdleSlots, neededRows: number) => number;

/**
 * The unused tails of active slots first, since they hold nothing, the longest first; then retired slots, the one released
 * longest ago first.
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
