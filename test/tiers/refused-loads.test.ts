// LoadEstimate: which loads of a tier that is estimated too slow are tried all the same.

import test from 'ava';

import { LoadEstimate } from '#internal/tiers/load-estimate.js';

/** Loads refused before one is tried; at most 200 are offered. */
function refusalsOf(estimate: LoadEstimate): number {
  let refused = 0;
  while (refused < 200 && estimate.refuses(1)) refused += 1;
  return refused;
}

test('one load in 64 is tried of a tier that is too slow, also while it owes one answer, and none while it owes more', (t) => {
  const estimate = new LoadEstimate();
  estimate.measured({ bytes: 1, milliseconds: 1000 });
  t.is(refusalsOf(estimate), 63);
  const over = estimate.awaited({ milliseconds: 5 });
  t.is(refusalsOf(estimate), 63);
  const overToo = estimate.awaited({ milliseconds: 5 });
  t.is(refusalsOf(estimate), 200);
  overToo();
  t.is(refusalsOf(estimate), 0, 'it is due');
  over();
  t.is(refusalsOf(estimate), 63);
});
