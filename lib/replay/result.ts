// ReplayResult: the numbers of one replay, as `vkv replay --json` prints them. Names are stable within a major version.
// The timeline is apart: only the report draws it.

import type { ModelShape } from '../index.js';
import type { EvictionPolicyName } from '../prefix/index.js';
import type { MemoryPoint } from './memory-timeline.js';
import type { TiersResult } from './replay-tiers.js';
import type { SourcePoint } from './source-timeline.js';
import type { VerifyMode } from './verification.js';

export interface ReplayResult {
  /** Requests taken from the trace. */
  readonly requests: number;
  readonly completedRequests: number;
  /** Requests that could never fit, for one of the two reasons below. */
  readonly refusedRequests: number;
  /** Of these: longer than `maxTokens`. */
  readonly tooLongRequests: number;
  /** Of these: short enough, and larger than the whole memory budget. */
  readonly tooLargeRequests: number;
  /** Broken lines of the trace that were skipped. */
  readonly skippedLines: number;
  /** Prompt tokens of requests whose prefill was done, each once. */
  readonly promptTokens: number;
  /** Of these, tokens that were cached when the request was first admitted, and not computed. */
  readonly cachedTokens: number;
  /**
   * Of these, by how the sequence got them: in a slot that had them, by mapping rows of other sequences, by copying.
   * Their sum.
   */
  readonly adoptedTokens: number;
  readonly aliasedTokens: number;
  readonly copiedTokens: number;
  /** cachedTokens / promptTokens. */
  readonly hitRate: number;
  readonly generatedTokens: number;
  /** Tokens computed again because of preemptions. */
  readonly recomputedTokens: number;
  /** Tokens of preempted requests that were still cached when these were admitted again. */
  readonly recoveredTokens: number;
  /** Forward passes. */
  readonly steps: number;
  readonly preemptions: number;
  /** Pages mapped while a step waited for them. */
  readonly foregroundMaps: number;
  /** Pages mapped ahead of need by the mapper. */
  readonly backgroundMaps: number;
  /** Pages unmapped, until the last request was done. */
  readonly unmaps: number;
  /** Most physical memory mapped for running sequences, which no other sequence could get. */
  readonly peakPhysicalBytes: number;
  /**
   * Most physical memory that the pool held, cached rows included, which are evicted when running sequences need
   * memory.
   */
  readonly peakPoolBytes: number;
  /**
   * When `peakPhysicalBytes` was reached: memory of valid tokens. Those that sequences share count for each of them.
   */
  readonly usedBytesAtPeak: number;
  /**
   * At that moment: what a paged cache with 16-token blocks, sharing nothing, would have held for the same sequences.
   */
  readonly pagedBytesAtPeak: number;
  /** Tokens of the longest request that was replayed, with its answer. */
  readonly longestTokens: number;
  /** What one contiguous allocation per slot, each for `longestTokens`, would hold all the time. */
  readonly staticBytes: number;
  readonly verify: VerifyMode;
  /** Tokens that were verified: their test pattern was read back in all tensors. */
  readonly verifiedTokens: number;
  /** Of these, tokens that were wrong in at least one tensor. */
  readonly mismatches: number;
  /** Pages that were not back in the pool when the cache was closed. */
  readonly leakedPages: number;
  /** Time in `prepare` and `commit`, a step. */
  readonly stepOverheadUs: { readonly p50: number; readonly p99: number; readonly max: number };
  readonly wallSeconds: number;
  /** Whether it was stopped before the end of the trace; the numbers are those until then. */
  readonly interrupted: boolean;
  readonly seed: number;
  /** `format`: `azure`, `mooncake`, `generated` or `unknown`. */
  readonly trace: { readonly name: string; readonly format: string };
  readonly model: ModelShape;
  readonly cache: {
    readonly layout: string;
    readonly pageBytes: number;
    /** Bytes of one page in every reservation: what a slot grows by. */
    readonly rowBytes: number;
    readonly tokensPerRow: number;
    /** Bytes of one token in all tensors. */
    readonly tokenBytes: number;
    readonly maxBatch: number;
    readonly maxTokens: number;
    readonly memoryBytes: number;
    readonly prefillTokensPerStep: number;
    /** Whether requests were released after their prefill. */
    readonly promptOnly: boolean;
    /** `poolRows`: null without a bound. */
    readonly prefixCache: 'off' | { readonly policy: EvictionPolicyName; readonly poolRows: number | null };
  };
  /** Null without tiers. */
  readonly tiers: TiersResult | null;
  readonly driver: { readonly kind: string; readonly deviceName: string };
}

export interface Replay {
  readonly result: ReplayResult;
  readonly timeline: readonly MemoryPoint[];
  /** Where prompts came from, with tiers. */
  readonly sources: readonly SourcePoint[];
  /** What `at` in the timeline is: a step with `saturate`, ms of the trace's time with `trace`. */
  readonly arrivals: 'saturate' | 'trace';
}

/** Whether there were requests, and none could be served. */
export function isAllRefused({ requests, refusedRequests }: ReplayResult): boolean {
  return requests > 0 && refusedRequests === requests;
}

/** Whether every pattern was read back right, and every page returned. */
export function isSound({ mismatches, leakedPages }: ReplayResult): boolean {
  return mismatches === 0 && leakedPages === 0;
}
