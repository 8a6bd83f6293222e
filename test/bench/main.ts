// `npm run bench`: all benchmarks, as a table for people; `--json FILE` also writes the numbers. Never part of the tests:
// the machine decides the times, and only the ratios within one run mean something. The mean says nothing; medians do.

import { writeFileSync } from 'node:fs';
import { availableParallelism, cpus, release, totalmem } from 'node:os';

import Table from 'cli-table3';

import { decode } from './decode.js';
import { dense } from './dense.js';
import { growth } from './growth.js';
import { kernels } from './kernels.js';
import { llama } from './llama.js';
import type { BenchResult } from './measure.js';
import { prefixIndex } from './prefix-index.js';
import { prefixReuse } from './prefix-reuse.js';
import { replayMemory } from './replay-memory.js';
import { replayPrefixes } from './replay-prefixes.js';
import { reserve } from './reserve.js';
import { sideTensors } from './side-tensors.js';
import { step } from './step.js';

const machine = `${cpus()[0]?.model ?? 'unknown CPU'}, ${availableParallelism()} threads, ` +
  `${Math.round(totalmem() / 2 ** 30)} GiB, Linux ${release()}, Node ${process.version}`;

const benchmarks: readonly (() => BenchResult | BenchResult[])[] = [
  step, () => growth(2 * 2 ** 20), () => growth(64 * 1024), decode, reserve, kernels, dense, llama, replayMemory,
  prefixIndex, prefixReuse, sideTensors, replayPrefixes,
];

const results: BenchResult[] = [];
for (const benchmark of benchmarks) {
  process.stderr.write('.');
  results.push(...[benchmark()].flat());
}
process.stderr.write('\n');

const verdict = { true: 'met', false: 'missed', undefined: '' };
const table = new Table({ head: ['benchmark', 'measured', 'against', 'goal'], style: { head: [], border: [] } });
for (const { name, value, against, isGoalMet } of results) table.push([name, value, against, verdict[`${isGoalMet}`]]);
console.log(`${machine}\n${table.toString()}`);

const jsonAt = process.argv.indexOf('--json');
const jsonFile = jsonAt < 0 ? undefined : process.argv[jsonAt + 1];
if (jsonFile !== undefined) writeFileSync(jsonFile, `${JSON.stringify({ machine, results }, undefined, 2)}\n`);
