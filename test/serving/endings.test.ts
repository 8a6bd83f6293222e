// How requests end that are not answered: each with a typed error, what it held free again, and no other request disturbed.

import {
  greedy, hostTier, isKvError, NaiveScheduler, OfflineScheduler, OnlineScheduler, type Engine, type EngineOutput, type EnginePass, type GenerationRequest,
  type KvError,
} from 'virtual-kv';

import { cacheTest } from '../helpers/cache.js';
import { PatternEngine, turn } from './pattern-engine.js';
import { assertAnswer, assertQuiet, collect, promptOf, resultOf, servingTests, smallModel } from './serving-bench.js';
import { SteppedClock } from './stepped-clock.js';

/** An engine whose calls go wrong in a given way. */
function faulty(
  engine: PatternEngine, call: 'prefill' | 'decode', fault: (pass: EnginePass) => EngineOutput | undefined,
): Engine {
  const answer = (name: 'prefill' | 'decode') => (pass: EnginePass): EngineOutput | Promise<EngineOutput> => {
    const output = name === call ? fault(pass) : undefined;
    return output === undefined ? engine[name](pass) : output;
  };
  return { vocabularyTokens: engine.vocabularyTokens, prefill: answer('prefill'), decode: answer('decode') };
}

servingTests('a signal ends a request, whether it waits or runs', { slots: 1 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const controllers = [0, 1, 2].map(() => new AbortController());
  const streams = controllers.map(({ signal }, key) => scheduler.submit({ tokens: promptOf(30, key), maxNewTokens: 50, signal }));
  await streams[0]!.next();
  const reason = new Error('the client left');
  controllers[1]!.abort(reason);
  controllers[0]!.abort();
  const error = await t.throwsAsync(streams[1]!.result, { code: 'KV_ABORTED', name: 'AbortError' });
  t.is(error.cause, reason);
  await t.throwsAsync(streams[0]!.result, { code: 'KV_ABORTED' });
  t.is((await streams[2]!.result).tokens.length, 50);
  const late = scheduler.submit({ tokens: [1], maxNewTokens: 1, signal: AbortSignal.abort() });
  await t.throwsAsync(late.result, { code: 'KV_ABORTED' });
  t.is(scheduler.totals.failedRequests, 3);
});

servingTests('leaving the loop over its tokens cancels a request', {}, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const stream = scheduler.submit({ tokens: promptOf(30), maxNewTokens: 50 });
  let tokens = 0;
  for await (const _token of stream) if (++tokens === 3) break;
  await t.throwsAsync(stream.result, { code: 'KV_ABORTED' });
  t.true(engine.computedTokens < 40);
  t.deepEqual(await stream.next(), { done: true, value: undefined });
});

servingTests('a reader of tokens gets the error once, behind the last token', {}, async ({ t, cache, engine }) => {
  let calls = 0;
  const scheduler = new OnlineScheduler({
    cache, engine: faulty(engine, 'decode', () => { if (++calls === 3) throw new Error('broken'); return undefined; }),
  });
  const stream = scheduler.submit({ tokens: promptOf(30), maxNewTokens: 50 });
  const tokens: number[] = [];
  await t.throwsAsync(async () => { for await (const token of stream) tokens.push(token); }, { code: 'KV_ENGINE_FAILED' });
  t.is(tokens.length, 3);
  t.deepEqual(await stream.next(), { done: true, value: undefined });
});

