// All schedulers against what the engine must say: random requests, budgets and options by seed.

import test, { type ExecutionContext } from 'ava';

import {
  byArrival, byTenantShare, NaiveScheduler, OfflineScheduler, OnlineScheduler,
  type GenerationRequest, type KvCache, type ServingTotals,
} from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { drivers, withCache, type DriverName } from '../helpers/cache.js';
import { seedOf } from '../helpers/seed.js';
import { PatternEngine, turn } from './pattern-engine.js';
import { assertAnswer, assertQuiet, collect, randomRequests, resultOf, smallModel } from './serving-bench.js';
import { sampled, scale } from '../runner/tier.js';

const schedulers = ['naive', 'offline', 'online'] as const;

interface Run {
  readonly cache: KvCache;
  readonly engine: PatternEngine;
  readonly requests: readonly GenerationRequest[];
  readonly random: Random;
}

const runners = {
  naive: async (options: object, { cache, engine, requests }: Run) => {
    const scheduler = new NaiveScheduler({ cache, engine, ...options });
    return { results: (await collect(scheduler.run(requests))).map(resultOf), totals: scheduler.totals };
  },
  offline: async (options: object, { cache, engine, requests, random }: Run) => {
    const arrangement = random.chance(0.5) ? 'prefix' : 'given';
    const scheduler = new OfflineScheduler({ cache, engine, arrangement, ...options });
    return { results: (await collect(scheduler.run(requests))).map(resultOf), totals: scheduler.totals };
  },
  online: async (options: object, { cache, engine, requests, random }: Run) => {
    const scheduler = new OnlineScheduler({ cache, engine, ...options });
    const streams = [];
    for (const request of requests) {
      streams.push(scheduler.submit(request));
      if (random.chance(0.3)) await turn();
    }
    const results = await Promise.all(streams.map((stream) => stream.result));
    await scheduler.close();
    return { results, totals: scheduler.totals };
  },
};

for (const on of sampled(drivers, 2)) {
  const seed = seedOf(`schedules-${on}`);
  test(`every scheduler gives the same tokens, with and without the prefix cache (${on}, seed ${seed})`, async (t) => {
    const random = new Random(seed);
    const sums: Record<string, number> = {};
    for (let round = 0; round < Math.ceil(6 * scale); round += 1) {
      const requests = randomRequests(random, 24, 150, 30);
      for (const scheduler of schedulers) {
        const totals = await runOnce(t, on, { random, requests, scheduler });
        for (const [name, value] of Object.entries(totals)) sums[name] = (sums[name] ?? 0) + value;
      }
    }
    t.log(sums);
    // In one round no run may have a prefix cache.
    if (scale >= 1) for (const name of ['cachedTokens', 'preemptions', 'skippedPrefills']) t.true(sums[name]! > 0, `no ${name}`);
  });
}

interface Load {
  readonly random: Random;
  readonly requests: readonly GenerationRequest[];
  readonly scheduler: (typeof schedulers)[number];
}

async function runOnce(t: ExecutionContext, on: DriverName, { random, requests, scheduler }: Load): Promise<ServingTotals> {
  let totals: ServingTotals | undefined;
  const options = {
    prefillTokensPerStep: 1 + random.integer(random.chance(0.5) ? 40 : 400),
    minPendingTokens: random.chance(0.3) ? Infinity : 1 + random.integer(30),
    watermarkRows: random.integer(3), order: random.chance(0.5) ? byArrival() : byTenantShare(), maxBatch: 1 + random.integer(8),
  };
  const prefixCache = random.chance(0.3) ? 'off' : random.chance(0.3) ? { poolRows: random.integer(6) } : {};
  const layout = random.chance(0.5) ? 'per-layer' : random.chance(0.5) ? 'sliced' : 'fused';
  // The largest request needs 4 rows; 2 to 4 of them fit at once.
  await withCache(t, {
    on, model: smallModel, maxTokens: 200, rows: 5 + random.integer(12), layout, prefixCache,
    mapper: random.chance(0.5) ? 'background' : 'off',
  }, async ({ cache }) => {
    const engine = new PatternEngine({ cache, pause: random.chance(0.3) ? turn : undefined, samples: random.chance(0.2) });
    const run = await runners[scheduler](options, { cache, engine, requests, random });
    requests.forEach((request, index) => assertAnswer(t, request, run.results[index]!));
    t.true(engine.largestPrefill <= options.prefillTokensPerStep);
    t.true(engine.largestPass <= options.maxBatch);
    assertQuiet(t, cache, engine);
    totals = { ...run.totals };
  });
  return totals!;
}
