// The reference engine beside llama.cpp: the same file of random weights of SmolLM2-360M's shape, the same prompts, greedily, in one table for all
// types. Run it: node build-test/bench/llama-cpp/llama-cpp.js [F16 …] [--rounds 5] [--load "decode, 1"], which takes the loads whose names begin so,
// once `npm test -- build-test/base` has compiled it and `npm install --prefix build/llama-cpp --no-save node-llama-cpp@3` has installed the other.
// Also `npm run bench -- llama-cpp`: all types, two rounds.

import { existsSync } from 'node:fs';
import { availableParallelism, cpus } from 'node:os';

import Table from 'cli-table3';

import { format, median, type BenchResult } from '../measure.js';
import { cases, compare, howToInstall, isEqual, numbersOf, peer, ratios, types, verdictOf, type Comparison } from './compare.js';

const defaultRounds = 5;
const benchRounds = 2;

/** For `npm run bench`; without the other program a line that says what to install. */
export async function llamaCpp(): Promise<BenchResult[]> {
  if (!existsSync(peer)) {
    console.error(howToInstall);
    return [];
  }
  const results: BenchResult[] = [];
  for (const type of types) {
    const { rows, sameTokens, tokens } = await compare(type, benchRounds);
    results.push(...rows.map((row) => ({
      name: `${type}: ${row.name}`, value: numbersOf(row.ours, row), against: `llama.cpp ${numbersOf(row.theirs, row)}: ${verdictOf(row)}${row.setting === undefined ? '' : ` (${row.setting})`}`,
      isGoalMet: isEqual(row) || median(ratios(row)) >= 1, numbers: { ours: median(row.ours), theirs: median(row.theirs), ratio: median(ratios(row)) },
    })), {
      name: `${type}: tokens up to the first in an answer that differs`, value: format(sameTokens), against: `of ${format(tokens)}`, isGoalMet: undefined, numbers: { sameTokens, tokens },
    });
  }
  return results;
}

/** Loads down, types across: virtual-kv, llama.cpp, and the ratio. */
function tableOf(comparisons: readonly Comparison[], rounds: number): string {
  const table = new Table({ head: [`medians of ${rounds} rounds: virtual-kv | llama.cpp`, ...comparisons.map(({ type }) => type)], style: { head: [], border: [] } });
  for (const [at, { name }] of comparisons[0]!.rows.entries()) {
    table.push([name, ...comparisons.map(({ rows }) => {
      const row = rows[at]!;
      return [`${numbersOf(row.ours, row)} | ${numbersOf(row.theirs, row)}`, verdictOf(row), ...row.setting === undefined ? [] : [row.setting.replaceAll(', ', ',\n')]].join('\n');
    })]);
  }
  table.push(['tokens up to the first in an answer that differs', ...comparisons.map(({ sameTokens, tokens }) => `${format(sameTokens)} of ${format(tokens)}`)]);
  return table.toString();
}

async function main(): Promise<void> {
  if (!existsSync(peer)) throw new Error(howToInstall);
  const option = (name: string): string | undefined => process.argv.includes(name) ? process.argv[process.argv.indexOf(name) + 1] : undefined;
  const rounds = Number(option('--rounds') ?? defaultRounds);
  const load = option('--load') ?? '';
  if (!cases.some(({ name }) => name.startsWith(load))) throw new Error(`No load begins with \`${load}\`; there are: ${cases.map(({ name }) => name).join('; ')}`);
  const named = types.filter((type) => process.argv.includes(type));
  const comparisons: Comparison[] = [];
  for (const type of named.length > 0 ? named : types) comparisons.push(await compare(type, rounds, load));
  console.log(`${cpus()[0]?.model ?? 'unknown CPU'}, ${availableParallelism()} threads, Node ${process.version}\n${tableOf(comparisons, rounds)}`);
}

if (require.main === module) void main();
