// SourceTimeline: where prompts' tokens came from as a run went on (computed, the device, a tier), and how long
// requests took to their first token. Bounded: time is divided into at most POINTS equal buckets of sums; when the run
// outgrows them, neighbours are joined.

/** Tokens of prompts in one bucket, by source. */
export interface SourcePoint {
  /** Start of its bucket, in the unit of `record`. */
  readonly at: number;
  readonly tokensBy: Readonly<Record<string, number>>;
}

/** Times to the first token of requests whose prompts came mostly from one source. */
export interface FirstTokenTimes {
  readonly requests: number;
  readonly p10Ms: number;
  readonly p50Ms: number;
  readonly p90Ms: number;
}

const POINTS = 256;

export class SourceTimeline {
  readonly #sources: readonly string[];
  /** By source: one sum per bucket. */
  readonly #sums: readonly Float64Array[];
  readonly #firstTokenMs = new Map<string, number[]>();
  #bucketLength: number;
  #buckets = 0;

  /**
   * @param sources In the order of the picture.
   * @param bucketLength Length of a bucket at first, in the unit of `record`.
   */
  constructor(sources: readonly string[], bucketLength: number) {
    this.#sources = sources;
    this.#sums = sources.map(() => new Float64Array(POINTS));
    this.#bucketLength = bucketLength;
  }

  /** A prompt was computed: where its tokens came from, at a time that is never less than the last one. */
  record(at: number, tokensBy: Readonly<Record<string, number>>): void {
    while (at >= POINTS * this.#bucketLength) this.#halve();
    const bucket = Math.floor(at / this.#bucketLength);
    this.#sources.forEach((source, index) => {
      this.#sums[index]![bucket]! += tokensBy[source] ?? 0;
    });
    this.#buckets = bucket + 1;
  }

  /** A request whose prompt came mostly from `source` got its first token after so long. */
  firstToken(source: string, milliseconds: number): void {
    const times = this.#firstTokenMs.get(source);
    if (times === undefined) this.#firstTokenMs.set(source, [milliseconds]);
    else times.push(milliseconds);
  }

  /** Buckets in which prompts were computed. */
  points(): SourcePoint[] {
    return Array.from(
      { length: this.#buckets },
      (_, bucket) => ({ at: bucket * this.#bucketLength, tokensBy: this.#bySource((sums) => sums[bucket]!) }))
      .filter(({ tokensBy }) => Object.values(tokensBy).some((tokens) => tokens > 0));
  }

  /** Tokens of the whole run, by source. */
  totals(): Record<string, number> {
    return this.#bySource((sums) => sums.reduce((sum, tokens) => sum + tokens, 0));
  }

  /** By source, of those that there were. */
  firstTokenTimes(): Record<string, FirstTokenTimes> {
    return Object.fromEntries(this.#sources.filter((source) => this.#firstTokenMs.has(source)).map((source) => {
      const times = Float64Array.from(this.#firstTokenMs.get(source)!).sort();
      const quantile = (
        share: number,
      ): number => Math.round(times[Math.min(times.length - 1, Math.floor(share * times.length))]! * 1e3) / 1e3;
      return [source, { requests: times.length, p10Ms: quantile(0.1), p50Ms: quantile(0.5), p90Ms: quantile(0.9) }];
    }));
  }

  #bySource(read: (sums: Float64Array) => number): Record<string, number> {
    return Object.fromEntries(this.#sources.map((source, index) => [source, read(this.#sums[index]!)]));
  }

  #halve(): void {
    for (const sums of this.#sums) {
      for (let bucket = 0; bucket < POINTS / 2; bucket += 1) sums[bucket] = sums[2 * bucket]! + sums[2 * bucket + 1]!;
      sums.fill(0, POINTS / 2);
    }
    this.#bucketLength *= 2;
  }
}
