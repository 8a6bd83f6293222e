// The PTX that comes with the package, as ptxas assembles it: what the driver of a GPU will do with it when the kernels are loaded.
// Slow: it assembles every kernel.

import { execFile, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import { promisify } from 'node:util';
import { brotliDecompressSync } from 'node:zlib';

import test, { type ExecutionContext } from 'ava';

const root = path.resolve(__dirname, '..', '..');
const ptxas = process.env['PTXAS'] ?? 'ptxas';
/** How registers are given out differs between releases. */
const release = /release (\d+\.\d+)/.exec(spawnSync(ptxas, ['--version'], { encoding: 'utf8' }).stdout ?? '')?.[1];
const run = release === '13.0' ? test : test.skip;
const staticSharedBytes = 48 * 1024;

interface Report {
  readonly name: string;
  readonly stackBytes: number;
  readonly spilledBytes: number;
  readonly sharedBytes: number;
}

/** What ptxas says of each kernel; fails where it refuses one. */
async function assemble(t: ExecutionContext, ptx: string, architecture: number): Promise<readonly Report[]> {
  const folder = mkdtempSync(path.join(tmpdir(), 'virtual-kv-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const file = path.join(folder, 'kernels.ptx');
  writeFileSync(file, ptx);
  const { stderr } = await promisify(execFile)(ptxas, ['-v', `-arch=sm_${architecture}`, file, '-o', path.join(folder, 'cubin')]);
  const reports = stderr.split(/Compiling entry function '/).slice(1).map((report) => ({
    name: /^\w+/.exec(report)![0],
    stackBytes: Number(/(\d+) bytes stack frame/.exec(report)?.[1]),
    spilledBytes: Number(/(\d+) bytes spill stores/.exec(report)?.[1]),
    sharedBytes: Number(/(\d+) bytes smem/.exec(report)?.[1] ?? 0),
  }));
  t.is(reports.length, [...ptx.matchAll(/\.entry /g)].length);
  return reports;
}

const keptPtx = (image: string): string => brotliDecompressSync(readFileSync(path.join(root, `${image}.ptx.br`))).toString();

for (const [image, architecture] of [['kernels', 75], ['kernels-sm80', 80], ['kernels-sm80', 90], ['scatter', 75], ['scatter', 90]] as const) {
  run(`ptxas takes every kernel of ${image} for sm_${architecture}, and none keeps registers in memory (needs ptxas 13.0)`, async (t) => {
    const reports = await assemble(t, keptPtx(`kernels/cuda/${image}`), architecture);
    t.deepEqual(reports.filter(({ stackBytes, spilledBytes }) => stackBytes !== 0 || spilledBytes !== 0), []);
    t.deepEqual(reports.filter(({ sharedBytes }) => sharedBytes > staticSharedBytes), []);
  });
}

run('ptxas takes the kernels of gpu-check for sm_90 (needs ptxas 13.0)', async (t) => {
  const source = readFileSync(path.join(root, 'scripts', 'gpu', 'kernels.cc'), 'utf8');
  const questions = await assemble(t, /R"\(\n([^]*?)\)"/.exec(source)![1]!, 90);
  t.deepEqual(questions.map(({ name }) => name).sort(), ['await', 'spin', 'watch']);
  const blockTable = await assemble(t, keptPtx('scripts/gpu/block-table'), 90);
  t.deepEqual(blockTable.filter(({ spilledBytes }) => spilledBytes !== 0), []);
});
