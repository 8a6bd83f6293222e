// The options of a KvCache: meaning, unit, range and default of each, and how they are read.

import { createError } from '../base/errors.js';
import {
  arrayOf, boolean, callable, type Field, type FieldSpec, instanceOf, integer, isOptionsObject, oneOf, optional,
  type OptionsOf, policy, readOptions, streamField, string, withDefault,
} from '../base/options.js';
import { ahead, type GrowthPolicy, onDemand } from '../cache/steps.js';
import { Driver, type DriverChoice, driverField } from '../device/driver.js';
import { PagePool } from '../device/page-pool.js';
import { choosePageBytes, layoutChoices, type LayoutKind, type LayoutOptions } from '../layout/layout.js';
import type { ModelShape } from '../layout/model-shape.js';
import { adaptive, evictionPolicies, type EvictionPolicyFactory } from '../prefix/index.js';
import { sideTensorsField, type SideTensorShapes } from '../side/open-side-tensors.js';
import { importanceField, type ImportanceOptions } from '../tiers/selection/probes.js';
import { checkTierNames, checkTierOrder, tierField } from '../tiers/tier.js';
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
   * answers it goes on. Then it rejects with KV_TIER_STALLED. `prefixes.drop` waits so long for each that answers
   * nothing, and names it. Default 30,000.
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

const prefixSpec = {
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
  return readOptions('KvCache', options, prefixSpec, 'prefixCache');
}

export const prefixCacheField: Field<ReadPrefixCacheOptions | 'off'> = orOff(prefixSpec);

/** Options of `KvCache`. */
export interface KvCacheOptions {
  /** What the model keeps per token. */
  readonly model: ModelShape;
  /** Sequences that can be alive at once: the batch dimension of the tensors. 1 … 1,048,576. */
  readonly slots: number;
  /** Tokens a sequence can have; address space is cheap, pages are not used until needed. 1 … 2³¹ − 1. */
  readonly maxTokens: number;
  /**
   * Bytes of physical memory of the cache: at least one row, at most the driver's memory (on mock: any number).
   * Required unless `pool` is given.
   */
  readonly memoryBudgetBytes?: number | undefined;
  /** A driver, or the kind to open. Default `auto`: cuda where there is a GPU, else host. Not together with `pool`. */
  readonly driver?: Driver | DriverChoice | undefined;
  /** Pages shared with other caches, with a budget of at least one row; its driver and page size count. */
  readonly pool?: PagePool | undefined;
  /**
   * Bytes of a page, a multiple of the driver's granularity. Default: the driver's, 2 MiB; on host 64 KiB or a little
   * more where `layout: 'auto'` finds no rows short and small enough in those. Not together with `pool`.
   */
  readonly pageBytes?: number | undefined;
  /** Device memory that new pages leave free: see PagePool. Not together with `pool`. */
  readonly headroomBytes?: number | undefined;
  /** Bytes of free pages that the mapper creates ahead: see PagePool. Not together with `pool`. */
  readonly readyBytes?: number | undefined;
  /**
   * How tensors lie in address ranges. `auto`: `per-layer` where its rows are short beside a prompt and small beside
   * the budget, else `fused`: see LayoutOptions. `cache.layout.kind` says which it is. Kernels take the strides of
   * `cache.layer`; those that need a tensor's tokens one behind the other ask for `per-layer`. Default `auto`.
   */
  readonly layout?: LayoutKind | 'auto' | undefined;
  /** How far to map ahead. Default `ahead(16)`. */
  readonly growth?: GrowthPolicy | undefined;
  /**
   * Rows that the mapper keeps mapped in one idle slot, so that a new prompt starts at once; within `idleRowsLimit`.
   * Default 0.
   */
  readonly eagerRows?: number | undefined;
  /**
   * Rows that idle slots may keep together beside cached prefixes; above it some are taken back at release.
   * Default: no bound.
   */
  readonly idleRowsLimit?: number | undefined;
  /**
   * Cached prefixes: how many, whose first to go. `off`: nothing is kept and nothing is shared but by `fork`. Default:
   * on.
   */
  readonly prefixCache?: PrefixCacheOptions | 'off' | undefined;
  /**
   * `between-tenants`: a page is zeroed before a sequence of another tenant gets it, and before another cache of the
   * pool does whose sequences have no tenants because its own `scrub` is `off`. Default `off`.
   */
  readonly scrub?: 'off' | 'between-tenants' | undefined;
  /**
   * The engine's stream, a CUstream as a bigint: fence of every commit that has none, and where the cache queues copies
   * behind the engine's work. It must live until the cache is closed. Default: none. Without meaning where the driver
   * has no streams.
   */
  readonly stream?: bigint | undefined;
  /**
   * Where the engine's work is when it commits without a fence. `queued`: it may go on, and is fenced: by `stream`, or
   * without one by CUDA's legacy default stream, which waits for every other stream but those created as non-blocking.
   * `awaited`: it is over. Default `queued`. Without meaning where the driver has no streams.
   */
  readonly work?: 'queued' | 'awaited' | undefined;
  /**
   * Rows that a stage computes for each token beside K and V, by name: cached with the prefix, and handed to the next
   * stage. Default: none.
   */
  readonly sideTensors?: SideTensorShapes | undefined;
  /**
   * A host driver for the side tensors in the CPU's memory, where you choose its memory, mappings or huge pages. It
   * must stay open until the cache is closed. Default: one of the cache's own, which takes memory when a page is
   * created, with huge pages where a tensor's `pageBytes` is a multiple of 2 MiB.
   */
  readonly sideDriver?: Driver | undefined;
  /**
   * Bytes of all pages of side tensors together, at least one page of each: cached rows are evicted for those of
   * running sequences. `setSideBudget` changes it. Default: as many tokens as K and V have room for, and a page for
   * each slot and tensor.
   */
  readonly sideBudgetBytes?: number | undefined;
  /** Released sequences whose side tensors hand-overs may still keep. 0 … 1,048,576. Default: as many as `slots`. */
  readonly handOverSlots?: number | undefined;
  /**
   * Most new tokens of a sequence in a pass, for `reserve: 'prompt'` in layers that keep the last tokens alone
   * (`model.layerSets`): pages for one such pass are set aside there, not for the whole prompt. A longer pass may be
   * refused for want of pages. 1 … 2³¹ − 1. Default: a prompt is computed in one pass.
   */
  readonly passTokens?: number | undefined;
  /**
   * Tokens that `truncate` can take back at any time, also in layers that keep the last tokens alone: as many as an
   * engine drafts at once. 0 … 2³¹ − 1. Default 0.
   */
  readonly rollbackTokens?: number | undefined;
  /** `background`: a thread maps ahead of need. `off`: everything is mapped in `prepare`. Default `background`. */
  readonly mapper?: 'background' | 'off' | undefined;
}

