// LoadEstimate: how long a tier takes to load so many bytes, as measured while it works: a line through the latest loads, whose height at
// nothing is the latency and whose slope the bandwidth. Old loads fade, so that a disk that becomes slow is found out. PrefillRate: how
// fast the engine computes. A tier that is left alone because it was slow is tried again now and then.

/** What remains of a load's weight when the next one is measured. */
const fading = 0.9;
/** After so many refusals one load is tried all the same. */
const retryAfter = 64;
/** Weight of the newest rate of the engine. */
const newest = 0.2;

export class LoadEstimate {
  // Faded sums over loads: how many, their bytes x, their milliseconds y, and products.
  #count = 0;
  #x = 0;
  #y = 0;
  #xx = 0;
  #xy = 0;
  #refusals = 0;

  /** Milliseconds before the first byte; undefined: not measured. */
  get latencyMs(): number | undefined {
    return this.#line?.latencyMs;
  }

  /** Bytes a millisecond from then on; undefined: not measured. */
  get bytesPerMs(): number | undefined {
    return this.#line?.bytesPerMs;
  }

  /** A load of so many bytes took so long, or was given up after as much. */
  measured(bytes: number, milliseconds: number): void {
    const y = Math.max(milliseconds, 0.001);
    this.#count = fading * this.#count + 1;
    this.#x = fading * this.#x + bytes;
    this.#y = fading * this.#y + y;
    this.#xx = fading * this.#xx + bytes * bytes;
    this.#xy = fading * this.#xy + bytes * y;
  }

  /** How long a load of so many bytes is likely to take; 0 while nothing was measured. */
  milliseconds(bytes: number): number {
    const line = this.#line;
    return line === undefined ? 0 : line.latencyMs + bytes / line.bytesPerMs;
  }

  /** Whether a load that is estimated too slow is refused; one in so many is not. */
  refuses(): boolean {
    this.#refusals += 1;
    if (this.#refusals < retryAfter) return true;
    this.#refusals = 0;
    return false;
  }

  get #line(): { readonly latencyMs: number; readonly bytesPerMs: number } | undefined {
    if (this.#count === 0) return undefined;
    const [x, y] = [this.#x / this.#count, this.#y / this.#count];
    const spread = this.#xx / this.#count - x * x;
    // Loads of one size tell latency and bandwidth apart badly: all of it is bandwidth then.
    const slope = spread > 1e-3 * x * x ? (this.#xy / this.#count - x * y) / spread : y / x;
    const msPerByte = Math.min(Math.max(slope, 1e-9 * y / x), y / x); // neither negative, nor so steep that the latency would be
    return { latencyMs: Math.max(0, y - msPerByte * x), bytesPerMs: 1 / msPerByte };
  }
}

/** Tokens a millisecond that the engine computes of prompts; undefined: not measured. */
export class PrefillRate {
  tokensPerMs: number | undefined = undefined;

  measured(tokens: number, milliseconds: number): void {
    const rate = tokens / Math.max(milliseconds, 0.001);
    this.tokensPerMs = this.tokensPerMs === undefined ? rate : this.tokensPerMs + newest * (rate - this.tokensPerMs);
  }

  /** How long computing so many tokens is likely to take; Infinity while nothing was measured. */
  milliseconds(tokens: number): number {
    return this.tokensPerMs === undefined ? Infinity : tokens / this.tokensPerMs;
  }
}
