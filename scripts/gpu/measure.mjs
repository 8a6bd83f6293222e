// Measures the driver and attention for gpu-check; prints tables and, with --json FILE, writes numbers:
//   node scripts/gpu/measure.mjs [--json FILE] [--probe PROGRAM] [--library libcuda.so.1] [--without TYPE,…] [PART…]
// PART: kernels, block-table, calls, growth, side, tiers, tier-steps, questions; default: all. Results are added to FILE as soon as they are there. --without:
// types with wrong kernels, which are not timed. Against the simulated device it shows only that the program runs: its times mean
// nothing. Exit code 1: a timed kernel or a copy gave a wrong result, or a question could not run.

import { spawnSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { parseArgs } from 'node:util';

import { measureCalls, measureReservations } from './call-costs.mjs';
import { measureGrowth } from './growth.mjs';
import { measureKernels } from './kernel-times.mjs';
import { addResults, print } from './results.mjs';
import { measureSideRows } from './side-rows.mjs';
import { measureSideSteps } from './side-steps.mjs';
import { measureTierCopies } from './tier-copies.mjs';
import { measureTierSteps } from './tier-steps.mjs';

const require = createRequire(import.meta.url);
const api = require('../../dist/index.js');

const parts = ['kernels', 'block-table', 'calls', 'growth', 'side', 'tiers', 'tier-steps', 'questions'];
const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: { json: { type: 'string' }, probe: { type: 'string' }, library: { type: 'string' }, without: { type: 'string' } },
});
const unknown = positionals.find((part) => !parts.includes(part));
if (unknown !== undefined) throw new Error(`There is no part ${unknown}: ${parts.join(', ')}`);
const wants = (part) => positionals.length === 0 || positionals.includes(part);

const blockTable = 'contiguous slots against a block table';
const blockTableTimeoutMs = 50_000;
const questionTimeoutMs = 15_000;

const keep = (results) => addResults(flags.json, results);

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

/** A line of the probe; the last one of a process that was ended may be half a line. */
function parsed(question, line) {
  try {
    return JSON.parse(line);
  } catch {
    return { question, 'half a line': line };
  }
}

/** Asks and prints each question by itself: one that ends its process still has its lines so far. `report` gets all so far. */
function ask(isWanted, report) {
  const run = (args, timeout) => spawnSync(flags.probe, args, { encoding: 'utf8', timeout, killSignal: 'SIGKILL' });
  const all = [];
  for (const question of run(['--list'], questionTimeoutMs).stdout.trim().split('\n').filter(isWanted)) {
    const args = [question, ...(flags.library ? [flags.library] : [])];
    const { status, signal, stdout, stderr } = run(args, question === blockTable ? blockTableTimeoutMs : questionTimeoutMs);
    const lines = stdout.trim().split('\n').filter(Boolean).map((line) => parsed(question, line));
    if (status !== 0) lines.push({ question, ended: signal ?? `exit code ${status}`, ...(stderr ? { stderr: stderr.slice(-500) } : {}) });
    print(question, lines.map(fold));
    all.push(...lines);
    report(all);
  }
  return all;
}

/** Prints a line for each wrong result, and sets the exit code to 1. */
function complain(lines) {
  for (const { question, what, matches, ended } of lines) {
    if (matches === false) console.error(`Wrong, and not timed: ${question}, ${what}`);
    else if (ended !== undefined) console.error(`Not answered: ${question} (${ended})`);
    else continue;
    process.exitCode = 1;
  }
}

function fail(wrong, what) {
  if (wrong === 0) return;
  console.error(`Wrong: ${wrong} ${what}`);
  process.exitCode = 1;
}

const driver = api.Driver.open('cuda', { libraryPath: flags.library });
const { info } = driver;
const cpu = `${cpus()[0]?.model ?? 'unknown'}, ${cpus().length} threads`;
keep({ machine: { date: new Date().toISOString(), device: info, memory: driver.memory(), node: process.version, cpu } });
console.log(`${info.deviceName}, CUDA driver ${info.driverVersion}, ${cpu}, Node ${process.version}`);
if (/^(fake|mock) device$/.test(info.deviceName)) {
  console.log('This device is simulated: the run shows that the program works, and its numbers mean nothing.');
}

if (wants('kernels')) {
  const without = flags.without?.split(',').filter(Boolean);
  const kernels = measureKernels(driver, api, { without, report: (rows) => keep({ kernels: rows }) });
  print('Kernels, against the device\'s own copy', kernels);
}
if (wants('calls')) {
  const calls = measureCalls(driver);
  print('Calls through the driver, µs: p50 / p99 / max', calls);
  const reservations = measureReservations(driver);
  print('Reservations', reservations.map(({ bytes: _, ...row }) => row));
  keep({ calls, reservations });
}
if (wants('growth')) {
  const growth = await measureGrowth(driver, { ...api, report: (rows) => keep({ growth: rows }) });
  print('Growth beside passes of 10 ms: p50 / p99 / max in µs', growth);
  keep({ growth });
}
if (wants('side')) {
  const { table, wrongRows } = measureSideRows(driver, api, (rows) => keep({ sideRows: rows }));
  print('Rows of the device in side tensors of the CPU\'s memory', table);
  const ofSteps = measureSideSteps(driver, api);
  print('Rows of decoding steps, to the pages of many sequences', ofSteps.table);
  keep({ sideSteps: ofSteps.table });
  fail(wrongRows + ofSteps.wrongRows, 'rows of side tensors');
}
if (wants('tiers')) {
  const { table, wrongTokens } = await measureTierCopies(driver, api, (rows) => keep({ tierCopies: rows }));
  print('Text between the device and a tier in host memory', table);
  fail(wrongTokens, 'tokens of tiers');
}
if (wants('tier-steps')) {
  const tierSteps = await measureTierSteps(driver, api);
  print('Decoding steps beside a text that goes to host memory', tierSteps);
  keep({ tierSteps });
}
driver.close();

if (flags.probe !== undefined && wants('block-table')) {
  complain(ask((question) => question === blockTable, (lines) => keep({ blockTable: lines })));
}
if (flags.probe !== undefined && wants('questions')) {
  complain(ask((question) => question !== blockTable, (lines) => keep({ questions: lines })));
}
