// Everything that gpu-check measures, as tables for people and, with --json FILE, as numbers:
//   node scripts/gpu/measure.mjs [--json FILE] [--probe PROGRAM] [--library libcuda.so.1] [--no-kernels]
// --no-kernels: for kernels that were found wrong, whose times mean nothing.
// Against the simulated device it shows only that the program runs: its times mean nothing. Exit code 1: a kernel that was to be
// timed gave something wrong.

import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';

import { measureCalls, measureReservations } from './call-costs.mjs';
import { measureGrowth } from './growth.mjs';
import { measureKernels } from './kernel-times.mjs';

const require = createRequire(import.meta.url);
const api = require('../../dist/index.js');
const Table = require('cli-table3');

const { values: flags } = parseArgs({
  options: { json: { type: 'string' }, probe: { type: 'string' }, library: { type: 'string' }, 'no-kernels': { type: 'boolean' } },
});
const QUESTION_TIMEOUT_MS = 300_000;

function print(title, rows) {
  if (rows.length === 0) return;
  const columns = [...new Set(rows.flatMap(Object.keys))];
  const table = new Table({ head: columns, style: { head: [], border: [], compact: true } });
  for (const row of rows) table.push(columns.map((column) => cell(row[column])));
  console.log(`\n${title}\n${table.toString()}`);
}

function cell(value) {
  if (value === undefined) return '';
  if (typeof value === 'number') return Number.isInteger(value) ? value.toLocaleString('en') : value.toFixed(1);
  if (typeof value !== 'object') return String(value);
  return value.samples === 0 ? '' : `${value.p50Us.toFixed(1)} / ${value.p99Us.toFixed(1)} / ${value.maxUs.toFixed(1)}`;
}

/** Times of one kind in one column. */
function fold({ question: _, ...row }) {
  const folded = {};
  for (const [key, value] of Object.entries(row)) {
    const [, name, rank] = /^(.*)(P50|P99|Max)Us$/.exec(key) ?? [];
    if (name === undefined) folded[key] = value;
    else if (rank === 'P50') folded[`${name} µs`] = { p50Us: value, p99Us: row[`${name}P99Us`], maxUs: row[`${name}MaxUs`] };
  }
  return folded;
}

/** The lines of the probe, question by question; a question that ends the process still has its lines so far. */
function ask(program) {
  const run = (args) => spawnSync(program, args, { encoding: 'utf8', timeout: QUESTION_TIMEOUT_MS });
  const questions = run(['--list']).stdout.trim().split('\n');
  return questions.flatMap((question) => {
    const { status, signal, stdout } = run([question, ...(flags.library ? [flags.library] : [])]);
    const lines = stdout.trim().split('\n').filter(Boolean).map((line) => JSON.parse(line));
    return status === 0 ? lines : [...lines, { question, ended: signal ?? `exit code ${status}` }];
  });
}

const driver = api.Driver.open('cuda', { libraryPath: flags.library });
const machine = {
  date: new Date().toISOString(), device: driver.info, memory: driver.memory(), node: process.version,
  cpu: `${cpus()[0]?.model ?? 'unknown'}, ${cpus().length} threads`,
};
console.log(`${driver.info.deviceName}, CUDA driver ${driver.info.driverVersion}, ${machine.cpu}, Node ${machine.node}`);
if (/^(fake|mock) device$/.test(driver.info.deviceName)) {
  console.log('This device is simulated: the run shows that the program works, and its numbers mean nothing.');
}

const calls = measureCalls(driver);
print('Calls through the driver, µs', calls);
const reservations = measureReservations(driver);
print('Reservations', reservations.map(({ bytes: _, ...row }) => row));
const growth = await measureGrowth(driver, api);
print('Growth beside passes of 10 ms: p50 / p99 / max in µs', growth);
const kernels = flags['no-kernels'] ? [] : measureKernels(driver, api);
if (flags['no-kernels']) console.log('\nThe kernels are not timed, as they were found wrong.');
print('Kernels, against the device\'s own copy', kernels);
driver.close();

const probe = flags.probe === undefined ? [] : ask(flags.probe);
for (const question of new Set(probe.map((line) => line.question))) {
  print(question, probe.filter((line) => line.question === question).map(fold));
}

const wrong = probe.filter((line) => line.matches === false);
if (wrong.length > 0) {
  console.error(`\nWrong, and not timed: ${wrong.map(({ question, what }) => `${question}, ${what}`).join('; ')}`);
  process.exitCode = 1;
}

if (flags.json !== undefined) {
  writeFileSync(flags.json, `${JSON.stringify({ machine, calls, reservations, growth, kernels, probe }, undefined, 2)}\n`);
  console.log(`\nWritten: ${path.resolve(flags.json)}`);
}
