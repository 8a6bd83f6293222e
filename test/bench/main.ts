// `npm run bench [-- NAME …]`: all benchmarks, or those named, as a table for people; `--json FILE` also writes the numbers. Never part of the tests:
// the machine decides the times, and only the ratios within one run mean something. The mean says nothing; medians do.

import { writeFileSync } from 'node:fs';
import { availableParallelism, cpus, release, totalmem } from 'node:os';

import Table from 'cli-table3';

import { decode } from './decode.js';
import { dense } from './dense.js';
import { engines } from './engines.js';
import { eventLoop } from './event-loop.js';
import { growth } from './growth.js';
import { importance } from './importance.js';
import { kernels } from './kernels.js';
import { llama } from './llama.js';
import { llamaCpp } from './llama-cpp/llama-cpp.js';
import { llama2C } from './llama2-c.js';
import { loading } from './loading.js';
import type { BenchResult } from './measure.js';
import { onnx } from './onnx/onnx.js';
import { plainDecode } from './plain-decode.js';
import { prefillStep } from './prefill-step.js';
import { prefixIndex } from './prefix-index.js';
import { prefixReuse } from './prefix-reuse.js';
import { redisTierBench } from './redis-tier.js';
import { replayMemory } from './replay-memory.js';
import { replayPrefixes } from './replay-prefixes.js';
import { requests } from './requests.js';
import { reserve } from './reserve.js';
import { sampling } from './sampling.js';
import { scheduler } from './scheduler.js';
import { sideTensors } from './side-tensors.js';
import { soak } from './soak.js';
import { step } from './step.js';
import { store } from './store.js';
import { takeOver } from './take-over.js';
import { tierRequests } from './tier-requests.js';
import { tiers } from './tiers.js';
import { tokenizing } from './tokenizing.js';
import { windowsOfGemma } from './windows.js';

const machine = `${cpus()[0]?.model ?? 'unknown CPU'}, ${availableParallelism()} threads, ` +
  `${Math.round(totalmem() / 2 ** 30)} GiB, Linux ${release()}, Node ${process.version}`;

const benchmarks: Readonly<Record<string, () => BenchResult | BenchResult[] | Promise<BenchResult[]>>> = {
  step, growth: () => [growth(2 * 2 ** 20), growth(64 * 1024)], decode, reserve, kernels, dense, llama, onnx, 'plain-decode': plainDecode, 'llama-cpp': llamaCpp, 'llama2-c': llama2C, 'event-loop': eventLoop, 'prefill-step': prefillStep, loading, 'replay-memory': replayMemory, requests, sampling, scheduler,
  'prefix-index': prefixIndex, 'prefix-reuse': prefixReuse, 'side-tensors': sideTensors, 'redis-tier': redisTierBench,
  importance, 'replay-prefixes': replayPrefixes, 'take-over': takeOver, windows: windowsOfGemma, store, engines, tiers, 'tier-requests': tierRequests, tokenizing, soak,
};

/** Names on the command line; all without any. */
function chosen(): string[] {
  const names = process.argv.slice(2).filter((word, at, words) => !word.startsWith('--') && words[at - 1] !== '--json');
  const unknown = names.find((name) => !(name in benchmarks));
  if (unknown !== undefined) throw new Error(`There is no benchmark ${unknown}: choose from ${Object.keys(benchmarks).join(', ')}.`);
  return names.length === 0 ? Object.keys(benchmarks) : names;
}

async function main(): Promise<void> {
  const results: BenchResult[] = [];
  for (const name of chosen()) {
    process.stderr.write('.');
    results.push(...[await benchmarks[name]!()].flat());
  }
  process.stderr.write('\n');

  const verdict = { true: 'met', false: 'missed', undefined: '' };
  const table = new Table({ head: ['benchmark', 'measured', 'against', 'goal'], style: { head: [], border: [] } });
  for (const { name, value, against, isGoalMet } of results) table.push([name, value, against, verdict[`${isGoalMet}`]]);
  console.log(`${machine}\n${table.toString()}`);

  const jsonAt = process.argv.indexOf('--json');
  const jsonFile = jsonAt < 0 ? undefined : process.argv[jsonAt + 1];
  if (jsonFile !== undefined) writeFileSync(jsonFile, `${JSON.stringify({ machine, results }, undefined, 2)}\n`);
}

void main();
