// A cache with other users: sequences that the application holds, a second scheduler, another cache on the pool. A request that
// lacks what they hold waits until they release it; only a request that can never fit is refused. Time passes by stepped clocks.

import test from 'ava';

import {
  KvCache, NaiveScheduler, OfflineScheduler, OnlineScheduler, PagePool, type GenerationRequest, type GenerationResult, type SchedulerOptions,
} from 'virtual-kv';

import { createError } from '#internal/base/errors.js';
import { assertNothingLeft, cacheOptions, cacheTest, openDriver, type CacheBench } from '../helpers/cache.js';
import { nativeOf } from '../helpers/native-of.js';
import { hashOf, PatternEngine, turn } from './pattern-engine.js';
import { assertAnswer, assertQuiet, collect, promptOf, resultOf, servingTests, smallModel } from './serving-bench.js';
import { SteppedClock } from './stepped-clock.js';

/** Options with a clock that stands still, unless they have one. */
const timed = (options: SchedulerOptions): SchedulerOptions => ({ ...new SteppedClock().options, ...options });

/** Each scheduler with one request. */
const schedulers = {
  naive: (options: SchedulerOptions, request: GenerationRequest) =>
    collect(new NaiveScheduler(timed(options)).run([request])).then(([outcome]) => resultOf(outcome)),
  offline: (options: SchedulerOptions, request: GenerationRequest) =>
    collect(new OfflineScheduler(timed(options)).run([request])).then(([outcome]) => resultOf(outcome)),
  online: (options: SchedulerOptions, request: GenerationRequest) => new OnlineScheduler(timed(options)).submit(request).result,
} as const;
const names = Object.keys(schedulers) as (keyof typeof schedulers)[];

/** Turns after which every request that can start has started. */
async function manyTurns(): Promise<void> {
  for (let turns = 0; turns < 20; turns += 1) await turn();
}

function watch(result: Promise<GenerationResult>): { readonly result: Promise<GenerationResult>; readonly hasEnded: () => boolean } {
  let isOver = false;
  void result.catch(() => {}).then(() => { isOver = true; });
  return { result, hasEnded: () => isOver };
}

/** Sequences of the application in all slots of the cache. */
function holdSlots({ cache }: CacheBench): { release(): void } {
  const held = Array.from({ length: cache.counts().idleSlots }, () => cache.acquire());
  return { release: () => { held.forEach((sequence) => { sequence.release(); }); } };
}

const holders: Readonly<Record<string, (bench: CacheBench) => { release(): void }>> = {
  slots: holdSlots,
  memory: (bench) => bench.sequenceOf(200),
  'a slot behind a fence, and no other': (bench) => {
    const { cache } = bench;
    const held = Array.from({ length: cache.layout.slots }, () => cache.acquire());
    held.forEach((sequence) => { sequence.release({ fence: { step: 7 } }); });
    return { release: () => { cache.completeStep(7); } };
  },
};

