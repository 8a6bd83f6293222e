// Passes whose requests have all ended: the engine is told by the pass's signal. One that stops loses its pass and nothing else, one that goes
// on is read as ever, and a pass that a waiting request is going to find in the cache goes on.

import { OfflineScheduler, OnlineScheduler, type Engine, type EngineOutput, type EnginePass, type SchedulerOptions } from 'virtual-kv';

import { schedulers } from './all-schedulers.js';
import { turn, vocabularyTokens, type PatternEngine } from './pattern-engine.js';
import { assertAnswer, promptOf, resultOf, servingTests } from './serving-bench.js';
import { SteppedClock } from './stepped-clock.js';

type CallName = 'prefill' | 'decode';

/** An engine whose passes wait, while it is held, until the test lets them go on or their signal is aborted. */
class StoppingEngine implements Engine {
  readonly vocabularyTokens = vocabularyTokens;
  /** Calls that it holds. */
  held: readonly CallName[] = ['prefill', 'decode'];
  /** Whether it stops when a signal is aborted. */
  stops = true;
  readonly calls: CallName[] = [];
  readonly signals: AbortSignal[] = [];
  stopped = 0;
  readonly #engine: PatternEngine;
  #goOn: () => void = () => {};

  constructor(engine: PatternEngine) {
    this.#engine = engine;
  }

  prefill(pass: EnginePass): Promise<EngineOutput> {
    return this.#call('prefill', pass);
  }

  decode(pass: EnginePass): Promise<EngineOutput> {
    return this.#call('decode', pass);
  }

  /** Resolves when so many passes have begun. */
  async hasBegun(count: number): Promise<void> {
    while (this.calls.length < count) await turn();
  }

  /** Lets the pass that is held, and all later ones, go on. */
  goOn(): void {
    this.held = [];
    this.#goOn();
  }

  async #call(name: CallName, pass: EnginePass): Promise<EngineOutput> {
    const { signal } = pass;
    this.calls.push(name);
    this.signals.push(signal);
    if (this.held.includes(name)) {
      await new Promise<void>((resolve) => {
        this.#goOn = resolve;
        if (this.stops) signal.addEventListener('abort', () => { resolve(); }, { once: true });
      });
    }
    const output = await this.#engine[name](pass); // of a pass that is dropped, too: what it has written must not count
    if (!signal.aborted || !this.stops) return output;
    this.stopped += 1;
    throw new Error('stopped');
  }
}

const request = { tokens: promptOf(100), maxNewTokens: 4 };
const other = { tokens: promptOf(100, 1), maxNewTokens: 4 };

for (const [name, answers] of Object.entries(schedulers)) {
  servingTests(`${name}: a pass whose only request was aborted is dropped, and nothing of it is cached`, { slots: 2 }, async ({ t, cache, engine }) => {
    const stopping = new StoppingEngine(engine);
    const controller = new AbortController();
    const outcome = answers({ cache, engine: stopping }, [{ ...request, signal: controller.signal }]);
    await stopping.hasBegun(1);
    t.false(stopping.signals[0]!.aborted);
    controller.abort();
    t.true(stopping.signals[0]!.aborted);
    t.like(stopping.signals[0]!.reason, { code: 'KV_ABORTED' });
    t.like((await outcome)[0], { status: 'rejected', reason: { code: 'KV_ABORTED' } });
    while (cache.counts().idleSlots < 2) await turn();
    t.is(cache.prefixes.lookup({ tokens: request.tokens }).cachedTokens, 0);
    t.is(stopping.stopped, 1);
    stopping.goOn();
    assertAnswer(t, request, resultOf((await answers({ cache, engine: stopping }, [request]))[0]));
  });

  servingTests(`${name}: an engine that does not stop is read as ever, and its pass is cached`, { slots: 2 }, async ({ t, cache, engine }) => {
    const stopping = new StoppingEngine(engine);
    stopping.stops = false;
    const controller = new AbortController();
    const outcome = answers({ cache, engine: stopping }, [{ ...request, signal: controller.signal }]);
    await stopping.hasBegun(1);
    controller.abort();
    t.true(stopping.signals[0]!.aborted);
    await outcome;
    t.is(cache.counts().activeSlots, 1); // it may still be written to
    stopping.goOn();
    while (cache.counts().idleSlots < 2) await turn();
    t.true(cache.prefixes.lookup({ tokens: request.tokens }).cachedTokens > 0);
    assertAnswer(t, request, resultOf((await answers({ cache, engine: stopping }, [request]))[0]));
  });

  servingTests(`${name}: a pass that is given up is dropped`, { slots: 2 }, async ({ t, cache, engine }) => {
    const stopping = new StoppingEngine(engine);
    const clock = new SteppedClock();
    const outcome = answers({ cache, engine: stopping, ...clock.options, passTimeoutMs: 100 }, [request]);
    await stopping.hasBegun(1);
    clock.advance(100);
    t.like((await outcome)[0], { status: 'rejected', reason: { code: 'KV_ENGINE_STALLED' } });
    t.like(stopping.signals[0]!.reason, { code: 'KV_ENGINE_STALLED' });
    while (cache.counts().idleSlots < 2) await turn();
    stopping.goOn();
    assertAnswer(t, other, resultOf((await answers({ cache, engine: stopping }, [other]))[0]));
  });
}

