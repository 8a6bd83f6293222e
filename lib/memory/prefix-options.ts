// The options of prefix caching in a KvCache: meaning, unit, range and default of each, and how they are read.

import { createError } from '../errors/index.js';
import { callable, integer, optional, readOptions, withDefault, type Field } from '../options.js';
import type { EvictionPolicyFactory } from '../policy/prefix/eviction-policy.js';
import { lru } from '../policy/prefix/lru.js';

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
  /** What goes first. Default `lru()`. */
  readonly policy?: EvictionPolicyFactory | undefined;
  /** Values that `Sequence.keepValue` keeps at most; the one used longest ago goes first. Default 64. */
  readonly endValues?: number | undefined;
  /** A clock in milliseconds, for `explain` and for policies that let prefixes expire. Default `Date.now`. */
  readonly now?: (() => number) | undefined;
  /** Requests over which the recent hit rate is taken, 1 or more. Default 1,000. */
  readonly recentRequests?: number | undefined;
}

const spec = {
  poolRows: optional(integer()),
  poolBytes: optional(integer()),
  tenantRows: optional(integer()),
  policy: withDefault(callable<EvictionPolicyFactory>(), lru()),
  endValues: withDefault(integer(), 64),
  now: withDefault(callable<() => number>(), () => Date.now()),
  recentRequests: withDefault(integer({ min: 1, max: 2 ** 20 }), 1_000),
};

export type ReadPrefixCacheOptions = ReturnType<typeof readPrefixCacheOptions>;

/** Checked options with defaults. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readPrefixCacheOptions(options: PrefixCacheOptions) {
  return readOptions('KvCache', options, spec, 'prefixCache');
}

export const prefixCacheField: Field<ReadPrefixCacheOptions | 'off'> = (value, place) => {
  if (value === 'off') return value;
  if (typeof value === 'object' && value !== null) return readPrefixCacheOptions(value);
  throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: "an object of options, or 'off'", received: value });
};
