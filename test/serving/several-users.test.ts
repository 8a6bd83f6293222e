// Several schedulers and an application on one cache and one engine, at random: requests that are cancelled, read in part or too
// late, sequences that the application holds for a while, schedulers that are closed, failing passes, resets, budgets that
// change. Every request ends with the right tokens or a typed error, and nothing is left.

import type { ExecutionContext } from 'ava';

import {
  byArrival, byTenantShare, isKvError, KvCache, NaiveScheduler, OfflineScheduler, OnlineScheduler, PagePool, type Engine,
  type GenerationRequest, type SchedulerOptions,
} from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { assertNothingLeft, cacheOptions, drivers, openDriver, pageBytes, withCache, type DriverName } from '../helpers/cache.js';
import { allowedEnds, RandomEnds } from '../helpers/random-ends.js';
import { seedOf } from '../helpers/seed.js';
import { PatternEngine, turn } from './pattern-engine.js';
import { assertAnswer, assertQuiet, randomRequests, smallModel } from './serving-bench.js';
import { SteppedClock } from './stepped-clock.js';
import { slow } from '../runner/slow.js';
import { scale, tier } from '../runner/tier.js';

for (const on of drivers) {
  const seed = seedOf(`several-users-${on}`);
  slow('schedulers that share memory')(`several schedulers and an application share a cache, and every request ends (${on}, seed ${seed})`, async (t) => {
    const random = new Random(seed);
    const sums: Record<string, number> = {};
    for (let round = 0; round < Math.ceil(12 * scale); round += 1) await runOnce(t, on, random, sums);
    t.log(sums);
    if (scale >= 1) for (const name of ['done', 'held', 'preemptions']) t.true(sums[name]! > 0, `no ${name}`);
  });
}

for (const on of drivers) {
  const seed = seedOf(`two-caches-${on}`);
  slow('schedulers that share memory')(`schedulers on two caches of one pool wait for each other's memory, and every request is answered (${on}, seed ${seed})`, async (t) => {
    const random = new Random(seed);
    const sums: Record<string, number> = {};
    for (let round = 0; round < Math.ceil((tier === 'release' ? 25 : 12) * scale); round += 1) await runOnTwo(t, on, random, sums);
    t.log(sums);
    if (scale >= 1) t.true(sums['preemptions']! > 0);
  });
}

/** Two caches on one pool, which holds the requests of either and hardly those of both. */
async function runOnTwo(t: ExecutionContext, on: DriverName, random: Random, sums: Record<string, number>): Promise<void> {
  const count = (name: string, by = 1): void => { sums[name] = (sums[name] ?? 0) + by; };
  const { driver, device } = openDriver({ on });
  const { memoryBudgetBytes, pageBytes: _pageBytes, driver: _driver, ...options } =
    cacheOptions({ model: smallModel, maxTokens: 200, rows: 4 + random.integer(8) }, driver);
  const pool = new PagePool({ memoryBudgetBytes: memoryBudgetBytes!, driver, pageBytes });
  const caches = [0, 1].map(() => new KvCache({ ...options, slots: 1 + random.integer(4), pool, mapper: random.chance(0.5) ? 'background' : 'off' }));
  const patterns = caches.map((cache) => new PatternEngine({ cache, pause: () => (random.chance(0.3) ? turn() : Promise.resolve()) }));
  const clock = new SteppedClock();
  let isOver = false;
  const time = pass(clock, () => isOver);
  const clients = caches.flatMap((cache, index) => Array.from({ length: 1 + random.integer(2) }, () => {
    const given = { cache, engine: patterns[index]!, ...clock.options, prefillTokensPerStep: 1 + random.integer(100), watermarkRows: random.integer(3) };
    const requests = randomRequests(random, 10, 120, 60);
    if (random.chance(0.5)) return runList(t, random.chance(0.5) ? new NaiveScheduler(given) : new OfflineScheduler(given), requests, random, count);
    const scheduler = new OnlineScheduler(given);
    const answers = requests.map(async (request) => { assertAnswer(t, request, await scheduler.submit(request).result); });
    return Promise.all(answers).then(() => count('preemptions', scheduler.totals.preemptions));
  }));
  await Promise.all(clients);
  isOver = true;
  await time;
  caches.forEach((cache, index) => assertQuiet(t, cache, patterns[index]!));
  for (const cache of caches) cache.close();
  pool.close();
  assertNothingLeft(t, driver, device);
}

