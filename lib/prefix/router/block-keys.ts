// BlockKey: names a block of tokens together with everything before it, so that a router that knows the keys of a
// prompt's blocks knows how much of it a cache has: hash(key of the block before, own tokens and items); the first
// block's parent is a hash of the domain, each part in a place of its own. The same in every process. 64 bits, for
// routers: a collision sends a request to the wrong cache, which compares tokens and misses. It hides nothing;
// tiers/block-keys.ts has the kind for stores outside.
//
// The hash is MurmurHash3_x86_128 (Austin Appleby, public domain, https://github.com/aappleby/smhasher), of which the
// first two words count. Pure.

import { enlarged } from '../../base/typed-arrays.js';
import { domainParts, type PrefixDomainParts } from '../domain.js';
import type { ItemNames } from '../prompt-encoder.js';

/** Two 32-bit words, each a signed integer. */
export interface BlockKey {
  readonly high: number;
  readonly low: number;
}

const itemMark = -1;
/**
 * In front of a number whose item has been forgotten: no new prompt has that number, so no key need ever equal this
 * one.
 */
const forgottenMark = -2;

/**
 * What the keys of cached blocks are made of, written as 32-bit words in one canonical way: different contents never
 * give the same words, so two keys are equal by a collision of their hash or not at all. Both kinds of keys use it: the
 * fast ones here and the collision-resistant ones for stores outside. The format is part of both keys' versions.
 *
 *   string   length in UTF-16 code units, then two units a word, the first in the low half
 *   domain   for namespace, tenant, salt and adapter in this order: 0, or 1 and the string
 *   block    number of tokens; then for each token its id, and for each run of positions that an item covers: −1; 1
 *            where the item starts, 0 where it goes on; how many positions; the item's name
 */
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

  /** Adds tokens from `at` on; returns where an item begins, or `end`. */
  #addTokens(text: Int32Array, at: number, end: number): number {
    const before = this.#count - at;
    if (end + before > this.#words.length) this.#words = enlarged(this.#words, 2 * (end + before));
    const words = this.#words;
    let place = at;
    for (; place < end && text[place]! >= 0; place += 1) words[before + place] = text[place]!;
    this.#count = before + place;
    return place;
  }

  /** Adds the run of one item's positions from `at` on; returns where it ends. */
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

// Seeds: no parent of a first block is the key of a block by construction.
const domainSeed = 1;
const blockSeed = 2;

const scratch = new KeyWords();

/** The parent of a domain's first blocks. */
export function domainKey(domain: PrefixDomainParts): BlockKey {
  const { words, count } = scratch.clear().addDomain(domain);
  return hashWords(words, count, domainSeed);
}

/** The key of text[start, start + count), a block behind that of `parent`. */
export function blockKey(
  parent: BlockKey, text: Int32Array, start: number, count: number, names?: ItemNames,
): BlockKey {
  scratch.clear().add(parent.low).add(parent.high).addBlock(text, start, count, names);
  return hashWords(scratch.words, scratch.count, blockSeed);
}

/** The keys of all whole blocks of a text. */
export function blockKeys(
  domain: PrefixDomainParts, text: Int32Array, blockTokens: number, names?: ItemNames,
): BlockKey[] {
  const keys: BlockKey[] = [];
  let parent = domainKey(domain);
  for (let start = 0; start + blockTokens <= text.length; start += blockTokens) {
    parent = blockKey(parent, text, start, blockTokens, names);
    keys.push(parent);
  }
  return keys;
}

/** 16 hexadecimal digits. */
export function formatBlockKey({ high, low }: BlockKey): string {
  return hex(high) + hex(low);
}

function hex(word: number): string {
  return (word >>> 0).toString(16).padStart(8, '0');
}

const c1 = 0x239b961b;
const c2 = 0xab0e9789;
const c3 = 0x38b34ae5;
const c4 = 0xa1e38b93;

/**
 * The first 64 bits of the hash of the first `count` words' bytes, least significant first: `low` is its first word.
 */
export function hashWords(words: Int32Array, count: number, seed: number): BlockKey {
  let h1 = seed;
  let h2 = seed;
  let h3 = seed;
  let h4 = seed;
  const whole = count & ~3;
  for (let at = 0; at < whole; at += 4) {
    h1 ^= Math.imul(rotate(Math.imul(words[at]!, c1), 15), c2);
    h1 = (Math.imul(rotate(h1, 19) + h2, 5) + 0x561ccd1b) | 0;
    h2 ^= Math.imul(rotate(Math.imul(words[at + 1]!, c2), 16), c3);
    h2 = (Math.imul(rotate(h2, 17) + h3, 5) + 0x0bcaa747) | 0;
    h3 ^= Math.imul(rotate(Math.imul(words[at + 2]!, c3), 17), c4);
    h3 = (Math.imul(rotate(h3, 15) + h4, 5) + 0x96cd1c35) | 0;
    h4 ^= Math.imul(rotate(Math.imul(words[at + 3]!, c4), 18), c1);
    h4 = (Math.imul(rotate(h4, 13) + h1, 5) + 0x32ac3b17) | 0;
  }
  const rest = count - whole;
  if (rest > 2) h3 ^= Math.imul(rotate(Math.imul(words[whole + 2]!, c3), 17), c4);
  if (rest > 1) h2 ^= Math.imul(rotate(Math.imul(words[whole + 1]!, c2), 16), c3);
  if (rest > 0) h1 ^= Math.imul(rotate(Math.imul(words[whole]!, c1), 15), c2);
  const bytes = 4 * count;
  h1 ^= bytes;
  h2 ^= bytes;
  h3 ^= bytes;
  h4 ^= bytes;
  h1 = (h1 + h2 + h3 + h4) | 0;
  h2 = finish((h2 + h1) | 0);
  h3 = finish((h3 + h1) | 0);
  h4 = finish((h4 + h1) | 0);
  h1 = (finish(h1) + h2 + h3 + h4) | 0;
  return { low: h1, high: (h2 + h1) | 0 };
}

function rotate(word: number, bits: number): number {
  return (word << bits) | (word >>> (32 - bits));
}

function finish(word: number): number {
  let h = Math.imul(word ^ (word >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return h ^ (h >>> 16);
}
