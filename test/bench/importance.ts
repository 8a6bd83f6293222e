// The experiment of IMPRESS (FAST'25), small: a long prefix lies on a disk of a given bandwidth; a request goes on behind it. Time to its first token, bytes
// and chunks read, and how far the answer is from the exact one, for computing the prefix again, loading all of it, and loading important
// tokens; then many texts with memory above the disk. Two models: the shipped storyteller, whose words mean something, and one of random weights with 16 KV
// heads that are alike, whose sizes do.
// `node build-test/bench/importance.js [FOLDER] [--svg FILE]`: the whole tables, and the picture; with a folder of a Hugging Face model, that model's.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import Table from 'cli-table3';

import { allHeads, firstAndLast, probeHeads, randomTokens, type TokenSelector } from 'virtual-kv';

import { LlamaModel } from '#internal/llama/model.js';
import { Bench, type Measured, type Text, type Way } from './importance/bench-cache.js';
import { printMemory } from './importance/memory.js';
import { draw } from './importance/picture.js';
import { randomTexts, storiesOf, wide, withWide } from './importance/texts.js';
import { format, median, type BenchResult } from './measure.js';

const storyteller = path.resolve(__dirname, '..', '..', 'examples', 'llama', 'storyteller');
const rounds = Number(process.env['VKV_BENCH_ROUNDS'] ?? 3);
const goal = 2;

function waysAt(ratios: readonly number[]): Way[] {
  const selectors: readonly (readonly [string, TokenSelector])[] = [
    ['probe heads (IMPRESS)', probeHeads()], ['all heads (H2O)', allHeads()], ['first and last', firstAndLast()], ['random', randomTokens()],
  ];
  return [
    { name: 'computed again', isComputed: true }, { name: 'all from disk', isComputed: false },
    ...selectors.flatMap(([name, selector]) => ratios.map((ratio) => ({ name, selection: { ratio, selector } }))),
  ];
}

/** Medians over rounds and texts. */
async function measure(model: LlamaModel, texts: readonly Text[], megabytesPerSecond: number, ratios: readonly number[], isReordered = false): Promise<Measured[]> {
  const directory = mkdtempSync(path.join(tmpdir(), 'vkv-bench-importance-'));
  const bench = new Bench(model, directory);
  try {
    await bench.cache.prefixes.tiers!.ready();
    const exact: { readonly tokens: Int32Array; readonly logits: Float32Array[] }[] = [];
    for (const text of texts) {
      exact.push(await bench.answer(text));
      await bench.drop();
      await bench.store(text);
    }
    bench.throttled.bytesPerMs = megabytesPerSecond * 1e3;
    const results: Measured[] = [];
    const measureWay = async (way: Way): Promise<void> => {
      const all: Measured[] = [];
      for (let round = 0; round < rounds; round += 1) for (const [index, text] of texts.entries()) all.push(await bench.request(text, way, exact[index]!));
      const of = (read: (measured: Measured) => number): number => median(all.map(read));
      const mean = (read: (measured: Measured) => number): number => all.reduce((sum, one) => sum + read(one), 0) / all.length;
      results.push({
        way: way.name, ratio: all[0]!.ratio, firstTokenMs: of(({ firstTokenMs }) => firstTokenMs), readBytes: of(({ readBytes }) => readBytes), chunks: of(({ chunks }) => chunks),
        neededBytes: of(({ neededBytes }) => neededBytes),
        fallBacks: mean(({ fallBacks }) => fallBacks), agreement: mean(({ agreement }) => agreement), perplexity: mean(({ perplexity }) => perplexity),
        divergence: mean(({ divergence }) => divergence),
      });
    };
    for (const way of waysAt(ratios)) await measureWay(way);
    for (const ratio of ratios) {
      if (!isReordered || ratio === 1) continue;
      const way = { name: 'probe heads, reordered', selection: { ratio, selector: probeHeads() } };
      bench.throttled.bytesPerMs = Infinity;
      await bench.reorder(texts, way);
      bench.throttled.bytesPerMs = megabytesPerSecond * 1e3;
      await measureWay(way);
    }
    return results;
  } finally {
    await bench.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

function print(title: string, results: readonly Measured[]): void {
  const table = new Table({ head: [title, 'ratio', 'first token, ms', '× all from disk', 'read, KiB', '× what it needs', 'chunks', 'fall-backs', 'agreement', 'perplexity', 'KL, nats'], style: { head: [], border: [] } });
  const all = results.find(({ way }) => way === 'all from disk')!;
  for (const { way, ratio, firstTokenMs, readBytes, neededBytes, chunks, fallBacks, agreement, perplexity, divergence } of results) {
    table.push([
      way, ratio === undefined ? '' : `${100 * ratio} %`, format(firstTokenMs), format(all.firstTokenMs / firstTokenMs), format(readBytes / 1024, 0), ratio === undefined ? '' : format(readBytes / neededBytes, 2), chunks, format(fallBacks, 1),
      `${format(100 * agreement, 0)} %`, format(perplexity), format(divergence, 3),
    ]);
  }
  console.log(table.toString());
}

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
  const stories = await measure(model, await storiesOf(storyteller, model, 800, 2), 4, [0.25]);
  const sizes = await withWide((wideModel) => measure(wideModel, randomTexts(wide.vocabularyTokens, 1_500, 1), 50, [0.1]));
  return [
    resultOf('storyteller, 800 tokens, 4 MB/s', stories, 'first and last', 0.25), resultOf('storyteller, 800 tokens, 4 MB/s', stories, 'probe heads (IMPRESS)', 0.25),
    resultOf('16 KV heads, 1,500 tokens, 50 MB/s', sizes, 'probe heads (IMPRESS)', 0.1),
  ];
}

async function main(parameters: readonly string[]): Promise<void> {
  const at = parameters.indexOf('--svg');
  const file = at < 0 ? undefined : parameters[at + 1];
  const folder = parameters.find((word, index) => !word.startsWith('--') && parameters[index - 1] !== '--svg') ?? storyteller;
  const ratios = [0.05, 0.1, 0.25, 0.5, 1];
  const model = new LlamaModel(folder);
  const name = path.basename(folder);
  const drawn: { title: string; results: readonly Measured[] }[] = [];
  const show = (title: string, results: readonly Measured[]): void => {
    print(title, results);
    drawn.push({ title, results });
  };
  for (const prefix of [200, 400, 800]) {
    const texts = await storiesOf(folder, model, prefix, 3);
    for (const speed of prefix === 800 ? [2, 8, 32] : [8]) show(`${name}, ${prefix} tokens, ${speed} MB/s`, await measure(model, texts, speed, ratios));
  }
  if (folder === storyteller) {
    await withWide(async (wideModel) => {
      for (const prefix of [500, 1_500, 3_000]) {
        const texts = randomTexts(wide.vocabularyTokens, prefix, 1);
        for (const speed of prefix === 1_500 ? [20, 50, 200] : [50]) show(`16 KV heads, ${prefix} tokens, ${speed} MB/s`, await measure(wideModel, texts, speed, ratios, true));
      }
      await printMemory(wideModel);
    });
  }
  if (file !== undefined) await draw(file, drawn);
}

if (require.main === module) void main(process.argv.slice(2));
