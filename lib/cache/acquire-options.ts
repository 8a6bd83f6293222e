// The options of `KvCache.acquire` and of a look at the prefix cache: meaning, range and default of each, and how they are
// read. A prompt's tokens are copied into an array of our own, so the caller may use theirs again.

import { createError } from '../base/errors.js';
import {
  integer, oneOf, optional, readArray, readOptions, streamField, string, withDefault, type Field, type FieldSpec, type OptionsOf,
} from '../base/options.js';
import type { PromptItem } from '../prefix/prompt-encoder.js';
import { isArray } from '../base/typed-arrays.js';
import { checkTokens, tokensField, type TokenArray } from './given-tokens.js';

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

/** Options of `KvCache.acquire`. */
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
  tokens: optional(tokensField), items, tenant: optional(text), salt: optional(text), adapter: optional(text),
};

type GivenPrompt = OptionsOf<typeof promptSpec>;

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

export { caching as cachingField, items as itemsField, text as textField };
