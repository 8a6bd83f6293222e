// GivenUpRows: rows at the end of running sequences' slots that are not the sequence's any more, as others need them: it took tokens
// back behind a fork, say. They are unmapped at once, or stay mapped behind the slot's fence, and until then nobody can have their
// pages. Decides nothing.

import type { PagePool } from '../device/page-pool.js';
import type { SlotFences } from './slot-fences.js';
import { noForeignRow, slotStates } from './slot-table.js';
import { unmapRows, type SlotMemory } from './unmap-rows.js';
import type { SharedRows } from './shared-rows.js';

export interface GivenUpRowsParts extends SlotMemory {
  readonly pool: PagePool;
  readonly shared: SharedRows;
  readonly fences: SlotFences;
}

export class GivenUpRows {
  readonly #parts: GivenUpRowsParts;
  readonly #slots = new Set<number>();

  constructor(parts: GivenUpRowsParts) {
    this.#parts = parts;
  }

  /** Slots that have some. */
  get size(): number {
    return this.#slots.size;
  }

  /** The slot's rows from `row` on are not its own from here on, and what it was promised has ended. `settle` unmaps them. */
  add(slot: number, row: number): void {
    const { native, table, views } = this.#parts;
    this.#slots.add(slot);
    table.foreignRow[slot] = Math.min(table.foreignRow[slot]!, row);
    native.cancel(slot);
    views.revoke(slot);
    native.promise(slot, 0);
    table.promisedTokens[slot] = 0;
  }

  /** Unmaps those of an active slot, unless queued work may use them. Throws what the driver throws; they then stay. */
  settle(slot: number): void {
    const { pool, table, shared, fences } = this.#parts;
    if (!this.#slots.has(slot) || fences.isPending(slot)) return;
    if (table.foreignRow[slot] !== noForeignRow) unmapRows(this.#parts, slot, table.foreignRow[slot]!);
    shared.unmapped(slot);
    this.#slots.delete(slot);
    pool.capacity.raise();
  }

  /** The same for all slots. Throws the driver's first refusal, at the end. */
  settleAll(): void {
    const { table } = this.#parts;
    let failure: { readonly error: unknown } | undefined;
    for (const slot of this.#slots) {
      const isIdle = table.state[slot] === slotStates.idle; // then it is IdlePrefixes' part
      if (isIdle || table.isQuarantined[slot] === 1) this.#slots.delete(slot);
      try {
        if (table.state[slot] === slotStates.active) this.settle(slot);
      } catch (error) {
        failure ??= { error };
      }
    }
    if (failure !== undefined) throw failure.error;
  }

  /** Waits until the slot can be written up to its row `rows` - 1, and unmaps what is in the way. Throws as `SlotFences.wait`. */
  clear(slot: number, rows: number): void {
    const { table, fences } = this.#parts;
    if (table.foreignRow[slot]! >= rows) return;
    fences.wait(slot, 'write to');
    this.settle(slot);
  }
}
