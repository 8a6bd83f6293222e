// Retirement: released slots that work may still be using, each with the fence that says when it no longer does. A slot
// behind a fence is neither given to anybody nor reclaimed. A device-wide synchronise would not do: work may be built but
// not launched yet, which only the engine's own step number or an event on its stream can tell.

import { isKvError } from '../errors/index.js';
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

  /** Whether some wait for a stream, which tells nobody that it is there. */
  get hasEvents(): boolean {
    for (const waits of this.#waits.values()) if (waits.some(({ kind }) => kind === 'event')) return true;
    return false;
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

  /**
   * Calls `onIdle`, which must not throw, for every slot whose fence has passed since the last call. Throws what asking for an
   * event throws, after all others were asked; the slot then stays behind its fence.
   */
  poll(onIdle: (slot: number) => void): void {
    let failure: { readonly error: unknown } | undefined;
    for (const [slot, waits] of this.#waits) {
      try {
        const left = waits.filter((wait) => !this.#isOver(wait));
        if (left.length > 0) {
          this.#waits.set(slot, left);
        } else {
          this.#waits.delete(slot);
          onIdle(slot);
        }
      } catch (error) {
        failure ??= { error };
      }
    }
    if (failure !== undefined) throw failure.error;
  }

  /** Waits for the streams of all fences and forgets them: the cache closes. Nothing runs on a lost device. Retryable. */
  finish(): void {
    for (const [slot, waits] of this.#waits) {
      for (const wait of waits) {
        if (wait.kind === 'event') this.#finishEvent(wait.event, wait.stream);
      }
      this.#waits.delete(slot);
    }
  }

  #finishEvent(event: bigint, stream: bigint): void {
    try {
      // The engine may have destroyed a stream whose work is done.
      if (!this.#driver().queryEvent(event)) this.#driver().synchronizeStream(stream);
      this.#driver().destroyEvent(event);
    } catch (error) {
      if (!isKvError(error, 'KV_DRIVER_LOST')) throw error;
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
