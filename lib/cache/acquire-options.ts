// The options of `KvCache.acquire` and of a look at the prefix cache: meaning, range and default of each, and how they
// are read. Tokens are read once, checked, and copied into an array of the cache's, so that the caller may use theirs
// again. What lies under an item need not be a token, so a prompt's tokens are checked only when its items are known.

import { createError } from '../base/errors.js';
import {
  arrayOf, boolean, checkInteger, integer, oneOf, optional, readArray, readOptions, streamField, string, text,
  withDefault, withoutRevoked,
  type Field, type FieldPlace, type FieldSpec, type OptionsOf,
} from '../base/options.js';
import { sortItems, type PromptItem } from '../prefix/prompt-encoder.js';
import { SelectedText } from '../importance/selected-text.js';
import { elementsOf, isArray, isDetached, typedArrayKind } from '../base/typed-arrays.js';

export { sortItems, type PromptItem } from '../prefix/prompt-encoder.js';

/** Token ids, each 0 … 2³¹ − 1. */
export type Tokens = Int32Array | Uint32Array | readonly number[];

/**
 * Only requests share whose tenant, salt and adapter are equal, in a cache's namespace. Each may be any string, and
 * none is a value of its own: a tenant '' and no tenant are two.
 */
export interface PromptOptions {
  /** The prompt, if its prefix may be cached. */
  readonly tokens?: Tokens | undefined;
  /**
   * What is not text in it: images and the like, and embeddings. What `tokens` has at their places does not count, −1
   * say.
   */
  readonly items?: readonly PromptItem[] | undefined;
  /** Whose data the sequence holds: prefixes of tenants are apart, and so is memory with `scrub: 'between-tenants'`. */
  readonly tenant?: string | undefined;
  /** A secret, or a group's name: only requests with the same one share. */
  readonly salt?: string | undefined;
  /** The adapter (LoRA) that computes K and V. */
  readonly adapter?: string | undefined;
}

/** Options of `KvCache.acquire`. */
export interface AcquireOptions extends PromptOptions {
  /**
   * Tokens of the prompt when only their number is known: chooses the slot, and what `reserve` sets aside. Default: of
   * `tokens`, or 0.
   */
  readonly promptTokens?: number | undefined;
  /**
   * `prompt`: pages for the whole prompt are set aside now, so that computing it in chunks can never run out, nor two
   * prompts block each other half-way. `none`: every growth takes its chance. Default `prompt`.
   */
  readonly reserve?: 'prompt' | 'none' | undefined;
  /**
   * `read`: use cached prefixes, store nothing. `write`: compute all of it, and store. `off`: neither. Default
   * `read-write`.
   */
  readonly caching?: 'read-write' | 'read' | 'write' | 'off' | undefined;
  /**
   * The side tensors that the sequence carries: it begins only with tokens of which all of them are cached, and its
   * engine may write them. `[]`: K and V alone. Default: all of the cache.
   */
  readonly needs?: readonly string[] | undefined;
  /**
   * What `prefixes.promote` resolved with for the same prompt: the sequence is given part of the stored text
   * (`isLossy`), stores nothing, and carries no side tensors; its engine must load it (`Sequence.selection`). Where
   * tiers no longer have the text the sequence is an exact one that computes more. Default: none.
   */
  readonly selected?: SelectedText | undefined;
  /** For eviction policies that look at it, on the device and in tiers: 0 … 255, higher stays longer. Default 0. */
  readonly priority?: number | undefined;
  /**
   * The stream on which the sequence's work will be queued, a CUstream: what is cached is valid for what is queued
   * there from here on. Default: the cache's `stream`, or the one that a commit named last; without any, cached tokens
   * are there when `acquire` returns.
   */
  readonly stream?: bigint | undefined;
}

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
    ? undefined : copyList(tokens, appended, (token, index) => {
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
  const copy = copyList(value, place, (token, index) => {
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
  value: unknown, place: FieldPlace, tokenOf: (element: unknown, index: number) => number,
): Int32Array | undefined {
  let copy = new Int32Array(0);
  let count = 0;
  const isList = withoutRevoked(value, place, () => {
    const list = elementsOf(value);
    if (list === undefined) return false;
    const { elements, length } = list;
    for (let index = 0; index < length; index += 1) {
      const token = tokenOf(elements[index], index);
      if (index === copy.length) { // not at once: a list may say that it is longer than any
        const longer = new Int32Array(Math.min(length, Math.max(65_536, 2 * index)));
        longer.set(copy);
        copy = longer;
      }
      copy[index] = token;
      count += 1;
    }
    return true;
  });
  return isList ? copy.subarray(0, count) : undefined;
}

function checkUncovered({ owner, option }: FieldPlace, { copy, given }: GivenTokens, from: number, to: number): void {
  for (let index = from; index < to; index += 1) {
    if (copy[index]! < 0) checkInteger(owner, `${option}[${index}]`, given(index), 0, maxToken);
  }
}

const itemSpec = {
  at: integer(), length: integer({ min: 1 }), kind: oneOf(['item', 'embedding']), hash: string,
  indivisible: optional(boolean),
};

const items: Field<readonly PromptItem[]> = (value, place) => {
  if (value === undefined) return [];
  if (isArray(value)) return readArray(
    value, place, (item, index) => readOptions(place.owner, item, itemSpec, `${place.option}[${index}]`));
  throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: 'an array of items', received: value });
};

const caching = withDefault(oneOf(['read-write', 'read', 'write', 'off']), 'read-write');

const promptSpec = {
  tokens: optional(tokensField), items, tenant: optional(text), salt: optional(text), adapter: optional(text),
};

type GivenPrompt = OptionsOf<typeof promptSpec>;

const selectedField: Field<SelectedText> = (value, place) => {
  if (SelectedText.isInstance(value)) return value;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'what `prefixes.promote` resolved with', received: value,
  });
};

