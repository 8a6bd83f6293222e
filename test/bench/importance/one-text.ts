// One text at a time, on the disk alone: time to the first token, bytes and chunks read, and quality, by how its tokens are chosen and how many are
// loaded. What reads no probe keys has a disk without them.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import Table from 'cli-table3';

import { allHeads, firstAndLast, probeHeads, randomTokens, type TokenSelector } from 'virtual-kv';

import type { LlamaModel } from '#internal/llama/model.js';
import { format, median } from '../measure.js';
import { Bench, type ExactAnswer, type Measured, type Text, type Way } from './bench-cache.js';

const rounds = Number(process.env['VKV_BENCH_ROUNDS'] ?? 3);
/** What the paper chose. */
const usualProbes = 3;

interface Case {
  readonly way: Way;
  /** KV heads whose keys are stored once more. */
  readonly probes: number;
  readonly isReordered?: boolean;
  /** Tokens of a stored block. Default 64. */
  readonly blockTokens?: number;
}

export interface Experiment {
  readonly model: LlamaModel;
  readonly texts: readonly Text[];
  readonly megabytesPerSecond: number;
  readonly ratios: readonly number[];
  /** Also once blocks are reordered. */
  readonly isReordered?: boolean;
}

/** Of blocks that are reordered, where rows are so short that one of the others is a few chunks. */
const longBlock = 256;

/** Reordered ones last, since their blocks do not come back to the order of the text. */
function casesOf({ model: { config: { kvHeads } }, ratios, isReordered = false }: Experiment): Case[] {
  const at = (name: string, selector: () => TokenSelector, probes = 0): Case[] => ratios.map((ratio) => ({ way: { name, selection: { ratio, selector: selector() } }, probes }));
  const reordered = (cases: readonly Case[], blockTokens?: number): Case[] =>
    cases.filter(({ way }) => 'selection' in way && way.selection.ratio < 1).map((one) => ({ ...one, isReordered: true, ...blockTokens === undefined ? {} : { blockTokens } }));
  return [
    { way: { name: 'computed again', isComputed: true }, probes: 0 }, { way: { name: 'all from disk', isComputed: false }, probes: 0 },
    ...at('probe heads (IMPRESS)', probeHeads, usualProbes), ...at('all heads (H2O)', allHeads), ...at('first and last', firstAndLast), ...at('random', randomTokens),
    ...isReordered ? reordered(at('probe heads, reordered', probeHeads, usualProbes)) : [],
    ...kvHeads < 2 * usualProbes ? reordered(at('one probe head, reordered', probeHeads, 1), longBlock) : [],
  ];
}

/** Medians of times and bytes over rounds and texts, means of quality. */
export async function measure(experiment: Experiment): Promise<Measured[]> {
  const { model, texts, megabytesPerSecond } = experiment;
  const directory = mkdtempSync(path.join(tmpdir(), 'vkv-bench-importance-'));
  const benches = new Map<string, Bench>();
  const exact: ExactAnswer[] = [];
  const benchOf = async ({ probes, blockTokens = 64 }: Case): Promise<Bench> => {
    const name = `${probes} heads, ${blockTokens} tokens`;
    let bench = benches.get(name);
    if (bench !== undefined) return bench;
    bench = new Bench(model, path.join(directory, name), { probeHeads: probes, blockTokens });
    benches.set(name, bench);
    await bench.cache.prefixes.tiers!.ready();
    for (const [index, text] of texts.entries()) {
      exact[index] ??= await bench.answer(text);
      await bench.drop();
      await bench.store(text);
    }
    return bench;
  };
  try {
    const results: Measured[] = [];
    for (const each of casesOf(experiment)) {
      const { way, isReordered } = each;
      const bench = await benchOf(each);
      bench.throttled.bytesPerMs = Infinity;
      if (isReordered === true && 'selection' in way) await bench.reorder(texts, way);
      bench.throttled.bytesPerMs = megabytesPerSecond * 1e3;
      const all: Measured[] = [];
      for (let round = 0; round < rounds; round += 1) for (const [index, text] of texts.entries()) all.push(await bench.request(text, way, exact[index]!));
      results.push(summaryOf(all));
    }
    return results;
  } finally {
    for (const bench of benches.values()) await bench.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Of requests of one way: medians of times and bytes, means of quality. */
export function summaryOf(all: readonly Measured[]): Measured {
  const of = (read: (measured: Measured) => number): number => median(all.map(read));
  const mean = (read: (measured: Measured) => number): number => all.reduce((sum, one) => sum + read(one), 0) / all.length;
  const [{ way, ratio }] = all as [Measured];
  return {
    way, ratio, firstTokenMs: of(({ firstTokenMs }) => firstTokenMs), readBytes: of(({ readBytes }) => readBytes), chunks: of(({ chunks }) => chunks),
    neededBytes: of(({ neededBytes }) => neededBytes), fallBacks: mean(({ fallBacks }) => fallBacks), agreement: mean(({ agreement }) => agreement),
    perplexity: mean(({ perplexity }) => perplexity), divergence: mean(({ divergence }) => divergence),
  };
}

export function print(title: string, results: readonly Measured[]): void {
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