servingTests('a pass goes on while one of its requests has not ended, and is dropped with the last', {}, async ({ t, cache, engine }) => {
  const stopping = new StoppingEngine(engine);
  const scheduler = new OnlineScheduler({ cache, engine: stopping });
  const streams = [request, other].map((one) => scheduler.submit(one));
  await stopping.hasBegun(1);
  streams[1]!.cancel();
  t.false(stopping.signals[0]!.aborted);
  streams[0]!.finish(); // with the answer that it has
  t.true(stopping.signals[0]!.aborted);
  t.deepEqual([...(await streams[0]!.result).tokens], []);
  await t.throwsAsync(streams[1]!.result, { code: 'KV_ABORTED' });
  await scheduler.idle();
  t.is(stopping.stopped, 1);
});

servingTests('close drops the running pass, and waits until it is over', {}, async ({ t, cache, engine }) => {
  const stopping = new StoppingEngine(engine);
  const scheduler = new OnlineScheduler({ cache, engine: stopping });
  const { result } = scheduler.submit(request);
  await stopping.hasBegun(1);
  const closed = scheduler.close();
  await t.throwsAsync(result, { code: 'KV_CLOSED' });
  await closed;
  t.is(stopping.stopped, 1);
});

servingTests('a run that is left in the middle of a pass drops it', { slots: 2 }, async ({ t, cache, engine }) => {
  const stopping = new StoppingEngine(engine);
  const controller = new AbortController();
  const run = new OfflineScheduler({ cache, engine: stopping }).run([{ ...request, signal: controller.signal }, other]);
  const first = run.next();
  await stopping.hasBegun(1);
  controller.abort();
  t.like(await first, { done: false, value: { index: 0, status: 'rejected' } });
  t.false(stopping.signals[0]!.aborted);
  await run.return();
  t.true(stopping.signals[0]!.aborted);
  while (cache.counts().idleSlots < 2) await turn();
  t.is(stopping.stopped, 1);
});

/** A request that decodes, and then one whose prompt is computed in the same steps. */
async function mixedStep(engine: StoppingEngine, options: Omit<SchedulerOptions, 'engine'>, held: CallName) {
  engine.held = [];
  const scheduler = new OnlineScheduler({ ...options, engine, prefillTokensPerStep: 40 });
  const decoding = scheduler.submit({ ...request, maxNewTokens: 30 });
  await decoding.next();
  engine.held = ['decode'];
  await engine.hasBegun(engine.calls.length + 1);
  const prompt = scheduler.submit(other);
  engine.goOn();
  engine.held = [held];
  const { length } = engine.calls;
  // The prompt may be admitted turns before the pass begins that is held.
  const hasBegun = (): boolean => (held === 'decode' ? engine.calls.length > length && scheduler.runningRequests === 2 : engine.calls.slice(length).includes('prefill'));
  while (!hasBegun()) await turn();
  return { scheduler, decoding, prompt };
}

servingTests('when the decode of a step is dropped, its prompts are computed in the same step', {}, async ({ t, cache, engine }) => {
  const stopping = new StoppingEngine(engine);
  const { scheduler, decoding, prompt } = await mixedStep(stopping, { cache }, 'decode');
  t.is(stopping.calls.at(-1), 'decode'); // it is held, no prompt was computed yet
  const begun = stopping.calls.length;
  const { steps } = scheduler.totals;
  decoding.cancel();
  await t.throwsAsync(decoding.result, { code: 'KV_ABORTED' });
  stopping.held = [];
  assertAnswer(t, other, await prompt.result);
  t.is(stopping.stopped, 1);
  t.is(stopping.calls[begun], 'prefill');
  // 100 tokens of prompt in chunks of 40, then 3 tokens: each step counts, the one whose decode was dropped too.
  t.is(scheduler.totals.steps - steps, 6);
});

servingTests('a request that decodes in a step whose prompts are given up leaves its slot to that pass, and goes on when it is over', { slots: 2 }, async ({ t, cache, engine }) => {
  const stopping = new StoppingEngine(engine);
  stopping.stops = false;
  const clock = new SteppedClock();
  const { decoding, prompt } = await mixedStep(stopping, { cache, ...clock.options, passTimeoutMs: 100 }, 'prefill');
  clock.advance(100);
  await t.throwsAsync(prompt.result, { code: 'KV_ENGINE_STALLED' });
  const { idleSlots, retiringSlots } = cache.counts();
  t.deepEqual({ idleSlots, retiringSlots }, { idleSlots: 0, retiringSlots: 2 });
  stopping.goOn();
  assertAnswer(t, { ...request, maxNewTokens: 30 }, await decoding.result);
});

