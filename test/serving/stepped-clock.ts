// SteppedClock: the clock and the timers of a scheduler in a test: time passes only by `advance`.

interface Alarm {
  readonly atMs: number;
  readonly wake: () => void;
}

export class SteppedClock {
  #nowMs = 0;
  readonly #alarms = new Set<Alarm>();

  /** Options of a scheduler. */
  readonly options = {
    now: (): number => this.#nowMs,
    timer: (wake: () => void, delayMs: number): (() => void) => {
      const alarm = { atMs: this.#nowMs + delayMs, wake };
      this.#alarms.add(alarm);
      return () => { this.#alarms.delete(alarm); };
    },
  };

  /** Alarms that are set. */
  get alarms(): number {
    return this.#alarms.size;
  }

  /** Lets `ms` ms pass: alarms due until then ring, in order of their times. */
  advance(ms: number): void {
    const endMs = this.#nowMs + ms;
    for (;;) {
      const due = [...this.#alarms].filter(({ atMs }) => atMs <= endMs).sort((a, b) => a.atMs - b.atMs)[0];
      if (due === undefined) break;
      this.#alarms.delete(due);
      this.#nowMs = Math.max(this.#nowMs, due.atMs);
      due.wake();
    }
    this.#nowMs = endMs;
  }
}
