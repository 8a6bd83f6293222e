// OnlineScheduler: continuous batching for a server. Requests arrive while others decode; each answer streams as it is made.
// It steps by itself while there is work, and gives the event loop a turn after every step. For the cache's thread.
//
// What waits is bounded: `submit` refuses what the queue has no room for, and never waits itself.

import { setImmediate } from 'node:timers/promises';

import { createError } from '../errors/index.js';
import { readWaitOptions, waitUntil, type WaitOptions } from '../memory/wait.js';
import { integer, readOptions, withDefault } from '../options.js';
import { asError } from './as-error.js';
import { ContinuousBatching } from './continuous-batching.js';
import { Generation } from './generation.js';
import { checkFits, readRequest, type GenerationRequest } from './request.js';
import { completeOptions, schedulerSpec, type ReadSchedulerOptions, type SchedulerOptions } from './scheduler-options.js';
import { TokenStream } from './token-stream.js';
import type { ServingTotals } from './totals.js';

export interface OnlineSchedulerOptions extends SchedulerOptions {
  /** Requests that may wait for a slot, 1 or more; those that had to give way come on top. Default 1,024. */
  readonly maxWaiting?: number | undefined;
}

const spec = { ...schedulerSpec, maxWaiting: withDefault(integer({ min: 1 }), 1_024) };

export class OnlineScheduler {
  readonly #options: ReadSchedulerOptions;
  readonly #maxWaiting: number;
  readonly #batching: ContinuousBatching;
  #arrivals = 0;
  #loop: Promise<void> | undefined;
  #isClosed = false;

  /** Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
  constructor(options: OnlineSchedulerOptions) {
    const { maxWaiting, ...read } = readOptions('OnlineScheduler', options, spec);
    this.#options = completeOptions(read);
    this.#maxWaiting = maxWaiting;
    this.#batching = new ContinuousBatching(this.#options);
  }

  /** Sums since it was made. */
  get totals(): Readonly<ServingTotals> {
    return this.#batching.totals;
  }

  get waitingRequests(): number {
    return this.#batching.waitingRequests;
  }

  get runningRequests(): number {
    return this.#batching.runningRequests;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /**
   * Queues a request; its tokens come through the stream. Throws KV_QUEUE_FULL (await `queueFree()`, or tell the client to
   * come back), KV_LENGTH_OUT_OF_RANGE and KV_OUT_OF_PAGES (it would not fit an empty cache), KV_CLOSED, and for wrong
   * options; then nothing has changed. Whatever happens later ends the stream.
   */
  submit(request: GenerationRequest): TokenStream {
    const { cache, engine, now } = this.#options;
    const read = readRequest('OnlineScheduler.submit', request, engine.vocabularyTokens);
    this.#checkOpen('submit a request');
    checkFits(read, cache.layout, cache.pool);
    if (!this.#hasRoom()) {
      throw createError('KV_QUEUE_FULL', { waitingRequests: this.waitingRequests, maxWaiting: this.#maxWaiting });
    }
    const stream: TokenStream = new TokenStream(() => {
      generation.isCancelled = true;
      this.#batching.dropWaiting();
    });
    this.#arrivals += 1;
    const generation = new Generation({ request: read, arrival: this.#arrivals, nowMs: now(), listener: stream.listener() });
    this.#batching.enqueue(generation);
    this.#loop ??= this.#run();
    return stream;
  }

  /** Resolves when the queue has room for one more, for everybody who waits: the first to submit has it. Rejects with KV_TIMEOUT, KV_ABORTED or KV_CLOSED. */
  async queueFree(options: WaitOptions = {}): Promise<void> {
    await waitUntil('room in the queue', readWaitOptions('OnlineScheduler.queueFree', options), () => {
      this.#checkOpen('wait for room in its queue');
      return this.#hasRoom();
    });
  }

  /** Resolves when nothing waits or runs. Rejects with KV_TIMEOUT or KV_ABORTED. */
  async idle(options: WaitOptions = {}): Promise<void> {
    const read = readWaitOptions('OnlineScheduler.idle', options);
    await waitUntil('the scheduler to be idle', read, () => this.#batching.isIdle);
  }

  /**
   * Takes no more requests, lets the running step end, and ends the others with KV_CLOSED. The cache stays open. Idempotent.
   */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#loop;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Steps until nothing is left. Never rejects: what goes wrong goes to the requests. */
  async #run(): Promise<void> {
    await setImmediate(); // requests submitted together start together
    while (!this.#batching.isIdle) {
      if (this.#isClosed) this.#batching.failAll(createError('KV_CLOSED', { operation: 'go on', owner: 'OnlineScheduler' }));
      try {
        await this.#batching.step();
        await this.#batching.turn(() => this.#isClosed);
      } catch (error) {
        this.#batching.failAll(asError(error, 'order'));
      }
    }
    this.#loop = undefined;
  }

  /** Whether the queue has room, once those have left it who were aborted or are too late. */
  #hasRoom(): boolean {
    if (this.waitingRequests >= this.#maxWaiting) this.#batching.dropWaiting();
    return this.waitingRequests < this.#maxWaiting;
  }

  #checkOpen(operation: string): void {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation, owner: 'OnlineScheduler' });
  }
}
