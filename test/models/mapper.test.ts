// The model of mapper, slots, earmarks and fences (mapper.pml), checked by spin for every interleaving; and mutants of it, each of
// which must be found wrong, so that the model is known to look.
// Slow: it checks a model of the mapper, and seven that are wrong.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

const model = path.resolve(__dirname, '..', '..', 'test', 'models', 'mapper.pml');
const mutants = [
  'CANCEL_DOES_NOT_WAIT', 'QUIESCE_DOES_NOT_WAIT', 'REQUEUES_AFTER_CANCEL', 'UNMAP_IGNORES_FENCE', 'ALIAS_WITHOUT_REFERENCE',
];

const lacking = [['spin', '-V'], ['cc', '--version']].filter(([command, option]) => spawnSync(command!, [option!]).status !== 0);
const isThere = lacking.length === 0;
const declare = isThere ? test.serial : test.serial.skip;
const suffix = isThere ? '' : ` (no ${lacking.map(([command]) => command).join(', ')})`;

/** Everything that the checker says of the model with these macros. */
function check(macros: readonly string[]): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-model-'));
  const run = (command: string, options: readonly string[]): string => {
    const { stdout, stderr, status } = spawnSync(command, options, { cwd: folder, encoding: 'utf8', timeout: 30 * 60_000 });
    if (status !== 0) throw new Error(`${command} ${options.join(' ')}: ${stdout}${stderr}`);
    return stdout;
  };
  try {
    run('spin', [...macros.map((macro) => `-D${macro}`), '-a', model]);
    run('cc', ['-O2', '-DSAFETY', '-DCOLLAPSE', '-w', '-o', 'pan', 'pan.c']);
    return run('./pan', ['-m1000000']);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

declare(`the mapper and its owner never deadlock, lose a page or unmap under queued work${suffix}`, (t) => {
  const report = check([]);
  t.regex(report, /errors: 0/);
  t.notRegex(report, /max search depth too small|unreached in proctype \w+\n(?!.*end)/);
  t.log(/\d+ states, stored/.exec(report)?.[0]);
});

for (const mutant of mutants) {
  declare(`the model finds what is wrong with ${mutant}${suffix}`, (t) => {
    t.regex(check([mutant]), /errors: 1/);
  });
}
