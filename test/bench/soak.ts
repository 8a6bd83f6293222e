// What is left after many requests through the online scheduler that share prompts, are cancelled, have deadlines and are preempted: JavaScript's
// heap after collecting garbage, memory outside of it, file descriptors, once it is warm and after all. 100,000 with an engine that checks
// every byte, and 32,000 with the reference engine, a small random model whose passes threads compute while JavaScript goes on.
//
// Warm is a cache whose eviction policy remembers as many texts as it ever does (`ReuseHistory`, 65,536 pieces, some four of each request
// here): until then the heap grows by about 5 MiB, however many requests come later. Code that V8 optimizes is the rest of it.

import { readdirSync } from 'node:fs';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { KvCache, OnlineScheduler, type Engine, type GenerationRequest } from 'virtual-kv';

import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { Random } from '#internal/base/random.js';
import { randomLlama, removeFolder, writeLlama } from '../helpers/made-llama.js';
import { RandomEnds } from '../helpers/random-ends.js';
import { PatternEngine, turn, vocabularyTokens } from '../serving/pattern-engine.js';
import { format, type BenchResult } from './measure.js';

/** More than it takes to fill the policy's history: about 15,000. */
const warmRequests = 16_000;
const patternRequests = 100_000;
const llamaRequests = 2 * warmRequests;
const goalGrownBytes = 2 ** 20;

interface Held {
  readonly heapBytes: number;
  readonly externalBytes: number;
  readonly residentBytes: number;
  readonly descriptors: number;
}

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

async function held(): Promise<Held> {
  collectGarbage();
  await turn(); // finalizers
  collectGarbage();
  const { heapUsed, external, rss } = process.memoryUsage();
  return { heapBytes: heapUsed, externalBytes: external, residentBytes: rss, descriptors: readdirSync('/proc/self/fd').length };
}

/** Requests that often begin as one before them did. */
function* randomRequests(random: Random, count: number): Generator<GenerationRequest> {
  const prompts: Int32Array[] = [];
  for (let made = 0; made < count; made += 1) {
    const like = prompts.length > 0 && random.chance(0.8) ? prompts[random.integer(prompts.length)]! : new Int32Array(0);
    const shared = random.integer(like.length + 1);
    const tokens = Int32Array.from({ length: Math.max(1, shared + random.integer(121 - shared)) }, (_, at) => at < shared ? like[at]! : random.integer(vocabularyTokens));
    prompts[made % 20] = tokens;
    yield { tokens, maxNewTokens: 1 + random.integer(30), urgency: random.chance(0.2) ? random.integer(3) : 0 };
  }
}

interface SoakOptions {
  readonly name: string;
  readonly requests: number;
  readonly cache: KvCache;
  readonly engine: Engine;
  readonly random: Random;
}

/** Serves so many requests, and closes the scheduler. */
async function soakOf({ name, requests, cache, engine, random }: SoakOptions): Promise<BenchResult> {
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 64, minPendingTokens: 8, maxWaiting: 12, watermarkRows: 1 });
  const ends = new RandomEnds(scheduler, random);
  let [submitted, warm] = [0, await held()];
  for (const request of randomRequests(random, requests)) {
    submitted += 1;
    if (submitted === warmRequests) {
      await ends.allEnded();
      warm = await held();
    }
    ends.submit(request, () => {});
    while (scheduler.waitingRequests >= 12 && random.chance(0.9)) await scheduler.queueFree();
    if (random.chance(0.5)) await turn();
  }
  await ends.allEnded();
  const atEnd = await held();
  const { preemptions } = scheduler.totals;
  await scheduler.close();
  cache.verify();
  const grown = (of: 'heapBytes' | 'externalBytes' | 'residentBytes'): number => atEnd[of] - warm[of];
  const MiB = (bytes: number): string => format(bytes / 2 ** 20, 2);
  return {
    name: `${format(requests, 0)} requests to ${name}, ${format(ends.counts['KV_ABORTED'] ?? 0, 0)} aborted, ${format(preemptions, 0)} preempted: what is left`,
    value: `heap ${MiB(atEnd.heapBytes)} MiB, ${MiB(grown('heapBytes'))} more than after ${format(warmRequests, 0)}; outside of it ${MiB(grown('externalBytes'))} MiB more, ` +
      `resident ${MiB(grown('residentBytes'))} MiB, ${atEnd.descriptors - warm.descriptors} file descriptors`,
    against: 'goal: at most 1 MiB more of heap and outside of it, no descriptor',
    isGoalMet: grown('heapBytes') <= goalGrownBytes && grown('externalBytes') <= goalGrownBytes && atEnd.descriptors <= warm.descriptors,
    numbers: { heapBytes: grown('heapBytes'), externalBytes: grown('externalBytes'), residentBytes: grown('residentBytes'), preemptions },
  };
}

/** 1,280 bytes of a token in each tensor, so that 28 pages are few for six sequences of up to 150. */
const bigHeads = { kvHeads: 4, headDim: 160 };
const memory = { maxTokens: 200, slots: 6, driver: 'host', pageBytes: 65_536, memoryBudgetBytes: 28 * 65_536 } as const;

async function soakPattern(): Promise<BenchResult> {
  const random = new Random(1);
  using cache = new KvCache({ model: { layers: 1, ...bigHeads, dtype: 'float16' }, ...memory });
  const engine = new PatternEngine({ cache, pause: () => random.chance(0.3) ? turn() : Promise.resolve() });
  return await soakOf({ name: 'an engine that checks every byte', requests: patternRequests, cache, engine, random });
}

async function soakLlama(): Promise<BenchResult> {
  const random = new Random(2);
  const folder = writeLlama(randomLlama(random, { layers: 1, hidden: 64, intermediate: 96, queryHeads: 4, ...bigHeads, vocabularyTokens }, {}, 'float16'), 'float16');
  try {
    const model = new LlamaModel(folder);
    using cache = new KvCache({ model: model.shape(), ...memory });
    using engine = new LlamaEngine({ model, cache, passes: 'awaited' });
    return await soakOf({ name: 'the reference engine', requests: llamaRequests, cache, engine, random });
  } finally {
    removeFolder(folder);
  }
}

export async function soak(): Promise<BenchResult[]> {
  return [await soakPattern(), await soakLlama()];
}
