// The CUDA kernels' own sources, run on emulated threads (test/native/cuda_emulation.h): against their references, and what their accesses
// to shared memory cost.

import test from 'ava';

import { seedOf } from '../helpers/seed.js';
import { hasCompiler, isGcc, runProbe } from '../helpers/native-probe.js';
import { scale, tier } from '../runner/tier.js';
import { slow } from '../runner/slow.js';

const run = hasCompiler ? test : test.skip;
const seed = seedOf('kernel sources');

(hasCompiler ? slow('runs every thread of every kernel') : test.skip)(`every CUDA kernel does what its reference does, thread by thread (seed ${seed})`, (t) => {
  const rounds = Math.max(2, Math.round((tier === 'release' ? 15 : 6) * scale));
  const lines = runProbe('kernels_probe', [String(seed), String(rounds)]);
  t.true(lines.length > 3);
  for (const line of lines) t.regex(line, /^vkv_\w+ \d+ ok$/);
});

run(`so does every CUDA kernel of the dense arithmetic, and a row is the same in any company (seed ${seed})`, (t) => {
  const rounds = Math.max(2, Math.round((tier === 'release' ? 30 : 12) * scale));
  const lines = runProbe('dense_probe', [String(seed), String(rounds)]);
  t.true(lines.length > 8);
  for (const line of lines) t.regex(line, /^vkv_\w+ \d+ ok$/);
});

(isGcc ? slow('runs every access of a warp') : test.skip)('no access of a warp to shared memory waits for a bank in prefill (needs GCC)', (t) => {
  const lines = runProbe('banks_probe');
  t.is(lines.length, 9);
  for (const line of lines) t.regex(line, /^vkv_prefill_\w+ \d+ [1-9]\d{3,} 0$/, 'kernel, dim, accesses, turns of the worst beyond the fewest');
});
