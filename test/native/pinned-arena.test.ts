// What a PinnedArena asks of a device's driver when pages are given back (test/native/arena_probe.cc).

import test from 'ava';

import { hasCompiler, runProbe } from '../helpers/native-probe.js';
import { costly } from '../runner/slow.js';

(hasCompiler ? costly('runs a native program') : test.skip)('a copy that is queued while others are waited for is waited for before its page is given back', (t) => {
  t.deepEqual(runProbe('arena_probe'), [
    'page 0 is given back while a copy to page 2 is queued', 'waited', 'unregistered',
    'page 2 is given back', 'waited', 'unregistered',
    'closed, with nothing queued since', 'waited', 'waited', 'unregistered',
  ]);
});
