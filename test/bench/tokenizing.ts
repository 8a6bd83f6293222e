// The event loop while a prompt of 900 kB is tokenized, at once and by a BackgroundTokenizer: how late a timer of 10 ms comes at most. With
// the tokenizer of Llama 3.1 where test/llama/tokenizers is installed (npm ci), else with the storyteller's. The medians of rounds in turns.

import { existsSync, readFileSync } from 'node:fs';
import * as path from 'node:path';

import { BackgroundTokenizer, LlamaTokenizer } from 'virtual-kv/llama';

import { LoopDelays } from './loop-delays.js';
import { format, median, type BenchResult } from './measure.js';

const root = path.resolve(__dirname, '..', '..');
const published = path.join(root, 'test', 'llama', 'tokenizers', 'node_modules', '@lenml', 'tokenizer-llama3_1', 'models');
const promptBytes = 900_000;
const rounds = 5;
const goalMs = 20;

interface Measured {
  readonly gapMs: number;
  readonly cpuMs: number;
  readonly tookMs: number;
}

async function measure(work: () => unknown): Promise<Measured> {
  const startMs = performance.now();
  const delays = new LoopDelays(10);
  await work();
  const tookMs = performance.now() - startMs;
  const { longestMs, longestCpuMs } = delays.end();
  return { gapMs: longestMs, cpuMs: longestCpuMs, tookMs };
}

export async function tokenizing(): Promise<BenchResult[]> {
  const isPublished = existsSync(published);
  const tokenizer = new LlamaTokenizer(isPublished ? published : path.join(root, 'examples', 'llama', 'storyteller'));
  await using background = new BackgroundTokenizer({ tokenizer });
  const page = readFileSync(path.join(root, 'docs', 'design.md'), 'latin1'); // a byte is a character
  const text = page.repeat(Math.ceil(promptBytes / page.length)).slice(0, promptBytes);
  const first = await measure(() => background.encode(text)); // starts the worker
  const measured: { readonly sync: Measured; readonly worker: Measured }[] = [];
  for (let round = 0; round < rounds; round += 1) {
    measured.push({ sync: await measure(() => tokenizer.encode(text)), worker: await measure(() => background.encode(text)) });
  }
  const of = (how: 'sync' | 'worker', what: keyof Measured): number => median(measured.map((one) => one[how][what]));
  const [gapMs, cpuMs, syncGapMs] = [of('worker', 'gapMs'), of('worker', 'cpuMs'), of('sync', 'gapMs')];
  return [{
    name: `a prompt of ${promptBytes / 1e3} kB becomes tokens on a worker, tokenizer of ${isPublished ? 'Llama 3.1' : 'the storyteller'}`,
    value: `a timer of 10 ms waits ${format(gapMs)} ms at most, ${format(cpuMs)} ms of it computing; ${format(of('worker', 'tookMs'))} ms in all; ` +
      `the first time ${format(first.gapMs)}, ${format(first.cpuMs)} and ${format(first.tookMs)}`,
    against: `at once: the timer waits ${format(syncGapMs)} ms, ${format(of('sync', 'tookMs'))} in all; goal < ${goalMs} ms`,
    isGoalMet: gapMs < goalMs,
    numbers: { gapMs, cpuMs, tookMs: of('worker', 'tookMs'), syncGapMs, syncTookMs: of('sync', 'tookMs'), firstGapMs: first.gapMs, firstTookMs: first.tookMs },
  }];
}
