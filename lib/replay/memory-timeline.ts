// MemoryTimeline: how much memory a run held as it went on, and its peak. Bounded: time is divided into at most POINTS
// equal buckets, each of which keeps the largest of its samples; when the run outgrows them, neighbours are joined and
// every bucket is twice as long. So a run of any length has a useful number of points, and no peak is lost.

export interface MemorySample {
  /** Physical memory that the pool holds: the next field, and what is kept mapped or free for the next requests. */
  readonly poolBytes: number;
  /** Physical memory mapped for running sequences, which no other sequence could get. */
  readonly mappedBytes: number;
  /**
   * Memory of valid tokens, in all tensors; of those that sequences share, once for each: it may be more than is
   * mapped.
   */
  readonly usedBytes: number;
  /**
   * What a paged cache with blocks of PAGED_BLOCK_TOKENS tokens, sharing nothing, would hold for the same sequences.
   */
  readonly pagedBytes: number;
}

export interface MemoryPoint extends MemorySample {
  /** Start of its bucket, in the unit of `record`. */
  readonly at: number;
}

/** Block size of the paged cache that the replay is compared with, in tokens. */
export const PAGED_BLOCK_TOKENS = 16;

/** No memory at all. */
export const NO_MEMORY: MemorySample = { poolBytes: 0, mappedBytes: 0, usedBytes: 0, pagedBytes: 0 };

const POINTS = 1024;
const FIELDS =
  ['poolBytes', 'mappedBytes', 'usedBytes', 'pagedBytes'] as const satisfies readonly (keyof MemorySample)[];

export class MemoryTimeline {
  /** By field, one value per bucket. */
  readonly #values = FIELDS.map(() => new Float64Array(POINTS));
  #buckets = 0;
  #bucketLength: number;
  #peak = NO_MEMORY;
  #peakPoolBytes = 0;

  /** @param bucketLength Length of a bucket at first: one step, in the unit of `record`. */
  constructor(bucketLength: number) {
    this.#bucketLength = bucketLength;
  }

  /** The moment when running sequences had the most memory mapped; among equals, when the most of it was used. */
  get peak(): MemorySample {
    return this.#peak;
  }

  /** Most that the pool held. */
  get peakPoolBytes(): number {
    return this.#peakPoolBytes;
  }

  /** Adds the memory held at `at`: a step or a time, never less than the last one. */
  record(at: number, sample: MemorySample): void {
    const { poolBytes, mappedBytes, usedBytes } = sample;
    const { mappedBytes: peakBytes, usedBytes: usedAtPeakBytes } = this.#peak;
    if (mappedBytes > peakBytes || (mappedBytes === peakBytes && usedBytes > usedAtPeakBytes)) this.#peak = sample;
    if (poolBytes > this.#peakPoolBytes) this.#peakPoolBytes = poolBytes;
    while (at >= POINTS * this.#bucketLength) this.#halve();
    const bucket = Math.floor(at / this.#bucketLength);
    for (let field = 0; field < FIELDS.length; ++field) {
      const values = this.#values[field]!;
      values[bucket] = Math.max(values[bucket]!, sample[FIELDS[field]!]);
    }
    this.#buckets = bucket + 1;
  }

  /** The buckets, from the start. In a bucket without a sample nothing runs, and the pool holds what it held before. */
  points(): MemoryPoint[] {
    let lastPoolBytes = 0;
    return Array.from({ length: this.#buckets }, (_, bucket) => {
      const [poolBytes, mappedBytes, usedBytes, pagedBytes] = this.#values.map((values) => values[bucket]!) as [
        number, number, number, number,
      ];
      lastPoolBytes = poolBytes || lastPoolBytes;
      return { at: bucket * this.#bucketLength, poolBytes: lastPoolBytes, mappedBytes, usedBytes, pagedBytes };
    });
  }

  #halve(): void {
    for (const values of this.#values) {
      for (let bucket = 0; bucket < POINTS / 2; ++bucket) {
        values[bucket] = Math.max(values[2 * bucket]!, values[2 * bucket + 1]!);
      }
      values.fill(0, POINTS / 2);
    }
    this.#bucketLength *= 2;
  }
}
