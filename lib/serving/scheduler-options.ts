// The options that the schedulers share: meaning, unit, range and default of each, and how they are read.

import { createError } from '../errors/index.js';
import { KvCache } from '../memory/kv-cache.js';
import { callable, instanceOf, integer, optional, readOptions, withDefault, type Field } from '../options.js';
import { byArrival, type RequestOrder } from '../policy/request-order.js';
import type { Engine } from './engine.js';

export interface SchedulerOptions {
  /** Whose slots it leases. Others may use it too: who fits but for what they hold waits until they release it. */
  readonly cache: KvCache;
  readonly engine: Engine;
  /** Sequences in a step at most, 1 or more. Default: the slots of the cache. */
  readonly maxBatch?: number | undefined;
  /**
   * Prompt tokens in a step at most, over all sequences, 1 or more: more is faster, fewer lets answers flow. Default 2,048.
   */
  readonly prefillTokensPerStep?: number | undefined;
  /** Rows that an admission must leave for running answers to grow into. Default: 1 % of the budget, 1 or more. */
  readonly watermarkRows?: number | undefined;
  /**
   * A request waits when another is computing the start of its prompt, and waiting saves it so many tokens. Infinity: nobody
   * waits. Default 64.
   */
  readonly minPendingTokens?: number | undefined;
  /** Whose turn is next, and who gives way. Default `byArrival()`. */
  readonly order?: RequestOrder | undefined;
  /** The engine's stream, on which its passes are queued: copies within the cache that must wait for work run there. Default: the cache's. */
  readonly stream?: bigint | undefined;
  /** The clock of deadlines and timings, in ms. Default `performance.now`. */
  readonly now?: (() => number) | undefined;
}

const engineField: Field<Engine> = (value, place) => {
  const { prefill, decode, vocabularyTokens } = (value ?? {}) as Partial<Engine>;
  const hasBoth = typeof prefill === 'function' && typeof decode === 'function';
  if (hasBoth && Number.isSafeInteger(vocabularyTokens) && vocabularyTokens! > 0) return value as Engine;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'an engine: `vocabularyTokens`, `prefill` and `decode`', received: value,
  });
};

const pendingField: Field<number> = (value, place) => (value === Infinity ? value : integer({ min: 1 })(value, place));

const streamField: Field<bigint> = (value, place) => {
  if (typeof value === 'bigint' && value >= 0n) return value;
  throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: 'a CUstream as a bigint', received: value });
};

/** Fields of the shared options, for the spec of a scheduler. */
export const schedulerSpec = {
  cache: instanceOf(KvCache, 'a KvCache'),
  engine: engineField,
  maxBatch: optional(integer({ min: 1 })),
  prefillTokensPerStep: withDefault(integer({ min: 1 }), 2_048),
  watermarkRows: optional(integer()),
  minPendingTokens: withDefault(pendingField, 64),
  order: withDefault(callable<RequestOrder>(), byArrival()),
  stream: optional(streamField),
  now: withDefault(callable<() => number>(), () => performance.now()),
};

type Given = ReturnType<typeof readOptions<typeof schedulerSpec>>;

export type ReadSchedulerOptions = Given & { readonly maxBatch: number; readonly watermarkRows: number };

/** Defaults that follow from the cache. */
export function completeOptions(given: Given): ReadSchedulerOptions {
  const { layout, pool } = given.cache;
  const budgetRows = Math.floor(pool.counts().budgetPages / layout.pagesPerRow);
  return {
    ...given, maxBatch: Math.min(given.maxBatch ?? layout.slots, layout.slots),
    watermarkRows: given.watermarkRows ?? Math.max(1, Math.floor(budgetRows / 100)),
  };
}

/** Checked options with defaults. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readSchedulerOptions(owner: string, options: SchedulerOptions): ReadSchedulerOptions {
  return completeOptions(readOptions(owner, options, schedulerSpec));
}
