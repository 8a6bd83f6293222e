// The truth test through the schedulers: random models, layouts, budgets and requests. Every row of logits that a scheduler reads,
// also one that was kept at the end of a prompt, is that of computing the request's text so far without a cache; the tokens are those
// chosen from it; and they are the same from all schedulers, with and without the prefix cache.

import type { ExecutionContext } from 'ava';

import {
  byArrival, byTenantShare, isKvError, NaiveScheduler, OfflineScheduler, OnlineScheduler,
  type GenerationResult, type KvCache, type SchedulerOptions, type ServingTotals,
} from 'virtual-kv';

import { mix32, Random } from '#internal/base/random.js';
import { withCache } from '../helpers/cache.js';
import { LlamaLoad, maxTokens, type LoadedRequest } from '../helpers/llama-load.js';
import { pageBytes } from '../helpers/llama-shapes.js';
import { seedOf } from '../helpers/seed.js';
import { ServedLlama } from '../helpers/served-llama.js';
import { WatchedRequests, type WatchedRequest } from '../helpers/watched-requests.js';
import { turn } from '../serving/pattern-engine.js';
import { collect, resultOf } from '../serving/serving-bench.js';
import { slow } from '../runner/slow.js';
import { scale } from '../runner/tier.js';

const runs = [['naive', 'off'], ['naive', 'on'], ['offline', 'on'], ['offline', 'off'], ['online', 'on'], ['online', 'off']] as const;

interface Run {
  readonly t: ExecutionContext;
  readonly random: Random;
  readonly cache: KvCache;
  readonly requests: readonly WatchedRequest[];
  readonly watched: WatchedRequests;
}

/** Undefined: it was cancelled. */
interface Done {
  readonly results: readonly (GenerationResult | undefined)[];
  readonly totals: ServingTotals;
}

const runners = {
  naive: async (options: SchedulerOptions, { requests }: Run): Promise<Done> => {
    const scheduler = new NaiveScheduler(options);
    return { results: (await collect(scheduler.run(requests))).map(resultOf), totals: scheduler.totals };
  },
  offline: async (options: SchedulerOptions, { requests, random }: Run): Promise<Done> => {
    const scheduler = new OfflineScheduler({ ...options, arrangement: random.chance(0.5) ? 'prefix' : 'given' });
    return { results: (await collect(scheduler.run(requests))).map(resultOf), totals: scheduler.totals };
  },
  online: async (options: SchedulerOptions, run: Run): Promise<Done> => {
    const { requests, random } = run;
    const scheduler = new OnlineScheduler(options);
    const ends: Promise<GenerationResult | undefined>[] = [];
    for (const request of requests) {
      ends.push(serve(run, scheduler, request));
      if (random.chance(0.4)) await turn();
    }
    const results = await Promise.all(ends);
    await scheduler.close();
    return { results, totals: scheduler.totals };
  },
};

/** One request online: it may be cancelled, or its text goes on as the next turn of a conversation does. */
async function serve({ t, random, watched }: Run, scheduler: OnlineScheduler, request: WatchedRequest): Promise<GenerationResult | undefined> {
  const controller = new AbortController();
  const stream = scheduler.submit({ ...request, signal: controller.signal });
  const way = random.integer(12);
  if (way === 0) void turn().then(() => controller.abort());
  if (way === 1) void stream.next().then(() => stream.return());
  try {
    const result = await stream.result;
    const tokens = [...request.tokens, ...result.tokens, random.integer(10)];
    if (way > 8 && tokens.length + 4 <= maxTokens) {
      const next = watched.watch({ ...request, tokens, maxNewTokens: 4 }, 'greedy');
      watched.assertResult(t, next, await scheduler.submit(next).result);
    }
    return result;
  } catch (error) {
    if (!isKvError(error, 'KV_ABORTED') || way > 1) throw error;
    return undefined;
  }
}

