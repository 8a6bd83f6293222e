// The options of `KvCache.acquire` and of a look at the prefix cache: meaning, range and default of each, and how they
// are read.

import { createError } from '../base/errors.js';
import {
  arrayOf, boolean, type Field, type FieldSpec, integer, oneOf, optional, type OptionsOf, readArray, readOptions,
  streamField, string, text, withDefault,
} from '../base/options.js';
import { isArray } from '../base/typed-arrays.js';
import type { PromptItem } from '../prefix/prompt-encoder.js';
import { checkTokens, type TokenArray, type Tokens, tokensField } from '../prefix/prompt-tokens.js';
import { SelectedText } from '../tiers/selection/selected-text.js';

/**
 * Only requests share whose tenant, salt and adapter are equal, in a cache's namespace. Each may be any string, and
 * none is a value of its own: a tenant '' and no tenant are two.
 */
export interface PromptOptions {
  /** The prompt, if its prefix may be cached. */
  readonly tokens?: Tokens | undefined;
  /**
   * Content other than text: images and the like, and embeddings. The entries of `tokens` at their places are ignored,
   * and may be −1.
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
   * Tokens of the prompt when only their number is known: for the choice of the slot, and for `reserve`. Default: the
   * length of `tokens`, or 0.
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
   * The `selected` of `prefixes.promote` with `selection`, for the same prompt: the sequence gets a part of the stored
   * text (`isLossy`), stores nothing, and carries no side tensors; its engine must load that part
   * (`Sequence.selection`). Where tiers no longer have the text, the sequence is exact and computes more.
   * Default: none.
   */
  readonly selected?: SelectedText | undefined;
  /** For eviction policies that look at it, on the device and in tiers: 0 … 255, higher stays longer. Default 0. */
  readonly priority?: number | undefined;
  /**
   * The stream on which the sequence's work will be queued, a CUstream: cached tokens are valid for later work on it.
   * Default: the cache's `stream`, or the one that a commit named last, as long as a sequence on it runs; without any,
   * cached tokens are valid when `acquire` returns.
   */
  readonly stream?: bigint | undefined;
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
