// TierMetrics, TiersMetrics: what `cache.prefixes.tiers.metrics()` says of one tier, and of all of them together.

import type { TimeHistogram } from '../base/time-histogram.js';
import type { SelectionCounts } from '../cache/sequence.js';
import type { OpenTier } from './open-tier.js';
import type { GetMiss, PutRefusal, TierStatistics } from './tier.js';
import type { CopyStaging } from './transfers.js';
import type { PromotionEnd } from './promotion.js';
import type { ReorderingCounts } from './selection/reordering.js';

/** What one tier has, and what it did since the cache was opened. */
export interface TierMetrics {
  /** Its name among the tiers of the cache. */
  readonly name: string;
  /** `failed`: it could not be opened, and is out of service. */
  readonly state: 'opening' | 'open' | 'failed' | 'closed';
  /** Blocks of the tier that the cache knows. */
  readonly blocks: number;
  /** Bytes that these take of its capacity. */
  readonly bytes: number;
  /** Bytes that it may have; undefined: the store bounds itself. */
  readonly capacityBytes: number | undefined;
  /** Blocks that were put. */
  readonly storedBlocks: number;
  /** Their bytes. */
  readonly storedBytes: number;
  /** Tokens that came to the device from it. */
  readonly promotedTokens: number;
  /** Bytes that it gave, of tiers that lend none of their memory. */
  readonly loadedBytes: number;
  /** Blocks that the cache removed to make room. */
  readonly evictedBlocks: number;
  /** Blocks that came back with other bytes than were stored, and were dropped. */
  readonly damagedBlocks: number;
  /** Blocks that it did not take, by reason. */
  readonly refusals: Readonly<Record<PutRefusal, number>>;
  /** Blocks that it did not give, by reason. */
  readonly misses: Readonly<Record<GetMiss, number>>;
  /** Milliseconds before a load's first byte, as measured; undefined: not yet. */
  readonly latencyMs: number | undefined;
  /** Bytes a millisecond from then on, as measured; undefined: not yet. */
  readonly bytesPerMs: number | undefined;
  /** How long it took to give a block, of tiers that lend none of their memory. */
  readonly getTimes: TimeHistogram;
  /** How long it took to store one. */
  readonly putTimes: TimeHistogram;
  /** The tier's own; undefined: its `statistics` threw, or was answered by none. */
  readonly own: TierStatistics | undefined;
  /** How often that has been so. */
  readonly failedStatistics: number;
}

/** Of all tiers together. */
export interface TiersMetrics {
  /** One for each, in their order. */
  readonly tiers: readonly TierMetrics[];
  /**
   * Finished texts that wait to be stored, those among them that could not be read to their end and are tried again.
   */
  readonly waitingTexts: number;
  /** Finished texts of which a tier wanted more than it got: too many waited, or they were evicted too soon. */
  readonly droppedTexts: number;
  /** Loads and stores that ended early, since their pages were wanted. */
  readonly interruptedTransfers: number;
  /**
   * Memory that copies between the device and tiers go through. Undefined: nothing was copied yet, or the driver needs
   * none (`host`).
   */
  readonly staging: CopyStaging | undefined;
  /** Prompt tokens a millisecond that the engine computes, as measured; undefined: not yet. */
  readonly prefillTokensPerMs: number | undefined;
  /** Promotions that tiers had something for, by how they ended. */
  readonly promotions: Readonly<Record<PromotionEnd, number>>;
  /** The same of hints (`prefetch`). */
  readonly prefetches: Readonly<Record<PromotionEnd, number>>;
  /** How long those promotions took. */
  readonly promotionTimes: TimeHistogram;
  /** Blocks of which selections read, and that were brought to memory for it (`hostTier({ keeps })`). */
  readonly raisedBlocks: number;
  /**
   * Tokens of text of which selections read, and that came to the device for what they score there (the eviction policy
   * `importance`).
   */
  readonly raisedTokens: number;
  /** What selections came to; nothing of it is counted above. */
  readonly selections: SelectionCounts;
  /** What was stored anew in the order in which selections read it. */
  readonly reordering: ReorderingCounts;
}

/** Of one tier, now. */
export function tierMetrics(open: OpenTier): TierMetrics {
  const { tier, contents, counts, state, estimate } = open;
  const own = open.statistics(); // counts a failure
  return {
    name: tier.name, state, blocks: contents.count, bytes: contents.bytes, capacityBytes: tier.capacityBytes,
    storedBlocks: counts.storedBlocks, storedBytes: counts.storedBytes, promotedTokens: counts.promotedTokens,
    loadedBytes: counts.loadedBytes,
    evictedBlocks: counts.evicted, damagedBlocks: counts.damaged, refusals: { ...counts.refusals },
    misses: { ...counts.misses },
    latencyMs: estimate.latencyMs, bytesPerMs: estimate.bytesPerMs, getTimes: counts.getTimes,
    putTimes: counts.putTimes, own,
    failedStatistics: counts.failedStatistics,
  };
}
