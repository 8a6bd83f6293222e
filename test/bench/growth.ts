// The cost of growing one row on host against the same mmap calls in a C loop, in the same run: rounds of both in turn, each
// with memory of its own, and the median of the rounds' ratios. Goal: 1.3. Nothing is touched: the pages' faults are the
// model's, not the allocator's.

import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import * as path from 'node:path';

import { KvCache, onDemand } from 'virtual-kv';

import { format, median, microseconds, type BenchResult } from './measure.js';

const root = path.resolve(__dirname, '..', '..');
const rows = 40;
const rounds = 15;
const model = { layers: 32, kvHeads: 8, headDim: 128, dtype: 'float16' } as const;

export function growth(pageBytes: number): BenchResult {
  const loop = buildLoop();
  const ratios: number[] = [];
  const ours: number[] = [];
  const bare: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const own = growRows(pageBytes);
    const theirs = runLoop(loop, 2 * model.layers, pageBytes);
    ours.push(own);
    bare.push(theirs);
    ratios.push(own / theirs);
  }
  const ratio = median(ratios);
  return {
    name: `growth of one row on host (${2 * model.layers} pages of ${format(pageBytes / 1024)} KiB)`,
    value: `${format(median(ours))} µs, ${format(ratio, 2)} × the bare calls`,
    against: `goal ≤ 1.3 × (mmap in a C loop: ${format(median(bare))} µs)`,
    isGoalMet: ratio <= 1.3,
    numbers: { rowUs: median(ours), bareUs: median(bare), ratio },
  };
}

/** Median microseconds of a `prepare` that grows one sequence by one row. */
function growRows(pageBytes: number): number {
  const cache = new KvCache({
    model, slots: 1, maxTokens: 131_072, memoryBudgetBytes: 2 * rows * 64 * pageBytes, driver: 'host', pageBytes,
    growth: onDemand(), mapper: 'off',
  });
  const sequence = cache.acquire();
  const batch = cache.createBatch();
  const times: number[] = [];
  for (let row = 0; row < rows; row += 1) {
    batch.clear();
    batch.add(sequence, cache.layout.tokensPerRow);
    times.push(microseconds(() => cache.prepare(batch)));
    cache.commit(batch);
  }
  cache.close();
  return median(times);
}

function runLoop(loop: string, tensors: number, pageBytes: number): number {
  const { status, stdout } = spawnSync(loop, [tensors, rows, pageBytes].map(String), { encoding: 'utf8' });
  if (status !== 0) throw new Error(`${loop} failed with status ${status}`);
  return median(stdout.trim().split('\n').map((line) => Number(line) / 1e3));
}

function buildLoop(): string {
  const folder = path.join(root, 'build-test', 'native');
  const loop = path.join(folder, 'mmap-loop');
  mkdirSync(folder, { recursive: true });
  const source = path.join(root, 'test', 'bench', 'mmap-loop.cc');
  const { status, stderr } = spawnSync(process.env['CXX'] ?? 'c++', ['-O2', '-o', loop, source], { encoding: 'utf8' });
  if (status !== 0) throw new Error(`cannot build ${source}: ${stderr}`);
  return loop;
}
