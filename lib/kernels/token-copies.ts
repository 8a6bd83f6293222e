// TokenCopies: the ranges of one copyTokens call as the addon takes them: five numbers of each, in one reused array
// that only grows. Checks that source and destination have memory and do not overlap.

import { createError } from '../base/errors.js';
import { Batch } from '../cache/batch.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import { checkInteger } from '../base/options.js';
import { isArray } from '../base/typed-arrays.js';

/** Copies tokens [fromToken, fromToken + tokens) of one slot to `toToken` of another or the same. */
export interface TokenCopy {
  /** Slot to copy from. */
  readonly fromSlot: number;
  /** First token to copy, counted from the start of its slot. */
  readonly fromToken: number;
  /** Slot to copy to; it may be the same one. */
  readonly toSlot: number;
  /** First token to write, counted from the start of the slot. */
  readonly toToken: number;
  /** How many tokens are copied, 0 or more. */
  readonly tokens: number;
}

const owner = 'Kernels.copyTokens';
const numbers = 5;
const noEntries: Int32Array = new Int32Array(0);

export class TokenCopies {
  readonly #cache: KvCache;
  #entries = noEntries;
  #count = 0;

  constructor(cache: KvCache) {
    this.#cache = cache;
  }

  /** Entries of five numbers; the first `count` are valid. */
  get entries(): Int32Array {
    return this.#entries;
  }

  get count(): number {
    return this.#count;
  }

  /**
   * Reads the ranges of a call. Calls `checkOpen` after the caller's getters, which may have closed the kernels. Throws
   * KV_INVALID_OPTION, KV_LENGTH_OUT_OF_RANGE, KV_COPY_OUT_OF_RANGE, KV_ROW_SHARED.
   */
  read(copies: readonly TokenCopy[], checkOpen: () => void): void {
    if (!isArray(copies)) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner, option: 'copies', expected: 'an array', received: copies,
      });
    }
    const reading = new Reading(this.#entries, this.#cache.layout);
    this.#entries = noEntries; // a getter that calls `copyTokens` must not overwrite these
    const { length } = copies;
    for (let index = 0; index < length; index += 1) reading.add(copies[index]!);
    this.#entries = reading.entries;
    this.#count = reading.count;
    checkOpen();
    const { access } = this.#cache;
    const entries = this.#entries;
    for (let at = 0; at < numbers * this.#count; at += numbers) {
      const tokens = entries[at + 4]!;
      access.requireTokens('copy', entries[at]!, entries[at + 1]!, entries[at + 1]! + tokens);
      access.requireTokens('copy', entries[at + 2]!, entries[at + 3]!, entries[at + 3]! + tokens);
      access.requireWritable('copy to', entries[at + 2]!, entries[at + 3]!, entries[at + 3]! + tokens);
    }
  }

  /** Tells the cache that the copies will be queued on the stream. */
  noteQueued(stream: bigint): void {
    const entries = this.#entries;
    for (let at = 0; at < numbers * this.#count; at += numbers) {
      for (const side of [at, at + 2]) {
        const from = entries[side + 1]!;
        this.#cache.access.hasQueued(stream, entries[side]!, from, from + entries[at + 4]!);
      }
    }
  }
}

/** The ranges of one call while they are read. */
class Reading {
  entries: Int32Array;
  count = 0;
  readonly #layout: KvCache['layout'];

  constructor(entries: Int32Array, layout: KvCache['layout']) {
    this.entries = entries;
    this.#layout = layout;
  }

  add(copy: TokenCopy): void {
    const { fromSlot, fromToken, toSlot, toToken, tokens } = members(copy);
    const { slots, maxTokens } = this.#layout;
    checkInteger(owner, 'fromSlot', fromSlot, 0, slots - 1);
    checkInteger(owner, 'toSlot', toSlot, 0, slots - 1);
    checkInteger(owner, 'fromToken', fromToken, 0, maxTokens);
    checkInteger(owner, 'toToken', toToken, 0, maxTokens);
    checkInteger(owner, 'tokens', tokens, 0, maxTokens);
    if (tokens === 0) return;
    for (const [slot, end] of [[fromSlot, fromToken + tokens], [toSlot, toToken + tokens]] as const) {
      if (end > maxTokens) throw createError('KV_LENGTH_OUT_OF_RANGE', { slot, tokens: end, maxTokens });
    }
    if (fromSlot === toSlot && Math.abs(fromToken - toToken) < tokens) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option: 'toToken', expected: 'outside the copied tokens', received: toToken,
      });
    }
    const at = numbers * this.count;
    if (at === this.entries.length) {
      const longer = new Int32Array(Math.max(numbers * 8, 2 * at));
      longer.set(this.entries);
      this.entries = longer;
    }
    this.entries[at] = fromSlot;
    this.entries[at + 1] = fromToken;
    this.entries[at + 2] = toSlot;
    this.entries[at + 3] = toToken;
    this.entries[at + 4] = tokens;
    this.count += 1;
  }
}

/** Reads each member once. Refuses a Batch, which has `tokens` too. */
function members(copy: TokenCopy): TokenCopy {
  if (typeof copy !== 'object' || (copy as TokenCopy | null) === null || copy instanceof Batch) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner, option: 'copies', expected: 'an array of objects', received: copy,
    });
  }
  const { fromSlot, fromToken, toSlot, toToken, tokens } = copy;
  return { fromSlot, fromToken, toSlot, toToken, tokens };
}
