// Slots to choose from, made from a list.

import type { SurplusSlots } from '#internal/cache/row-supply.js';

export interface Candidate {
  readonly slot: number;
  readonly rows: number;
  readonly lastUsed: number;
  /** Default: all rows. */
  readonly surplusRows?: number;
  readonly isActive?: boolean;
}

/** The candidates in this order; slots that are none of them have values that would win. */
export function idleSlots(...candidates: readonly Candidate[]): SurplusSlots {
  const count = 32;
  const idle = {
    count: candidates.length, slots: new Int32Array(count).fill(31), rows: new Int32Array(count).fill(1_000_000),
    surplusRows: new Int32Array(count).fill(1_000_000), isActive: new Uint8Array(count).fill(1),
    lastUsed: new Float64Array(count).fill(-1),
  };
  for (const [index, { slot, rows, lastUsed, surplusRows = rows, isActive = false }] of candidates.entries()) {
    idle.slots[index] = slot;
    idle.rows[slot] = rows;
    idle.surplusRows[slot] = surplusRows;
    idle.isActive[slot] = isActive ? 1 : 0;
    idle.lastUsed[slot] = lastUsed;
  }
  return idle;
}

/** All orders of a list. */
export function permutations<T>(items: readonly T[]): readonly (readonly T[])[] {
  if (items.length <= 1) return [items];
  return items.flatMap((item, index) => permutations(items.filter((_, other) => other !== index)).map((rest) => [item, ...rest]));
}
