// Log-probabilities of answers: those of plain sums over the logits that the engine gave, whatever sampler chose, in results and streams,
// after preemptions and where the prompt was cached whole.

import { greedy, NaiveScheduler, OfflineScheduler, OnlineScheduler, randomSampler, type GenerationRequest, type Sampler, type TokenLogProbability } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { logitsBehind, PatternEngine, vocabularyTokens } from './pattern-engine.js';
import { collect, promptOf, resultOf, servingTests } from './serving-bench.js';

/** What must be told of a token behind a text, by the most obvious sums. */
function expectedOf(text: readonly number[], token: number, best: number): TokenLogProbability {
  const logits = [...logitsBehind(text)];
  const total = Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit), 0));
  const of = (each: number): { token: number; logProbability: number } => ({ token: each, logProbability: logits[each]! - total });
  const order = logits.map((_, each) => each).sort((a, b) => logits[b]! - logits[a]! || a - b);
  return { ...of(token), best: order.slice(0, best).map(of) };
}

const isNear = (a: number, b: number): boolean => Math.abs(a - b) < 1e-5;

function areEqual(a: TokenLogProbability | undefined, b: TokenLogProbability): boolean {
  return a !== undefined && a.token === b.token && isNear(a.logProbability, b.logProbability) && a.best.length === b.best.length
    && a.best.every(({ token, logProbability }, at) => token === b.best[at]!.token && isNear(logProbability, b.best[at]!.logProbability));
}

const seed = seedOf('log-probabilities of answers');

servingTests(`each token's log-probability is that of the logits behind its text (seed ${seed})`, {
  slots: 5, memoryBudgetBytes: 16 * 2 ** 16,
}, async ({ t, cache, engine }) => {
  const random = new Random(seed);
  const samplers: (() => Sampler)[] = [
    () => greedy, () => randomSampler({ temperature: 3, repetitionPenalty: 1.3, logitBias: [[3, 4]], topK: 20 }),
    () => (logits, index) => (logits.length + index * 7) % vocabularyTokens,
  ];
  const requests: GenerationRequest[] = Array.from({ length: 30 }, (_, key) => ({
    tokens: promptOf(1 + random.integer(60), key % 20), maxNewTokens: 1 + random.integer(40), sampler: samplers[random.integer(3)]!(),
    logProbabilities: random.chance(0.2) ? undefined : [0, 1, 5, 20, 100][random.integer(5)]!,
  }));
  for (const scheduler of [new NaiveScheduler({ cache, engine }), new OfflineScheduler({ cache, engine, prefillTokensPerStep: 40 })]) {
    const outcomes = await collect(scheduler.run(requests));
    requests.forEach(({ tokens: prompt, logProbabilities: best }, index) => {
      const { tokens, logProbabilities } = resultOf(outcomes[index]);
      if (best === undefined) {
        t.is(logProbabilities, undefined);
        return;
      }
      t.is(logProbabilities?.length, tokens.length);
      const text = Array.from(prompt);
      for (const [at, token] of tokens.entries()) {
        const expected = expectedOf(text, token, best);
        t.true(areEqual(logProbabilities?.[at], expected), `seed ${seed}, request ${index}, token ${at}: ${JSON.stringify([logProbabilities?.[at], expected])}`);
        text.push(token);
      }
    });
    t.true(scheduler.totals.completedRequests === 30);
  }
});

servingTests('a stream tells log-probabilities as its tokens come, also of a prompt that was cached whole', { slots: 2 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const request = { tokens: promptOf(70), maxNewTokens: 12, logProbabilities: 3 };
  const first = await scheduler.submit(request).result;
  const stream = scheduler.submit(request);
  t.deepEqual(stream.logProbabilities, []);
  let read = 0;
  for await (const token of stream) {
    t.is(stream.logProbabilities?.[read]?.token, token);
    read += 1;
  }
  t.is(scheduler.totals.skippedPrefills, 1);
  t.deepEqual((await stream.result).logProbabilities, first.logProbabilities);
  t.is(scheduler.submit({ tokens: promptOf(5), maxNewTokens: 1 }).logProbabilities, undefined);
  await scheduler.idle();
  await scheduler.close();
});

servingTests('where the engine answers with tokens, requests for log-probabilities end alone', { slots: 2 }, async ({ t, cache }) => {
  const scheduler = new OnlineScheduler({ cache, engine: new PatternEngine({ cache, samples: true }) });
  const [asks, other] = [scheduler.submit({ tokens: promptOf(9), maxNewTokens: 5, logProbabilities: 0 }), scheduler.submit({ tokens: promptOf(9, 1), maxNewTokens: 5 })];
  await t.throwsAsync(asks.result, { code: 'KV_ENGINE_FAILED', message: /log-probabilities/ });
  t.is((await other.result).tokens.length, 5);
  await scheduler.close();
});
