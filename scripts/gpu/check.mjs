// gpu-check's main program: runs plan.mjs over a GPU or a simulated one, with the tools of this machine.
//   node scripts/gpu/check.mjs --seconds N --results RESULTS.json [--simulated]

import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';

import { before, makePlan } from './plan.mjs';
import { addResults } from './results.mjs';
import { runPlan, sectionsAtOnce } from './run-plan.mjs';
import { Sections } from './sections.mjs';

const require = createRequire(import.meta.url);
const { kernelShapes } = require('../../build-test/helpers/kernel-shapes.js');
const { contractGroups } = require('../../build-test/contract/contract-groups.js');

const { values: flags } = parseArgs({
  options: { seconds: { type: 'string' }, results: { type: 'string' }, simulated: { type: 'boolean', default: false } },
});
const { results, simulated } = flags;
const page = results.replace(/(\.json)?$/, '.md');
mkdirSync(path.dirname(results), { recursive: true });
for (const file of [results, page]) rmSync(file, { force: true });
const ended = [];
const sections = new Sections({
  seconds: Number(flags.seconds), log: results.replace(/(\.json)?$/, '.log'),
  onEnd: (section) => {
    ended.push(section);
    addResults(results, { sections: ended });
  },
});

const node = process.execPath;
const programs = {
  vkv: (...args) => [node, 'dist/cli/vkv.js', ...args],
  script: (name, ...args) => [node, `scripts/gpu/${name}`, ...args],
  measure: (...args) => [node, 'scripts/gpu/measure.mjs', '--probe', 'bin/probe', '--json', results, ...args],
  ava: (...args) => [node, 'node_modules/ava/entrypoints/cli.mjs', ...args],
};

function describeMachine() {
  const query = 'name,driver_version,memory.total,compute_mode,mig.mode.current,clocks.max.sm,clocks.max.mem';
  const { stdout, error } = spawnSync('nvidia-smi', [`--query-gpu=${query}`, '--format=csv'], { encoding: 'utf8', timeout: before.machine * 1e3 });
  const text = error === undefined ? stdout : 'nvidia-smi is not there\n';
  sections.say(text);
  const memoryMiB = [...text.matchAll(/(\d+) MiB/g)].map(([, size]) => Number(size)); // one for each GPU; none where it does not tell
  return { canShare: !/Exclusive/.test(text), ...(memoryMiB.length > 0 ? { memoryMiB: Math.min(...memoryMiB) } : {}) };
}

/** The first cuBLAS outside the loader's path: in a toolkit, or among Python's packages. */
function findCublas() {
  const roots = ['/usr/local', '/opt', '/usr/lib', '/usr/lib64', '/root', '/home'].filter((folder) => existsSync(folder));
  const { stdout } = spawnSync('find', [...roots, '-name', 'libcublas.so.1[1-9]'], { encoding: 'utf8', timeout: before.search * 1e3 });
  return (stdout ?? '').split('\n').find(Boolean);
}

/** Whether the loader finds a cuBLAS by itself. */
function hasCublas() {
  const { status } = spawnSync(node, ['scripts/gpu/load.mjs', 'cublas'], { timeout: before.loader * 1e3 });
  return status === 0;
}

const machine = describeMachine();
if (!simulated && process.env.VKV_CUBLAS === undefined && !hasCublas()) {
  const library = findCublas();
  if (library !== undefined) process.env.VKV_CUBLAS = library;
  sections.say(library === undefined ? 'there is no cuBLAS\n' : `cuBLAS: ${library}\n`);
}
const plan = makePlan({ programs, results, page, simulated, shapes: kernelShapes, groups: contractGroups });
const atOnce = sectionsAtOnce({ ...machine, processors: availableParallelism() });
sections.say(`sections at the same time: ${atOnce} at most\n`);
process.exit((await runPlan(plan, sections, { atOnce })) ? 0 : 1); // a process that was left behind is not waited for
