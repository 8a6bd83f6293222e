// replay(): runs a trace through a KvCache on real mapped memory, and returns what that took and whether every byte was
// right. It opens a driver, a pool and a cache of its own, closes them in any case, and counts the pages that were not
// returned.

import {
  computeLayout, KvCache, PagePool, type Driver, type DriverChoice, type LayoutKind, type ModelShape, type Tier,
} from '../index.js';
import { choosePageBytes, layoutChoices } from '../layout/layout.js';
import { driverField, openDriver } from '../device/driver.js';
import { evictionPolicies, evictionPolicyNames, type EvictionPolicyName } from '../prefix/index.js';
import { createError } from '../base/errors.js';
import {
  abortSignal, boolean, callable, integer, number, oneOf, optional, readOptions, withDefault, type Field,
} from '../base/options.js';
import type { MemorySample } from './memory-timeline.js';
import { arrivalModes, ReplayLoop, type ArrivalMode, type Refusal, type ReplayProgress } from './replay-loop.js';
import { ReplayScheduler } from './replay-scheduler.js';
import { ReplayTiers } from './replay-tiers.js';
import { RequestFeed, type ReplayTrace } from './request-feed.js';
import type { Replay, ReplayResult } from './result.js';
import { peakTokensOf, type TraceRequest } from './trace-request.js';
import { Verification, verifyModes, type VerifyMode } from './verification.js';

export { evictionPolicyNames, type EvictionPolicyName } from '../prefix/index.js';

export interface ReplayOptions {
  /** A TraceReader, a Workload, or any list or stream of requests in order of arrival. It is closed at the end. */
  readonly trace: ReplayTrace;
  /** Default: the shape of Llama 3.2 1B (16 layers, 8 KV heads of 64, float16: 32 KiB a token). */
  readonly model?: ModelShape | undefined;
  /** A kind, or an open driver, which stays open. Default `auto`: cuda where there is a GPU, else host. */
  readonly driver?: Driver | DriverChoice | undefined;
  /** Default `auto`, as of KvCache. */
  readonly layout?: LayoutKind | 'auto' | undefined;
  /** Bytes of a page, a multiple of the driver's granularity. Default: the driver's. */
  readonly pageBytes?: number | undefined;
  /** Longest sequence in tokens, 1 or more; longer requests are refused. Default 196,608. */
  readonly maxTokens?: number | undefined;
  /** Most sequences at once: slots, 1 or more. Default 64. */
  readonly maxBatch?: number | undefined;
  /** Most prompt tokens in one forward pass, 1 or more. Default 2,048. */
  readonly prefillTokensPerStep?: number | undefined;
  /** Physical memory for pages, in bytes. Default 8 GiB, or 80 % of what the driver has free where that is less. */
  readonly memoryBytes?: number | undefined;
  /** `on`: requests with a common prefix share its rows, which are computed once. Default `off`. */
  readonly prefixCache?: 'on' | 'off' | undefined;
  /** Which cached rows the prefix cache evicts first. Default `adaptive`. */
  readonly policy?: EvictionPolicyName | undefined;
  /** Most rows of ended requests that stay cached, 0 or more. Default: bounded by the memory only. */
  readonly poolRows?: number | undefined;
  /** What is below the device, the fastest first, closed at the end. Needs `prefixCache: 'on'`. Default: nothing. */
  readonly tiers?: readonly Tier[] | undefined;
  /**
   * Prompt tokens a second that the engine is taken to compute, above 0, which loading from tiers is compared with.
   * Default 10,000.
   */
  readonly prefillTokensPerSecond?: number | undefined;
  /** Whether requests end after their prefill, without an answer. Default false. */
  readonly promptOnly?: boolean | undefined;
  /** Which tokens are stamped and read back. Default `sampled`. */
  readonly verify?: VerifyMode | undefined;
  /** When requests arrive. Default `saturate`. */
  readonly arrivals?: ArrivalMode | undefined;
  /** What a step takes on the clock of `arrivals: 'trace'`, in ms, above 0. Default 25. */
  readonly stepMs?: number | undefined;
  /** Requests to replay at most, 1 or more. Default: all. */
  readonly limit?: number | undefined;
  /** Chooses the test pattern and the sample. Default 1. */
  readonly seed?: number | undefined;
  /** Ends the replay early and cleanly, with the numbers so far. */
  readonly signal?: AbortSignal | undefined;
  /** Told of the progress, at most ten times a second, and at the end. */
  readonly onProgress?: ((progress: ReplayProgress) => void) | undefined;
}

