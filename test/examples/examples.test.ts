// Every example runs, ends with 0 and prints something. They are compiled first, as `npm run example` does it. One that needs
// npm packages of its own runs where those are installed.
// Slow: it starts every example.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import { hasCompiler } from '../helpers/native-probe.js';
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
const missing: Readonly<Record<string, string | undefined>> = {
  'native-engine': hasCompiler ? undefined : 'there is no C++ compiler',
  onnxruntime: whyNoOnnxRuntime(),
  transformers: existsSync(path.join(root, 'examples', 'transformers', 'node_modules')) ? undefined : '@huggingface/transformers is not installed',
};

function run(name: string, args = smallerSize[name] ?? []): { status: number | null; stdout: string; stderr: string } {
  const script = path.join(root, 'scripts', 'run.mjs');
  return spawnSync(process.execPath, [script, 'example', name, ...args], { cwd: root, encoding: 'utf8' });
}

for (const name of names) {
  const declare = missing[name] === undefined ? test.serial : test.serial.skip;
  declare(`the example ${name} runs${missing[name] === undefined ? '' : ` [${missing[name]}]`}`, (t) => {
    const { status, stdout, stderr } = run(name);
    t.is(status, 0, stderr);
    t.not(stdout, '');
  });
}

const wrongLines: readonly (readonly [string, readonly string[], number, RegExp])[] = [
  ['llama', ['--modle', 'x'], 2, /'--modle'[^]* --model\?/],
  ['llama', ['Hello'], 2, /arguments/],
  ['llama', ['--max-new-tokens', '0'], 2, /--max-new-tokens/],
  ['llama', ['--top-p', 'much'], 2, /--top-p/],
  ['llama', ['--driver', 'gpu'], 2, /--driver/],
  ['llama', ['--model', '/nowhere'], 1, /\/nowhere\/config\.json/],
  ['llama', ['--prompt', 'word '.repeat(2_000)], 1, /\d+ tokens.*1024/],
  ['llama', ['--plain', '--prompt', ''], 1, /no tokens/],
  ['serving-benchmark', ['--shared', '856'], 2, /--shared.* 855/],
  ['serving-benchmark', ['--report', '/nowhere/x.svg'], 1, /\/nowhere\/x\.svg/],
  ['stages', ['--off', 'encoder,speaker'], 2, /--off/],
  ['stages', ['--off', ''], 2, /--off/],
  ['hit-rate', ['--requests', 'all'], 2, /--requests/],
];
for (const [name, args, code, message] of wrongLines) {
  test.serial(`a wrong command line or a failure is one line: ${name} ${args.join(' ').slice(0, 40)}`, (t) => {
    const { status, stderr } = run(name, args);
    t.is(status, code);
    t.regex(stderr, message);
    t.notRegex(stderr, /^ +at /m, 'no stack');
  });
}

test.serial('a closed pipe ends an example quietly', (t) => {
  const command = `"${process.execPath}" build-examples/llama.js | head -c 60`;
  const { stdout, stderr } = spawnSync('sh', ['-c', command], { cwd: root, encoding: 'utf8' });
  t.is(stdout.length, 60);
  t.is(stderr, '');
});

test.serial('an answer of one token, and one that is cut where the context ends, say so', (t) => {
  t.regex(run('llama', ['--prompt', 'Hello.', '--max-new-tokens', '1']).stdout, /first token after \d+ ms; cut by --max-new-tokens\)/);
  const full = run('llama', ['--prompt', 'a '.repeat(1_023), '--max-new-tokens', '1000000', '--plain']); // 1,024 tokens
  t.regex(full.stdout, /\(1024 prompt tokens.*; cut where the context ends\)/);
});

test.serial('npm start -- --help prints the flags without building anything', (t) => {
  const { status, stdout } = spawnSync(process.execPath, [path.join(root, 'scripts', 'start.mjs'), '--help'], { encoding: 'utf8' });
  t.is(status, 0);
  for (const part of ['npm start ', '--prompt', '--model FOLDER']) t.true(stdout.includes(part), part);
});

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
