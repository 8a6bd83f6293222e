// MemoryTimeline: how much memory a run held at each step, and its peak. Bounded: when its points are full, neighbours are
// joined (keeping the larger of each) and every point stands for twice as many steps, so that a run of any length gives
// between half of and all POINTS points, and no peak is lost.

export interface MemorySample {
  /** Physical memory that the pool holds: the next field, and what is kept mapped or free for the next requests. */
  readonly poolBytes: number;
  /** Physical memory mapped for running sequences, which nobody else could have. */
  readonly mappedBytes: number;
  /** Memory of valid tokens, in all tensors. */
  readonly usedBytes: number;
  /** What a paged cache with blocks of PAGED_BLOCK_TOKENS tokens would hold for the same sequences. */
  readonly pagedBytes: number;
}

export interface MemoryPoint extends MemorySample {
  /** The first step that this point stands for, from 1. */
  readonly step: number;
  /** The clock of the replay at that step, in ms. */
  readonly clockMs: number;
}

/** Tokens in a block of the paged cache that is compared with. */
export const PAGED_BLOCK_TOKENS = 16;

/** Before the first step. */
export const NOTHING: MemorySample = { poolBytes: 0, mappedBytes: 0, usedBytes: 0, pagedBytes: 0 };

const POINTS = 1024;
const FIELDS = 6;

export class MemoryTimeline {
  /** [point, field]: step, clockMs, then the sample in the order of MemorySample. */
  readonly #values = new Float64Array(POINTS * FIELDS);
  #points = 0;
  #stepsPerPoint = 1;
  #stepsInLast = 0;
  #peak = NOTHING;
  #peakPoolBytes = 0;

  /** The moment when running sequences had the most memory mapped; among equals, when the most of it was used. */
  get peak(): MemorySample {
    return this.#peak;
  }

  /** Most that the pool held. */
  get peakPoolBytes(): number {
    return this.#peakPoolBytes;
  }

  record(step: number, clockMs: number, sample: MemorySample): void {
    const { poolBytes, mappedBytes, usedBytes, pagedBytes } = sample;
    const { mappedBytes: peakBytes, usedBytes: usedAtPeakBytes } = this.#peak;
    if (mappedBytes > peakBytes || (mappedBytes === peakBytes && usedBytes > usedAtPeakBytes)) this.#peak = sample;
    if (poolBytes > this.#peakPoolBytes) this.#peakPoolBytes = poolBytes;
    if (this.#points === 0 || this.#stepsInLast === this.#stepsPerPoint) this.#startPoint(step, clockMs);
    const at = (this.#points - 1) * FIELDS;
    this.#raise(at + 2, poolBytes);
    this.#raise(at + 3, mappedBytes);
    this.#raise(at + 4, usedBytes);
    this.#raise(at + 5, pagedBytes);
    this.#stepsInLast += 1;
  }

  points(): MemoryPoint[] {
    return Array.from({ length: this.#points }, (_, point) => {
      const [step, clockMs, poolBytes, mappedBytes, usedBytes, pagedBytes] =
        this.#values.subarray(point * FIELDS, (point + 1) * FIELDS) as unknown as [
          number, number, number, number, number, number,
        ];
      return { step, clockMs, poolBytes, mappedBytes, usedBytes, pagedBytes };
    });
  }

  #startPoint(step: number, clockMs: number): void {
    if (this.#points === POINTS) this.#halve();
    const at = this.#points * FIELDS;
    this.#values.fill(0, at, at + FIELDS);
    this.#values[at] = step;
    this.#values[at + 1] = clockMs;
    this.#points += 1;
    this.#stepsInLast = 0;
  }

  #halve(): void {
    for (let point = 0; point < POINTS / 2; ++point) {
      this.#values.copyWithin(point * FIELDS, 2 * point * FIELDS, (2 * point + 1) * FIELDS);
      for (let field = 2; field < FIELDS; ++field) {
        this.#raise(point * FIELDS + field, this.#values[(2 * point + 1) * FIELDS + field]!);
      }
    }
    this.#points = POINTS / 2;
    this.#stepsPerPoint *= 2;
    this.#stepsInLast = this.#stepsPerPoint; // both halves of the last point were full
  }

  #raise(at: number, value: number): void {
    if (value > this.#values[at]!) this.#values[at] = value;
  }
}