for (const name of names) {
  for (const [what, hold] of Object.entries(holders)) {
    servingTests(`${name}: a request that lacks what others hold waits until it is released: ${what}`, { rows: 6, slots: 3 }, async (serving) => {
      const { t, cache, engine, bench } = serving;
      const held = hold(bench);
      const request = { tokens: promptOf(150), maxNewTokens: 30 };
      const { result, hasEnded } = watch(schedulers[name]({ cache, engine }, request));
      await manyTurns();
      t.false(hasEnded());
      t.is(engine.passes, 0);
      held.release();
      assertAnswer(t, request, await result);
    });
  }

  servingTests(`${name}: an answer that lacks memory that others hold gives its slot back, waits, and goes on where it was`, { rows: 6 }, async (serving) => {
    const { t, cache, engine, bench } = serving;
    const held = bench.sequenceOf(150);
    const request = { tokens: promptOf(90), maxNewTokens: 100 };
    const { result, hasEnded } = watch(schedulers[name]({ cache, engine }, request));
    while (cache.counts().activeSlots < 2) await turn();
    while (cache.counts().activeSlots > 1) await turn(); // it holds nothing while it waits
    await manyTurns();
    t.false(hasEnded());
    t.true(engine.computedTokens > 90);
    held.release();
    const answer = await result;
    assertAnswer(t, request, answer);
    t.is(answer.preemptions, 1);
  });

  servingTests(`${name}: a request that waits for others ends by a signal and by a deadline`, { slots: 1 }, async ({ t, cache, engine }) => {
    const held = cache.acquire();
    const clock = new SteppedClock();
    const controller = new AbortController();
    const options = { cache, engine, ...clock.options };
    const request = { tokens: promptOf(60), maxNewTokens: 3 };
    const aborted = watch(schedulers[name](options, { ...request, signal: controller.signal }));
    const late = watch(schedulers[name](options, { ...request, deadlineMs: 50 }));
    await manyTurns();
    t.false(aborted.hasEnded() || late.hasEnded());
    controller.abort();
    await t.throwsAsync(aborted.result, { code: 'KV_ABORTED' });
    t.false(late.hasEnded());
    clock.advance(50);
    await t.throwsAsync(late.result, { code: 'KV_DEADLINE_EXCEEDED' });
    held.release();
    assertAnswer(t, request, await schedulers[name](options, request));
  });

  servingTests(`${name}: a request that waits for others goes on waiting when the budget is lowered below what it needs`, { rows: 6 }, async (serving) => {
    const { t, cache, engine, bench } = serving;
    const held = bench.sequenceOf(150);
    const request = { tokens: promptOf(200), maxNewTokens: 30 };
    const { result, hasEnded } = watch(schedulers[name]({ cache, engine }, request));
    await manyTurns();
    cache.pool.setBudget(3 * cache.layout.rowBytes);
    await manyTurns();
    held.release();
    await manyTurns();
    t.false(hasEnded());
    cache.pool.setBudget(6 * cache.layout.rowBytes);
    assertAnswer(t, request, await result);
  });

  cacheTest(`${name}: a request that waits for others ends when the cache is closed`, { model: smallModel, maxTokens: 400, slots: 1 }, async (t, bench) => {
    const { cache } = bench;
    cache.acquire();
    const { result } = watch(schedulers[name]({ cache, engine: new PatternEngine({ cache }) }, { tokens: promptOf(60), maxNewTokens: 3 }));
    await manyTurns();
    cache.close();
    await t.throwsAsync(result, { code: 'KV_CLOSED' });
  });

  cacheTest(`${name}: a request that waits for others ends when the device is lost`, { model: smallModel, maxTokens: 400, slots: 1 }, async (t, bench) => {
    const { cache } = bench;
    cache.acquire();
    const { result } = watch(schedulers[name]({ cache, engine: new PatternEngine({ cache }) }, { tokens: promptOf(60), maxNewTokens: 3 }));
    await manyTurns();
    bench.mock.loseDevice();
    t.throws(() => bench.driver.memory(), { code: 'KV_DRIVER_LOST' }); // any call finds out
    await t.throwsAsync(result, { code: 'KV_DRIVER_LOST' });
  });

  test(`${name}: a request that lacks pages that another cache of the pool holds waits for them`, async (t) => {
    const { driver, device } = openDriver();
    const { memoryBudgetBytes, pageBytes: _pageBytes, driver: _driver, ...options } = cacheOptions({ model: smallModel, maxTokens: 400, rows: 6 }, driver);
    const pool = new PagePool({ memoryBudgetBytes: memoryBudgetBytes!, driver, pageBytes: 65_536 });
    const [cache, other] = [new KvCache({ ...options, pool }), new KvCache({ ...options, pool })];
    const held = other.acquire({ promptTokens: 200 });
    const engine = new PatternEngine({ cache });
    const request = { tokens: promptOf(150), maxNewTokens: 30 };
    const { result, hasEnded } = watch(schedulers[name]({ cache, engine }, request));
    await manyTurns();
    t.false(hasEnded());
    held.release();
    assertAnswer(t, request, await result);
    assertQuiet(t, cache, engine);
    for (const one of [cache, other]) one.close();
    pool.close();
    assertNothingLeft(t, driver, device);
  });
}

servingTests('a request starts beside running ones when others release a slot', { slots: 2 }, async ({ t, cache, engine }) => {
  const held = cache.acquire();
  const scheduler = new OnlineScheduler(timed({ cache, engine }));
  const [long, short] = [{ tokens: promptOf(30), maxNewTokens: 300 }, { tokens: promptOf(30, 1), maxNewTokens: 3 }];
  const [first, second] = [scheduler.submit(long), scheduler.submit(short)];
  await first.next();
  await turn();
  t.is(scheduler.waitingRequests, 1);
  held.release();
  assertAnswer(t, short, await second.result);
  t.is(scheduler.runningRequests, 1);
  assertAnswer(t, long, await first.result);
});

