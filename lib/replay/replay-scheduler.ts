// ReplayScheduler: the requests of a trace through the batching loop that the package ships, with an engine that writes
// and verifies test patterns. It counts what became of their tokens, and times the cache in each step. In order of
// arrival; no request waits for another's prompt, so that a replay finds in the prefix cache what earlier steps have
// left there.

import { createError } from '../base/errors.js';
import type { KvCache, Promotion, Sequence } from '../index.js';
import { ContinuousBatching } from '../serving/continuous-batching.js';
import { Generation } from '../serving/generation.js';
import type { GenerationListener } from '../serving/generation-result.js';
import { readRequest, type ServedBy } from '../serving/request.js';
import { readSchedulerOptions } from '../serving/scheduler-options.js';
import type { ReplayTiers } from './replay-tiers.js';
import { RequestText } from './request-text.js';
import { StampEngine } from './stamp-engine.js';
import type { TraceRequest } from './trace-request.js';
import type { Verification } from './verification.js';

export interface ReplaySchedulerOptions {
  readonly cache: KvCache;
  readonly verification: Verification;
  /** Most sequences in a step, 1 or more, at most the slots of the cache. */
  readonly maxBatch: number;
  /** Most prompt tokens in a step, over all sequences, 1 or more. */
  readonly prefillTokensPerStep: number;
  /** Whether requests have the tokens that their trace says; otherwise their number only. Default false. */
  readonly sharesPrefixes?: boolean;
  /** What is below the device; its engine has a speed, and its clock is what that takes. Default: nothing. */
  readonly tiers?: ReplayTiers | undefined;
  /** Chooses the keys of patterns that belong to text. Default 1. */
  readonly seed?: number;
}

/** Sums over all requests until now. */
export interface ReplayTotals {
  completedRequests: number;
  /** Prompt tokens of requests whose prefill is done; counted once, also after a preemption. */
  promptTokens: number;
  /** Of these, tokens that were cached when the request was first admitted; then by how the sequence got them. */
  cachedTokens: number;
  adoptedTokens: number;
  aliasedTokens: number;
  copiedTokens: number;
  generatedTokens: number;
  /** Tokens computed again because of preemptions. */
  recomputedTokens: number;
  /** Tokens of preempted requests that were still cached when these were admitted again. */
  recoveredTokens: number;
  steps: number;
  preemptions: number;
}

export class ReplayScheduler {
  readonly totals: ReplayTotals = {
    completedRequests: 0, promptTokens: 0, cachedTokens: 0, adoptedTokens: 0, aliasedTokens: 0, copiedTokens: 0,
    generatedTokens: 0, recomputedTokens: 0, recoveredTokens: 0, steps: 0, preemptions: 0,
  };

  readonly maxBatch: number;
  /** Time in `prepare` and `commit` of each step. */
  readonly stepTimes = new StepTimes();
  readonly #engine: StampEngine;
  readonly #batching: ContinuousBatching;
  readonly #sharesPrefixes: boolean;
  readonly #seed: number;
  readonly #served: ServedBy & { readonly cache: KvCache };
  readonly #tiers: ReplayTiers | undefined;
  /** What tiers call now. */
  #at = 0;
  /** A prompt whose tokens do not matter. */
  readonly #blank: Int32Array;
  #arrivals = 0;
  /** The next id of text that only one request has; they go down, as those of traces go up. */
  #ownId = 2 ** 31 - 1;
  #error: Error | undefined;
  #onCommit = (): void => {};

