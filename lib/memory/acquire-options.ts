// The options of `KvCache.acquire` and of a look at the prefix cache: meaning, range and default of each, and how they are
// read. A prompt's tokens are copied into an array of our own, so the caller may use theirs again.

import { createError } from '../errors/index.js';
import {
  checkInteger, integer, oneOf, optional, readOptions, streamField, string, withDefault, type Field, type FieldPlace, type FieldSpec, type OptionsOf,
} from '../options.js';
import { sortItems, type PromptItem } from '../policy/prefix/prefix-text.js';

/** Token ids, each 0 … 2³¹ − 1. */
export type Tokens = Int32Array | Uint32Array | readonly number[];

/**
 * Only requests share whose tenant, salt and adapter are equal, in a cache's namespace. Each may be any string, and none is a value of
 * its own: a tenant '' and no tenant are two.
 */
export interface PromptOptions {
  /** The prompt, if its prefix may be cached. */
  readonly tokens?: Tokens | undefined;
  /** What is not text in it: images and the like, and embeddings. What `tokens` has at their places does not count, −1 say. */
  readonly items?: readonly PromptItem[] | undefined;
  /** Whose data the sequence holds: prefixes of tenants are apart, and so is memory with `scrub: 'between-tenants'`. */
  readonly tenant?: string | undefined;
  /** A secret, or a group's name: only requests with the same one share. */
  readonly salt?: string | undefined;
  /** The adapter (LoRA) that computes K and V. */
  readonly adapter?: string | undefined;
}

export interface AcquireOptions extends PromptOptions {
  /** Tokens of the prompt when only their number is known: chooses the slot, and what `reserve` sets aside. Default: of `tokens`, or 0. */
  readonly promptTokens?: number | undefined;
  /**
   * `prompt`: pages for the whole prompt are set aside now, so that computing it in chunks can never run out, nor two
   * prompts block each other half-way. `none`: every growth takes its chance. Default `prompt`.
   */
  readonly reserve?: 'prompt' | 'none' | undefined;
  /**
   * `read`: use cached prefixes, store nothing. `write`: compute all of it, and store. `off`: neither. Default `read-write`.
   */
  readonly caching?: 'read-write' | 'read' | 'write' | 'off' | undefined;
  /** For eviction policies that look at it: 0 … 255, higher stays longer. Default 0. */
  readonly priority?: number | undefined;
  /** The stream on which cached tokens are copied; `acquire` waits for it. Default: the driver's default stream. */
  readonly stream?: bigint | undefined;
}

export const text: Field<string> = (value, place) => {
  if (typeof value === 'string') return value;
  throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: 'a string', received: value });
};

const maxToken = 2 ** 31 - 1;

/** A prompt's tokens, read once and copied; what is no token id is -1, and allowed where an item covers it. */
export interface GivenTokens {
  readonly copy: Int32Array;
  /** What was given, for messages. */
  readonly source: ArrayLike<unknown>;
}

/** An Int32Array. By its own name TypeScript 5.7 and later declare it as generic, which older ones do not read. */
// eslint-disable-next-line @typescript-eslint/no-empty-object-type
export interface TokenArray extends Int32Array {}

const tokens: Field<GivenTokens> = (value, place) => {
  const copy = copyOf(value);
  if (copy !== undefined) return { copy, source: value as ArrayLike<unknown> };
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'an Int32Array, a Uint32Array or an array of token ids', received: value,
  });
};

/** The tokens, once those that no item covers have been checked. Throws KV_INVALID_OPTION, also for items that are not in the prompt. */
export function checkTokens(owner: string, { copy, source }: GivenTokens, items: readonly PromptItem[], option = 'tokens'): TokenArray {
  let from = 0;
  for (const { at, length } of items.length === 0 ? items : sortItems(owner, items, copy.length)) {
    checkUncovered({ owner, option }, copy, source, from, at);
    from = at + length;
  }
  checkUncovered({ owner, option }, copy, source, from, copy.length);
  return copy;
}

function checkUncovered({ owner, option }: FieldPlace, copy: Int32Array, source: ArrayLike<unknown>, from: number, to: number): void {
  for (let index = from; index < to; index += 1) {
    if (copy[index]! < 0) checkInteger(owner, `${option}[${index}]`, source[index], 0, maxToken);
  }
}

/** A token, or a list of them; what is in the list is checked where it is read. Throws KV_INVALID_OPTION. */
export function checkAppended(tokens: number | ArrayLike<number>): void {
  if (typeof tokens === 'number' || isList(tokens)) return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner: 'Sequence.append', option: 'tokens', expected: 'a token id, a typed array or an array of them', received: tokens,
  });
}

function isList(value: unknown): boolean {
  try {
    return Array.isArray(value) || (ArrayBuffer.isView(value) && !(value instanceof DataView));
  } catch { // a revoked proxy
    return false;
  }
}

/** Undefined for what is no list of tokens: also for a detached one, or one that does not fit this process's memory. */
function copyOf(value: unknown): Int32Array | undefined {
  try {
    if (!Array.isArray(value) && !(value instanceof Int32Array) && !(value instanceof Uint32Array)) return undefined;
    return Array.isArray(value) ? copyOfArray(value) : new Int32Array(value);
  } catch {
    return undefined;
  }
}

/** Each element is read once, and converted by nobody: `[1n]` and `['1']` are no tokens. */
function copyOfArray(values: readonly unknown[]): Int32Array {
  const copy = new Int32Array(values.length);
  for (let index = 0; index < copy.length; index += 1) {
    const value = values[index];
    copy[index] = typeof value === 'number' && (value | 0) === value ? value : -1;
  }
  return copy;
}

const itemSpec = {
  at: integer(), length: integer({ min: 1 }), kind: oneOf(['item', 'embedding']), hash: string,
};

const items: Field<readonly PromptItem[]> = (value, place) => {
  if (value === undefined) return [];
  if (Array.isArray(value)) return value.map((item, index) => readOptions(place.owner, item, itemSpec, `${place.option}[${index}]`));
  throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: 'an array of items', received: value });
};

const caching = withDefault(oneOf(['read-write', 'read', 'write', 'off']), 'read-write');

const promptSpec = {
  tokens: optional(tokens), items, tenant: optional(text), salt: optional(text), adapter: optional(text),
};

type GivenPrompt = OptionsOf<typeof promptSpec>;

const acquireSpec = {
  ...promptSpec,
  promptTokens: optional(integer()),
  reserve: withDefault(oneOf(['prompt', 'none']), 'prompt'),
  caching,
  priority: withDefault(integer({ max: 255 }), 0),
  stream: withDefault(streamField, 0n),
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
  return { ...read, promptTokens: read.promptTokens ?? read.tokens?.length ?? 0 };
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

export { caching as cachingField, items as itemsField, text as textField, tokens as tokensField };
