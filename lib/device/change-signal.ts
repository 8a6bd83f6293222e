// ChangeSignal: says to those who wait for something that it may have come about, so that they look again and nobody asks by a
// timer. It carries no value and remembers nothing. For one Node thread.

export class ChangeSignal {
  readonly #wakes = new Set<() => void>();

  /** Calls what waits, each once. To be called where the change is complete; what waits must only note it. */
  raise(): void {
    if (this.#wakes.size === 0) return;
    const wakes = [...this.#wakes];
    this.#wakes.clear();
    for (const wake of wakes) wake();
  }

  /** `wake` is called at the next change, once. Returns what withdraws it. */
  once(wake: () => void): () => void {
    this.#wakes.add(wake);
    return () => {
      this.#wakes.delete(wake);
    };
  }
}

/** A device was found to be lost, by any call. */
export const deviceLost = new ChangeSignal();