const seed = seedOf('serving truth');
slow('runs models with every scheduler')(`what any scheduler reads and answers is what no cache computes (seed ${seed})`, async (t) => {
  const sums: Record<string, number> = { ties: 0 };
  for (let round = 0; round < Math.ceil(5 * scale); round += 1) {
    const random = new Random(mix32(seed, round));
    const load = new LlamaLoad({ random, threads: 1 + random.integer(2) });
    const requests = Array.from({ length: 16 }, () => load.request());
    const answers: (readonly (GenerationResult | undefined)[])[] = [];
    for (const [scheduler, caching] of runs) {
      const where = `round ${round}, ${scheduler}, prefix cache ${caching}, ${JSON.stringify({ ...load.shape, layout: load.layout })}`;
      answers.push(await runOnce(t, where, { random, load, requests, scheduler, caching, sums }));
    }
    if (sums['ties']! > 0) continue; // then they may part, and each was compared with the logits behind its own text
    requests.forEach((_, index) => {
      const told = answers.map((results) => results[index]).filter((result) => result !== undefined).map(({ tokens }) => tokens.join());
      t.is(new Set(told).size, 1, `round ${round}, request ${index}`);
    });
  }
  t.log(sums);
  t.true(sums['rows']! > 1_000 * scale && sums['ties']! < 0.01 * sums['rows']!);
  if (scale < 1) return;
  for (const what of ['adopted', 'aliased', 'copied', 'preemptions', 'skippedPrefills', 'chunks', 'evicted', 'recomputedTokens', 'cancelled']) {
    t.true(sums[what]! > 0, `no ${what}`);
  }
});

interface Round {
  readonly random: Random;
  readonly load: LlamaLoad;
  readonly requests: readonly LoadedRequest[];
  readonly scheduler: keyof typeof runners;
  readonly caching: 'on' | 'off';
  readonly sums: Record<string, number>;
}

async function runOnce(
  t: ExecutionContext, where: string, { random, load, requests: plan, scheduler, caching, sums }: Round,
): Promise<readonly (GenerationResult | undefined)[]> {
  const { layout, model, plain } = load;
  const meanwhile = new Random(random.integer(2 ** 32)); // how much is drawn while requests run depends on their times; no other run does on that
  const memory = load.budgetBytes(load.pick([0, 3, 12, 60]));
  let results: readonly (GenerationResult | undefined)[] = [];
  await withCache(t, {
    on: 'host', model: model.shape('float32'), layout, maxTokens, slots: load.pick([2, 4, 6]), pageBytes, memoryBudgetBytes: memory,
    mapper: load.pick(['background', 'off']),
    prefixCache: caching === 'off' ? 'off' : load.pick([{}, {}, { poolRows: 1 + random.integer(8) }, { endValues: 2 }]),
  }, async ({ cache }) => {
    using engine = new ServedLlama({ model, cache, pause: random.chance(0.5) ? () => (meanwhile.chance(0.3) ? turn() : undefined) : undefined });
    const watched = new WatchedRequests();
    const requests = plan.map(({ choice, ...request }) => watched.watch(request, choice));
    const options = {
      cache, engine, maxBatch: 1 + random.integer(6), prefillTokensPerStep: 1 + random.integer(load.pick([8, 40, 200])),
      watermarkRows: random.integer(3), minPendingTokens: load.pick([1, 16, Infinity]), order: load.pick([byArrival(), byTenantShare()]),
    };
    const done = await runners[scheduler](options, { t, random: meanwhile, cache, requests, watched });
    results = done.results;
    results.forEach((result, index) => { if (result !== undefined) watched.assertResult(t, requests[index]!, result); });
    const ties = watched.check(t, plain, where);
    const { adoptedTokens: adopted, aliasedTokens: aliased, copiedTokens: copied, droppedRows: { evicted } } = cache.prefixes.metrics;
    const cancelled = results.filter((result) => result === undefined).length;
    add(sums, { rows: watched.rows, ties, adopted, aliased, copied, evicted, cancelled, chunks: engine.chunks, ...done.totals });
    if (caching === 'off') t.is(done.totals.cachedTokens, 0);
    t.is(cache.counts().activeSlots, 0);
    t.is(cache.pool.counts().earmarkedPages, 0);
  });
  return results;
}

function add(sums: Record<string, number>, more: Readonly<Record<string, number>>): void {
  for (const [name, value] of Object.entries(more)) sums[name] = (sums[name] ?? 0) + value;
}
