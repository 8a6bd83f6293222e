// RedisLane: connections for one kind of request (lookups, reads, writes), with a circuit breaker and time limits, so
// that small requests never stand behind large ones and a store that cannot write is still read. Each request ends
// within its limit, in a value: no promise of a lane rejects. A request that its caller no longer waits for is watched
// to its end, as its failure is news of the store.

import diagnostics = require('node:diagnostics_channel');

import { createError } from '../../base/errors.js';
import type { LoadClock } from '../load-clock.js';
import { CircuitBreaker, type BreakerState } from './circuit-breaker.js';
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
