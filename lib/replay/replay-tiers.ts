// ReplayTiers: the tiers below a replay's device: where its prompts came from, what that was worth, and how promotions
// ended. The engine of a replay computes nothing, so the time of computing is that of an engine of a given speed; the
// time of loading is measured.

import type { KvCache, Promotion, Tier } from '../index.js';
import { promptSource } from '../serving/serving-times.js';
import { SourceTimeline, type FirstTokenTimes, type SourcePoint } from './source-timeline.js';

/** What tiers were worth in a replay. */
export interface TiersResult {
  /** How fast the engine was taken to compute prompts. */
  readonly prefillTokensPerSecond: number;
  /** Prompt tokens by where they came from: `computed`, `device`, and the tiers. */
  readonly promptTokensBy: Readonly<Record<string, number>>;
  /**
   * Loading as measured and computing at that speed, without waiting for a slot, by what most of the prompt came from.
   */
  readonly firstTokenMsBy: Readonly<Record<string, FirstTokenTimes>>;
  /** How promotions ended that tiers had something for. */
  readonly promotions: Readonly<Record<string, number>>;
  readonly tiers: readonly {
    readonly name: string;
    readonly capacityBytes: number | null;
    readonly bytes: number;
    readonly storedBytes: number;
    readonly promotedTokens: number;
    readonly evictedBlocks: number;
    readonly damagedBlocks: number;
  }[];
  /** Finished texts of which a tier wanted more than it got. */
  readonly droppedTexts: number;
}

/** A request's prompt, once it was computed. */
export interface ServedPrompt {
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly promotion: Promotion | undefined;
}

export class ReplayTiers {
  readonly timeline: SourceTimeline;
  readonly tokensPerMs: number;
  readonly #cache: KvCache;

  /** @param bucketLength A step, in the unit in which the replay's time is told. */
  constructor(cache: KvCache, tiers: readonly Tier[], prefillTokensPerSecond: number, bucketLength: number) {
    this.#cache = cache;
    this.tokensPerMs = prefillTokensPerSecond / 1e3;
    this.timeline = new SourceTimeline(['device', ...tiers.map(({ name }) => name), 'computed'], bucketLength);
  }

  /** A prompt was computed. */
  served(prompt: ServedPrompt, at: number): void {
    const { promptTokens, cachedTokens, promotion } = prompt;
    const tokensBy: Record<string, number> = { computed: promptTokens - cachedTokens };
    let left = cachedTokens; // text may have been evicted again before the request had its slot
    for (const [tier, tokens] of Object.entries(promotion?.promotedFrom ?? {})) {
      tokensBy[tier] = Math.min(tokens, left);
      left -= tokensBy[tier];
    }
    tokensBy['device'] = left;
    this.timeline.record(at, tokensBy);
    this.timeline.firstToken(
      promptSource(prompt), (promotion?.milliseconds ?? 0) + (promptTokens - cachedTokens) / this.tokensPerMs);
  }

  /** All finished text has been offered: a replay's engine computes nothing in which that could go on. */
  async settled(): Promise<void> {
    await this.#cache.prefixes.tiers!.settled();
  }

  result(): TiersResult {
    const { tiers, promotions, droppedTexts } = this.#cache.prefixes.tiers!.metrics();
    return {
      prefillTokensPerSecond: this.tokensPerMs * 1e3, promptTokensBy: this.timeline.totals(),
      firstTokenMsBy: this.timeline.firstTokenTimes(),
      promotions, droppedTexts,
      tiers: tiers.map(({
        name, capacityBytes = null, bytes, storedBytes, promotedTokens, evictedBlocks, damagedBlocks,
      }) =>
        ({ name, capacityBytes, bytes, storedBytes, promotedTokens, evictedBlocks, damagedBlocks })),
    };
  }

  /** Where prompts came from, over time. */
  points(): SourcePoint[] {
    return this.timeline.points();
  }
}
