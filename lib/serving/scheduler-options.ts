// SchedulerOptions: the options that the schedulers share: meaning, unit, range and default of each, and how they are
// read. What a user's functions return or throw (clock, order, sampler) is checked here at each call.

import { createError, isKvError } from '../base/errors.js';
import { describe } from '../base/phrases.js';
import { KvCache } from '../kv-cache/kv-cache.js';
import { after } from '../device/wait.js';
import {
  arrayOf, callable, instanceOf, integer, number, oneOf, optional, policy, readOptions, streamField, withDefault,
  type Field,
} from '../base/options.js';
import type { SideTensorInfo } from '../side/side-tensors.js';
import { type Engine, type RequestPart, requestParts } from './engine.js';
import { byArrival, byTenantShare, type RequestOrder } from './request-order.js';

/** Options that all schedulers have. */
export interface SchedulerOptions {
  /**
   * The cache whose slots it leases. It may have other users: requests wait while those hold the memory that they need.
   */
  readonly cache: KvCache;
  /** What computes the passes. */
  readonly engine: Engine;
  /** Sequences in a step at most, 1 or more. Default: the slots of the cache. */
  readonly maxBatch?: number | undefined;
  /**
   * Prompt tokens in a step at most, over all sequences, 1 or more. More compute prompts faster, fewer delay running
   * answers less. Default 128 online on host, where 256 were 8 % faster and 512 13 %, and delayed running answers two
   * and four times as long (`npm run bench -- prefill-step`); 2,048 elsewhere, which is not measured, and for lists,
   * whose requests share no step with an interactive one.
   */
  readonly prefillTokensPerStep?: number | undefined;
  /**
   * Share of `prefillTokensPerStep` that goes to the prompts with the fewest tokens left, 0 … 0.75, rounded down to
   * tokens; the rest goes to the prompts in `order`. So a short prompt waits for no long one that is as urgent, and the
   * long one always goes on. Default 0.25 online, 0 for lists of requests.
   */
  readonly shortPromptShare?: number | undefined;
  /**
   * Rows that a new request must leave free for running answers to grow into, 0 or more. Default: 1 % of the budget, at
   * least 1.
   */
  readonly watermarkRows?: number | undefined;
  /**
   * Tokens, 1 or more. A request waits while a running one computes the start of its prompt, if that saves it at least
   * this many. Infinity: requests do not wait for each other. Default 64.
   */
  readonly minPendingTokens?: number | undefined;
  /**
   * Ms after which a pass of the engine is given up: its requests end with KV_ENGINE_STALLED, and so do those whose
   * pass would be next, until the engine has answered. Their slots stay out of use until then. More than 0; default:
   * never.
   */
  readonly passTimeoutMs?: number | undefined;
  /** Which request is admitted next, and which running one is preempted when memory runs out. Default `byArrival()`. */
  readonly order?: RequestOrder | undefined;
  /**
   * The engine's stream, on which its passes are queued: copies within the cache that must wait for work run there.
   * Default: the cache's.
   */
  readonly stream?: bigint | undefined;
  /** The clock of deadlines and timings, in ms. Default `performance.now`. */
  readonly now?: (() => number) | undefined;
  /**
   * Sets an alarm in that clock: calls `wake` once in about `delayMs` ms, and returns a function that cancels it.
   * Default `setTimeout`.
   */
  readonly timer?: ((wake: () => void, delayMs: number) => () => void) | undefined;
}

type Timer = NonNullable<SchedulerOptions['timer']>;

/** The time of a scheduler's deadlines and timings, and alarms in it. */
export interface Clock {
  /** Throws KV_INVALID_OPTION, and what the option's function throws. */
  now(): number;
  /** Throws as `now`. */
  readonly after: Timer;
}

/** Computes prompts at 88 % of the best speed that was measured; a running answer waits for each such step. */
const prefillTokensOnHost = 128;
const prefillTokensElsewhere = 2_048;
const defaultShortShare = 0.25;

const vocabulary = integer({ min: 1 });
const engineFunction = callable<Engine['prefill']>();
const engineReads = withDefault(arrayOf(oneOf(requestParts)), requestParts);

/** Reads an engine; the error names the member that it lacks. */
const engineField: Field<Engine> = (value, place) => {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', ...place, expected: 'an engine: `vocabularyTokens`, `prefill` and `decode`', received: value,
    });
  }
  const { prefill, decode, vocabularyTokens } = value as Partial<Engine>;
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
  prefillTokensPerStep: optional(integer({ min: 1 })),
  shortPromptShare: optional(number(0, 0.75)),
  watermarkRows: optional(integer()),
  minPendingTokens: withDefault(pendingField, 64),
  order: withDefault(policy<RequestOrder>({ byArrival, byTenantShare }), byArrival()),
  stream: optional(streamField),
  passTimeoutMs: withDefault(timeoutField, Infinity),
  now: withDefault(callable<() => number>(), () => performance.now()),
  timer: withDefault(callable<Timer>(), after),
};

type Given = ReturnType<typeof readOptions<typeof schedulerSpec>>;