servingTests('requests that fit pass a blocked request, which is next when others release its memory', { rows: 6 }, async (serving) => {
  const { t, cache, engine, bench } = serving;
  const held = bench.sequenceOf(150);
  const scheduler = new OnlineScheduler(timed({ cache, engine }));
  const large = { tokens: promptOf(200), maxNewTokens: 3, urgency: 9 };
  const small = { tokens: promptOf(30, 1), maxNewTokens: 30 };
  const waiting = watch(scheduler.submit(large).result);
  for (let count = 0; count < 3; count += 1) assertAnswer(t, small, await scheduler.submit(small).result);
  t.false(waiting.hasEnded());
  t.is(scheduler.totals.preemptions, 0); // none is preempted where that would not help
  const running = scheduler.submit(small);
  await running.next();
  held.release();
  const later = watch(scheduler.submit({ ...large, urgency: 0, tokens: promptOf(200, 2) }).result);
  assertAnswer(t, large, await waiting.result);
  t.false(later.hasEnded());
  await Promise.all([running.result, later.result]);
});

servingTests('of many requests that wait for others, none is tried again before something is released', { rows: 6 }, async (serving) => {
  const { t, cache, engine, bench } = serving;
  const held = bench.sequenceOf(150);
  const clock = new SteppedClock();
  let tried = 0;
  const acquire = cache.acquire.bind(cache);
  cache.acquire = (options) => {
    tried += 1;
    return acquire(options);
  };
  const scheduler = new OnlineScheduler({ cache, engine, maxBatch: 2, ...clock.options });
  const large = Array.from({ length: 150 }, (_, key) => scheduler.submit({ tokens: promptOf(200, key), maxNewTokens: 1 }).result);
  const small = { tokens: promptOf(30), maxNewTokens: 3 };
  assertAnswer(t, small, await scheduler.submit(small).result);
  t.is(tried, 151);
  await manyTurns();
  for (let count = 0; count < 4; count += 1) assertAnswer(t, small, await scheduler.submit(small).result);
  await manyTurns();
  t.is(tried, 155);
  for (let seconds = 0; seconds < 3; seconds += 1) {
    clock.advance(1_000);
    await manyTurns();
    t.is(tried, 155 + 150); // once each, since prompts were computed meanwhile
  }
  held.release();
  for (const result of await Promise.all(large)) t.is(result.tokens.length, 1);
});

servingTests('while nothing changes for schedulers that wait for others, they neither look nor set a timer', { rows: 6 }, async (serving) => {
  const { t, cache, engine, bench } = serving;
  const held = bench.sequenceOf(150);
  const clock = new SteppedClock();
  const request = { tokens: promptOf(200), maxNewTokens: 3 };
  const waiting = names.map((name) => watch(schedulers[name]({ cache, engine, ...clock.options }, request)));
  await manyTurns();
  let looks = 0;
  const counts = cache.counts.bind(cache);
  cache.counts = () => {
    looks += 1;
    return counts();
  };
  for (let round = 0; round < 5; round += 1) await manyTurns();
  t.deepEqual({ looks, alarms: clock.alarms }, { looks: 0, alarms: 0 });
  held.release();
  t.is(looks, 0); // until its turn
  for (const { result } of waiting) assertAnswer(t, request, await result);
});

