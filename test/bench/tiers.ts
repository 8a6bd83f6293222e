// Promotion of stored text, checksums, growth and commits included: from host memory against a bare copy of as many bytes on as many threads,
// from a disk against a bare loop of parallel preads of the store's own files, around the page cache and out of it. Each in turn with what it is
// held against, as the clock and as the CPU's time see it; how late the event loop is meanwhile; what storing takes from decoding.

import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';

import { diskTier, hostTier, KvCache, type ModelShape, type Tier } from 'virtual-kv';

import type { PrefixIndex } from '#internal/prefix/prefix-index.js';
import { format, median, type BenchResult } from './measure.js';

const root = path.resolve(__dirname, '..', '..');
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

/** Nanoseconds, by the clock and of the CPU. */
interface Taken {
  readonly clockNs: number;
  readonly cpuNs: number;
}

interface Measured {
  readonly bytesPerNs: number;
  /** Medians of the rounds' own ratios. */
  readonly ratio: number;
  readonly cpuRatio: number;
  readonly delayMs: number;
  /** The same while nothing happens here, which is the machine's own. */
  readonly idleDelayMs: number;
}

/** Promotes the same text in each round, after `baseline` has moved as many bytes. */
async function promotion(tier: Tier, baseline: () => Promise<Taken & { readonly bytes: number }>): Promise<Measured> {
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
  const [delay, idleDelay] = [monitorEventLoopDelay({ resolution: 1 }), monitorEventLoopDelay({ resolution: 1 })];
  const promote = async (): Promise<Taken> => {
    index.clear();
    cache.counts();
    delay.enable();
    const cpu = process.cpuUsage();
    const beganNs = process.hrtime.bigint();
    const { promotedTokens } = await cache.prefixes.promote({ tokens: prompt });
    const clockNs = Number(process.hrtime.bigint() - beganNs);
    const { user, system } = process.cpuUsage(cpu);
    delay.disable();
    if (promotedTokens !== tokens) throw new Error(`${promotedTokens} of ${tokens} tokens were promoted`);
    return { clockNs, cpuNs: 1000 * (user + system) };
  };
  await promote(); // warm
  for (let round = 0; round < rounds; round += 1) {
    const bare = await baseline();
    const { clockNs, cpuNs } = await promote();
    idleDelay.enable();
    await sleep(clockNs / 1e6);
    idleDelay.disable();
    rates.push((tokens * tokenBytes) / clockNs);
    ratios.push((tokens * tokenBytes / clockNs) / (bare.bytes / bare.clockNs));
    cpuRatios.push((tokens * tokenBytes / cpuNs) / (bare.bytes / bare.cpuNs));
  }
  await cache.prefixes.tiers!.close();
  cache.close();
  return {
    bytesPerNs: median(rates), ratio: median(ratios), cpuRatio: median(cpuRatios), delayMs: delay.percentile(99) / 1e6,
    idleDelayMs: idleDelay.percentile(99) / 1e6,
  };
}

function compile(name: string, folder: string): string {
  const program = path.join(folder, name);
  const source = path.join(root, 'test', 'bench', `${name}.cc`);
  const { status, stderr } = spawnSync(process.env['CXX'] ?? 'c++', ['-std=c++20', '-O2', '-pthread', source, '-o', program], { encoding: 'utf8' });
  if (status !== 0) throw new Error(stderr);
  return program;
}

/** A program that copies when it is asked to. */
class CopyLoop {
  readonly #child: ChildProcess;
  #heard: ((line: string) => void) | undefined;

  constructor(program: string) {
    this.#child = spawn(program, [String(copyThreads), String(tokens * tokenBytes)], { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#child.stdout!.setEncoding('utf8').on('data', (line: string) => { this.#heard?.(line); });
  }

  async copy(): Promise<Taken & { readonly bytes: number }> {
    const line = await new Promise<string>((resolve) => {
      this.#heard = resolve;
      this.#child.stdin!.write('.');
    });
    const [clockNs, cpuNs] = line.split(' ').map(Number);
    return { clockNs: clockNs!, cpuNs: cpuNs!, bytes: tokens * tokenBytes };
  }

  close(): void {
    this.#child.stdin!.end();
  }
}

/** Reads a store's segments in `readBytes` pieces. */
function readLoop(program: string, folder: string, direct: boolean): Promise<Taken & { readonly bytes: number }> {
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((name) => path.basename(name).startsWith('seg-'));
  const { stdout } = spawnSync(program, [String(diskThreads), String(readBytes), direct ? '1' : '0', ...files.map((name) => path.join(folder, name))], { encoding: 'utf8' });
  const [bytes, clockNs, cpuNs] = stdout.split(' ').map(Number);
  return Promise.resolve({ bytes: bytes!, clockNs: clockNs!, cpuNs: cpuNs! });
}

function resultOf(from: string, against: string, { bytesPerNs, ratio, cpuRatio, delayMs, idleDelayMs }: Measured): BenchResult[] {
  return [
    {
      name: `promotion of ${format(tokens, 0)} tokens from ${from}`,
      value: `${format(bytesPerNs, 2)} GB/s`,
      against: `${format(100 * ratio, 0)} % of ${against} (goal ${format(100 * goal, 0)} %); by CPU time ${format(100 * cpuRatio, 0)} %`,
      isGoalMet: ratio >= goal,
      numbers: { ratio, cpuRatio, gigabytesPerSecond: bytesPerNs },
    },
    {
      name: `event loop while ${format(rounds * tokens * tokenBytes / 2 ** 30, 1)} GiB load, 99th percentile`,
      value: `${format(delayMs, 1)} ms`,
      against: `${format(idleDelayMs)} ms while nothing loads; goal ${loopGoalMs} ms`,
      isGoalMet: delayMs < loopGoalMs,
      numbers: { delayMs, idleDelayMs },
    },
  ];
}

export async function tiers(): Promise<BenchResult[]> {
  const folder = mkdtempSync(path.join(process.env['VKV_BENCH_FOLDER'] ?? tmpdir(), 'vkv-bench-tiers-'));
  try {
    const bytes = 2 * tokens * tokenBytes;
    const copies = new CopyLoop(compile('copy-loop', folder));
    await copies.copy(); // warm
    const host = await promotion(hostTier({ bytes }), () => copies.copy());
    copies.close();
    const results = resultOf('host memory', 'a bare copy on as many threads', host);
    const reads = compile('pread-loop', folder);
    for (const direct of [true, false]) {
      const directory = path.join(folder, String(direct));
      const disk = await promotion(
        diskTier({ directory, bytes: 4 * bytes, durability: 'none', direct, threads: diskThreads }), () => readLoop(reads, directory, direct));
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