const sideDriverField: Field<Driver> = (value, place) => {
  if (Driver.isInstance(value) && value.kind === 'host') return value;
  throw createError('KV_INVALID_OPTION', {
    reason: Driver.isInstance(value) ? 'range' : 'type', ...place, expected: "a Driver of kind 'host'", received: value,
    hint: 'Tensors with `place: \'device\'` are on the cache\'s own driver.',
  });
};

const asIs: Field<ModelShape> = (value) => value as ModelShape; // computeLayout checks it

const spec = {
  model: asIs,
  slots: integer({ min: 1, max: 2 ** 20 }),
  maxTokens: integer({ min: 1, max: 2 ** 31 - 1 }),
  memoryBudgetBytes: optional(integer({ min: 1 })),
  driver: optional(driverField),
  pool: optional(instanceOf(PagePool)),
  pageBytes: optional(integer({ min: 1 })),
  headroomBytes: optional(integer()),
  readyBytes: optional(integer()),
  layout: withDefault(oneOf(layoutChoices), 'auto'),
  growth: withDefault(policy<GrowthPolicy>({ ahead, onDemand }), ahead()),
  eagerRows: withDefault(integer(), 0),
  idleRowsLimit: withDefault(integer(), Number.MAX_SAFE_INTEGER),
  prefixCache: withDefault(prefixCacheField, readPrefixCacheOptions({})),
  scrub: withDefault(oneOf(['off', 'between-tenants']), 'off'),
  stream: optional(streamField),
  work: withDefault(oneOf(['queued', 'awaited']), 'queued'),
  sideTensors: sideTensorsField,
  sideDriver: optional(sideDriverField),
  sideBudgetBytes: optional(integer({ min: 1 })),
  handOverSlots: optional(integer({ max: 2 ** 20 })),
  passTokens: optional(integer({ min: 1, max: 2 ** 31 - 1 })),
  rollbackTokens: withDefault(integer({ max: 2 ** 31 - 1 }), 0),
  mapper: withDefault(oneOf(['background', 'off']), 'background'),
};

/** Checked options with defaults. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readKvCacheOptions(options: KvCacheOptions) {
  const read = readOptions('KvCache', options, spec);
  for (const option of ['memoryBudgetBytes', 'driver', 'pageBytes', 'headroomBytes', 'readyBytes'] as const) {
    if (read.pool === undefined || read[option] === undefined) continue;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'KvCache', option, expected: 'left out when `pool` is given', received: read[option],
      hint: 'The pool has its own.',
    });
  }
  return read;
}

export type ReadKvCacheOptions = ReturnType<typeof readKvCacheOptions>;

/** The pool that was given, or a new one of the cache's own, with pages for tensors of this size. */
export function openPool(
  { pool: given, memoryBudgetBytes, driver, pageBytes, headroomBytes, readyBytes }: ReadKvCacheOptions,
  size: Omit<LayoutOptions, 'pageBytes'>,
): { pool: PagePool; isOwn: boolean } {
  if (given !== undefined) return { pool: given, isOwn: false };
  if (memoryBudgetBytes === undefined) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner: 'KvCache', option: 'memoryBudgetBytes', expected: 'an integer, at least 1',
      received: undefined, hint: 'Give the cache a budget of its own, or a `pool`.',
    });
  }
  const pages = (opened: Driver): number =>
    choosePageBytes({ ...size, memoryBudgetBytes, driverKind: opened.kind }, opened);
  const pool = { memoryBudgetBytes, driver, pageBytes, headroomBytes, readyBytes };
  return { pool: new PagePool(pool, pages), isOwn: true };
}
