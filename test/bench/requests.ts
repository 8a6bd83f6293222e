// What a request costs besides the model: the scheduler per token and per request, choosing tokens from logits, and a look at the live
// page. An engine that answers at once; times are of the processor, so that other work of the machine counts little.

import { KvCache, OnlineScheduler, randomSampler, type Engine, type EngineOutput, type EnginePass, type Sampler } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { historyPoints } from '#internal/server/watch-history.js';
import { WatchState } from '#internal/server/watch-state.js';

import { format, median, type BenchResult } from './measure.js';

const sequences = 256;
const vocabularyTokens = 32_000;
const promptTokens = 1_000;

/** Answers at once: with tokens, or with logits that were drawn before. */
function instant(logits: Float32Array | undefined): Engine {
  const tokens = new Int32Array(sequences);
  let turn = 0;
  const answer = ({ length }: EnginePass): { tokens: Int32Array } | { logits: Float32Array } => {
    if (logits !== undefined) return { logits };
    turn += 1;
    for (let at = 0; at < length; at += 1) tokens[at] = (turn * 31 + at * 7) % vocabularyTokens;
    return { tokens };
  };
  return { vocabularyTokens, prefill: answer, decode: answer };
}

/** Computes prompts at once, and holds its answers until `goOn`. */
class HeldEngine implements Engine {
  readonly vocabularyTokens = vocabularyTokens;
  readonly #answers = instant(undefined);
  #goOn!: () => void;
  #reach!: () => void;
  readonly #gate = new Promise<void>((resolve) => { this.#goOn = resolve; });
  /** Resolves when a token was asked for. */
  readonly reached = new Promise<void>((resolve) => { this.#reach = resolve; });

  goOn(): void {
    this.#goOn();
  }

  prefill(pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    return this.#answers.prefill(pass);
  }

  async decode(pass: EnginePass): Promise<EngineOutput> {
    this.#reach();
    await this.#gate;
    return this.#answers.decode(pass);
  }
}

function cpuUs(from: NodeJS.CpuUsage): number {
  const { user, system } = process.cpuUsage(from);
  return user + system;
}

/** Serves `sequences` requests at a time with answers of so many tokens; returns µs of a request. */
async function serve(cache: KvCache, engine: Engine, sampler: Sampler | undefined, newTokens: number, round: number): Promise<number> {
  await using scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: sequences * promptTokens });
  const requests = Array.from({ length: sequences }, (_, at) => ({
    tokens: Int32Array.from({ length: promptTokens }, (__, token) => (token < promptTokens / 2 ? token + at % 8 : token * 13 + at * 101 + round * 977) % vocabularyTokens),
    maxNewTokens: newTokens, ...sampler === undefined ? {} : { sampler },
  }));
  const start = process.cpuUsage();
  await Promise.all(requests.map((request) => scheduler.submit(request).result));
  return cpuUs(start) / sequences;
}

export async function requests(): Promise<BenchResult[]> {
  const mock = new MockDevice({ memoryBytes: 2 ** 42, backing: 'none' });
  const cache = new KvCache({
    model: { layers: 16, kvHeads: 8, headDim: 64, dtype: 'float16' }, slots: sequences, maxTokens: 131_072, memoryBudgetBytes: 2 ** 38, driver: mock.driver,
  });
  const drawn = new Float32Array(sequences * vocabularyTokens);
  for (let at = 0, state = 1; at < drawn.length; at += 1) drawn[at] = ((state = Math.imul(state, 1_664_525) + 1_013_904_223 | 0) >>> 8) / 2 ** 20;
  const results: BenchResult[] = [];
  let tokensNs = 0;
  for (const [name, logits, sampler, long] of [
    ['the scheduler, an engine that samples', undefined, undefined, 400], ['and greedy from 32,000 logits', drawn, undefined, 60],
    ['and top-p 0.9 at temperature 0.7 from 32,000 logits', drawn, randomSampler({ temperature: 0.7, topP: 0.9, seed: 1 }), 60],
  ] as const) {
    const [short, longer]: number[][] = [[], []];
    for (let round = 0; round < 6; round += 1) {
      short!.push(await serve(cache, instant(logits), sampler, 4, round));
      longer!.push(await serve(cache, instant(logits), sampler, 4 + long, round + 100));
    }
    const tokenNs = 1e3 * (median(longer!.slice(1)) - median(short!.slice(1))) / long;
    const requestUs = median(short!.slice(1)) - 4e-3 * tokenNs;
    if (logits === undefined) tokensNs = tokenNs;
    results.push({
      name: `a request: ${name}, ${sequences} at a time`,
      value: `${format(tokenNs / 1e3, 2)} µs a token, ${format(requestUs)} µs a request of ${format(promptTokens)} tokens, half cached`,
      against: logits === undefined ? 'admission, prefix cache, batching, streams; no model' : `${format((tokenNs - tokensNs) / 1e3, 2)} µs of it are sampling`, isGoalMet: undefined,
      numbers: { tokenNs, requestUs },
    });
  }
  const held = new HeldEngine();
  const scheduler = new OnlineScheduler({ cache, engine: held, maxWaiting: 2 * sequences, prefillTokensPerStep: sequences * 20_000 });
  const running = Array.from({ length: 2 * sequences }, (_, at) => scheduler.submit({
    tokens: Int32Array.from({ length: 20_000 }, (__, token) => (token < 9_000 ? token : token + at)), maxNewTokens: 2,
  }).result);
  await held.reached; // every slot has a request, and as many wait
  let nowMs = 0;
  const watched = new WatchState({ scheduler, modelName: 'm', connections: () => 0, isClosing: () => false, now: () => nowMs += 1_000 });
  for (let second = 0; second < historyPoints; second += 1) watched.takePoint();
  const looks = Array.from({ length: 50 }, () => {
    const start = process.cpuUsage();
    watched.json();
    return cpuUs(start);
  });
  const bytes = watched.json().length;
  results.push({
    name: `a look at the live page, ${sequences} requests that run and ${sequences} that wait`, value: `${format(median(looks) / 1e3, 2)} ms, ${format(bytes / 1e3)} KB`,
    against: 'at most four a second, none when no page looks', isGoalMet: undefined, numbers: { lookUs: median(looks), bytes },
  });
  held.goOn();
  await Promise.all(running);
  await scheduler.close();
  cache.close();
  mock.close();
  return results;
}
