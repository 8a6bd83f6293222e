// The seed of a random test: the same in every run, so that a change is judged by what it changed; a new one with
// VKV_TEST_SEED=fresh, to search; or the number in VKV_TEST_SEED, to repeat what such a search found. Tests put it in their title.

import { mix32 } from '#internal/base/random.js';

/** Different tests of one run get different seeds; a number in VKV_TEST_SEED is taken as it is. */
export function seedOf(test: string): number {
  const wish = process.env['VKV_TEST_SEED'];
  if (wish !== undefined && wish !== 'fresh') return Number(wish);
  const name = [...test].reduce((hash, character) => mix32(hash, character.charCodeAt(0)), 0);
  return mix32(wish === 'fresh' ? Date.now() >>> 0 : 0, name);
}
