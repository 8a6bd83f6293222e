// Many texts on the disk, some much more wanted than others, and memory above it that has room for a quarter of them: what a request waits for its first
// token, by how tokens are chosen and what memory keeps.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import Table from 'cli-table3';

import { allHeads, probeHeads, type TierKeeping, type TokenSelector } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import type { LlamaModel } from '#internal/llama/model.js';
import { format, median } from '../measure.js';
import { Bench, suffixTokens, type Text, type Way } from './bench-cache.js';
import { wide } from './texts.js';

const [texts, prefixTokens, roomFor, megabytesPerSecond, ratio] = [12, 512, 3, 50, 0.25];
const [warmUps, requests] = [60, 120];
/** Bytes of a token with its probe keys. */
const tokenBytes = wide.layers * wide.headDim * 2 * (2 * wide.kvHeads + 3);

interface Case {
  readonly name: string;
  readonly selector: TokenSelector | undefined;
  readonly keeps: TierKeeping;
  readonly isReordered: boolean;
}

const cases: readonly Case[] = [
  { name: 'all from disk, LRU', selector: undefined, keeps: 'recent', isReordered: false },
  { name: 'H2O, LRU', selector: allHeads(), keeps: 'recent', isReordered: false },
  { name: 'H2O, LFU', selector: allHeads(), keeps: 'frequent', isReordered: false },
  { name: 'ours, not reordered', selector: probeHeads(), keeps: 'important', isReordered: false },
  { name: 'ours, LRU in the place of scores', selector: probeHeads(), keeps: 'recent', isReordered: true },
  { name: 'ours', selector: probeHeads(), keeps: 'important', isReordered: true },
];

/** Texts of Zipf's law: the number n is wanted 1/n times as often as the first. */
function drawText(random: Random): number {
  const weights = Array.from({ length: texts }, (_, index) => 1 / (index + 1));
  let at = random.next() * weights.reduce((sum, weight) => sum + weight, 0);
  return Math.max(0, weights.findIndex((weight) => (at -= weight) < 0));
}

async function run(model: LlamaModel, { name, selector, keeps, isReordered }: Case): Promise<readonly string[]> {
  const directory = mkdtempSync(path.join(tmpdir(), 'vkv-bench-memory-'));
  const bench = new Bench(model, directory, { bytes: roomFor * prefixTokens * tokenBytes, keeps });
  try {
    await bench.cache.prefixes.tiers!.ready();
    const random = new Random(5);
    const prefixes = Array.from({ length: texts }, () => Int32Array.from({ length: prefixTokens }, () => random.integer(wide.vocabularyTokens)));
    const textOf = (): Text => {
      const tokens = Int32Array.from([...prefixes[drawText(random)]!, ...Array.from({ length: suffixTokens }, () => random.integer(wide.vocabularyTokens))]);
      return { tokens, prefix: prefixTokens };
    };
    for (const tokens of prefixes) await bench.store({ tokens, prefix: prefixTokens });
    const way: Way = { name, ...selector === undefined ? { isComputed: false } : { selection: { ratio, selector } } };
    for (let request = 0; request < warmUps; request += 1) await bench.firstToken(textOf(), way);
    const reordered = isReordered ? await bench.cache.prefixes.tiers!.reorder({ mostBlocks: 2 ** 20 }) : 0;
    bench.throttled.bytesPerMs = megabytesPerSecond * 1e3;
    bench.throttled.readBytes = 0;
    const times: number[] = [];
    for (let request = 0; request < requests; request += 1) times.push(await bench.firstToken(textOf(), way));
    const mean = times.reduce((sum, time) => sum + time, 0) / requests;
    return [name, format(mean), format(median(times)), format(bench.throttled.readBytes / requests / 1024, 0), `${bench.cache.prefixes.tiers!.metrics().raisedBlocks}`, `${reordered}`];
  } finally {
    await bench.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

export async function printMemory(model: LlamaModel): Promise<void> {
  const table = new Table({
    head: [`${texts} texts of ${prefixTokens} tokens, memory for ${roomFor}, ${megabytesPerSecond} MB/s, ratio ${100 * ratio} %`, 'first token, mean ms', 'median', 'read from disk, KiB a request', 'blocks brought up', 'reordered'],
    style: { head: [], border: [] },
  });
  for (const each of cases) table.push([...await run(model, each)]);
  console.log(table.toString());
}
