// `npm run test:gpu-check`: packs what a GPU machine gets, and runs it there against the simulated device: once as it is, when every
// section passes; and once with a device that takes no kernels, a section that crashes and one that hangs, which cost only themselves
// and what needs the kernels. The last line is `N passed, N failed`, in sections that ended as they should.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';

import { makePlan } from './gpu/plan.mjs';
import { root } from './prepare.mjs';

const simulated = path.join(root, 'build-test', 'fake-libcuda');

function must(program, ...args) {
  const { status } = spawnSync(program, args, { cwd: root, stdio: 'inherit', env: { VKV_XZ_LEVEL: '0', ...process.env } });
  if (status !== 0) process.exit(status ?? 1);
}

/** Titles of the plan's sections that need the kernels. The shapes are a part of the tests, which are compiled by then. */
function needKernels() {
  const { kernelShapes } = createRequire(import.meta.url)('../build-test/helpers/kernel-shapes.js');
  const none = () => [];
  const programs = { vkv: none, script: none, measure: none, ava: none };
  return makePlan({ programs, simulated: true, shapes: kernelShapes, groups: [] })
    .filter(({ needs }) => needs === 'kernels').flatMap(({ sections }) => sections.map(({ title }) => title));
}

/** The verdict of each section, in order. */
function check(faults) {
  const results = path.join(folder, 'results.json');
  const { stdout, stderr, status } = spawnSync(
    'bash', [path.join(root, '.gpu-check', 'gpu-check'), '--library', path.join(simulated, '13000', 'libcuda.so.1'), results],
    { encoding: 'utf8', maxBuffer: 2 ** 28, env: { ...process.env, VKV_CUBLAS: path.join(simulated, 'libcublas.so'), FAKE_LIBCUDA: faults } });
  // Its own last line counts sections that should fail.
  console.log(`${stdout}${stderr}`.trimEnd().split('\n').slice(0, -1).join('\n'));
  return { status, sections: JSON.parse(readFileSync(results, 'utf8')).sections };
}

must('npm', 'run', 'gpu-bundle');
must(process.execPath, path.join(root, 'scripts', 'build-fake-libcuda.cjs'));
const folder = mkdtempSync(path.join(tmpdir(), 'virtual-kv-'));
const runs = [
  { faults: '', otherwise: {} },
  {
    // The last word of each names the processes of one section.
    faults: 'no-module,abort:cuMemCreate:growth,hang:cuMemCreate:tiers',
    otherwise: {
      'the kernels are loaded': 'FAILED (exit code 1)',
      ...Object.fromEntries(needKernels().map((title) => [title, 'skipped (without kernels)'])),
      'calls of the driver, growth beside work': 'FAILED (SIGABRT)',
      'copies of tiers': 'FAILED (it ran out of time)',
    },
  },
];
let passed = 0;
const wrong = [];
try {
  for (const { faults, otherwise } of runs) {
    console.log(`\n# gpu-check on the simulated device${faults ? ` that is told ${faults}` : ''}`);
    const { status, sections } = check(faults);
    const expected = { ...otherwise };
    for (const { title, verdict } of sections) {
      const should = expected[title] ?? 'passed';
      delete expected[title];
      if (verdict === should) passed += 1;
      else wrong.push(`${title}: ${verdict}, and not ${should}`);
    }
    wrong.push(...Object.keys(expected).map((title) => `${title}: it was not run`));
    if ((status === 0) !== (Object.keys(otherwise).length === 0)) wrong.push(`exit code ${status}`);
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}
for (const line of wrong) console.error(`virtual-kv: with gpu-check on the simulated device, ${line}`);
console.log(`${passed} passed, ${wrong.length} failed`);
process.exitCode = wrong.length > 0 ? 1 : 0;
