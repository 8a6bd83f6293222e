// Checksums of what tiers store: every way that this processor has agrees with the table, wherever a range begins and ends, and copies no
// byte too many.

import test from 'ava';

import { hasCompiler, runProbe } from '../helpers/native-probe.js';
import { seedOf } from '../helpers/seed.js';

const seed = seedOf('crc32c');
const withCompiler = hasCompiler ? test : test.skip;

withCompiler(`random ranges have the table's sums, copied or not (seed ${seed})`, (t) => {
  const [ways, wrong] = runProbe('crc32c_probe', [String(seed), '200']);
  t.regex(ways!, /^ways: (avx512|avx2|sse4\.2|armv8|table)/);
  t.log(ways);
  t.is(wrong, 'wrong: 0');
});
