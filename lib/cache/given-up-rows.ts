// GivenUpRows: rows at the end of running sequences' slots that are not the sequence's any more, as other sequences
// need them: it took tokens back behind a fork, say. They are unmapped at once, or stay mapped behind the slot's fence,
// and until then their pages are not free. Decides nothing.

import type { RowRegistry } from './row-registry.js';
import type { SlotMemory } from './slot-memory.js';
import { noForeignRow, slotStates } from './slots.js';

export class GivenUpRows {
  readonly #memory: SlotMemory;
  readonly #registry: RowRegistry;
  readonly #slots = new Set<number>();
  /** Slots that have some. */
  readonly slots: ReadonlySet<number> = this.#slots;

  constructor(memory: SlotMemory, registry: RowRegistry) {
    this.#memory = memory;
    this.#registry = registry;
  }

  /**
   * The slot's rows from `row` on are not its own from here on, and what was set aside for it is not any more. `unmap`
   * unmaps them.
   */
  add(slot: number, row: number): void {
    const { native, slots, views } = this.#memory;
    this.#slots.add(slot);
    slots.giveUpRows(slot, row);
    native.cancel(slot);
    views.revoke(slot);
    native.earmark(slot, 0);
  }

  /** Unmaps those of an active slot, unless queued work may use them. Throws what the driver throws; they then stay. */
  unmap(slot: number): void {
    const { pool, slots } = this.#memory;
    if (!this.#slots.has(slot) || this.#memory.fences.isPending(slot)) return;
    if (slots.foreignRow[slot] !== noForeignRow) this.#memory.unmap(slot, slots.foreignRow[slot]!);
    this.#registry.unmapped(slot);
    this.#slots.delete(slot);
    pool.capacity.raise();
  }

  /** The same for all slots. Throws the driver's first refusal, at the end. */
  unmapAll(): void {
    const { slots } = this.#memory;
    let failure: { readonly error: unknown } | undefined;
    for (const slot of this.#slots) {
      const isIdle = slots.state[slot] === slotStates.idle; // then CachedRows unmaps them
      if (isIdle || slots.isQuarantined[slot] === 1) this.#slots.delete(slot);
      try {
        if (slots.state[slot] === slotStates.active) this.unmap(slot);
      } catch (error) {
        failure ??= { error };
      }
    }
    if (failure !== undefined) throw failure.error;
  }

  /**
   * Waits until the slot can be written up to its row `rows` - 1, and unmaps what is in the way. Throws as
   * `SlotFences.wait`.
   */
  clear(slot: number, rows: number): void {
    if (this.#memory.slots.foreignRow[slot]! >= rows) return;
    this.#memory.fences.wait(slot, 'write to');
    this.unmap(slot);
  }
}
