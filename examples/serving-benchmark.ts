// What prefix caching is worth to a server: the same requests through the three schedulers, with the prefix cache off and on, on
// the small Llama of this repository. As in the published run it repeats, 64 requests have 54,784 prompt tokens with shared
// prefixes and 1,024 completion tokens; the prompts are made of random token ids, and nothing of the answers is shown.
// There the cache took prefill from 1.087 s to 0.251 s offline (4.3 times faster), and the whole to 1.26 times the speed.
// Run it: npm start, or npm run example -- serving-benchmark [--requests 64] [--shared 768] [--groups 4] [--report FILE.svg]
//         [--driver host] (default: the GPU where there is one)

import { writeFileSync } from 'node:fs';
import * as path from 'node:path';

import { Command, InvalidArgumentError, Option } from 'commander';

import {
  Driver, KvCache, NaiveScheduler, OfflineScheduler, OnlineScheduler, type GenerationRequest, type ServingTotals,
} from 'virtual-kv';

import { drawCharts } from './charts/vega.js';
import { LlamaEngine } from './llama/engine.js';
import { LlamaModel } from './llama/model.js';

const promptTokens = 856;

function count(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value) || value < 1 || value > 10_000) throw new InvalidArgumentError('It must be an integer from 1 to 10,000.');
  return value;
}

const flags = new Command('serving-benchmark')
  .option('--requests <count>', 'requests', count, 64)
  .option('--shared <tokens>', `tokens at the start of each prompt of ${promptTokens} that its group has in common`, count, 768)
  .option('--groups <count>', 'groups of prompts that begin alike', count, 4)
  .option('--report <file>', 'draw the times to an .svg file')
  .addOption(new Option('--driver <kind>', 'where to compute').choices(['auto', 'cuda', 'host'] as const).default('auto'))
  .parse().opts<{ requests: number; shared: number; groups: number; report?: string; driver: 'auto' | 'cuda' | 'host' }>();
const sharedTokens = Math.min(flags.shared, promptTokens - 1);
const completionTokens = 16;
const slots = 16;
const maxTokens = 1_024;
const driver = Driver.open(flags.driver);
const model = new LlamaModel(path.join(__dirname, '..', 'examples', 'llama', 'storyteller'), { cublas: 'off' }); // answers are compared

/** Tokens of a text that nobody else says: a Weyl sequence over the vocabulary. */
function textOf(name: number, tokens: number): number[] {
  const step = ((name * 31) % 611) + 101;
  return Array.from({ length: tokens }, (_, at) => 2 + ((name * 7_919 + (at + 1) * step) % (model.config.vocabularyTokens - 2)));
}

const groups = Array.from({ length: flags.groups }, (_, group) => textOf(group, sharedTokens));
const requests: GenerationRequest[] = Array.from({ length: flags.requests }, (_, request) => ({
  tokens: [...groups[request % groups.length]!, ...textOf(1_000 + request, promptTokens - sharedTokens)],
  maxNewTokens: completionTokens,
}));

let staticBytes = 0;

interface Run {
  readonly totals: Readonly<ServingTotals>;
  readonly seconds: number;
  readonly mebibytes: number;
  readonly answers: string;
}

async function run(scheduler: string, prefixCache: 'off' | 'on'): Promise<Run> {
  using cache = new KvCache({
    model: model.shape(), slots, maxTokens, memoryBudgetBytes: 2 ** 28, driver,
    pageBytes: Math.max(65_536, driver.info.granularityBytes), layout: 'fused', prefixCache: prefixCache === 'on' ? {} : 'off',
  });
  using engine = new LlamaEngine({ model, cache });
  const answers: (readonly number[])[] = [];
  const start = performance.now();
  const totals = await generate(scheduler, cache, engine, answers);
  const seconds = (performance.now() - start) / 1e3;
  const { createdPages } = cache.pool.counts();
  const { pageBytes } = cache.layout;
  staticBytes = slots * cache.layout.usedBytes(maxTokens);
  return { totals, seconds, mebibytes: (createdPages * pageBytes) / 2 ** 20, answers: answers.join(';') };
}

