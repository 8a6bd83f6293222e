// Stamps: under which keys the tokens of a sequence are stamped with the test pattern, and which of its tokens are.
// Where prefixes are shared a key belongs to the text, so that a sequence verifies rows that another one wrote; else it
// belongs to the admission, so that rows of an earlier sequence are never taken for right.

export interface StampKeys {
  keyAt(token: number): number;
  /** The first token behind `token` that has another key, or may have one. */
  runEnd(token: number): number;
  /**
   * The first token from `token` on that begins a run of text or ends a whole one. The same for all equal texts up to
   * and with it.
   */
  nextEdge(token: number): number;
}

/** One key for all tokens of a sequence. */
export function oneKey(key: number): StampKeys {
  return { keyAt: () => key, runEnd: () => Infinity, nextEdge: () => Infinity };
}

/**
 * The stamped tokens of one sequence, as runs [from, tokens] in ascending order. Neighbouring runs become one. Grows by
 * doubling, and keeps its memory for the next sequence.
 */
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
