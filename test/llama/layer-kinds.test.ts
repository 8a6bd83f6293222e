// The truth of models whose layers do not all see all tokens: whatever scheduler, layout and driver, every row of
// logits that is read and every token chosen is that of computing the whole text in double precision without a cache,
// over texts that outgrow windows and chunks many times.

import type { ExecutionContext } from 'ava';

import {
  layoutKinds, NaiveScheduler, OfflineScheduler, OnlineScheduler,
  type GenerationResult, type LayoutKind, type SchedulerOptions,
} from 'virtual-kv';

import { LlamaModel } from '#internal/llama/model.js';
import { Random } from '#internal/base/random.js';
import { drivers, withCache, type DriverName } from '../helpers/cache.js';
import { layerKinds } from '../helpers/layer-kinds.js';
import { pageBytes, randomText, vocabularyTokens } from '../helpers/llama-shapes.js';
import { randomLlama, removeFolder, writeLlama, type LlamaSizes } from '../helpers/made-llama.js';
import { PlainAnswers } from '../helpers/plain-answers.js';
import { seedOf } from '../helpers/seed.js';
import { ServedLlama } from '../helpers/served-llama.js';
import { WatchedRequests, type WatchedRequest } from '../helpers/watched-requests.js';
import { collect, resultOf } from '../serving/serving-bench.js';
import { costly } from '../runner/slow.js';
import { isSampling, sampleSeed, scaled } from '../runner/tier.js';

const base: LlamaSizes = {
  layers: 4, hidden: 32, intermediate: 48, queryHeads: 4, kvHeads: 2, headDim: 16, vocabularyTokens,
};
const maxTokens = 640;
/** Tokens of each prompt and of its answer. */
const prompts = [[41, 512], [9, 30], [70, 20], [23, 60]] as const;

type Answer = (options: SchedulerOptions, requests: readonly WatchedRequest[]) => Promise<readonly GenerationResult[]>;

const schedulers = {
  naive: async (options: SchedulerOptions, requests: readonly WatchedRequest[]) =>
    (await collect(new NaiveScheduler(options).run(requests))).map(resultOf),
  offline: async (options: SchedulerOptions, requests: readonly WatchedRequest[]) =>
    (await collect(new OfflineScheduler(options).run(requests))).map(resultOf),
  online: async (options: SchedulerOptions, requests: readonly WatchedRequest[]) => {
    const scheduler = new OnlineScheduler(options);
    const results = await Promise.all(requests.map((request) => scheduler.submit(request).result));
    await scheduler.close();
    return results;
  },
} satisfies Record<string, Answer>;

interface Run {
  readonly scheduler: keyof typeof schedulers;
  readonly layout: LayoutKind;
  readonly on: DriverName;
  /** Whether layers let go of what no token sees any more. */
  readonly slides: boolean;
}

const runs: readonly Run[] = [false, true].flatMap((slides) => [
  ...drivers.flatMap((on) => layoutKinds.map((layout): Run => ({ scheduler: 'offline', layout, on, slides }))),
  ...(['naive', 'online'] as const).map((scheduler): Run => ({ scheduler, layout: 'sliced', on: 'host', slides })),
]);

for (const [index, [name, { more, sizes }]] of Object.entries(layerKinds).entries()) {
  const seed = seedOf(`layer kinds ${name}`);
  const title = `${name}: 512 tokens are those of no cache, by any scheduler, layout and driver (seed ${seed})`;
  costly('each run is of another family, scheduler, layout and driver')(title, async (t) => {
    const random = new Random(seed);
    const made = randomLlama(random, { ...base, ...sizes }, more);
    const folder = writeLlama(made);
    const model = new LlamaModel(folder, { threads: 1 });
    removeFolder(folder);
    const plain = new PlainAnswers(made);
    const tokens = scaled(512, 64);
    const plans = prompts.map(([prompt, answer]) => (
      { tokens: randomText(random, prompt), maxNewTokens: Math.min(answer, tokens) }));
    const answers = new Set<string>();
    let ties = 0;
    for (const run of isSampling ? [runs[(sampleSeed + 5 * index) % runs.length]!] : runs) {
      const watched = new WatchedRequests();
      const results = await answersOf(t, model, run, plans.map((plan) => watched.watch(plan, 'greedy')));
      ties += watched.check(t, plain, JSON.stringify(run));
      answers.add(results.map((result) => result.tokens.join()).join(';'));
      t.is(results[0]!.tokens.length, tokens);
    }
    if (ties === 0) t.true(answers.size <= 1);
  });
}

/** The answers of one scheduler over a cache of its own; prompts come in chunks that end within windows. */
async function answersOf(
  t: ExecutionContext, model: LlamaModel, { scheduler, layout, on, slides }: Run, requests: readonly WatchedRequest[],
): Promise<readonly GenerationResult[]> {
  let results: readonly GenerationResult[] = [];
  await withCache(t, {
    on, model: model.shape('float32', { slides }), layout, maxTokens, slots: 3, memoryBudgetBytes: 2 ** 26,
    prefixCache: 'off', passTokens: 19,
    ...on === 'mock' ? { pageBytes: 4_096, device: { granularityBytes: 4_096 } } : { pageBytes },
  }, async ({ cache }) => {
    using engine = new ServedLlama({ model, cache });
    results = await schedulers[scheduler]({ cache, engine, prefillTokensPerStep: 19 }, requests);
    cache.verify();
  });
  return results;
}
