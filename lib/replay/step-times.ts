// StepTimes: how long the steps of a run took, as percentiles. A histogram of logarithmic buckets (32 to a power of two, so
// an answer is within 3.2 %), from 1 ns to 18 minutes; the maximum is exact. Recording allocates nothing.

const BUCKETS_PER_OCTAVE = 32;
const OCTAVES = 40;

export class StepTimes {
  readonly #buckets = new Float64Array(OCTAVES * BUCKETS_PER_OCTAVE);
  #steps = 0;
  #maxMs = 0;

  get steps(): number {
    return this.#steps;
  }

  record(ms: number): void {
    const octaves = Math.min(OCTAVES - 1e-6, Math.max(0, Math.log2(ms * 1e6)));
    this.#buckets[Math.floor(octaves * BUCKETS_PER_OCTAVE)]! += 1;
    this.#steps += 1;
    if (ms > this.#maxMs) this.#maxMs = ms;
  }

  /** The time in µs that `share` (0 to 1) of the steps did not exceed: the middle of its bucket. 0 without steps. */
  percentileUs(share: number): number {
    let left = Math.max(1, Math.ceil(share * this.#steps));
    if (this.#steps === 0) return 0;
    for (let bucket = 0; bucket < this.#buckets.length - 1; ++bucket) { // the last one has no upper end
      left -= this.#buckets[bucket]!;
      if (left <= 0) return Math.min(this.maxUs, 2 ** ((bucket + 0.5) / BUCKETS_PER_OCTAVE) / 1e3);
    }
    return this.maxUs;
  }

  get maxUs(): number {
    return this.#maxMs * 1e3;
  }
}
