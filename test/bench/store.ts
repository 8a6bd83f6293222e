// Reading whole blocks of a disk store into the caller's memory, against a bare loop of parallel preads of the same files,
// in turns within one run: around the page cache, and out of it. The store is used by a process of its own, because benchmarks do not wait.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import { DiskStore } from '#internal/store/disk-store.js';
import { HostMemory, pagePieces } from '#internal/tiers/host-memory.js';
import { BareLoop } from './bare-loop.js';
import { format, median, type BenchResult } from './measure.js';

const MiB = 2 ** 20;
const threads = 4;
const blocks = 48;
const stripes = 32;
const stripeBytes = MiB / 8;
/** That reads fill again and again, here and in the bare loop. */
const memoryBytes = 32 * MiB;
const inFlight = 8;
const turns = 7;
const goal = 0.8;

export function store(): BenchResult[] {
  const { status, stdout, stderr } = spawnSync(process.execPath, [__filename], { encoding: 'utf8', maxBuffer: 16 * MiB });
  if (status !== 0) throw new Error(`the disk store's benchmark: ${stderr}`);
  return JSON.parse(stdout) as BenchResult[];
}

const keyOf = (number: number): string => Buffer.alloc(32, number + 1).toString('hex');

async function measure(direct: boolean, directory: string): Promise<BenchResult> {
  const opened = await DiskStore.open({
    directory: path.join(directory, String(direct)), bytes: 1_024 * MiB, namespace: Buffer.from('bench'), threads, direct,
  });
  const source = Uint8Array.from({ length: stripes * stripeBytes }, (_, at) => at * 31 + (at >>> 8));
  const rowBytes = Array.from({ length: stripes }, () => stripeBytes / 128);
  for (let number = 0; number < blocks; number += 1) {
    await opened.put({
      key: keyOf(number), parent: keyOf(0), position: 0, tokens: new Int32Array(128), notes: new Uint8Array(0), sums: new Uint32Array(stripes),
    }, rowBytes, source);
  }
  const folder = path.join(directory, String(direct), readdirSync(path.join(directory, String(direct)))[0]!);
  const files = readdirSync(folder).filter((name) => name.endsWith('.block')).map((name) => path.join(folder, name));
  const loop = new BareLoop('pread-loop', directory, [String(threads), String(MiB), direct ? '1' : '0', String(memoryBytes), ...files]);
  // Huge pages, as tiers read into and the bare loop does.
  const memory = new HostMemory(memoryBytes, source.length, pagePieces);
  const payloads = Array.from({ length: inFlight }, () => memory.take(source.length)!.fill(1));
  const ratios: number[] = [];
  const rates: number[] = [];
  for (let turn = 0; turn < turns; turn += 1) {
    const startNs = process.hrtime.bigint();
    const one = async (from: number): Promise<void> => {
      for (let number = from; number < blocks; number += inFlight) {
        if (!(await opened.get(keyOf(number), payloads[from]!)).isFound) throw new Error('a block was not read');
      }
    };
    await Promise.all(Array.from({ length: inFlight }, (_, from) => one(from)));
    const rate = (blocks * stripes * stripeBytes) / Number(process.hrtime.bigint() - startNs);
    const bare = await loop.run();
    rates.push(rate);
    ratios.push(rate / (bare.bytes / bare.clockNs));
  }
  loop.close();
  const stats = opened.stats();
  await opened.close();
  const ratio = median(ratios);
  return {
    name: `disk store, reads ${direct ? `around the page cache (O_DIRECT ${stats.direct})` : 'out of the page cache'}`,
    value: `${format(median(rates), 2)} GB/s`,
    against: `${format(100 * ratio, 0)} % of parallel preads (goal ${format(100 * goal, 0)} %)`,
    isGoalMet: ratio >= goal,
    numbers: { ratio, gigabytesPerSecond: median(rates) },
  };
}

async function main(): Promise<void> {
  const directory = mkdtempSync(path.join(tmpdir(), 'vkv-bench-store-'));
  try {
    const results = [await measure(true, directory), await measure(false, directory)];
    process.stdout.write(JSON.stringify(results));
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

if (require.main === module) void main();
