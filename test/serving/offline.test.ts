// What the schedulers of known lists do beside giving the right tokens.

import { NaiveScheduler, OfflineScheduler, type GenerationOutcome, type GenerationRequest } from 'virtual-kv';

import { assertAnswer, collect, promptOf, resultOf, servingTests } from './serving-bench.js';

/** Groups of prompts with the same start of 160 tokens, the members of a group far apart in the list. */
function grouped(groups: number, members: number): GenerationRequest[] {
  return Array.from({ length: groups * members }, (_, index) => ({
    tokens: [...promptOf(160, index % groups), ...promptOf(10, 1 + Math.floor(index / groups))], maxNewTokens: 3,
  }));
}

servingTests('offline, prompts with a common prefix follow each other, and it is seldom computed twice', { rows: 9 }, async ({ t, cache, engine }) => {
  const requests = grouped(6, 5);
  const computed: number[] = [];
  for (const arrangement of ['given', 'prefix'] as const) {
    cache.prefixes.reset();
    const before = engine.computedTokens;
    const offline = new OfflineScheduler({ cache, engine, arrangement });
    const outcomes = await collect(offline.run(requests));
    requests.forEach((request, index) => assertAnswer(t, request, resultOf(outcomes[index])));
    computed.push(engine.computedTokens - before);
  }
  const [given, prefix] = computed;
  t.true(prefix! <= 2 * (6 * 160 + 30 * 13), `${prefix} tokens computed`);
  t.true(given! > 2 * prefix!, `${given} tokens computed`);
});

servingTests('a list much longer than the batch is fed while it is served', { slots: 2 }, async ({ t, cache, engine }) => {
  const requests = Array.from({ length: 100 }, (_, key) => ({ tokens: promptOf(5 + (key % 7), key), maxNewTokens: 1 + (key % 3) }));
  const offline = new OfflineScheduler({ cache, engine });
  let first = 0;
  const outcomes: GenerationOutcome[] = [];
  for await (const outcome of offline.run(requests)) {
    if (outcomes.length === 0) first = offline.totals.steps;
    outcomes[outcome.index] = outcome;
  }
  t.is(first, 1);
  requests.forEach((request, index) => assertAnswer(t, request, resultOf(outcomes[index])));
});

servingTests('a wrong request is refused before an offline run begins, and when its turn comes in a naive one', {}, async (serving) => {
  const { t, cache, engine } = serving;
  const requests = [{ tokens: [1, 2, 3], maxNewTokens: 2 }, { tokens: [], maxNewTokens: 2 }];
  await t.throwsAsync(collect(new OfflineScheduler({ cache, engine }).run(requests)), { code: 'KV_INVALID_OPTION' });
  t.is(engine.passes, 0);
  const naive = new NaiveScheduler({ cache, engine });
  await t.throwsAsync(collect(naive.run(requests)), { code: 'KV_INVALID_OPTION' });
  t.is(naive.totals.completedRequests, 1);
});

servingTests('naive, each request uses what earlier ones have cached, in passes of one sequence', {}, async ({ t, cache, engine }) => {
  const naive = new NaiveScheduler({ cache, engine, prefillTokensPerStep: 50 });
  const requests = [140, 140, 120, 200].map((tokens) => ({ tokens: promptOf(tokens), maxNewTokens: 2 }));
  const results = (await collect(naive.run(requests))).map(resultOf);
  requests.forEach((request, index) => assertAnswer(t, request, results[index]!));
  t.deepEqual(results.map(({ cachedTokens }) => cachedTokens), [0, 140, 119, 140]);
  t.is(naive.totals.skippedPrefills, 1);
  t.is(engine.largestPass, 1);
});

servingTests('one by one, a request asks nothing of those that were served before: it would keep them in memory', {}, async ({ t, cache, engine }) => {
  const { deref } = WeakRef.prototype;
  let asked = 0;
  WeakRef.prototype.deref = function (this: WeakRef<WeakKey>) {
    asked += 1;
    return deref.call(this);
  };
  t.teardown(() => { WeakRef.prototype.deref = deref; });
  const naive = new NaiveScheduler({ cache, engine });
  const askedBy: number[] = [];
  for (let round = 0; round < 2; round += 1) {
    const before = asked;
    await collect(naive.run(Array.from({ length: 40 }, (_, key) => ({ tokens: promptOf(5, key), maxNewTokens: 1, caching: 'off' as const }))));
    askedBy.push(asked - before);
  }
  t.true(askedBy[1]! <= askedBy[0]!, `${askedBy}`);
});
