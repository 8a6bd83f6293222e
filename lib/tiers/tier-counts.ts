// TierCounts: what one tier did for a cache, in sums since it was opened; and why it lacks blocks, for an operator's
// questions.

import { TimeHistogram } from '../base/time-histogram.js';
import type { GetMiss, PutRefusal } from './tier.js';

/**
 * Why a tier does not have a block: `evicted`: it went to make room · `corrupt`: it was not what was stored, and was
 * dropped · `lost`: the store no longer had it · `full`, `busy`, `failed`: it was refused · `seen-once`: the tier takes
 * what was seen more often · `part-of-block`: the tier takes whole blocks only · `out-of-service`: the tier is not open
 * · `unreachable`: its store did not say, when it was last asked, what others have stored in it · `never-offered`: its
 * text was never finished here, was evicted from the device before it was read, or it is not known any more.
 */
export type BlockAbsence = PutRefusal | 'evicted' | 'corrupt'
  | 'lost' | 'seen-once' | 'part-of-block' | 'out-of-service' | 'unreachable' | 'never-offered';

const bounds = [0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000];

export class TierCounts {
  storedBlocks = 0;
  storedBytes = 0;
  loadedBlocks = 0;
  loadedBytes = 0;
  /** Tokens that came to the device from it. */
  promotedTokens = 0;
  /** Blocks that the cache removed to make room. */
  evicted = 0;
  /** Blocks that came back with bytes that were not what was stored. */
  damaged = 0;
  /** Calls of `statistics` that threw, or were answered by none. */
  failedStatistics = 0;
  /** Gets that were answered with a block. */
  readonly getTimes = new TimeHistogram(bounds);
  /** Puts that stored one. */
  readonly putTimes = new TimeHistogram(bounds);
  readonly refusals: Record<PutRefusal, number> = { full: 0, busy: 0, failed: 0 };
  readonly misses: Record<GetMiss, number> = { absent: 0, corrupt: 0, timeout: 0, failed: 0 };

  stored(bytes: number, milliseconds: number): void {
    this.putTimes.observe(milliseconds);
    this.storedBlocks += 1;
    this.storedBytes += bytes;
  }

  loaded(bytes: number, milliseconds: number): void {
    this.getTimes.observe(milliseconds);
    this.loadedBlocks += 1;
    this.loadedBytes += bytes;
  }

  refused(reason: PutRefusal): void {
    this.refusals[reason] += 1;
  }

  missed(reason: GetMiss): void {
    this.misses[reason] += 1;
  }
}
