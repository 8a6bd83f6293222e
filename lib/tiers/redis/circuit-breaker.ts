// CircuitBreaker: keeps requests from waiting for a store that fails. Closed, all pass. After some failures in a row it
// opens, and all are refused at once; after a cool-down, which doubles with each failed probe, it asks the store itself
// (`probe`), so that no request pays for finding out. When the probe is answered it is half-open: one request at a time
// passes, the first that succeeds closes it, and the first that fails opens it again. It owns one timer, which keeps no
// process alive.

import type { LoadClock } from '../load-clock.js';

export type BreakerState = 'closed' | 'open' | 'half-open';

export interface CircuitBreakerOptions {
  /** Failures in a row that open it. */
  readonly failures: number;
  readonly coolDownMs: number;
  readonly maxCoolDownMs: number;
  /** Asks the store whether it answers; rejects where it does not. */
  readonly probe: () => Promise<unknown>;
  /** Hears of every change of state. */
  readonly changed: (from: BreakerState, to: BreakerState, error: unknown) => void;
  readonly clock: LoadClock;
}

export class CircuitBreaker {
  readonly #options: CircuitBreakerOptions;
  #state: BreakerState = 'closed';
  #failuresInRow = 0;
  #coolDownMs: number;
  #cancelTimer: (() => void) | undefined;
  #isProbing = false;
  /** Whether `probeNow` was called while a probe was under way. */
  #probesAgain = false;
  #isClosedForGood = false;
  /** Whether the one request of `half-open` is under way. */
  #hasTrial = false;
  /** Counts changes of state. */
  #era = 0;
  #opens = 0;
  #refusals = 0;
  #lastError: unknown;

  constructor(options: CircuitBreakerOptions) {
    this.#options = options;
    this.#coolDownMs = options.coolDownMs;
  }

  get state(): BreakerState {
    return this.#state;
  }

  /** How often it opened. */
  get opens(): number {
    return this.#opens;
  }

  /** Requests that it refused. */
  get refusals(): number {
    return this.#refusals;
  }

  /** The failure that opened it last. */
  get lastError(): unknown {
    return this.#lastError;
  }

  /** Whether a request would pass now. */
  get wouldPass(): boolean {
    return this.#state === 'closed' || (this.#state === 'half-open' && !this.#hasTrial);
  }

  /**
   * Lets a request pass: a number for `succeeded` or `failed`, one of which must follow. Undefined: refuse the request.
   */
  enter(): number | undefined {
    if (!this.wouldPass) {
      this.#refusals += 1;
      return undefined;
    }
    if (this.#state === 'half-open') this.#hasTrial = true;
    return this.#era;
  }

  /** A request was answered. One that passed before the state changed says nothing of now. */
  succeeded(era: number): void {
    if (era !== this.#era) return;
    this.#failuresInRow = 0;
    if (this.#state === 'closed') return;
    this.#coolDownMs = this.#options.coolDownMs;
    this.#change('closed', undefined);
  }

  /** A request failed, or was not answered in time. */
  failed(era: number, error: unknown): void {
    if (era !== this.#era) return;
    this.#failuresInRow += 1;
    if (this.#state === 'half-open' || this.#failuresInRow >= this.#options.failures) this.open(error);
  }

  /** Opens it at once: the store is known to be away. */
  open(error: unknown): void {
    if (this.#isClosedForGood || this.#state === 'open') return;
    this.#lastError = error;
    this.#opens += 1;
    if (this.#state === 'half-open') this.#lengthen();
    this.#change('open', error);
    this.#schedule();
  }

  /** The store may be back: probes now, not after the cool-down. */
  probeNow(): void {
    this.#probesAgain = this.#isProbing;
    if (this.#state === 'open') this.#probe();
  }

  /** Stops its timer; it stays as it is. */
  close(): void {
    this.#isClosedForGood = true;
    this.#cancelTimer?.();
    this.#cancelTimer = undefined;
  }

  #schedule(): void {
    this.#cancelTimer?.();
    const { clock } = this.#options;
    this.#cancelTimer = this.#isClosedForGood ? undefined : clock.after(() => this.#probe(), this.#coolDownMs, false);
  }

  #probe(): void {
    if (this.#isProbing || this.#isClosedForGood) return;
    this.#isProbing = true;
    this.#cancelTimer?.();
    this.#cancelTimer = undefined;
    this.#options.probe().then(() => true, () => false).then((isAnswered) => {
      this.#isProbing = false;
      if (this.#state !== 'open' || this.#isClosedForGood) return;
      if (isAnswered) this.#change('half-open', undefined);
      else if (this.#probesAgain) this.probeNow();
      else {
        this.#lengthen();
        this.#schedule();
      }
    }).catch(() => {}); // `changed` must not throw; were it to, no promise rejects
  }

  #lengthen(): void {
    this.#coolDownMs = Math.min(2 * this.#coolDownMs, this.#options.maxCoolDownMs);
  }

  #change(to: BreakerState, error: unknown): void {
    const from = this.#state;
    this.#state = to;
    this.#era += 1;
    this.#failuresInRow = 0;
    this.#hasTrial = false;
    this.#options.changed(from, to, error);
  }
}
