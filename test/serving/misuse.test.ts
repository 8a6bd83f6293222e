// Wrong use, and engines and samplers that misbehave: the call or the request at fault gets a typed error, other requests go on.

import { setImmediate } from 'node:timers/promises';

import {
  NaiveScheduler, OfflineScheduler, OnlineScheduler, type Engine, type GenerationRequest,
} from 'virtual-kv';

import { refusesAsync } from '../helpers/refuses.js';
import { PatternEngine, turn, vocabularyTokens } from './pattern-engine.js';
import { assertAnswer, collect, promptOf, resultOf, servingTests } from './serving-bench.js';

const knownLists = [NaiveScheduler, OfflineScheduler] as const;

function asEngine(engine: PatternEngine): Engine {
  return { vocabularyTokens, prefill: (pass) => engine.prefill(pass), decode: (pass) => engine.decode(pass) };
}

/** An engine whose prefill answers when `answer` is called. */
function heldEngine(engine: PatternEngine): { readonly held: Engine; readonly answer: () => void } {
  let answer = (): void => {};
  const answered = new Promise<void>((resolve) => { answer = resolve; });
  return { held: { ...asEngine(engine), prefill: (pass) => answered.then(() => engine.prefill(pass)) }, answer };
}

servingTests('what stands for an image may be any token', {}, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const items = [{ at: 2, length: 1, kind: 'item', hash: 'image' } as const];
  const request = { tokens: [1, 2, vocabularyTokens, 4], items, maxNewTokens: 1, caching: 'off' } as const;
  t.is((await scheduler.submit(request).result).tokens.length, 1);
});

servingTests('a request with a part that the engine does not read is refused', {}, async ({ t, cache, engine }) => {
  const items = [{ at: 2, length: 1, kind: 'item', hash: 'image' } as const];
  const scheduler = new OnlineScheduler({ cache, engine: { ...asEngine(engine), reads: ['items'] } });
  const request = { tokens: promptOf(30), maxNewTokens: 3 };
  for (const [option, value] of [['input', 0], ['adapter', 'lora']] as const) {
    t.throws(() => scheduler.submit({ ...request, [option]: value }), { code: 'KV_INVALID_OPTION', message: /the engine does not read it/ }, option);
  }
  assertAnswer(t, request, await scheduler.submit({ ...request, input: undefined, adapter: undefined }).result);
  t.is((await scheduler.submit({ ...request, items }).result).tokens.length, 3);
  const none = new OnlineScheduler({ cache, engine: { ...asEngine(engine), reads: [] } });
  t.throws(() => none.submit({ ...request, items }), { code: 'KV_INVALID_OPTION', message: /the engine does not read it/ });
  assertAnswer(t, request, await none.submit({ ...request, items: [] }).result);
});

servingTests('with an order that ignores urgency an urgent request preempts none', { slots: 1 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine, order: (a, b) => a.arrival - b.arrival });
  const first = { tokens: promptOf(30), maxNewTokens: 10 };
  const second = { tokens: promptOf(30, 1), maxNewTokens: 10, urgency: 9 };
  const streams = [scheduler.submit(first), scheduler.submit(second)];
  assertAnswer(t, first, await streams[0]!.result);
  assertAnswer(t, second, await streams[1]!.result);
  t.is(scheduler.totals.preemptions, 0);
});

servingTests('concurrent reads of a stream get one token each, in order', {}, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const stream = scheduler.submit({ tokens: promptOf(30), maxNewTokens: 3 });
  const reads = await Promise.all([0, 1, 2, 3, 4].map(() => stream.next()));
  t.deepEqual(reads.map(({ value }) => value), [...(await stream.result).tokens, undefined, undefined]);
});

servingTests('a waiting read is done when its reader leaves, also while the engine computes', {}, async ({ t, cache, engine }) => {
  const { held, answer } = heldEngine(engine);
  const scheduler = new OnlineScheduler({ cache, engine: held });
  const stream = scheduler.submit({ tokens: promptOf(30), maxNewTokens: 3 });
  const read = stream.next();
  await turn();
  await stream.return();
  t.deepEqual(await read, { done: true, value: undefined });
  const waiting = scheduler.submit({ tokens: promptOf(30, 1), maxNewTokens: 3 });
  const another = waiting.next();
  await waiting.return();
  t.deepEqual(await another, { done: true, value: undefined });
  await t.throwsAsync(waiting.result, { code: 'KV_ABORTED' });
  await t.throwsAsync(stream.result, { code: 'KV_ABORTED' });
  answer();
  await scheduler.idle();
});

