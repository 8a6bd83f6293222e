// Many requests with one long common prompt: what it costs to know that they have it in common does not grow with their number, also
// where the request that computes it ends early, again and again. The prompt is computed once.

import { OnlineScheduler, type TokenStream } from 'virtual-kv';

import { turn } from './pattern-engine.js';
import { assertAnswer, promptOf, servingTests } from './serving-bench.js';

servingTests('requests with a common prompt are looked up once for all, and go on when the one that computes it ends', { slots: 8, rows: 60 }, async (serving) => {
  const { t, cache, engine } = serving;
  let lookups = 0;
  const lookup = cache.prefixes.lookup.bind(cache.prefixes);
  cache.prefixes.lookup = (options) => {
    lookups += 1;
    return lookup(options);
  };
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 16 });
  const requests = Array.from({ length: 40 }, (_, at) => ({ tokens: [...promptOf(320), at, 1], maxNewTokens: 2, urgency: at === 30 ? 1 : 0 }));
  const streams: TokenStream[] = requests.map((request) => scheduler.submit(request));
  const cancelled = [30, 0, 1, 2];
  for (const at of cancelled) {
    const { passes } = engine;
    while (engine.passes < passes + 3) await turn();
    t.is(scheduler.runningRequests, 1);
    streams[at]!.cancel();
    await t.throwsAsync(streams[at]!.result, { code: 'KV_ABORTED' });
  }
  t.true(lookups <= 4, `${lookups} lookups`);
  t.is(scheduler.waitingRequests, 36);
  for (const [at, stream] of streams.entries()) if (!cancelled.includes(at)) assertAnswer(t, requests[at]!, await stream.result);
  t.true(engine.computedTokens < 320 + 40 * 8, `${engine.computedTokens} tokens`);
});

servingTests('requests that wait for one which waits itself go on without it when it ends, and when it is too large', { slots: 8, rows: 8 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 8, order: (a, b) => b.promptTokens - a.promptTokens });
  const lengths = [300, 290, 280, 120, 110];
  const requests = lengths.map((tokens) => ({ tokens: promptOf(tokens), maxNewTokens: 2 }));
  const streams = requests.map((request) => scheduler.submit(request));
  while (engine.passes < 3) await turn();
  t.is(scheduler.waitingRequests, 4);
  cache.pool.setBudget(3 * cache.layout.rowBytes);
  for (const at of [0, 2]) {
    streams[at]!.cancel();
    await t.throwsAsync(streams[at]!.result, { code: 'KV_ABORTED' });
  }
  for (const at of [3, 4]) assertAnswer(t, requests[at]!, await streams[at]!.result);
  cache.pool.setBudget(8 * cache.layout.rowBytes);
  assertAnswer(t, requests[1]!, await streams[1]!.result);
});
