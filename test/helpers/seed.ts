// The seed of a random test: a new one each run, or the one in VKV_TEST_SEED. Tests put it in their title, so that a failure says
// how to repeat it.

import { mix32 } from '#internal/base/random.js';

/** Different tests of one run get different seeds; one in VKV_TEST_SEED is taken as it is. */
export function seedOf(test: string): number {
  const given = process.env['VKV_TEST_SEED'];
  if (given !== undefined) return Number(given);
  const name = [...test].reduce((hash, character) => mix32(hash, character.charCodeAt(0)), 0);
  return mix32(Date.now() >>> 0, name);
}
