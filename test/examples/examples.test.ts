// Every example runs, ends with 0 and prints something. They are compiled first, as `npm run example` does it. One that needs
// npm packages of its own runs where those are installed.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import { whyNoOnnxRuntime } from '../../build-examples/onnxruntime/runtime.js';

const root = path.resolve(__dirname, '..', '..');
const names = readdirSync(path.join(root, 'examples'))
  .filter((file) => /\.(ts|mjs)$/.test(file))
  .map((file) => path.parse(file).name);

/** Those whose usual size is too large for a test. */
const smallerSize: Readonly<Record<string, readonly string[]>> = {
  'hit-rate': ['--requests', '100'], 'serving-benchmark': ['--requests', '8'],
};

/** What is missing to run them. */
const missing: Readonly<Record<string, string | undefined>> = { onnxruntime: whyNoOnnxRuntime() };

function run(name: string, args = smallerSize[name] ?? []): { status: number | null; stdout: string; stderr: string } {
  const script = path.join(root, 'scripts', 'run-example.mjs');
  return spawnSync(process.execPath, [script, name, ...args], { cwd: root, encoding: 'utf8' });
}

for (const name of names) {
  const declare = missing[name] === undefined ? test.serial : test.serial.skip;
  declare(`the example ${name} runs${missing[name] === undefined ? '' : ` [${missing[name]}]`}`, (t) => {
    const { status, stdout, stderr } = run(name);
    t.is(status, 0, stderr);
    t.not(stdout, '');
  });
}

test.serial('the hit rate rises with the share of frequent prompts and with the pool, and is drawn', (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-hit-rate-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const file = path.join(folder, 'hit-rate.svg');
  const { status, stdout, stderr } = run('hit-rate', ['--requests', '300', '--svg', file]);
  t.is(status, 0, stderr);
  const rates = stdout.split('\n').filter((line) => /^ +[01]\.\d( +[\d.]+ %)+$/.test(line))
    .map((line) => [...line.matchAll(/([\d.]+) %/g)].map(([, rate]) => Number(rate)));
  t.is(rates.length, 10);
  for (const [off, ...pools] of rates) {
    t.is(off, 0);
    t.deepEqual(pools, pools.toSorted((a, b) => a - b), 'a larger pool finds no less');
  }
  const largest = rates.map((pools) => pools.at(-1)!);
  t.deepEqual(largest, largest.toSorted((a, b) => a - b));
  const [middle, end] = [largest[4]!, largest[9]!];
  t.true(end > 75 && middle > 0.35 * end && middle < 0.65 * end, `half-way at p = 0.5: ${largest}`);
  t.regex(readFileSync(file, 'utf8'), /^<svg[\s\S]*items per second/);
});
