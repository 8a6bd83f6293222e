// Fails the n-th call of each kind for every n, each in a cache of its own, until a scenario no longer makes so many.

import type { ExecutionContext } from 'ava';

import { isKvError } from 'virtual-kv';
import type { MockCall } from 'virtual-kv/testing';

import { isSampling, isTried } from '../runner/tier.js';
import { CacheBench, hostCalls, type BenchOptions, type DriverName } from './cache.js';

/** Kinds of calls that host makes once it is opened. */
export const hostKinds = hostCalls.filter((call) => call !== 'ftruncate');

export interface FaultSweep {
  readonly title: string;
  readonly on: DriverName;
  readonly options: BenchOptions;
  /** Calls of the layer below, and what each of them answers. */
  readonly kinds: readonly string[];
  readonly results: readonly number[];
  /** Kinds of which the scenario makes some call; default all, none: it need not. */
  readonly needed?: readonly string[];
}

/** One call that fails. */
export interface Fault {
  readonly kind: string;
  readonly nth: number;
  readonly result: number;
}

/** Lets a scenario do its work in a new cache with one fault; says whether it came to that call. */
type FailOne = (bench: CacheBench, fault: Fault) => boolean;

/** Calls `failOne` with each call of each kind, for each result. `npm test` tries a tenth of all kinds and results of each scenario. */
export function failEach(t: ExecutionContext, sweep: FaultSweep, failOne: FailOne): void {
  const { kinds, results, needed = kinds } = sweep;
  const reached: Record<string, number> = {};
  for (const kind of kinds) for (const result of results) reached[kind] = Math.max(reached[kind] ?? 0, failKind(t, sweep, { kind, result }, failOne));
  t.log(JSON.stringify(Object.fromEntries(Object.entries(reached).filter(([, times]) => times > 0))));
  t.true(isSampling || needed.length === 0 || needed.some((kind) => reached[kind]! > 0), 'the scenario made some call');
}

/**
 * Fails call 1, 2, 3 … of one kind; returns how many the scenario came to. The mock tells when there was no such call; on host some failures
 * are got over unseen, so it goes on for a while.
 */
function failKind(t: ExecutionContext, { title, on, options }: FaultSweep, { kind, result }: Omit<Fault, 'nth'>, failOne: FailOne): number {
  let reached = 0;
  if (!isTried(`${title} ${on} ${kind} ${result}`, 10)) return reached;
  for (let nth = 1; nth < 300; nth += 1) {
    const bench = new CacheBench(t, { ...options, on });
    try {
      if (failOne(bench, { kind, nth, result })) reached = nth;
      else if (on === 'mock' || nth > reached + 3) return reached;
    } catch (error) {
      t.log(`${title}: ${kind} number ${nth} answered ${result}`);
      bench.abandon();
      throw error;
    }
  }
  throw new Error(`${title} makes too many calls of ${kind}`);
}

/**
 * Calls `act` while the fault is scripted; what it throws must be the driver's failure, or a shortage. Says whether the fault was come to,
 * and what came of it.
 */
export function failIn(
  bench: CacheBench, { kind, nth, result }: Fault, act: () => void,
): { readonly error: unknown; readonly isReached: boolean; readonly what: string } {
  const { t, cache, device } = bench;
  const { lateErrors } = cache.metrics;
  device?.resetCallCounts();
  bench.fail(kind, nth, result);
  let error: unknown;
  try {
    act();
  } catch (thrown) {
    error = thrown;
  }
  const isReached = device !== undefined ? device.callCounts()[kind as MockCall] >= nth
    : error !== undefined || (!cache.isClosed && cache.metrics.lateErrors > lateErrors);
  bench.forgiveAll();
  const what = `${kind} number ${nth}: ${String(error)}`;
  if (error !== undefined) t.true(isKvError(error) && /^KV_(DRIVER_CALL_FAILED|OUT_OF_|SLOT_BUSY)/.test(error.code), what);
  return { error, isReached, what };
}
