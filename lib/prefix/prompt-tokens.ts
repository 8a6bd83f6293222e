// The tokens of prompts and answers as callers give them: read once, checked, and copied into an array of the cache's,
// so that the caller may use theirs again. What lies under an item need not be a token, so a prompt's tokens are
// checked only when its items are known.

import { createError } from '../base/errors.js';
import { checkInteger, type Field, type FieldPlace } from '../base/options.js';
import { elementsOf, enlarged, isDetached, typedArrayKind } from '../base/typed-arrays.js';
import { sortItems, type PromptItem } from './prompt-encoder.js';

/** Token ids, each 0 … 2³¹ − 1. */
export type Tokens = Int32Array | Uint32Array | readonly number[];

/** An Int32Array. By its own name TypeScript 5.7 and later declare it as generic, which older ones do not read. */
// eslint-disable-next-line @typescript-eslint/no-empty-object-type
export interface TokenArray extends Int32Array {}

/** A prompt's tokens, read once and copied; what is no token id is negative, and allowed where an item covers it. */
export interface GivenTokens {
  readonly copy: TokenArray;
  /** What was given at an index, where it is no token id: for messages. */
  readonly given: (index: number) => unknown;
}

export const maxToken = 2 ** 31 - 1;

/** Values that are no tokens, of one list: those that messages can show, and those that there may be. */
const shownValues = 1_024;
const mostValues = 2 ** 24;

/** The tokens of a prompt; `checkTokens` checks them. Throws KV_INVALID_OPTION, and what the list's getters throw. */
export const tokensField: Field<GivenTokens> = (value, place) => {
  const kind = typedArrayKind(value);
  const given = kind === undefined ? readList(value, place)
    : kind === 'Int32Array' || kind === 'Uint32Array' ? readTyped(value as Int32Array, kind) : undefined;
  if (given !== undefined) return given;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'an Int32Array, a Uint32Array or an array of token ids', received: value,
  });
};

/**
 * The tokens, once those that no item covers have been checked. Throws KV_INVALID_OPTION, also for items that are not
 * in the prompt.
 */
export function checkTokens(
  owner: string, tokens: GivenTokens, items: readonly PromptItem[], option = 'tokens',
): TokenArray {
  const { copy } = tokens;
  let from = 0;
  for (const { at, length } of items.length === 0 ? items : sortItems(owner, items, copy.length)) {
    checkUncovered({ owner, option }, tokens, from, at);
    from = at + length;
  }
  checkUncovered({ owner, option }, tokens, from, copy.length);
  return copy;
}

const appended = { owner: 'Sequence.append', option: 'tokens' };

/** A token as it is, or a copy of a list of them. Throws KV_INVALID_OPTION, and what the list's getters throw. */
export function readAppended(tokens: number | ArrayLike<number>): number | Int32Array {
  if (typeof tokens === 'number') {
    checkInteger(appended.owner, appended.option, tokens, 0, maxToken);
    return tokens;
  }
  const kind = typedArrayKind(tokens);
  const list = kind !== undefined && (kind.startsWith('Big') || isDetached(tokens))
    ? undefined : copyList(tokens, (token, index) => {
    checkInteger(appended.owner, `${appended.option}[${index}]`, token, 0, maxToken);
    return token;
  });
  if (list !== undefined) return list;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...appended, expected: 'a token id, a typed array or an array of them', received: tokens,
  });
}

/** Undefined for one that does not fit this process's memory. */
function readTyped(value: Int32Array, kind: 'Int32Array' | 'Uint32Array'): GivenTokens | undefined {
  try {
    const copy = new Int32Array(value);
    return { copy, given: (index) => (kind === 'Int32Array' ? copy[index] : copy[index]! >>> 0) };
  } catch {
    return undefined;
  }
}

/** Elements are not converted: `[1n]` and `['1']` are no tokens. Undefined for what is no list. */
function readList(value: unknown, place: FieldPlace): GivenTokens | undefined {
  const wrong = new Map<number, unknown>();
  let wrongValues = 0;
  const copy = copyList(value, (token, index) => {
    if (typeof token === 'number' && token >= 0 && (token | 0) === token) return token;
    if (wrong.size < shownValues) wrong.set(index, token);
    wrongValues += 1;
    if (wrongValues > mostValues) checkInteger(place.owner, `${place.option}[${index}]`, token, 0, maxToken);
    return -1;
  });
  return copy === undefined ? undefined : { copy, given: (index) => wrong.get(index) };
}

/** What `tokenOf` makes of each element of a list, which is read once; undefined for what is none. */
function copyList(
  value: unknown, tokenOf: (element: unknown, index: number) => number,
): Int32Array | undefined {
  const list = elementsOf(value);
  if (list === undefined) return undefined;
  const { elements, length } = list;
  let copy = new Int32Array(0);
  let count = 0;
  for (let index = 0; index < length; index += 1) {
    const token = tokenOf(elements[index], index);
    if (index === copy.length) { // not at once: a list may say that it is longer than any
      copy = enlarged(copy, Math.min(length, Math.max(65_536, 2 * index)));
    }
    copy[index] = token;
    count += 1;
  }
  return copy.subarray(0, count);
}

function checkUncovered({ owner, option }: FieldPlace, { copy, given }: GivenTokens, from: number, to: number): void {
  for (let index = from; index < to; index += 1) {
    if (copy[index]! < 0) checkInteger(owner, `${option}[${index}]`, given(index), 0, maxToken);
  }
}
