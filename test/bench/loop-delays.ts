// LoopDelays: watches the event loop with a timer: what the timer says of how long it waits, and the processor time of its thread, which
// does not depend on what else runs on the machine.

import { readFileSync } from 'node:fs';

/** Ms from one time of a timer to the next, and how long the JavaScript thread computed at most from one time to the next. */
export class LoopDelays {
  readonly #delaysMs: number[] = [];
  #longestCpuMs = 0;
  #lastCpuMs = cpuMs();
  readonly #timer: NodeJS.Timeout;
  #lastMs = performance.now();

  constructor(intervalMs = 1) {
    this.#timer = setInterval(() => {
      const nowMs = performance.now();
      this.#delaysMs.push(nowMs - this.#lastMs);
      this.#lastMs = nowMs;
      const nowCpuMs = cpuMs();
      this.#longestCpuMs = Math.max(this.#longestCpuMs, nowCpuMs - this.#lastCpuMs);
      this.#lastCpuMs = nowCpuMs;
    }, intervalMs);
  }

  end(): { readonly p99Ms: number; readonly longestMs: number; readonly longestCpuMs: number } {
    clearInterval(this.#timer);
    const longestCpuMs = Math.max(this.#longestCpuMs, cpuMs() - this.#lastCpuMs);
    const sorted = [...this.#delaysMs, performance.now() - this.#lastMs].sort((a, b) => a - b);
    return { p99Ms: sorted[Math.floor(0.99 * (sorted.length - 1))]!, longestMs: sorted.at(-1)!, longestCpuMs };
  }
}

/** Processor time of the JavaScript thread, the process's first: it does not depend on what else runs on the machine. */
function cpuMs(): number {
  return Number(readFileSync('/proc/self/schedstat', 'latin1').split(' ')[0]) / 1e6;
}