/** Prompt tokens of a step. */
export interface PrefillBudget {
  /** At most, unless an indivisible item has more. */
  readonly tokens: number;
  /** Of these, the ones that go first to the prompts with the fewest tokens left. */
  readonly shortTokens: number;
  /** Most of one prompt: so many layers with a window hold at once. */
  readonly promptTokens: number;
}

export type ReadSchedulerOptions = Omit<Given, 'now' | 'timer'> & {
  readonly maxBatch: number;
  readonly prefill: PrefillBudget;
  readonly watermarkRows: number;
  /** Of the engine, read once. */
  readonly vocabularyTokens: number;
  /** Of the cache. */
  readonly sideTensors: readonly SideTensorInfo[];
  /** Of the engine. */
  readonly canSelect: boolean;
  /** Of the engine. */
  readonly reads: readonly RequestPart[];
  /** Of the cache. */
  readonly keepsPrefixes: boolean;
  readonly clock: Clock;
};

/**
 * Defaults that follow from the cache, and functions whose answers are checked. `isOnline`: clients wait for single
 * requests.
 */
export function completeOptions({ now, timer, order, ...given }: Given, isOnline: boolean): ReadSchedulerOptions {
  const { layout, maxSequences, pool, lifetime, sideTensors, prefixes, driver } = given.cache;
  lifetime.checkBeginning('schedule requests on it');
  const { vocabularyTokens } = given.engine;
  // a getter may answer anew
  vocabulary(vocabularyTokens, { owner: 'SchedulerOptions', option: 'engine.vocabularyTokens' });
  const budgetRows = Math.floor(pool.counts().budgetPages / layout.pagesPerRow);
  const tokens = given.prefillTokensPerStep
    ?? (isOnline && driver.info.kernels === 'cpu' ? prefillTokensOnHost : prefillTokensElsewhere);
  return {
    ...given, order: checkedOrder(order), clock: checkedClock(now, timer), vocabularyTokens, sideTensors,
    canSelect: given.engine.canSelect === true,
    reads: engineReads(given.engine.reads, { owner: 'SchedulerOptions', option: 'engine.reads' }),
    keepsPrefixes: prefixes.isOn,
    maxBatch: Math.min(given.maxBatch ?? maxSequences, maxSequences),
    prefill: {
      tokens, shortTokens: Math.floor(tokens * (given.shortPromptShare ?? (isOnline ? defaultShortShare : 0))),
      promptTokens: given.cache.passTokens,
    },
    watermarkRows: given.watermarkRows ?? Math.max(1, Math.floor(budgetRows / 100)),
  };
}

/** A clock of the options `now` and `timer`, whose results are checked. */
export function checkedClock(now: () => number, timer: Timer): Clock {
  return {
    now: () => {
      const ms = now();
      if (Number.isFinite(ms)) return ms;
      throw wrongClock('now', 'a function that returns a number of milliseconds', ms);
    },
    after: (wake, delayMs) => {
      const cancel = timer(wake, Math.max(0, delayMs));
      if (typeof cancel === 'function') return cancel;
      throw wrongClock('timer', 'a function that returns what cancels the timer', cancel);
    },
  };
}

function wrongClock(option: string, expected: string, received: unknown): Error {
  return createError('KV_INVALID_OPTION', { reason: 'type', owner: 'SchedulerOptions', option, expected, received });
}

/** An order that throws where it returns no number, and holds no two requests for equal. */
function checkedOrder(order: RequestOrder): RequestOrder {
  return (a, b) => {
    let sign: unknown;
    try {
      sign = order(a, b);
    } catch (error) {
      throw asError(error, 'order', {
        operation: `comparing the requests ${a.arrival} and ${b.arrival}`, arrivals: [a.arrival, b.arrival],
      });
    }
    if (typeof sign === 'number' && !Number.isNaN(sign)) return sign || a.arrival - b.arrival;
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner: 'SchedulerOptions', option: 'order', expected: 'a function that returns a number',
      received: sign,
    });
  };
}

/**
 * What the function of the option `by` has thrown, as an error that can be handed on: `throw undefined` would read as
 * "no error". `asked` says what was asked of the function; without it the error is not known to be its.
 */
export function asError(
  thrown: unknown, by: 'sampler' | 'tokenizer' | 'releaseInput' | 'order',
  asked?: { readonly operation: string; readonly arrivals: readonly number[] },
): Error {
  if (thrown !== undefined && thrown !== null) {
    if (asked === undefined || isKvError(thrown)) return thrown as Error;
    return createError('KV_CALLBACK_FAILED', { option: by, ...asked }, { cause: thrown });
  }
  return createError('KV_INVALID_OPTION', {
    reason: 'type', owner: by === 'order' ? 'SchedulerOptions' : 'GenerationRequest', option: by,
    expected: 'a function that throws nothing but errors', received: describe(thrown),
  });
}

/** Checked options with defaults, for lists of requests. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readSchedulerOptions(owner: string, options: SchedulerOptions): ReadSchedulerOptions {
  return completeOptions(readOptions(owner, options, schedulerSpec), false);
}
