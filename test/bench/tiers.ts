// Promotion of stored text, checksums, growth and commits included: from host memory against a bare copy of as many bytes on as many threads,
// from a disk against a bare loop of parallel preads of the store's own files, around the page cache and out of it. Each in turn with what it is
// held against, as the clock and as the CPU's time see it; how late the event loop is meanwhile. Out of the page cache bare preads are told twice: into
// memory that stays in the processor's cache, and into as much as the rows, with what a checksum alone costs.

import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { diskTier, hostTier, KvCache, type ModelShape, type Tier } from 'virtual-kv';

import { native } from '#internal/device/native.js';
import type { PrefixIndex } from '#internal/prefix/prefix-index.js';
import { BareLoop, type Taken } from './bare-loop.js';
import { LoopDelays } from './loop-delays.js';
import { format, median, type BenchResult } from './measure.js';

/** 128 KiB a token, as Llama-3.1-8B. */
const model: ModelShape = { layers: 32, kvHeads: 8, headDim: 128, dtype: 'bfloat16' };
const tokenBytes = 131_072;
const tokens = 4096;
const rounds = Number(process.env['VKV_BENCH_ROUNDS'] ?? 7);
const goal = 0.8;
const loopGoalMs = 10;
/** Of the copier, and of the copy that it is held against. */
const copyThreads = 2;
const diskThreads = 8;
/** About a block's record. */
const readBytes = 2 ** 20;
/** That bare reads fill again and again, unless they fill as much as a promotion. */
const cachedBytes = 2 ** 25;

interface Measured {
  readonly bytesPerNs: number;
  /** Medians of the rounds' own ratios. */
  readonly ratio: number;
  readonly cpuRatio: number;
  /** Against the second loop, where there is one. */
  readonly otherRatio: number | undefined;
  /** Gaps of a timer of 1 ms while all rounds' texts load, one after the other: the 99th percentile, the longest, and how long JavaScript computed in one at most. */
  readonly delayMs: number;
  readonly longestMs: number;
  readonly longestCpuMs: number;
  /** The 99th percentile while nothing happens here, which is the machine's own. */
  readonly idleDelayMs: number;
}

/** Promotes the same text in each round, after the loops that `open` starts once it is stored have moved as many bytes. */
async function promotion(tier: Tier, open: () => readonly BareLoop[]): Promise<Measured> {
  const cache = new KvCache({
    model, slots: 4, maxTokens: 2 * tokens, memoryBudgetBytes: 3 * tokens * tokenBytes, driver: 'host',
    prefixCache: { tiers: [tier], modelId: 'bench' },
  });
  await cache.prefixes.tiers!.ready();
  const prompt = Int32Array.from({ length: tokens }, (_, at) => (at * 7919) % 100_000);
  const batch = cache.createBatch();
  for (let seen = 0; seen < 2; seen += 1) { // a disk takes what was seen twice
    const sequence = cache.acquire({ tokens: prompt });
    batch.clear();
    batch.add(sequence, tokens - sequence.length);
    cache.prepare(batch);
    cache.stamp(sequence, sequence.length, tokens - sequence.length, 1);
    cache.commit(batch);
    sequence.release();
    await cache.prefixes.tiers!.settled();
  }
  const { index } = cache.prefixes as unknown as { readonly index: PrefixIndex };
  const rates: number[] = [];
  const ratios: number[] = [];
  const cpuRatios: number[] = [];
  const promote = async (): Promise<Taken> => {
    index.clear();
    cache.counts();
    const cpu = process.cpuUsage();
    const beganNs = process.hrtime.bigint();
    const { promotedTokens } = await cache.prefixes.promote({ tokens: prompt });
    const clockNs = Number(process.hrtime.bigint() - beganNs);
    const { user, system } = process.cpuUsage(cpu);
    if (promotedTokens !== tokens) throw new Error(`${promotedTokens} of ${tokens} tokens were promoted`);
    return { bytes: tokens * tokenBytes, clockNs, cpuNs: 1000 * (user + system) };
  };
  const [bareLoop, otherLoop] = open();
  const otherRatios: number[] = [];
  await bareLoop!.run(); // warm, all
  await otherLoop?.run();
  await promote();
  for (let round = 0; round < rounds; round += 1) {
    const bare = await bareLoop!.run();
    const other = await otherLoop?.run();
    const { bytes, clockNs, cpuNs } = await promote();
    rates.push(bytes / clockNs);
    ratios.push((bytes / clockNs) / (bare.bytes / bare.clockNs));
    cpuRatios.push((bytes / cpuNs) / (bare.bytes / bare.cpuNs));
    if (other !== undefined) otherRatios.push((bytes / clockNs) / (other.bytes / other.clockNs));
  }
  bareLoop!.close();
  otherLoop?.close();
  const delays = new LoopDelays();
  const beganMs = performance.now();
  for (let round = 0; round < rounds; round += 1) await promote();
  const tookMs = performance.now() - beganMs;
  const { p99Ms, longestMs, longestCpuMs } = delays.end();
  const idle = new LoopDelays();
  await sleep(tookMs);
  await cache.prefixes.tiers!.close();
  cache.close();
  return {
    bytesPerNs: median(rates), ratio: median(ratios), cpuRatio: median(cpuRatios),
    otherRatio: otherRatios.length === 0 ? undefined : median(otherRatios), delayMs: p99Ms, longestMs, longestCpuMs,
    idleDelayMs: idle.end().p99Ms,
  };
}