const acquireSpec = {
  ...promptSpec,
  promptTokens: optional(integer()),
  reserve: withDefault(oneOf(['prompt', 'none']), 'prompt'),
  caching,
  needs: optional(arrayOf(string)),
  selected: optional(selectedField),
  priority: withDefault(integer({ max: 255 }), 0),
  stream: optional(streamField),
};

/** Checked options with defaults. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readAcquireOptions(options: AcquireOptions) {
  const given = readOptions('KvCache.acquire', options, acquireSpec);
  const read = { ...given, tokens: tokensOf('KvCache.acquire', given) };
  if (read.tokens !== undefined && read.promptTokens !== undefined && read.promptTokens !== read.tokens.length) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'KvCache.acquire', option: 'promptTokens', expected: 'left out when `tokens` is given',
      received: read.promptTokens, hint: 'It is their number.',
    });
  }
  const complete = { ...read, promptTokens: read.promptTokens ?? read.tokens?.length ?? 0 };
  return read.selected === undefined ? complete : withSelected(complete);
}

/** A sequence that is given part of its text leaves none in the cache, and carries K and V alone. */
function withSelected<R extends {
  readonly tokens: TokenArray | undefined; readonly caching: string; readonly needs: readonly string[] | undefined;
}>(read: R) {
  const refuse = (option: string, expected: string, received: unknown): Error =>
    createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'KvCache.acquire', option, expected: `${expected} with \`selected\``, received,
    });
  const { tokens, caching, needs } = read;
  if (tokens === undefined) throw refuse('tokens', 'given', tokens);
  if (caching === 'off' || caching === 'write') throw refuse('caching', "`'read-write'` or `'read'`", caching);
  if (needs !== undefined && needs.length > 0) throw refuse('needs', 'left out or empty', needs);
  return { ...read, caching: 'read' as const, needs: [] };
}

export type ReadAcquireOptions = ReturnType<typeof readAcquireOptions>;

/** With the options of `more` besides. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readPromptOptions<S extends FieldSpec>(owner: string, options: PromptOptions, more: S) {
  const given = readOptions(owner, options, { ...promptSpec, ...more }) as GivenPrompt & OptionsOf<S>;
  const read: Omit<GivenPrompt, 'tokens'> & OptionsOf<S> = given;
  return { ...read, tokens: tokensOf(owner, given) };
}

function tokensOf(owner: string, { tokens, items }: Pick<GivenPrompt, 'tokens' | 'items'>): TokenArray | undefined {
  return tokens === undefined ? undefined : checkTokens(owner, tokens, items);
}

export { caching as cachingField, items as itemsField };
