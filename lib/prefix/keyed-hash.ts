// KeyedHash: a hash of two 32-bit words that clients cannot foresee, so that no choice of tokens makes a table slow. Simple
// tabulation (Zobrist 1970): a table of random words for each byte, chosen by a seed. Linear probing with it takes constant
// expected time for any set of keys chosen without the seed (Pătraşcu and Thorup 2012), whatever their differences: no two keys
// collide under more seeds than chance has it. Not for secrets, and never part of a key that leaves the process. Pure.

import { Random } from '../base/random.js';

export class KeyedHash {
  /** [byte of `a`, then of `b`, lowest first; its value]. */
  readonly #words = new Int32Array(8 * 256);

  /** @param seed Any safe integer. */
  constructor(seed: number) {
    const random = new Random(seed);
    for (let place = 0; place < this.#words.length; place += 1) this.#words[place] = random.integer(2 ** 32);
  }

  /** 32 bits, as a signed integer. */
  of(a: number, b: number): number {
    const words = this.#words;
    return words[a & 255]! ^ words[256 | ((a >>> 8) & 255)]! ^ words[512 | ((a >>> 16) & 255)]! ^ words[768 | (a >>> 24)]!
      ^ words[1024 | (b & 255)]! ^ words[1280 | ((b >>> 8) & 255)]! ^ words[1536 | ((b >>> 16) & 255)]! ^ words[1792 | (b >>> 24)]!;
  }
}
