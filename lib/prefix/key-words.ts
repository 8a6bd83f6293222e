// KeyWords: what the keys of cached blocks are made of, written as 32-bit words in one canonical way: different contents never
// give the same words, so two keys are equal by a collision of their hash or not at all. Both kinds of keys use it: the fast ones
// of chain-key.ts and the collision-resistant ones for stores outside. Pure; the format is part of both keys' versions.
//
//   string   length in UTF-16 code units, then two units a word, the first in the low half
//   domain   for namespace, tenant, salt and adapter in this order: 0, or 1 and the string
//   block    number of tokens, then per token its id, or per run of positions that an item covers −1, 1 where the item starts
//            and 0 where it goes on, the positions, and the item's name; its offset in the block is where the run stands

import { domainParts, type PrefixDomainParts } from './domain.js';
import { enlarged } from '../base/enlarged.js';

/** What the negative numbers in a text of the index stand for: 2n + 1 below 0 is where item n starts, 2n + 2 where it goes on. */
export interface ItemNames {
  /** Name of item `number`, the same in every process for the same content; undefined when it has been forgotten. */
  nameOf(number: number): string | undefined;
}

const itemMark = -1;
/** In front of a number whose item has been forgotten: no new prompt has that number, so no key need ever equal this one. */
const forgottenMark = -2;

export class KeyWords {
  #words = new Int32Array(64);
  #count = 0;

  /** The first `count` of these were added since `clear`; valid until the next call. */
  get words(): Int32Array {
    return this.#words;
  }

  get count(): number {
    return this.#count;
  }

  clear(): this {
    this.#count = 0;
    return this;
  }

  add(word: number): this {
    if (this.#count === this.#words.length) this.#words = enlarged(this.#words, 2 * this.#count);
    this.#words[this.#count] = word;
    this.#count += 1;
    return this;
  }

  addString(text: string): this {
    this.add(text.length);
    for (let at = 0; at < text.length; at += 2) {
      const high = at + 1 < text.length ? text.charCodeAt(at + 1) : 0;
      this.add(text.charCodeAt(at) | (high << 16));
    }
    return this;
  }

  addDomain(parts: PrefixDomainParts): this {
    for (const name of domainParts) {
      const part = parts[name];
      if (part === undefined) this.add(0);
      else this.add(1).addString(part);
    }
    return this;
  }

  /** Adds text[start, start + count). */
  addBlock(text: Int32Array, start: number, count: number, names?: ItemNames): this {
    this.add(count);
    const end = start + count;
    for (let at = start; at < end;) {
      at = this.#addTokens(text, at, end);
      if (at < end) at = this.#addItem(text, at, end, names);
    }
    return this;
  }

  /** Adds tokens from `at` on; answers where an item begins, or `end`. */
  #addTokens(text: Int32Array, at: number, end: number): number {
    const before = this.#count - at;
    if (end + before > this.#words.length) this.#words = enlarged(this.#words, 2 * (end + before));
    const words = this.#words;
    let place = at;
    for (; place < end && text[place]! >= 0; place += 1) words[before + place] = text[place]!;
    this.#count = before + place;
    return place;
  }

  /** Adds the run of one item's positions from `at` on; answers where it ends. */
  #addItem(text: Int32Array, at: number, end: number, names: ItemNames | undefined): number {
    const token = text[at]!;
    const number = (-1 - token) >> 1;
    const isStart = (token & 1) !== 0;
    let after = at + 1;
    while (after < end && text[after] === -2 * number - 2) after += 1;
    const name = names?.nameOf(number);
    if (name === undefined) this.add(forgottenMark).add(token).add(after - at);
    else this.add(itemMark).add(isStart ? 1 : 0).add(after - at).addString(name);
    return after;
  }
}