export const DEFAULT_MODEL: ModelShape = { layers: 16, kvHeads: 8, headDim: 64, dtype: 'float16' };

/** Holds the longest request of the public Mooncake traces (191,378 + 8 tokens); addresses cost nothing. */
export const DEFAULT_MAX_TOKENS = 192 * 1024;

/** Holds one such request of the default model (6 GiB), and smaller ones beside it. */
const DEFAULT_MEMORY_BYTES = 8 * 2 ** 30;
const DEFAULT_SHARE_OF_FREE = 0.8;

const unchecked = <T>(): Field<T> => (value) => value as T; // checked where it is used
const count = integer({ min: 1 });

const spec = {
  trace: unchecked<ReplayTrace>(),
  model: withDefault(unchecked<ModelShape>(), DEFAULT_MODEL),
  driver: driverField,
  layout: withDefault(oneOf(layoutChoices), 'auto'),
  pageBytes: optional(count),
  maxTokens: withDefault(count, DEFAULT_MAX_TOKENS),
  maxBatch: withDefault(count, 64),
  prefillTokensPerStep: withDefault(count, 2_048),
  memoryBytes: optional(count),
  prefixCache: withDefault(oneOf(['on', 'off']), 'off'),
  policy: withDefault(oneOf(evictionPolicyNames), 'adaptive'),
  poolRows: optional(integer()),
  tiers: withDefault(unchecked<readonly Tier[]>(), []),
  prefillTokensPerSecond: withDefault(number(1e-3), 10_000),
  promptOnly: withDefault(boolean, false),
  verify: withDefault(oneOf(verifyModes), 'sampled'),
  arrivals: withDefault(oneOf(arrivalModes), 'saturate'),
  stepMs: withDefault(number(1e-3), 25),
  limit: optional(count),
  seed: withDefault(integer(), 1),
  signal: optional(abortSignal),
  onProgress: optional(callable<(progress: ReplayProgress) => void>()),
};

type Settings = ReturnType<typeof readOptions<typeof spec>>;

/**
 * Replays a trace. Resolves also when it was stopped by its signal (`interrupted`), and when memory was not as it
 * should be (`mismatches`, `leakedPages`: see `isSound`). Rejects with the error of a broken trace, of options, or of
 * the driver.
 */
export async function replay(options: ReplayOptions): Promise<Replay> {
  const settings = readOptions('replay', options, spec);
  const { driver, isOwn } = openDriver(settings.driver);
  try {
    const { model, layout, maxBatch, maxTokens, pageBytes } = settings;
    const memoryBudgetBytes = settings.memoryBytes
      ?? Math.min(DEFAULT_MEMORY_BYTES, Math.floor(driver.memory().freeBytes * DEFAULT_SHARE_OF_FREE));
    const size = { model, layout, slots: maxBatch, maxTokens, memoryBudgetBytes, driverKind: driver.kind };
    const pool = new PagePool({ driver, memoryBudgetBytes, pageBytes }, () => choosePageBytes(size, driver));
    try {
      return await replayOn(driver, pool, settings);
    } finally {
      pool.close();
    }
  } finally {
    settings.trace.close?.();
    if (isOwn) driver.close();
  }
}

