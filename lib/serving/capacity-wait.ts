// CapacityWait: notices that a scheduler's cache can give more slots or pages than when it refused a request, while
// other users of the cache or its pool hold them: sequences of the application, other schedulers, other caches.
// Schedulers that wait are listed by pool, and a scheduler that runs starts no further request before them. Leases
// nothing. For the cache's thread.
//
// It looks when the pool signals a change. It sets an alarm only where a blocked request may start without one: prompts
// were computed since, so it may need less, something other than the pool was short, or pins of cached text end.
//
// Invariant: a blocked request was refused while its scheduler held nothing of the cache, and no more could be had
// since. A request that needs more than the budgets is blocked, too, but the scheduler evicts and preempts nothing for
// it.

import { isKvError } from '../base/errors.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import type { PagePool } from '../device/page-pool.js';
import { ChangeSignal, nextChange } from '../device/wait.js';
import type { Clock } from './scheduler-options.js';

/** What the cache can give at a moment. */
interface Capacity {
  readonly usedSlots: number;
  readonly obtainablePages: number;
  readonly budgetPages: number;
  /** Of side tensors: slots that only hand-overs keep, bytes that cannot be evicted, and the budget. */
  readonly leasedSlots: number;
  readonly sideHeldBytes: number;
  readonly sideBudgetBytes: number;
  readonly cachedRows: number;
  readonly atMs: number;
}

/** Of a cache without side tensors. */
const noSide = { leasedSlots: 0, heldBytes: 0, budgetBytes: 0 };

/** A blocked request that may start without a change of the pool tries again after this time. */
const retryMs = 1_000;

/** By pool: schedulers that can start no request, because others hold what it needs. */
const waitersOf = new WeakMap<PagePool, Set<CapacityWait>>();

export class CapacityWait {
  readonly #cache: KvCache;
  readonly #clock: Clock;
  readonly #waiters: Set<CapacityWait>;
  readonly #stopped = new ChangeSignal();
  #blockedAt: Capacity | undefined;
  /** Whether what others release may let a blocked request start; else only a larger budget. */
  #needsOthers = false;
  /**
   * Whether something beside slots and pages was short for a blocked request, or may become obtainable as time goes by.
   */
  #isShortOfOther = false;
  #refusedAt: Capacity | undefined;
  #isStopped = false;

  constructor(cache: KvCache, clock: Clock) {
    this.#cache = cache;
    this.#clock = clock;
    const waiters = waitersOf.get(cache.pool) ?? new Set();
    waitersOf.set(cache.pool, this.#waiters = waiters);
  }

  /** Whether another scheduler of the pool waits. */
  get hasWaiters(): boolean {
    return this.#waiters.size > (this.#waiters.has(this) ? 1 : 0);
  }

  /** Whether slots or pages are held, hand-overs and pins that end included, for a scheduler that holds none itself. */
  isHeldByOthers(): boolean {
    const { usedSlots, obtainablePages, budgetPages, leasedSlots, sideHeldBytes } = this.#capacity();
    const { pool } = this.#cache;
    const lostPages = pool.counts().quarantinedPages + pool.withheldPages();
    return usedSlots > 0 || leasedSlots > 0 || sideHeldBytes > 0 || obtainablePages + lostPages < budgetPages
      || pool.withholdsForNow();
  }

  /** Remembers that a request was refused beside running ones. */
  refuse(): void {
    this.#refusedAt = this.#capacity();
  }

  /** Whether more can be had than at the last `refuse`. Throws KV_CLOSED and KV_DRIVER_LOST. */
  hasMore(): boolean {
    return this.#refusedAt !== undefined && this.#isMore(this.#refusedAt, false);
  }

  /** Remembers that a request was refused with `error` while nothing of this scheduler ran. */
  block(error: Error): void {
    this.#isShortOfOther ||= !isKvError(error, 'KV_OUT_OF_PAGES') && !isKvError(error, 'KV_NO_FREE_SLOT')
      || this.#cache.pool.withholdsForNow();
    this.#needsOthers = true;
    this.#blockedAt = this.#capacity();
  }

  /** Remembers that a request needs more than the budgets are. */
  blockForBudget(): void {
    this.#blockedAt ??= this.#capacity();
  }

  /** Returns whether blocked requests may try again, which ends the block. Throws as `hasMore`. */
  recheck(): boolean {
    const hasMore = this.#blockedAt !== undefined && this.#isMore(this.#blockedAt, this.#isShortOfOther);
    if (!hasMore) return false;
    this.#blockedAt = undefined;
    this.#isShortOfOther = false;
    this.#needsOthers = false;
    return true;
  }

  /** Resolves when more can be had than at the last `block`, or with `stop`. Rejects as `hasMore` throws. */
  async wait(): Promise<void> {
    const { signals, mustAsk } = this.#cache.capacityChange();
    const noticing = { signals: [...signals, this.#stopped], mustAsk };
    if (this.#needsOthers) this.#waiters.add(this);
    this.#isStopped = false;
    try {
      for (let turn = 0; this.#mustWait(); turn += 1) await nextChange(noticing, turn, (wake) => this.#setAlarm(wake));
    } finally {
      this.#waiters.delete(this);
    }
  }

  /** Ends `wait`: there is another reason to step. */
  stop(): void {
    this.#isStopped = true;
    this.#stopped.raise();
  }

  #mustWait(): boolean {
    return !this.#isStopped && this.#blockedAt !== undefined && !this.#isMore(this.#blockedAt, this.#isShortOfOther);
  }

  #isMore(before: Capacity, isShortOfOther: boolean): boolean {
    this.#cache.driver.checkAlive();
    const { usedSlots, obtainablePages, budgetPages, leasedSlots, sideHeldBytes, sideBudgetBytes, cachedRows, atMs } =
      this.#capacity();
    if (leasedSlots < before.leasedSlots || sideHeldBytes < before.sideHeldBytes
      || sideBudgetBytes !== before.sideBudgetBytes) return true;
    if (usedSlots < before.usedSlots || obtainablePages > before.obtainablePages
      || budgetPages !== before.budgetPages) return true;
    return (isShortOfOther || cachedRows > before.cachedRows) && atMs - before.atMs >= retryMs;
  }

  /** Sets an alarm for the time from which a blocked request may try again without more capacity, where it may. */
  #setAlarm(wake: () => void): () => void {
    const before = this.#blockedAt!;
    if (!this.#isShortOfOther && this.#capacity().cachedRows <= before.cachedRows) return () => {};
    return this.#clock.after(wake, Math.max(1, before.atMs + retryMs - this.#clock.now()));
  }

  #capacity(): Capacity {
    const { activeSlots, retiringSlots, cachedRows } = this.#cache.counts(); // notices fences that have passed
    const { pool, sideTensors } = this.#cache;
    const { leasedSlots, heldBytes: sideHeldBytes, budgetBytes: sideBudgetBytes } =
      sideTensors.length > 0 ? this.#cache.sideCounts() : noSide;
    return {
      usedSlots: activeSlots + retiringSlots, obtainablePages: pool.obtainablePages(),
      budgetPages: pool.counts().budgetPages,
      leasedSlots, sideHeldBytes, sideBudgetBytes, cachedRows, atMs: this.#clock.now(),
    };
  }
}
