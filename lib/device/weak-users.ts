// WeakUsers: the users of a page pool or driver. It holds them weakly, so that a user that was never closed can be
// collected while the pool or driver lives on, and then gives the user's memory back. Decides nothing. For objects that
// are not closed it is the safety net: their memory is given back, with one warning per process, KV_NOT_CLOSED.

/** The memory of a user, which outlives it. Must not refer to the user. */
export interface UserMemory {
  /** Gives all of it back. Idempotent; throws what the driver throws. */
  close(): void;
}

/**
 * A user keeps its membership as long as it lives, so both are collected together. The weak reference is to this small
 * object, because dereferencing one keeps its target alive until the running JavaScript ends; `remove` makes it let go
 * of the user at once.
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

/** What is done when an object was collected without `close`. */
export interface Unclosed {
  /** Begins the warning: "A KvCache". */
  readonly what: string;
  /** Gives back the memory of the collected object, unless that has been done. Must not refer to the object. */
  readonly giveBack: () => void;
}

/** For an object that holds nothing but `memory` of the driver. */
export function giveBackTo(
  driver: { removeUser(memory: UserMemory): void }, what: string, memory: UserMemory,
): Unclosed {
  return {
    what,
    giveBack: () => {
      memory.close();
      driver.removeUser(memory);
    },
  };
}

let hasWarned = false;

/** A closable object registers itself when it is made, and unregisters in `close`. */
export const unclosed = new FinalizationRegistry<Unclosed>(({ what, giveBack }) => {
  try {
    giveBack();
  } catch {
    // no caller can be told; WeakUsers tries again at the next use of the pool or driver, at the latest when that is
    // closed
  }
  if (hasWarned) return;
  hasWarned = true;
  process.emitWarning(`${what} was garbage-collected without close().`, { code: 'KV_NOT_CLOSED' });
});
