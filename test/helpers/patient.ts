// Time limits for tests: that a busy machine answers late says nothing of what is tested.

import type { ExecutionContext } from 'ava';

import type { KvCache } from 'virtual-kv';

import { processClock, type LoadClock } from '#internal/tiers/load-clock.js';

/** Of a Redis tier. */
export const patient = { connectTimeoutMs: 60_000, findTimeoutMs: 60_000, getTimeoutMs: 60_000, putTimeoutMs: 60_000 } as const;

/** Of a promotion: with it a request waits for a tier of unknown speed as long as it takes, and not a quarter of a second. */
export const deadlineMs = 600_000;

/** It stands: by it tiers take no time, and requests, and `close`, wait for them as long as it takes. */
export const standingClock: LoadClock = { now: () => 0, after: () => () => { /* it never rings */ } };

/** A cache measures loads, and waits for them, by this clock. */
export function timeLoadsBy(cache: KvCache, clock: LoadClock): void {
  (cache.prefixes.tiers as unknown as { timeLoadsBy(clock: LoadClock): void }).timeLoadsBy(clock);
}

/** So do, until the test is over, caches that it cannot reach, as those of a command, and each while its tiers open. */
export function replaceProcessClock(t: ExecutionContext, clock = standingClock): void {
  const before = { ...processClock };
  Object.assign(processClock, clock);
  t.teardown(() => { Object.assign(processClock, before); });
}
