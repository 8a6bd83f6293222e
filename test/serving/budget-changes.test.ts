// What changes from outside while requests wait and run: budgets that are lowered for a while, and schedulers that are paused. Requests
// wait and go on; time passes by stepped clocks.

import { NaiveScheduler, OfflineScheduler, OnlineScheduler, type GenerationRequest, type KvCache } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { turn } from './pattern-engine.js';
import { assertAnswer, collect, promptOf, randomRequests, resultOf, servingTests } from './serving-bench.js';
import { SteppedClock } from './stepped-clock.js';

const setRows = (cache: KvCache, rows: number): void => { cache.pool.setBudget(rows * cache.layout.rowBytes); };

async function manyTurns(): Promise<void> {
  for (let turns = 0; turns < 20; turns += 1) await turn();
}

const requests: readonly GenerationRequest[] = [promptOf(90), promptOf(90, 1), promptOf(60, 2)].map((tokens) => ({ tokens, maxNewTokens: 100 }));

servingTests('online: answers wait while the budget is too small for them, and go on when it is raised', { rows: 12 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine, ...new SteppedClock().options });
  const streams = requests.map((request) => scheduler.submit(request));
  await streams[0]!.next();
  setRows(cache, 1);
  while (scheduler.runningRequests > 0) await turn();
  await manyTurns();
  t.is(scheduler.waitingRequests, 3);
  t.is(scheduler.totals.failedRequests, 0);
  setRows(cache, 12);
  for (const [at, stream] of streams.entries()) assertAnswer(t, requests[at]!, await stream.result);
});

for (const Scheduler of [NaiveScheduler, OfflineScheduler]) {
  servingTests(`${Scheduler.name}: requests whose turn comes while the budget is lowered wait for it`, { rows: 12 }, async ({ t, cache, engine }) => {
    const run = collect(new Scheduler({ cache, engine, maxBatch: 1, ...new SteppedClock().options }).run(requests));
    while (engine.passes < 3) await turn();
    setRows(cache, 1);
    while (cache.counts().activeSlots > 0) await turn();
    await manyTurns();
    setRows(cache, 12);
    const outcomes = await run;
    requests.forEach((request, at) => { assertAnswer(t, request, resultOf(outcomes[at])); });
  });
}

servingTests('what cannot fit the budget as last set ends at its deadline, and its error says what it lacked', { rows: 12 }, async ({ t, cache, engine }) => {
  const clock = new SteppedClock();
  const scheduler = new OnlineScheduler({ cache, engine, ...clock.options });
  const stream = scheduler.submit({ ...requests[0]!, deadlineMs: 1_000 });
  await stream.next();
  setRows(cache, 1);
  while (scheduler.runningRequests > 0) await turn();
  await manyTurns();
  clock.advance(1_000);
  const error = await t.throwsAsync(stream.result, { code: 'KV_DEADLINE_EXCEEDED' });
  t.like(error.cause, { code: 'KV_OUT_OF_PAGES' });
});

servingTests('requests that fit a lowered budget pass those that do not, side by side', { rows: 12 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine, ...new SteppedClock().options });
  const large = scheduler.submit({ tokens: promptOf(300), maxNewTokens: 2, urgency: 1 });
  setRows(cache, 5);
  const small = [1, 2, 3, 4].map((key) => ({ tokens: promptOf(10, key), maxNewTokens: 5 }));
  const streams = small.map((request) => scheduler.submit(request));
  for (const [at, stream] of streams.entries()) assertAnswer(t, small[at]!, await stream.result);
  t.true(engine.largestPass > 2);
  t.is(scheduler.totals.preemptions, 0);
  setRows(cache, 12);
  assertAnswer(t, { tokens: promptOf(300), maxNewTokens: 2 }, await large.result);
});

servingTests('a request that no release of others can help holds up no other scheduler of the pool', { rows: 12 }, async ({ t, cache, engine }) => {
  const stuck = new OnlineScheduler({ cache, engine, ...new SteppedClock().options });
  const waits = stuck.submit({ tokens: promptOf(300), maxNewTokens: 2 });
  setRows(cache, 5);
  await manyTurns();
  const scheduler = new OnlineScheduler({ cache, engine, ...new SteppedClock().options });
  const streams = [1, 2, 3].map((key) => scheduler.submit({ tokens: promptOf(10, key), maxNewTokens: 8 }));
  await Promise.all(streams.map(({ result }) => result));
  t.is(engine.largestPass, 3);
  waits.cancel();
  await t.throwsAsync(waits.result, { code: 'KV_ABORTED' });
});

