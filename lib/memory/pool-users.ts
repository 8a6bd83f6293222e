// PoolUsers: the caches of a page pool. Each is held weakly, so that one that nobody closed can be collected while its pool lives
// on; its memory is then given back here. Decides nothing.

/** A cache that can give pages back. */
export interface PageUser {
  /** Pages that `reclaim` could free now. */
  reclaimablePages(): number;
  /** Frees at least `pages` pages if it has so many to give; returns how many it freed. */
  reclaim(pages: number): number;
  /** Unmaps at least `pages` pages of idle slots if it can, freeing them or not; returns how many. */
  unmapIdle(pages: number): number;
  /** Stops taking pages in the background until it is asked to again. */
  quiesce(): void;
}

/** What a collected cache leaves behind. Must not refer to the cache. */
export interface UserMemory {
  /** Gives all of it back. Idempotent; throws what the driver throws. */
  close(): void;
}

interface Entry {
  readonly user: WeakRef<PageUser>;
  readonly memory: UserMemory;
}

export class PoolUsers {
  readonly #entries = new Map<UserMemory, Entry>();

  /** Caches that were neither closed nor collected. */
  get count(): number {
    this.#giveBackCollected();
    return this.#entries.size;
  }

  add(user: PageUser, memory: UserMemory): void {
    this.#entries.set(memory, { user: new WeakRef(user), memory });
  }

  remove(memory: UserMemory): void {
    this.#entries.delete(memory);
  }

  /** All of them, `first` before the others. */
  inOrder(first?: PageUser): readonly PageUser[] {
    this.#giveBackCollected();
    const users = first === undefined ? [] : [first];
    for (const { user } of this.#entries.values()) {
      const alive = user.deref();
      if (alive !== undefined && alive !== first) users.push(alive);
    }
    return users;
  }

  /** What the driver refuses to take back is tried again next time. */
  #giveBackCollected(): void {
    for (const { user, memory } of this.#entries.values()) {
      if (user.deref() !== undefined) continue;
      try {
        memory.close();
        this.#entries.delete(memory);
      } catch {
        // counted as a user until then
      }
    }
  }
}
