// The experiment of a report on prefix caching (Z. Lin, "Hashing Table Prefixing Implementation Report", 2024), repeated on the
// real cache: a share p of the requests are prompts from a small set of frequent ones, the others are random; 1,000 requests
// of 15 tokens; a pool of K rows. Prints a table, and draws an SVG with --svg FILE.
// Run it: npm run example -- hit-rate [--requests 1000] [--svg hit-rate.svg]
//
// Computing is modelled, not done: COMPUTE_MS a token. The time in the cache is measured, as processor time of this machine.
// Items per second are requests by the sum of both. Where this differs from the report, and why, is printed at the end.

import { writeFileSync } from 'node:fs';

import { KvCache, lru, type Sequence } from 'virtual-kv';

import { drawCharts, machine } from './charts/vega.js';
import { exampleCommand, runExample, wholeNumber } from './console/command.js';

const PROMPT_TOKENS = 15;
const FREQUENT_PROMPTS = 32;
/** Answers have 1 … 2 · 25 − 1 tokens. */
const MEAN_ANSWER_TOKENS = 25;
/** 20,000 tokens a second, prompt and answer alike. */
const COMPUTE_MS = 0.05;
const SHARES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1] as const;
/** Rows in the pool, 4 tokens each. A frequent prompt with its answer has 10. `off`: no prefix cache. */
const POOLS = ['off', 64, 256, 1_024, 16_384] as const;
type Pool = (typeof POOLS)[number];

interface Request { readonly tokens: readonly number[]; readonly answerTokens: number }
interface Served { readonly hitRate: number; readonly itemsPerSecond: number; readonly cacheUs: number }
interface Measured extends Served { readonly share: number; readonly pool: Pool }

const flags = exampleCommand('hit-rate', 'Hit rate and throughput of the prefix cache over the share of frequent prompts.')
  .option('--requests <count>', 'requests of each run', wholeNumber(1, 1_000_000), 1_000)
  .option('--svg <file>', 'draw both to an .svg file')
  .parse().opts<{ requests: number; svg?: string }>();

/** mulberry32: the same numbers in every run. */
function randomFrom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

function requestsFor(share: number, count: number): Request[] {
  const random = randomFrom(1);
  const prompt = (): number[] => Array.from({ length: PROMPT_TOKENS }, () => Math.floor(random() * 50_000));
  const frequent = Array.from({ length: FREQUENT_PROMPTS }, prompt);
  return Array.from({ length: count }, () => {
    const tokens = random() < share ? frequent[Math.floor(random() * FREQUENT_PROMPTS)]! : prompt();
    return { tokens, answerTokens: 1 + Math.floor(random() * (2 * MEAN_ANSWER_TOKENS - 1)) };
  });
}

/** Serves the requests one by one. `cacheUs`: time in the cache, per request. */
function serve(requests: readonly Request[], pool: Pool): Served {
  const cache = new KvCache({
    model: { layers: 4, kvHeads: 8, headDim: 128, dtype: 'float16' }, layout: 'fused', // 16 KiB a token: a row is 4 tokens
    slots: 4, maxTokens: 128, pageBytes: 65_536, memoryBudgetBytes: 2 ** 30, driver: 'host', mapper: 'off',
    prefixCache: pool === 'off' ? 'off' : { poolRows: pool, policy: lru() }, // the report's policy
  });
  const random = randomFrom(2);
  const batch = cache.createBatch(1);
  const compute = (sequence: Sequence, tokens: number): void => {
    batch.clear();
    batch.add(sequence, tokens);
    cache.prepare(batch);
    cache.commit(batch); // a kernel would have run before
  };
  let computedTokens = 0;
  const start = process.cpuUsage();
  for (const { tokens, answerTokens } of requests) {
    const sequence = cache.acquire({ tokens });
    computedTokens += tokens.length - sequence.cachedTokens + answerTokens - 1;
    compute(sequence, tokens.length - sequence.cachedTokens); // gives the first token of the answer
    for (let token = 1; token < answerTokens; token += 1) {
      sequence.append(Math.floor(random() * 50_000)); // sampled: no two answers are alike
      compute(sequence, 1);
    }
    sequence.release();
  }
  const { user, system } = process.cpuUsage(start);
  const cacheMs = (user + system) / 1e3;
  const { hitRate } = cache.prefixes.metrics;
  cache.close();
  const itemsPerSecond = (1e3 * requests.length) / (cacheMs + computedTokens * COMPUTE_MS);
  return { hitRate, itemsPerSecond, cacheUs: (1e3 * cacheMs) / requests.length };
}

