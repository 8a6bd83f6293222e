// ServingTimes: how long requests and passes of a scheduler took, since it was made. Counted where they happen; read by
// virtual-kv/prometheus, or by anyone.

import { TimeHistogram } from '../base/time-histogram.js';
import type { Promotion } from '../tiers/promotion.js';

const seconds = [10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000];
const tokens = [1, 2.5, 5, 10, 20, 30, 50, 75, 100, 200, 500, 1_000, 2_500, 5_000];
const passes = [0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000];

/** Times of a scheduler since it was made. */
export class ServingTimes {
  /** From a request's submission to its first slot. */
  readonly wait = new TimeHistogram(seconds);
  /** From a request's submission to its first token. */
  readonly firstToken = new TimeHistogram(seconds);
  /** The same, by what most of the prompt came from: `computed`, `device`, or a tier's name. */
  readonly firstTokenBy = new Map<string, TimeHistogram>();
  /** From one token of an answer to the next. */
  readonly betweenTokens = new TimeHistogram(tokens);
  /** From a request's submission to the end of its answer. */
  readonly total = new TimeHistogram(seconds);
  /** Calls of the engine's `prefill`. */
  readonly prefill = new TimeHistogram(passes);
  /** Calls of the engine's `decode`. */
  readonly decode = new TimeHistogram(passes);

  /** @internal */
  observeFirstToken(ms: number, source: string): void {
    this.firstToken.observe(ms);
    let times = this.firstTokenBy.get(source);
    if (times === undefined) this.firstTokenBy.set(source, times = new TimeHistogram(seconds));
    times.observe(ms);
  }
}

/** What is known of a request's prompt once it has a slot. */
export interface PromptParts {
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly promotion: Promotion | undefined;
}

/** What most of the prompt's tokens came from: `computed`, `device`, or the name of a tier. */
export function promptSource({ promptTokens, cachedTokens, promotion }: PromptParts): string {
  let source = 'computed';
  let most = promptTokens - cachedTokens;
  const take = (name: string, tokens: number): void => {
    if (tokens < most) return;
    source = name;
    most = tokens;
  };
  take('device', Math.max(0, cachedTokens - (promotion?.promotedTokens ?? 0)));
  for (const [tier, tokens] of Object.entries(promotion?.promotedFrom ?? {})) {
    take(tier, Math.min(tokens, cachedTokens));
  }
  return source;
}
