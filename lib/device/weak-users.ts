// WeakUsers: the users of a page pool or driver. Each is held weakly, so that one that was never closed can be collected while
// what it uses lives on; its memory is then given back here. Decides nothing.

/** What a collected user leaves behind. Must not refer to the user. */
export interface UserMemory {
  /** Gives all of it back. Idempotent; throws what the driver throws. */
  close(): void;
}

/**
 * Kept by a user for as long as it lives: that it was collected says that the user was. A weak reference keeps its target until the
 * running JavaScript ends, so the target is this small object, which lets go of the user when that is removed.
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

  /** The user keeps what this returns. */
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

  /** All of them, `first` before the others. */
  inOrder(first?: User): readonly User[] {
    this.#giveBackCollected();
    const users = first === undefined ? [] : [first];
    for (const entry of this.#entries.values()) {
      const alive = entry.deref()?.user;
      if (alive !== undefined && alive !== first) users.push(alive);
    }
    return users;
  }

  /** What the driver refuses to take back is tried again next time. */
  #giveBackCollected(): void {
    for (const [memory, entry] of this.#entries) {
      if (entry.deref() !== undefined) continue;
      try {
        memory.close();
        this.#entries.delete(memory);
      } catch {
        // counted as a user until then
      }
    }
  }
}