/** One line for each p, one column for each pool. */
function table(title: string, rows: readonly Measured[], format: (measured: Measured) => string): string {
  const line = (cells: readonly string[]): string => cells.map((cell) => cell.padStart(11)).join('');
  const head = line(['p', ...POOLS.map((pool) => (pool === 'off' ? 'off' : `K = ${pool}`))]);
  const body = SHARES.map((share) =>
    line([share.toFixed(1), ...rows.filter((row) => row.share === share).map((row) => format(row))]));
  return [title, '', head, ...body, ''].join('\n');
}

/** Two charts side by side, hit rate and items per second over p; drawn by Vega, as the reports of `vkv replay` are. */
async function svgOf(rows: readonly Measured[], count: number): Promise<string> {
  const names = POOLS.map((pool) => (pool === 'off' ? 'no prefix cache' : `K = ${pool} rows`));
  const chart = (field: string, title: string, format: string): object => ({
    width: 340, height: 260, mark: { type: 'line', strokeWidth: 2, point: { size: 30 } },
    encoding: {
      x: { field: 'share', type: 'quantitative', title: 'share of frequent prompts, p', scale: { domain: [0, 1] } },
      y: { field, type: 'quantitative', title, axis: { format }, scale: { zero: true, ...field === 'hitRate' ? { domain: [0, 1] } : {} } },
      color: {
        field: 'name', type: 'nominal', title: null, sort: names, legend: { orient: 'top', symbolType: 'stroke' },
        scale: { domain: names, range: ['#8a94a0', '#7db3ee', '#3f7fd6', '#1c4f94', '#0b2447'] },
      },
    },
  });
  return drawCharts({
    text: 'What a prefix cache is worth, by the share of frequent prompts',
    lines: [
      `${count.toLocaleString('en-US')} requests of ${PROMPT_TOKENS} tokens a run, ${FREQUENT_PROMPTS} frequent prompts, pools of K rows of 4 tokens; computing modelled at ${COMPUTE_MS * 1e3} µs a token`,
      `time in the cache measured on ${machine()}`,
    ],
  }, rows.map((row) => ({ ...row, name: names[POOLS.indexOf(row.pool)] })), [
    chart('hitRate', 'prompt tokens from the cache', '.0%'), chart('itemsPerSecond', 'items per second', 'd'),
  ]);
}

const differences = `Against the report:
- The hit rate rises linearly with p in both, as long as the pool holds the frequent prompts with their answers (K = 1024
  and more: ${FREQUENT_PROMPTS} prompts of about 10 rows, and what comes between). A smaller pool is flushed by random
  requests before a prompt returns, and the line bends. The report does not say its K.
- Ours ends near 90 %, not at 100: one token of ${PROMPT_TOKENS} is always computed, and each prompt is new once. The
  report's rate is much lower (8.14 % with a single prompt for all), which it puts down to answers, no two of which are
  alike; here only the prompts' tokens count, and a match may end inside a row.
- For small p the cache costs more than it saves, in both: rows that are never used again are mapped, indexed and evicted,
  and without it a slot just keeps its pages. Prompts of ${PROMPT_TOKENS} tokens are the worst case for it: what a hit
  saves grows with the prompt, what it costs hardly does.
- The report's throughput is noisy because its answers differ from run to run; here all pools serve the same requests.`;

async function main(): Promise<void> {
  const count = flags.requests;
  for (const pool of POOLS) serve(requestsFor(0.5, count), pool); // the first runs also compile the code
  const rows = SHARES.flatMap((share) => {
    const requests = requestsFor(share, count);
    return POOLS.map((pool) => ({ share, pool, ...serve(requests, pool) }));
  });
  console.log(table(`Hit rate: prompt tokens that came from the cache, ${count} requests`, rows,
    ({ hitRate }) => `${(100 * hitRate).toFixed(1)} %`));
  console.log(table('Time in the cache, measured, per request', rows, ({ cacheUs }) => `${cacheUs.toFixed(0)} µs`));
  console.log(table(`Items per second: that time, and ${COMPUTE_MS * 1e3} µs for each token computed`, rows,
    ({ itemsPerSecond }) => itemsPerSecond.toFixed(0)));
  console.log(differences);
  if (flags.svg === undefined) return;
  writeFileSync(flags.svg, await svgOf(rows, count));
  console.log(`\nPlot: ${flags.svg}`);
}

runExample(main);
