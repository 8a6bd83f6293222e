// Several answers to one prompt: computed once, forked from the first, each ended by itself.

import { OnlineScheduler, randomSampler, type TokenStream } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { refuses } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { expectedTokens } from './pattern-engine.js';
import { promptOf, servingTests } from './serving-bench.js';
import { slow } from '../runner/slow.js';

for (const prefixCache of ['on', 'off'] as const) {
  servingTests(`several answers compute their prompt once, and are those of single requests (prefix cache ${prefixCache})`, {
    slots: 6, ...prefixCache === 'off' ? { prefixCache: 'off' as const } : {},
  }, async ({ t, cache, engine }) => {
    const scheduler = new OnlineScheduler({ cache, engine });
    const tokens = promptOf(150);
    const sampler = (seed: number): ReturnType<typeof randomSampler> => randomSampler({ temperature: 4, seed });
    const streams = scheduler.submitAnswers({ tokens, maxNewTokens: 20, sampler: sampler(7), logProbabilities: 1 }, 5);
    t.is(scheduler.waitingRequests, 5);
    const results = await Promise.all(streams.map((stream) => stream.result));
    t.is(engine.computedTokens, 150 + 4 + 5 * 19, 'of the prompt each other answer computes the last token only');
    t.is(new Set(results.map((result) => result.tokens.join())).size, 5, 'each draws other numbers');
    t.deepEqual(results.map(({ cachedTokens, promptTokens }) => [cachedTokens, promptTokens]), [[0, 150], ...Array.from({ length: 4 }, () => [150, 150])]);
    for (const [answer, result] of results.entries()) {
      const single = await scheduler.submit({ tokens, maxNewTokens: 20, sampler: sampler(7 + answer), logProbabilities: 1 }).result;
      t.deepEqual(single.tokens, result.tokens);
      t.deepEqual(single.logProbabilities, result.logProbabilities);
    }
    await scheduler.close();
  });
}

servingTests('answers that find no slot wait, and follow another where the first ends early', { slots: 2 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 20 });
  const request = { tokens: promptOf(60), maxNewTokens: 6 };
  const results = await Promise.all(scheduler.submitAnswers(request, 7).map((stream) => stream.result));
  for (const { tokens } of results) t.deepEqual([...tokens], expectedTokens(request.tokens, 6));
  const [first, ...others] = scheduler.submitAnswers({ ...request, salt: 'new' }, 4);
  first!.cancel();
  others[0]!.finish();
  await t.throwsAsync(first!.result, { code: 'KV_ABORTED' });
  t.is((await others[0]!.result).tokens.length, 0);
  for (const stream of others.slice(1)) t.deepEqual([...(await stream.result).tokens], expectedTokens(request.tokens, 6));
  const one = await Promise.all(scheduler.submitAnswers({ tokens: [3], maxNewTokens: 1 }, 3).map((stream) => stream.result));
  for (const { tokens } of one) t.deepEqual([...tokens], expectedTokens([3], 1));
  await scheduler.close();
});

servingTests('all answers are queued or none, and what they share is released once', { slots: 2 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine, maxWaiting: 5 });
  const request = { tokens: promptOf(20), maxNewTokens: 3 };
  let released = 0;
  const streams = scheduler.submitAnswers({ ...request, input: 'shared', releaseInput: () => { released += 1; } }, 4);
  t.throws(() => scheduler.submitAnswers(request, 2), { code: 'KV_QUEUE_FULL' });
  t.is(scheduler.waitingRequests, 4);
  for (const wrong of [0, 129, 1.5, '2']) {
    refuses(t, () => scheduler.submitAnswers(request, wrong as number), 'KV_INVALID_OPTION', { option: 'answers', received: wrong });
  }
  await Promise.all(streams.map((stream) => stream.result));
  await scheduler.idle();
  await new Promise(setImmediate);
  t.is(released, 1);
  const open = scheduler.submitAnswers(request, 5);
  await scheduler.close();
  for (const stream of open) await t.throwsAsync(stream.result, { code: 'KV_CLOSED' });
});

const seed = seedOf('several answers');

servingTests(`random answers with aborts, little memory and preemptions end once, and leave nothing (seed ${seed})`, {
  slots: 5, memoryBudgetBytes: 16 * 2 ** 16, isAsync: true,
}, async ({ t, cache, engine }) => {
  const random = new Random(seed);
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 50 });
  const ends: Promise<void>[] = [];
  let answered = 0;
  let aborted = 0;
  for (let round = 0; round < 25; round += 1) {
    const tokens = promptOf(1 + random.integer(80), random.integer(10));
    const maxNewTokens = 1 + random.integer(60);
    const request = {
      tokens, maxNewTokens, urgency: random.chance(0.2) ? 1 : 0, caching: random.chance(0.3) ? 'off' as const : 'read-write' as const,
      tenant: random.chance(0.5) ? 'a' : 'b',
    };
    const streams: readonly TokenStream[] = scheduler.submitAnswers(request, 1 + random.integer(6));
    for (const stream of streams) {
      if (random.chance(0.3)) {
        const leaveAt = random.integer(20);
        ends.push((async () => {
          let read = 0;
          for (let at = 0; at < leaveAt; at += 1) await new Promise(setImmediate);
          if (random.chance(0.5)) stream.cancel();
          else for await (const token of stream) if (token >= 0 && (read += 1) > leaveAt) break;
          await stream.result.then(() => { answered += 1; }, (error: unknown) => {
            aborted += 1;
            t.like(error, { code: 'KV_ABORTED' });
          });
        })());
        continue;
      }
      ends.push(stream.result.then((result) => {
        answered += 1;
        t.deepEqual([...result.tokens], expectedTokens(tokens, maxNewTokens));
      }));
    }
    for (let turns = random.integer(20); turns > 0; turns -= 1) await new Promise(setImmediate);
  }
  await Promise.all(ends);
  await scheduler.idle();
  t.is(scheduler.waitingRequests, 0);
  t.deepEqual([scheduler.totals.completedRequests, scheduler.totals.failedRequests], [answered, aborted]);
  t.true(aborted > 3 && answered > 20, `${aborted} aborted, ${answered} answered`);
  await scheduler.close();
}, slow('a random world of requests'));
