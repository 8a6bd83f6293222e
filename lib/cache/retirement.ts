// Retirement: released slots that work may still be using: a batch that is prepared and not committed yet, or what their fences
// say. Such a slot is neither given to anybody nor reclaimed.

import type { GivenFence } from './fence.js';
import type { SlotFences } from './slot-fences.js';

/** A batch that computes on the slot. */
export interface RunningBatch {
  readonly isPrepared: boolean;
}

export class Retirement {
  readonly #fences: SlotFences;
  /** By slot: the batch it waits for first. */
  readonly #waiting = new Map<number, RunningBatch | undefined>();

  constructor(fences: SlotFences) {
    this.#fences = fences;
  }

  /** Slots that wait. */
  get size(): number {
    return this.#waiting.size;
  }

  /** Puts a slot behind its fences; true when it must wait. Throws what recording an event throws; then it was not put there. */
  enter(slot: number, given: GivenFence, batch: RunningBatch | undefined): boolean {
    this.#fences.release(slot, given);
    if (batch === undefined && !this.#fences.isPending(slot)) return false;
    this.#waiting.set(slot, batch);
    return true;
  }

  /**
   * Calls `onIdle`, which must not throw, for every slot whose fence has passed since the last call. Throws what asking for an
   * event throws, after all others were asked; the slot then stays behind its fence.
   */
  poll(onIdle: (slot: number) => void): void {
    try {
      this.#fences.poll();
    } finally {
      for (const [slot, batch] of this.#waiting) {
        if (batch?.isPrepared === true || this.#fences.isPending(slot)) continue;
        this.#waiting.delete(slot);
        onIdle(slot);
      }
    }
  }
}
