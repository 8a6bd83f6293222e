// WatchFigures: what happened lately: rates, hit rate and percentiles over the last seconds, from the difference of sums that the scheduler
// keeps anyway. It remembers those of the last few times that it was asked; when none asks, nothing is done.

import type { OnlineScheduler } from '../index.js';
import type { TimeHistogram } from '../base/time-histogram.js';

/** Percentiles of times, in ms; null: there were none. */
export interface Percentiles {
  readonly count: number;
  readonly p50: number | null;
  readonly p90: number | null;
  readonly p99: number | null;
}

const timeNames = ['wait', 'firstToken', 'betweenTokens', 'total', 'prefill', 'decode'] as const;

/** Figures of the last seconds. */
export interface Figures extends Readonly<Record<(typeof timeNames)[number], Percentiles>> {
  /**
   * Ms that the figures cover: about `windowMs`; more after a pause of the client that asks; at first the time since the
   * scheduler was made.
   */
  readonly windowMs: number;
  readonly tokensPerSecond: number;
  readonly promptTokensPerSecond: number;
  readonly requestsPerSecond: number;
  readonly stepsPerSecond: number;
  /** Of the prompt tokens; null: there were none. */
  readonly hitRate: number | null;
}

/** What is subtracted from. */
interface Sums {
  readonly atMs: number;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly generatedTokens: number;
  readonly requests: number;
  readonly steps: number;
  readonly counts: readonly Float64Array[];
}

/** Ms that figures are about. */
const windowMs = 5_000;
/** Sums that are remembered. */
const maxRemembered = 32;

export class WatchFigures {
  readonly #scheduler: OnlineScheduler;
  readonly #remembered: Sums[];

  constructor(scheduler: OnlineScheduler, nowMs: number) {
    this.#scheduler = scheduler;
    this.#remembered = [this.#sums(nowMs)];
  }

  /** Figures up to now, a time that never goes back. */
  at(nowMs: number): Figures {
    const remembered = this.#remembered;
    const now = this.#sums(nowMs);
    while (remembered.length > 1 && remembered[1]!.atMs <= nowMs - windowMs) remembered.shift();
    const before = remembered[0]!;
    if (remembered.length === maxRemembered) remembered.splice(1, 1);
    remembered.push(now);
    const ms = Math.max(1, nowMs - before.atMs);
    const perSecond = (name: 'promptTokens' | 'generatedTokens' | 'requests' | 'steps'): number => rounded(1e3 * (now[name] - before[name]) / ms);
    const promptTokens = now.promptTokens - before.promptTokens;
    const times = timeNames.map((name, at) => [name, percentiles(this.#scheduler.times[name], now.counts[at]!, before.counts[at]!)] as const);
    return {
      windowMs: Math.round(ms), tokensPerSecond: perSecond('generatedTokens'), promptTokensPerSecond: perSecond('promptTokens'),
      requestsPerSecond: perSecond('requests'), stepsPerSecond: perSecond('steps'),
      hitRate: promptTokens === 0 ? null : rounded((now.cachedTokens - before.cachedTokens) / promptTokens),
      ...Object.fromEntries(times) as Record<(typeof timeNames)[number], Percentiles>,
    };
  }

  #sums(atMs: number): Sums {
    const { totals: { promptTokens, cachedTokens, generatedTokens, completedRequests, failedRequests, steps }, times } = this.#scheduler;
    return {
      atMs, promptTokens, cachedTokens, generatedTokens, requests: completedRequests + failedRequests, steps,
      counts: timeNames.map((name) => times[name].counts.slice()),
    };
  }
}

function rounded(value: number): number {
  return Math.round(1e4 * value) / 1e4;
}

function percentiles({ boundsMs }: TimeHistogram, now: Float64Array, before: Float64Array): Percentiles {
  const counts = now.map((count, at) => count - before[at]!);
  const count = counts.reduce((sum, each) => sum + each, 0);
  const at = (share: number): number | null => (count === 0 ? null : rounded(percentile(boundsMs, counts, share * count)));
  return { count, p50: at(0.5), p90: at(0.9), p99: at(0.99) };
}

/** The time that `rank` of the times are at most, taken as spread evenly in their bucket; of the last bucket its lower bound. */
function percentile(boundsMs: readonly number[], counts: Float64Array, rank: number): number {
  let below = 0;
  for (let bucket = 0; bucket < boundsMs.length; bucket += 1) {
    const inside = counts[bucket]!;
    if (inside > 0 && below + inside >= rank) {
      const from = bucket === 0 ? 0 : boundsMs[bucket - 1]!;
      return from + (boundsMs[bucket]! - from) * (rank - below) / inside;
    }
    below += inside;
  }
  return boundsMs.at(-1)!;
}
