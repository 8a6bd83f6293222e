// What gpu-check says of copies between the device and this machine's memory: side tensors' rows and tiers' blocks. On the simulated
// device, also where its driver refuses or loses them.
// Slow: it starts the checks of a GPU.

import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { buildFakeLibcuda, fakeLibcuda } from '../helpers/fake-libcuda.js';
import { hasCompiler } from '../helpers/native-probe.js';

type Row = Readonly<Record<string, number | string>>;

const root = path.resolve(__dirname, '..', '..');
const run = hasCompiler ? test : test.skip;

test.before(() => {
  if (hasCompiler) buildFakeLibcuda();
});

/** Runs a part of measure.mjs on the simulated device with a fault; the rows that it wrote to the file of results. */
async function measure(
  t: ExecutionContext, part: 'side' | 'tiers', fault = '',
): Promise<{ status: number | string; rows: readonly Row[]; steps: readonly Row[]; complaint: string }> {
  const folder = mkdtempSync(path.join(tmpdir(), 'virtual-kv-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const file = path.join(folder, 'results.json');
  const args = [path.join(root, 'scripts', 'gpu', 'measure.mjs'), '--library', fakeLibcuda(), '--json', file, part];
  const ended = await new Promise<{ status: number | string; complaint: string }>((resolve) => {
    execFile(process.execPath, args, { cwd: root, env: { ...process.env, FAKE_LIBCUDA: fault } }, (error, _stdout, stderr) => {
      resolve({ status: error === null ? 0 : error.signal ?? error.code ?? 1, complaint: stderr });
    });
  });
  const results = JSON.parse(readFileSync(file, 'utf8')) as Readonly<Record<string, readonly Row[] | undefined>>;
  return { ...ended, rows: results[part === 'side' ? 'sideRows' : 'tierCopies'] ?? [], steps: results['sideSteps'] ?? [] };
}

const known = 'rows on the device, known pages';
const rowOf = (rows: readonly Row[], what: string): Row | undefined => rows.find((row) => row['what'] === what);

run('rows from the device are right in side tensors, through registered pages', async (t) => {
  const { status, rows } = await measure(t, 'side');
  t.is(status, 0);
  t.like(rowOf(rows, known), { 'wrong rows': 0, 'pageableBytes': 0 });
  t.true(Number(rowOf(rows, known)!['registeredBytes']) > 0);
  t.deepEqual(rows.map(({ what }) => what), [
    'rows on the device, new pages', known, 'rows read into an array', 'copies to pages, not registered', 'copies to pages, registered',
  ]);
});

run('rows from the device are right where the driver registers no memory', async (t) => {
  const { status, rows } = await measure(t, 'side', 'without:cuMemHostRegister');
  t.is(status, 0);
  t.like(rowOf(rows, known), { 'wrong rows': 0, 'registeredBytes': 0 });
  t.true(Number(rowOf(rows, known)!['pageableBytes']) > 0);
  t.is(typeof rowOf(rows, 'copies to pages, registered')!['refused'], 'string');
});

run('rows that the device never copied fail the section of side tensors', async (t) => {
  const { status, rows, complaint } = await measure(t, 'side', 'skip:cuMemcpyDtoHAsync:measure');
  t.is(status, 1);
  t.true(Number(rowOf(rows, known)!['wrong rows']) > 0);
  t.regex(complaint, /Wrong: \d+ rows of side tensors/);
});

run('rows of decoding steps are right, by the kernel and where the driver takes none', async (t) => {
  for (const fault of ['', 'no-module', 'without:cuMemHostRegister', 'without:cuMemHostGetDevicePointer']) {
    const { status, steps } = await measure(t, 'side', fault);
    t.is(status, 0, fault);
    t.is(steps[0]!['wrong rows'], 0, fault);
  }
});

run('rows of decoding steps that the kernel never wrote fail the section', async (t) => {
  const { status, steps } = await measure(t, 'side', 'skip:cuLaunchKernel:measure');
  t.is(status, 1);
  t.true(Number(steps[0]!['wrong rows']) > 0);
});

run('a section of copies that crashes leaves no half results', async (t) => {
  const { status, rows } = await measure(t, 'side', 'abort:cuMemHostRegister:measure');
  t.is(status, 'SIGABRT');
  t.deepEqual(rows, []);
});

run('text comes back from a tier in host memory as it went', async (t) => {
  const { status, rows } = await measure(t, 'tiers');
  t.is(status, 0);
  t.deepEqual(rows.map((row) => [row['what'], row['wrong tokens']]), [['device to host memory', 0], ['host memory to device', 0]]);
});

run('text that the device never gave away or took back fails the section of tiers', async (t) => {
  const { status, rows, complaint } = await measure(t, 'tiers', 'skip:cuMemcpyDtoHAsync:tiers');
  t.is(status, 1);
  t.true(Number(rows[0]!['wrong tokens']) > 0);
  t.regex(complaint, /Wrong: \d+ tokens of tiers/);
});
