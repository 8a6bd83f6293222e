// Mistakes in using the schedulers: each is a typed error that names the value, the request, and what to write instead.

import { greedy, isKvError, NaiveScheduler, OfflineScheduler, OnlineScheduler, type Engine } from 'virtual-kv';

import { refuses, refusesAsync } from '../helpers/refuses.js';
import { turn, vocabularyTokens } from './pattern-engine.js';
import { assertAnswer, collect, promptOf, servingTests } from './serving-bench.js';

const request = { tokens: promptOf(30), maxNewTokens: 3 };

servingTests('the error of a malformed answer says what the engine has answered', {}, async ({ t, cache, engine }) => {
  const thrown = new Error('not now');
  const answers: readonly (readonly [() => unknown, RegExp])[] = [
    [() => { throw 'a string'; }, /it threw/], // eslint-disable-line @typescript-eslint/only-throw-error
    [() => Promise.reject(), /it threw/], [() => 'logits', /./], [() => undefined, /./],
    [() => ({ tokens: ['1'] }), /./],
    [() => ({ logits: new Float32Array(vocabularyTokens).fill(Number.NaN, 5, 6) }), /./],
    [() => ({ logits: new Array<number>(vocabularyTokens).fill(0) }), /no Float32Array/],
    [() => new Float32Array(vocabularyTokens), /an array/],
    [() => [1, 2], /an array/],
    [() => ({ get logits() { throw thrown; } }), /not be read/],
    [() => ({ get tokens() { throw thrown; } }), /not be read/],
    [() => ({ logits: new Float64Array(vocabularyTokens) }), /no Float32Array, 61 .* 61 /],
    [() => ({ logits: { length: 61 } }), /no Float32Array/], [() => ({ logits: 3 }), /nothing .*logits/],
    [() => ({ logits: new Float32Array(60) }), /60 .*\b61 /],
    [() => ({ logits: Object.defineProperty(new Float32Array(3), 'length', { value: 1_000 }) }), / 3 numbers/],
    [() => ({ tokens: { length: 1, 0: 1 } }), /nothing .*tokens/],
    [() => ({ tokens: Object.defineProperty([0], 0, { get: () => { throw thrown; } }) }), /not now/],
    [() => ({ tokens: [{ valueOf: () => { throw thrown; } }] }), /vocabulary/],
    [() => ({ then: () => { throw thrown; } }), /it threw/],
    [() => ({ get then() { throw thrown; } }), /it threw/],
  ];
  for (const [index, [answer, message]] of answers.entries()) {
    for (const passTimeoutMs of [undefined, 1e6]) {
      const scheduler = new OnlineScheduler({
        cache, engine: { vocabularyTokens, prefill: answer as never, decode: engine.decode.bind(engine) }, passTimeoutMs,
      });
      const error = await t.throwsAsync(scheduler.submit(request).result, { message }, `answer ${index}`);
      t.true(error === thrown || isKvError(error, 'KV_ENGINE_FAILED'));
      t.is(cache.prefixes.lookup({ tokens: request.tokens }).cachedTokens, 0);
      await scheduler.close();
    }
  }
});

servingTests('each part of an answer is read once', {}, async ({ t, cache, engine }) => {
  let reads = 0;
  const twice: Engine = {
    vocabularyTokens, decode: engine.decode.bind(engine),
    prefill: async (pass) => {
      const output = await engine.prefill(pass);
      return { get logits() { return reads++ === 0 && 'logits' in output ? output.logits : new Float32Array(0); } };
    },
  };
  const scheduler = new OnlineScheduler({ cache, engine: twice });
  assertAnswer(t, request, await scheduler.submit(request).result);
  t.is(reads, 1);
});

servingTests('of a thenable that resolves twice the first answer counts', {}, async ({ t, cache, engine }) => {
  const twice: Engine = {
    vocabularyTokens, decode: engine.decode.bind(engine),
    prefill: (pass) => ({
      then: (resolve: (output: unknown) => void, reject: (error: Error) => void) => {
        resolve(engine.prefill(pass));
        resolve({ tokens: Int32Array.of(1) });
        reject(new Error('changed its mind'));
      },
    }) as never,
  };
  for (const passTimeoutMs of [undefined, 1e6]) {
    const scheduler = new OnlineScheduler({ cache, engine: twice, passTimeoutMs });
    assertAnswer(t, request, await scheduler.submit({ ...request, caching: 'off' }).result);
    await scheduler.close();
  }
});

servingTests('a sampler that throws undefined or null ends its request with a typed error, without a token', {}, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  for (const thrown of [undefined, null]) {
    const sampler = (): number => { throw thrown; }; // eslint-disable-line @typescript-eslint/only-throw-error -- on purpose
    await refusesAsync(t, scheduler.submit({ ...request, sampler }).result, 'KV_INVALID_OPTION', { option: 'sampler', received: String(thrown) });
  }
  await scheduler.close();
});

