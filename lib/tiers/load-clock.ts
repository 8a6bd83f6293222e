// LoadClock: the time by which loads are measured and waited for, so that a test can step one of its own. FreeTime:
// what of it this thread was free to notice an arrival in: while it computes it would notice nothing, however fast a
// tier is.

export interface LoadClock {
  /** Milliseconds from some time on. */
  now(): number;
  /**
   * Calls `wake` in so many ms, once; returns what cancels it. An alarm that is not `lasting` does not keep the process
   * alive.
   */
  after(wake: () => void, delayMs: number, lasting: boolean): () => void;
}

/** That of the process. */
export const processClock: LoadClock = {
  now: () => performance.now(),
  after: (wake, delayMs, lasting) => {
    const timer = setTimeout(wake, delayMs);
    if (!lasting) timer.unref();
    return () => { clearTimeout(timer); };
  },
};

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

  /** Calls `wake` in a turn to come, once so much has passed in all, instead of what was to be called before. */
  at(ms: number, wake: () => void): void {
    this.#alarm = { atMs: ms, wake };
    this.#cancel?.();
    this.#next();
  }

  /** Ends it. Returns what has passed. */
  end(): number {
    this.#cancel?.();
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
