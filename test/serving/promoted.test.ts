// Requests whose prompts begin with text that only tiers have: it comes while others compute, what it does not bring is computed, and a
// request that ends meanwhile stops it. The engine checks every byte that it reads.

import { hostTier, isKvError, OfflineScheduler, OnlineScheduler, type GenerationRequest, type KvCache, type Tier } from 'virtual-kv';

import { processClock } from '#internal/tiers/load-clock.js';
import { dropFromDevice, turn } from '../cache/tiers/device-index.js';
import { cacheTest, drivers, type CacheBench } from '../helpers/cache.js';
import { timeLoadsBy } from '../helpers/patient.js';
import { PatternEngine } from './pattern-engine.js';
import { assertAnswer, assertQuiet, collect, promptOf, resultOf, smallModel, type ServingBench } from './serving-bench.js';
import { sampled } from '../runner/tier.js';

const MiB = 2 ** 20;

interface HeldTier {
  readonly tier: Tier;
  /** Of the reads that waited, in their order. */
  readonly signals: AbortSignal[];
  /** Lets all reads through, those that wait and those to come. */
  readonly release: () => void;
  /** Reads that wait. */
  readonly waiting: Set<() => void>;
}

/** A tier in memory whose reads wait until they are let through, or aborted. */
function heldTier(): HeldTier {
  const inner = hostTier({ bytes: 16 * MiB });
  const waiting = new Set<() => void>();
  const signals: AbortSignal[] = [];
  let isHeld = true;
  const tier: Tier = {
    name: 'held', isLasting: false, takesOnlyWholeBlocks: false, capacityBytes: 16 * MiB,
    open: (context) => inner.open(context), put: (record, payload) => inner.put(record, payload), remove: (keys) => inner.remove(keys),
    statistics: () => inner.statistics(), close: () => inner.close(),
    get: async (key, payload, signal) => {
      if (isHeld) {
        await new Promise<void>((resolve) => {
          waiting.add(resolve);
          if (signal !== undefined) signals.push(signal);
          signal?.addEventListener('abort', () => { resolve(); });
        });
      }
      return signal?.aborted === true ? { isFound: false, reason: 'timeout' } : inner.get(key, payload);
    },
  };
  const release = (): void => {
    isHeld = false;
    for (const go of waiting) go();
  };
  return { tier, release, waiting, signals };
}

interface TieredServing extends ServingBench {
  readonly held: HeldTier;
}

function tieredTests(title: string, body: (serving: TieredServing) => Promise<void>): void {
  for (const on of sampled(drivers, 2)) {
    const held = heldTier();
    const prefixCache = { tiers: [held.tier], tierBlockTokens: 8 };
    cacheTest(`${title} (${on})`, { model: smallModel, maxTokens: 400, prefixCache, on }, async (t, bench: CacheBench) => {
      const { cache } = bench;
      const engine = new PatternEngine({ cache, pause: undefined });
      await body({ t, cache, engine, bench, held });
      held.release();
      await cache.prefixes.tiers!.close();
      assertQuiet(t, cache, engine);
    });
  }
}

/** By it an engine takes minutes for a pass, so that loading is always worth it. */
function slowClock(): () => number {
  let now = 0;
  return () => now += 1e6;
}

/** Serves a request and leaves its text to the tiers alone. */
async function demote({ cache, engine }: TieredServing, request: GenerationRequest): Promise<void> {
  const scheduler = new OnlineScheduler({ cache, engine, now: slowClock() });
  await scheduler.submit(request).result;
  await scheduler.close();
  await leaveToTiers(cache);
}

async function leaveToTiers(cache: KvCache): Promise<void> {
  await cache.prefixes.tiers!.settled();
  dropFromDevice(cache);
}

const request = { tokens: promptOf(100), maxNewTokens: 4 };

async function manyTurns(): Promise<void> {
  for (let turns = 0; turns < 8; turns += 1) await turn();
}

tieredTests('text that only a tier has is found by the request that needs it', async (serving) => {
  const { t, cache, engine, held } = serving;
  await demote(serving, request);
  held.release();
  const scheduler = new OnlineScheduler({ cache, engine, now: slowClock() });
  const longer = { tokens: Int32Array.from([...request.tokens, ...promptOf(20, 7)]), maxNewTokens: 4 };
  const result = await scheduler.submit(longer).result;
  assertAnswer(t, longer, result);
  t.is(result.cachedTokens, 100);
  t.is(cache.prefixes.tiers!.metrics().tiers[0]!.promotedTokens, 100);
  t.like(result.promotion, { promotedTokens: 100, promotedFrom: { held: 100 }, end: 'complete' });
  t.like(result.promotion!.estimate, { tokens: 100, loadTokens: 100 });
  t.is(scheduler.times.firstTokenBy.get('held')!.count, 1, 'times tell where prompts came from');
  t.true(cache.prefixes.tiers!.metrics().prefillTokensPerMs! > 0, 'how fast the engine computes is known');
  await scheduler.close();
});

