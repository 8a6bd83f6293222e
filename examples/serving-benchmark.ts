// Measures prefix caching in a server: the same requests through the three schedulers, with the prefix cache off and on, on
// the small Llama of this repository. It repeats a published run: 64 requests with 54,784 prompt tokens with shared
// prefixes and 1,024 completion tokens; the prompts are random token ids, and the answers are not shown.
// In that run the cache made offline prefill 4.3 times faster (1.087 s to 0.251 s), and the whole 1.26 times.
// Run it: npm start, or npm run example -- serving-benchmark [--requests 64] [--shared 768] [--groups 4] [--report FILE.svg]
//         [--driver host] (default: the GPU where there is one)

import { accessSync, constants, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import { Option } from 'commander';

import {
  Driver, KvCache, NaiveScheduler, OfflineScheduler, OnlineScheduler, type GenerationRequest, type ServingTotals,
} from 'virtual-kv';
import { LlamaEngine, LlamaModel } from 'virtual-kv/llama';

import { drawCharts, machine } from './charts/vega.js';
import { exampleCommand, runExample, wholeNumber } from './console/command.js';

const promptTokens = 856;

const completionTokens = 16;
const slots = 16;
const maxTokens = 1_024;

const flags = exampleCommand('serving-benchmark', 'Serves requests that share prefixes by three schedulers, without and with the prefix cache.')
  .option('--requests <count>', 'requests', wholeNumber(1, 10_000), 64)
  .option('--shared <tokens>', `tokens at the start of each prompt of ${promptTokens} that its group has in common`, wholeNumber(1, promptTokens - 1), 768)
  .option('--groups <count>', 'groups of prompts that begin alike', wholeNumber(1, 10_000), 4)
  .option('--report <file>', 'draw the times to an .svg file')
  .addOption(new Option('--driver <kind>', 'where to compute').choices(['auto', 'cuda', 'host'] as const).default('auto'))
  .parse().opts<{ requests: number; shared: number; groups: number; report?: string; driver: 'auto' | 'cuda' | 'host' }>();

interface Setting {
  readonly driver: Driver;
  readonly model: LlamaModel;
  readonly requests: readonly GenerationRequest[];
}

/** Tokens of a text that no other request has: a Weyl sequence over the vocabulary. */
function textOf(name: number, tokens: number, vocabularyTokens: number): number[] {
  const step = ((name * 31) % 611) + 101;
  return Array.from({ length: tokens }, (_, at) => 2 + ((name * 7_919 + (at + 1) * step) % (vocabularyTokens - 2)));
}

function makeRequests(vocabularyTokens: number): GenerationRequest[] {
  const groups = Array.from({ length: flags.groups }, (_, group) => textOf(group, flags.shared, vocabularyTokens));
  return Array.from({ length: flags.requests }, (_, request) => ({
    tokens: [...groups[request % groups.length]!, ...textOf(1_000 + request, promptTokens - flags.shared, vocabularyTokens)],
    maxNewTokens: completionTokens,
  }));
}

interface Run {
  readonly totals: Readonly<ServingTotals>;
  readonly seconds: number;
  readonly mebibytes: number;
  /** Bytes of sequences of full length in all slots. */
  readonly staticMebibytes: number;
  readonly answers: string;
}

async function run(scheduler: string, prefixCache: 'off' | 'on', setting: Setting): Promise<Run> {
  const { driver, model } = setting;
  using cache = new KvCache({
    model: model.shape(), slots, maxTokens, memoryBudgetBytes: 2 ** 28, driver,
    pageBytes: Math.max(65_536, driver.info.granularityBytes), layout: 'fused', prefixCache: prefixCache === 'on' ? {} : 'off',
  });
  using engine = new LlamaEngine({ model, cache });
  const answers: (readonly number[])[] = [];
  const start = performance.now();
  const totals = await generate(scheduler, cache, engine, setting.requests, answers);
  const seconds = (performance.now() - start) / 1e3;
  const { createdPages } = cache.pool.counts();
  const { pageBytes } = cache.layout;
  const staticMebibytes = (slots * cache.layout.usedBytes(maxTokens)) / 2 ** 20;
  return { totals, seconds, mebibytes: (createdPages * pageBytes) / 2 ** 20, staticMebibytes, answers: answers.join(';') };
}

async function generate(
  name: string, cache: KvCache, engine: LlamaEngine, requests: readonly GenerationRequest[], answers: (readonly number[])[],
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
  return name.padEnd(10) + prefixCache.padEnd(5) + cells.map((cell) => cell.padStart(10)).join('');
}

/** The title of the report: what was gained, the workload, the machine. */
function titleOf(runs: readonly NamedRun[], { requests, driver, model }: Setting): { readonly text: string; readonly lines: readonly string[] } {
  const of = (cache: string): readonly NamedRun[] => runs.filter(({ prefixCache }) => prefixCache === cache);
  const gains = of('off').map(({ run }, at) => run.totals.prefillMs / of('on')[at]!.run.totals.prefillMs);
  const { totals } = of('on')[0]!.run;
  const count = (value: number): string => value.toLocaleString('en-US');
  return {
    text: `A prefix cache makes prefill ${Math.min(...gains).toFixed(1)} to ${Math.max(...gains).toFixed(1)} times faster`,
    lines: [
      `${count(requests.length)} requests, ${count(requests.length * promptTokens)} prompt tokens in ${count(flags.groups)} groups that share ${count(flags.shared)} of ${count(promptTokens)} each, ` +
        `${count(totals.generatedTokens)} completion tokens; hit rate ${(100 * totals.cachedTokens / totals.promptTokens).toFixed(0)} %`,
      `storyteller, ${count(Math.round(model.config.layers))} layers; ${driver.info.deviceName}; ${machine()}`,
    ],
  };
}

interface NamedRun {
  readonly name: string;
  readonly prefixCache: string;
  readonly run: Run;
}

/** Seconds of prefill, and completion tokens per second, of each scheduler without and with the prefix cache, with their numbers. */
async function draw(file: string, runs: readonly NamedRun[], setting: Setting): Promise<void> {
  const values = runs.map(({ name, prefixCache, run: { totals, seconds } }) => ({
    name, cache: `prefix cache ${prefixCache}`, prefill: totals.prefillMs / 1e3, speed: totals.generatedTokens / seconds,
  }));
  const chart = (field: string, title: string, format: string): object => ({
    width: 320, height: 240, title: { text: title, anchor: 'start', fontSize: 13, fontWeight: 'normal', offset: 10 },
    encoding: {
      x: { field: 'name', type: 'nominal', title: null, sort: null, axis: { labelAngle: 0, domain: false, ticks: false, labelPadding: 8 } },
      xOffset: { field: 'cache', sort: null },
      y: { field, type: 'quantitative', title: null, scale: { zero: true }, axis: { domain: false, ticks: false, tickCount: 5 } },
      color: { field: 'cache', type: 'nominal', title: null, sort: null, legend: { orient: 'bottom', offset: 14 }, scale: { range: ['#9aa4af', '#3f7fd6'] } },
    },
    layer: [
      { mark: { type: 'bar', cornerRadiusEnd: 2 } },
      { mark: { type: 'text', dy: -7, fontSize: 12, color: '#1f2329' }, encoding: { text: { field, type: 'quantitative', format }, color: { value: '#1f2329' } } },
    ],
  });
  writeFileSync(file, await drawCharts(titleOf(runs, setting), values, [
    chart('prefill', 'seconds of prefill, less is better', '.2f'), chart('speed', 'completion tokens a second, more is better', ',.0f'),
  ]));
}

/** Throws unless the report can be written, before minutes are spent. */
function checkReport(file: string): void {
  try {
    accessSync(path.dirname(path.resolve(file)), constants.W_OK);
  } catch (cause) {
    throw new Error(`The report cannot be written to ${file}: ${(cause as Error).message}`, { cause });
  }
}

/** Makes all six runs and prints each as it ends. Throws when answers differ where they must not. */
async function compare(setting: Setting): Promise<void> {
  console.log('scheduler cache   prefill    decode     total  tokens/s  hit rate    memory');
  await run('naive', 'off', setting); // the compiler's turn
  const seen = new Set<string>();
  const gains: string[] = [];
  const runs: NamedRun[] = [];
  for (const name of ['naive', 'offline', 'online']) {
    const off = await run(name, 'off', setting);
    console.log(line(name, 'off', off));
    const on = await run(name, 'on', setting);
    console.log(line(name, 'on', on));
    runs.push({ name, prefixCache: 'off', run: off }, { name, prefixCache: 'on', run: on });
    seen.add(off.answers).add(on.answers);
    const [prefill, whole] = [off.totals.prefillMs / on.totals.prefillMs, off.seconds / on.seconds];
    gains.push(`  ${name.padEnd(10)}prefill ${prefill.toFixed(1).padStart(4)} ×, end to end ${whole.toFixed(2)} ×`);
  }
  console.log(`\nFaster with the prefix cache:\n${gains.join('\n')}`);
  console.log(`A static reservation for ${slots} sequences would take ${runs[0]!.run.staticMebibytes.toFixed(1)} MiB.`);
  if (flags.report !== undefined) {
    await draw(flags.report, runs, setting);
    console.log(`Report: ${flags.report}`);
  }
  if (seen.size === 1) console.log('All six runs gave the same tokens.');
  else if (setting.driver.kind === 'host') throw new Error('The answers differ.');
  else console.log('Some answers differ: a GPU splits attention, and so sums, by the batch, which decides where two tokens are as likely.');
}

async function main(): Promise<void> {
  if (flags.report !== undefined) checkReport(flags.report);
  const driver = Driver.open(flags.driver);
  const model = new LlamaModel(path.join(__dirname, '..', 'examples', 'llama', 'storyteller'), { cublas: 'off' }); // answers are compared
  const requests = makeRequests(model.config.vocabularyTokens);
  const place = model.acquirePlace(driver, 'blocking'); // the weights stay there from run to run
  console.log(`on ${driver.info.deviceName}, ${place.dense.target}`);
  console.log(`${requests.length} requests, ${requests.length * promptTokens} prompt tokens, ${requests.length * completionTokens} completion tokens\n`);
  await compare({ driver, model, requests });
  model.releasePlace(driver, place);
  driver.close();
}

runExample(main);
