// Logits that are not numbers: nothing that such a request has computed is found again, and what it had found is not trusted. By every scheduler.

import { subscribe, unsubscribe } from 'node:diagnostics_channel';

import test from 'ava';
import { Registry } from 'prom-client';

import { hostTier, NaiveScheduler, OfflineScheduler, OnlineScheduler, type BadLogitsEvent, type Engine, type EnginePass, type KvCache } from 'virtual-kv';
import { registerServingMetrics } from 'virtual-kv/prometheus';

import { withCache } from '../helpers/cache.js';
import { schedulers } from './all-schedulers.js';

const vocabularyTokens = 16;
const model = { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float32' } as const;
const system = Array.from({ length: 400 }, (_, at) => at % vocabularyTokens);
const prompt = (request: number): number[] => [...system, request % vocabularyTokens, request % 7];

/** Adds up K over all tokens: one that is no number makes all logits behind it none. */
class SummingEngine implements Engine {
  readonly vocabularyTokens = vocabularyTokens;
  /** Passes that are to write one. */
  faults = 0;

  prefill(pass: EnginePass): { readonly logits: Float32Array } {
    const logits = new Float32Array(vocabularyTokens * pass.length);
    for (let index = 0; index < pass.length; index += 1) {
      const keys = pass.sequences[index]!.view(0) as Float32Array;
      const from = pass.positions[index]!;
      const end = from + pass.tokenCounts[index]!;
      for (let at = from; at < end; at += 1) keys[at * 64] = 1;
      if (this.faults > 0) {
        this.faults -= 1;
        keys[from * 64] = Number.NaN;
      }
      let sum = 0;
      for (let at = 0; at < end; at += 1) sum += keys[at * 64]!;
      logits.fill(Number.isNaN(sum) ? sum : 0, index * vocabularyTokens, (index + 1) * vocabularyTokens);
      if (!Number.isNaN(sum)) logits[index * vocabularyTokens + 3] = sum;
    }
    return { logits };
  }

  decode(pass: EnginePass): { readonly logits: Float32Array } {
    return this.prefill(pass);
  }
}

const cached = (cache: KvCache): number => cache.prefixes.lookup({ tokens: system }).cachedTokens;
const options = { on: 'host', layout: 'per-layer', model, slots: 4, maxTokens: 4096, memoryBudgetBytes: 2 ** 25 } as const;

/** Poisons what is cached of the system prompt, as a device that fails would. */
function poison(cache: KvCache): void {
  const sequence = cache.acquire({ tokens: [...system, 1] });
  (sequence.view(0) as Float32Array)[7 * 64] = Number.NaN;
  sequence.release();
}

for (const [name, answer] of Object.entries(schedulers)) {
  test(`${name}: a request whose chunk was bad fails, and those behind it are computed anew`, async (t) => {
    await withCache(t, options, async ({ cache }) => {
      const engine = new SummingEngine();
      engine.faults = 1;
      const run = async (request: number) => (await answer({ cache, engine, prefillTokensPerStep: 128 }, [{ tokens: prompt(request), maxNewTokens: 2 }]))[0]!;
      t.like(await run(0), { status: 'rejected', reason: { code: 'KV_ENGINE_FAILED' } });
      t.is(cached(cache), 0);
      for (let request = 1; request < 4; request += 1) t.is((await run(request)).status, 'fulfilled');
      t.true(cached(cache) > 0);
      t.like(cache.prefixes.metrics, { drops: 1, distrusts: 1 });
    });
  });

  test(`${name}: a request that has found bad text is computed once more without it, and the text is gone`, async (t) => {
    await withCache(t, { ...options, prefixCache: { tiers: [hostTier({ bytes: 2 ** 24 })], tierBlockTokens: 16 } }, async ({ cache }) => {
      const engine = new SummingEngine();
      const told: string[] = [];
      const listen = (event: unknown): void => { if ((event as BadLogitsEvent).cache === cache) told.push((event as BadLogitsEvent).outcome); };
      subscribe('virtual-kv:bad-logits', listen);
      const run = async (request: number) => (await answer({ cache, engine }, [{ tokens: prompt(request), maxNewTokens: 3 }]))[0]!;
      t.is((await run(0)).status, 'fulfilled');
      await cache.prefixes.tiers!.settled();
      poison(cache);
      t.true(cached(cache) > 0);
      const result = await run(1);
      unsubscribe('virtual-kv:bad-logits', listen);
      t.like(result, { status: 'fulfilled', value: { tokens: Int32Array.of(3, 3, 3) } });
      t.deepEqual(told, ['computed-again', 'recovered']);
      t.is(cached(cache), 0);
      await cache.prefixes.tiers!.settled();
      t.is(cache.prefixes.lookup({ tokens: system }).demotedTokens, 0);
      t.is((await run(2)).status, 'fulfilled');
      t.true(cached(cache) > 0, 'it is computed and cached anew');
      await cache.prefixes.tiers!.close();
    });
  });
}

for (const [what, sampler] of [
  ['chooses another token', (logits: Float32Array) => logits.findIndex((logit) => !Number.isNaN(logit))],
  ['throws', () => { throw new Error('no probabilities'); }],
] as const) {
  test(`logits that are not numbers are seen before a sampler of a request's own ${what}`, async (t) => {
    await withCache(t, options, async ({ cache }) => {
      const engine = new SummingEngine();
      engine.faults = 1;
      const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 128 });
      const error = await t.throwsAsync(scheduler.submit({ tokens: prompt(0), maxNewTokens: 2, sampler }).result, { code: 'KV_ENGINE_FAILED' });
      t.regex(error.message, /not numbers/);
      t.is(scheduler.totals.badLogits, 1);
      t.is(cached(cache), 0);
      await scheduler.close();
    });
  });
}