servingTests('a deadline ends a request, whether it waits or runs', { slots: 1 }, async ({ t, cache, engine }) => {
  const clock = new SteppedClock();
  const scheduler = new OnlineScheduler({ cache, engine, ...clock.options });
  const first = scheduler.submit({ tokens: promptOf(30), maxNewTokens: 300, deadlineMs: 100 });
  const second = scheduler.submit({ tokens: promptOf(30, 1), maxNewTokens: 5, deadlineMs: 50 });
  const third = scheduler.submit({ tokens: promptOf(30, 2), maxNewTokens: 5, deadlineMs: 101 });
  for (let token = 0; token < 7; token += 1) await first.next();
  clock.advance(50);
  const waited = await t.throwsAsync(second.result, { code: 'KV_DEADLINE_EXCEEDED' });
  t.true(isKvError(waited, 'KV_DEADLINE_EXCEEDED'));
  t.like(waited, { details: { deadlineMs: 50, generatedTokens: 0, maxNewTokens: 5 } });
  clock.advance(50);
  const error = await t.throwsAsync(first.result, { code: 'KV_DEADLINE_EXCEEDED' });
  t.true(isKvError(error, 'KV_DEADLINE_EXCEEDED') && error.details.generatedTokens >= 7);
  t.is((await third.result).tokens.length, 5);
});

servingTests('a full queue refuses requests, and queueFree() resolves when it has room', { slots: 1 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine, maxWaiting: 2 });
  const request = (key: number): GenerationRequest => ({ tokens: promptOf(10, key), maxNewTokens: 8 });
  const streams = [scheduler.submit(request(0))];
  await streams[0]!.next();
  streams.push(scheduler.submit(request(1)), scheduler.submit(request(2)));
  const error = t.throws(() => scheduler.submit(request(3)), { code: 'KV_QUEUE_FULL' });
  t.like(error, { details: { waitingRequests: 2, maxWaiting: 2 }, recovery: 'retry' });
  await scheduler.queueFree();
  streams.push(scheduler.submit(request(3)));
  await t.throwsAsync(scheduler.queueFree({ timeoutMs: 0 }), { code: 'KV_TIMEOUT' });
  await Promise.all(streams.map((stream) => stream.result));
});

servingTests('a request that can never fit is refused at once', { rows: 4 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  t.throws(() => scheduler.submit({ tokens: promptOf(300), maxNewTokens: 102 }), { code: 'KV_LENGTH_OUT_OF_RANGE' });
  const error = t.throws(() => scheduler.submit({ tokens: promptOf(200), maxNewTokens: 100 }), { code: 'KV_OUT_OF_PAGES' });
  t.like(error, { details: { needRows: 6, haveRows: 4 } });
  t.is((await scheduler.submit({ tokens: promptOf(200), maxNewTokens: 4 }).result).tokens.length, 4);
  const offline = new OfflineScheduler({ cache, engine });
  const requests = [{ tokens: promptOf(300), maxNewTokens: 102 }, { tokens: promptOf(3), maxNewTokens: 1 }];
  const outcomes = await collect(offline.run(requests));
  t.like(outcomes[0], { status: 'rejected', reason: { code: 'KV_LENGTH_OUT_OF_RANGE' } });
  t.is(outcomes[1]!.status, 'fulfilled');
  t.is(offline.totals.failedRequests, 1);
});

servingTests("an engine's failure ends the requests of its pass; other requests go on", {}, async ({ t, cache, engine }) => {
  const broken = new Error('no more');
  let failures = 1;
  const failOnce = (): undefined => {
    if (engine.passes > 3 && failures-- > 0) throw broken;
  };
  const scheduler = new OnlineScheduler({ cache, engine: faulty(engine, 'prefill', failOnce) });
  const first = { tokens: promptOf(30), maxNewTokens: 12 };
  const answered = scheduler.submit(first);
  for (let token = 0; token < 4; token += 1) await answered.next();
  const failing = scheduler.submit({ tokens: promptOf(60, 1), maxNewTokens: 12 });
  const error = await t.throwsAsync(failing.result, { code: 'KV_ENGINE_FAILED' });
  t.is(error.cause, broken);
  t.like(error, { details: { call: 'prefill', sequences: 1 } });
  assertAnswer(t, first, await answered.result);
  const again = { tokens: promptOf(60, 1), maxNewTokens: 12 };
  assertAnswer(t, again, await scheduler.submit(again).result);
});

