// Nothing that a caller passes ends the process, hangs it, or leaves it changed after an error: every exported function and method,
// every argument, every hostile value, in processes that must end by themselves. `npm test` tries a twentieth of the cases of half of the
// exports, `test:all` an eighth of all, another one each time; `test:release` tries all.

import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import * as index from 'virtual-kv';
import * as llama from 'virtual-kv/llama';
import * as onnx from 'virtual-kv/onnx';
import * as prometheus from 'virtual-kv/prometheus';
import * as server from 'virtual-kv/server';
import * as testing from 'virtual-kv/testing';
import * as transformers from 'virtual-kv/transformers';

import { seedOf } from '../helpers/seed.js';
import { costly } from '../runner/slow.js';
import { sampled, sampleSeed, scale, tier } from '../runner/tier.js';
import { hostOnly, table } from './table.js';

const dist = path.resolve(__dirname, '../../dist');
const child = path.join(__dirname, 'child.js');
/** Where the processes run: some strings are good names of folders. */
const cwd = mkdtempSync(path.join(tmpdir(), 'vkv-hostile-'));
test.after.always(() => { rmSync(cwd, { recursive: true, force: true }); });
/** In one case, less than AVA allows (ava.config.mjs): all of them together take as long as the machine is busy. */
const limitMs = 500_000;
/** Under a leak checker: what the caller's own buffers leave when they are cut off is not ours. */
const env = { ...process.env, ASAN_OPTIONS: `${process.env['ASAN_OPTIONS'] ?? ''}:detect_leaks=0` };

const part = { quick: 1 / 20, all: 1 / 8, release: 1 }[tier] * Math.min(1, tier === 'quick' ? 1 : scale);
/** Of exports, each with a process of its own, which takes longer to make their worlds than for a twentieth of their cases. */
const groups = [0, 1, 2, 3];
const dear = costly('a process with worlds of every export');

interface End {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly errors: string;
  /** When it did not end by itself: the case it was in. */
  readonly last: string | undefined;
}

function run(names: readonly string[], on: string, seed: number): Promise<End> {
  return new Promise((resolve, reject) => {
    // Node 20 can hang at exit while a compiling thread of V8 waits for a garbage collection.
    const started = spawn(process.execPath, ['--no-concurrent-recompilation', child, on, String(seed), String(part), ...names], { stdio: ['ignore', 'pipe', 'pipe'], env, cwd });
    const timer = setTimeout(() => started.kill('SIGKILL'), limitMs);
    let errors = '';
    let said = '';
    started.stdout.setEncoding('utf8').on('data', (text: string) => {
      timer.refresh();
      said = (said + text).slice(-2000);
    });
    started.stderr.setEncoding('utf8').on('data', (text: string) => { errors += text; });
    started.on('error', reject);
    started.on('close', (code, signal) => {
      clearTimeout(timer);
      resolve({ code, signal, errors, last: signal === null && code! < 2 ? undefined : said.trimEnd().split('\n').at(-1) });
    });
  });
}

const hasCases = (name: string, on: 'mock' | 'host'): boolean =>
  !(on === 'mock' && hostOnly.has(name)) && Object.values(table[name]!).some((row) => row !== null);

for (const on of ['mock', 'host'] as const) {
  const names = Object.keys(table).filter((name) => hasCases(name, on));
  for (const group of sampled(groups, 2)) {
    const seed = seedOf(`hostile ${on} ${group} ${sampleSeed}`);
    const of = names.filter((_, at) => at % groups.length === group);
    dear(`calls refuse wrong arguments, or do what was asked (${on}, group ${group + 1} of ${groups.length}, seed ${seed}): ${of[0]} …`, async (t) => {
      t.deepEqual(await run(of, on, seed), { code: 0, signal: null, errors: '', last: undefined }, `seed ${seed}, exports ${of.join(' ')}`);
    });
  }
}

/** Public members of a class that are called, as its declaration lists them. */
function methodsOf(name: string): string[] {
  for (const file of readdirSync(dist, { recursive: true, encoding: 'utf8' })) {
    if (!file.endsWith('.d.ts')) continue;
    const body = new RegExp(`^export declare class ${name}\\b.*?^}`, 'ms').exec(readFileSync(path.join(dist, file), 'utf8'))?.[0];
    if (body !== undefined) return [...body.matchAll(/^ {4}(?:static )?(\w+)\(/gm)].map(([, method]) => method!).filter((method) => method !== 'constructor');
  }
  return [];
}

test('every exported function, and every public method of an exported class, has a row', (t) => {
  const exported = Object.entries({ ...index, ...testing, ...prometheus, ...llama, ...onnx, ...transformers, ...server }).filter(([, value]) => typeof value === 'function');
  t.true(exported.length > 30);
  for (const [name, value] of exported) {
    const rows = Object.keys(table[name] ?? {});
    const isClass = /^class\b/.test(Function.prototype.toString.call(value));
    for (const method of isClass ? methodsOf(name) : ['call']) t.true(rows.includes(method), `${name}.${method}`);
  }
});
