// OtherUsers: who else uses a scheduler's cache, or its pages: sequences that the application holds, other schedulers, other
// caches on the pool. It says whether they hold something, and waits until some of it is back; schedulers that wait stand in
// line, and whoever runs meanwhile starts nobody else before them. It leases nothing. For the cache's thread.
//
// It looks when the pool says that something has changed. It sets an alarm only where more may be had than then was refused and
// nothing says when: others have computed prompts since, or what was short is not the pool's.
//
// Invariant: what is held up was refused by a cache of which this scheduler held nothing, and no more could be had since.

import { isKvError } from '../base/errors.js';
import { ChangeSignal } from '../device/change-signal.js';
import type { KvCache } from '../cache/kv-cache.js';
import type { PagePool } from '../device/page-pool.js';
import { nextChange } from '../cache/wait.js';
import type { Clock } from './clock.js';

/** What can be had at a moment. */
interface Room {
  readonly usedSlots: number;
  readonly obtainablePages: number;
  readonly budgetPages: number;
  readonly cachedRows: number;
  readonly atMs: number;
}

/** What was refused tries again after so long where it may need less than it did, or others than users of the pool were in its way. */
const tryAgainMs = 1_000;

/** By pool: schedulers that can start nobody, because others hold what they need. */
const lines = new WeakMap<PagePool, Set<OtherUsers>>();

export class OtherUsers {
  readonly #cache: KvCache;
  readonly #clock: Clock;
  readonly #line: Set<OtherUsers>;
  readonly #stopped = new ChangeSignal();
  #heldUpAt: Room | undefined;
  /** Whether something beside slots and pages was short for what is held up. */
  #isShortOfOther = false;
  #refusedAt: Room | undefined;
  #isStopped = false;

  constructor(cache: KvCache, clock: Clock) {
    this.#cache = cache;
    this.#clock = clock;
    const line = lines.get(cache.pool) ?? new Set();
    lines.set(cache.pool, this.#line = line);
  }

  /** Whether another scheduler can start nobody before something is released. */
  get areInLine(): boolean {
    return this.#line.size > (this.#line.has(this) ? 1 : 0);
  }

  /** Whether others hold slots or pages, which they may release. To be asked by a scheduler that holds nothing itself. */
  holdSomething(): boolean {
    const { usedSlots, obtainablePages, budgetPages } = this.#room();
    return usedSlots > 0 || obtainablePages + this.#cache.pool.counts().quarantinedPages < budgetPages;
  }

  /** A request was refused beside those that run. */
  refuse(): void {
    this.#refusedAt = this.#room();
  }

  /** Whether more can be had than at the last `refuse`. Throws KV_CLOSED and KV_DRIVER_LOST. */
  haveReleased(): boolean {
    return this.#refusedAt !== undefined && this.#isMore(this.#refusedAt, false);
  }

  /** A request was refused with `error` while nothing of this scheduler ran. */
  holdUp(error: Error): void {
    this.#isShortOfOther ||= !isKvError(error, 'KV_OUT_OF_PAGES') && !isKvError(error, 'KV_NO_FREE_SLOT');
    this.#heldUpAt = this.#room();
  }

  /** While nothing of the scheduler runs: whether those who are held up may try again. Throws as `haveReleased`. */
  look(): boolean {
    const hasMore = this.#heldUpAt !== undefined && this.#isMore(this.#heldUpAt, this.#isShortOfOther);
    if (!hasMore) return false;
    this.#heldUpAt = undefined;
    this.#isShortOfOther = false;
    return true;
  }

  /** Resolves when more can be had than at the last `holdUp`, or with `stop`. Rejects as `haveReleased` throws. */
  async released(): Promise<void> {
    const { signals, mustAsk } = this.#cache.capacityChange();
    const noticing = { signals: [...signals, this.#stopped], mustAsk };
    this.#line.add(this);
    this.#isStopped = false;
    try {
      for (let turn = 0; this.#mustWait(); turn += 1) await nextChange(noticing, turn, (wake) => this.#setAlarm(wake));
    } finally {
      this.#line.delete(this);
    }
  }

  /** Ends `released`: there is another reason to look. */
  stop(): void {
    this.#isStopped = true;
    this.#stopped.raise();
  }

  #mustWait(): boolean {
    return !this.#isStopped && this.#heldUpAt !== undefined && !this.#isMore(this.#heldUpAt, this.#isShortOfOther);
  }

  #isMore(before: Room, isShortOfOther: boolean): boolean {
    this.#cache.driver.checkAlive();
    const { usedSlots, obtainablePages, budgetPages, cachedRows, atMs } = this.#room();
    if (usedSlots < before.usedSlots || obtainablePages > before.obtainablePages || budgetPages !== before.budgetPages) return true;
    return (isShortOfOther || cachedRows > before.cachedRows) && atMs - before.atMs >= tryAgainMs;
  }

  /** For the time from which what is held up may try again without more room. */
  #setAlarm(wake: () => void): () => void {
    const before = this.#heldUpAt!;
    if (!this.#isShortOfOther && this.#room().cachedRows <= before.cachedRows) return () => {};
    return this.#clock.after(wake, Math.max(1, before.atMs + tryAgainMs - this.#clock.now()));
  }

  #room(): Room {
    const { activeSlots, retiringSlots, cachedRows } = this.#cache.counts(); // hears of fences that have passed
    const { pool } = this.#cache;
    return {
      usedSlots: activeSlots + retiringSlots, obtainablePages: pool.obtainablePages(), budgetPages: pool.counts().budgetPages,
      cachedRows, atMs: this.#clock.now(),
    };
  }
}