servingTests('a malformed answer of the engine ends the request with KV_ENGINE_FAILED, and is not cached', {}, async ({ t, cache, engine }) => {
  const answers: (() => EngineOutput)[] = [
    () => ({ logits: new Float32Array(3) }), () => ({ tokens: new Int32Array(0) }), () => ({ tokens: Int32Array.of(61) }),
    () => ({ logits: new Float32Array(61).fill(Number.NaN) }), () => ({}) as EngineOutput, () => null as never,
  ];
  for (const answer of answers) {
    const scheduler = new OnlineScheduler({ cache, engine: faulty(engine, 'prefill', answer) });
    await t.throwsAsync(scheduler.submit({ tokens: promptOf(60), maxNewTokens: 12 }).result, { code: 'KV_ENGINE_FAILED' });
    t.is(cache.prefixes.lookup({ tokens: promptOf(60) }).cachedTokens, 0);
  }
});

servingTests('a sampler that throws ends its own request with an error that says where, and has its own as cause', {}, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const thrown = new Error('undecided');
  const sampler = (_logits: Float32Array, index: number): number => {
    if (index === 3) throw thrown;
    return 1;
  };
  const undecided = scheduler.submit({ tokens: promptOf(60), maxNewTokens: 12, sampler });
  const request = { tokens: promptOf(60, 1), maxNewTokens: 12 };
  const other = scheduler.submit(request);
  const error = await t.throwsAsync(undecided.result, { code: 'KV_CALLBACK_FAILED', message: / token 3 .* 60 tokens/ });
  t.is(error.cause, thrown);
  t.like(error, { details: { option: 'sampler', arrivals: [1] } });
  assertAnswer(t, request, await other.result);
});

servingTests('close ends all open requests, and refuses further ones', { isAsync: true }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const stream = scheduler.submit({ tokens: promptOf(60), maxNewTokens: 300 });
  await stream.next();
  await scheduler.close();
  await scheduler.close();
  t.true(scheduler.isClosed);
  await t.throwsAsync(stream.result, { code: 'KV_CLOSED' });
  t.throws(() => scheduler.submit({ tokens: [1], maxNewTokens: 1 }), { code: 'KV_CLOSED' });
  await t.throwsAsync(scheduler.queueFree(), { code: 'KV_CLOSED' });
  await new OnlineScheduler({ cache, engine })[Symbol.asyncDispose]();
});

servingTests('leaving an offline run early ends its open requests', {}, async ({ t, cache, engine }) => {
  const offline = new OfflineScheduler({ cache, engine });
  const requests = [0, 1, 2].map((key) => ({ tokens: promptOf(20, key), maxNewTokens: 1 + 100 * key }));
  for await (const outcome of offline.run(requests)) {
    t.is(outcome.index, 0);
    break;
  }
  t.is(offline.totals.failedRequests, 2);
});

servingTests('wrong options are refused before anything happens', {}, async ({ t, cache, engine }) => {
  const { prefill } = PatternEngine.prototype;
  t.throws(() => new OnlineScheduler({ cache, engine: { prefill } as unknown as Engine }), { code: 'KV_INVALID_OPTION' });
  const misspelt = { cache, engine, maxWaitng: 3 } as never;
  t.throws(() => new OnlineScheduler(misspelt), { code: 'KV_UNKNOWN_OPTION' });
  const scheduler = new OnlineScheduler({ cache, engine });
  const wrong: object[] = [
    { tokens: [], maxNewTokens: 1 }, { tokens: [1], maxNewTokens: 0 }, { tokens: [-1], maxNewTokens: 1 }, { maxNewTokens: 1 },
    { tokens: [1], maxNewTokens: 1, stopTokens: 3 }, { tokens: [1], maxNewTokens: 1, urgency: 256 },
  ];
  for (const request of wrong) t.throws(() => scheduler.submit(request as GenerationRequest), { code: 'KV_INVALID_OPTION' });
  t.is(scheduler.waitingRequests, 0);
});

