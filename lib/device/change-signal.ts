// ChangeSignal: wakes waiters when what they wait for may have happened, so that they check again instead of polling. It carries no
// value and remembers nothing. For one Node thread.

export class ChangeSignal {
  readonly #wakes = new Set<() => void>();

  /** Calls each waiting `wake` once. Call it when the change is complete; a `wake` must only take note of it. */
  raise(): void {
    if (this.#wakes.size === 0) return;
    const wakes = [...this.#wakes];
    this.#wakes.clear();
    for (const wake of wakes) wake();
  }

  /** Calls `wake` at the next change, once. Returns a function that withdraws it. */
  once(wake: () => void): () => void {
    this.#wakes.add(wake);
    return () => {
      this.#wakes.delete(wake);
    };
  }
}

/** Raised when any call finds its device lost. */
export const deviceLost = new ChangeSignal();
