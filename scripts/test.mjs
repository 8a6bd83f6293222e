// `npm test`: installs and builds what is missing, runs AVA, and ends with a line `N passed, N failed` for machines to read.
// Arguments go to AVA: `npm test -- build-test/cache`. The exit code is AVA's. VKV_TEST_PACKAGE=1: only the tests of the
// packed package (ava.config.mjs).

import { spawn } from 'node:child_process';
import path from 'node:path';

import { prepareExamplePackages, preparePackages, prepareTests, root } from './prepare.mjs';

const given = process.argv.slice(2);
prepareTests();
// 113 MB to download, so only when its tests are named; otherwise they are skipped, by name, where it is not installed.
if (given.some((argument) => argument.includes('onnxruntime'))) prepareExamplePackages('onnxruntime');
if (given.some((argument) => argument.includes('real-tokenizers'))) preparePackages(path.join('test', 'llama', 'tokenizers'));

// A module that AVA's own process loads first (scripts/test-arm64.mjs).
const preload = process.env.VKV_TEST_REQUIRE === undefined ? [] : ['--require', process.env.VKV_TEST_REQUIRE];
const child = spawn(process.execPath, [...preload, path.join(root, 'node_modules', 'ava', 'entrypoints', 'cli.mjs'), ...given], {
  cwd: root,
  stdio: ['inherit', 'pipe', 'inherit'],
  env: { ...(process.stdout.isTTY ? { FORCE_COLOR: '1' } : {}), ...process.env },
});

// AVA gets it too, and says which tests are pending.
process.on('SIGINT', () => { /* until AVA has ended */ });

// AVA's own limit rings once: after a test that asked for more time than it, a test that hangs would hang for ever.
const longestSilenceMs = 15 * 60_000;
const silence = setTimeout(() => {
  if (process.env.VKV_TEST_TIMEOUT !== undefined) return; // that long is asked for
  console.log(`virtual-kv: no test has ended for ${longestSilenceMs / 60_000} minutes; interrupting the run.`);
  child.kill('SIGINT');
}, longestSilenceMs);

let output = '';
child.stdout.setEncoding('utf8').on('data', (text) => {
  silence.refresh();
  process.stdout.write(text);
  output += text;
});
child.on('close', (code) => {
  clearTimeout(silence);
  const { passed, failed, skipped } = readSummary(output);
  const exitCode = code ?? 1;
  // A crash, a timeout or no test at all is in no count of AVA's.
  const atLeast = exitCode === 0 ? failed : Math.max(failed, 1);
  console.log(`${passed} passed, ${atLeast} failed${skipped > 0 ? `, ${skipped} skipped` : ''}`);
  process.exitCode = exitCode;
});

/** When a test failed, AVA's closing lines leave out the passed ones: these are counted where they are listed. */
function readSummary(text) {
  // eslint-disable-next-line no-control-regex -- colours
  const plain = text.replace(/\u001B\[[0-9;]*m/g, '');
  const end = plain.slice(Math.max(0, plain.lastIndexOf('\n  ─')));
  const sum = (pattern) => [...end.matchAll(pattern)].reduce((total, [, count]) => total + Number(count), 0);
  return {
    passed: plain.match(/^ *[✔√] /gm)?.length ?? 0,
    failed: sum(/^ *(\d+) (?:tests?|hooks?) (?:failed|remained pending)/gm)
      + sum(/^ *(\d+) (?:uncaught exception|unhandled rejection)/gm),
    skipped: sum(/^ *(\d+) tests? skipped/gm),
  };
}
