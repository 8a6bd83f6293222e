// The event loop while the reference engine computes, with a model of SmolLM2-360M's shape in float16: 16 sequences that decode, a prompt of 1,024
// tokens, and both at once with a prompt of 8,192; each with passes that are awaited and with passes that block. What a timer of 1 ms says: how late it comes.
// Throughput is given as a ratio within one run, in turns. The weights are zeros, as in llama.ts.

import { KvCache, OnlineScheduler } from 'virtual-kv';

import { LlamaEngine } from '#internal/llama/engine.js';
import type { LlamaModel } from '#internal/llama/model.js';
import { LoopDelays } from './loop-delays.js';
import { format, median, type BenchResult } from './measure.js';
import { openZeroModel } from './zero-model.js';

const sequences = 16;
const rounds = 3;
const [goalP99Ms, goalLongestMs, goalRatio] = [5, 20, 1];

interface Load {
  readonly name: string;
  /** Submitted at once, in this order. */
  readonly requests: readonly { readonly promptTokens: number; readonly newTokens: number }[];
  /** Tokens that its speed counts. */
  readonly countedTokens: number;
}

const answers = (newTokens: number): Load['requests'] => new Array<Load['requests'][number]>(sequences).fill({ promptTokens: 16, newTokens });
const prompt = (promptTokens: number): Load['requests'] => [{ promptTokens, newTokens: 1 }];

const loads: readonly Load[] = [
  { name: `${sequences} sequences that decode`, requests: answers(24), countedTokens: sequences * 24 },
  { name: 'a prompt of 1,024 tokens', requests: prompt(1_024), countedTokens: 1_024 },
  // 64 steps of 128 prompt tokens, in each of which all sequences get a token
  { name: `${sequences} sequences that decode beside a prompt of 8,192 tokens`, requests: [...answers(64), ...prompt(8_192)], countedTokens: sequences * 64 + 8_192 },
];

interface Measured {
  readonly p99Ms: number;
  readonly longestMs: number;
  readonly longestCpuMs: number;
  readonly tokensPerS: number;
}

async function serve(model: LlamaModel, passes: 'awaited' | 'blocking', { requests, countedTokens }: Load): Promise<Measured> {
  using cache = new KvCache({
    model: model.shape(), slots: sequences + 1, maxTokens: 8_448, memoryBudgetBytes: 2 ** 32, driver: 'host', prefixCache: 'off',
  });
  using engine = new LlamaEngine({ model, cache, passes });
  const scheduler = new OnlineScheduler({ cache, engine });
  const submit = (promptTokens: number, maxNewTokens: number) => scheduler.submit({ tokens: new Int32Array(promptTokens).fill(7), maxNewTokens }).result;
  await submit(Math.max(...requests.map(({ promptTokens }) => Math.min(promptTokens, 1_024))), 2); // touches memory, starts threads
  const startMs = performance.now();
  const delays = new LoopDelays();
  await Promise.all(requests.map(({ promptTokens, newTokens }) => submit(promptTokens, newTokens)));
  const delayed = delays.end();
  const tokensPerS = countedTokens / (performance.now() - startMs) * 1e3;
  await scheduler.close();
  return { ...delayed, tokensPerS };
}

export async function eventLoop(): Promise<BenchResult[]> {
  const model = openZeroModel();
  const results: BenchResult[] = [];
  for (const load of loads) {
    const measured: { readonly awaited: Measured; readonly blocking: Measured }[] = [];
    for (let round = 0; round < rounds; round += 1) {
      const first = round % 2 === 0 ? await serve(model, 'awaited', load) : undefined; // in turns
      const blocking = await serve(model, 'blocking', load);
      measured.push({ awaited: first ?? await serve(model, 'awaited', load), blocking });
    }
    const of = (passes: 'awaited' | 'blocking', what: keyof Measured): number => median(measured.map((one) => one[passes][what]));
    const [p99Ms, longestMs] = [of('awaited', 'p99Ms'), of('awaited', 'longestMs')];
    const ratio = median(measured.map(({ awaited, blocking }) => awaited.tokensPerS / blocking.tokensPerS));
    const missed = Object.entries({ p99: p99Ms < goalP99Ms, longest: longestMs < goalLongestMs, 'tokens/s': ratio >= goalRatio }).filter(([, isMet]) => !isMet).map(([what]) => what);
    results.push({
      name: `event loop while the reference engine serves ${load.name}, the shape of SmolLM2 360M in float16`,
      value: `a timer of 1 ms: p99 ${format(p99Ms)} ms, longest ${format(longestMs)} ms, ${format(of('awaited', 'longestCpuMs'))} ms of it computing; ${format(of('awaited', 'tokensPerS'))} tokens/s`,
      against: `with passes that block ${format(of('blocking', 'p99Ms'))} and ${format(of('blocking', 'longestMs'))} ms, ` +
        `${format(ratio, 2)} × their tokens/s; goal p99 < ${goalP99Ms} ms, longest < ${goalLongestMs} ms, ≥ ${goalRatio} ×${missed.length === 0 ? '' : `; missed: ${missed.join(', ')}`}`,
      isGoalMet: missed.length === 0,
      numbers: { p99Ms, longestMs, blockingP99Ms: of('blocking', 'p99Ms'), blockingLongestMs: of('blocking', 'longestMs'), longestCpuMs: of('awaited', 'longestCpuMs'), ratio },
    });
  }
  return results;
}