servingTests('a paused scheduler begins no pass and holds no memory; its requests go on when it is resumed', { rows: 12, isAsync: true }, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine, ...new SteppedClock().options });
  const streams = requests.map((request) => scheduler.submit(request));
  await streams[0]!.next();
  t.false(scheduler.isPaused);
  await scheduler.pause();
  t.true(scheduler.isPaused);
  t.is(cache.counts().activeSlots, 0);
  setRows(cache, 1);
  t.true(cache.pool.counts().createdPages * cache.layout.pageBytes <= cache.layout.rowBytes);
  cache.prefixes.setNamespace('other weights');
  const { passes } = engine;
  const later = { tokens: promptOf(200, 3), maxNewTokens: 4 };
  const stream = scheduler.submit(later);
  t.throws(() => scheduler.submit({ tokens: promptOf(300), maxNewTokens: 400 }), { code: 'KV_LENGTH_OUT_OF_RANGE' });
  await manyTurns();
  t.is(engine.passes, passes);
  t.is(scheduler.waitingRequests, 4);
  setRows(cache, 12);
  scheduler.resume();
  for (const [at, each] of streams.entries()) assertAnswer(t, requests[at]!, await each.result);
  assertAnswer(t, later, await stream.result);
  t.is(scheduler.totals.failedRequests, 0);
});

servingTests('a paused scheduler ends requests by signals and deadlines, can be closed, and be resumed before its pass is over', { isAsync: true }, async ({ t, cache, engine }) => {
  const clock = new SteppedClock();
  const scheduler = new OnlineScheduler({ cache, engine, ...clock.options });
  await scheduler.pause();
  const late = scheduler.submit({ ...requests[0]!, deadlineMs: 10 });
  clock.advance(10);
  await t.throwsAsync(late.result, { code: 'KV_DEADLINE_EXCEEDED' });
  scheduler.resume();
  const stream = scheduler.submit(requests[0]!);
  await stream.next();
  const paused = scheduler.pause();
  scheduler.resume();
  await paused;
  await stream.next();
  await scheduler.pause();
  await t.throwsAsync(scheduler.pause({ timeoutMs: -1 }), { code: 'KV_INVALID_OPTION' });
  await scheduler.close();
  await t.throwsAsync(stream.result, { code: 'KV_CLOSED' });
  await t.throwsAsync(scheduler.pause(), { code: 'KV_CLOSED' });
  t.throws(() => { scheduler.resume(); }, { code: 'KV_CLOSED' });
});

const seed = seedOf('budget-changes');

servingTests(`whatever happens to the budget and however often it is paused, every answer is finished (seed ${seed})`, { rows: 14, slots: 4 }, async (serving) => {
  const { t, cache, engine } = serving;
  const random = new Random(seed);
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 40, ...new SteppedClock().options });
  const submitted = randomRequests(random, 8, 200, 40).map((request) => ({ ...request, caching: random.chance(0.2) ? 'off' as const : undefined }));
  const streams = submitted.map((request) => scheduler.submit(request));
  let isOver = false;
  const changes = (async (): Promise<void> => {
    while (!isOver) {
      setRows(cache, random.chance(0.5) ? 1 + random.integer(3) : 1 + random.integer(14));
      for (let turns = random.integer(20); turns > 0; turns -= 1) await turn();
      if (random.chance(0.1)) await scheduler.pause();
      if (random.chance(0.3)) setRows(cache, 14);
      for (let turns = random.integer(30); turns > 0; turns -= 1) await turn();
      scheduler.resume();
    }
    setRows(cache, 14);
  })();
  for (const [at, stream] of streams.entries()) assertAnswer(t, submitted[at]!, await stream.result);
  isOver = true;
  await changes;
  t.is(scheduler.totals.failedRequests, 0);
});
