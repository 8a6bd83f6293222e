// OtherUsers: who else uses a scheduler's cache, or its pages: sequences that the application holds, other schedulers, other
// caches on the pool. It says whether they hold something, and waits until some of it is back; schedulers that wait stand in
// line, and whoever runs meanwhile starts nobody else before them. It leases nothing. For the cache's thread.
//
// Schedulers wake those in line when they release something. What the application releases, and fences that pass, can only be
// asked for: once per millisecond, and only while nothing of the scheduler runs.

import type { KvCache } from '../memory/kv-cache.js';
import type { PagePool } from '../memory/page-pool.js';

/** What can be had at a moment. */
interface Room {
  readonly usedSlots: number;
  readonly obtainablePages: number;
  readonly budgetPages: number;
}

const askAgainMs = 1;

/** By pool: schedulers that can start nobody, because others hold what they need. */
const lines = new WeakMap<PagePool, Set<OtherUsers>>();

export class OtherUsers {
  readonly #cache: KvCache;
  readonly #line: Set<OtherUsers>;
  #refusedWith: Room | undefined;
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

  /** Remembers what can be had now, which was too little. */
  refused(): void {
    this.#refusedWith = this.#room();
  }

  /** Whether more can be had than when it was refused, or the budget is another. Throws KV_CLOSED and KV_DRIVER_LOST. */
  haveReleased(): boolean {
    const before = this.#refusedWith;
    if (before === undefined) return false;
    this.#cache.driver.checkAlive();
    const { usedSlots, obtainablePages, budgetPages } = this.#room();
    return usedSlots < before.usedSlots || obtainablePages > before.obtainablePages || budgetPages !== before.budgetPages;
  }

  /** Resolves when they have released something since `refused`, or `isOver` says so. Rejects as `haveReleased` throws. */
  async released(isOver: () => boolean): Promise<void> {
    this.#line.add(this);
    try {
      while (!isOver() && !this.haveReleased()) {
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

  #room(): Room {
    const { activeSlots, retiringSlots } = this.#cache.counts(); // hears of fences that have passed
    const { pool } = this.#cache;
    return {
      usedSlots: activeSlots + retiringSlots, obtainablePages: pool.obtainablePages(), budgetPages: pool.counts().budgetPages,
    };
  }
}
