// RedisLane: connections for one kind of request (lookups, reads, writes), with a circuit breaker and time limits, so
// that small requests never stand behind large ones and a store that cannot write is still read. Each request ends
// within its limit, in a value: no promise of a lane rejects. A request that its caller no longer waits for is watched
// to its end, as its failure is news of the store.

import diagnostics = require('node:diagnostics_channel');

import { createError } from '../../base/errors.js';
import type { LoadClock } from '../load-clock.js';
import type { RedisStore } from './redis-client.js';
import { RedisConnection } from './redis-connection.js';

export const laneNames = ['lookups', 'reads', 'writes'] as const;

export type LaneName = typeof laneNames[number];

export type LaneResult<T> =
  | { readonly isAnswered: true; readonly value: T }
  | { readonly isAnswered: false; readonly reason: 'refused' | 'timeout' | 'failed'; readonly error: unknown };

export interface BreakerLimits {
  readonly failures: number;
  readonly coolDownMs: number;
  readonly maxCoolDownMs: number;
}

export interface RedisLaneOptions {
  readonly tier: string;
  readonly name: LaneName;
  readonly store: RedisStore;
  readonly connections: number;
  readonly connectTimeoutMs: number;
  readonly probeTimeoutMs: number;
  readonly breaker: BreakerLimits;
  /** Does what the lane is for, without an effect: whether the store answers, and allows it. */
  readonly trial: (connection: RedisConnection) => Promise<unknown>;
  readonly clock: LoadClock;
}

const channel = diagnostics.channel('virtual-kv:tier-breaker');

export class RedisLane {
  readonly #options: RedisLaneOptions;
  readonly #connections: readonly RedisConnection[];
  readonly #breaker: CircuitBreaker;
  /** Ends a request at once. */
  readonly #stops = new Set<() => void>();
  #firstNews: (error: unknown) => void = () => {};
  readonly #connected: Promise<unknown>;
  #isClosed = false;

  constructor(options: RedisLaneOptions) {
    this.#options = options;
    const { tier, store, connections, connectTimeoutMs, breaker, clock } = options;
    this.#breaker = new CircuitBreaker({
      ...breaker, clock, probe: () => this.#probe(), changed: (from, to, error) => this.#changed(from, to, error),
    });
    this.#connected = new Promise((resolve) => {
      this.#firstNews = resolve;
    });
    const events = { ready: () => this.#ready(), lost: (error: unknown) => this.#lost(error) };
    this.#connections = Array.from(
      { length: connections }, () => new RedisConnection(store, tier, connectTimeoutMs, events));
  }

  get breaker(): CircuitBreaker {
    return this.#breaker;
  }

  /**
   * Resolves with undefined once it is connected, with the error once that failed; opens the breaker where it takes too
   * long.
   */
  connected(): Promise<unknown> {
    const { connectTimeoutMs, clock } = this.#options;
    const cancel = clock.after(() => {
      const error = this.#connections[0]!.explain(new Error(`no answer in ${connectTimeoutMs} ms`));
      this.#breaker.open(error);
      this.#firstNews(error);
    }, connectTimeoutMs, true);
    return this.#connected.finally(cancel);
  }

  /** Sends a request, unless the breaker refuses it, and resolves within `limitMs`. */
  request<T>(send: (connection: RedisConnection) => Promise<T>, limitMs: number): Promise<LaneResult<T>> {
    if (this.#isClosed) return Promise.resolve(this.#closedResult());
    const pass = this.#breaker.enter();
    if (pass === undefined) {
      return Promise.resolve({ isAnswered: false, reason: 'refused', error: this.#breaker.lastError });
    }
    return new Promise((resolve) => {
      const settle = (result: LaneResult<T>): void => {
        cancel();
        this.#stops.delete(stop);
        resolve(result);
      };
      const stop = (): void => settle(this.#closedResult());
      const expire = (): void => {
        if (!this.#stops.has(stop)) return;
        const error = createError('KV_TIMEOUT', {
          timeoutMs: limitMs, waitedFor: `the store of the tier '${this.#options.tier}'`,
          hint: 'It is slow or cannot be reached: see `statistics()`.',
        });
        this.#breaker.failed(pass, error);
        settle({ isAnswered: false, reason: 'timeout', error });
      };
      // A reply that came while JavaScript was busy is read before the request is given up.
      const cancel = this.#options.clock.after(() => setImmediate(expire), limitMs, true);
      this.#stops.add(stop);
      const connection = this.#leastBusy();
      const reply = (async () => send(connection))(); // what it throws is a failure as well
      reply.then((value) => {
        if (!this.#stops.has(stop)) return;
        this.#breaker.succeeded(pass);
        settle({ isAnswered: true, value });
      }, (cause: unknown) => {
        if (!this.#stops.has(stop)) return;
        const error = connection.explain(cause);
        this.#breaker.failed(pass, error);
        settle({ isAnswered: false, reason: 'failed', error });
      });
    });
  }

  /** Ends all requests, and resolves when no connection is left. */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#breaker.close();
    for (const stop of [...this.#stops]) stop();
    this.#firstNews(this.#closedResult().error);
    await Promise.all(this.#connections.map((connection) => connection.close()));
  }

  #closedResult(): { readonly isAnswered: false; readonly reason: 'failed'; readonly error: unknown } {
    return {
      isAnswered: false, reason: 'failed',
      error: createError('KV_CLOSED', { operation: 'use its store', owner: 'RedisTier' }),
    };
  }

  #leastBusy(): RedisConnection {
    return this.#connections.reduce((best, one) => (
      Number(one.isReady) - Number(best.isReady) || best.pending - one.pending) > 0 ? one : best);
  }

  #ready(): void {
    if (!this.#connections.every((connection) => connection.isReady)) return;
    this.#firstNews(undefined);
    this.#breaker.probeNow();
  }

  #lost(error: unknown): void {
    if (this.#isClosed) return;
    this.#breaker.open(error);
    this.#firstNews(error);
  }

  #changed(from: BreakerState, to: BreakerState, error: unknown): void {
    // What was sent to a store that does not answer would stand before what comes next, and holds whole blocks.
    if (to === 'open' && isTimeout(error)) for (const connection of this.#connections) connection.reset();
    if (!channel.hasSubscribers) return;
    const { tier, name } = this.#options;
    queueMicrotask(() => {
      channel.publish({ tier, lane: name, from, to, error });
    });
  }

  async #probe(): Promise<void> {
    const { clock, probeTimeoutMs, trial } = this.#options;
    let cancel: () => void;
    const late = new Promise<never>((_, reject) => {
      cancel = clock.after(() => setImmediate(reject, new Error('late')), probeTimeoutMs, true);
    });
    const trials = this.#connections.map((connection) => trial(connection));
    await Promise.race([Promise.all(trials), late]).finally(() => cancel());
  }
}

function isTimeout(error: unknown): boolean {
  return (error as { readonly code?: unknown } | undefined)?.code === 'KV_TIMEOUT';
}

// CircuitBreaker: keeps requests from waiting for a store that fails. Closed, all pass. After some failures in a row it
// opens, and all are refused at once; after a cool-down, which doubles with each failed probe, it asks the store itself
// (`probe`), so that no request pays for finding out. When the probe is answered it is half-open: one request at a time
// passes, the first that succeeds closes it, and the first that fails opens it again. It owns one timer, which keeps no
// process alive.

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
