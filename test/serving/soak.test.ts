// The online scheduler under a random load of every kind: thousands of requests that share prompts, come at random, are cancelled,
// have deadlines and urgencies, through a budget in which few fit, with an engine that sometimes fails. Every request ends,
// every answer is right to its last token, every byte is right, and nothing is left.

import { byArrival, byTenantShare, OnlineScheduler, type Engine } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { drivers, withCache } from '../helpers/cache.js';
import { allowedEnds, RandomEnds } from '../helpers/random-ends.js';
import { seedOf } from '../helpers/seed.js';
import { PatternEngine, turn } from './pattern-engine.js';
import { assertAnswer, assertQuiet, randomRequests, smallModel } from './serving-bench.js';
import { SteppedClock } from './stepped-clock.js';
import { costly } from '../runner/slow.js';
import { sampled, scale } from '../runner/tier.js';

for (const on of sampled(drivers, 2)) {
  const seed = seedOf(`soak-${on}`);
  costly('a random world of requests')(`2,000 requests with cancellations, deadlines, preemptions and eviction (${on}, seed ${seed})`, async (t) => {
    const random = new Random(seed);
    const options = { on, model: smallModel, maxTokens: 200, rows: 14, slots: 6, layout: 'per-layer' as const };
    await withCache(t, options, async ({ cache }) => {
      const clock = new SteppedClock();
      const pause = (): Promise<unknown> => {
        clock.advance(2);
        return random.chance(0.3) ? turn() : Promise.resolve();
      };
      const pattern = new PatternEngine({ cache, pause });
      const engine = failing(pattern, random);
      const scheduler = new OnlineScheduler({
        cache, engine, prefillTokensPerStep: 64, minPendingTokens: 8, maxWaiting: 12, watermarkRows: 1,
        order: random.chance(0.5) ? byArrival() : byTenantShare(), ...clock.options,
      });
      const ends = new RandomEnds(scheduler, random);
      const count = Math.ceil(2_000 * scale);
      for (const request of randomRequests(random, count, 120, 30)) {
        ends.submit(request, (result) => assertAnswer(t, request, result));
        while (scheduler.waitingRequests >= 12 && random.chance(0.9)) await scheduler.queueFree();
        if (random.chance(0.5)) await turn();
      }
      await ends.allEnded();
      await scheduler.close();
      const { totals } = scheduler;
      t.log(ends.counts, totals, cache.prefixes.metrics.droppedRows);
      t.is(ends.sum, count);
      t.is(totals.completedRequests, ends.counts['done']!);
      t.is(totals.completedRequests + totals.failedRequests + (ends.counts['KV_QUEUE_FULL'] ?? 0), count);
      t.true(ends.counts['done']! > 0.5 * count);
      if (scale >= 1) {
        for (const code of allowedEnds) t.true(ends.counts[code]! > 0, `no ${code}`);
        t.true(totals.preemptions > 0);
        t.true(cache.prefixes.metrics.droppedRows.evicted > 0);
      }
      assertQuiet(t, cache, pattern);
    });
  });
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