cacheTest('a scheduler polls for a slot only while work queued on a stream may use it', {
  model: smallModel, maxTokens: 400, slots: 1, device: { streams: 'manual' },
}, async (t, bench) => {
  const { cache } = bench;
  const engine = new PatternEngine({ cache });
  const request = { tokens: promptOf(60), maxNewTokens: 3 };
  let looks = 0;
  const counts = cache.counts.bind(cache);
  cache.counts = () => {
    looks += 1;
    return counts();
  };
  const stream = nativeOf(bench.driver).createStream();
  const behindWork = bench.sequenceOf(1);
  const [{ address, strides }] = cache.tensors as [(typeof cache.tensors)[number]];
  bench.mock.queueWork(stream, [{ address: address + BigInt(behindWork.slot * strides.slotBytes), bytes: 1024, access: 'write' }]);
  behindWork.release({ fence: { stream } });
  const first = watch(schedulers.online({ cache, engine }, request));
  await manyTurns();
  t.true(looks > 10, `${looks} looks`);
  t.false(first.hasEnded());
  bench.mock.completeStream(stream);
  assertAnswer(t, request, await first.result);
  const held = cache.acquire();
  const second = watch(schedulers.online({ cache, engine }, request));
  await manyTurns();
  looks = 0;
  await manyTurns();
  t.is(looks, 0);
  held.release();
  assertAnswer(t, request, await second.result);
  assertQuiet(t, cache, engine);
  nativeOf(bench.driver).destroyStream(stream);
});

servingTests('a request that needs less since others have computed its prompt tries again after a second', { rows: 6, slots: 3 }, async (serving) => {
  const { t, cache, engine, bench } = serving;
  const clock = new SteppedClock();
  const tokens = promptOf(200);
  const mine = cache.acquire({ tokens });
  const { result, hasEnded } = watch(new OnlineScheduler({ cache, engine, ...clock.options }).submit({ tokens, maxNewTokens: 3 }).result);
  await manyTurns();
  t.is(clock.alarms, 0);
  const batch = bench.batchOf([mine, 200]);
  cache.prepare(batch);
  for (let at = 0; at < 200; at += 1) cache.stamp(mine, at, 1, hashOf(tokens, at));
  cache.commit(batch);
  await manyTurns();
  t.false(hasEnded());
  t.is(clock.alarms, 1);
  clock.advance(1_000);
  assertAnswer(t, { tokens, maxNewTokens: 3 }, await result);
  t.is(clock.alarms, 0);
  mine.release();
});

servingTests('a request refused for something that is not the pool\'s tries again after a second', { mapper: 'off' }, async ({ t, cache, engine }) => {
  const held = cache.acquire();
  const clock = new SteppedClock();
  const acquire = cache.acquire.bind(cache);
  let refusals = 1;
  cache.acquire = (options) => {
    if (refusals-- > 0) throw createError('KV_OUT_OF_MAPPINGS', { neededMappings: 2, limitMappings: 1 });
    return acquire(options);
  };
  const request = { tokens: promptOf(60), maxNewTokens: 3 };
  const { result, hasEnded } = watch(new OnlineScheduler({ cache, engine, ...clock.options }).submit(request).result);
  await manyTurns();
  t.deepEqual([hasEnded(), clock.alarms], [false, 1]);
  clock.advance(1_000);
  assertAnswer(t, request, await result);
  held.release();
});

servingTests('close ends requests that wait for others', { slots: 1 }, async ({ t, cache, engine }) => {
  const held = cache.acquire();
  const scheduler = new OnlineScheduler({ ...timed({ cache, engine }), maxWaiting: 1 });
  const stream = scheduler.submit({ tokens: promptOf(30), maxNewTokens: 3 });
  t.throws(() => scheduler.submit({ tokens: promptOf(30), maxNewTokens: 3 }), { code: 'KV_QUEUE_FULL' });
  await manyTurns();
  await scheduler.close();
  await t.throwsAsync(stream.result, { code: 'KV_CLOSED' });
  held.release();
});

servingTests('beside a scheduler with work without end, each other scheduler gets a slot, and memory for a long prompt', { slots: 2, rows: 6 }, async (serving) => {
  const { t, cache, engine } = serving;
  const busy = new OnlineScheduler(timed({ cache, engine }));
  let isOver = false;
  let submitted = 0;
  const client = async (key: number): Promise<void> => {
    while (!isOver) {
      const request = { tokens: promptOf(60, key + (submitted += 2)), maxNewTokens: 7 };
      assertAnswer(t, request, await busy.submit(request).result);
    }
  };
  const clients = [0, 1, 0, 1].map(client);
  while (busy.runningRequests < 2) await turn();
  const request = { tokens: promptOf(200, 99), maxNewTokens: 30 };
  for (const name of names) assertAnswer(t, request, await schedulers[name]({ cache, engine }, { ...request, caching: 'off' }));
  isOver = true;
  await Promise.all(clients);
  t.true(submitted > 4);
});
