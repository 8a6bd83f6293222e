// Reads that no request waits for: they go on although the request that began them has turned to computing, since they
// tell how fast their tier is now; until then nothing more is read of it. One `measureReads` call for each such
// request.

import { FreeTime, type LoadClock, type TimedBytes } from './load-estimate.js';
import type { Fetched, Missed, OpenTier } from './open-tier.js';
import type { Tier } from './tier.js';

/** What a request gave up. */
export interface LeftReads {
  /** How long it had waited for them. */
  readonly waitedMs: number;
  /** Of the block that it waited for: what so long was too short for where the tier does not answer. */
  readonly leastBytes: number;
  readonly reads: readonly Promise<Fetched | Missed>[];
  /** Whether the tier was tried although it had been slow: what it was before no longer counts. */
  readonly isTrial: boolean;
}

/** Measures a tier by reads that go on; what they bring is not used. */
export function measureReads(
  { estimate, tier }: OpenTier, { waitedMs, leastBytes, reads, isTrial }: LeftReads, clock: LoadClock,
): void {
  const time = new FreeTime(clock, waitedMs, false);
  const over = estimate.awaited(time);
  let first: TimedBytes | undefined;
  const ends = reads.map(async (read): Promise<Fetched | Missed> => {
    const end = await read;
    if (first === undefined && bytesOf(end, tier) > 0) {
      first = { bytes: bytesOf(end, tier), milliseconds: time.milliseconds };
    }
    return end;
  });
  Promise.all(ends).catch(() => []).then((ended) => {
    const milliseconds = time.end();
    over();
    const bytes = ended.reduce((sum, end) => sum + bytesOf(end, tier), 0);
    const hasFailed = ended.some((end) => 'reason' in end && (end.reason === 'timeout' || end.reason === 'failed'));
    if (bytes === 0 && !hasFailed) return;
    if (isTrial) estimate.startOver();
    estimate.answered(milliseconds);
    estimate.measured({ bytes: Math.max(bytes, leastBytes), milliseconds }, first);
  }, () => { /* it does not reject */ });
}

/** Bytes that this tier gave. */
function bytesOf(end: Fetched | Missed, tier: Tier): number {
  return 'reason' in end || end.from.tier !== tier ? 0 : end.payload.length;
}
