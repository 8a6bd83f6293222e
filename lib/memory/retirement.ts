// Retirement: released slots that work may still be using, each with the fence that says when it no longer does. A slot
// behind a fence is neither given to anybody nor reclaimed. A device-wide synchronise would not do: work may be built but
// not launched yet, which only the engine's own step number or an event on its stream can tell.

import type { Fence } from './fence.js';
import type { NativeDriver } from './native.js';

/** A batch that computes on the slot. */
export interface RunningBatch {
  readonly isPrepared: boolean;
}

type Wait =
  | { readonly kind: 'event'; readonly event: bigint; readonly stream: bigint }
  | { readonly kind: 'step'; readonly step: number }
  | { readonly kind: 'batch'; readonly batch: RunningBatch };

export class Retirement {
  readonly #driver: () => NativeDriver;
  readonly #waits = new Map<number, Wait[]>();
  #completedStep = -1;

  constructor(driver: () => NativeDriver) {
    this.#driver = driver;
  }

  /** Slots behind a fence. */
  get size(): number {
    return this.#waits.size;
  }

  /** Puts a slot behind its fence; true when it must wait. Throws what recording an event throws; then nothing has changed. */
  enter(slot: number, fence: Fence | undefined, batch: RunningBatch | undefined): boolean {
    const waits: Wait[] = [];
    if (batch !== undefined) waits.push({ kind: 'batch', batch });
    if (fence !== undefined && 'step' in fence && fence.step > this.#completedStep) {
      waits.push({ kind: 'step', step: fence.step });
    }
    if (fence !== undefined && 'stream' in fence) {
      waits.push({ kind: 'event', event: this.#driver().recordEvent(fence.stream), stream: fence.stream });
    }
    if (waits.length === 0) return false;
    this.#waits.set(slot, waits);
    return true;
  }

  completeStep(step: number): void {
    this.#completedStep = Math.max(this.#completedStep, step);
  }

  /** Calls `onIdle` for every slot whose fence has passed since the last call. */
  poll(onIdle: (slot: number) => void): void {
    for (const [slot, waits] of this.#waits) {
      const left = waits.filter((wait) => !this.#isOver(wait));
      if (left.length > 0) {
        this.#waits.set(slot, left);
      } else {
        this.#waits.delete(slot);
        onIdle(slot);
      }
    }
  }

  /** Waits for the streams of all fences and forgets them: the cache closes. Retryable. */
  finish(): void {
    for (const [slot, waits] of this.#waits) {
      for (const wait of waits) {
        if (wait.kind !== 'event') continue;
        this.#driver().synchronizeStream(wait.stream);
        this.#driver().destroyEvent(wait.event);
      }
      this.#waits.delete(slot);
    }
  }

  #isOver(wait: Wait): boolean {
    switch (wait.kind) {
      case 'batch': return !wait.batch.isPrepared;
      case 'step': return wait.step <= this.#completedStep;
      case 'event':
        if (!this.#driver().queryEvent(wait.event)) return false;
        this.#driver().destroyEvent(wait.event);
        return true;
    }
  }
}
