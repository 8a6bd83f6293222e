// OpenRequests: the requests of a scheduler that have not ended: they are watched for signals and deadlines, wait,
// count for their tenants and in the totals, and end exactly once. Which of them run, and what they hold, is decided
// elsewhere.

import type { Generation } from './generation.js';
import type { TokenLogProbability } from './plain-sampling.js';
import { pictureOfRequests, type RequestsPicture } from './request-picture.js';
import { TenantShares, type RequestOrder } from './request-order.js';
import type { Clock } from './scheduler-options.js';
import { promptSource, type ServingTimes } from './serving-times.js';
import { RequestWatch, type RequestWatchOptions } from './request-watch.js';
import { WaitingList } from './waiting-list.js';

/** Sums of a scheduler since it was made. */
export interface ServingTotals {
  /** Requests that were answered. */
  completedRequests: number;
  /** Requests that ended with an error: aborted, too late, too large, or an engine's failure. */
  failedRequests: number;
  /** Prompt tokens of requests that were admitted; counted once, also after a preemption. */
  promptTokens: number;
  /** Of these, those that came from the prefix cache. */
  cachedTokens: number;
  /** Tokens of answers. */
  generatedTokens: number;
  /** Tokens computed again after preemptions; those found in the cache again are not among them. */
  recomputedTokens: number;
  /** Prompts that were cached whole with their last logits: nothing was computed before their first token. */
  skippedPrefills: number;
  /** Rounds of the batching loop. */
  steps: number;
  /** Times that a running request lost its slot, to another request or to other users of the cache. */
  preemptions: number;
  /** Times that logits of a request were not numbers: nothing that it had computed is cached. */
  badLogits: number;
  /**
   * Of these, times that the request was computed once more without the cached text that it had found, and well: that
   * text was dropped.
   */
  recoveredRequests: number;
  /** Milliseconds that the engine's `prefill` took. */
  prefillMs: number;
  /** Milliseconds that the engine's `decode` took. */
  decodeMs: number;
}

export function noTotals(): ServingTotals {
  return {
    completedRequests: 0, failedRequests: 0, promptTokens: 0, cachedTokens: 0, generatedTokens: 0, recomputedTokens: 0,
    skippedPrefills: 0, steps: 0, preemptions: 0, badLogits: 0, recoveredRequests: 0, prefillMs: 0, decodeMs: 0,
  };
}

export interface OpenRequestsOptions extends RequestWatchOptions {
  /**
   * Gives slots to followers of a request whose prompt has just been computed, and takes them out of its list; or
   * leaves them there.
   */
  readonly onPrompt: (leader: Generation) => void;
  /** Lets a request start that followed another. */
  readonly onFollower: (generation: Generation) => void;
  readonly order: RequestOrder;
  readonly totals: ServingTotals;
  readonly times: ServingTimes;
}

export class OpenRequests {
  readonly waiting: WaitingList;
  readonly totals: ServingTotals;
  readonly #times: ServingTimes;
  readonly #clock: Clock;
  readonly #open = new Set<Generation>();
  readonly #watch: RequestWatch;
  readonly #onFailure: (error: Error) => void;
  readonly #onPrompt: (leader: Generation) => void;
  readonly #onFollower: (generation: Generation) => void;
  #following = 0;
  readonly #shares = new TenantShares();

  constructor(options: OpenRequestsOptions) {
    this.waiting = new WaitingList(options.order);
    this.#watch = new RequestWatch(options);
    this.#onFailure = options.onFailure;
    this.#onPrompt = options.onPrompt;
    this.#onFollower = options.onFollower;
    this.totals = options.totals;
    this.#times = options.times;
    this.#clock = options.clock;
  }

  get count(): number {
    return this.#open.size;
  }

  /** All of them, in no order. */
  get all(): Iterable<Generation> {
    return this.#open;
  }

  /**
   * Adds a request that may not start yet. Its signal and its deadline count from now on. Throws what the clock throws.
   */
  expect(generation: Generation): void {
    this.#open.add(generation);
    generation.onFailure = this.#onFailure;
    try {
      this.#watch.add(generation);
    } catch (error) {
      this.#open.delete(generation);
      throw error;
    }
  }

  /** Requests that wait for the prompt of another answer. */
  get following(): number {
    return this.#following;
  }

  /** Lets an expected request start. */
  enqueue(generation: Generation): void {
    this.enter(generation);
    this.waiting.add(generation);
  }

  /** Counts an expected request, which starts without waiting, for its tenant. */
  enter(generation: Generation): void {
    generation.share = this.#shares.enter(generation.tenant);
  }

