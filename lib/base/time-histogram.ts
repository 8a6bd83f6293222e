// TimeHistogram: how often times of each length were observed, in buckets with fixed bounds, as Prometheus has them.
// Observing one allocates nothing and costs a search of a few comparisons.

/** Times by their length: how many, their sum, and how many were at most each bound. */
export class TimeHistogram {
  /** The upper bounds of the buckets in ms, ascending; the last bucket has none. */
  readonly boundsMs: readonly number[];
  /** [bucket]: times in it and in no bucket before; one entry more than there are bounds. */
  readonly counts: Float64Array;
  #sumMs = 0;
  #count = 0;

  /** @internal */
  constructor(boundsMs: readonly number[]) {
    this.boundsMs = boundsMs;
    this.counts = new Float64Array(boundsMs.length + 1);
  }

  /** Sum of all times in ms. */
  get sumMs(): number {
    return this.#sumMs;
  }

  /** How many times there were. */
  get count(): number {
    return this.#count;
  }

  /** @internal */
  observe(ms: number): void {
    const { boundsMs } = this;
    let bucket = 0;
    while (bucket < boundsMs.length && ms > boundsMs[bucket]!) bucket += 1;
    this.counts[bucket]! += 1;
    this.#sumMs += ms;
    this.#count += 1;
  }
}
