// OnlineScheduler: continuous batching for a server. Requests arrive while others decode; each answer streams as it is
// generated. It steps by itself while there is work, and gives the event loop a turn after every step. For the cache's
// thread.
//
// Invariant: at most `maxWaiting` new requests wait. `submit` refuses further ones, and never waits itself.

import { setImmediate } from 'node:timers/promises';

import { createError } from '../base/errors.js';
import { checkStack } from '../device/cache-calls.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import { readWaitOptions, waitUntil, type Noticing, type WaitOptions } from '../device/wait.js';
import { checkInteger, integer, readOptions, withDefault } from '../base/options.js';
import { ContinuousBatching } from './continuous-batching.js';
import type { EngineState } from './engine-calls.js';
import { Generation } from './generation.js';
import type { ServingTotals } from './open-requests.js';
import type { RequestsPicture } from './request-picture.js';
import {
  budgetsOf, checkFits, readRequest, type Budgets, type GenerationRequest, type ReadRequest,
} from './request.js';
import {
  asError, completeOptions, schedulerSpec, type ReadSchedulerOptions, type SchedulerOptions,
} from './scheduler-options.js';
import type { ServingTimes } from './serving-times.js';
import { TokenStream } from './token-stream.js';

/** Options of `OnlineScheduler`. */
export interface OnlineSchedulerOptions extends SchedulerOptions {
  /** Requests that may wait for a slot, 1 or more; preempted requests are not counted. Default 1,024. */
  readonly maxWaiting?: number | undefined;
}

/** To one prompt. */
const mostAnswers = 128;

const spec = { ...schedulerSpec, maxWaiting: withDefault(integer({ min: 1 }), 1_024) };

/** Serves requests as they come, with continuous batching, a bounded queue, deadlines, cancellation and streams. */
export class OnlineScheduler {
  readonly #options: ReadSchedulerOptions;
  readonly #maxWaiting: number;
  readonly #batching: ContinuousBatching;
  /** Changes that `queueFree`, `idle` and `close` wait for. Each comes with a call, or a step. */
  readonly #noticing: Noticing;
  #arrivals = 0;
  #loop: Promise<void> | undefined;
  /** When it was paused: what is lent meanwhile comes back. */
  #budgetsBeforePause: Budgets | undefined;
  #isClosed = false;

  /** Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
  constructor(options: OnlineSchedulerOptions) {
    const { maxWaiting, ...read } = readOptions('OnlineScheduler', options, spec);
    this.#options = completeOptions(read, true);
    this.#maxWaiting = maxWaiting;
    this.#batching = new ContinuousBatching(this.#options);
    this.#noticing = { signals: [this.#batching.changed], mustAsk: () => false };
    this.cache.lifetime.serves(this);
  }

  /** The cache whose slots it leases. */
  get cache(): KvCache {
    return this.#options.cache;
  }

  /** Sums since it was made. */
  get totals(): Readonly<ServingTotals> {
    return this.#batching.totals;
  }

  /** Tokens that its engine knows: ids are below it. @internal */
  get vocabularyTokens(): number {
    return this.#options.vocabularyTokens;
  }

  /** How long its requests and passes took, since it was made. */
  get times(): ServingTimes {
    return this.#batching.times;
  }

  /** Whether it is an OnlineScheduler that was made, and no object that only has its prototype. @internal */
  static isInstance(value: unknown): value is OnlineScheduler {
    return typeof value === 'object' && value !== null && #isClosed in value;
  }

  /** Whether the engine's passes end. Throws what the clock throws. @internal */
  get engineState(): EngineState {
    return this.#batching.engineState;
  }

  /** What its requests look like, for those that watch it: bounded in size. Throws what the clock throws. @internal */
  picture(): RequestsPicture {
    return this.#batching.requests.picture();
  }

  /** Requests that may wait for a slot. */
  get maxWaiting(): number {
    return this.#maxWaiting;
  }

