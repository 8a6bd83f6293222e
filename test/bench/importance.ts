// The experiment of IMPRESS (FAST'25), small: a long prefix lies on a disk of a given bandwidth; a request goes on behind it. Time to its first token, bytes
// and chunks read, and how far the answer is from the exact one, for computing the prefix again, loading all of it, and loading important
// tokens. Two models: the shipped storyteller, whose words mean something, and one of random weights with 16 KV
// heads that are alike, whose sizes do.
// `node build-test/bench/importance.js [FOLDER]`: the whole table; with a folder of a Hugging Face model, that model's.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import Table from 'cli-table3';

import { allHeads, diskTier, firstAndLast, KvCache, probeHeads, randomTokens, type Sequence, type SelectionOptions, type Tier, type TokenSelector } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { LlamaTokenizer } from '#internal/llama/tokenizer.js';
import { randomLlama, writeLlama, type MadeLlama } from '../helpers/made-llama.js';
import { mostLikely } from '../helpers/logits.js';
import { format, median, type BenchResult } from './measure.js';

const wide = { layers: 4, hidden: 256, intermediate: 704, queryHeads: 16, kvHeads: 16, headDim: 64, vocabularyTokens: 512 };
const storyteller = path.resolve(__dirname, '..', '..', 'examples', 'llama', 'storyteller');
const rounds = Number(process.env['VKV_BENCH_ROUNDS'] ?? 3);
const suffixTokens = 16;
const answerTokens = 32;
const goal = 2;

/** A tier whose reads take as long as their bytes need at a bandwidth, one behind the other. */
class Throttled {
  bytesPerMs = Infinity;
  readonly tier: Tier;
  #freeAtMs = 0;

  constructor(inner: Tier) {
    const pass = async (bytes: number): Promise<void> => {
      if (this.bytesPerMs === Infinity) return;
      this.#freeAtMs = Math.max(performance.now(), this.#freeAtMs) + bytes / this.bytesPerMs;
      await sleep(this.#freeAtMs - performance.now());
    };
    this.tier = {
      name: 'disk', isLasting: true, takesOnlyWholeBlocks: false, capacityBytes: inner.capacityBytes, admitAfter: inner.admitAfter,
      open: (context) => inner.open(context), put: (record, payload) => inner.put(record, payload), remove: (keys) => inner.remove(keys),
      statistics: () => inner.statistics(), close: () => inner.close(), sizeOf: (bytes) => inner.sizeOf!(bytes),
      get: async (key, payload, signal) => {
        const got = await inner.get(key, payload, signal);
        await pass(payload.length);
        return got;
      },
      getTokens: async (key, parts, into, signal) => {
        const got = await inner.getTokens!(key, parts, into, signal);
        await pass(got.readBytes);
        return got;
      },
    };
  }
}

/** How a request's prefix comes. */
type Way = { readonly name: string } & ({ readonly selection: SelectionOptions } | { readonly isComputed: boolean });

interface Measured {
  readonly way: string;
  readonly ratio: number | undefined;
  readonly firstTokenMs: number;
  readonly readBytes: number;
  readonly chunks: number;
  readonly fallBacks: number;
  /** Share of the answer's tokens that are the exact ones, given the exact ones before. */
  readonly agreement: number;
  /** Of the exact answer. */
  readonly perplexity: number;
  /** Mean over the answer's tokens, in nats, of the exact distribution to this one. */
  readonly divergence: number;
}

/** A text: what is stored of it, and what a request goes on with. */
interface Text {
  readonly tokens: Int32Array;
  readonly prefix: number;
}

class Bench {
  readonly cache: KvCache;
  readonly throttled: Throttled;
  readonly #engine: LlamaEngine;
  #loaded = 0;

  constructor(model: LlamaModel, directory: string) {
    this.throttled = new Throttled(diskTier({ directory, bytes: 2 ** 30, admit: 'all', durability: 'none', chunkBytes: 4096 }));
    this.cache = new KvCache({
      model: model.shape('float16'), slots: 4, maxTokens: 4096, memoryBudgetBytes: 2 ** 29, driver: 'host',
      prefixCache: { tiers: [this.throttled.tier], modelId: 'bench', importance: { probeHeads: 3 }, tierBlockTokens: 64 },
    });
    this.#engine = new LlamaEngine({ model, cache: this.cache });
  }

  /** Computes a text's prefix, which then lies on the disk alone. */
  async store({ tokens, prefix }: Text): Promise<void> {
    const sequence = this.cache.acquire({ tokens: tokens.subarray(0, prefix) });
    await this.compute(sequence, tokens, prefix - sequence.length);
    sequence.release();
    await this.drop();
  }

  async drop(): Promise<void> {
    await this.cache.prefixes.tiers!.settled();
    (this.cache.prefixes as unknown as { readonly index: { clear(): void } }).index.clear();
    this.cache.counts();
  }