for (const scheduler of knownLists) {
  servingTests(`${scheduler.name}: signals and timers are heard between passes of an engine that answers at once`, {}, async (serving) => {
    const { t, cache, engine } = serving;
    const controller = new AbortController();
    void setImmediate().then(() => controller.abort());
    const requests = [{ tokens: promptOf(30), maxNewTokens: 300, signal: controller.signal }, { tokens: promptOf(30, 1), maxNewTokens: 9 }];
    const outcomes = await collect(new scheduler({ cache, engine }).run(requests));
    t.like(outcomes[0], { status: 'rejected', reason: { code: 'KV_ABORTED' } });
    assertAnswer(t, requests[1]!, resultOf(outcomes[1]));
    t.true(engine.computedTokens < 150, `${engine.computedTokens} tokens computed`);
  });

  servingTests(`${scheduler.name}: an aborted or late request gets no answer, not even a cached one`, {}, async ({ t, cache, engine }) => {
    const run = new scheduler({ cache, engine });
    const request = { tokens: promptOf(60), maxNewTokens: 1 };
    const [first] = await collect(run.run([request]));
    assertAnswer(t, request, resultOf(first));
    const late: GenerationRequest[] = [{ ...request, signal: AbortSignal.abort() }, { ...request, deadlineMs: 0 }, request];
    const outcomes = await collect(run.run(late));
    t.like(outcomes, [
      { status: 'rejected', reason: { code: 'KV_ABORTED' } }, { status: 'rejected', reason: { code: 'KV_DEADLINE_EXCEEDED' } },
      { status: 'fulfilled' },
    ]);
    t.is(run.totals.skippedPrefills, 1);
  });

  servingTests(`${scheduler.name}: answers are right after a reset of the prefix cache in the middle`, {}, async ({ t, cache }) => {
    let passes = 0;
    const pause = async (): Promise<void> => {
      await turn();
      passes += 1;
      if (passes === 2 || passes === 7) cache.prefixes.reset({ preempt: true });
    };
    const engine = new PatternEngine({ cache, pause });
    const requests = [0, 1].map((key) => ({ tokens: promptOf(70, key), maxNewTokens: 12 }));
    const run = new scheduler({ cache, engine, prefillTokensPerStep: 20 });
    const outcomes = await collect(run.run(requests));
    requests.forEach((request, index) => assertAnswer(t, request, resultOf(outcomes[index])));
    t.is(engine.wrongTokens, 0);
    t.true(run.totals.preemptions >= 2);
  });

  servingTests(`${scheduler.name}: several runs at once share the engine pass by pass`, {}, async ({ t, cache, engine }) => {
    let passes = 0;
    const call = (name: 'prefill' | 'decode'): Engine['prefill'] => async (pass) => {
      t.is(passes, 0);
      passes += 1;
      for (let turns = 0; turns < 3; turns += 1) await turn();
      const output = await engine[name](pass);
      passes -= 1;
      return output;
    };
    const run = new scheduler({ cache, engine: { vocabularyTokens, prefill: call('prefill'), decode: call('decode') } });
    const lists = [0, 1, 2].map((list) => [0, 1].map((key) => ({ tokens: promptOf(60, 2 * list + key), maxNewTokens: 6 })));
    const outcomes = await Promise.all(lists.map((requests) => collect(run.run(requests))));
    lists.forEach((requests, list) => requests.forEach((request, index) => assertAnswer(t, request, resultOf(outcomes[list]![index]))));
  });
}

servingTests('logits that are not numbers are never cached, and their text is computed anew', {}, async ({ t, cache, engine }) => {
  const request = { tokens: promptOf(60), maxNewTokens: 3 };
  const good = new OnlineScheduler({ cache, engine });
  assertAnswer(t, request, await good.submit(request).result);
  const logits = new Float32Array(vocabularyTokens).fill(Number.NaN);
  const broken: Engine = {
    ...asEngine(engine),
    prefill: async (pass) => {
      await engine.prefill(pass);
      return { logits };
    },
  };
  const bad = new OnlineScheduler({ cache, engine: broken });
  await t.throwsAsync(bad.submit({ ...request, caching: 'write' }).result, { code: 'KV_ENGINE_FAILED' });
  assertAnswer(t, request, await good.submit(request).result);
  t.is(good.totals.skippedPrefills, 0);
});

servingTests('an engine may leave out the logits of chunks in the middle of a prompt', {}, async ({ t, cache, engine }) => {
  const lazy: Engine = {
    ...asEngine(engine),
    prefill: async (pass) => {
      const output = await engine.prefill(pass);
      return pass.wantsLogits.subarray(0, pass.length).includes(1) ? output : { logits: new Float32Array(0) };
    },
  };
  const scheduler = new OnlineScheduler({ cache, engine: lazy, prefillTokensPerStep: 16 });
  const request = { tokens: promptOf(60), maxNewTokens: 12 };
  assertAnswer(t, request, await scheduler.submit(request).result);
});

