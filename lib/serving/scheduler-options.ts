// The options that the schedulers share: meaning, unit, range and default of each, and how they are read.

import { createError } from '../base/errors.js';
import { KvCache } from '../cache/kv-cache.js';
import {
  callable, instanceOf, integer, number, optional, policy, readOptions, streamField, withDefault, withoutRevoked, type Field,
} from '../base/options.js';
import { byArrival, byTenantShare, type RequestOrder } from './request-order.js';
import { checkedClock, systemTimer, type Clock, type Timer } from './clock.js';
import type { Engine } from './engine.js';

/** Options that all schedulers have. */
export interface SchedulerOptions {
  /** Whose slots it leases. Others may use it too: who fits but for what they hold waits until they release it. */
  readonly cache: KvCache;
  /** What computes the passes. */
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
  /**
   * Ms after which a pass of the engine is given up: its requests end with KV_ENGINE_STALLED, and so do those whose pass would be
   * next, until the engine has answered. Their slots stay out of use until then. More than 0; default: never.
   */
  readonly passTimeoutMs?: number | undefined;
  /** Whose turn is next, and who gives way. Default `byArrival()`. */
  readonly order?: RequestOrder | undefined;
  /** The engine's stream, on which its passes are queued: copies within the cache that must wait for work run there. Default: the cache's. */
  readonly stream?: bigint | undefined;
  /** The clock of deadlines and timings, in ms. Default `performance.now`. */
  readonly now?: (() => number) | undefined;
  /** How an alarm is set in that clock: `wake` is to be called once in so many ms; it returns what cancels that. Default `setTimeout`. */
  readonly timer?: ((wake: () => void, delayMs: number) => () => void) | undefined;
}

const vocabulary = integer({ min: 1 });
const engineFunction = callable<Engine['prefill']>();

/** Names the member that it lacks. */
const engineField: Field<Engine> = (value, place) => {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', ...place, expected: 'an engine: `vocabularyTokens`, `prefill` and `decode`', received: value,
    });
  }
  const { prefill, decode, vocabularyTokens } = withoutRevoked(value, place, () => {
    const { prefill, decode, vocabularyTokens } = value as Partial<Engine>;
    return { prefill, decode, vocabularyTokens };
  });
  vocabulary(vocabularyTokens, { ...place, option: `${place.option}.vocabularyTokens` });
  engineFunction(prefill, { ...place, option: `${place.option}.prefill` });
  engineFunction(decode, { ...place, option: `${place.option}.decode` });
  return value as Engine;
};

const timeoutField: Field<number> = (value, place) => (value === Infinity ? value : number(1e-3)(value, place));

const pendingField: Field<number> = (value, place) => (value === Infinity ? value : integer({ min: 1 })(value, place));

/** Fields of the shared options, for the spec of a scheduler. */
export const schedulerSpec = {
  cache: instanceOf(KvCache, 'a KvCache'),
  engine: engineField,
  maxBatch: optional(integer({ min: 1 })),
  prefillTokensPerStep: withDefault(integer({ min: 1 }), 2_048),
  watermarkRows: optional(integer()),
  minPendingTokens: withDefault(pendingField, 64),
  order: withDefault(policy<RequestOrder>({ byArrival, byTenantShare }), byArrival()),
  stream: optional(streamField),
  passTimeoutMs: withDefault(timeoutField, Infinity),
  now: withDefault(callable<() => number>(), () => performance.now()),
  timer: withDefault(callable<Timer>(), systemTimer),
};

type Given = ReturnType<typeof readOptions<typeof schedulerSpec>>;

export type ReadSchedulerOptions = Omit<Given, 'now' | 'timer'> & {
  readonly maxBatch: number;
  readonly watermarkRows: number;
  /** Of the engine, read once. */
  readonly vocabularyTokens: number;
  readonly clock: Clock;
};

/** Defaults that follow from the cache, and functions whose answers are checked. */
export function completeOptions({ now, timer, order, ...given }: Given): ReadSchedulerOptions {
  const { layout, pool } = given.cache;
  const { vocabularyTokens } = given.engine;
  vocabulary(vocabularyTokens, { owner: 'SchedulerOptions', option: 'engine.vocabularyTokens' }); // a getter may answer anew
  const budgetRows = Math.floor(pool.counts().budgetPages / layout.pagesPerRow);
  return {
    ...given, order: checkedOrder(order), clock: checkedClock(now, timer), vocabularyTokens,
    maxBatch: Math.min(given.maxBatch ?? layout.slots, layout.slots),
    watermarkRows: given.watermarkRows ?? Math.max(1, Math.floor(budgetRows / 100)),
  };
}

/** An order that says what is wrong where it answers with no number, and puts none of two beside each other. */
function checkedOrder(order: RequestOrder): RequestOrder {
  return (a, b) => {
    const sign = order(a, b);
    if (typeof sign === 'number' && !Number.isNaN(sign)) return sign || a.arrival - b.arrival;
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner: 'SchedulerOptions', option: 'order', expected: 'a function that returns a number', received: sign,
    });
  };
}

/** Checked options with defaults. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readSchedulerOptions(owner: string, options: SchedulerOptions): ReadSchedulerOptions {
  return completeOptions(readOptions(owner, options, schedulerSpec));
}
