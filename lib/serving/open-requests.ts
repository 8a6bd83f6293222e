// OpenRequests: the requests of a scheduler that have not ended: they are watched for signals and deadlines, wait, count for their
// tenants, and end exactly once. Who runs, and what a request holds, is the scheduler's.

import type { RequestOrder } from './request-order.js';
import type { Generation } from './generation.js';
import { RequestWatch, type RequestWatchOptions } from './request-watch.js';
import { TenantShares } from './tenant-shares.js';
import type { ServingTotals } from './totals.js';
import { WaitingList } from './waiting-list.js';

export interface OpenRequestsOptions extends RequestWatchOptions {
  readonly order: RequestOrder;
  readonly totals: ServingTotals;
}

export class OpenRequests {
  readonly waiting: WaitingList;
  readonly #open = new Set<Generation>();
  readonly #watch: RequestWatch;
  readonly #shares = new TenantShares();
  readonly #totals: ServingTotals;

  constructor(options: OpenRequestsOptions) {
    this.waiting = new WaitingList(options.order);
    this.#watch = new RequestWatch(options);
    this.#totals = options.totals;
  }

  get count(): number {
    return this.#open.size;
  }

  /** A request is there, which is not to be started yet. Its signal and its deadline count from now on. Throws what the clock throws. */
  expect(generation: Generation): void {
    this.#open.add(generation);
    try {
      this.#watch.add(generation);
    } catch (error) {
      this.#open.delete(generation);
      throw error;
    }
  }

  /** A request that is expected may start. */
  enqueue(generation: Generation): void {
    generation.share = this.#shares.enter(generation.tenant);
    this.waiting.add(generation);
  }

  /** Ends those that are too late. Throws what the clock throws. */
  endLate(): void {
    this.#watch.check();
  }

  /** The next tokens of a request were computed. */
  advance(generation: Generation, keptLogits: Float32Array | undefined): void {
    generation.advance(keptLogits);
    generation.share!.tokens += generation.passTokens;
    this.waiting.hasGrown(generation.share!);
  }

  /** Gives a request its next token, which may be the last. */
  accept(generation: Generation, token: number, nowMs: number): void {
    const before = generation.generatedTokens;
    const result = generation.accept(token, nowMs);
    this.#totals.generatedTokens += generation.generatedTokens - before;
    if (result === undefined) return;
    this.#end(generation);
    this.#totals.completedRequests += 1;
    generation.listener.done(result);
  }

  /** Ends a request with an error, unless it has ended. */
  fail(generation: Generation, error: Error): void {
    if (generation.hasEnded) return;
    this.#end(generation);
    this.#totals.failedRequests += 1;
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
