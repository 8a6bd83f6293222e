// How much of the tests this run wants. `quick` is `npm test`, which ends within two minutes; `all` is everything at full length;
// `release` is `all` with longer random worlds and whole tables, for hours. Without the runner (scripts/test.mjs) it is `all`.
//
// A test that takes more than 0.3 CPU-s declares itself `slow`, or does a part of its work in `quick`: `scale` for random worlds,
// `isTried` for sweeps and tables, so that over days all is seen.

import { mix32 } from '#internal/base/random.js';

export type Tier = 'quick' | 'all' | 'release';

export const tier = (process.env['VKV_TEST_TIER'] ?? 'all') as Tier;

/** The length of random worlds, of 1: VKV_TEST_SCALE, which is 0.1 in `quick`. */
export const scale = Number(process.env['VKV_TEST_SCALE'] || 1);

/** So many steps of a random world at this run's scale, but at least the `floor` below which it finds nothing. */
export function scaled(count: number, floor = 1): number {
  return Math.max(Math.min(count, floor), Math.ceil(count * scale));
}

/** Whether this run takes samples of sweeps and tables. VKV_TEST_SAMPLE, which `npm test` prints and draws anew each time, repeats them. */
export const isSampling = process.env['VKV_TEST_SAMPLE'] !== undefined;

/** Says which sample this run takes; 0 where it takes none. */
export const sampleSeed = Number(process.env['VKV_TEST_SAMPLE'] ?? 0);

/** All cases of a table; where samples are taken one of `every` of them, others with each number, and at least one. */
export function sampled<T>(cases: readonly T[], every: number): readonly T[] {
  const step = Math.min(every, cases.length);
  return isSampling ? cases.filter((_, at) => at % step === sampleSeed % step) : cases;
}

/** Whether this run tries the case of a sweep or table: always, or by chance in one of `every` runs that take samples. */
export function isTried(name: string, every: number): boolean {
  return !isSampling || [...name].reduce((mixed, character) => mix32(mixed, character.charCodeAt(0)), sampleSeed) % every === 0;
}
