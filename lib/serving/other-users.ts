// OtherUsers: who else uses a scheduler's cache, or its pages: sequences that the application holds, other schedulers, other
// caches on the pool. It says whether they hold something, and waits until some of it is back; schedulers that wait stand in
// line, and whoever runs meanwhile starts nobody else before them. It leases nothing. For the cache's thread.
//
// Schedulers wake those in line when they release something. What the application releases, and fences that pass, can only be
// asked for: once per millisecond, and only while nothing of the scheduler runs.
//
// Invariant: who is held up was refused by a cache of which this scheduler held nothing, and no more could be had since.

import type { KvCache } from '../memory/kv-cache.js';
import type { PagePool } from '../memory/page-pool.js';

/** What can be had at a moment. */
interface Room {
  readonly usedSlots: number;
  readonly obtainablePages: number;
  readonly budgetPages: number;
  readonly atMs: number;
}

const askAgainMs = 1;
/** Who was refused tries again after so long in any case: he may need less, when others have computed the start of his prompt. */
const tryAgainMs = 1_000;

/** By pool: schedulers that can start nobody, because others hold what they need. */
const lines = new WeakMap<PagePool, Set<OtherUsers>>();

export class OtherUsers {
  readonly #cache: KvCache;
  readonly #line: Set<OtherUsers>;
  #heldUp = new WeakSet<object>();
  #heldUpAt: Room | undefined;
  #refusedAt: Room | undefined;
  #wake = (): void => {};

  constructor(cache: KvCache) {
    this.#cache = cache;
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
    return this.#hasMoreThan(this.#refusedAt);
  }

  /** A request was refused while nothing of this scheduler ran. */
  holdUp(request: object): void {
    this.#heldUp.add(request);
    this.#heldUpAt = this.#room();
  }

  /** Whether it was, and has not been told to try again since. */
  areHoldingUp(request: object): boolean {
    return this.#heldUp.has(request);
  }

  /** While nothing of the scheduler runs: lets those who are held up try again, if more can be had. Throws as `haveReleased`. */
  look(): void {
    if (!this.#hasMoreThan(this.#heldUpAt)) return;
    this.#heldUp = new WeakSet();
    this.#heldUpAt = undefined;
  }

  /** Resolves when more can be had than at the last `holdUp`, or `isOver` says so. Rejects as `haveReleased` throws. */
  async released(isOver: () => boolean): Promise<void> {
    this.#line.add(this);
    try {
      while (!isOver() && !this.#hasMoreThan(this.#heldUpAt)) {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
          setTimeout(resolve, askAgainMs);
        });
      }
    } finally {
      this.#line.delete(this);
    }
  }

  /** Something of this scheduler was released: those in line look at once, before it starts somebody else. */
  wake(): void {
    for (const other of this.#line) other.#wake();
  }

  #hasMoreThan(before: Room | undefined): boolean {
    if (before === undefined) return false;
    this.#cache.driver.checkAlive();
    const { usedSlots, obtainablePages, budgetPages, atMs } = this.#room();
    const isMore = usedSlots < before.usedSlots || obtainablePages > before.obtainablePages;
    return isMore || budgetPages !== before.budgetPages || atMs - before.atMs >= tryAgainMs;
  }

  #room(): Room {
    const { activeSlots, retiringSlots } = this.#cache.counts(); // hears of fences that have passed
    const { pool } = this.#cache;
    return {
      usedSlots: activeSlots + retiringSlots, obtainablePages: pool.obtainablePages(), budgetPages: pool.counts().budgetPages,
      atMs: performance.now(),
    };
  }
}
