// What the compiler and the linker were told to protect the addon against, as `readelf` sees it.
// Alone in its process: it looks at what the process has loaded.

import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

const addon = process.env['VKV_ADDON'] ?? path.resolve(__dirname, '..', '..', 'build', 'Release', 'virtual_kv.node');
const hasReadelf = spawnSync('readelf', ['--version']).status === 0;
const readelfTest = hasReadelf ? test : test.skip; // it comes with binutils
/** Sanitizers have checks of their own instead. */
const ownTest = hasReadelf && process.env['VKV_TEST_PRELOAD'] === undefined ? test : test.skip;

function readelf(...options: readonly string[]): string {
  return execFileSync('readelf', ['--wide', ...options, addon], { encoding: 'utf8' });
}

readelfTest('the loader\'s pointers in the addon are read-only: full RELRO, bound when it is loaded', (t) => {
  t.regex(readelf('--program-headers'), /^ *GNU_RELRO /m);
  t.regex(readelf('--dynamic'), /\(FLAGS(_1)?\).*\b(BIND_)?NOW\b/);
});

readelfTest('no memory of the addon can be both written and executed', (t) => {
  const segments = [...readelf('--program-headers').matchAll(/^ *(LOAD|GNU_STACK) .* 0x\w+ ([R ][W ][E ]) +0x\w+$/gm)].map(([, name, flags]) => `${name} ${flags}`);
  t.true(segments.some((segment) => segment.startsWith('GNU_STACK')));
  t.deepEqual(segments.filter((segment) => /W.*E/.test(segment.split(' ')[1] ?? '')), []);
});

ownTest('the addon\'s functions check their stack', (t) => {
  t.true(readelf('--dyn-syms').includes('__stack_chk_fail'));
});

// _FORTIFY_SOURCE leaves no trace where the compiler can prove every bound, as it can here today.
for (const file of ['CMakeLists.txt', 'binding.gyp']) {
  test(`${file} asks for every protection`, (t) => {
    const text = readFileSync(path.resolve(__dirname, '..', '..', file), 'utf8');
    for (const flag of ['-fstack-protector-strong', '-D_FORTIFY_SOURCE=2', '-Wl,-z,relro,-z,now,-z,noexecstack']) t.true(text.includes(flag), flag);
  });
}