async function replayOn(driver: Driver, pool: PagePool, settings: Settings): Promise<Replay> {
  const { trace, model, maxTokens, maxBatch, prefillTokensPerStep, verify, arrivals, stepMs, limit, seed, signal } =
    settings;
  const { policy, poolRows, promptOnly, tiers } = settings;
  const sharesPrefixes = settings.prefixCache === 'on';
  if (tiers.length > 0 && !sharesPrefixes) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'replay', option: 'tiers', expected: "left out with prefixCache: 'off'",
      received: tiers.length,
    });
  }
  const { pageBytes, memoryBudgetBytes } = pool;
  const { kind } = computeLayout({
    model, layout: settings.layout, slots: maxBatch, maxTokens, pageBytes, memoryBudgetBytes, driverKind: driver.kind,
  });
  // What is stamped depends on these, and a later replay may find it in a tier.
  const modelId = `replay ${JSON.stringify([seed, verify, ...verify === 'sampled' ? [kind, pageBytes] : []])}`;
  const prefixCache = sharesPrefixes ? { policy: evictionPolicies[policy](), poolRows, tiers, modelId } : 'off';
  const startMs = performance.now();
  const cache = new KvCache({
    model, slots: maxBatch, maxTokens, pool, layout: kind, prefixCache, passTokens: prefillTokensPerStep,
  });
  try {
    await cache.prefixes.tiers?.ready();
    const { layout } = cache;
    const below = cache.prefixes.tiers === undefined ? undefined
      : new ReplayTiers(cache, tiers, settings.prefillTokensPerSecond, arrivals === 'trace' ? stepMs : 1);
    const verification = new Verification({ cache, mode: verify, layout, seed });
    const scheduler = new ReplayScheduler({
      cache, verification, maxBatch, prefillTokensPerStep, sharesPrefixes, seed, tiers: below,
    });
    const feed = new RequestFeed({ trace, ahead: maxBatch, limit, promptOnly, signal });
    let longestTokens = 0;
    const loop = new ReplayLoop({
      feed, scheduler, arrivals, stepMs, signal, onProgress: settings.onProgress,
      refusalOf: (request) => {
        const refusal = refusalOf(request, cache);
        if (refusal === undefined) longestTokens = Math.max(longestTokens, peakTokensOf(request));
        return refusal;
      },
      measure: () => measure(cache, scheduler),
    });
    const interrupted = await loop.run();
    scheduler.stop();
    await cache.prefixes.tiers?.close();
    const { foregroundMaps, backgroundMaps, unmaps } = cache.metrics;
    const wallSeconds = rounded((performance.now() - startMs) / 1e3);
    cache.close();
    const { createdPages, freePages, budgetPages } = pool.counts();
    const { rowBytes, tokensPerRow } = layout;
    const { peak, peakPoolBytes } = loop.timeline;
    const { stepTimes, totals } = scheduler;
    const tokenBytes = layout.usedBytes(1);
    const result: ReplayResult = {
      requests: feed.takenRequests,
      ...totals,
      hitRate: Math.round((1e6 * totals.cachedTokens) / Math.max(1, totals.promptTokens)) / 1e6,
      refusedRequests: loop.refusedRequests,
      tooLongRequests: loop.refusals['too-long'],
      tooLargeRequests: loop.refusals['too-large'],
      skippedLines: trace.skippedLines ?? 0,
      foregroundMaps, backgroundMaps, unmaps,
      peakPhysicalBytes: peak.mappedBytes,
      peakPoolBytes,
      usedBytesAtPeak: peak.usedBytes,
      pagedBytesAtPeak: peak.pagedBytes,
      longestTokens,
      staticBytes: maxBatch * longestTokens * tokenBytes,
      verify,
      verifiedTokens: verification.verifiedTokens,
      mismatches: verification.mismatches,
      leakedPages: createdPages - freePages,
      stepOverheadUs: {
        p50: rounded(stepTimes.percentileUs(0.5)),
        p99: rounded(stepTimes.percentileUs(0.99)),
        max: rounded(stepTimes.maxUs),
      },
      wallSeconds, interrupted, seed, model,
      trace: { name: trace.name ?? 'requests', format: trace.format ?? 'unknown' },
      cache: {
        layout: layout.kind, pageBytes, rowBytes, tokensPerRow, tokenBytes, maxBatch, maxTokens,
        memoryBytes: budgetPages * pageBytes, prefillTokensPerStep, promptOnly,
        prefixCache: sharesPrefixes ? { policy, poolRows: poolRows ?? null } : 'off',
      },
      tiers: below?.result() ?? null,
      driver: { kind: driver.info.kind, deviceName: driver.info.deviceName },
    };
    return { result, timeline: loop.timeline.points(), sources: below?.points() ?? [], arrivals };
  } finally {
    await cache.shutdown();
  }
}

/** Why a request does not fit an empty cache, to its last token. */
function refusalOf(request: TraceRequest, cache: KvCache): Refusal | undefined {
  const tokens = peakTokensOf(request);
  if (tokens > cache.layout.maxTokens) return 'too-long';
  return cache.pagesFor(tokens) > cache.pool.counts().budgetPages ? 'too-large' : undefined;
}

function measure(cache: KvCache, scheduler: ReplayScheduler): MemorySample {
  const { layout, pool } = cache;
  const { createdPages, mappedPages } = pool.counts();
  const { reclaimablePages } = cache.counts();
  const tokenBytes = layout.usedBytes(1);
  return {
    poolBytes: createdPages * layout.pageBytes,
    mappedBytes: (mappedPages - reclaimablePages) * layout.pageBytes,
    usedBytes: scheduler.usedTokens * tokenBytes,
    pagedBytes: scheduler.pagedTokens * tokenBytes,
  };
}

/** Three decimals: ns of µs, ms of seconds. */
function rounded(value: number): number {
  return Math.round(value * 1e3) / 1e3;
}