/** Of a store's blocks, in `readBytes` pieces. */
function readLoop(folder: string, directory: string, direct: boolean, memoryBytes: number): BareLoop {
  const files = readdirSync(directory, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.block'));
  const given = [String(diskThreads), String(readBytes), direct ? '1' : '0', String(memoryBytes), ...files.map((name) => path.join(directory, name))];
  return new BareLoop('pread-loop', folder, given);
}

/** Bytes a nanosecond that one thread sums of memory that no cache has. */
function summing(): number {
  const memory = new Uint8Array(2 ** 28).fill(1);
  const sums = new Uint32Array(memory.length / readBytes);
  const rates = Array.from({ length: rounds }, () => {
    const beganNs = process.hrtime.bigint();
    native().sumChunks(memory, readBytes, sums);
    return memory.length / Number(process.hrtime.bigint() - beganNs);
  });
  return median(rates);
}

function resultOf(from: string, against: string, { bytesPerNs, ratio, cpuRatio, otherRatio, delayMs, longestMs, longestCpuMs, idleDelayMs }: Measured): BenchResult[] {
  const others = otherRatio === undefined ? '' :
    `; ${format(100 * otherRatio, 0)} % of those into as much memory as the rows; a thread sums ${format(summing(), 1)} GB/s`;
  return [
    {
      name: `promotion of ${format(tokens, 0)} tokens from ${from}`,
      value: `${format(bytesPerNs, 2)} GB/s`,
      against: `${format(100 * ratio, 0)} % of ${against} (goal ${format(100 * goal, 0)} %); by CPU time ${format(100 * cpuRatio, 0)} %${others}`,
      isGoalMet: ratio >= goal,
      numbers: { ratio, cpuRatio, gigabytesPerSecond: bytesPerNs, ...(otherRatio === undefined ? {} : { otherRatio }) },
    },
    {
      name: `event loop while ${format(rounds * tokens * tokenBytes / 2 ** 30, 1)} GiB load`,
      value: `a timer of 1 ms: p99 ${format(delayMs, 1)} ms, longest ${format(longestMs, 1)} ms, ${format(longestCpuMs, 1)} ms of it computing`,
      against: `p99 ${format(idleDelayMs, 1)} ms while nothing loads; goal ${loopGoalMs} ms`,
      isGoalMet: delayMs < loopGoalMs,
      numbers: { delayMs, longestMs, longestCpuMs, idleDelayMs },
    },
  ];
}

export async function tiers(): Promise<BenchResult[]> {
  const folder = mkdtempSync(path.join(process.env['VKV_BENCH_FOLDER'] ?? tmpdir(), 'vkv-bench-tiers-'));
  try {
    const bytes = 2 * tokens * tokenBytes;
    const host = await promotion(hostTier({ bytes }), () => [new BareLoop('copy-loop', folder, [String(copyThreads), String(tokens * tokenBytes)])]);
    const results = resultOf('host memory', 'a bare copy on as many threads', host);
    for (const direct of [true, false]) {
      const directory = path.join(folder, String(direct));
      const disk = await promotion(
        diskTier({ directory, bytes: 4 * bytes, durability: 'none', direct, threads: diskThreads }),
        () => (direct ? [cachedBytes] : [cachedBytes, tokens * tokenBytes]).map((memoryBytes) => readLoop(folder, directory, direct, memoryBytes)));
      results.push(...resultOf(`a disk, ${direct ? 'around' : 'out of'} the page cache`, 'bare parallel preads', disk));
      rmSync(directory, { recursive: true, force: true });
    }
    return results;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

if (require.main === module) {
  void tiers().then((results) => { for (const { name, value, against } of results) console.log(`${name}: ${value}; ${against}`); });
}