  /** The exact answer to a text, and the logits behind each of its tokens. */
  async answer(text: Text): Promise<{ readonly tokens: Int32Array; readonly logits: Float32Array[] }> {
    const sequence = this.cache.acquire({ tokens: text.tokens });
    const all = new Int32Array(text.tokens.length + answerTokens);
    all.set(text.tokens);
    const logits = [await this.compute(sequence, all, text.tokens.length - sequence.length)];
    for (let at = text.tokens.length; at < all.length; at += 1) {
      all[at] = mostLikely(logits.at(-1)!);
      if (at + 1 < all.length) logits.push(await this.compute(sequence, all, 1));
    }
    sequence.release();
    return { tokens: all, logits };
  }

  /** A request that goes on behind the prefix. `exact`: what it should answer. */
  async request({ tokens, prefix }: Text, way: Way, exact: { readonly tokens: Int32Array; readonly logits: readonly Float32Array[] }): Promise<Measured> {
    const { prefixes } = this.cache;
    const before = this.#counts();
    const beganMs = performance.now();
    const isLossy = 'selection' in way;
    const promotion = isLossy ? await prefixes.promote({ tokens, selection: way.selection }) : way.isComputed ? undefined : await prefixes.promote({ tokens });
    const sequence = this.cache.acquire({ tokens, selected: promotion?.selected, caching: 'read' });
    if (promotion !== undefined && sequence.length < prefix) throw new Error(`${way.name}: ${sequence.length} of ${prefix} tokens came: ${promotion.end}`);
    const logits = [await this.compute(sequence, exact.tokens, tokens.length - sequence.length)];
    const firstTokenMs = performance.now() - beganMs;
    const { readBytes, chunks, fallBacks } = this.#counts();
    while (logits.length < answerTokens) logits.push(await this.compute(sequence, exact.tokens, 1));
    if (sequence.selection?.failure !== undefined) throw sequence.selection.failure;
    sequence.release();
    await this.drop();
    let [agreed, logLikelihood, divergence] = [0, 0, 0];
    for (const [index, row] of logits.entries()) {
      const token = exact.tokens[tokens.length + index]!;
      const [own, theirs] = [logProbabilities(row), logProbabilities(exact.logits[index]!)];
      agreed += mostLikely(row) === token ? 1 : 0;
      logLikelihood += own[token]!;
      for (let at = 0; at < own.length; at += 1) divergence += Math.exp(theirs[at]!) * (theirs[at]! - own[at]!);
    }
    return {
      way: way.name, ratio: isLossy ? way.selection.ratio : undefined, firstTokenMs, readBytes: readBytes - before.readBytes, chunks: chunks - before.chunks,
      fallBacks: fallBacks - before.fallBacks, agreement: agreed / answerTokens, perplexity: Math.exp(-logLikelihood / answerTokens), divergence: divergence / answerTokens,
    };
  }

  async compute(sequence: Sequence, text: Int32Array, tokens: number): Promise<Float32Array> {
    const batch = this.cache.createBatch(1);
    batch.add(sequence, tokens);
    this.cache.prepare(batch);
    const from = sequence.length;
    const { logits } = await this.#engine[tokens === 1 ? 'decode' : 'prefill']({
      length: 1, slots: Int32Array.of(sequence.slot), positions: Int32Array.of(from), tokenCounts: Int32Array.of(tokens),
      tokens: text.slice(from, from + tokens), wantsLogits: Uint8Array.of(1), sequences: [sequence],
    });
    this.cache.commit(batch);
    return logits.slice(0, this.#engine.vocabularyTokens);
  }

  async close(): Promise<void> {
    await this.cache.prefixes.tiers!.close();
    this.#engine.close();
    this.cache.close();
  }

  #counts(): { readonly readBytes: number; readonly chunks: number; readonly fallBacks: number } {
    const { tiers, selections } = this.cache.prefixes.tiers!.metrics();
    this.#loaded = tiers[0]!.loadedBytes;
    return { readBytes: selections.readBytes + this.#loaded, chunks: selections.chunks, fallBacks: selections.fallBacks };
  }
}

