// The options of prefix caching in a KvCache: meaning, unit, range and default of each, and how they are read.

import { createError } from '../base/errors.js';
import {
  arrayOf, boolean, callable, integer, isOptionsObject, optional, policy, readOptions, string, withDefault, type Field,
  type FieldSpec, type OptionsOf,
} from '../base/options.js';
import { importanceField, type ImportanceOptions } from '../importance/probes.js';
import { adaptive, evictionPolicies, type EvictionPolicyFactory } from '../prefix/index.js';
import { checkTierNames, checkTierOrder, tierField } from '../tiers/tier-field.js';
import type { Tier } from '../tiers/tier.js';
import { blockTokensField, defaultBlockTokens } from './prefix-block-keys.js';

/** The option `prefixCache` of a `KvCache`. */
export interface PrefixCacheOptions {
  /**
   * Rows of released sequences that may stay for their prefixes; 0: nothing is kept after release. They also go,
   * whatever the bound, when a growing sequence needs their pages. Default: no bound but the memory.
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
  /**
   * A clock in milliseconds, for `explain` and for policies that let prefixes expire. Default: milliseconds since 1970,
   * counted on from the start of the process: it does not follow when the machine's clock is set.
   */
  readonly now?: (() => number) | undefined;
  /** Requests over which the recent hit rate is taken, 1 or more. Default 1,000. */
  readonly recentRequests?: number | undefined;
  /**
   * Where text is kept that the device has no room for, the fastest first: `hostTier`, `diskTier`, `redisTier`, or
   * `Tier`s of your own, 8 at most. Finished text is stored there in the background; `promote` brings it back. Default:
   * none.
   */
  readonly tiers?: readonly Tier[] | undefined;
  /**
   * Names the weights and their revision, for tiers that outlive the process: text of another model is never found, nor
   * of another shape or worker, which `model` says. It is your word: nothing compares it with the weights, and where
   * these change and it stays, answers are made of the old ones' K and V. Default: `model.identity`, which
   * `LlamaModel.shape()` gives; one of the two is required with such a tier.
   */
  readonly modelId?: string | undefined;
  /**
   * Tokens of a stored block, 1 … 65,536; the same in all processes that share a tier. Default: a power of two, 16 …
   * 256, of which K and V have about 4 MiB.
   */
  readonly tierBlockTokens?: number | undefined;
  /**
   * Stores keys of some heads a second time in every block, so that `promote` and requests with `selection` can load
   * the important tokens of a stored text alone (docs/importance.md). The same in all processes that share a tier.
   * Default: none.
   */
  readonly importance?: ImportanceOptions | undefined;
  /**
   * After so many requests with a selection, blocks are stored anew, in the background, in the order in which requests
   * read their tokens, where that spares a good part of the reads (docs/importance.md#reordering); 0: only when
   * `tiers.reorder` is called. 0 … 1,048,576. Default 64.
   */
  readonly reorderAfter?: number | undefined;
  /**
   * How long `tiers.close()` waits for tiers of which none answers, in milliseconds, 1 … 2³¹ − 1; while any of them
   * answers it goes on. Then it rejects with KV_TIER_STALLED. Default 30,000.
   */
  readonly tierCloseTimeoutMs?: number | undefined;
  /**
   * Tell routers which blocks are cached, on the channels `virtual-kv:prefix-stored`, `-removed` and `-cleared`.
   * Default `off`.
   */
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

const tiersField: Field<readonly Tier[]> = (value, place) => {
  const tiers = arrayOf(tierField)(value, place);
  if (tiers.length <= 8) return checkTierOrder(checkTierNames(tiers, place), place);
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', ...place, expected: 'at most 8 tiers', received: tiers.length,
  });
};

const spec = {
  poolRows: optional(integer()),
  poolBytes: optional(integer()),
  tenantRows: optional(integer()),
  policy: withDefault(policy<EvictionPolicyFactory>(evictionPolicies), adaptive()),
  endValues: withDefault(integer(), 64),
  now: withDefault(callable<() => number>(), () => performance.timeOrigin + performance.now()),
  tiers: withDefault(tiersField, []),
  modelId: optional(string),
  tierBlockTokens: optional(integer({ min: 1, max: 2 ** 16 })),
  importance: importanceField,
  reorderAfter: withDefault(integer({ min: 0, max: 2 ** 20 }), 64),
  tierCloseTimeoutMs: withDefault(integer({ min: 1, max: 2 ** 31 - 1 }), 30_000),
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
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', ...place, expected: "an object of options, or 'off'", received: value,
    });
  };
}

export type ReadPrefixCacheOptions = ReturnType<typeof readPrefixCacheOptions>;

/** Checked options with defaults. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readPrefixCacheOptions(options: PrefixCacheOptions) {
  return readOptions('KvCache', options, spec, 'prefixCache');
}

export const prefixCacheField: Field<ReadPrefixCacheOptions | 'off'> = orOff(spec);
