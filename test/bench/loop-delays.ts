// LoopDelays: watches the event loop with a timer: what the timer says of how long it waits, and the processor time of its thread, which
// does not depend on what else runs on the machine. It makes no garbage and opens nothing while it watches: what it computes each
// millisecond, others lack.

import { closeSync, openSync, readSync } from 'node:fs';

import { enlarged } from '#internal/base/typed-arrays.js';

export type LoopDelaysEnd = ReturnType<LoopDelays['end']>;

/** Ms from one time of a timer to the next, and how long the JavaScript thread computed at most from one time to the next. */
export class LoopDelays {
  /** Grows seldom. */
  #delaysMs = new Float64Array(2 ** 14);
  #count = 0;
  /** Of the JavaScript thread, the process's first: its first number is its processor time in ns. */
  readonly #statistics = openSync('/proc/self/schedstat', 'r');
  readonly #digits = Buffer.alloc(64);
  #longestCpuMs = 0;
  #lastCpuMs = this.#cpuMs();
  readonly #timer: NodeJS.Timeout;
  #lastMs = performance.now();

  constructor(intervalMs = 1) {
    this.#timer = setInterval(() => {
      const nowMs = performance.now();
      this.#add(nowMs - this.#lastMs);
      this.#lastMs = nowMs;
      const nowCpuMs = this.#cpuMs();
      this.#longestCpuMs = Math.max(this.#longestCpuMs, nowCpuMs - this.#lastCpuMs);
      this.#lastCpuMs = nowCpuMs;
    }, intervalMs);
  }

  end(): { readonly p99Ms: number; readonly longestMs: number; readonly longestCpuMs: number } {
    clearInterval(this.#timer);
    const longestCpuMs = Math.max(this.#longestCpuMs, this.#cpuMs() - this.#lastCpuMs);
    closeSync(this.#statistics);
    this.#add(performance.now() - this.#lastMs);
    const sorted = this.#delaysMs.subarray(0, this.#count).sort();
    return { p99Ms: sorted[Math.floor(0.99 * (sorted.length - 1))]!, longestMs: sorted.at(-1)!, longestCpuMs };
  }

  #add(delayMs: number): void {
    if (this.#count === this.#delaysMs.length) this.#delaysMs = enlarged(this.#delaysMs, 2 * this.#count);
    this.#delaysMs[this.#count++] = delayMs;
  }

  /** It does not depend on what else runs on the machine. */
  #cpuMs(): number {
    const length = readSync(this.#statistics, this.#digits, 0, this.#digits.length, 0);
    let ns = 0;
    for (let at = 0; at < length && this.#digits[at]! >= 0x30; at += 1) ns = 10 * ns + this.#digits[at]! - 0x30;
    return ns / 1e6;
  }
}
