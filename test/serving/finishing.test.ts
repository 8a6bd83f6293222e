// `stream.finish()`: a reader ends an answer with the tokens that it has; and what a stream and a scheduler tell of times.

import { OnlineScheduler } from 'virtual-kv';

import { expectedTokens } from './pattern-engine.js';
import { promptOf, servingTests } from './serving-bench.js';
import { SteppedClock } from './stepped-clock.js';

servingTests('finish ends a running answer with the tokens that it has, as answered, and its slot serves the next', { slots: 1 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const tokens = promptOf(60);
  const stream = scheduler.submit({ tokens, maxNewTokens: 100 });
  const waiting = scheduler.submit({ tokens: promptOf(30, 1), maxNewTokens: 5 });
  t.is(stream.admission, undefined);
  const read: number[] = [];
  for await (const token of stream) if (read.push(token) === 7) stream.finish();
  const result = await stream.result;
  t.like(result, { finishReason: 'stop', stopToken: undefined, promptTokens: 60 });
  t.deepEqual([...result.tokens], expectedTokens(tokens, result.tokens.length));
  t.deepEqual(read, [...result.tokens], 'what was generated before is still read');
  t.true(result.tokens.length < 100);
  stream.finish();
  stream.cancel();
  t.is((await waiting.result).tokens.length, 5);
  t.like(scheduler.totals, { completedRequests: 2, failedRequests: 0 });
  await scheduler.close();
});

servingTests('finish ends a waiting request with an empty answer', { slots: 1 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const running = scheduler.submit({ tokens: promptOf(20), maxNewTokens: 5 });
  const waiting = scheduler.submit({ tokens: promptOf(20, 1), maxNewTokens: 5 });
  waiting.finish();
  const { tokens, finishReason, firstTokenMs, totalMs } = await waiting.result;
  t.deepEqual([tokens.length, finishReason], [0, 'stop']);
  t.is(firstTokenMs, totalMs);
  t.is((await running.result).tokens.length, 5);
  await scheduler.close();
});

servingTests('a stream knows what its admission found, and a scheduler how long its requests and passes took', { slots: 2 }, async ({ t, cache, engine }) => {
  const clock = new SteppedClock();
  const timed = {
    vocabularyTokens: engine.vocabularyTokens,
    prefill: (pass: Parameters<typeof engine.prefill>[0]) => { clock.advance(40); return engine.prefill(pass); },
    decode: (pass: Parameters<typeof engine.decode>[0]) => { clock.advance(4); return engine.decode(pass); },
  };
  const scheduler = new OnlineScheduler({ cache, engine: timed, ...clock.options });
  const tokens = promptOf(100);
  const first = scheduler.submit({ tokens, maxNewTokens: 5 });
  await first.result;
  t.deepEqual(first.admission, { waitMs: 0, cachedTokens: 0, promotion: undefined });
  const second = scheduler.submit({ tokens: [...tokens, 1], maxNewTokens: 1 });
  const { cachedTokens } = await second.result;
  t.true(cachedTokens > 0);
  t.is(second.admission?.cachedTokens, cachedTokens);
  const { wait, firstToken, betweenTokens, total, prefill, decode } = scheduler.times;
  t.deepEqual([wait.count, firstToken.count, betweenTokens.count, total.count], [2, 2, 4, 2]);
  t.is(betweenTokens.sumMs, 16);
  t.is(betweenTokens.counts[betweenTokens.boundsMs.indexOf(5)], 4, 'each in the bucket of at most 5 ms');
  t.is(prefill.sumMs + decode.sumMs, scheduler.totals.prefillMs + scheduler.totals.decodeMs);
  t.is(prefill.sumMs, 40 * prefill.count);
  t.is(prefill.counts.reduce((sum, count) => sum + count, 0), prefill.count);
  await scheduler.close();
});
