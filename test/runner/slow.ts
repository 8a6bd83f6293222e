// How a test declares that it is dear; apart from tier.ts, which child processes of tests load, too.

import test from 'ava';

import { declareSlow } from './measure.js';
import { tier } from './tier.js';

/**
 * Declares tests that take more than 0.3 CPU-s, and `why`: `slow('sweeps all calls')('title', (t) => …)`. They run in `all` and
 * `release`, and are left out of `quick`.
 */
export function slow(why: string): typeof test {
  return declareSlow(test, why, tier === 'quick');
}

/** The same for tests that `quick` needs nevertheless, such as the only process of a kind. */
export function costly(why: string): typeof test {
  return declareSlow(test, why, false);
}
