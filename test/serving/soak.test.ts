// The online scheduler under everything at once: thousands of requests that share prompts, come at random, are cancelled,
// have deadlines and urgencies, through a budget in which few fit, with an engine that sometimes fails. Every request ends,
// every answer is right to its last token, every byte is right, and nothing is left.

import test, { type ExecutionContext } from 'ava';

import {
  byArrival, byTenantShare, isKvError, OnlineScheduler,
  type Engine, type GenerationRequest, type GenerationResult, type TokenStream,
} from 'virtual-kv';

import { Random } from '../../dist/random.js';
import { drivers, withCache } from '../helpers/cache.js';
import { seedOf } from '../helpers/seed.js';
import { expectedTokens, PatternEngine, turn } from './pattern-engine.js';
import { assertQuiet, randomRequests, smallModel } from './serving-bench.js';

const scale = Number(process.env['VKV_TEST_SCALE'] ?? 1);
const allowed = ['KV_ABORTED', 'KV_DEADLINE_EXCEEDED', 'KV_ENGINE_FAILED', 'KV_QUEUE_FULL'];

interface Ends {
  done: number;
  [code: string]: number;
}

for (const on of drivers) {
  const seed = seedOf(`soak-${on}`);
  test(`2,000 requests with cancellations, deadlines, preemptions and eviction (${on}, seed ${seed})`, async (t) => {
    t.timeout(120_000);
    const random = new Random(seed);
    const options = { on, model: smallModel, maxTokens: 200, rows: 14, slots: 6, layout: 'per-layer' as const };
    await withCache(t, options, async ({ cache }) => {
      const pattern = new PatternEngine({ cache, pause: () => (random.chance(0.3) ? turn() : Promise.resolve()) });
      const engine = failing(pattern, random);
      let clockMs = 0;
      const scheduler = new OnlineScheduler({
        cache, engine, prefillTokensPerStep: 64, minPendingTokens: 8, maxWaiting: 12, watermarkRows: 1,
        order: random.chance(0.5) ? byArrival() : byTenantShare(), now: () => { clockMs += 1; return clockMs; },
      });
      const ends: Ends = { done: 0 };
      const open = new Set<Promise<void>>();
      const count = Math.ceil(2_000 * scale);
      for (const request of randomRequests(random, count, 120, 30)) {
        const watched = start(t, scheduler, request, random, ends);
        open.add(watched.finally(() => open.delete(watched)));
        while (scheduler.waitingRequests >= 12 && random.chance(0.9)) await scheduler.queueFree();
        if (random.chance(0.5)) await turn();
      }
      await Promise.all(open);
      await scheduler.close();
      const { totals } = scheduler;
      t.log(ends, totals, cache.prefixes.metrics.droppedRows);
      t.is(Object.values(ends).reduce((sum, number) => sum + number), count);
      t.is(totals.completedRequests, ends.done);
      t.is(totals.completedRequests + totals.failedRequests + (ends['KV_QUEUE_FULL'] ?? 0), count);
      t.true(ends.done > 0.5 * count);
      if (scale >= 1) {
        for (const code of allowed) t.true(ends[code]! > 0, `no ${code}`);
        t.true(totals.preemptions > 0);
        t.true(cache.prefixes.metrics.droppedRows.evicted > 0);
      }
      assertQuiet(t, cache, pattern);
    });
  });
}

/** Submits a request that may be cancelled in one of several ways; resolves once it has ended as it may. */
async function start(
  t: ExecutionContext, scheduler: OnlineScheduler, request: GenerationRequest, random: Random, ends: Ends,
): Promise<void> {
  const controller = new AbortController();
  const deadlineMs = random.chance(0.05) ? 20 + random.integer(400) : undefined;
  const tenant = random.chance(0.2) ? 'other' : '';
  try {
    const stream = scheduler.submit({ ...request, tenant, deadlineMs, signal: controller.signal });
    const way = random.integer(20);
    if (way === 0) controller.abort();
    if (way === 1) void turn().then(() => controller.abort());
    const result = way === 2 ? await readSome(stream, random.integer(request.maxNewTokens)) : await stream.result;
    t.deepEqual([...result.tokens], expectedTokens(request.tokens, request.maxNewTokens));
    ends.done += 1;
  } catch (error) {
    if (!isKvError(error) || !allowed.includes(error.code)) throw error;
    ends[error.code] = (ends[error.code] ?? 0) + 1;
  }
}

/** Reads so many tokens, then leaves. */
async function readSome(stream: TokenStream, tokens: number): Promise<GenerationResult> {
  let read = 0;
  for await (const _token of stream) if (++read > tokens) break;
  return stream.result;
}

/** Fails in about one of 500 passes, before or after it has written. */
function failing(engine: PatternEngine, random: Random): Engine {
  const call = (name: 'prefill' | 'decode'): Engine['prefill'] => async (pass) => {
    const isFailing = random.chance(0.002);
    if (isFailing && random.chance(0.5)) throw new Error('before');
    const output = await engine[name](pass);
    if (isFailing) throw new Error('after');
    return output;
  };
  return { vocabularyTokens: engine.vocabularyTokens, prefill: call('prefill'), decode: call('decode') };
}
