// Batching: iteration-level continuous batching with chunked prefill over a KvCache, the way serving engines do it. One step
// is one forward pass: first a token for every decoding sequence, then prefill chunks in order of admission, then new
// admissions, up to a number of prefill tokens. A prompt's memory is promised whole at admission, so only decoding can run
// out: then the latest admitted gives way, and computes prompt and answer so far again when somebody has finished, but for
// what the prefix cache still has of them. The loop allocates per request, never per token.

import { isKvError } from '../base/errors.js';
import { planStep } from '../serving/step-passes.js';
import { PAGED_BLOCK_TOKENS } from './memory-timeline.js';
import type { ReplayBatch, ReplayCache, ReplaySequence } from './replay-cache.js';
import { RequestState } from './request-state.js';
import { RequestText } from './request-text.js';
import { RingQueue } from './ring-queue.js';
import { oneKey } from './stamp-keys.js';
import { StepTimes } from './step-times.js';
import type { TraceRequest } from './trace-request.js';
import type { Verification } from './verification.js';

export interface BatchingOptions {
  readonly cache: ReplayCache;
  readonly verification: Verification;
  /** Most sequences in a step: slots of the cache, 1 or more. */
  readonly maxBatch: number;
  /** Most prompt tokens in a step, over all sequences, 1 or more. */
  readonly prefillTokensPerStep: number;
  /** Whether the cache is told what requests say, so that it shares what they have in common. Default false. */
  readonly sharesPrefixes?: boolean;
  /** Chooses the keys of patterns that belong to text. Default 1. */
  readonly seed?: number;
}

/** What happened until now; plain numbers, read by anybody, written by Batching. */
export interface BatchingTotals {
  completedRequests: number;
  /** Prompt tokens of requests whose prefill is done; counted once, also after a preemption. */
  promptTokens: number;
  /** Those of them that the cache had when the request was first admitted; then by how they came. */
  cachedTokens: number;
  adoptedTokens: number;
  aliasedTokens: number;
  copiedTokens: number;
  generatedTokens: number;
  /** Tokens computed again because of preemptions. */
  recomputedTokens: number;
  /** Tokens that preempted requests had computed, and found in the cache when they came back. */
  recoveredTokens: number;
  steps: number;
  preemptions: number;
}

/** How often a step asks again when the driver says that trying again may help. */
const RETRIES = 2;

export class Batching {
  readonly totals: BatchingTotals = {
    completedRequests: 0, promptTokens: 0, cachedTokens: 0, adoptedTokens: 0, aliasedTokens: 0, copiedTokens: 0,
    generatedTokens: 0, recomputedTokens: 0, recoveredTokens: 0, steps: 0, preemptions: 0,
  };

  readonly maxBatch: number;
  /** Time in `prepare` and `commit` of each step. */
  readonly stepTimes = new StepTimes();
  readonly #cache: ReplayCache;
  readonly #verification: Verification;
  readonly #prefillTokensPerStep: number;
  readonly #sharesPrefixes: boolean;
  readonly #seed: number;
  readonly #batch: ReplayBatch;
  readonly #waiting = new RingQueue<RequestState>();
  /** In order of admission. */
  readonly #running: RequestState[] = [];
  #admissions = 0;
  /** The next id of text that only one request has; they go down, as those of traces go up. */
  #ownId = 2 ** 31 - 1;
  /** Nobody is admitted until a sequence has finished: an admission was refused, or somebody had to give way. */
  #isFull = false;
  #usedTokens = 0;
  #pagedBlocks = 0;

  constructor({ cache, verification, maxBatch, prefillTokensPerStep, sharesPrefixes = false, seed = 1 }: BatchingOptions) {
    this.#cache = cache;
    this.#verification = verification;
    this.maxBatch = maxBatch;
    this.#prefillTokensPerStep = prefillTokensPerStep;
    this.#sharesPrefixes = sharesPrefixes;
    this.#seed = seed;
    this.#batch = cache.createBatch(maxBatch);
  }

  get waitingRequests(): number {
    return this.#waiting.length;
  }

  get runningRequests(): number {
    return this.#running.length;
  }

  get isIdle(): boolean {
    return this.#running.length === 0 && this.#waiting.length === 0;
  }

  /** Valid tokens of the running sequences. */
  get usedTokens(): number {
    return this.#usedTokens;
  }

  /** Tokens that a paged cache would hold for them: each sequence rounded up to whole blocks. */
  get pagedTokens(): number {
    return this.#pagedBlocks * PAGED_BLOCK_TOKENS;
  }

  /** Queues a request behind all others. It must fit an empty cache, to its last token. */
  enqueue(request: TraceRequest): void {
    const text = this.#sharesPrefixes ? new RequestText({ request, ownId: this.#ownId, seed: this.#seed }) : undefined;
    this.#ownId -= text?.ownIds ?? 0;
    this.#waiting.push(new RequestState(request, text));
  }

