// PrefixStatistics: what the prefix cache was worth: sums since the cache was opened, and the hit rate of the last
// requests.

import { dropReasons, type DroppedRows, type DropReason } from '../prefix/dropped-rows.js';
import type { CachedBy } from './admission-request.js';
import type { PrefixDropReason } from './prefix-events.js';

/** What the prefix cache was worth, in tokens, since the cache was opened. */
export interface PrefixMetrics {
  /** Requests that gave their tokens and read the cache. */
  readonly requests: number;
  /** Their prompts' tokens. */
  readonly promptTokens: number;
  /** Of these, those that came from the cache, and how. */
  readonly cachedTokens: number;
  /** Cached tokens that came with an idle slot that held them: nothing was mapped or copied. */
  readonly adoptedTokens: number;
  /** Cached tokens whose rows were mapped under another slot. */
  readonly aliasedTokens: number;
  /** Cached tokens that were copied, of rows that match in part. */
  readonly copiedTokens: number;
  /** cachedTokens / promptTokens; 0 without any. */
  readonly hitRate: number;
  /** The same over the last requests (`recentRequests`). */
  readonly recentHitRate: number;
  /** Times that text was dropped: by `drop`, and for a scheduler whose engine's logits were not numbers. */
  readonly drops: number;
  /** Of these, those for such logits. */
  readonly distrusts: number;
  /** Rows that the cache let go of, by reason. */
  readonly droppedRows: Readonly<Record<DropReason, number>>;
}

/** Sums since the cache was opened, and the hit rate of the last requests. Made once, allocates nothing per request. */
export class PrefixStatistics {
  readonly #recentPrompt: Float64Array;
  readonly #recentCached: Float64Array;
  #recentPromptTokens = 0;
  #recentCachedTokens = 0;
  #requests = 0;
  #promptTokens = 0;
  #adoptedTokens = 0;
  #aliasedTokens = 0;
  #copiedTokens = 0;
  #drops = 0;
  #distrusts = 0;
  readonly #droppedRows: Record<DropReason, number>;
  readonly #rowsPerGroup: number;

  constructor({ recentRequests, groupRows }: { readonly recentRequests: number; readonly groupRows: number }) {
    this.#recentPrompt = new Float64Array(recentRequests);
    this.#recentCached = new Float64Array(recentRequests);
    this.#droppedRows = Object.fromEntries(dropReasons.map((reason) => [reason, 0])) as Record<DropReason, number>;
    this.#rowsPerGroup = groupRows;
  }

  request(promptTokens: number, { adoptedTokens, aliasedTokens, copiedTokens }: CachedBy): void {
    const at = this.#requests % this.#recentPrompt.length;
    const cachedTokens = adoptedTokens + aliasedTokens + copiedTokens;
    this.#recentPromptTokens += promptTokens - this.#recentPrompt[at]!;
    this.#recentCachedTokens += cachedTokens - this.#recentCached[at]!;
    this.#recentPrompt[at] = promptTokens;
    this.#recentCached[at] = cachedTokens;
    this.#requests += 1;
    this.#promptTokens += promptTokens;
    this.#adoptedTokens += adoptedTokens;
    this.#aliasedTokens += aliasedTokens;
    this.#copiedTokens += copiedTokens;
  }

  /** Text was dropped, as it was asked for or not trusted. */
  drop(reason: PrefixDropReason): void {
    this.#drops += 1;
    if (reason === 'not-numbers') this.#distrusts += 1;
  }

  dropped(dropped: DroppedRows): void {
    for (let index = 0; index < dropped.count; index += 1) {
      this.#droppedRows[dropped.reason(index)] += this.#rowsPerGroup;
    }
  }

  metrics(): PrefixMetrics {
    const cachedTokens = this.#adoptedTokens + this.#aliasedTokens + this.#copiedTokens;
    return {
      requests: this.#requests, promptTokens: this.#promptTokens, cachedTokens, adoptedTokens: this.#adoptedTokens,
      aliasedTokens: this.#aliasedTokens, copiedTokens: this.#copiedTokens,
      hitRate: share(cachedTokens, this.#promptTokens),
      recentHitRate: share(this.#recentCachedTokens, this.#recentPromptTokens),
      drops: this.#drops, distrusts: this.#distrusts, droppedRows: { ...this.#droppedRows },
    };
  }
}

function share(part: number, whole: number): number {
  return whole === 0 ? 0 : part / whole;
}
