// The sections of gpu-check: what one does is of no consequence for the others, and its last word says how each ended.

import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import { pathToFileURL } from 'node:url';

import test from 'ava';

import { SteppedClock } from '../serving/stepped-clock.js';

interface Sections {
  run(section: {
    title: string; seconds: number; command: readonly string[]; beside?: boolean;
  }): Promise<{ passed: boolean; isLate: boolean; output: string }>;
  conclude(): boolean;
}

const sourceFolder = path.resolve(__dirname, '..', '..', 'scripts', 'gpu');
const program = (text: string): readonly string[] => [process.execPath, '-e', text];
const forEver = 'setInterval(() => {}, 1000)';

/** Sections that have `seconds` together. So many ms pass when their output has `hangs`, and no time else. */
async function open(seconds: number, { hangs = /^$/, ms = 0 } = {}): Promise<{ sections: Sections; log: () => string; file: string }> {
  const { Sections: Opened } = await import(pathToFileURL(path.join(sourceFolder, 'sections.mjs')).href) as {
    Sections: new (options: { seconds: number; log: string; print: (text: string) => void; clock: SteppedClock['options'] }) => Sections;
  };
  const file = path.join(mkdtempSync(path.join(tmpdir(), 'virtual-kv-')), 'results.log');
  const clock = new SteppedClock();
  const print = (text: string): void => { if (hangs.test(text)) setImmediate(() => { clock.advance(ms); }); };
  return { sections: new Opened({ seconds, log: file, print, clock: clock.options }), log: () => readFileSync(file, 'utf8'), file };
}

const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0);
    return !readFileSync(`/proc/${pid}/stat`, 'utf8').includes(') Z '); // it may stay a zombie
  } catch {
    return false;
  }
};

test('a section that hangs is ended after its seconds with all that it started, and the next one runs', async (t) => {
  const { sections, log } = await open(60, { hangs: /^child \d/m, ms: 1000 });
  const child = `require('node:child_process').spawn(process.execPath, ['-e', ${JSON.stringify(forEver)}]).pid`;
  const hung = await sections.run({ title: 'hangs', seconds: 1, command: program(`console.log('child', ${child}); ${forEver}`) });
  t.deepEqual([hung.passed, hung.isLate], [false, true]);
  const pid = Number(/child (\d+)/.exec(hung.output)?.[1]);
  t.true(pid > 0);
  while (isAlive(pid)) await new Promise(setImmediate); // killed, it ends when the system has time for it; else the test runs out of time
  t.true((await sections.run({ title: 'works', seconds: 30, command: program('console.log("done")') })).passed);
  t.false(sections.conclude());
  t.regex(log(), /FAILED \(it ran out of time\) {2}hangs[^]*done[^]*passed {2}works[^]*1 passed, 1 failed/);
});

test('a section whose output a process outside its group holds open ends all the same', async (t) => {
  const { sections, log } = await open(60, { hangs: /^outside \d/m, ms: 5000 });
  const outside = `require('node:child_process').spawn(process.execPath, ['-e', 'setTimeout(() => {}, 50_000)'], { detached: true, stdio: 'inherit' }).pid`;
  const hung = await sections.run({ title: 'hangs', seconds: 1, command: program(`console.log('outside', ${outside}); ${forEver}`) });
  const pid = Number(/outside (\d+)/.exec(hung.output)?.[1]);
  t.true(isAlive(pid), 'it was not waited for');
  process.kill(pid, 'SIGKILL');
  t.false(sections.conclude());
  t.regex(log(), /FAILED \(it ran out of time, and could not be ended\) {2}hangs/);
});

test('sections that run at the same time are shown one after another, each with its exit code', async (t) => {
  const { sections, log } = await open(60);
  const [first, second] = await Promise.all([
    sections.run({ title: 'fails', seconds: 30, command: program('console.log("a"); process.exit(3)'), beside: true }),
    sections.run({ title: 'works', seconds: 30, command: program('console.log("b")'), beside: true }),
  ]);
  t.deepEqual([first.passed, second.passed], [false, true]);
  t.deepEqual([first.isLate, second.isLate], [false, false]);
  t.regex(log(), /== fails\na\n {3}FAILED \(exit code 3\)/);
  t.regex(log(), /== works\nb\n {3}passed/);
});

test('sections without time left are reported as failed', async (t) => {
  const { sections, log } = await open(0);
  const { passed, isLate } = await sections.run({ title: 'late', seconds: 30, command: program('') });
  t.deepEqual([passed, isLate], [false, true]);
  t.false(sections.conclude());
  t.regex(log(), /FAILED \(there was no time left\) {2}late/);
});

test('a program that cannot be started is a failed section', async (t) => {
  const { sections } = await open(60);
  t.false((await sections.run({ title: 'absent', seconds: 30, command: [path.join(tmpdir(), 'no such program')] })).passed);
});

test('results are added to their file part by part', async (t) => {
  const { file } = await open(1);
  const results = await import(pathToFileURL(path.join(sourceFolder, 'results.mjs')).href) as {
    addResults(file: string | undefined, parts: Readonly<Record<string, unknown>>): void; readResults(file: string): unknown;
  };
  results.addResults(`${file}.json`, { kernels: [1], calls: [2] });
  results.addResults(`${file}.json`, { calls: [3] });
  t.deepEqual(results.readResults(`${file}.json`), { kernels: [1], calls: [3] });
  results.addResults(undefined, { calls: [4] });
});
