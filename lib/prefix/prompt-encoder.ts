// PromptEncoder: makes the text of a prompt as the prefix index compares it. A position that an image, another item or
// a prompt embedding covers has no token that says what is there; it gets a negative number, which stands for the
// content. Equal content gets equal numbers while the index has it. Numbers are names: no other content ever gets the
// same.

import { createHash } from 'node:crypto';
import { isAnyArrayBuffer } from 'node:util/types';

import { createError } from '../base/errors.js';
import { checkInteger, text } from '../base/options.js';
import { bytesOf } from '../base/typed-arrays.js';

const owner = 'PromptEncoder';

/**
 * `item`: an image, sound or other content that an encoder turns into embeddings · `embedding`: embeddings given as
 * such.
 */
export type PromptItemKind = 'item' | 'embedding';

/** Something in a prompt that is no text: an image, audio, or embeddings given directly. */
export interface PromptItem {
  /** First position it covers. */
  readonly at: number;
  /** Positions it covers, at least 1. */
  readonly length: number;
  /** `item`: what an encoder computes from content with this hash. `embedding`: embeddings with this digest. */
  readonly kind: PromptItemKind;
  /**
   * Hash of its content and of what its rows depend on besides (`contentHash`), long enough that different ones differ
   * in it. Equal hashes of different kinds or lengths never meet.
   */
  readonly hash: string;
  /**
   * Whether schedulers compute its tokens in one pass, for models in which they attend to each other: a step may be
   * longer for it than `prefillTokensPerStep`. Where the start of it is cached, computed with all of it, the pass has
   * the rest. Default: true for an `item`, false for an `embedding`.
   */
  readonly indivisible?: boolean | undefined;
}

/** Where names may still be in use: a PrefixIndex. */
export interface TextSource {
  /** Calls `visit` with every piece of text: an array that must not be kept, and the places [from, to) in it. */
  forTexts(visit: (tokens: Int32Array, from: number, to: number) => void): void;
}

/**
 * What the negative numbers in a text of the index stand for: 2n + 1 below 0 is where item n starts, 2n + 2 where it
 * goes on.
 */
export interface ItemNames {
  /** Name of item `number`, the same in every process for the same content; undefined when it has been forgotten. */
  nameOf(number: number): string | undefined;
}

export interface PromptEncoderOptions {
  readonly index: TextSource;
  /** Names that are given before the first sweep. Default 1,024. */
  readonly firstSweepNames?: number | undefined;
  /** Names there are, a power of two; they are used in turn. Default 2³⁰, which is all: tests use fewer. */
  readonly names?: number | undefined;
}

export class PromptEncoder implements ItemNames {
  readonly #index: TextSource;
  readonly #numbers = new Map<string, number>();
  /** By number. */
  readonly #contents = new Map<number, string>();
  readonly #firstSweepNames: number;
  readonly #names: number;
  /** Numbers that texts of the index had at the last sweep, also of contents that were forgotten before. */
  #inUse = new Set<number>();
  #next = 0;
  #sweepAt: number;

  constructor({ index, firstSweepNames = 1024, names = 2 ** 30 }: PromptEncoderOptions) {
    this.#index = index;
    this.#firstSweepNames = firstSweepNames;
    this.#names = names;
    this.#sweepAt = firstSweepNames;
  }

  /** Contents that have a number now. */
  get count(): number {
    return this.#numbers.size;
  }

  /** What a number stands for, for keys: the same for the same content in every process. */
  nameOf(number: number): string | undefined {
    return this.#contents.get(number);
  }

  /**
   * The text of these tokens, of which items cover some; there the token may be anything (a placeholder). A new array.
   * Throws KV_INVALID_OPTION for a token below 0 that no item covers, an item that covers none or too many positions,
   * or two that overlap.
   */
  encode(tokens: ArrayLike<number>, items: readonly PromptItem[] = []): Int32Array {
    const sorted = sortItems(owner, items, tokens.length);
    const text = Int32Array.from(tokens);
    let plain = 0;
    for (const item of sorted) {
      checkTokens(tokens, plain, item.at);
      plain = item.at + item.length;
    }
    checkTokens(tokens, plain, tokens.length);
    if (this.#numbers.size + sorted.length > this.#sweepAt) this.#sweep();
    for (const item of sorted) {
      const number = this.#numberOfItem(item);
      text[item.at] = -2 * number - 1; // where an item starts is another number than where it goes on
      text.fill(-2 * number - 2, item.at + 1, item.at + item.length);
    }
    return text;
  }

  /** Content that covers another number of positions was encoded otherwise: it is another, already at its first. */
  #numberOfItem({ kind, length, hash }: PromptItem): number {
    return this.numberOf(`${kind} ${length} ${hash}`);
  }

