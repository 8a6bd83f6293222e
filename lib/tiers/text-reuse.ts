// TextReuse: which stored text is likely to be used again, learnt from what was, as the eviction policy `adaptive`
// learns it on the device: by the turn of the request that brought a text, how often it was used, and the latest
// request that used it. It learns of every finished text, stored or not. Tiers that keep what is likely to return share
// one of it.

import { ReuseHistory } from '../prefix/eviction/reuse-history.js';
import { ReuseRates } from '../prefix/eviction/reuse-rates.js';
import type { ReleasedRequest } from '../prefix/eviction/eviction-policy.js';
import { textClass, turns, type Turn } from '../prefix/eviction/text-class.js';
import type { StoredBlock } from './stored-texts.js';

/** What is known of a block's text. */
interface ReuseTraits {
  /** Finished texts that had it, those before it was stored last included, as far as they are remembered. */
  uses: number;
  /** Of the request that brought it. */
  readonly turn: Turn;
  /** Class of the latest request that used it. */
  ofRequest: number;
  /** Number of the latest finished text that had it. */
  lastUse: number;
}

export class TextReuse {
  readonly #rates = new ReuseRates();
  readonly #history: ReuseHistory;
  readonly #traits = new WeakMap<StoredBlock, ReuseTraits>();
  #finished = 0;

  /** @param hashSeed A number that clients cannot guess. */
  constructor(hashSeed: number) {
    this.#history = new ReuseHistory(this.#rates, hashSeed);
  }

  /** A text was finished that ends in `last`. Texts of different roots are different texts. */
  note(last: StoredBlock, text: Int32Array, request: ReleasedRequest): void {
    this.#finished += 1;
    let root = last;
    while (root.parent !== undefined) root = root.parent;
    const known = this.#history.note(Number.parseInt(root.key.slice(0, 8), 16), text, text.length, request);
    for (let block = last; block.parent !== undefined; block = block.parent) {
      const traits = this.#traits.get(block);
      if (traits === undefined) {
        const uses = known.tokens > block.from ? Math.max(1, known.uses) : 1;
        this.#traits.set(block, { uses, turn: known.turn, ofRequest: known.ofRequest, lastUse: this.#finished });
        continue;
      }
      traits.uses += 1;
      traits.ofRequest = known.ofRequest;
      traits.lastUse = this.#finished;
    }
  }

  /** The text up to the block's end was used by a request that goes on. */
  touch(last: StoredBlock): void {
    for (let block: StoredBlock | undefined = last; block !== undefined; block = block.parent) {
      const traits = this.#traits.get(block);
      if (traits !== undefined) traits.lastUse = this.#finished;
    }
  }

  /** The class of a block's text, 0 … textClasses − 1. */
  classOf(block: StoredBlock): number {
    const traits = this.#traits.get(block);
    return traits === undefined ? textClass(1, turns.first, 0) : textClass(traits.uses, traits.turn, traits.ofRequest);
  }

  /** What keeping a block of a class is worth now. */
  valueOf(block: StoredBlock, ofClass: number): number {
    return this.#rates.value(ofClass, this.#finished + 1 - (this.#traits.get(block)?.lastUse ?? 0));
  }
}
