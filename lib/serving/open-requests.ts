// OpenRequests: the requests of a scheduler that have not ended: they are watched for signals and deadlines, wait, count for their
// tenants and in the totals, and end exactly once. Which of them run, and what they hold, is decided elsewhere.

import type { Generation } from './generation.js';
import { TenantShares, type RequestOrder } from './request-order.js';
import { RequestWatch, type RequestWatchOptions } from './request-watch.js';
import type { ServingTotals } from './totals.js';
import { WaitingList } from './waiting-list.js';

export interface OpenRequestsOptions extends RequestWatchOptions {
  readonly order: RequestOrder;
  readonly totals: ServingTotals;
}

export class OpenRequests {
  readonly waiting: WaitingList;
  readonly totals: ServingTotals;
  readonly #open = new Set<Generation>();
  readonly #watch: RequestWatch;
  readonly #shares = new TenantShares();

  constructor(options: OpenRequestsOptions) {
    this.waiting = new WaitingList(options.order);
    this.#watch = new RequestWatch(options);
    this.totals = options.totals;
  }

  get count(): number {
    return this.#open.size;
  }

  /** Adds a request that may not start yet. Its signal and its deadline count from now on. Throws what the clock throws. */
  expect(generation: Generation): void {
    this.#open.add(generation);
    try {
      this.#watch.add(generation);
    } catch (error) {
      this.#open.delete(generation);
      throw error;
    }
  }

  /** Lets an expected request start. */
  enqueue(generation: Generation): void {
    generation.share = this.#shares.enter(generation.tenant);
    this.waiting.add(generation);
  }

  /** Ends requests whose deadline has passed. Throws what the clock throws. */
  endLate(): void {
    this.#watch.check();
  }

  /** Counts a request that has got a slot, for the first time or again. */
  countStart({ preemptions, promptTokens, cachedTokens, lostTokens, length }: Generation): void {
    this.totals.recomputedTokens += Math.max(0, lostTokens - length);
    if (preemptions > 0) return;
    this.totals.promptTokens += promptTokens;
    this.totals.cachedTokens += cachedTokens;
  }

  /** Takes a request's slot; it waits again. */
  preempt(generation: Generation): void {
    generation.preempt();
    this.totals.preemptions += 1;
    this.waiting.addBack(generation);
  }

  /** Counts the computed tokens of a request. */
  advance(generation: Generation, keptLogits: Float32Array | undefined): void {
    generation.advance(keptLogits);
    generation.share!.tokens += generation.passTokens;
    this.waiting.reorder(generation.share!);
  }

  /** Gives a request its next token, which may be the last. */
  accept(generation: Generation, token: number, nowMs: number): void {
    const before = generation.generatedTokens;
    const result = generation.accept(token, nowMs);
    this.totals.generatedTokens += generation.generatedTokens - before;
    if (result === undefined) return;
    this.#end(generation);
    this.totals.completedRequests += 1;
    generation.listener.done(result);
  }

  /** Ends a request with an error, unless it has ended. */
  fail(generation: Generation, error: Error): void {
    if (generation.hasEnded) return;
    this.#end(generation);
    this.totals.failedRequests += 1;
    generation.listener.failed(error);
  }

  failAll(error: Error): void {
    for (const generation of [...this.#open]) this.fail(generation, error);
    this.waiting.clear();
  }

  #end(generation: Generation): void {
    generation.hasEnded = true;
    this.#open.delete(generation);
    this.#watch.remove(generation);
    if (generation.isWaiting) this.waiting.drop(generation);
    if (generation.share !== undefined) this.#shares.leave(generation.tenant, generation.share);
  }
}
