// What the online scheduler costs beside the model: the JavaScript between two passes of an engine that answers at once. A step of 64
// sequences, of 256 with the prefix cache and answers as text, of 64 while 20,000 requests wait; and a short request from `submit` to
// its result, its steps included. Medians over the steps of the last of four rounds, so that neither compiling nor other work of the
// machine counts much.

import { KvCache, OnlineScheduler, type Engine, type EnginePass, type GenerationRequest } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { format, median, type BenchResult } from './measure.js';

const vocabularyTokens = 32_000;
const rounds = 4;
const [shortPromptTokens, shortNewTokens, shortAtOnce] = [64, 16, 64];

/** Answers at once, and notes how long the caller took from its answer to the next pass. */
class InstantEngine implements Engine {
  readonly vocabularyTokens = vocabularyTokens;
  /** µs between passes of so many sequences, one for each step. */
  readonly gapsUs: number[] = [];
  #endMs = Number.NaN;
  #turn = 0;
  readonly #answer: { readonly tokens: Int32Array };
  readonly #counted: number;

  constructor(counted: number) {
    this.#counted = counted;
    this.#answer = { tokens: new Int32Array(counted) };
  }

  prefill(pass: EnginePass): { readonly tokens: Int32Array } {
    this.#endMs = Number.NaN; // a step with a prompt is none that is counted
    return this.#next(pass);
  }

  decode(pass: EnginePass): { readonly tokens: Int32Array } {
    if (pass.length === this.#counted && !Number.isNaN(this.#endMs)) this.gapsUs.push(1e3 * (performance.now() - this.#endMs));
    const answer = this.#next(pass);
    this.#endMs = performance.now();
    return answer;
  }

  #next({ length }: EnginePass): { readonly tokens: Int32Array } {
    this.#turn += 1;
    const { tokens } = this.#answer;
    for (let at = 0; at < length; at += 1) tokens[at] = (this.#turn * 31 + at * 7) % vocabularyTokens;
    return this.#answer;
  }
}

interface Setting {
  readonly sequences: number;
  readonly prefixCache: boolean;
  readonly asText: boolean;
  readonly queued: number;
}

function open(slots: number, prefixCache: boolean): { readonly cache: KvCache; close(): void } {
  const mock = new MockDevice({ memoryBytes: 2 ** 42, backing: 'none' });
  const cache = new KvCache({
    model: { layers: 16, kvHeads: 8, headDim: 64, dtype: 'float16' }, slots, maxTokens: 8_192, memoryBudgetBytes: 2 ** 38, driver: mock.driver,
    ...prefixCache ? {} : { prefixCache: 'off' },
  });
  return { cache, close: () => { cache.close(); mock.close(); } };
}

/** A tokenizer of words of four letters: what text costs beside the vocabulary. */
const tokenizer = { pieces: () => ({ push: (token: number) => ` t${token}`, end: () => '' }) };

async function step({ sequences, prefixCache, asText, queued }: Setting): Promise<number> {
  const { cache, close } = open(sequences, prefixCache);
  const engine = new InstantEngine(sequences);
  const scheduler = new OnlineScheduler({ cache, engine, maxWaiting: sequences + queued, prefillTokensPerStep: 2 ** 20 });
  const request = (at: number): GenerationRequest => ({
    tokens: Int32Array.from({ length: 200 }, (_, token) => (token < 100 ? token : token * 13 + at * 101) % vocabularyTokens), maxNewTokens: 2_000,
    ...asText ? { tokenizer, stopStrings: ['\n\nUser:'] } : {},
  });
  const streams = Array.from({ length: sequences }, (_, at) => scheduler.submit(request(at)));
  const waiting = Array.from({ length: queued }, (_, at) => scheduler.submit({ tokens: [1 + at % 1_000, 2, 3], maxNewTokens: 1 }));
  await Promise.all(streams.map(({ result }) => result));
  await scheduler.close();
  await Promise.allSettled(waiting.map(({ result }) => result));
  close();
  return median(engine.gapsUs);
}

/** µs of a request. */
async function short(prefixCache: boolean): Promise<number> {
  const { cache, close } = open(shortAtOnce, prefixCache);
  const engine = new InstantEngine(shortAtOnce);
  const scheduler = new OnlineScheduler({ cache, engine });
  const measured: number[] = [];
  for (let round = 0; round < 60; round += 1) {
    const requests = Array.from({ length: shortAtOnce }, (_, at) => ({
      tokens: Int32Array.from({ length: shortPromptTokens }, (__, token) => (token < shortPromptTokens / 2 ? token : token * 13 + at * 101 + round * 977) % vocabularyTokens),
      maxNewTokens: shortNewTokens,
    }));
    const startMs = performance.now();
    await Promise.all(requests.map((request) => scheduler.submit(request).result));
    measured.push(1e3 * (performance.now() - startMs) / shortAtOnce);
  }
  await scheduler.close();
  close();
  return median(measured.slice(20));
}

export async function scheduler(): Promise<BenchResult[]> {
  const results: BenchResult[] = [];
  const own: Record<string, number> = {};
  for (const [name, key, goalUs, setting] of [
    ['64 sequences', 'plain', 40, { sequences: 64, prefixCache: false, asText: false, queued: 0 }],
    ['256 sequences, prefix cache, answers as text', 'text', 150, { sequences: 256, prefixCache: true, asText: true, queued: 0 }],
    ['64 sequences while 20,000 requests wait', 'queued', undefined, { sequences: 64, prefixCache: false, asText: false, queued: 20_000 }],
  ] as const) {
    for (let round = 1; round < rounds; round += 1) await step(setting);
    const us = own[key] = await step(setting);
    const against = goalUs === undefined ? `${format(us / own['plain']!, 2)} × without them; goal ≤ 1.1 ×` : `goal ≤ ${goalUs} µs`;
    results.push({
      name: `a step of the scheduler: ${name}`, value: `${format(us)} µs, ${format(us / setting.sequences, 2)} µs a token`, against,
      isGoalMet: goalUs === undefined ? us <= 1.1 * own['plain']! : us <= goalUs, numbers: { stepUs: us },
    });
  }
  for (const [prefixCache, goalUs] of [[false, 150], [true, 400]] as const) {
    const us = await short(prefixCache);
    results.push({
      name: `a request of ${shortPromptTokens} tokens and ${shortNewTokens} of answer, ${shortAtOnce} at a time, ${prefixCache ? 'with' : 'without'} the prefix cache`,
      value: `${format(us)} µs, steps included`, against: `goal ≤ ${goalUs} µs`, isGoalMet: us <= goalUs, numbers: { requestUs: us },
    });
  }
  return results;
}