  /** Has expected requests wait until the prompt of `leader`, which is theirs too, is computed. */
  follow(leader: Generation, followers: readonly Generation[]): void {
    leader.followers = followers;
    for (const follower of followers) {
      if (follower.hasEnded) continue;
      follower.isFollowing = true;
      this.#following += 1;
    }
  }

  /** Takes the followers of a request. Returns those that have not ended. */
  takeFollowers(leader: Generation): readonly Generation[] {
    const open = leader.followers.filter(({ hasEnded }) => !hasEnded);
    leader.followers = [];
    for (const follower of open) follower.isFollowing = false;
    this.#following -= open.length;
    return open;
  }

  /** Ends requests whose deadline has passed. Throws what the clock throws. */
  endLate(): void {
    this.#watch.check();
  }

  /** Counts a request that has got a slot, for the first time or again. */
  countStart(generation: Generation): void {
    const { preemptions, promptTokens, cachedTokens, reachedTokens, length } = generation;
    this.totals.recomputedTokens += Math.max(0, reachedTokens - length);
    if (preemptions > 0) return;
    this.#times.wait.observe(generation.noteStart(this.#clock.now()));
    this.totals.promptTokens += promptTokens;
    this.totals.cachedTokens += cachedTokens;
  }

  /** Takes a request's slot; it waits again, unless it has ended: what hears of the cache's events may end it. */
  preempt(generation: Generation): void {
    generation.preempt();
    this.totals.preemptions += 1;
    if (!generation.hasEnded) this.waiting.addBack(generation);
  }

  /** Counts the computed tokens of a request. */
  advance(generation: Generation, keptLogits: Float32Array | undefined): void {
    generation.advance(keptLogits);
    generation.share!.tokens += generation.passTokens;
    this.waiting.reorder(generation.share!);
  }

  /** Gives a request its next token, which may be the last. */
  accept(generation: Generation, token: number, logProbability: TokenLogProbability | undefined, nowMs: number): void {
    if (generation.followers.length > 0) {
      this.#onPrompt(generation);
      this.#letFollow(generation);
      if (generation.hasEnded) return; // by the clock's function
    }
    if (generation.answerText !== undefined) {
      generation.acceptText(token);
      if (this.#isTextLost(generation)) return;
    }
    const before = generation.generatedTokens;
    const { lastTokenMs } = generation;
    const result = generation.accept(token, nowMs, logProbability);
    this.totals.generatedTokens += generation.generatedTokens - before;
    if (Number.isNaN(
      lastTokenMs)) this.#times.observeFirstToken(nowMs - generation.submittedMs, promptSource(generation));
    else this.#times.betweenTokens.observe(nowMs - lastTokenMs);
    if (result === undefined) return;
    this.#times.total.observe(result.totalMs);
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

  /** Ends a request with the answer that it has, unless it has ended. */
  finish(generation: Generation, nowMs: number): void {
    if (generation.hasEnded) return;
    generation.answerText?.end();
    if (this.#isTextLost(generation)) return;
    const result = generation.finish(nowMs);
    this.#times.total.observe(result.totalMs);
    this.#end(generation);
    this.totals.completedRequests += 1;
    generation.listener.done(result);
  }

  /** What those that run look like, and the first of those that wait. Throws what the clock throws. */
  picture(): RequestsPicture {
    return pictureOfRequests(this.#open, this.#clock.now());
  }

  failAll(error: Error): void {
    for (const generation of [...this.#open]) this.fail(generation, error);
    this.waiting.clear();
  }

  /** Whether a request has ended by what its tokenizer did, or ends now, since it failed. */
  #isTextLost(generation: Generation): boolean {
    const error = generation.answerText?.error;
    if (error !== undefined) this.fail(generation, error);
    return generation.hasEnded;
  }

  /** Lets the first follower of a request start, which did without it; the others follow that one. */
  #letFollow(leader: Generation): void {
    const [next, ...others] = this.takeFollowers(leader);
    if (next === undefined) return;
    this.follow(next, others);
    this.#onFollower(next);
  }

  #end(generation: Generation): void {
    generation.hasEnded = true;
    if (generation.isFollowing) this.#following -= 1;
    generation.isFollowing = false;
    this.#open.delete(generation);
    this.#watch.remove(generation);
    if (generation.isWaiting) this.waiting.drop(generation);
    if (generation.share !== undefined) this.#shares.leave(generation.tenant, generation.share);
    if (generation.sequence === undefined) generation.freeInput();
    this.#letFollow(generation);
  }
}