servingTests('when the prompts of a step are dropped, the tokens that it decoded count', {}, async ({ t, cache, engine }) => {
  const stopping = new StoppingEngine(engine);
  const { scheduler, decoding, prompt } = await mixedStep(stopping, { cache }, 'prefill');
  t.deepEqual(stopping.calls.slice(-2), ['decode', 'prefill']);
  prompt.cancel();
  stopping.held = [];
  await t.throwsAsync(prompt.result, { code: 'KV_ABORTED' });
  assertAnswer(t, { ...request, maxNewTokens: 30 }, await decoding.result);
  t.is(stopping.stopped, 1);
  t.is(stopping.calls.filter((call) => call === 'decode').length, 29); // none of them again
  t.is(cache.prefixes.lookup({ tokens: other.tokens }).cachedTokens, 0);
  t.is(scheduler.totals.generatedTokens, 30);
});

servingTests('prompts whose requests end before their pass begins are not computed', {}, async ({ t, cache, engine }) => {
  const stopping = new StoppingEngine(engine);
  const { decoding, prompt } = await mixedStep(stopping, { cache }, 'decode');
  prompt.cancel();
  stopping.goOn();
  await t.throwsAsync(prompt.result, { code: 'KV_ABORTED' });
  assertAnswer(t, { ...request, maxNewTokens: 30 }, await decoding.result);
  t.deepEqual(stopping.calls.filter((call) => call === 'prefill').length, 3); // those of the first request
});

servingTests('a pass that computes the prompt of a waiting request goes on, until that one has ended too', { slots: 1 }, async ({ t, cache, engine }) => {
  for (const end of ['waits', 'ends', 'is of another tenant', 'is of another adapter', 'has a short part of it'] as const) {
    cache.prefixes.reset();
    const stopping = new StoppingEngine(engine);
    const scheduler = new OnlineScheduler({ cache, engine: stopping, minPendingTokens: 51 });
    const like = {
      ...request, ...(end === 'has a short part of it' ? { tokens: [...promptOf(50), 1] } : {}),
      tenant: end === 'is of another tenant' ? 'x' : undefined, adapter: end === 'is of another adapter' ? 'x' : undefined,
    };
    const first = scheduler.submit(request);
    const second = scheduler.submit(like);
    await stopping.hasBegun(1);
    first.cancel();
    await t.throwsAsync(first.result, { code: 'KV_ABORTED' });
    if (end === 'ends') {
      t.false(stopping.signals[0]!.aborted);
      second.cancel();
      await t.throwsAsync(second.result, { code: 'KV_ABORTED' });
    }
    t.is(stopping.signals[0]!.aborted, end !== 'waits', end);
    stopping.goOn();
    if (end !== 'ends') assertAnswer(t, { ...request, tokens: like.tokens }, await second.result);
    if (end === 'waits') t.true((await second.result).cachedTokens > 0);
    await scheduler.close();
  }
});

servingTests('answers to one prompt that are cancelled one after the other drop its pass with the last', { slots: 4 }, async ({ t, cache, engine }) => {
  const stopping = new StoppingEngine(engine);
  const scheduler = new OnlineScheduler({ cache, engine: stopping });
  const streams = scheduler.submitAnswers(request, 3);
  await stopping.hasBegun(1);
  for (const [index, stream] of streams.entries()) {
    t.false(stopping.signals[0]!.aborted, `answer ${index}`);
    stream.cancel();
    await t.throwsAsync(stream.result, { code: 'KV_ABORTED' });
  }
  t.true(stopping.signals[0]!.aborted);
  await scheduler.idle();
  t.deepEqual(stopping.calls, ['prefill']);
});

servingTests('each pass has a signal of its own, which an answer that is there keeps from being aborted', {}, async ({ t, cache, engine }) => {
  const stopping = new StoppingEngine(engine);
  stopping.held = [];
  const scheduler = new OnlineScheduler({ cache, engine: stopping });
  const stream = scheduler.submit({
    ...request, maxNewTokens: 9,
    sampler: (_logits, index) => {
      if (index === 3) stream.cancel();
      return 1;
    },
  });
  await t.throwsAsync(stream.result, { code: 'KV_ABORTED' });
  await scheduler.idle();
  t.is(new Set(stopping.signals).size, 4);
  t.deepEqual(stopping.signals.map(({ aborted }) => aborted), [false, false, false, false]);
});
