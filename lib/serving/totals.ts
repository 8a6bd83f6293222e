// ServingTotals: what a scheduler has done until now, as plain numbers that only the scheduler writes.

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
  /** Milliseconds that the engine's `prefill` took. */
  prefillMs: number;
  /** Milliseconds that the engine's `decode` took. */
  decodeMs: number;
}

export function noTotals(): ServingTotals {
  return {
    completedRequests: 0, failedRequests: 0, promptTokens: 0, cachedTokens: 0, generatedTokens: 0, recomputedTokens: 0,
    skippedPrefills: 0, steps: 0, preemptions: 0, prefillMs: 0, decodeMs: 0,
  };
}
