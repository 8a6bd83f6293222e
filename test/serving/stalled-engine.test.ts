// Engines that answer late or never: signals, deadlines, pass timeouts and `close` end requests at once, and the memory of a pass that
// still runs is given to no other sequence until it is over.

import { KvCache, OnlineScheduler, PagePool, type Engine, type EngineOutput, type EnginePass } from 'virtual-kv';

import { schedulers } from './all-schedulers.js';
import { PatternEngine, turn, vocabularyTokens } from './pattern-engine.js';
import { assertAnswer, promptOf, resultOf, servingTests } from './serving-bench.js';
import { SteppedClock } from './stepped-clock.js';

/** An engine whose passes are over when the test calls `end`, while it is held. */
class HeldEngine implements Engine {
  readonly vocabularyTokens = vocabularyTokens;
  isHeld = true;
  readonly begun: EnginePass['slots'][] = [];
  readonly #engine: PatternEngine;
  #settle: (() => void)[] = [];
  #how: 'answer' | 'error' = 'answer';

  constructor(engine: PatternEngine) {
    this.#engine = engine;
  }

  prefill(pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    return this.#call('prefill', pass);
  }

  decode(pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    return this.#call('decode', pass);
  }

  /** Resolves when a pass runs. */
  async hasBegun(count = 1): Promise<void> {
    while (this.begun.length < count) await turn();
  }

  /** The running pass is over, with an answer or an error; later ones answer at once. */
  async end(how: 'answer' | 'error' = 'answer'): Promise<void> {
    this.isHeld = false;
    this.#how = how;
    for (const settle of this.#settle.splice(0)) settle();
    for (let turns = 0; turns < 5; turns += 1) await turn();
  }

  /** Where the pass was given up, any answer: its sequences are gone. */
  #answer(name: 'prefill' | 'decode', pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    if (pass.sequences.some(({ isReleased }) => isReleased)) return { logits: new Float32Array(pass.length * vocabularyTokens) };
    return this.#engine[name](pass);
  }

  #call(name: 'prefill' | 'decode', pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    this.begun.push(pass.slots.slice(0, pass.length));
    if (!this.isHeld) return this.#engine[name](pass);
    return new Promise((resolve, reject) => {
      this.#settle.push(() => {
        if (this.#how === 'error') reject(new Error('late'));
        else resolve(this.#answer(name, pass));
      });
    });
  }
}

for (const [name, answers] of Object.entries(schedulers)) {
  const request = { tokens: promptOf(60), maxNewTokens: 4 };
  const other = { tokens: promptOf(60, 1), maxNewTokens: 4 };

  for (const how of ['answer', 'error'] as const) {
    servingTests(`${name}: a signal ends a request whose pass runs at once, and its slot is idle when the pass is over (late ${how})`, {}, async (serving) => {
      const { t, cache, engine } = serving;
      const held = new HeldEngine(engine);
      const controller = new AbortController();
      const outcome = answers({ cache, engine: held }, [{ ...request, signal: controller.signal }]);
      await held.hasBegun();
      const reason = new Error('gone');
      controller.abort(reason);
      t.like((await outcome)[0], { status: 'rejected', reason: { code: 'KV_ABORTED', cause: reason } });
      t.is(cache.counts().idleSlots, cache.layout.slots - 1);
      t.throws(() => { cache.close(); }, { code: 'KV_DRIVER_IN_USE' });
      await held.end(how);
      t.is(cache.counts().idleSlots, cache.layout.slots);
      assertAnswer(t, other, resultOf((await answers({ cache, engine: held }, [other]))[0]));
    });

    servingTests(`${name}: a pass that takes too long is given up, and requests that need the engine end until it is over (late ${how})`, { slots: 2 }, async (serving) => {
      const { t, cache, engine } = serving;
      const held = new HeldEngine(engine);
      const clock = new SteppedClock();
      const options = { cache, engine: held, ...clock.options, passTimeoutMs: 100 };
      const outcome = answers(options, [request]);
      await held.hasBegun();
      clock.advance(99);
      for (let turns = 0; turns < 5; turns += 1) await turn();
      t.is(cache.counts().activeSlots, 1);
      clock.advance(1);
      t.like((await outcome)[0], { status: 'rejected', reason: { code: 'KV_ENGINE_STALLED', details: { call: 'prefill', sequences: 1, timeoutMs: 100 } } });
      t.like((await answers(options, [other]))[0], { status: 'rejected', reason: { code: 'KV_ENGINE_STALLED' } });
      t.is(held.begun.length, 1);
      t.is(cache.counts().idleSlots, 1);
      t.throws(() => { cache.close(); }, { code: 'KV_DRIVER_IN_USE' });
      await held.end(how);
      t.is(cache.counts().idleSlots, 2);
      t.is(clock.alarms, 0);
      assertAnswer(t, other, resultOf((await answers(options, [other]))[0]));
    });
  }

  servingTests(`${name}: a deadline ends a request whose pass runs at once`, {}, async ({ t, cache, engine }) => {
    const held = new HeldEngine(engine);
    const clock = new SteppedClock();
    const outcome = answers({ cache, engine: held, ...clock.options }, [{ ...request, deadlineMs: 50 }]);
    await held.hasBegun();
    clock.advance(50);
    t.like((await outcome)[0], { status: 'rejected', reason: { code: 'KV_DEADLINE_EXCEEDED' } });
    await held.end();
    t.is(clock.alarms, 0);
  });

  servingTests(`${name}: a request behind another scheduler's pass that is never answered ends by its signal, and gives its slot back`, {}, async (serving) => {
    const { t, cache, engine } = serving;
    const held = new HeldEngine(engine);
    const first = new OnlineScheduler({ cache, engine: held });
    const stream = first.submit(request);
    await held.hasBegun();
    const controller = new AbortController();
    const outcome = answers({ cache, engine: held }, [{ ...other, signal: controller.signal }]);
    while (cache.counts().activeSlots < 2) await turn();
    controller.abort();
    t.like((await outcome)[0], { status: 'rejected', reason: { code: 'KV_ABORTED' } });
    for (let turns = 0; turns < 5; turns += 1) await turn();
    t.is(cache.counts().activeSlots, 1);
    t.is(held.begun.length, 1);
    stream.cancel();
    await t.throwsAsync(stream.result, { code: 'KV_ABORTED' });
    await held.end();
  });

  servingTests(`${name}: the pages of a pass that was given up go to no other cache of the pool before it is over`, { rows: 6 }, async (serving) => {
    const { t, cache, engine } = serving;
    const held = new HeldEngine(engine);
    const clock = new SteppedClock();
    const pool = cache.pool;
    t.true(pool instanceof PagePool);
    const outcome = answers({ cache, engine: held, ...clock.options, passTimeoutMs: 100 }, [{ tokens: promptOf(250), maxNewTokens: 3 }]);
    await held.hasBegun();
    clock.advance(100);
    t.like((await outcome)[0], { status: 'rejected', reason: { code: 'KV_ENGINE_STALLED' } });
    const neighbour = new KvCache({ model: { layers: 1, kvHeads: 4, headDim: 160, dtype: 'float16' }, slots: 1, maxTokens: 400, pool });
    t.throws(() => neighbour.acquire({ promptTokens: 250 }), { code: 'KV_OUT_OF_PAGES' });
    await held.end();
    neighbour.acquire({ promptTokens: 250 }).release();
    neighbour.close();
  });
}

