// FreeTime: milliseconds in which this thread could have noticed that something arrived: while it computes, it would
// notice nothing, however fast a tier is.

import type { LoadClock } from './load-clock.js';

const tickMs = 5;
/** Timers wait no shorter. */
const leastMs = 1;

export class FreeTime {
  readonly #clock: LoadClock;
  readonly #isLasting: boolean;
  /** What happens when it has come to so much. */
  #alarm: { readonly atMs: number; readonly wake: () => void } | undefined;
  #ms: number;
  #lastMs: number;
  #cancel: (() => void) | undefined;

  /** @param ms What has passed before. @param isLasting Whether the process stays alive for it. */
  constructor(clock: LoadClock, ms: number, isLasting: boolean) {
    this.#clock = clock;
    this.#isLasting = isLasting;
    this.#ms = ms;
    this.#lastMs = clock.now();
    this.#next();
  }

  get milliseconds(): number {
    this.#count();
    return this.#ms;
  }

  /**
   * Calls `wake` once so much has passed in all, in a turn of the event loop to come; instead of what was to be called
   * before.
   */
  at(ms: number, wake: () => void): void {
    this.#alarm = { atMs: ms, wake };
    this.#cancel?.();
    this.#next();
  }

  /** Ends it. Returns what has passed. */
  end(): number {
    this.#cancel?.();
    this.#cancel = undefined;
    this.#alarm = undefined;
    return this.milliseconds;
  }

  #next(): void {
    const leftMs = (this.#alarm?.atMs ?? Infinity) - this.#ms;
    this.#cancel = this.#clock.after(
      () => { this.#tick(); }, Math.max(leastMs, Math.min(tickMs, leftMs)), this.#isLasting);
  }

  #tick(): void {
    this.#count();
    const due = this.#alarm !== undefined && this.#ms >= this.#alarm.atMs ? this.#alarm : undefined;
    if (due !== undefined) this.#alarm = undefined;
    this.#next();
    due?.wake();
  }

  #count(): void {
    const nowMs = this.#clock.now();
    this.#ms += Math.min(nowMs - this.#lastMs, 2 * tickMs);
    this.#lastMs = nowMs;
  }
}