  /** Requests that have no slot: new and preempted ones. */
  get waitingRequests(): number {
    return this.#batching.waitingRequests;
  }

  /** Requests that hold a slot. */
  get runningRequests(): number {
    return this.#batching.runningRequests;
  }

  /** Whether `close` was called. `submit` then throws KV_CLOSED. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /**
   * Queues a request; its tokens come through the stream. Throws KV_QUEUE_FULL (await `queueFree()`, or tell the client
   * to retry), KV_LENGTH_OUT_OF_RANGE and KV_OUT_OF_PAGES (it would not fit an empty cache), KV_CLOSED, and for wrong
   * options; then nothing has changed. Errors after that end the stream.
   */
  submit(request: GenerationRequest): TokenStream {
    return this.#submit('OnlineScheduler.submit', request, 1)[0]!;
  }

  /**
   * Queues requests for several answers to one prompt, 1 … 128, all or none of them. The prompt is computed once: when
   * the first has computed it, the others fork from it, as far as there is room, and share its memory until they
   * differ. Each ends by itself. With a seed answer `i` draws the numbers of seed + i; a function of your own is asked
   * for all alike. Throws as `submit`, KV_QUEUE_FULL where the queue lacks room for all.
   */
  submitAnswers(request: GenerationRequest, answers: number): readonly TokenStream[] {
    const owner = 'OnlineScheduler.submitAnswers';
    checkInteger(owner, 'answers', answers, 1, mostAnswers);
    return this.#submit(owner, request, answers);
  }