  constructor({
    cache, verification, maxBatch, prefillTokensPerStep, sharesPrefixes = false, tiers, seed = 1,
  }: ReplaySchedulerOptions) {
    this.maxBatch = maxBatch;
    this.#sharesPrefixes = sharesPrefixes;
    this.#seed = seed;
    this.#blank = new Int32Array(sharesPrefixes ? 0 : cache.layout.maxTokens);
    const engine = this.#engine = new StampEngine(verification, maxBatch, tiers?.tokensPerMs);
    this.#tiers = tiers;
    const options = readSchedulerOptions('ReplayScheduler', {
      cache, engine: this.#engine, maxBatch, prefillTokensPerStep, watermarkRows: 0, minPendingTokens: Infinity,
      ...tiers === undefined ? {} : { now: () => engine.computedMs },
    });
    this.#served = options;
    let startMs = 0;
    let stepMs = 0;
    this.#batching = new ContinuousBatching(options, {
      observer: {
        enter: () => { startMs = performance.now(); },
        leave: () => { stepMs += performance.now() - startMs; },
        committed: () => {
          this.stepTimes.record(stepMs);
          stepMs = 0;
          this.totals.steps += 1;
          this.#onCommit();
        },
      },
    });
  }

  get waitingRequests(): number {
    return this.#batching.waitingRequests;
  }

  get runningRequests(): number {
    return this.#batching.runningRequests;
  }

  get isIdle(): boolean {
    return this.#batching.requests.count === 0;
  }

  /** Valid tokens of the running sequences. */
  get usedTokens(): number {
    return this.#engine.usedTokens;
  }

  /** Tokens that a paged cache would hold for them. */
  get pagedTokens(): number {
    return this.#engine.pagedTokens;
  }

  /** Queues a request behind all others. It must fit an empty cache, to its last token. */
  enqueue(request: TraceRequest): void {
    const { promptTokens, outputTokens } = request;
    const text = this.#sharesPrefixes ? new RequestText({ request, ownId: this.#ownId, seed: this.#seed }) : undefined;
    this.#ownId -= text?.ownIds ?? 0;
    const tokens = text?.tokens(promptTokens) ?? this.#blank.subarray(0, promptTokens);
    const caching = this.#sharesPrefixes ? 'read-write' : 'off';
    const read =
      readRequest('ReplayScheduler', { tokens, caching, maxNewTokens: Math.max(1, outputTokens) }, this.#served);
    this.#arrivals += 1;
    const generation: Generation = new Generation({
      cache: this.#served.cache, request: read, arrival: this.#arrivals, nowMs: 0,
      listener: this.#listener(request, text, (): Promotion | undefined => generation.promotion),
    });
    this.#batching.requests.expect(generation);
    this.#batching.enqueueFitting(generation);
  }

  /**
   * Runs one step, `onCommit` after its commit, while completed sequences still hold their memory; does nothing when
   * idle. Rejects with the first error of a request, or of the step. `at`: the time by which tiers' hits are told.
   * Default: the step.
   */
  async step(onCommit = (): void => {}, at = this.totals.steps): Promise<void> {
    const { steps } = this.totals;
    this.#onCommit = onCommit;
    this.#at = at;
    await this.#batching.step();
    await this.#tiers?.settled();
    this.totals.preemptions = this.#batching.totals.preemptions;
    if (this.#error !== undefined) throw this.#error;
    if (this.totals.steps === steps && !this.isIdle) await this.#batching.turn(); // it waits for slots or pages
  }

  /** Verifies and releases all running sequences, as at an interrupt, and forgets waiting requests. */
  stop(): void {
    this.#batching.failAll(createError('KV_ABORTED', { operation: 'generating' }));
  }

  /** Counts what becomes of a request. */
  #listener(
    request: TraceRequest, text: RequestText | undefined, promotion: () => Promotion | undefined,
  ): GenerationListener {
    const { totals } = this;
    let cachedBy: Sequence['cachedBy'] | undefined;
    let lostTokens = 0;
    let isPrefilled = false;
    return {
      started: (sequence) => {
        this.#engine.start(sequence, text);
        cachedBy ??= sequence.cachedBy;
        const recoveredTokens = Math.min(sequence.cachedTokens, lostTokens);
        totals.recoveredTokens += recoveredTokens;
        totals.recomputedTokens += lostTokens - recoveredTokens;
      },
      leaving: (sequence) => {
        lostTokens = this.#engine.end(sequence);
      },
      token: () => {
        if (request.outputTokens > 0) totals.generatedTokens += 1; // without an answer only the prefill counts
        if (isPrefilled) return;
        isPrefilled = true;
        const { adoptedTokens, aliasedTokens, copiedTokens } = cachedBy!;
        totals.promptTokens += request.promptTokens;
        totals.cachedTokens += adoptedTokens + aliasedTokens + copiedTokens;
        totals.adoptedTokens += adoptedTokens;
        totals.aliasedTokens += aliasedTokens;
        totals.copiedTokens += copiedTokens;
        const cachedTokens = adoptedTokens + aliasedTokens + copiedTokens;
        this.#tiers?.served({ promptTokens: request.promptTokens, cachedTokens, promotion: promotion() }, this.#at);
      },
      done: () => {
        totals.completedRequests += 1;
      },
      failed: (error) => {
        this.#error ??= error;
      },
    };
  }
}

/** Of a histogram of logarithmic buckets. */
const BUCKETS_PER_OCTAVE = 32;
const OCTAVES = 40;

/**
 * How long the steps of a run took, as percentiles within 3.2 %, from 1 ns to 18 minutes; the maximum is exact.
 * Recording allocates nothing.
 */
export class StepTimes {
  readonly #buckets = new Float64Array(OCTAVES * BUCKETS_PER_OCTAVE);
  #steps = 0;
  #maxMs = 0;

  get steps(): number {
    return this.#steps;
  }

  record(ms: number): void {
    const octaves = Math.min(OCTAVES - 1e-6, Math.max(0, Math.log2(ms * 1e6)));
    this.#buckets[Math.floor(octaves * BUCKETS_PER_OCTAVE)]! += 1;
    this.#steps += 1;
    if (ms > this.#maxMs) this.#maxMs = ms;
  }

  /** The time in µs that `share` (0 to 1) of the steps did not exceed: the middle of its bucket. 0 without steps. */
  percentileUs(share: number): number {
    let left = Math.max(1, Math.ceil(share * this.#steps));
    if (this.#steps === 0) return 0;
    for (let bucket = 0; bucket < this.#buckets.length - 1; ++bucket) { // the last one has no upper end
      left -= this.#buckets[bucket]!;
      if (left <= 0) return Math.min(this.maxUs, 2 ** ((bucket + 0.5) / BUCKETS_PER_OCTAVE) / 1e3);
    }
    return this.maxUs;
  }

  get maxUs(): number {
    return this.#maxMs * 1e3;
  }
}
