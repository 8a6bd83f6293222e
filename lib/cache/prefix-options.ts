// The options of prefix caching in a KvCache: meaning, unit, range and default of each, and how they are read.

import { createError } from '../base/errors.js';
import {
  boolean, callable, integer, isOptionsObject, optional, policy, readOptions, string, withDefault, type Field, type FieldSpec, type OptionsOf,
} from '../base/options.js';
import { adaptive, lfu, lru, priority, slru, type EvictionPolicyFactory } from '../prefix/index.js';
import { blockTokensField, defaultBlockTokens } from './prefix-block-keys.js';

/** The option `prefixCache` of a `KvCache`. */
export interface PrefixCacheOptions {
  /**
   * Rows of released sequences that may stay for their prefixes; 0: nothing is kept after release. They also go, whatever the
   * bound, when a growing sequence needs their pages. Default: no bound but the memory.
   */
  readonly poolRows?: number | undefined;
  /** The same bound in bytes of physical memory. The smaller one counts. */
  readonly poolBytes?: number | undefined;
  /** Rows of one tenant among them, at most. Default: no bound. */
  readonly tenantRows?: number | undefined;
  /** What goes first. Default `adaptive()`; docs/eviction-policies.md compares them. */
  readonly policy?: EvictionPolicyFactory | undefined;
  /** Values that `Sequence.keepValue` keeps at most; the one used longest ago goes first. Default 64. */
  readonly endValues?: number | undefined;
  /** A clock in milliseconds, for `explain` and for policies that let prefixes expire. Default `Date.now`. */
  readonly now?: (() => number) | undefined;
  /** Requests over which the recent hit rate is taken, 1 or more. Default 1,000. */
  readonly recentRequests?: number | undefined;
  /** Tell routers which blocks are cached, on the channels `virtual-kv:prefix-stored`, `-removed` and `-cleared`. Default `off`. */
  readonly events?: PrefixEventsOptions | 'off' | undefined;
}

/** The option `prefixCache.events` of a `KvCache`. */
export interface PrefixEventsOptions {
  /** Tokens of a block, 1 … 1,048,576; it need not have to do with rows. Default 16. */
  readonly blockTokens?: number | undefined;
  /** Says in every event which cache it is. Default: none. */
  readonly label?: string | undefined;
  /** Whether events tell the tokens of what is stored. Default false: only their keys. */
  readonly includesTokens?: boolean | undefined;
}

const shipped = { adaptive, lfu, lru, priority, slru };

const spec = {
  poolRows: optional(integer()),
  poolBytes: optional(integer()),
  tenantRows: optional(integer()),
  policy: withDefault(policy<EvictionPolicyFactory>(shipped), adaptive()),
  endValues: withDefault(integer(), 64),
  now: withDefault(callable<() => number>(), () => Date.now()),
  recentRequests: withDefault(integer({ min: 1, max: 2 ** 20 }), 1_000),
  events: withDefault(orOff({
    blockTokens: withDefault(blockTokensField, defaultBlockTokens),
    label: optional(string),
    includesTokens: withDefault(boolean, false),
  }), 'off'),
};

/** An object of options, or 'off'. */
function orOff<S extends FieldSpec>(fields: S): Field<OptionsOf<S> | 'off'> {
  return (value, place) => {
    if (value === 'off') return value;
    if (isOptionsObject(value)) return readOptions(place.owner, value, fields, place.option);
    throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: "an object of options, or 'off'", received: value });
  };
}

export type ReadPrefixCacheOptions = ReturnType<typeof readPrefixCacheOptions>;

/** Checked options with defaults. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readPrefixCacheOptions(options: PrefixCacheOptions) {
  return readOptions('KvCache', options, spec, 'prefixCache');
}

export const prefixCacheField: Field<ReadPrefixCacheOptions | 'off'> = orOff(spec);
