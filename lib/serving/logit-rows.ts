// LogitRows: the rows of an engine's logits as arrays of their own over the same memory. An engine that answers with the
// same array every time costs no allocation per token. Checks nothing.

import { floatsOf } from '../typed-arrays.js';

export class LogitRows {
  readonly #vocabularyTokens: number;
  #logits: Float32Array | undefined;
  readonly #rows: Float32Array[] = [];

  constructor(vocabularyTokens: number) {
    this.#vocabularyTokens = vocabularyTokens;
  }

  /** Logits of the sequence at `index`. */
  row(logits: Float32Array, index: number): Float32Array {
    if (logits !== this.#logits) {
      this.#logits = logits;
      this.#rows.length = 0;
    }
    for (let at = this.#rows.length; at <= index; at += 1) {
      this.#rows.push(floatsOf(logits, at * this.#vocabularyTokens, this.#vocabularyTokens));
    }
    return this.#rows[index]!;
  }
}
