// Rules that every source keeps and no test of a behaviour reaches everywhere: waits, ages and intervals go by a clock
// that nobody sets, and all threads are made in one place, which blocks the right signals.

import { readdirSync, readFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

const root = path.resolve(__dirname, '..', '..');

/** Lines of code with a match, by file from the root; comments do not count. */
function matches(folders: readonly string[], name: RegExp, pattern: RegExp): Record<string, number> {
  const found: Record<string, number> = {};
  for (const folder of folders) {
    for (const entry of readdirSync(path.join(root, folder), { recursive: true, encoding: 'utf8' })) {
      if (!name.test(entry)) continue;
      const file = `${folder}/${entry}`;
      const lines = readFileSync(path.join(root, file), 'utf8').split('\n').map((line) => line.replace(/^\s*(\/\/|\*|\/\*).*| \/\/ .*/, ''));
      const count = lines.filter((line) => pattern.test(line)).length;
      if (count > 0) found[file] = count;
    }
  }
  return found;
}

test('the addon asks for the time of day only to compare it with the times of files', (t) => {
  const wall = /system_clock|CLOCK_REALTIME|\bgettimeofday\b|\btime\(|high_resolution_clock/;
  t.deepEqual(matches(['native', 'kernels'], /\.(cc|h|cu)$/, wall), { 'native/host/mapped_file.cc': 1 });
});

test('nothing in the addon waits for a condition with a time limit, which older C libraries count by the time of day', (t) => {
  const timed = /\.wait_(for|until)\(|cond_timedwait|sem_timedwait|mutex_timedlock|try_lock_(for|until)/;
  t.deepEqual(matches(['native', 'kernels'], /\.(cc|h|cu)$/, timed), {});
});

test('the package asks for the time of day only for dates that others read', (t) => {
  t.deepEqual(matches(['lib'], /\.ts$/, /Date\.now|new Date\(\)/), {
    'lib/server/model-server.ts': 1, // `created` of a model
    'lib/server/submission.ts': 1, // `created` of a completion
    'lib/tiers/contract-store.ts': 1, // a name that no run had before
  });
});

test('every thread of the addon is a QuietThread', (t) => {
  const makes = /pthread_create\(|std::j?thread\b(?!::)|std::async|\bthrd_create\(|\bclone\(/;
  t.deepEqual(matches(['native', 'kernels'], /\.(cc|h|cu)$/, makes), { 'native/quiet_thread.h': 1 });
});