test('a request that is as bad without what it had found fails, and other text stays', async (t) => {
  await withCache(t, options, async ({ cache }) => {
    const engine = new SummingEngine();
    const scheduler = new OnlineScheduler({ cache, engine });
    await scheduler.submit({ tokens: prompt(0), maxNewTokens: 1 }).result;
    const before = cached(cache);
    engine.faults = 2; // when it begins with what it has found, and without
    await t.throwsAsync(scheduler.submit({ tokens: prompt(1), maxNewTokens: 2 }).result, { code: 'KV_ENGINE_FAILED' });
    t.is(cached(cache), before);
    t.like(scheduler.totals, { badLogits: 2, recoveredRequests: 0, failedRequests: 1 });
    t.is((await scheduler.submit({ tokens: prompt(2), maxNewTokens: 2 }).result).cachedTokens, 400);
    await scheduler.close();
  });
});

for (const outcome of ['computed-again', 'recovered'] as const) {
  test(`who hears of bad logits (${outcome}) may end the request: it ends once, and nothing waits`, async (t) => {
    await withCache(t, options, async ({ cache }) => {
      const engine = new SummingEngine();
      const scheduler = new OnlineScheduler({ cache, engine });
      await scheduler.submit({ tokens: prompt(0), maxNewTokens: 1 }).result;
      poison(cache);
      const stream = scheduler.submit({ tokens: prompt(1), maxNewTokens: 1 });
      const listen = (event: unknown): void => {
        const told = event as BadLogitsEvent;
        if (told.cache === cache && told.outcome === outcome) stream.cancel();
      };
      subscribe('virtual-kv:bad-logits', listen);
      await t.throwsAsync(stream.result, { code: 'KV_ABORTED' });
      unsubscribe('virtual-kv:bad-logits', listen);
      await scheduler.idle();
      t.is(scheduler.waitingRequests, 0);
      t.like(scheduler.totals, { completedRequests: 1, failedRequests: 1, generatedTokens: 1 });
      await scheduler.close();
    });
  });
}

test('a scrape counts logits that were not numbers, and requests that were well without the cached text', async (t) => {
  await withCache(t, options, async ({ cache }) => {
    const engine = new SummingEngine();
    const scheduler = new OnlineScheduler({ cache, engine });
    const register = new Registry();
    registerServingMetrics(scheduler, { register });
    await scheduler.submit({ tokens: prompt(0), maxNewTokens: 1 }).result;
    poison(cache);
    await scheduler.submit({ tokens: prompt(1), maxNewTokens: 1 }).result;
    engine.faults = 1;
    await t.throwsAsync(scheduler.submit({ tokens: [1], maxNewTokens: 1 }).result, { code: 'KV_ENGINE_FAILED' });
    const scraped = await register.metrics();
    t.regex(scraped, /^virtual_kv_serving_bad_logits_total 2$/m);
    t.regex(scraped, /^virtual_kv_serving_recovered_requests_total 1$/m);
    await scheduler.close();
  });
});

test('naive and offline schedulers count what was bad, too', async (t) => {
  await withCache(t, options, async ({ cache }) => {
    for (const Scheduler of [NaiveScheduler, OfflineScheduler]) {
      const engine = new SummingEngine();
      const scheduler = new Scheduler({ cache, engine });
      for await (const _ of scheduler.run([{ tokens: prompt(0), maxNewTokens: 1 }])) { /* it is cached */ }
      poison(cache);
      for await (const { status } of scheduler.run([{ tokens: prompt(1), maxNewTokens: 1 }])) t.is(status, 'fulfilled');
      t.like(scheduler.totals, { badLogits: 1, recoveredRequests: 1, failedRequests: 0 });
      cache.prefixes.reset();
    }
  });
});
