// prefixBlockKeys: the keys under which the events of a cache name the blocks of a prompt. For routers: needs no cache,
// no driver and no memory, and gives the same in every process.

import { createError } from '../base/errors.js';
import { integer, text, withDefault } from '../base/options.js';
import { prefixDomain } from '../prefix/domain.js';
import { PromptEncoder } from '../prefix/prompt-encoder.js';
import { blockKeys, formatBlockKey } from '../prefix/router/block-keys.js';
import { readPromptOptions, type PromptOptions } from './acquire-options.js';

/** Options of `prefixBlockKeys`. */
export interface PrefixBlockKeysOptions extends PromptOptions {
  /** What `cache.prefixes.setNamespace` was given. Default: what a cache begins with, the empty string. */
  readonly namespace?: string | undefined;
  /** The caches' `prefixCache.events.blockTokens`, 1 or more. Default 16. */
  readonly blockTokens?: number | undefined;
}

/** Tokens of a block unless something else is asked for. */
export const defaultBlockTokens = 16;

export const blockTokensField = integer({ min: 1, max: 2 ** 20 });

/**
 * One key per whole block of the prompt, in order, 16 hexadecimal digits each; a key stands for all tokens up to its
 * block's end, and tokens behind the last whole block have none. `tokens` is required. Equal to the `blockKeys` of a
 * cache's events only where namespace, tenant, salt, adapter and `blockTokens` are. Throws KV_UNKNOWN_OPTION and
 * KV_INVALID_OPTION.
 */
export function prefixBlockKeys(options: PrefixBlockKeysOptions): string[] {
  const { tokens, items, tenant, salt, adapter, namespace, blockTokens } =
    readPromptOptions('prefixBlockKeys', options, {
    namespace: withDefault(text, ''), blockTokens: withDefault(blockTokensField, defaultBlockTokens),
  });
  if (tokens === undefined) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner: 'prefixBlockKeys', option: 'tokens', expected: 'the tokens of the prompt',
      received: undefined,
    });
  }
  const names = new PromptEncoder({ index: { forTexts: () => { /* these names serve one call */ } } });
  const written = items.length === 0 ? tokens : names.encode(tokens, items);
  return blockKeys(prefixDomain({ namespace, tenant, salt, adapter }), written, blockTokens, names).map(formatBlockKey);
}
