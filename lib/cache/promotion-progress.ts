// Progress and Patience of a promotion: how far it has come and how fast each tier was, and how long it may take before computing
// would have been sooner.

import type { Fetched, OpenTier } from '../tiers/open-tier.js';

/** How far a promotion has come, and what that took. */
export class Progress {
  tokens: number;
  readonly from: Record<string, number> = {};
  readonly #beganMs = performance.now();
  /** Bytes and milliseconds by tier. */
  readonly #loads = new Map<OpenTier, { bytes: number; ms: number }>();
  #lastMs = this.#beganMs;

  constructor(tokens: number) {
    this.tokens = tokens;
  }

  /** Blocks up to `tokens` are on the device; the last of them came as `fetched`. */
  reach(tokens: number, { from: open, payload }: Fetched): void {
    const brought = tokens - this.tokens;
    this.from[open.tier.name] = (this.from[open.tier.name] ?? 0) + brought;
    open.counts.promotedTokens += brought;
    this.tokens = tokens;
    this.waited(open, payload.length);
  }

  /** It waited for so many bytes of a tier. */
  waited(open: OpenTier | undefined, bytes: number): void {
    const nowMs = performance.now();
    if (open !== undefined) {
      const load = this.#loads.get(open) ?? { bytes: 0, ms: 0 };
      this.#loads.set(open, { bytes: load.bytes + bytes, ms: load.ms + nowMs - this.#lastMs });
    }
    this.#lastMs = nowMs;
  }

  /** How long `blocks` more are likely to take, as the `done` before. */
  msOf(blocks: number, done: number): number {
    return blocks === 0 ? 0 : ((performance.now() - this.#beganMs) / Math.max(1, done)) * blocks;
  }

  /** Tells the tiers how fast they were. */
  measure(): void {
    for (const [{ estimate }, { bytes, ms }] of this.#loads) estimate.measured(bytes, ms);
  }
}

/** Ends a promotion that has waited longer than computing would take. */
export class Patience {
  readonly #limit: AbortController;
  #timer: NodeJS.Timeout | undefined;

  constructor(limit: AbortController) {
    this.#limit = limit;
  }

  /** It lasts so long from now on. */
  last(milliseconds: number): void {
    this.end();
    if (milliseconds >= 2 ** 31 - 1) return;
    // What arrived while the engine had the thread is looked at first.
    this.#timer = setTimeout(() => {
      this.#timer = setTimeout(() => { this.#limit.abort('recompute-cheaper'); }, 0);
    }, milliseconds);
  }

  end(): void {
    clearTimeout(this.#timer);
  }
}