async function runOnce(t: ExecutionContext, on: DriverName, random: Random, sums: Record<string, number>): Promise<void> {
  const count = (name: string, by = 1): void => { sums[name] = (sums[name] ?? 0) + by; };
  // The largest request needs 4 rows.
  const rows = 4 + random.integer(8);
  const benchOptions = {
    on, model: smallModel, maxTokens: 200, rows, slots: 1 + random.integer(5), mapper: random.chance(0.5) ? 'background' : 'off',
    prefixCache: random.chance(0.2) ? 'off' : {},
  } as const;
  await withCache(t, benchOptions, async ({ cache }) => {
    const pattern = new PatternEngine({ cache, pause: () => (random.chance(0.3) ? turn() : Promise.resolve()) });
    const engine = failing(pattern, random, random.chance(0.5) ? 0.01 : 0);
    const clock = new SteppedClock();
    const options = (): SchedulerOptions => ({
      cache, engine, prefillTokensPerStep: 1 + random.integer(100), minPendingTokens: random.chance(0.5) ? 8 : Infinity,
      watermarkRows: random.integer(3), maxBatch: 1 + random.integer(4), order: random.chance(0.5) ? byArrival() : byTenantShare(),
      ...clock.options, passTimeoutMs: random.chance(0.2) ? 1e6 : undefined,
    });
    let isOver = false;
    const clients: Promise<void>[] = [];
    for (let lists = random.integer(3); lists > 0; lists -= 1) {
      const scheduler = random.chance(0.5) ? new NaiveScheduler(options()) : new OfflineScheduler(options());
      clients.push(runList(t, scheduler, randomRequests(random, 12, 120, 60), random, count));
    }
    for (let servers = 1 + random.integer(2); servers > 0; servers -= 1) {
      const scheduler = new OnlineScheduler({ ...options(), maxWaiting: 4 + random.integer(20) });
      clients.push(serve(t, scheduler, randomRequests(random, 16, 120, 60), random, count));
    }
    const application = holdSometimes(cache, rows, random, () => isOver, count);
    const time = pass(clock, () => isOver);
    await Promise.all(clients);
    isOver = true;
    await application;
    await time;
    assertQuiet(t, cache, pattern);
    await cache.settled();
    // With no sequence left everything can be had: a request that was refused now would wait for ever.
    t.is(cache.counts().reclaimablePages, cache.pool.counts().mappedPages);
  });
}

type Count = (name: string, by?: number) => void;

async function runList(
  t: ExecutionContext, scheduler: NaiveScheduler | OfflineScheduler, requests: readonly GenerationRequest[], random: Random, count: Count,
): Promise<void> {
  const seen = new Set<number>();
  const leaveAfter = random.chance(0.2) ? 1 + random.integer(requests.length) : Infinity;
  for await (const outcome of scheduler.run(requests)) {
    t.false(seen.has(outcome.index));
    seen.add(outcome.index);
    if (outcome.status === 'fulfilled') assertAnswer(t, requests[outcome.index]!, outcome.value);
    else if (!isKvError(outcome.reason, 'KV_ENGINE_FAILED')) throw outcome.reason;
    count(outcome.status === 'fulfilled' ? 'done' : 'failed');
    if (seen.size >= leaveAfter) break;
    if (random.chance(0.2)) for (let turns = random.integer(50); turns > 0; turns -= 1) await turn(); // a slow reader
  }
  t.is(seen.size, Math.min(requests.length, leaveAfter));
  count('preemptions', scheduler.totals.preemptions);
}

async function serve(
  t: ExecutionContext, scheduler: OnlineScheduler, requests: readonly GenerationRequest[], random: Random, count: Count,
): Promise<void> {
  const ends = new RandomEnds(scheduler, random, 4_000, [...allowedEnds, 'KV_CLOSED']);
  const closeAfter = random.chance(0.2) ? random.integer(requests.length) : Infinity;
  for (const [index, request] of requests.entries()) {
    if (index === closeAfter) await scheduler.close();
    ends.submit(request, (result) => assertAnswer(t, request, result));
    if (random.chance(0.5)) await turn();
  }
  await ends.allEnded();
  await scheduler.close();
  t.is(ends.sum, requests.length);
  for (const [end, times] of Object.entries(ends.counts)) count(end, times);
  count('preemptions', scheduler.totals.preemptions);
}

/** An application that has sequences of its own, resets the prefix cache, and changes the budget, which always fits a request. */
async function holdSometimes(cache: KvCache, rows: number, random: Random, isOver: () => boolean, count: Count): Promise<void> {
  while (!isOver()) {
    const sequences = Array.from({ length: 1 + random.integer(cache.layout.slots) }, () => {
      try {
        return cache.acquire({ promptTokens: random.integer(200), reserve: random.chance(0.5) ? 'prompt' : 'none' });
      } catch (error) {
        if (isKvError(error, 'KV_NO_FREE_SLOT') || isKvError(error, 'KV_OUT_OF_PAGES')) return undefined;
        throw error;
      }
    });
    for (const sequence of sequences) if (sequence !== undefined) count('held');
    for (let turns = random.integer(100); turns > 0; turns -= 1) await turn();
    if (random.chance(0.1)) cache.pool.setBudget((4 + random.integer(rows)) * cache.layout.rowBytes);
    if (random.chance(0.05)) cache.prefixes.reset({ preempt: true });
    for (const sequence of sequences) if (sequence?.isReleased === false) sequence.release();
    for (let turns = random.integer(100); turns > 0; turns -= 1) await turn();
  }
}

/** Lets a millisecond pass each turn of the event loop. */
async function pass(clock: SteppedClock, isOver: () => boolean): Promise<void> {
  while (!isOver()) {
    clock.advance(1);
    await turn();
  }
}

function failing(engine: PatternEngine, random: Random, share: number): Engine {
  const call = (name: 'prefill' | 'decode'): Engine['prefill'] => async (pass) => {
    if (random.chance(share)) throw new Error('no more');
    return engine[name](pass);
  };
  return { vocabularyTokens: engine.vocabularyTokens, prefill: call('prefill'), decode: call('decode') };
}
