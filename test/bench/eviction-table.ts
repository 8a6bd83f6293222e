// The table of docs/eviction-policies.md: hit rates of every eviction policy, and of the clairvoyant one, on a trace and on
// generated workloads, at several sizes of the pool. Prints Markdown. Not part of the tests or of `npm run bench`.
//
//   node build-test/bench/eviction-table.js [--trace FILE] [--requests 6000] [--seed 1] [--rows-per-block 1]
//
// `gap closed`: how far from LRU to the clairvoyant the adaptive policy comes; empty where there are less than 0.5 points.

import { parseArgs } from 'node:util';

import { evictionPolicies, evictionPolicyNames } from '#internal/prefix/index.js';
import { readMooncakeJsonl } from '#internal/replay/mooncake-jsonl.js';
import { HASH_BLOCK_TOKENS } from '#internal/replay/trace-request.js';
import { TraceSource } from '#internal/replay/trace-source.js';
import { clairvoyantHits } from './clairvoyant.js';
import { evictionHits } from './eviction-replay.js';
import { evictionWorkloads } from './eviction-workloads.js';

interface Prompts {
  readonly name: string;
  readonly blocks: readonly Int32Array[];
  /** Tokens of each prompt; its last block may be shorter than the others. */
  readonly tokens: readonly number[];
  /** Tokens of each answer. */
  readonly answers: readonly number[];
  readonly poolsTokens: readonly number[];
}

const { values: flags } = parseArgs({
  options: {
    trace: { type: 'string' },
    requests: { type: 'string', default: '6000' },
    seed: { type: 'string', default: '1' },
    'rows-per-block': { type: 'string', default: '1' },
  },
});

/** The default one last, beside what `gap closed` compares it with. These prompts have no priorities. */
const [byDefault, ...others] = evictionPolicyNames.filter((name) => name !== 'priority');
const policies = [...others, byDefault!].map((name) => [name, evictionPolicies[name]()] as const);

async function ofTrace(path: string): Promise<Prompts> {
  const blocks: Int32Array[] = [];
  const tokens: number[] = [];
  const answers: number[] = [];
  for await (const parsed of readMooncakeJsonl(new TraceSource(path).chunks())) {
    if (!('request' in parsed) || parsed.request.hashIds === undefined) continue;
    blocks.push(parsed.request.hashIds);
    tokens.push(parsed.request.promptTokens);
    answers.push(parsed.request.outputTokens);
  }
  return { name: 'trace', blocks, tokens, answers, poolsTokens: [1e6, 3e6, 10e6] };
}

function generated(): Prompts[] {
  return evictionWorkloads.map((workload) => {
    const blocks = workload.requests(Number(flags.requests), Number(flags.seed));
    const tokens = blocks.map(({ length }) => length * HASH_BLOCK_TOKENS);
    return { name: workload.name, blocks, tokens, answers: tokens.map(() => 0), poolsTokens: [0.25e6, 1e6, 4e6] };
  });
}

const sum = (numbers: Iterable<number>): number => [...numbers].reduce((total, number) => total + number, 0);

const percent = (rate: number): string => (100 * rate).toFixed(1);

function row(prompts: Prompts, poolTokens: number): string {
  const capacityBlocks = Math.floor(poolTokens / HASH_BLOCK_TOKENS);
  const rowsPerBlock = Number(flags['rows-per-block']);
  const { blocks, tokens: promptTokens, answers: answerTokens } = prompts;
  const total = sum(promptTokens);
  const rates = policies.map(([, policy]) => (
    sum(evictionHits({ prompts: blocks, promptTokens, answerTokens, policy, capacityBlocks, rowsPerBlock })) / total
  ));
  const bestBlocks = clairvoyantHits(blocks, capacityBlocks);
  const best = sum(bestBlocks.map((found, at) => Math.min(found * HASH_BLOCK_TOKENS, promptTokens[at]!))) / total;
  const gap = best - rates[0]!;
  const closed = gap < 0.005 ? '' : `${percent((rates.at(-1)! - rates[0]!) / gap)} %`;
  const cells = [prompts.name, `${poolTokens / 1e6} M`, ...rates.map(percent), percent(best), closed];
  return `| ${cells.join(' | ')} |`;
}

async function main(): Promise<void> {
  const head = ['workload', 'pool', ...policies.map(([name]) => name), 'clairvoyant', 'gap closed'];
  console.log(`| ${head.join(' | ')} |\n|${' --- |'.repeat(head.length)}`);
  const all = [...(flags.trace === undefined ? [] : [await ofTrace(flags.trace)]), ...generated()];
  for (const prompts of all) for (const poolTokens of prompts.poolsTokens) console.log(row(prompts, poolTokens));
}

void main();
