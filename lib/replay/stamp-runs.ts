// StampRuns: which tokens of one sequence carry the test pattern, as runs [from, tokens] in ascending order. Neighbouring
// runs become one. Grows by doubling and is emptied, not thrown away, for the next sequence.

export class StampRuns {
  #runs = new Int32Array(64);
  #length = 0;

  /** Number of runs. */
  get length(): number {
    return this.#length / 2;
  }

  fromOf(run: number): number {
    return this.#runs[2 * run]!;
  }

  tokensOf(run: number): number {
    return this.#runs[2 * run + 1]!;
  }

  /** Adds tokens that lie behind all runs. */
  push(from: number, tokens: number): void {
    const last = this.#length - 2;
    if (last >= 0 && this.#runs[last]! + this.#runs[last + 1]! === from) {
      this.#runs[last + 1]! += tokens;
      return;
    }
    if (this.#length === this.#runs.length) {
      const runs = new Int32Array(2 * this.#length);
      runs.set(this.#runs);
      this.#runs = runs;
    }
    this.#runs[this.#length] = from;
    this.#runs[this.#length + 1] = tokens;
    this.#length += 2;
  }

  clear(): void {
    this.#length = 0;
  }
}
