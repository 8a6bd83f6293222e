// TokenCopies: the stretches of one copyTokens call as the addon takes them: five numbers of each, in one array that is made
// once and only grows. It checks that both ends have memory, and that a stretch does not overlap itself.

import { createError } from '../errors/index.js';
import type { KvCache } from '../memory/kv-cache.js';
import { checkInteger } from '../options.js';

/** Tokens [fromToken, fromToken + tokens) of one slot, to be written at `toToken` of another or the same. */
export interface TokenCopy {
  readonly fromSlot: number;
  readonly fromToken: number;
  readonly toSlot: number;
  readonly toToken: number;
  readonly tokens: number;
}

const owner = 'Kernels.copyTokens';
const numbers = 5;

export class TokenCopies {
  readonly #cache: KvCache;
  #entries = new Int32Array(numbers * 8);
  #count = 0;

  constructor(cache: KvCache) {
    this.#cache = cache;
  }

  /** The first `count` entries of five count. */
  get entries(): Int32Array {
    return this.#entries;
  }

  get count(): number {
    return this.#count;
  }

  /** Throws KV_INVALID_OPTION, KV_LENGTH_OUT_OF_RANGE, KV_COPY_OUT_OF_RANGE, KV_ROW_SHARED. */
  read(copies: readonly TokenCopy[]): void {
    if (!Array.isArray(copies)) {
      throw createError('KV_INVALID_OPTION', { reason: 'type', owner, option: 'copies', expected: 'an array', received: copies });
    }
    if (numbers * copies.length > this.#entries.length) this.#entries = new Int32Array(2 * numbers * copies.length);
    this.#count = 0;
    for (const copy of copies as readonly TokenCopy[]) this.#add(copy);
  }

  /** Tells the cache that the copies are going to be queued on the stream. */
  noteQueued(stream: bigint): void {
    const entries = this.#entries;
    for (let at = 0; at < numbers * this.#count; at += numbers) {
      this.#cache.room.hasQueued(stream, entries[at]!, entries[at + 1]! + entries[at + 4]!);
      this.#cache.room.hasQueued(stream, entries[at + 2]!, entries[at + 3]! + entries[at + 4]!);
    }
  }

  #add({ fromSlot, fromToken, toSlot, toToken, tokens }: TokenCopy): void {
    const { slots, maxTokens } = this.#cache.layout;
    checkInteger(owner, 'fromSlot', fromSlot, 0, slots - 1);
    checkInteger(owner, 'toSlot', toSlot, 0, slots - 1);
    checkInteger(owner, 'fromToken', fromToken, 0, maxTokens);
    checkInteger(owner, 'toToken', toToken, 0, maxTokens);
    checkInteger(owner, 'tokens', tokens, 0, maxTokens);
    if (tokens === 0) return;
    for (const [slot, end] of [[fromSlot, fromToken + tokens], [toSlot, toToken + tokens]] as const) {
      if (end > maxTokens) throw createError('KV_LENGTH_OUT_OF_RANGE', { slot, tokens: end, maxTokens });
      this.#cache.room.check('copy', slot, end);
    }
    this.#cache.room.checkWritable('copy to', toSlot, toToken, toToken + tokens);
    if (fromSlot === toSlot && Math.abs(fromToken - toToken) < tokens) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option: 'toToken', expected: 'outside the tokens that are copied', received: toToken,
      });
    }
    this.#entries.set([fromSlot, fromToken, toSlot, toToken, tokens], numbers * this.#count);
    this.#count += 1;
  }
}
