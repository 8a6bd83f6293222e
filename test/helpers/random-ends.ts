// RandomEnds: requests to an online scheduler that are read to their end, cancelled in one of several ways, or given too little
// time; and how they ended, which must be with a result or an error that was to be expected.

import { isKvError, type GenerationRequest, type GenerationResult, type OnlineScheduler, type TokenStream } from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import { turn } from '../serving/pattern-engine.js';

export const allowedEnds = ['KV_ABORTED', 'KV_DEADLINE_EXCEEDED', 'KV_ENGINE_FAILED', 'KV_QUEUE_FULL'] as const;

export class RandomEnds {
  /** Requests by their end: `done`, or the error's code. */
  readonly counts: Record<string, number> = { done: 0 };
  readonly #scheduler: OnlineScheduler;
  readonly #random: Random;
  readonly #longestDeadlineMs: number;
  readonly #allowed: readonly string[];
  readonly #open = new Set<Promise<void>>();

  constructor(scheduler: OnlineScheduler, random: Random, longestDeadlineMs = 420, allowed: readonly string[] = allowedEnds) {
    this.#scheduler = scheduler;
    this.#random = random;
    this.#longestDeadlineMs = longestDeadlineMs;
    this.#allowed = allowed;
  }

  get sum(): number {
    return Object.values(this.counts).reduce((sum, count) => sum + count);
  }

  /** Submits a request; `check` is told of its result, if it has one. */
  submit(request: GenerationRequest, check: (result: GenerationResult) => void): void {
    const watched: Promise<void> = this.#serve(request, check).finally(() => this.#open.delete(watched));
    this.#open.add(watched);
  }

  /** All have ended. Rejects with an error that none may end with. */
  async allEnded(): Promise<void> {
    await Promise.all(this.#open);
  }

  async #serve(request: GenerationRequest, check: (result: GenerationResult) => void): Promise<void> {
    const random = this.#random;
    const controller = new AbortController();
    const deadlineMs = random.chance(0.05) ? 20 + random.integer(this.#longestDeadlineMs - 20) : undefined;
    const tenant = random.chance(0.2) ? 'other' : '';
    try {
      const stream = this.#scheduler.submit({ ...request, tenant, deadlineMs, signal: controller.signal });
      const way = random.integer(20);
      if (way === 0) controller.abort();
      if (way === 1) void turn().then(() => controller.abort());
      check(way === 2 ? await readSome(stream, random.integer(request.maxNewTokens)) : await stream.result);
      this.#count('done');
    } catch (error) {
      if (!isKvError(error) || !this.#allowed.includes(error.code)) throw error;
      this.#count(error.code);
    }
  }

  #count(end: string): void {
    this.counts[end] = (this.counts[end] ?? 0) + 1;
  }
}

/** Reads so many tokens, then leaves. */
async function readSome(stream: TokenStream, tokens: number): Promise<GenerationResult> {
  let read = 0;
  for await (const _token of stream) if (++read > tokens) break;
  return stream.result;
}
