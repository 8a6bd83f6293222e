// RequestState: where one request of a replay stands: waiting, in prefill, decoding or done. Batching alone changes it. It
// outlives a preemption: the tokens generated until then are kept and become part of what is computed again.

import type { StepMember } from '../serving/step-passes.js';
import type { ReplaySequence } from './replay-cache.js';
import type { RequestText } from './request-text.js';
import type { StampKeys } from './stamp-keys.js';
import { StampRuns } from './stamp-runs.js';
import type { TraceRequest } from './trace-request.js';

export class RequestState implements StepMember {
  readonly request: TraceRequest;
  /** What it says, where the cache is told. */
  readonly text: RequestText | undefined;
  /** Tokens generated so far. */
  generatedTokens = 0;
  /** The lease of a slot; undefined while waiting. */
  sequence: ReplaySequence | undefined;
  /** Tokens of the prompt that the first admission found in the cache, by how they came; undefined until then. */
  cachedBy: ReplaySequence['cachedBy'] | undefined;
  /** Tokens whose K and V a preemption took, until it is admitted again. */
  lostTokens = 0;
  /** Keys of the test pattern. */
  keys: StampKeys | undefined;
  /** Tokens to compute before decoding begins: the prompt, and after a preemption what had been generated. */
  prefillTokens = 0;
  /** Tokens whose K and V are valid: the sequence's length, kept here so that the loop asks nobody. */
  length = 0;
  /** Tokens in the current batch that are its own. */
  passTokens = 0;
  readonly stampedRuns = new StampRuns();

  constructor(request: TraceRequest, text: RequestText | undefined) {
    this.request = request;
    this.text = text;
  }

  get isPrefilling(): boolean {
    return this.length < this.prefillTokens;
  }

  get remainingPrefillTokens(): number {
    return Math.max(0, this.prefillTokens - this.length);
  }

  get isDone(): boolean {
    return !this.isPrefilling && this.generatedTokens >= this.request.outputTokens;
  }
}

/** Tokens that a request holds at its end: the last token it generates is never fed back, so it has no K and V. */
export function peakTokensOf({ promptTokens, outputTokens }: TraceRequest): number {
  return promptTokens + Math.max(0, outputTokens - 1);
}