servingTests('a second reader of a stream is refused', {}, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const stream = scheduler.submit(request);
  const { value } = await stream.next();
  const tokens = [value];
  for await (const token of stream) tokens.push(token); // goes on behind what was read
  t.deepEqual(tokens, [...(await stream.result).tokens]);
  await refusesAsync(t, (async () => { for await (const _token of stream) t.fail(); })(), 'KV_STREAM_STATE', { operation: 'read' });
  const other = scheduler.submit({ ...request, tokens: promptOf(30, 1) });
  const reader = other[Symbol.asyncIterator]();
  t.is(reader[Symbol.asyncIterator](), reader);
  t.throws(() => other[Symbol.asyncIterator](), { code: 'KV_STREAM_STATE' });
  let count = 0;
  for await (const _token of reader) count += 1;
  t.is(count, 3);
});

servingTests('reading a field of the result from a stream throws, and suggests `.result`', {}, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const stream = await (scheduler.submit(request) as unknown as Promise<Record<string, unknown>>); // as JavaScript may
  const result = await (stream['result'] as Promise<object>);
  for (const field of Object.keys(result).filter((name) => name !== 'side' && name !== 'logProbabilities')) { // a stream has these too
    refuses(t, () => stream[field], 'KV_STREAM_STATE', { operation: `read \`${field}\` of` });
  }
});

for (const [option, wrong] of [['now', () => Number.NaN], ['now', () => '1'], ['timer', () => 3]] as const) {
  servingTests(`a clock whose \`${option}\` answers ${String(wrong())} is refused by submit, which changes nothing`, {}, async ({ t, cache, engine }) => {
    const scheduler = new OnlineScheduler({ cache, engine, [option]: wrong });
    const late = { ...request, deadlineMs: 10, signal: new AbortController().signal };
    refuses(t, () => scheduler.submit(late), 'KV_INVALID_OPTION', { option });
    t.deepEqual([scheduler.waitingRequests, scheduler.totals.failedRequests], [0, 0]);
    await scheduler.idle();
    for (const list of [NaiveScheduler, OfflineScheduler]) {
      await t.throwsAsync(collect(new list({ cache, engine, [option]: wrong }).run([late])), { code: 'KV_INVALID_OPTION' });
    }
  });
}

const reentries: Readonly<Record<string, (scheduler: OnlineScheduler) => unknown>> = {
  submit: (scheduler) => scheduler.submit({ ...request, tokens: promptOf(30, 7) }).result.catch(() => {}),
  close: (scheduler) => { void scheduler.close(); },
  idle: (scheduler) => { void scheduler.idle(); },
};

for (const [name, reenter] of Object.entries(reentries)) {
  for (const where of ['engine', 'sampler', 'order', 'now'] as const) {
    servingTests(`${where} may call the scheduler's ${name}: every request still ends once`, {}, async ({ t, cache, engine }) => {
      let calls = 0;
      const call = (): void => {
        calls += 1;
        if (calls === 4) reenter(scheduler);
      };
      const wrapped: Engine = {
        vocabularyTokens, prefill: (pass) => engine.prefill(pass),
        decode: (pass) => {
          if (where === 'engine') call();
          return engine.decode(pass);
        },
      };
      let nowMs = 0;
      const scheduler: OnlineScheduler = new OnlineScheduler({
        cache, engine: wrapped,
        order: (a, b) => {
          if (where === 'order') call();
          return a.arrival - b.arrival;
        },
        now: () => {
          if (where === 'now') call();
          return nowMs += 1;
        },
      });
      const sampler = (logits: Float32Array, index: number): number => {
        if (where === 'sampler') call();
        return greedy(logits, index);
      };
      const requests = [0, 1, 2].map((key) => ({ tokens: promptOf(30, key), maxNewTokens: 9, sampler }));
      const ends = await Promise.allSettled(requests.map((one) => scheduler.submit(one).result));
      for (const [index, end] of ends.entries()) {
        if (end.status === 'fulfilled') assertAnswer(t, requests[index]!, end.value);
        else t.like(end.reason, { code: 'KV_CLOSED' });
      }
      t.true(calls >= 4);
      if (name === 'submit') await scheduler.idle();
      await scheduler.close();
    });
  }
}

servingTests('requests of a pass may end in its sampler, or by a signal in the engine\'s call', {}, async ({ t, cache, engine }) => {
  const controller = new AbortController();
  const aborting: Engine = {
    vocabularyTokens, decode: (pass) => engine.decode(pass),
    prefill: async (pass) => {
      const output = engine.prefill(pass);
      controller.abort();
      await turn();
      return output;
    },
  };
  const scheduler = new OnlineScheduler({ cache, engine: aborting });
  const streams = [0, 1, 2].map((key) => scheduler.submit({
    tokens: promptOf(30, key), maxNewTokens: 9, signal: key === 0 ? controller.signal : undefined,
    sampler: (logits, index) => {
      if (key === 1) streams[1]!.cancel();
      return greedy(logits, index);
    },
  }));
  for (const index of [0, 1]) await t.throwsAsync(streams[index]!.result, { code: 'KV_ABORTED' });
  assertAnswer(t, { tokens: promptOf(30, 2), maxNewTokens: 9 }, await streams[2]!.result);
  await scheduler.close();
});

servingTests('a scheduler may be closed in the loop over its tokens', {}, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const stream = scheduler.submit({ ...request, maxNewTokens: 300 });
  await t.throwsAsync(async () => { for await (const _token of stream) await scheduler.close(); }, { code: 'KV_CLOSED' });
  t.is(cache.counts().activeSlots, 0);
});
