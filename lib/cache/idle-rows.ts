// IdleRows: rows that idle slots map without text in them. One idle slot has them ready for the next prompt, and
// together they have no more than the cache's limit.

import type { RowSupply } from './row-supply.js';
import type { SlotChoice } from './slot-choice.js';
import type { SlotMemory } from './slot-memory.js';

export interface IdleRowsRules {
  /** Rows that the idle slot with most of them is to have. */
  readonly eagerRows: number;
  readonly idleRowsLimit: number;
}

export class IdleRows {
  readonly #memory: SlotMemory;
  readonly #supply: RowSupply;
  readonly #choice: SlotChoice;
  readonly #rules: IdleRowsRules;
  readonly #pair = new Int32Array(2);
  /** The idle slot that rows were requested for last, or -1. */
  #eagerSlot = -1;

  constructor(memory: SlotMemory, supply: RowSupply, choice: SlotChoice, rules: IdleRowsRules) {
    this.#memory = memory;
    this.#supply = supply;
    this.#choice = choice;
    this.#rules = rules;
  }

  /**
   * Requests rows for the idle slot that has most, if none has enough for the next prompt; no more than idle slots may
   * have together.
   */
  keepEager(): void {
    const { eagerRows, idleRowsLimit } = this.#rules;
    if (eagerRows === 0) return;
    const { native, slots } = this.#memory;
    const best = this.#choice.fullestBlank();
    if (best < 0) return;
    const rows = Math.min(eagerRows, slots.rows[best]! + idleRowsLimit - this.#choice.blankRows());
    if (slots.rows[best]! >= rows) return;
    this.#eagerSlot = best;
    this.#pair[0] = best;
    this.#pair[1] = rows;
    native.request(this.#pair, 1);
  }

  /** Unmaps what idle slots have beyond the limit. Throws what the driver throws. */
  keepToLimit(): void {
    const { native, slots } = this.#memory;
    const { idleRowsLimit } = this.#rules;
    if (idleRowsLimit === Number.MAX_SAFE_INTEGER) return;
    if (this.#eagerSlot >= 0 && slots.isFree(this.#eagerSlot)) native.cancel(this.#eagerSlot); // until `keepEager`
    this.#supply.limitIdleRows(idleRowsLimit);
  }
}
