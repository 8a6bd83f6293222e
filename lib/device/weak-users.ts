// WeakUsers: the users of a page pool or driver. It holds them weakly, so that a user that was never closed can be collected while
// the pool or driver lives on, and then gives the user's memory back. Decides nothing.

/** The memory of a user, which outlives it. Must not refer to the user. */
export interface UserMemory {
  /** Gives all of it back. Idempotent; throws what the driver throws. */
  close(): void;
}

/**
 * A user keeps its membership as long as it lives, so both are collected together. The weak reference is to this small object, because
 * dereferencing one keeps its target alive until the running JavaScript ends; `remove` makes it let go of the user at once.
 */
export class Membership<User> {
  readonly memory: UserMemory;
  user: User | undefined;

  constructor(user: User, memory: UserMemory) {
    this.user = user;
    this.memory = memory;
  }
}

export class WeakUsers<User> {
  readonly #entries = new Map<UserMemory, WeakRef<Membership<User>>>();

  /** Users that were neither closed nor collected. */
  get count(): number {
    this.#giveBackCollected();
    return this.#entries.size;
  }

  /** Adds a user, which must keep the returned membership. */
  add(user: User, memory: UserMemory): Membership<User> {
    const membership = new Membership(user, memory);
    this.#entries.set(memory, new WeakRef(membership));
    return membership;
  }

  remove(memory: UserMemory): void {
    const membership = this.#entries.get(memory)?.deref();
    if (membership !== undefined) membership.user = undefined;
    this.#entries.delete(memory);
  }

  /** All users, in the order in which they were added. */
  all(): readonly User[] {
    this.#giveBackCollected();
    const users: User[] = [];
    for (const entry of this.#entries.values()) {
      const alive = entry.deref()?.user;
      if (alive !== undefined) users.push(alive);
    }
    return users;
  }

  /** Gives back the memory of collected users. Where the driver refuses, the next call tries again. */
  #giveBackCollected(): void {
    for (const [memory, entry] of this.#entries) {
      if (entry.deref() !== undefined) continue;
      try {
        memory.close();
        this.#entries.delete(memory);
      } catch {
        // stays counted as a user
      }
    }
  }
}