  #submit(owner: string, request: GenerationRequest, answers: number): readonly TokenStream[] {
    const { cache, clock } = this.#options;
    const read = releasedOnce(readRequest(owner, request, this.#options), answers);
    checkStack();
    this.#checkOpen('submit a request');
    checkFits(read, cache, this.#budgetsBeforePause);
    if (!this.#hasRoom(answers)) {
      throw createError('KV_QUEUE_FULL', { waitingRequests: this.waitingRequests, maxWaiting: this.#maxWaiting });
    }
    const nowMs = clock.now();
    const made = Array.from({ length: answers }, (_, answer) => this.#make(read, answer, nowMs));
    const generations = made.map(({ generation }) => generation);
    const expected: Generation[] = [];
    try {
      for (const generation of generations) {
        this.#batching.requests.expect(generation);
        expected.push(generation);
      }
    } catch (error) { // the clock's: nothing was submitted
      for (const generation of expected) this.#batching.end(generation, generation.abortError(error));
      throw error;
    }
    this.#arrivals += answers;
    const [leader, ...followers] = generations;
    this.#batching.requests.follow(leader!, followers);
    this.#batching.enqueue(leader!);
    this.#loop ??= this.#run();
    return made.map(({ stream }) => stream);
  }

  #make(
    request: ReadRequest, answer: number, nowMs: number,
  ): { readonly stream: TokenStream; readonly generation: Generation } {
    const stream: TokenStream = new TokenStream({
      cancel: () => { this.#batching.end(generation, generation.abortError()); },
      finish: () => { this.#batching.finish(generation); },
      said: () => generation.sampledText, side: () => generation.side, admission: () => generation.admission,
      text: () => generation.answerText?.text, logProbabilities: () => generation.logProbabilities,
    });
    const arrival = this.#arrivals + 1 + answer;
    const { cache } = this.#options;
    const generation = new Generation({ cache, request, answer, arrival, nowMs, listener: stream.listener() });
    return { stream, generation };
  }

  /**
   * Resolves when the queue has room for one more request. All waiting calls resolve; the first `submit` gets the
   * place. Rejects with KV_TIMEOUT, KV_ABORTED or KV_CLOSED.
   */
  async queueFree(options: WaitOptions = {}): Promise<void> {
    await waitUntil('room in the queue', readWaitOptions('OnlineScheduler.queueFree', options), () => {
      this.#checkOpen('wait for room in its queue');
      return this.#hasRoom();
    }, this.#noticing);
  }

  /** Whether `pause` was called, and not `resume` since. */
  get isPaused(): boolean {
    return this.#batching.isPaused;
  }

  /**
   * Has no further pass begin, and resolves when none runs and no request has a slot: then the budgets may be lowered
   * to lend memory, and the engine's weights exchanged (`prefixes.setNamespace` before `resume`). Open requests stay,
   * and go on with the tokens that they have; new ones are queued, where the budgets as they were suffice for them.
   * Signals and deadlines count on. Rejects with KV_TIMEOUT, KV_ABORTED or KV_CLOSED; it is paused all the same.
   */
  async pause(options: WaitOptions = {}): Promise<void> {
    const read = readWaitOptions('OnlineScheduler.pause', options);
    this.#checkOpen('pause');
    this.#budgetsBeforePause ??= budgetsOf(this.#options.cache);
    this.#batching.pause();
    await waitUntil("the engine's pass", read, () => {
      this.#checkOpen('pause');
      return !this.isPaused || this.#batching.isQuiet;
    }, this.#noticing);
  }

  /**
   * Lets requests start again after `pause`; one that needs more than the budgets are now waits for larger ones. Throws
   * KV_CLOSED.
   */
  resume(): void {
    this.#checkOpen('resume');
    this.#budgetsBeforePause = undefined;
    this.#batching.resume();
  }

  /** Resolves when nothing waits or runs, the engine included. Rejects with KV_TIMEOUT or KV_ABORTED. */
  async idle(options: WaitOptions = {}): Promise<void> {
    const read = readWaitOptions('OnlineScheduler.idle', options);
    await waitUntil('the scheduler to be idle', read, () => this.#batching.isIdle, this.#noticing);
  }

  /**
   * Takes no more requests, ends the open ones with KV_CLOSED at once, and waits until the engine's running pass is
   * over: then nothing uses their memory any more, and the cache can be closed. The cache stays open. Rejects with
   * KV_TIMEOUT or KV_ABORTED, also while the engine never answers; the scheduler is closed all the same, and `close`
   * may be called again to wait longer.
   */
  async close(options: WaitOptions = {}): Promise<void> {
    const read = readWaitOptions('OnlineScheduler.close', options);
    if (!this.#isClosed) {
      this.#isClosed = true;
      this.#batching.failAll(createError('KV_CLOSED', { operation: 'go on', owner: 'OnlineScheduler' }));
    }
    await waitUntil("the engine's pass", read, () => this.#loop === undefined && this.#batching.isIdle, this.#noticing);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Steps until no request is left. Never rejects: errors of a step end all requests. */
  async #run(): Promise<void> {
    await setImmediate(); // requests submitted together start together
    while (this.#batching.requests.count > 0) {
      try {
        await this.#batching.step();
        await this.#batching.turn();
      } catch (error) {
        this.#batching.failAll(asError(error, 'order'));
      }
    }
    this.#loop = undefined;
    this.#batching.changed.raise();
  }

  /** Whether the queue has room for so many requests, after late ones have left it. */
  #hasRoom(requests = 1): boolean {
    if (this.waitingRequests + requests > this.#maxWaiting) this.#batching.requests.endLate();
    return this.waitingRequests + requests <= this.#maxWaiting;
  }

  #checkOpen(operation: string): void {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation, owner: 'OnlineScheduler' });
  }
}

/** The request with `releaseInput` called once, when all its answers have let go of `input`. */
function releasedOnce(request: ReadRequest, answers: number): ReadRequest {
  const { releaseInput } = request;
  if (releaseInput === undefined || answers === 1) return request;
  let open = answers;
  const release = (): void => {
    open -= 1;
    if (open === 0) return releaseInput(); // a promise may be returned all the same, and is awaited
  };
  return { ...request, releaseInput: release };
}
