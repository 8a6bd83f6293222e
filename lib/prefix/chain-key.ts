// BlockKey: names a block of tokens together with everything before it, so that whoever knows the keys of a prompt's blocks knows
// how much of it a cache has: hash(key of the block before, own tokens and items); the first block's parent is a hash of the
// domain, each part in a place of its own. The same in every process. 64 bits, for routers: a collision sends a request to the
// wrong cache, which compares tokens and misses. Not for strangers: it hides nothing; external-key.ts has the other kind.
//
// The hash is MurmurHash3_x86_128 (Austin Appleby, public domain, https://github.com/aappleby/smhasher), of which the first two
// words count. Pure.

import type { PrefixDomainParts } from './domain.js';
import { KeyWords, type ItemNames } from './key-words.js';

/** Two 32-bit words, each a signed integer. */
export interface BlockKey {
  readonly high: number;
  readonly low: number;
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
export function blockKey(parent: BlockKey, text: Int32Array, start: number, count: number, names?: ItemNames): BlockKey {
  scratch.clear().add(parent.low).add(parent.high).addBlock(text, start, count, names);
  return hashWords(scratch.words, scratch.count, blockSeed);
}

/** The keys of all whole blocks of a text. */
export function blockKeys(domain: PrefixDomainParts, text: Int32Array, blockTokens: number, names?: ItemNames): BlockKey[] {
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

/** The first 64 bits of the hash of the first `count` words' bytes, least significant first: `low` is its first word. */
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
