// The options of `KvCache.acquire` and of a look at the prefix cache: meaning, range and default of each, and how they are
// read. A prompt's tokens are copied into an array of our own, so the caller may use theirs again.

import { createError } from '../errors/index.js';
import {
  checkInteger, integer, oneOf, optional, readArray, readOptions, streamField, string, withDefault, withoutRevoked,
  type Field, type FieldPlace, type FieldSpec,
} from '../options.js';
import type { PromptItem } from '../policy/prefix/prefix-text.js';
import { forElements, isArray, typedArrayKind } from '../typed-arrays.js';

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
  /** The stream on which cached tokens are copied; `acquire` waits for it. Default: the driver's default stream. */
  readonly stream?: bigint | undefined;
}

export const text: Field<string> = (value, place) => {
  if (typeof value === 'string') return value;
  throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: 'a string', received: value });
};

const maxToken = 2 ** 31 - 1;

const tokens: Field<Int32Array> = (value, place) => {
  const copy = copyOf(value, place);
  if (copy === undefined) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', ...place, expected: 'an Int32Array, a Uint32Array or an array of token ids', received: value,
    });
  }
  return copy;
};

const appended = { owner: 'Sequence.append', option: 'tokens' };

/** A token as it is, or a copy of a list of them. Throws KV_INVALID_OPTION, and what the list's getters throw. */
export function readAppended(tokens: number | ArrayLike<number>): number | Int32Array {
  if (typeof tokens === 'number') {
    checkInteger(appended.owner, appended.option, tokens, 0, maxToken);
    return tokens;
  }
  const kind = typedArrayKind(tokens);
  const list = kind !== undefined && kind.startsWith('Big') ? undefined : copyList(tokens, appended);
  if (list !== undefined) return list;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...appended, expected: 'a token id, a typed array or an array of them', received: tokens,
  });
}

/** Undefined for what is no list of tokens: also for a detached one, or one that does not fit this process's memory. */
function copyOf(value: unknown, place: FieldPlace): Int32Array | undefined {
  const kind = typedArrayKind(value);
  if (kind === undefined) return copyList(value, place);
  if (kind !== 'Int32Array' && kind !== 'Uint32Array') return undefined;
  let copy: Int32Array;
  try {
    copy = new Int32Array(value as Int32Array);
  } catch {
    return undefined;
  }
  for (let index = 0; index < copy.length; index += 1) {
    if (copy[index]! < 0) checkInteger(place.owner, `${place.option}[${index}]`, kind === 'Int32Array' ? copy[index] : copy[index]! >>> 0, 0, maxToken);
  }
  return copy;
}

/** The same for any list, each of its elements read once. */
function copyList(value: unknown, place: FieldPlace): Int32Array | undefined {
  let copy = new Int32Array(0);
  let count = 0;
  const isList = withoutRevoked(value, place, () => forElements(value, (token, index, length) => {
    checkInteger(place.owner, `${place.option}[${index}]`, token, 0, maxToken);
    if (index === copy.length) {
      // A list may say that it is longer than any: the first that is missing is its end.
      const longer = new Int32Array(Math.min(length, Math.max(65_536, 2 * index)));
      longer.set(copy);
      copy = longer;
    }
    copy[index] = token;
    count += 1;
  }));
  return isList ? copy.subarray(0, count) : undefined;
}

const itemSpec = {
  at: integer(), length: integer({ min: 1 }), kind: oneOf(['item', 'embedding']), hash: string,
};

const items: Field<readonly PromptItem[]> = (value, place) => {
  if (value === undefined) return [];
  if (isArray(value)) return readArray(value, place, (item, index) => readOptions(place.owner, item, itemSpec, `${place.option}[${index}]`));
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
  stream: withDefault(streamField, 0n),
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
