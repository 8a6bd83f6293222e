// WatchState: what the live page and `vkv top` show: the cache, the requests and the last seconds, as one small JSON. Made when it is asked
// for, at most four times a second whatever number of pages ask; without a page a point of its history is taken a second, and nothing is
// drawn. Numbers and the model's name only: no text, no tokens, no tenants.

import { performance } from 'node:perf_hooks';

import { packageVersion } from '../base/package.js';
import type { CachePicture } from '../kv-cache/cache-picture.js';
import type { OnlineScheduler, PrefixMetrics, ServingTotals } from '../index.js';
import type { RequestsPicture } from '../serving/request-picture.js';
import { WatchFigures, type Figures } from './watch-figures.js';
import { historyEveryMs, type History, WatchHistory } from './watch-history.js';

/** What `/watch/state` answers. */
export interface ServerState {
  /** Of virtual-kv. */
  readonly version: string;
  readonly modelName: string;
  /** Since the server was made. */
  readonly uptimeMs: number;
  readonly isClosing: boolean;
  readonly connections: number;
  readonly driver: string;
  readonly requests: RequestsPicture & { readonly waitingCount: number; readonly maxWaiting: number };
  readonly totals: Readonly<ServingTotals>;
  readonly prefixes: Omit<PrefixMetrics, 'droppedRows'> & { readonly evictedRows: number };
  readonly recent: Figures;
  /** The last two minutes: empty until `watch` was called. */
  readonly history: History;
  /** By tier, upper first: what it holds, and the tokens that came from it. */
  readonly tiers: readonly WatchedTier[];
  readonly cache: CachePicture;
}

export interface WatchedTier {
  readonly name: string;
  readonly state: string;
  readonly bytes: number;
  /** null: the store bounds itself. */
  readonly capacityBytes: number | null;
  readonly promotedTokens: number;
}

export interface WatchStateOptions {
  readonly scheduler: OnlineScheduler;
  readonly modelName: string;
  /** Connections that are open. */
  readonly connections: () => number;
  readonly isClosing: () => boolean;
  /** In ms; for tests. */
  readonly now?: (() => number) | undefined;
}

/** Ms that an answer serves again. */
const freshMs = 250;

export class WatchState {
  readonly #options: WatchStateOptions;
  readonly #now: () => number;
  readonly #startMs: number;
  readonly #figures: WatchFigures;
  readonly #history = new WatchHistory();
  #timer: NodeJS.Timeout | undefined;
  #text = '';
  #textMs = -Infinity;

  constructor(options: WatchStateOptions) {
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
    this.#startMs = this.#now();
    this.#figures = new WatchFigures(options.scheduler, this.#startMs);
  }

  /** Takes a point of the history each second, until `end`. The timer keeps no process alive. */
  watch(): void {
    this.#timer ??= setInterval(() => { this.takePoint(); }, historyEveryMs).unref();
  }

  /** Takes no more points. */
  end(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  /** A point of the history; of a closed cache none. */
  takePoint(): void {
    const { scheduler } = this.#options;
    if (scheduler.cache.isClosed) this.end();
    else this.#history.add(scheduler, this.#figures.at(this.#now()));
  }

  /** The state as JSON. Throws KV_CLOSED when the cache is closed. */
  json(): string {
    const nowMs = this.#now();
    if (nowMs - this.#textMs >= freshMs) {
      this.#text = JSON.stringify(this.#stateAt(nowMs));
      this.#textMs = nowMs;
    }
    return this.#text;
  }

  #stateAt(nowMs: number): ServerState {
    const { scheduler, modelName, connections, isClosing } = this.#options;
    const { cache, totals, waitingRequests, maxWaiting } = scheduler;
    const { droppedRows, ...prefixes } = cache.prefixes.metrics;
    return {
      version: packageVersion, modelName, uptimeMs: Math.round(nowMs - this.#startMs), isClosing: isClosing(), connections: connections(),
      driver: cache.driver.kind, requests: { ...scheduler.picture(), waitingCount: waitingRequests, maxWaiting }, totals,
      prefixes: { ...prefixes, evictedRows: droppedRows.evicted + droppedRows.bound + droppedRows.quota },
      recent: this.#figures.at(nowMs), history: this.#history.series, cache: cache.picture(),
      tiers: (cache.prefixes.tiers?.metrics().tiers ?? []).map(({ name, state, bytes, capacityBytes, promotedTokens }) =>
        ({ name, state, bytes, capacityBytes: capacityBytes ?? null, promotedTokens })),
    };
  }
}