  /** The number of the content with this name; a new one where it has none. */
  numberOf(key: string): number {
    const known = this.#numbers.get(key);
    if (known !== undefined) return known;
    const number = this.#unusedNumber();
    this.#numbers.set(key, number);
    this.#contents.set(number, key);
    return number;
  }

  #unusedNumber(): number {
    for (let tried = 0; tried < 2 * this.#names; tried += 1) {
      if (this.#next === this.#names) { // only from here on can a number come up again
        this.#next = 0;
        this.#sweep();
      }
      const number = this.#next;
      this.#next += 1;
      if (!this.#inUse.has(number)) return number;
    }
    throw createError('KV_INTERNAL', { problem: 'all names of prompt items are in use', howMany: this.#names });
  }

  /**
   * Forgets the names that no text has. A text made before and committed later keeps its numbers, which then match no
   * new one.
   */
  #sweep(): void {
    const found = new Set<number>();
    this.#index.forTexts((tokens, from, to) => {
      for (let at = from; at < to; at += 1) if (tokens[at]! < 0) found.add((-1 - tokens[at]!) >> 1);
    });
    for (const [key, number] of this.#numbers) {
      if (found.has(number)) continue;
      this.#numbers.delete(key);
      this.#contents.delete(number);
    }
    this.#inUse = found;
    this.#sweepAt = Math.max(this.#firstSweepNames, 2 * this.#numbers.size);
  }
}

/**
 * The items of a prompt as they stand in it. Throws KV_INVALID_OPTION for one that covers none or too many positions,
 * and for two that overlap.
 */
export function sortItems(owner: string, items: readonly PromptItem[], promptTokens: number): readonly PromptItem[] {
  const sorted = [...items].sort((a, b) => a.at - b.at);
  let end = 0;
  for (const item of sorted) {
    const option = `items[${items.indexOf(item)}]`;
    checkInteger(owner, `${option}.at`, item.at, 0, promptTokens - 1);
    if (item.at < end) throw invalid(owner, `${option}.at`, `at least ${end}, where the item before it ends`, item.at);
    checkInteger(owner, `${option}.length`, item.length, 1, promptTokens - item.at);
    if (item.hash === '') throw invalid(owner, `${option}.hash`, 'a string that is not empty', item.hash);
    end = item.at + item.length;
  }
  return sorted;
}

function checkTokens(tokens: ArrayLike<number>, from: number, to: number): void {
  for (let at = from; at < to; at += 1) {
    const token = tokens[at]!;
    if (token < 0 || (token | 0) !== token) checkInteger(owner, `tokens[${at}]`, token, 0, 0x7fffffff);
  }
}

function invalid(owner: string, option: string, expected: string, received: unknown): Error {
  return createError('KV_INVALID_OPTION', { reason: 'range', owner, option, expected, received });
}

/**
 * SHA-256 of `content` as 64 hexadecimal digits: a `hash` for `EncoderCache` and for items of prompts, the same in
 * every process. It hides nothing that can be guessed: tenants and salts keep items apart, not their hashes. Throws
 * KV_INVALID_OPTION.
 *
 * @param encoding How rows are made of it, where that can differ for equal bytes: the encoder and its revision, the
 *   resolution, the grid of patches, frames per second. Then the hash is another for each (SHA-512/256 of both).
 *   Default: the content alone tells.
 */
export function contentHash(content: ArrayBufferView | ArrayBuffer, encoding?: string): string {
  const bytes = readBytes(content);
  if (encoding !== undefined) text(encoding, { owner: 'contentHash', option: 'encoding' });
  if (bytes !== undefined && encoding === undefined) return createHash('sha256').update(bytes).digest('hex');
  if (bytes !== undefined) {
    return createHash('sha512-256').update(createHash('sha256').update(bytes).digest()).update(encoding!).digest('hex');
  }
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner: 'contentHash', option: 'content',
    expected: 'a typed array, a DataView or an ArrayBuffer that is not detached',
    received: content,
  });
}

/** The bytes of a view or a buffer; undefined for anything else, and once it is detached. */
function readBytes(content: unknown): Uint8Array | undefined {
  if (!isAnyArrayBuffer(content)) return bytesOf(content);
  try {
    return new Uint8Array(content);
  } catch {
    return undefined;
  }
}