async function generate(
  name: string, cache: KvCache, engine: LlamaEngine, answers: (readonly number[])[],
): Promise<Readonly<ServingTotals>> {
  if (name === 'online') {
    await using scheduler = new OnlineScheduler({ cache, engine, maxWaiting: requests.length });
    const results = await Promise.all(requests.map((request) => scheduler.submit(request).result));
    answers.push(...results.map(({ tokens }) => [...tokens]));
    return scheduler.totals;
  }
  const scheduler = name === 'naive' ? new NaiveScheduler({ cache, engine }) : new OfflineScheduler({ cache, engine });
  for await (const outcome of scheduler.run(requests)) {
    if (outcome.status === 'rejected') throw outcome.reason as Error;
    answers[outcome.index] = [...outcome.value.tokens];
  }
  return scheduler.totals;
}

function line(name: string, prefixCache: string, { totals, seconds, mebibytes }: Run): string {
  const { prefillMs, decodeMs, cachedTokens, generatedTokens } = totals;
  const cells = [
    `${(prefillMs / 1e3).toFixed(3)} s`, `${(decodeMs / 1e3).toFixed(3)} s`, `${seconds.toFixed(3)} s`,
    (generatedTokens / seconds).toFixed(1), `${((100 * cachedTokens) / totals.promptTokens).toFixed(1)} %`,
    `${mebibytes.toFixed(1)} MiB`,
  ];
  return name.padEnd(9) + prefixCache.padEnd(7) + cells.map((cell) => cell.padStart(11)).join('');
}

/** Seconds of prefill and decode, and completion tokens per second, of each scheduler without and with the prefix cache. */
async function draw(file: string, runs: readonly { readonly name: string; readonly prefixCache: string; readonly run: Run }[]): Promise<void> {
  const values = runs.map(({ name, prefixCache, run: { totals, seconds } }) => ({
    name, cache: `prefix cache ${prefixCache}`, prefill: totals.prefillMs / 1e3, speed: totals.generatedTokens / seconds,
  }));
  const chart = (field: string, title: string): object => ({
    width: 300, height: 220, mark: 'bar',
    encoding: {
      x: { field: 'name', type: 'nominal', title: null, sort: null, axis: { labelAngle: 0 } },
      xOffset: { field: 'cache', sort: null },
      y: { field, type: 'quantitative', title },
      color: { field: 'cache', type: 'nominal', title: null, sort: null, legend: { orient: 'top' }, scale: { range: ['#9aa4af', '#3f7fd6'] } },
    },
  });
  writeFileSync(file, await drawCharts(values, [chart('prefill', 'seconds of prefill'), chart('speed', 'completion tokens per second')]));
}

async function main(): Promise<void> {
  const { length } = requests;
  const place = model.acquirePlace(driver); // the weights stay there from run to run
  console.log(`on ${driver.info.deviceName}, ${place.dense.target}`);
  console.log(`${length} requests, ${length * promptTokens} prompt tokens, ${length * completionTokens} completion tokens\n`);
  console.log('scheduler cache     prefill     decode      total   tokens/s   hit rate     memory');
  await run('naive', 'off'); // the compiler's turn
  const seen = new Set<string>();
  const gains: string[] = [];
  const runs: { name: string; prefixCache: string; run: Run }[] = [];
  for (const name of ['naive', 'offline', 'online']) {
    const off = await run(name, 'off');
    const on = await run(name, 'on');
    console.log(line(name, 'off', off));
    console.log(line(name, 'on', on));
    runs.push({ name, prefixCache: 'off', run: off }, { name, prefixCache: 'on', run: on });
    seen.add(off.answers).add(on.answers);
    const [prefill, whole] = [off.totals.prefillMs / on.totals.prefillMs, off.seconds / on.seconds];
    gains.push(`${name}: prefill ${prefill.toFixed(1)} ×, end to end ${whole.toFixed(2)} ×`);
  }
  console.log(`\nFaster with the prefix cache: ${gains.join('; ')}.`);
  console.log(`A static reservation for ${slots} sequences would take ${(staticBytes / 2 ** 20).toFixed(1)} MiB.`);
  if (flags.report !== undefined) {
    await draw(flags.report, runs);
    console.log(`Report: ${flags.report}`);
  }
  model.releasePlace(driver);
  if (seen.size === 1) console.log('All six runs gave the same tokens.');
  else if (driver.kind === 'host') throw new Error('the answers differ');
  else console.log('Some answers differ: a GPU splits attention, and so sums, by the batch, which decides where two tokens are as likely.');
  driver.close();
}

main().catch((error: unknown) => {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
});
