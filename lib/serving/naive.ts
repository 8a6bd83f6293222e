// NaiveScheduler: one request at a time, in the order given: its prompt in chunks, then token by token. The plainest thing
// that is right: what the others are compared with, and enough for a command line. The prefix cache helps it as it helps
// them.

import { isKvError } from '../errors/index.js';
import type { Batch } from '../memory/batch.js';
import { AdmissionControl } from './admission-control.js';
import { EngineCalls } from './engine-calls.js';
import { Generation, type GenerationResult } from './generation.js';
import { OutcomeCollector, type GenerationOutcome } from './outcome.js';
import { Pass } from './pass.js';
import { checkFits, readRequest, type GenerationRequest } from './request.js';
import { readSchedulerOptions, type ReadSchedulerOptions, type SchedulerOptions } from './scheduler-options.js';
import { noTotals, type ServingTotals } from './totals.js';

export class NaiveScheduler {
  readonly #options: ReadSchedulerOptions;
  readonly #admission: AdmissionControl;
  readonly #totals = noTotals();
  readonly #engine: EngineCalls;
  readonly #batch: Batch;
  readonly #pass = new Pass(1);

  /** Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
  constructor(options: SchedulerOptions) {
    this.#options = readSchedulerOptions('NaiveScheduler', options);
    const { cache, engine, now } = this.#options;
    this.#admission = new AdmissionControl(this.#options);
    this.#engine = new EngineCalls({ engine, totals: this.#totals, now });
    this.#batch = cache.createBatch(1);
  }

  /** Sums since it was made. */
  get totals(): Readonly<ServingTotals> {
    return this.#totals;
  }

  /**
   * Runs the requests one after the other; yields how each ended. Rejects when the cache cannot go on (lost driver, closed),
   * and for wrong options of a request when its turn comes. Leaving the loop early leaves the others undone.
   */
  async *run(requests: Iterable<GenerationRequest>): AsyncGenerator<GenerationOutcome, void, undefined> {
    const { cache, now } = this.#options;
    const outcomes = new OutcomeCollector();
    let index = 0;
    for (const options of requests) {
      const request = readRequest('NaiveScheduler.run', options);
      const listener = outcomes.listener(index);
      const generation = new Generation({ request, arrival: index, nowMs: now(), listener });
      try {
        checkFits(request, cache.layout, cache.pool);
        const result = await this.#generate(generation);
        this.#totals.completedRequests += 1;
        listener.done(result);
      } catch (error) {
        if (isKvError(error) && (error.recovery === 'restart' || error.code === 'KV_CLOSED')) throw error;
        this.#totals.failedRequests += 1;
        listener.failed(error as Error);
      } finally {
        generation.release();
      }
      index += 1;
      yield* outcomes.take();
    }
  }

  async #generate(generation: Generation): Promise<GenerationResult> {
    const { now, prefillTokensPerStep } = this.#options;
    const totals = this.#totals;
    generation.start(this.#admission.lease(generation));
    totals.promptTokens += generation.promptTokens;
    totals.cachedTokens += generation.cachedTokens;
    let token = this.#engine.nextOfCached(generation);
    if (token !== undefined) totals.skippedPrefills += 1;
    for (;;) {
      const before = generation.generatedTokens;
      const result = token === undefined ? undefined : generation.accept(token, now());
      totals.generatedTokens += generation.generatedTokens - before;
      if (result !== undefined) return result;
      const error = generation.refusalAt(now());
      if (error !== undefined) throw error;
      generation.passTokens = Math.min(generation.remainingTokens, prefillTokensPerStep);
      token = await this.#step(generation);
    }
  }

  /** Computes the generation's next tokens; returns the token behind them once its text is computed. */
  async #step(generation: Generation): Promise<number | undefined> {
    const { cache } = this.#options;
    const call = generation.remainingPrefillTokens === 0 ? 'decode' : 'prefill';
    this.#batch.clear();
    this.#batch.add(generation.sequence!, generation.passTokens);
    this.#pass.clear();
    this.#pass.add(generation);
    cache.prepare(this.#batch);
    try {
      await this.#engine.run(call, this.#pass);
      cache.commit(this.#batch);
      this.#totals.steps += 1;
      generation.advance(this.#pass.keptLogits[0]);
      const error = this.#pass.errors[0];
      if (error !== undefined) {
        generation.takeBack();
        throw error;
      }
      return generation.remainingTokens === 0 ? this.#pass.nextTokens[0] : undefined;
    } finally {
      if (this.#batch.isPrepared && !cache.isClosed) cache.discard(this.#batch);
    }
  }
}
