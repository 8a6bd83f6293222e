// WatchHistory: the last two minutes of a server, a point a second, so that a page that is opened shows them at once and
// all pages show the same. Each point takes sums that the scheduler keeps anyway, and the pool's counts; no point draws
// the cache. The server adds points whether a page is open or not, and none for seconds in which its process was stopped.

import type { OnlineScheduler } from '../index.js';
import type { Figures } from './watch-figures.js';

/** Series of a chart, oldest first, all of the same length. */
export interface History {
  /** Ms from one point to the next. */
  readonly everyMs: number;
  readonly tokensPerSecond: readonly number[];
  /** Of prompt tokens, 0 … 1; null: there were none. */
  readonly hitRate: readonly (number | null)[];
  readonly firstToken: readonly (number | null)[];
  readonly firstTokenP90: readonly (number | null)[];
  readonly betweenTokens: readonly (number | null)[];
  readonly betweenTokensP90: readonly (number | null)[];
  /** Pages of the pool that are mapped. */
  readonly mappedPages: readonly number[];
  readonly waiting: readonly number[];
}

type Name = Exclude<keyof History, 'everyMs'>;
type Point = Readonly<Record<Name, number | null>>;

/** Ms from one point to the next. */
export const historyEveryMs = 1_000;

/** Two minutes. */
export const historyPoints = 120;

export class WatchHistory {
  readonly #points: Point[] = [];

  add({ cache, waitingRequests }: OnlineScheduler, recent: Figures): void {
    const { tokensPerSecond, hitRate, firstToken, betweenTokens } = recent;
    this.#points.push({
      tokensPerSecond, hitRate, firstToken: firstToken.p50, firstTokenP90: firstToken.p90,
      betweenTokens: betweenTokens.p50, betweenTokensP90: betweenTokens.p90,
      mappedPages: cache.pool.counts().mappedPages, waiting: waitingRequests,
    });
    if (this.#points.length > historyPoints) this.#points.shift();
  }

  get series(): History {
    const of = (name: Name): (number | null)[] => this.#points.map((point) => point[name]);
    const numbers = (name: Name): number[] => of(name) as number[];
    return {
      everyMs: historyEveryMs, tokensPerSecond: numbers('tokensPerSecond'), hitRate: of('hitRate'),
      firstToken: of('firstToken'), firstTokenP90: of('firstTokenP90'),
      betweenTokens: of('betweenTokens'), betweenTokensP90: of('betweenTokensP90'),
      mappedPages: numbers('mappedPages'), waiting: numbers('waiting'),
    };
  }
}
