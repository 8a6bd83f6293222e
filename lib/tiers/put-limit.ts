// PutLimit: so many puts of a tier are under way at most; others wait until one is over, so that a tier which writes
// slowly has its writers wait.

/** Puts that are under way at most. */
const mostPuts = 16;

export class PutLimit {
  #puts = 0;
  readonly #waiting: (() => void)[] = [];

  /** Resolves when one more may be under way. */
  async room(): Promise<void> {
    while (this.#puts >= mostPuts) await this.#over();
  }

  /** Resolves when none is under way. */
  async idle(): Promise<void> {
    while (this.#puts > 0) await this.#over();
  }

  begin(): void {
    this.#puts += 1;
  }

  end(): void {
    this.#puts -= 1;
    for (const wake of this.#waiting.splice(0)) wake(); // each looks again
  }

  #over(): Promise<void> {
    return new Promise((resolve) => { this.#waiting.push(resolve); });
  }
}
