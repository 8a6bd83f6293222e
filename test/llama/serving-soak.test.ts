// The online scheduler with a real forward pass under everything at once: hundreds of requests that share prompts, come at random,
// are cancelled, have deadlines and urgencies, through a bounded queue and a budget in which few fit, with an engine that sometimes
// fails and a prefix cache that is now and then reset. Every row of logits read is right, every request ends, nothing is left.

import { byArrival, byTenantShare, OnlineScheduler } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { withCache } from '../helpers/cache.js';
import { LlamaLoad, maxTokens } from '../helpers/llama-load.js';
import { pageBytes } from '../helpers/llama-shapes.js';
import { allowedEnds, RandomEnds } from '../helpers/random-ends.js';
import { seedOf } from '../helpers/seed.js';
import { ServedLlama } from '../helpers/served-llama.js';
import { WatchedRequests } from '../helpers/watched-requests.js';
import { turn } from '../serving/pattern-engine.js';
import { costly } from '../runner/slow.js';
import { scale } from '../runner/tier.js';

const seed = seedOf('llama soak');

costly('a random world of requests')(`300 requests end with the right tokens or a typed error, and leave nothing (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const load = new LlamaLoad({ random, layers: [1, 2] });
  const { model, layout, plain } = load;
  await withCache(t, {
    on: 'host', model: model.shape('float32'), layout, maxTokens, slots: 6, pageBytes, memoryBudgetBytes: load.budgetBytes(6),
  }, async ({ cache }) => {
    const fault = (): void => { if (random.chance(0.002)) throw new Error('no more'); };
    using engine = new ServedLlama({ model, cache, fault, pause: () => (random.chance(0.3) ? turn() : undefined) });
    let clockMs = 0;
    const scheduler = new OnlineScheduler({
      cache, engine, prefillTokensPerStep: 48, minPendingTokens: 8, maxWaiting: 12, watermarkRows: 1,
      order: random.chance(0.5) ? byArrival() : byTenantShare(), now: () => { clockMs += 1; return clockMs; },
    });
    const ends = new RandomEnds(scheduler, random, 80);
    const watched = new WatchedRequests();
    const count = Math.ceil(300 * scale);
    for (let number = 0; number < count; number += 1) {
      const { choice, tenant: _tenant, ...plan } = load.request(24);
      const request = watched.watch(plan, choice);
      ends.submit(request, (result) => watched.assertResult(t, request, result));
      if (random.chance(0.01)) cache.prefixes.reset({ preempt: true });
      while (scheduler.waitingRequests >= 12 && random.chance(0.9)) await scheduler.queueFree();
      if (random.chance(0.5)) await turn();
    }
    await ends.allEnded();
    await scheduler.close();
    const { totals } = scheduler;
    const { droppedRows: { evicted }, ...cached } = cache.prefixes.metrics;
    const ties = watched.check(t, plain, JSON.stringify({ ...load.shape, layout }));
    t.log(ends.counts, totals, { ...cached, evicted, ties, rows: watched.rows });
    t.true(ties < 0.01 * watched.rows);
    t.is(ends.sum, count);
    t.is(totals.completedRequests, ends.counts['done']!);
    t.is(totals.completedRequests + totals.failedRequests + (ends.counts['KV_QUEUE_FULL'] ?? 0), count);
    t.true(ends.counts['done']! > (scale < 1 ? 0 : 0.5 * count)); // of few requests most may end otherwise
    if (scale >= 1) {
      for (const code of allowedEnds.filter((end) => end !== 'KV_ENGINE_FAILED')) t.true(ends.counts[code]! > 0, `no ${code}`);
      const happened = { evicted, preemptions: totals.preemptions, cachedTokens: totals.cachedTokens };
      for (const [what, times] of Object.entries(happened)) t.true(times > 0, `no ${what}`);
    }
    const { activeSlots, retiringSlots, quarantinedSlots } = cache.counts();
    t.deepEqual({ activeSlots, retiringSlots, quarantinedSlots }, { activeSlots: 0, retiringSlots: 0, quarantinedSlots: 0 });
    t.is(cache.pool.counts().earmarkedPages, 0);
  });
});
