// ChoiceNotes: which tokens of a stored text one request's layers chose. Once the last layer has chosen, each whole
// block is told how important its tokens were to the request, for the order in which they are best stored. Hints alone:
// no answer depends on them.

import type { ImportanceMeans } from '../tiers/importance-means.js';
import type { StoredBlock } from '../tiers/stored-texts.js';

export class ChoiceNotes {
  readonly #means: ImportanceMeans;
  readonly #blocks: readonly StoredBlock[];
  readonly #from: number;
  readonly #done: (isNoted: boolean) => void;
  /** By token: layers that chose it. */
  readonly #chosen: Float32Array;
  #layers = 0;

  /**
   * `blocks` hold the text [from, to), which is chosen from. `done` is called once all layers have chosen: whether any
   * of them says something.
   */
  constructor(
    means: ImportanceMeans, blocks: readonly StoredBlock[], from: number, to: number, done: (isNoted: boolean) => void,
  ) {
    this.#done = done;
    this.#means = means;
    this.#blocks = blocks;
    this.#from = from;
    this.#chosen = new Float32Array(to - from);
  }

  /** A layer chose these tokens of the text. One that was given all of them says nothing of any. */
  add(chosen: Int32Array): void {
    if (chosen.length === this.#chosen.length) return;
    for (const token of chosen) this.#chosen[token]! += 1;
    this.#layers += 1;
  }

  /**
   * All layers have chosen: notes the share of them that chose each token, in blocks that lie in the text as a whole.
   */
  finish(): void {
    const isNoted = this.#layers > 0;
    if (isNoted) this.#note(this.#chosen.map((layers) => layers / this.#layers));
    this.#done(isNoted);
  }

  #note(shares: Float32Array): void {
    for (const { key, from, to } of this.#blocks) {
      const [first, end] = [from - this.#from, to - this.#from];
      if (first >= 0 && end <= shares.length) this.#means.note(key, shares.subarray(first, end));
    }
  }
}
