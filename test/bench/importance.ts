// The experiment of IMPRESS (FAST'25), small: a long prefix lies on a disk of a given bandwidth; a request goes on behind it. Time to its first token, bytes
// and chunks read, and how far the answer is from the exact one, for computing the prefix again, loading all of it, and loading important
// tokens; then many texts with memory above the disk. Two models: the shipped storyteller, whose words mean something, and one of random weights with 16 KV
// heads that are alike, whose sizes do.
// `node build-test/bench/importance.js [FOLDER] [--svg FILE]`: all tables, and the picture; with a folder of a Hugging Face model, that model's. `--part
// words|sizes|memory-words|memory|memory-sizes`: one part, after the other; `--results FILE` keeps what was measured there, and the picture is of all that it has.

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';
import { parseArgs } from 'node:util';

import { LlamaModel } from '#internal/llama/model.js';
import type { Measured } from './importance/bench-cache.js';
import { MemoryBench, printMemory, type MemoryResult } from './importance/memory.js';
import { measure, print } from './importance/one-text.js';
import { draw, type Drawn } from './importance/picture.js';
import { randomTexts, storiesOf, wide, withWide } from './importance/texts.js';
import { format, type BenchResult } from './measure.js';

const storyteller = path.resolve(__dirname, '..', '..', 'examples', 'llama', 'storyteller');
const goal = 2;
const ratios = [0.05, 0.1, 0.25, 0.5, 1];
const parts = ['words', 'sizes', 'memory-words', 'memory', 'memory-sizes'];

function resultOf(name: string, results: readonly Measured[], way: string, ratio: number): BenchResult {
  const all = results.find((one) => one.way === 'all from disk')!;
  const own = results.find((one) => one.way === way && one.ratio === ratio)!;
  const times = all.firstTokenMs / own.firstTokenMs;
  return {
    name: `${name}: first token, ${way}, ratio ${100 * ratio} %`,
    value: `${format(own.firstTokenMs)} ms, ${format(own.readBytes / all.readBytes * 100, 0)} % of the bytes, ${format(100 * own.agreement, 0)} % of the exact tokens`,
    against: `${format(times)} × faster than loading all (goal ${goal} ×)`,
    isGoalMet: times >= goal,
    numbers: { milliseconds: own.firstTokenMs, times, agreement: own.agreement, divergence: own.divergence },
  };
}

export async function importance(): Promise<BenchResult[]> {
  const model = new LlamaModel(storyteller);
  const stories = await measure({ model, texts: await storiesOf(storyteller, model, 800, 2), megabytesPerSecond: 4, ratios: [0.25] });
  const sizes = await withWide((wideModel) => measure({ model: wideModel, texts: randomTexts(wide.vocabularyTokens, 1_500, 1), megabytesPerSecond: 50, ratios: [0.1] }));
  return [
    resultOf('storyteller, 800 tokens, 4 MB/s', stories, 'first and last', 0.25), resultOf('storyteller, 800 tokens, 4 MB/s', stories, 'probe heads (IMPRESS)', 0.25),
    resultOf('16 KV heads, 1,500 tokens, 50 MB/s', sizes, 'probe heads (IMPRESS)', 0.1),
  ];
}

/** What was measured, under its title; each is printed at once. */
class Report {
  readonly #drawn: Drawn[];
  readonly #file: string | undefined;

  constructor(file: string | undefined) {
    this.#file = file;
    this.#drawn = file !== undefined && existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) as Drawn[] : [];
  }

  get drawn(): readonly Drawn[] {
    return this.#drawn;
  }

  add(title: string, results: readonly Measured[]): void {
    print(title, results);
    this.#keep({ title, results });
  }

  addMemory(title: string, results: readonly MemoryResult[]): void {
    printMemory(title, results);
    this.#keep({ title, results });
  }

  #keep(drawn: Drawn): void {
    const at = this.#drawn.findIndex(({ title }) => title === drawn.title);
    if (at >= 0) this.#drawn.splice(at, 1);
    this.#drawn.push(drawn);
    if (this.#file !== undefined) writeFileSync(this.#file, JSON.stringify(this.#drawn));
  }
}

async function words(report: Report, folder: string): Promise<void> {
  const model = new LlamaModel(folder);
  for (const prefix of [200, 400, 800]) {
    const texts = await storiesOf(folder, model, prefix, 3);
    for (const megabytesPerSecond of prefix === 800 ? [2, 8, 32] : [8]) {
      report.add(`${path.basename(folder)}, ${prefix} tokens, ${megabytesPerSecond} MB/s`, await measure({ model, texts, megabytesPerSecond, ratios }));
    }
  }
}

async function sizes(report: Report, model: LlamaModel): Promise<void> {
  for (const prefix of [500, 1_500, 3_000]) {
    const texts = randomTexts(wide.vocabularyTokens, prefix, 1);
    for (const megabytesPerSecond of prefix === 1_500 ? [20, 50, 200] : [50]) {
      report.add(`16 KV heads, ${prefix} tokens, ${megabytesPerSecond} MB/s`, await measure({ model, texts, megabytesPerSecond, ratios, isReordered: true }));
    }
  }
}

async function memoryWords(report: Report, folder: string): Promise<void> {
  const model = new LlamaModel(folder);
  const experiment = { model, texts: await storiesOf(folder, model, 400, 12), megabytesPerSecond: 8, ratios: [0.1, 0.25, 0.5] };
  report.addMemory(`${path.basename(folder)}, 12 texts of 400 tokens, 8 MB/s`, await new MemoryBench(experiment).run());
}

async function memory(report: Report, model: LlamaModel, prefix: number, megabytesPerSecond: number, own: readonly number[]): Promise<void> {
  const texts = randomTexts(wide.vocabularyTokens, prefix, 12);
  report.addMemory(`16 KV heads, 12 texts of ${prefix} tokens, ${megabytesPerSecond} MB/s`, await new MemoryBench({ model, texts, megabytesPerSecond, ratios: own }).run());
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({ options: { svg: { type: 'string' }, part: { type: 'string' }, results: { type: 'string' } }, allowPositionals: true });
  if (values.part !== undefined && !parts.includes(values.part)) throw new Error(`--part is one of ${parts.join(', ')}, not ${values.part}`);
  const folder = positionals[0] ?? storyteller;
  const report = new Report(values.results);
  const does = (part: string): boolean => values.part === undefined || values.part === part;
  if (does('words')) await words(report, folder);
  if (does('memory-words')) await memoryWords(report, folder);
  if (folder === storyteller) {
    await withWide(async (model) => {
      if (does('sizes')) await sizes(report, model);
      if (does('memory')) await memory(report, model, 512, 50, ratios);
      if (does('memory-sizes')) for (const [prefix, speed] of [[512, 20], [512, 200], [256, 50], [1_024, 50]] as const) await memory(report, model, prefix, speed, [0.25]);
    });
  }
  if (values.svg !== undefined) await draw(values.svg, report.drawn);
}

if (require.main === module) void main();