cacheTest('a lost device ends all requests', { model: smallModel, maxTokens: 400 }, async (t, bench) => {
  const { cache, mock } = bench;
  const engine = new PatternEngine({ cache, pause: turn });
  const scheduler = new OnlineScheduler({ cache, engine: faulty(engine, 'decode', () => ({ tokens: new Int32Array(8) })) });
  const streams = [0, 1].map((key) => scheduler.submit({ tokens: promptOf(45, key), maxNewTokens: 300 }));
  await streams[1]!.next();
  mock.loseDevice();
  for (const stream of streams) await t.throwsAsync(stream.result, { code: 'KV_DRIVER_LOST' });
  await scheduler.idle();
});

const small = { model: smallModel, maxTokens: 400 };

cacheTest('a cache that is closed under its scheduler ends all requests, and their errors name the cache', small, async (t, bench) => {
  const { cache } = bench;
  const engine = new PatternEngine({ cache });
  const scheduler = new OnlineScheduler({ cache, engine });
  const streams = [0, 1].map((key) => scheduler.submit({ tokens: promptOf(45, key), maxNewTokens: 300 }));
  const lists = [NaiveScheduler, OfflineScheduler].map((kind) => new kind({ cache, engine }));
  await streams[1]!.next();
  cache.close();
  const closed = { code: 'KV_CLOSED' };
  for (const stream of streams) await t.throwsAsync(stream.result, closed);
  const request = { tokens: promptOf(45), maxNewTokens: 3 };
  t.throws(() => scheduler.submit(request), closed);
  for (const list of lists) await t.throwsAsync(collect(list.run([request])), closed);
});

for (const kind of [NaiveScheduler, OfflineScheduler, OnlineScheduler]) {
  cacheTest(`a driver call that fails once is tried again: ${kind.name}`, { ...small, mapper: 'off' }, async (t, bench) => {
    const { cache } = bench;
    const engine = new PatternEngine({ cache });
    const scheduler = new kind({ cache, engine });
    const request: GenerationRequest = {
      tokens: promptOf(200), maxNewTokens: 100,
      sampler: (logits, index) => {
        if (index === 0) bench.fail('cuMemCreate', 1);
        return greedy(logits, index);
      },
    };
    bench.fail('cuMemMap', 2);
    if (scheduler instanceof OnlineScheduler) assertAnswer(t, request, await scheduler.submit(request).result);
    else assertAnswer(t, request, resultOf((await collect(scheduler.run([request])))[0]));
    assertQuiet(t, cache, engine);
  });
}

for (const way of ['cancel', 'abort', 'close'] as const) {
  let decide = (): void => {};
  const growth = (lengthTokens: number): number => {
    decide();
    return lengthTokens;
  };
  const options = { growth, prefixCache: { tiers: [hostTier({ bytes: 2 ** 20 })] } };
  servingTests(`requests that a policy ends (${way}) hold nothing once it has decided, and others go on`, options, async ({ t, cache, engine }) => {
    const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 8 });
    const abort = new AbortController();
    const request = { tokens: promptOf(60), maxNewTokens: 4 };
    const [leader, follower] = scheduler.submitAnswers(request, 2);
    const watched = scheduler.submit({ tokens: promptOf(60, 1), maxNewTokens: 4, signal: abort.signal });
    const over = [leader!, follower!, watched].map(({ result }) => result.then(() => 'answered', (error: KvError) => error.code));
    while (scheduler.runningRequests < 2) await turn();
    let closed: Promise<void> | undefined;
    decide = () => {
      decide = () => {};
      if (way === 'cancel') leader!.cancel();
      else if (way === 'abort') abort.abort();
      else closed = scheduler.close();
    };
    const own = cache.acquire({ promptTokens: 3 });
    await cache.step([[own, 3]], () => {}); // between two steps of the scheduler
    own.release();
    const ends = await Promise.all(over);
    t.deepEqual(ends, {
      cancel: ['KV_ABORTED', 'answered', 'answered'], abort: ['answered', 'answered', 'KV_ABORTED'],
      close: ['KV_CLOSED', 'KV_CLOSED', 'KV_CLOSED'],
    }[way]);
    await (closed ?? scheduler.close());
    await cache.prefixes.tiers!.close();
  });
}
