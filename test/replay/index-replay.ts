// Prompts of a trace through a PrefixIndex alone, one after the other: rows are numbers, and nothing is computed. What `vkv
// replay --prompt-only --max-batch 1 --prefix-cache` does, without any memory.

import type { EvictionPolicyFactory } from '#internal/prefix/eviction/eviction-policy.js';
import { PrefixIndex, rowArithmetic, sharedDomain } from '#internal/prefix/index.js';
import { RequestText } from '#internal/replay/request-text.js';
import type { TraceRequest } from '#internal/replay/trace-request.js';

export interface IndexReplayOptions {
  readonly requests: readonly TraceRequest[];
  readonly tokensPerRow: number;
  /** Tokens of released sequences that stay cached. */
  readonly poolTokens: number;
  readonly policy: EvictionPolicyFactory;
}

/** The prompts' tokens, as a replay makes them. */
export function* promptsOf(requests: readonly TraceRequest[]): Generator<Int32Array, void, undefined> {
  let ownId = 2 ** 31 - 1;
  for (const request of requests) {
    const text = new RequestText({ request: { ...request, outputTokens: 0 }, ownId, seed: 1 });
    ownId -= text.ownIds;
    yield text.tokens(request.promptTokens);
  }
}

/** Cached tokens of each request. */
export function replayIndex({ requests, tokensPerRow, poolTokens, policy }: IndexReplayOptions): number[] {
  const arithmetic = rowArithmetic({ tokenBytes: 1, pageBytes: tokensPerRow });
  const index = new PrefixIndex({ arithmetic, policy, poolRows: Math.floor(poolTokens / tokensPerRow) });
  const free: number[] = [];
  let made = 0;
  const cached: number[] = [];
  for (const text of promptsOf(requests)) {
    const rows = new Int32Array(arithmetic.rowsFor(text.length)).fill(-1);
    const path = index.open(index.match(sharedDomain, text), { rows, isStored: true, level: 0 });
    cached.push(path.length);
    const taken = rows.subarray(arithmetic.wholeRows(path.length));
    for (let at = 0; at < taken.length; at += 1) taken[at] = free.pop() ?? made++;
    index.commit(path, text, text.length);
    const unheld = taken.filter((row) => !index.isHolding(row)); // it had their text already
    index.release(path);
    free.push(...unheld);
    for (let at = 0; at < index.dropped.count; at += 1) free.push(index.dropped.row(at));
    index.dropped.clear();
  }
  return cached;
}