tieredTests('others compute while text comes', async (serving) => {
  const { t, cache, engine, held } = serving;
  await demote(serving, request);
  const scheduler = new OnlineScheduler({ cache, engine, now: slowClock() });
  const loading = scheduler.submit(request);
  const other = { tokens: promptOf(30, 3), maxNewTokens: 4 };
  assertAnswer(t, other, await scheduler.submit(other).result);
  t.deepEqual([scheduler.waitingRequests, scheduler.runningRequests], [1, 0]);
  held.release();
  const result = await loading.result;
  assertAnswer(t, request, result);
  t.is(result.cachedTokens, 99);
  await scheduler.close();
});

tieredTests('what comes for a scheduler that is paused may be evicted, and the memory be lent', async (serving) => {
  const { t, cache, engine, held } = serving;
  await demote(serving, request);
  const scheduler = new OnlineScheduler({ cache, engine, now: slowClock() });
  await scheduler.pause();
  const { result } = scheduler.submit(request);
  while (held.waiting.size === 0) await turn();
  await manyTurns();
  held.release();
  const { tokens } = request;
  t.is((await cache.prefixes.promote({ tokens })).cachedTokens, 100, 'all has come');
  await cache.prefixes.tiers!.settled();
  await manyTurns();
  const { budgetPages } = cache.pool.counts();
  const { pageBytes, rowBytes } = cache.layout;
  cache.pool.setBudget(rowBytes);
  t.true(cache.pool.counts().createdPages * pageBytes <= rowBytes);
  cache.pool.setBudget(budgetPages * pageBytes);
  scheduler.resume();
  assertAnswer(t, request, await result);
  await scheduler.close();
});

tieredTests('a request whose text cannot be held until it has a slot is answered', async (serving) => {
  const { t, cache, engine, held } = serving;
  await demote(serving, request);
  held.release();
  Object.assign(cache.prefixes, { hold: () => { throw new Error('the device is lost'); } });
  const scheduler = new OnlineScheduler({ cache, engine, now: slowClock() });
  assertAnswer(t, request, await scheduler.submit(request).result);
  await scheduler.close();
});

tieredTests('a request that ends while its text comes stops it', async (serving) => {
  const { t, cache, engine, held } = serving;
  await demote(serving, request);
  const scheduler = new OnlineScheduler({ cache, engine });
  const abort = new AbortController();
  const cancelled = scheduler.submit({ ...request, signal: abort.signal });
  const late = scheduler.submit({ ...request, deadlineMs: 1 });
  while (held.waiting.size === 0) await turn();
  abort.abort();
  t.true(isKvError(await t.throwsAsync(cancelled.result), 'KV_ABORTED'));
  t.true(isKvError(await t.throwsAsync(late.result), 'KV_DEADLINE_EXCEEDED'));
  await scheduler.idle();
  t.is(scheduler.waitingRequests, 0);
  t.true(held.signals.length > 0 && held.signals.every(({ aborted }) => aborted), 'reads that nothing waits for any more are ended');
  const before = held.signals.length;
  const closed = scheduler.submit(request);
  while (held.signals.length === before) await turn();
  await scheduler.close();
  t.true(held.signals.every(({ aborted }) => aborted));
  t.true(isKvError(await t.throwsAsync(closed.result), 'KV_CLOSED'));
});

tieredTests('what a tier has lost is computed', async (serving) => {
  const { t, cache, engine, held } = serving;
  await demote(serving, request);
  held.release();
  held.tier.get = () => Promise.resolve({ isFound: false, reason: 'failed' });
  const scheduler = new OnlineScheduler({ cache, engine, now: slowClock() });
  const result = await scheduler.submit(request).result;
  assertAnswer(t, request, result);
  t.is(result.cachedTokens, 0);
  t.like(result.promotion, { promotedTokens: 0, end: 'unreachable' });
  await scheduler.close();
});

tieredTests('a tier that takes longer than the engine is not waited for', async (serving) => {
  const { t, cache, engine, held } = serving;
  timeLoadsBy(cache, processClock);
  await demote(serving, request);
  for (let pass = 0; pass < 40; pass += 1) cache.prefixes.tiers!.hasPrefilled(1_000, 1); // it has become fast
  const scheduler = new OnlineScheduler({ cache, engine });
  const result = await scheduler.submit(request).result;
  assertAnswer(t, request, result);
  t.is(result.cachedTokens, 0);
  t.like(result.promotion, { promotedTokens: 0, end: 'recompute-cheaper' });
  t.is(result.promotion!.estimate!.tokens, 100, 'it says what was estimated');
  t.true(result.promotion!.estimate!.computeMs! < 10_000);
  t.is(cache.prefixes.tiers!.metrics().promotions['recompute-cheaper'], 1);
  t.is(scheduler.times.firstTokenBy.get('computed')!.count, 1);
  held.release();
  await scheduler.close();
});

tieredTests('a run of many requests finds what tiers have', async (serving) => {
  const { t, cache, engine, held } = serving;
  await demote(serving, request);
  held.release();
  const requests = Array.from({ length: 8 }, (_, key) => ({
    tokens: Int32Array.from([...request.tokens, ...promptOf(10, key)]), maxNewTokens: 3,
  }));
  const outcomes = await collect(new OfflineScheduler({ cache, engine, now: slowClock() }).run(requests));
  outcomes.forEach((outcome, index) => {
    assertAnswer(t, requests[index]!, resultOf(outcome));
    t.true(resultOf(outcome).cachedTokens >= 100);
  });
});
