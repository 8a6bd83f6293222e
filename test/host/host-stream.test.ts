// The thread of a host driver's stream, in a C++ program that holds it where it wants.

import test from 'ava';

import { hasCompiler, runProbe } from '../helpers/native-probe.js';
import { costly } from '../runner/slow.js';

(hasCompiler ? costly('runs a native program') : test.skip)('a stream runs its commands in order, tells which failed, and drops, waits and ends as asked', (t) => {
  t.deepEqual(runProbe('host_stream_probe', ['20000']), [
    'order: 20000 commands, 0 wrong',
    'failure, ran: 1 2 3 5 6', // 4 was behind the failure, 5 is always run
    'failure, told: -1 2 -1',
    'cancel: done before 0, after 1',
    'cancel, ran: 2 3',
    'ends, ran:',
    'waiters: 0 came early',
  ]);
});
