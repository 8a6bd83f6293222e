// What gpu-check runs, in this order: the kernels against plain attention, each type in a process of its own and, where one fails,
// each shape; the dense kernels against the CPU's; how fast the kernels are (copies and decoding against 80 % of the device's own
// copy), decoding against itself over a block table; the reference engine and matrix products; the driver's calls, growth beside
// running work; the contract suite on cuda; a short replay; the questions that NVIDIA's documentation leaves open.
//   node scripts/gpu/check.mjs --seconds N --results RESULTS.json [--simulated]

import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { parseArgs } from 'node:util';

import { Sections } from './sections.mjs';

const { kernelShapes } = createRequire(import.meta.url)('../../build-test/helpers/kernel-shapes.js');

const { values: flags } = parseArgs({
  options: { seconds: { type: 'string' }, results: { type: 'string' }, simulated: { type: 'boolean', default: false } },
});
const { results, simulated } = flags;
const page = results.replace(/(\.json)?$/, '.md');
mkdirSync(path.dirname(results), { recursive: true });
for (const file of [results, page]) rmSync(file, { force: true });
const sections = new Sections({ seconds: Number(flags.seconds), log: results.replace(/(\.json)?$/, '.log') });

const node = process.execPath;
const ava = (...args) => [node, 'node_modules/ava/entrypoints/cli.mjs', ...args];
const measure = (...args) => [node, 'scripts/gpu/measure.mjs', '--probe', 'bin/probe', '--json', results, ...args];
const scaled = { VKV_TEST_SCALE: simulated ? '0.04' : '1' };
const dtypes = ['float16', 'bfloat16', 'float32'];

/** The last line ends the process's work: 0 only where every section passed. */
async function main() {
  const machine = describeMachine();
  await sections.run({ title: 'vkv info', seconds: 20, command: [node, 'dist/cli/vkv.js', 'info'] });
  const load = { title: 'the GPU is opened and the kernels are loaded', seconds: 90, command: [node, 'scripts/gpu/load.mjs'] };
  const loaded = await sections.run(load);
  if (!loaded.passed) return sections.conclude();
  if (!simulated && process.env.VKV_CUBLAS === undefined && !loaded.output.includes('by cublas')) await findCublas(load);
  const wrong = await checkKernels(!/Exclusive/.test(machine));
  const without = wrong.length > 0 ? ['--without', wrong.join(',')] : [];
  await sections.run({ title: 'how fast the kernels are', seconds: 90, command: measure(...without, 'kernels') });
  if (!wrong.includes('float16')) {
    await sections.run({ title: 'contiguous slots against a block table', seconds: 120, command: measure('block-table') });
  }
  await sections.run({
    title: 'reference engine and matrix products', seconds: 90, command: [node, 'scripts/gpu/dense.mjs', '--json', results],
  });
  await sections.run({ title: 'calls of the driver, growth beside work', seconds: 90, command: measure('calls', 'growth') });
  await sections.run({ title: 'contract suite on cuda', seconds: 120, command: ava('build-test/contract/cuda.test.js') });
  await sections.run({ title: 'replay on cuda, every byte checked', seconds: 100, command: [
    node, 'dist/cli/vkv.js', 'replay', '--generate', '200', '--driver', 'cuda', '--verify', 'full',
    ...(simulated ? ['--memory-bytes', '512MiB', '--limit', '8'] : []),
  ] });
  await sections.run({ title: 'questions to the driver', seconds: 90, command: measure('questions') });
  await sections.run({ title: 'report', seconds: 20, command: [node, 'scripts/gpu/report.mjs', results, page] });
  return sections.conclude();
}

function describeMachine() {
  const query = 'name,driver_version,memory.total,compute_mode,mig.mode.current,clocks.max.sm,clocks.max.mem';
  const { stdout, error } = spawnSync('nvidia-smi', [`--query-gpu=${query}`, '--format=csv'], { encoding: 'utf8', timeout: 20_000 });
  const text = error === undefined ? stdout : 'nvidia-smi is not there\n';
  sections.say(text);
  return text;
}

/** cuBLAS where no loader looks: in a toolkit, or among Python's packages. */
async function findCublas(load) {
  const roots = ['/usr/local', '/opt', '/usr/lib', '/usr/lib64', '/root', '/home'].filter((folder) => existsSync(folder));
  const { stdout } = spawnSync('find', [...roots, '-name', 'libcublas.so.1[1-9]'], { encoding: 'utf8', timeout: 15_000 });
  for (const library of (stdout ?? '').split('\n').filter(Boolean).slice(0, 3)) {
    const title = `${load.title}, with ${library}`;
    if (!(await sections.run({ ...load, title, env: { VKV_CUBLAS: library } })).output.includes('by cublas')) continue;
    process.env.VKV_CUBLAS = library;
    return;
  }
}

/** The types whose kernels gave something wrong. Checking is the CPU's work mostly, so all go beside each other where they may. */
async function checkKernels(canShare) {
  const checks = dtypes.map((dtype) => ({
    title: `${dtype} kernels on cuda`, seconds: 220, env: scaled, command: ava('--match', `${dtype}, *`, 'build-test/kernels/cuda.test.js'),
  }));
  checks.push({ title: 'dense kernels on cuda', seconds: 150, env: scaled, command: ava('build-test/kernels/dense-cuda.test.js') });
  const runs = await runAll(checks, canShare);
  const wrong = dtypes.filter((_, index) => !runs[index].passed);
  for (const dtype of wrong) {
    await runAll(kernelShapes.map(({ dim, group }) => {
      const title = `${dtype}, head dim ${dim}, ${group} query heads to a KV head`;
      return { title: `by itself: ${title}`, seconds: 40, env: scaled, command: ava('--match', title, 'build-test/kernels/cuda.test.js') };
    }), canShare);
  }
  return wrong;
}

async function runAll(checks, canShare) {
  if (canShare) return Promise.all(checks.map((check) => sections.run({ ...check, beside: true })));
  const runs = [];
  for (const check of checks) runs.push(await sections.run(check));
  return runs;
}

process.exitCode = (await main()) ? 0 : 1;
