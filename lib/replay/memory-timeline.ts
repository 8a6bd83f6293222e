// MemoryTimeline: how much memory a run held at each step, and its peak. Bounded: when its points are full, neighbours are
// joined (keeping the larger of each) and every point stands for twice as many steps, so that a run of any length gives
// between half of and all POINTS points, and no peak is lost.

export interface MemorySample {
  /** Physical memory that the pool's pages hold. */
  readonly physicalBytes: number;
  /** Physical memory mapped in the slots of running sequences; the rest of it waits for the next ones. */
  readonly activeBytes: number;
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

const POINTS = 1024;
const FIELDS = 6;

export class MemoryTimeline {
  /** [point, field]: step, clockMs, then the sample in the order of MemorySample. */
  readonly #values = new Float64Array(POINTS * FIELDS);
  #points = 0;
  #stepsPerPoint = 1;
  #stepsInLast = 0;
  #peak: MemorySample = { physicalBytes: 0, activeBytes: 0, usedBytes: 0, pagedBytes: 0 };

  /** The moment of the largest physical memory; among equals, of the most used memory. */
  get peak(): MemorySample {
    return this.#peak;
  }

  record(step: number, clockMs: number, sample: MemorySample): void {
    const { physicalBytes, usedBytes } = sample;
    const isHigher = physicalBytes > this.#peak.physicalBytes;
    if (isHigher || (physicalBytes === this.#peak.physicalBytes && usedBytes > this.#peak.usedBytes)) this.#peak = sample;
    if (this.#points === 0 || this.#stepsInLast === this.#stepsPerPoint) this.#startPoint(step, clockMs);
    const at = (this.#points - 1) * FIELDS;
    this.#raise(at + 2, physicalBytes);
    this.#raise(at + 3, sample.activeBytes);
    this.#raise(at + 4, usedBytes);
    this.#raise(at + 5, sample.pagedBytes);
    this.#stepsInLast += 1;
  }

  points(): MemoryPoint[] {
    return Array.from({ length: this.#points }, (_, point) => {
      const [step, clockMs, physicalBytes, activeBytes, usedBytes, pagedBytes] =
        this.#values.subarray(point * FIELDS, (point + 1) * FIELDS) as unknown as [
          number, number, number, number, number, number,
        ];
      return { step, clockMs, physicalBytes, activeBytes, usedBytes, pagedBytes };
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
