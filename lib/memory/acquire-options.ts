// The options of `KvCache.acquire` and of a look at the prefix cache: meaning, range and default of each, and how they are
// read. A prompt's tokens are copied into an array of our own, so the caller may use theirs again.

import { createError } from '../errors/index.js';
import { checkInteger, integer, oneOf, optional, readOptions, streamField, string, withDefault, type Field, type FieldSpec } from '../options.js';
import type { PromptItem } from '../policy/prefix/prefix-text.js';

/** Token ids, each 0 … 2³¹ − 1. */
export type Tokens = Int32Array | Uint32Array | readonly number[];

/** Within which requests share: only those whose four are equal. Each may be any string; none is a value of its own. */
export interface PromptOptions {
  /** The prompt, if its prefix may be cached. */
  readonly tokens?: Tokens | undefined;
  /** What is not text in it: images and the like, and embeddings. What `tokens` has at their places does not count. */
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
  /**
   * The stream on which the sequence's work will be queued, a CUstream: what is cached is valid for what is queued there from here
   * on. Default: the cache's `stream`, or the one that a commit named last; without any, cached tokens are there when `acquire`
   * returns.
   */
  readonly stream?: bigint | undefined;
}

export const text: Field<string> = (value, place) => {
  if (typeof value === 'string') return value;
  throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: 'a string', received: value });
};

const maxToken = 2 ** 31 - 1;

const tokens: Field<Int32Array> = (value, place) => {
  const copy = copyOf(value);
  if (copy === undefined) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', ...place, expected: 'an Int32Array, a Uint32Array or an array of token ids', received: value,
    });
  }
  const isPlain = Array.isArray(value);
  for (let index = 0; index < copy.length; index += 1) {
    if (copy[index]! >= 0 && (!isPlain || copy[index] === value[index])) continue;
    checkInteger(place.owner, `${place.option}[${index}]`, (value as ArrayLike<unknown>)[index], 0, maxToken);
  }
  return copy;
};

/** A token, or a list of them; what is in the list is checked where it is read. Throws KV_INVALID_OPTION. */
export function checkAppended(tokens: number | ArrayLike<number>): void {
  if (typeof tokens === 'number' || Array.isArray(tokens) || (ArrayBuffer.isView(tokens) && !(tokens instanceof DataView))) return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner: 'Sequence.append', option: 'tokens', expected: 'a token id, a typed array or an array of them', received: tokens,
  });
}

/** Undefined for what is no list of tokens: also for a detached one, or one that does not fit this process's memory. */
function copyOf(value: unknown): Int32Array | undefined {
  if (!Array.isArray(value) && !(value instanceof Int32Array) && !(value instanceof Uint32Array)) return undefined;
  try {
    return new Int32Array(value as ArrayLike<number>); // also from a plain array: much faster than Int32Array.from
  } catch {
    return undefined;
  }
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
  tokens: optional(tokens), items, tenant: withDefault(text, ''), salt: optional(text), adapter: optional(text),
};

const acquireSpec = {
  ...promptSpec,
  promptTokens: optional(integer()),
  reserve: withDefault(oneOf(['prompt', 'none']), 'prompt'),
  caching,
  priority: withDefault(integer({ max: 255 }), 0),
  stream: optional(streamField),
};

/** Checked options with defaults. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readAcquireOptions(options: AcquireOptions) {
  const read = readOptions('KvCache.acquire', options, acquireSpec);
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
  return readOptions(owner, options, { ...promptSpec, ...more });
}

export { caching as cachingField, items as itemsField, text as textField, tokens as tokensField };