  /**
   * Runs one step, after which `releaseDone` is due; does nothing when idle. Throws what is no matter of capacity, and what
   * no preemption can help.
   */
  step(): void {
    let prefillTokens = this.#fillBatch();
    while (prefillTokens < this.#prefillTokensPerStep && this.#admit()) {
      const state = this.#running.at(-1)!;
      this.#addChunk(state, this.#prefillTokensPerStep - prefillTokens);
      prefillTokens += state.passTokens;
    }
    if (this.#running.length === 0) return;
    let overheadMs = this.#prepare();
    for (const state of this.#running) {
      const { sequence, stampedRuns, keys, length, passTokens } = state;
      if (passTokens > 0) this.#verification.stamp(sequence!, stampedRuns, keys!, length, passTokens);
    }
    const start = performance.now();
    this.#cache.commit(this.#batch);
    overheadMs += performance.now() - start;
    this.stepTimes.record(overheadMs);
    this.totals.steps += 1;
    for (const state of this.#running) this.#advance(state);
  }

  /** Verifies and releases the sequences that the step completed. Until then their memory is as the pass left it. */
  releaseDone(): void {
    let kept = 0;
    for (const state of this.#running) {
      if (!state.isDone) {
        this.#running[kept++] = state;
        continue;
      }
      this.#release(state);
      this.totals.completedRequests += 1;
      this.#isFull = false;
    }
    this.#running.length = kept;
  }

  /** Verifies and releases all that run, as at an interrupt; what waits is forgotten. */
  stop(): void {
    while (this.#running.length > 0) this.#release(this.#running.pop()!);
    while (this.#waiting.length > 0) this.#waiting.shift();
  }

  /** Puts the running sequences into the batch; returns the prefill tokens among them. */
  #fillBatch(): number {
    this.#batch.clear();
    const prefillTokens = planStep(this.#running, this.#prefillTokensPerStep);
    for (const { passTokens, sequence } of this.#running) if (passTokens > 0) this.#batch.add(sequence!, passTokens);
    return prefillTokens;
  }

  #addChunk(state: RequestState, most: number): void {
    state.passTokens = Math.min(most, state.remainingPrefillTokens);
    this.#batch.add(state.sequence!, state.passTokens);
  }

  /** Starts the first waiting request; false when there is none, or no slot or no memory for it. */
  #admit(): boolean {
    const state = this.#waiting.peek();
    if (state === undefined || this.#isFull || this.#running.length === this.maxBatch) return false;
    const prefillTokens = state.request.promptTokens + state.generatedTokens;
    const sequence = this.#acquire(state.text, prefillTokens);
    if (sequence === undefined) return false;
    const { cachedTokens } = sequence;
    this.#waiting.shift();
    state.sequence = sequence;
    state.keys = state.text ?? oneKey(this.#verification.keyOf(++this.#admissions));
    state.prefillTokens = prefillTokens;
    state.length = sequence.length;
    state.cachedBy ??= sequence.cachedBy;
    const recoveredTokens = Math.min(cachedTokens, state.lostTokens);
    this.totals.recoveredTokens += recoveredTokens;
    this.totals.recomputedTokens += state.lostTokens - recoveredTokens;
    state.lostTokens = 0;
    this.#verification.recall(state.stampedRuns, state.keys, cachedTokens);
    this.#count(0, state.length);
    this.#running.push(state);
    return true;
  }

  #acquire(text: RequestText | undefined, promptTokens: number): ReplaySequence | undefined {
    const prompt = text === undefined ? { promptTokens } : { tokens: text.tokens(promptTokens) };
    try {
      return this.#cache.acquire({ ...prompt, reserve: 'prompt' });
    } catch (error) {
      // With nothing running there is nobody to wait for: then the refusal is the caller's to see.
      if (!isKvError(error) || error.recovery !== 'free' || this.#running.length === 0) throw error;
      this.#isFull = true;
      return undefined;
    }
  }

  /** Makes room for the batch, preempting as long as there is none; returns the time it took, in ms. */
  #prepare(): number {
    let ms = 0;
    for (let tries = 0; ; ) {
      const start = performance.now();
      try {
        this.#cache.prepare(this.#batch);
        return ms + performance.now() - start;
      } catch (error) {
        ms += performance.now() - start;
        if (!isKvError(error)) throw error;
        if (error.recovery === 'free' && this.#running.length > 1) this.#preempt();
        else if (error.recovery !== 'retry' || ++tries > RETRIES) throw error;
      }
    }
  }

  /** The latest admitted gives its memory back, waits before all others, and the batch is made again without it. */
  #preempt(): void {
    const state = this.#running.pop()!;
    this.totals.preemptions += 1;
    state.lostTokens = state.length;
    this.#release(state);
    this.#waiting.pushFront(state);
    this.#isFull = true;
    this.#fillBatch();
  }

  /** Counts the pass that was committed. The pass of the last prompt token gives the first token of the answer. */
  #advance(state: RequestState): void {
    const { passTokens, request } = state;
    if (passTokens === 0) return;
    this.#count(state.length, state.length + passTokens);
    state.length += passTokens;
    if (state.isPrefilling) return;
    if (state.generatedTokens === 0) this.#countPrompt(state);
    if (state.generatedTokens === request.outputTokens) return;
    state.generatedTokens += 1;
    this.totals.generatedTokens += 1;
    if (state.text !== undefined && !state.isDone) state.sequence!.append(state.text.tokenAt(state.length));
  }

  #countPrompt({ request, cachedBy }: RequestState): void {
    const { adoptedTokens, aliasedTokens, copiedTokens } = cachedBy!;
    this.totals.promptTokens += request.promptTokens;
    this.totals.cachedTokens += adoptedTokens + aliasedTokens + copiedTokens;
    this.totals.adoptedTokens += adoptedTokens;
    this.totals.aliasedTokens += aliasedTokens;
    this.totals.copiedTokens += copiedTokens;
  }

  #release(state: RequestState): void {
    const { sequence, stampedRuns, keys, length } = state;
    this.#verification.verify(sequence!, stampedRuns, keys!);
    sequence!.release();
    this.#count(length, 0);
    state.sequence = undefined;
    state.length = 0;
  }

  #count(tokensBefore: number, tokensNow: number): void {
    this.#usedTokens += tokensNow - tokensBefore;
    this.#pagedBlocks += Math.ceil(tokensNow / PAGED_BLOCK_TOKENS) - Math.ceil(tokensBefore / PAGED_BLOCK_TOKENS);
  }
}