servingTests('close ends every request at once, and gives up waiting for the engine after `timeoutMs`', {}, async ({ t, cache, engine }) => {
  const held = new HeldEngine(engine);
  const scheduler = new OnlineScheduler({ cache, engine: held, maxBatch: 1 });
  const streams = [0, 1].map((key) => scheduler.submit({ tokens: promptOf(60, key), maxNewTokens: 4 }));
  const read = streams[0]!.next();
  await held.hasBegun();
  const closing = scheduler.close({ timeoutMs: 0 });
  for (const { result } of streams) await t.throwsAsync(result, { code: 'KV_CLOSED' });
  await t.throwsAsync(read, { code: 'KV_CLOSED' });
  const error = await t.throwsAsync(closing, { code: 'KV_TIMEOUT' });
  t.like(error, { details: { timeoutMs: 0 } });
  await t.throwsAsync(scheduler.close({ signal: AbortSignal.abort() }), { code: 'KV_ABORTED' });
  t.throws(() => { cache.close(); }, { code: 'KV_DRIVER_IN_USE' });
  const closed = scheduler.close();
  await held.end();
  await closed;
  t.is(cache.counts().activeSlots, 0);
});

servingTests('when the decode of a step is given up, its prompts wait again, and end while the engine is stalled', {}, async ({ t, cache, engine }) => {
  const held = new HeldEngine(engine);
  held.isHeld = false;
  const clock = new SteppedClock();
  const scheduler = new OnlineScheduler({ cache, engine: held, ...clock.options, passTimeoutMs: 100, prefillTokensPerStep: 16 });
  const decoding = scheduler.submit({ tokens: promptOf(10), maxNewTokens: 300 });
  await decoding.next();
  const long = scheduler.submit({ tokens: promptOf(200, 1), maxNewTokens: 3 });
  while (scheduler.runningRequests < 2) await turn();
  held.isHeld = true;
  const { length } = held.begun;
  await held.hasBegun(length + 1);
  clock.advance(100);
  for (const { result } of [decoding, long]) await t.throwsAsync(result, { code: 'KV_ENGINE_STALLED' });
  t.deepEqual([scheduler.waitingRequests, scheduler.runningRequests], [0, 0]);
  t.is(cache.counts().retiringSlots, 2);
  await t.throwsAsync(scheduler.idle({ timeoutMs: 0 }), { code: 'KV_TIMEOUT' });
  await held.end();
  await scheduler.idle();
});

servingTests('a request that is cancelled in a pass does not disturb the other requests of the pass', {}, async ({ t, cache, engine }) => {
  const held = new HeldEngine(engine);
  const scheduler = new OnlineScheduler({ cache, engine: held });
  const requests = [0, 1].map((key) => ({ tokens: promptOf(60, key), maxNewTokens: 4 }));
  const streams = requests.map((request) => scheduler.submit(request));
  await held.hasBegun();
  streams[0]!.cancel();
  await t.throwsAsync(streams[0]!.result, { code: 'KV_ABORTED' });
  t.is(scheduler.runningRequests, 1);
  await held.end();
  assertAnswer(t, requests[1]!, await streams[1]!.result);
});