function logProbabilities(logits: Float32Array): Float64Array {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const whole = Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - most), 0)) + most;
  return Float64Array.from(logits, (logit) => logit - whole);
}

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
async function measure(model: LlamaModel, texts: readonly Text[], megabytesPerSecond: number, ratios: readonly number[]): Promise<Measured[]> {
  const directory = mkdtempSync(path.join(tmpdir(), 'vkv-bench-importance-'));
  const bench = new Bench(model, directory);
  try {
    await bench.cache.prefixes.tiers!.ready();
    const exact = [];
    for (const text of texts) {
      exact.push(await bench.answer(text));
      await bench.drop();
      await bench.store(text);
    }
    bench.throttled.bytesPerMs = megabytesPerSecond * 1e3;
    const results: Measured[] = [];
    for (const way of waysAt(ratios)) {
      const all: Measured[] = [];
      for (let round = 0; round < rounds; round += 1) for (const [index, text] of texts.entries()) all.push(await bench.request(text, way, exact[index]!));
      const of = (read: (measured: Measured) => number): number => median(all.map(read));
      const mean = (read: (measured: Measured) => number): number => all.reduce((sum, one) => sum + read(one), 0) / all.length;
      results.push({
        way: way.name, ratio: all[0]!.ratio, firstTokenMs: of(({ firstTokenMs }) => firstTokenMs), readBytes: of(({ readBytes }) => readBytes), chunks: of(({ chunks }) => chunks),
        fallBacks: mean(({ fallBacks }) => fallBacks), agreement: mean(({ agreement }) => agreement), perplexity: mean(({ perplexity }) => perplexity),
        divergence: mean(({ divergence }) => divergence),
      });
    }
    return results;
  } finally {
    await bench.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Stories that the model tells, one behind the other: a prefix of many examples, and the start of another. */
async function storiesOf(folder: string, model: LlamaModel, prefix: number, count: number): Promise<Text[]> {
  const tokenizer = new LlamaTokenizer(folder);
  const random = new Random(prefix);
  const directory = mkdtempSync(path.join(tmpdir(), 'vkv-bench-stories-'));
  const bench = new Bench(model, directory);
  const openings = ['Once upon a time', 'One day', 'Tom had a', 'Lily saw a', 'There was a little', 'Ben and Mia'];
  const texts: Text[] = [];
  for (let text = 0; text < count; text += 1) {
    const tokens: number[] = [];
    while (tokens.length < prefix + suffixTokens) {
      const story = [...tokenizer.encode(openings[random.integer(openings.length)]!)];
      const sequence = bench.cache.acquire({ tokens: story, caching: 'off' });
      while (story.length < 150) {
        const logits = await bench.compute(sequence, Int32Array.from(story), story.length - sequence.length);
        const odds = logProbabilities(logits).map((log) => Math.exp(log / 0.8));
        let at = random.next() * odds.reduce((sum, odd) => sum + odd, 0);
        const next = odds.findIndex((odd) => (at -= odd) < 0);
        if (next < 0 || model.config.endTokens.includes(next)) break;
        story.push(next);
      }
      sequence.release();
      tokens.push(...story);
    }
    texts.push({ tokens: Int32Array.from(tokens.slice(0, prefix + suffixTokens)), prefix });
  }
  await bench.close();
  rmSync(directory, { recursive: true, force: true });
  return texts;
}

function randomTexts(vocabularyTokens: number, prefix: number, count: number): Text[] {
  const random = new Random(prefix);
  return Array.from({ length: count }, () => ({ prefix, tokens: Int32Array.from({ length: prefix + suffixTokens }, () => random.integer(vocabularyTokens)) }));
}

function print(title: string, results: readonly Measured[]): void {
  const table = new Table({ head: [title, 'ratio', 'first token, ms', '× all from disk', 'read, KiB', 'chunks', 'fall-backs', 'agreement', 'perplexity', 'KL, nats'], style: { head: [], border: [] } });
  const all = results.find(({ way }) => way === 'all from disk')!;
  for (const { way, ratio, firstTokenMs, readBytes, chunks, fallBacks, agreement, perplexity, divergence } of results) {
    table.push([
      way, ratio === undefined ? '' : `${100 * ratio} %`, format(firstTokenMs), format(all.firstTokenMs / firstTokenMs), format(readBytes / 1024, 0), chunks, format(fallBacks, 1),
      `${format(100 * agreement, 0)} %`, format(perplexity), format(divergence, 3),
    ]);
  }
  console.log(table.toString());
}

/** The same with heads that look at much the same tokens, as trained ones do: each is the first one and a little of its own. */
function withAlikeHeads({ config, tensors }: MadeLlama): MadeLlama {
  const alike = [...tensors].map(([name, { shape, values }]) => {
    if (!/[qk]_proj\.weight$/.test(name)) return [name, { shape, values }] as const;
    const head = wide.headDim * wide.hidden;
    return [name, { shape, values: values.map((value, index) => values[index % head]! + 0.1 * value) }] as const;
  });
  return { config, tensors: new Map(alike) };
}

async function withWide<T>(work: (model: LlamaModel) => Promise<T>): Promise<T> {
  const folder = writeLlama(withAlikeHeads(randomLlama(new Random(4), wide)));
  try {
    return await work(new LlamaModel(folder));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
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

async function main(folder = storyteller): Promise<void> {
  const ratios = [0.05, 0.1, 0.25, 0.5, 1];
  const model = new LlamaModel(folder);
  for (const prefix of [800]) {
    const texts = await storiesOf(folder, model, prefix, 3);
    for (const speed of [2, 8]) print(`${path.basename(folder)}, ${prefix} tokens, ${speed} MB/s`, await measure(model, texts, speed, ratios));
  }
  if (folder !== storyteller) return;
  await withWide(async (wideModel) => {
    for (const speed of [50]) print(`16 KV heads, 1500 tokens, ${speed} MB/s`, await measure(wideModel, randomTexts(wide.vocabularyTokens, 1_500, 1), speed, ratios));
  });
}

if (require.main === module) void main(process.argv[2]);
