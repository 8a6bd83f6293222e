// Many texts on the disk, some much more wanted than others, and memory above it that has room for a quarter of them: the paper's comparison. What a
// request waits for its first token, reads and answers, by how tokens are chosen and what memory keeps.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import Table from 'cli-table3';

import { allHeads, probeHeads, type TierKeeping, type TokenSelector } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import type { LlamaModel } from '#internal/llama/model.js';
import { format, median } from '../measure.js';
import { Bench, type ExactAnswer, type Measured, type Text, type Way } from './bench-cache.js';

const [warmUps, requests, answered] = [40, 40, 8];
const probes = 3;

interface Case {
  readonly name: string;
  readonly selector?: TokenSelector;
  readonly keeps?: TierKeeping;
  readonly isReordered?: boolean;
  readonly isComputed?: boolean;
}

/** Those that no ratio makes another first. */
const cases: readonly Case[] = [
  { name: 'computed again', isComputed: true },
  { name: 'all from disk' },
  { name: 'H2O', selector: allHeads() },
  { name: 'ours, not reordered', selector: probeHeads(), keeps: 'important' },
  { name: 'ours, reuse in the place of scores', selector: probeHeads(), isReordered: true },
  { name: 'ours, whole', selector: probeHeads(), keeps: 'important', isReordered: true },
];

export interface MemoryExperiment {
  readonly model: LlamaModel;
  /** Texts that requests go on behind; of each the last tokens are how another request goes on. */
  readonly texts: readonly Text[];
  readonly megabytesPerSecond: number;
  readonly ratios: readonly number[];
}

/** Of one case: means over requests. */
export interface MemoryResult extends Measured {
  readonly medianMs: number;
  readonly raisedBlocks: number;
  readonly reorderedBlocks: number;
}

/** Texts of Zipf's law: the number n is wanted 1/n times as often as the first. */
function draw(random: Random, count: number): number {
  const weights = Array.from({ length: count }, (_, index) => 1 / (index + 1));
  let at = random.next() * weights.reduce((sum, weight) => sum + weight, 0);
  return Math.max(0, weights.findIndex((weight) => (at -= weight) < 0));
}

/** The same requests for every case: a text's prefix, and the end of any. */
function requestsOf(texts: readonly Text[]): Text[] {
  const random = new Random(5);
  return Array.from({ length: warmUps + requests }, () => {
    const { tokens, prefix } = texts[draw(random, texts.length)]!;
    const own = tokens.slice();
    own.set(texts[random.integer(texts.length)]!.tokens.subarray(prefix), prefix);
    return { tokens: own, prefix };
  });
}

export class MemoryBench {
  readonly #experiment: MemoryExperiment;
  readonly #requests: readonly Text[];
  readonly #exact: ExactAnswer[] = [];

  constructor(experiment: MemoryExperiment) {
    this.#experiment = experiment;
    this.#requests = requestsOf(experiment.texts);
  }

  async run(): Promise<MemoryResult[]> {
    const results: MemoryResult[] = [];
    for (const each of cases.filter(({ selector }) => selector === undefined)) results.push(await this.#measure(each));
    for (const ratio of this.#experiment.ratios) for (const each of cases.filter(({ selector }) => selector !== undefined)) results.push(await this.#measure(each, ratio));
    return results;
  }

  async #measure({ name, selector, keeps = 'adaptive', isReordered = false, isComputed = false }: Case, ratio = 1): Promise<MemoryResult> {
    const { model, texts, megabytesPerSecond } = this.#experiment;
    const directory = mkdtempSync(path.join(tmpdir(), 'vkv-bench-memory-'));
    const bench = new Bench(model, directory, { probeHeads: selector?.looksAt === 'probe-keys' ? probes : 0, memory: { bytes: this.#memoryBytes, keeps } });
    const { throttled, cache: { prefixes } } = bench;
    try {
      await prefixes.tiers!.ready();
      for (let index = warmUps; index < warmUps + requests; index += 1) this.#exact[index] ??= await this.#exactly(bench, this.#requests[index]!);
      for (const text of texts) await bench.store(text);
      const way: Way = { name, ...selector === undefined ? { isComputed } : { selection: { ratio, selector } } };
      for (const text of this.#requests.slice(0, warmUps)) await bench.firstToken(text, way);
      const reorderedBlocks = isReordered ? await prefixes.tiers!.reorder({ mostBlocks: 2 ** 20 }) : 0;
      throttled.bytesPerMs = megabytesPerSecond * 1e3;
      const all: Measured[] = [];
      for (let index = warmUps; index < warmUps + requests; index += 1) all.push(await bench.request(this.#requests[index]!, way, this.#exact[index]!));
      const mean = (read: (measured: Measured) => number): number => all.reduce((sum, one) => sum + read(one), 0) / all.length;
      return {
        way: name, ratio: selector === undefined ? undefined : ratio, firstTokenMs: mean((one) => one.firstTokenMs), medianMs: median(all.map((one) => one.firstTokenMs)),
        readBytes: mean((one) => one.readBytes), chunks: mean((one) => one.chunks), neededBytes: mean((one) => one.neededBytes), fallBacks: mean((one) => one.fallBacks),
        agreement: mean((one) => one.agreement), perplexity: mean((one) => one.perplexity), divergence: mean((one) => one.divergence),
        raisedBlocks: prefixes.tiers!.metrics().raisedBlocks, reorderedBlocks,
      };
    } finally {
      await bench.close();
      rmSync(directory, { recursive: true, force: true });
    }
  }

  async #exactly(bench: Bench, text: Text): Promise<ExactAnswer> {
    const answer = await bench.answer(text, answered);
    bench.cache.prefixes.reset(); // nothing of it is in memory or on the disk
    return answer;
  }

  /** Room for a quarter of the texts, with probe keys. */
  get #memoryBytes(): number {
    const { model: { config: { layers, kvHeads, headDim } }, texts } = this.#experiment;
    const tokenBytes = layers * headDim * 2 * (2 * kvHeads + Math.min(probes, kvHeads));
    return Math.ceil(texts.length / 4) * texts[0]!.prefix * tokenBytes;
  }
}

export function printMemory(title: string, results: readonly MemoryResult[]): void {
  const table = new Table({
    head: [title, 'ratio', 'first token, mean ms', 'median', 'read from disk, KiB', 'chunks', 'agreement', 'perplexity', 'KL, nats', 'brought up', 'reordered'],
    style: { head: [], border: [] },
  });
  for (const { way, ratio, firstTokenMs, medianMs, readBytes, chunks, agreement, perplexity, divergence, raisedBlocks, reorderedBlocks } of results) {
    table.push([
      way, ratio === undefined ? '' : `${100 * ratio} %`, format(firstTokenMs), format(medianMs), format(readBytes / 1024, 0), format(chunks, 0), `${format(100 * agreement, 0)} %`,
      format(perplexity), format(divergence, 3), raisedBlocks, reorderedBlocks,
    ]);
  }
  console.log(table.toString());
}
