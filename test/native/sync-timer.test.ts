// The timer of durability `interval` (test/native/sync_timer_probe.cc).

import test from 'ava';

import { hasCompiler, runProbe } from '../helpers/native-probe.js';

(hasCompiler ? test : test.skip)('the timer of syncs goes by a clock that nobody sets, can be hurried, and stops at once', (t) => {
  t.deepEqual(runProbe('sync_timer_probe'), ['is called again and again', 'is hurried', 'stops']);
});
