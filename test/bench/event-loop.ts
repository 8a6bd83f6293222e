// The event loop while the reference engine computes, with a model of SmolLM2-360M's shape in float16: 16 sequences that decode, a prompt of 1,024
// tokens, and both at once with a prompt of 8,192; each with passes that are awaited and with passes that block. What a timer of 1 ms says: how late it comes.
// Throughput is given as a ratio within one run, in turns, of rounds without the timer: it takes processor time only where the event loop gets its turns.
// The weights are zeros, as in llama.ts.

import { KvCache, OnlineScheduler } from 'virtual-kv';

import { LlamaEngine } from '#internal/llama/engine.js';
import type { LlamaModel } from '#internal/llama/model.js';
import { LoopDelays, type LoopDelaysEnd } from './loop-delays.js';
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

type Passes = 'awaited' | 'blocking';

/** What the requests of a load took, and what `watch` says of that time. */
interface Served<W> {
  readonly tokensPerS: number;
  readonly watched: W;
}

async function serve<W>(model: LlamaModel, passes: Passes, { requests, countedTokens }: Load, watch: () => () => W): Promise<Served<W>> {
  using cache = new KvCache({
    model: model.shape(), slots: sequences + 1, maxTokens: 8_448, memoryBudgetBytes: 2 ** 32, driver: 'host', prefixCache: 'off',
  });
  using engine = new LlamaEngine({ model, cache, passes });
  const scheduler = new OnlineScheduler({ cache, engine });
  const submit = (promptTokens: number, maxNewTokens: number) => scheduler.submit({ tokens: new Int32Array(promptTokens).fill(7), maxNewTokens }).result;
  await submit(Math.max(...requests.map(({ promptTokens }) => Math.min(promptTokens, 1_024))), 2); // touches memory, starts threads
  const startMs = performance.now();
  const end = watch();
  await Promise.all(requests.map(({ promptTokens, newTokens }) => submit(promptTokens, newTokens)));
  const watched = end();
  const tokensPerS = countedTokens / (performance.now() - startMs) * 1e3;
  await scheduler.close();
  return { tokensPerS, watched };
}

/** How late a timer comes in each round. */
async function delaysOf(model: LlamaModel, passes: Passes, load: Load): Promise<(what: 'p99Ms' | 'longestMs' | 'longestCpuMs') => number> {
  const measured: LoopDelaysEnd[] = [];
  for (let round = 0; round < rounds; round += 1) {
    measured.push((await serve(model, passes, load, () => {
      const delays = new LoopDelays();
      return () => delays.end();
    })).watched);
  }
  return (what) => median(measured.map((one) => one[what]));
}

/** Tokens a second with passes that are awaited, and as a share of those with passes that block. */
async function speedsOf(model: LlamaModel, load: Load): Promise<{ readonly tokensPerS: number; readonly ratio: number }> {
  const speeds = { awaited: [] as number[], blocking: [] as number[] };
  const unwatched = () => () => undefined;
  for (let round = 0; round < rounds; round += 1) {
    const order: readonly Passes[] = round % 2 === 0 ? ['awaited', 'blocking'] : ['blocking', 'awaited'];
    for (const passes of order) speeds[passes].push((await serve(model, passes, load, unwatched)).tokensPerS);
  }
  return { tokensPerS: median(speeds.awaited), ratio: median(speeds.awaited.map((speed, round) => speed / speeds.blocking[round]!)) };
}

export async function eventLoop(): Promise<BenchResult[]> {
  const model = openZeroModel();
  const results: BenchResult[] = [];
  for (const load of loads) {
    const [awaited, blocking] = [await delaysOf(model, 'awaited', load), await delaysOf(model, 'blocking', load)];
    const [p99Ms, longestMs, longestCpuMs] = [awaited('p99Ms'), awaited('longestMs'), awaited('longestCpuMs')];
    const { tokensPerS, ratio } = await speedsOf(model, load);
    const missed = Object.entries({ p99: p99Ms < goalP99Ms, longest: longestMs < goalLongestMs, 'tokens/s': ratio >= goalRatio }).filter(([, isMet]) => !isMet).map(([what]) => what);
    results.push({
      name: `event loop while the reference engine serves ${load.name}, the shape of SmolLM2 360M in float16`,
      value: `a timer of 1 ms: p99 ${format(p99Ms)} ms, longest ${format(longestMs)} ms, ${format(longestCpuMs)} ms of it computing; ${format(tokensPerS)} tokens/s`,
      against: `with passes that block ${format(blocking('p99Ms'))} and ${format(blocking('longestMs'))} ms, ` +
        `${format(ratio, 2)} × their tokens/s; goal p99 < ${goalP99Ms} ms, longest < ${goalLongestMs} ms, ≥ ${goalRatio} ×${missed.length === 0 ? '' : `; missed: ${missed.join(', ')}`}`,
      isGoalMet: missed.length === 0,
      numbers: { p99Ms, longestMs, blockingP99Ms: blocking('p99Ms'), blockingLongestMs: blocking('longestMs'), longestCpuMs, ratio },
    });
  }
  return results;
}