servingTests('a sampler that returns no token of the vocabulary ends its own request with an error that names it', {}, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const request = { tokens: promptOf(60), maxNewTokens: 12 };
  const wrong = [vocabularyTokens, -1, 1.5, undefined, Promise.resolve(1)].map((token, key) =>
    scheduler.submit({ tokens: promptOf(60, 1 + key), maxNewTokens: 12, sampler: () => token as number }));
  const stream = scheduler.submit(request);
  for (const { result } of wrong) {
    await refusesAsync(t, result, 'KV_INVALID_OPTION', { option: 'sampler' });
  }
  assertAnswer(t, request, await stream.result);
});

servingTests('a sampler that writes to its logits does not change those of other requests', {}, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const request = { tokens: promptOf(60), maxNewTokens: 1 };
  const forbid = (logits: Float32Array): number => {
    logits.fill(-Infinity, 0, 60);
    return 60;
  };
  assertAnswer(t, request, await scheduler.submit(request).result);
  t.deepEqual([...(await scheduler.submit({ ...request, sampler: forbid }).result).tokens], [60]);
  assertAnswer(t, request, await scheduler.submit(request).result);
  t.is(scheduler.totals.skippedPrefills, 2);
});

servingTests('close waits for the running pass, and the cache can be closed right after', {}, async ({ t, cache, engine }) => {
  let passes = 0;
  const slow: Engine = { ...asEngine(engine), decode: async (pass) => {
    passes += 1;
    for (let turns = 0; turns < 5; turns += 1) await turn();
    const output = await engine.decode(pass);
    passes -= 1;
    return output;
  } };
  const scheduler = new OnlineScheduler({ cache, engine: slow });
  const streams = [0, 1].map((key) => scheduler.submit({ tokens: promptOf(60, key), maxNewTokens: 300 }));
  await streams[1]!.next();
  while (passes === 0) await turn();
  await scheduler.close();
  t.is(passes, 0);
  for (const { result } of streams) await t.throwsAsync(result, { code: 'KV_CLOSED' });
  t.is(cache.counts().activeSlots, 0);
});

servingTests('a waiting request that is cancelled ends at once, however long a pass takes', { slots: 1 }, async ({ t, cache, engine }) => {
  const { held, answer } = heldEngine(engine);
  const scheduler = new OnlineScheduler({ cache, engine: held });
  const streams = [0, 1, 2].map((key) => scheduler.submit({ tokens: promptOf(30, key), maxNewTokens: 3 }));
  while (scheduler.runningRequests === 0) await turn();
  streams[1]!.cancel();
  await t.throwsAsync(streams[1]!.result, { code: 'KV_ABORTED' });
  t.deepEqual([scheduler.runningRequests, scheduler.waitingRequests], [1, 1]);
  answer();
  for (const stream of [streams[0]!, streams[2]!]) t.is((await stream.result).tokens.length, 3);
});

servingTests('an aborted or late request takes no place in the queue, however long a pass takes', { slots: 1 }, async (serving) => {
  const { t, cache, engine } = serving;
  const { held, answer } = heldEngine(engine);
  let clockMs = 0;
  const scheduler = new OnlineScheduler({ cache, engine: held, maxWaiting: 2, now: () => clockMs, timer: () => () => {} });
  const controller = new AbortController();
  const request = (key: number): GenerationRequest => ({ tokens: promptOf(30, key), maxNewTokens: 3 });
  const first = scheduler.submit(request(0));
  while (scheduler.runningRequests === 0) await turn();
  const aborted = scheduler.submit({ ...request(1), signal: controller.signal });
  const late = scheduler.submit({ ...request(2), deadlineMs: 10 });
  t.throws(() => scheduler.submit(request(3)), { code: 'KV_QUEUE_FULL' });
  controller.abort();
  const third = scheduler.submit(request(3));
  await t.throwsAsync(aborted.result, { code: 'KV_ABORTED' });
  await t.throwsAsync(scheduler.queueFree({ timeoutMs: 0 }), { code: 'KV_TIMEOUT' });
  clockMs = 10;
  await scheduler.queueFree();
  await t.throwsAsync(late.result, { code: 'KV_DEADLINE_EXCEEDED' });
  answer();
  for (const stream of [first, third]) t.is((await stream.result).tokens.length, 3);
});
