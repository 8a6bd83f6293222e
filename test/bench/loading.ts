// The event loop while a model of 1 GB in float16 is loaded on a worker thread, mapped, copied and as int8: how late a timer of 1 ms comes at
// most, and how long it takes; against the constructor, for all of which the loop waits. In turns; the weights are zeros.

import { rmSync } from 'node:fs';

import { LlamaModel } from 'virtual-kv/llama';

import { LoopDelays } from './loop-delays.js';
import { format, median, type BenchResult } from './measure.js';
import { writeZeroModel } from './zero-model.js';

const sizes = { layers: 16, hidden: 1_536, intermediate: 4_864, queryHeads: 12, kvHeads: 4, headDim: 128, vocabularyTokens: 32_000 };
const rounds = 3;
const goalMs = 20;

interface Measured {
  readonly longestMs: number;
  readonly longestCpuMs: number;
  readonly tookMs: number;
  readonly blockedMs: number;
}

async function measure(folder: string, weights: 'mapped' | 'copied' | 'int8'): Promise<Measured> {
  const delays = new LoopDelays();
  const startMs = performance.now();
  await LlamaModel.load(folder, { weights });
  const tookMs = performance.now() - startMs;
  const { longestMs, longestCpuMs } = delays.end();
  const blockMs = performance.now();
  new LlamaModel(folder, { weights });
  return { longestMs, longestCpuMs, tookMs, blockedMs: performance.now() - blockMs };
}

export async function loading(): Promise<BenchResult[]> {
  const folder = writeZeroModel(sizes);
  const results: BenchResult[] = [];
  try {
    for (const weights of ['mapped', 'copied', 'int8'] as const) {
      const measured: Measured[] = [];
      for (let round = 0; round < rounds; round += 1) measured.push(await measure(folder, weights));
      const of = (what: keyof Measured): number => median(measured.map((one) => one[what]));
      const longestMs = of('longestMs');
      results.push({
        name: `a model of 1 GB in float16 is loaded, ${weights}, on a worker`,
        value: `a timer of 1 ms waits ${format(longestMs)} ms at most, ${format(of('longestCpuMs'))} ms of it computing; ${format(of('tookMs'))} ms in all`,
        against: `the constructor blocks for ${format(of('blockedMs'))} ms; goal < ${goalMs} ms`,
        isGoalMet: longestMs < goalMs,
        numbers: { longestMs, longestCpuMs: of('longestCpuMs'), tookMs: of('tookMs'), blockedMs: of('blockedMs') },
      });
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
  return results;
}
