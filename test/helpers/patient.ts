// Time limits for tests: that a busy machine answers late says nothing of what is tested.

import type { ExecutionContext } from 'ava';

import type { KvCache } from 'virtual-kv';

import { processClock, type LoadClock } from '#internal/tiers/load-clock.js';

/** Of a Redis tier. */
export const patient = { connectTimeoutMs: 60_000, findTimeoutMs: 60_000, getTimeoutMs: 60_000, putTimeoutMs: 60_000 } as const;

/** Of a promotion: with it a request waits for a tier of unknown speed as long as it takes, and not a quarter of a second. */
export const deadlineMs = 600_000;

/** A clock that stands: a load takes 0 ms by it, and a request, or `close`, waits for a tier without limit. */
export const standingClock: LoadClock = { now: () => 0, after: () => () => { /* it never rings */ } };

/** From now on the cache measures its loads, and ends its waits for tiers, by this clock. */
export function timeLoadsBy(cache: KvCache, clock: LoadClock): void {
  (cache.prefixes.tiers as unknown as { timeLoadsBy(clock: LoadClock): void }).timeLoadsBy(clock);
}

/**
 * Replaces the process's clock until the test is over: for a cache that the test does not open itself, such as a
 * command's, and for the time in which a cache opens its tiers.
 */
export function replaceProcessClock(t: ExecutionContext, clock = standingClock): void {
  const before = { ...processClock };
  Object.assign(processClock, clock);
  t.teardown(() => { Object.assign(processClock, before); });
}
