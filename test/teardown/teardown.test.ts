// However a process, a thread or an object ends, it ends without a crash: each scenario of child.ts in a process of its own. `npm test`
// has five of them, of its sample.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import ava, { type ExecutionContext } from 'ava';

import { costly } from '../runner/slow.js';
import { isTried } from '../runner/tier.js';

const child = path.join(__dirname, 'child.js');
const drivers = ['mock', 'host'] as const;
/** Where the processes run, and leave what they could not remove. */
const cwd = mkdtempSync(path.join(tmpdir(), 'vkv-teardown-'));
ava.after.always(() => { rmSync(cwd, { recursive: true, force: true }); });
/** Under a leak checker: what V8 does not free when a process is ended in the middle is not ours. */
const env = { ...process.env, ASAN_OPTIONS: `${process.env['ASAN_OPTIONS'] ?? ''}:detect_leaks=0` };

/** A process each; `title` decides whether this run has it. */
const declared = costly('starts processes');
const test = (title: string, body: (t: ExecutionContext) => Promise<void>): void => { if (isTried(title, 12)) declared(title, body); };

interface End {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly errors: string;
}

function run(scenario: string, on: string, ...flags: readonly string[]): Promise<End> {
  return new Promise((resolve, reject) => {
    const started = spawn(process.execPath, [...flags, child, scenario, on], { stdio: ['ignore', 'ignore', 'pipe'], env, cwd });
    let errors = '';
    started.stderr.setEncoding('utf8').on('data', (text: string) => { errors += text; });
    started.on('error', reject);
    started.on('close', (code, signal) => resolve({ code, signal, errors }));
  });
}

const quiet = { code: 0, signal: null, errors: '' };

for (const [title, scenario, on = drivers] of [
  ['a process that ends with open caches, sequences, fences and a prepared batch', 'open'],
  ['a process that ends while the mapper works', 'mapping'],
  ['`process.exit` in the middle of the mapper\'s work', 'exit while mapping'],
  ['`process.exit` while a caller waits for the mapper', 'exit inside a promise'],
  ['a process that ends with views of all its memory', 'views of everything'],
  ['a process whose device was lost', 'lost device', ['mock']],
  ['a process with a cache that could not be closed', 'half closed', ['mock']],
  ['a process whose caches were closed', 'tidy'],
  ['workers that are terminated while their mappers work', 'workers are terminated while mapping'],
  ['workers that are terminated in the middle of calls', 'workers are terminated in the middle of calls'],
  ['workers that are terminated while they open caches, drivers and kernels', 'workers are terminated while they open', ['host']],
  ['workers that are terminated in any call of the package', 'workers are terminated in every call', ['host']],
  ['workers that end with open caches', 'workers end with open caches'],
  ['a process that exits while the mappers of its workers work', 'the process exits with workers mapping'],
  ['a process that ends with commands on a stream', 'commands are left', ['host']],
  ['`process.exit` while commands run on a stream', 'exit while commands run', ['host']],
  ['`process.exit` while a stream is awaited', 'exit while a stream is awaited', ['host']],
  ['workers that are terminated while commands run on their streams', 'workers are terminated while commands run', ['host']],
  ['several environments at once, each with caches of its own', 'environments at once'],
] as const satisfies readonly (readonly [string, string, (readonly string[])?])[]) {
  for (const name of on) {
    test(`${title} exits with 0, silently (${name})`, async (t) => {
      t.deepEqual(await run(scenario, name), quiet);
    });
  }
}

test('a process with as many views as the kernel has mappings for is refused more, and lives', async (t) => {
  t.deepEqual(await run('views are taken until mappings run out', 'host'), quiet);
});

test('commands on a stream keep the cache and the arrays that they use until they are done, and no longer', async (t) => {
  const { code, signal, errors } = await run('commands keep what they use', 'host', '--expose-gc');
  t.deepEqual({ code, signal }, { code: 0, signal: null }, errors);
});

for (const on of drivers) {
  const transferTest = 'transfer' in ArrayBuffer.prototype ? test : ava.skip; // Node 20 has no way to take a buffer away
  transferTest(`a thread that keeps writing to transferred views harms no sequence, and not the process, also after \`close\` (${on})`, async (t: ExecutionContext) => {
    t.deepEqual(await run('a thread keeps writing to views that were transferred', on), quiet);
  });

  test(`an uncaught error while the mapper works ends the process with 1 and its message (${on})`, async (t) => {
    const { code, signal, errors } = await run('throw while mapping', on);
    t.deepEqual({ code, signal }, { code: 1, signal: null });
    t.regex(errors, /on purpose/);
  });

  for (const [title, scenario] of [
    ['a closed cache is collected silently', 'closed caches are collected quietly'],
    ['a sequence keeps its cache alive', 'a sequence keeps its cache'],
    ['a cache that is closed gives its memory back before the running JavaScript ends', 'closed in one job'],
  ] as const) {
    test(`${title} (${on})`, async (t) => {
      t.deepEqual(await run(scenario, on, '--expose-gc'), quiet);
    });
  }

  if (on === 'mock') {
    test('a driver that refuses while its users are collected can be closed once it does not', async (t) => {
      const { code, signal, errors } = await run('collected users whose driver refuses', on, '--expose-gc');
      t.deepEqual({ code, signal }, { code: 0, signal: null }, errors);
    });
  }

  for (const [title, scenario] of [
    ['caches that were never closed are given back when they are collected, with one warning', 'collected'],
    ['so are those whose mapper works', 'collected while mapping'],
    ['so are those of a shared pool', 'collected with a shared pool'],
    ['so are those of a shared pool that lives on', 'collected while their pool lives on'],
    ['a view keeps the memory that it shows', 'a view keeps its memory'],
    ['a driver whose users were all collected can be closed', 'collected users of a driver'],
  ] as const) {
    test(`${title} (${on})`, async (t) => {
      const { code, signal, errors } = await run(scenario, on, '--expose-gc');
      t.deepEqual({ code, signal }, { code: 0, signal: null }, errors);
      t.is(errors.match(/\[KV_NOT_CLOSED\] Warning: A KvCache was garbage-collected/g)?.length, 1, errors);
    });
  }
}
