// How the online scheduler admits, continues and preempts requests. Answers are compared with those that the engine must give.

import { byTenantShare, OnlineScheduler, type GenerationRequest, type TokenStream } from 'virtual-kv';

import { expectedTokens, hashOf, PatternEngine, turn, vocabularyTokens } from './pattern-engine.js';
import { assertAnswer, promptOf, servingTests, type ServingBench } from './serving-bench.js';

interface Submitted {
  readonly request: GenerationRequest;
  readonly stream: TokenStream;
}

function submit(scheduler: OnlineScheduler, request: GenerationRequest): Submitted {
  return { request, stream: scheduler.submit(request) };
}

async function assertAnswers({ t }: ServingBench, submitted: readonly Submitted[]): Promise<void> {
  for (const { request, stream } of submitted) assertAnswer(t, request, await stream.result);
}

/** The order in which the answers end. */
async function ends(submitted: readonly Submitted[]): Promise<number[]> {
  const order: number[] = [];
  await Promise.all(submitted.map(({ stream }, index) => stream.result.then(() => order.push(index))));
  return order;
}

servingTests('a token is in its stream as soon as its step is over', {}, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const request = { tokens: promptOf(20), maxNewTokens: 5 };
  const stream = scheduler.submit(request);
  const passes: number[] = [];
  const tokens: number[] = [];
  for await (const token of stream) {
    tokens.push(token);
    passes.push(engine.passes);
  }
  const result = await stream.result;
  assertAnswer(t, request, result);
  t.deepEqual(tokens, [...result.tokens]);
  t.deepEqual(passes, [1, 2, 3, 4, 5]);
  t.is(result.finishReason, 'length');
  t.deepEqual(await stream.next(), { done: true, value: undefined });
});

servingTests('a request that arrives while another decodes joins its steps', {}, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine });
  const first = submit(scheduler, { tokens: promptOf(20), maxNewTokens: 20 });
  await first.stream.next();
  const second = submit(scheduler, { tokens: promptOf(30, 1), maxNewTokens: 4 });
  t.deepEqual(await ends([first, second]), [1, 0]);
  t.is(engine.largestPass, 2);
  await assertAnswers(serving, [first, second]);
});

servingTests('by default a step computes at most 128 tokens of prompts on host, and 2,048 elsewhere', { rows: 200 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const prompts = [promptOf(300), ...Array.from({ length: 7 }, (_, key) => promptOf(300, key + 1))];
  await Promise.all(prompts.map((tokens) => scheduler.submit({ tokens, maxNewTokens: 1 }).result));
  t.is(engine.largestPrefill, cache.driver.kind === 'host' ? 128 : 2_048);
});

servingTests('a long prompt is computed in chunks between which answers go on', {}, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 16 });
  const short = submit(scheduler, { tokens: promptOf(3), maxNewTokens: 8 });
  const long = submit(scheduler, { tokens: promptOf(300, 1), maxNewTokens: 2 });
  t.deepEqual(await ends([short, long]), [0, 1]);
  t.is(engine.largestPrefill, 16);
  t.is(scheduler.totals.steps, Math.ceil(303 / 16) + 1);
  await assertAnswers(serving, [short, long]);
});

servingTests('requests wait for a common prompt that is being computed, so that it is computed once', {}, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 50 });
  const tokens = promptOf(200);
  const same = [1, 2, 3].map((maxNewTokens) => submit(scheduler, { tokens, maxNewTokens }));
  const other = submit(scheduler, { tokens: promptOf(20, 5), maxNewTokens: 3 });
  await assertAnswers(serving, [...same, other]);
  t.true(engine.computedTokens <= 200 + 2 + (1 + 2 + 3) + 20 + 3, `${engine.computedTokens} tokens`);
});

servingTests('with minPendingTokens: Infinity no request waits for another\'s prompt', {}, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine, minPendingTokens: Infinity, prefillTokensPerStep: 1_000 });
  const tokens = promptOf(200);
  await assertAnswers(serving, [1, 2].map((maxNewTokens) => submit(scheduler, { tokens, maxNewTokens })));
  t.true(engine.computedTokens >= 400);
});

servingTests('a request that waits for another\'s prompt computes it when that one is cancelled', {}, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 20 });
  const tokens = promptOf(200);
  const first = submit(scheduler, { tokens, maxNewTokens: 2 });
  const second = submit(scheduler, { tokens, maxNewTokens: 2 });
  while (engine.passes < 3) await turn();
  t.is(scheduler.waitingRequests, 1);
  first.stream.cancel();
  await t.throwsAsync(first.stream.result, { code: 'KV_ABORTED', name: 'AbortError' });
  await assertAnswers(serving, [second]);
});

servingTests('the latest request is preempted when memory runs out, and finds its rows again', { rows: 9 }, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine, watermarkRows: 0 });
  const submitted = [0, 1, 2].map((key) => submit(scheduler, { tokens: promptOf(140, key), maxNewTokens: 60 }));
  await assertAnswers(serving, submitted);
  const results = await Promise.all(submitted.map(({ stream }) => stream.result));
  t.is(results[0]!.preemptions, 0);
  t.true(results[2]!.preemptions > 0);
  const { preemptions, recomputedTokens, completedRequests } = scheduler.totals;
  t.is(completedRequests, 3);
  t.true(recomputedTokens < 140 * preemptions, `${recomputedTokens} tokens computed again`);
});

servingTests('an admission leaves the watermark free for running requests', { rows: 9 }, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine, watermarkRows: 4 });
  const submitted = [0, 1, 2].map((key) => submit(scheduler, { tokens: promptOf(140, key), maxNewTokens: 60 }));
  await assertAnswers(serving, submitted);
  t.is(scheduler.totals.preemptions, 0);
  t.is(engine.largestPass, 1);
});

servingTests('a more urgent request is admitted first, and preempts less urgent ones', { slots: 2 }, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine });
  const ordinary = [0, 1, 2].map((key) => submit(scheduler, { tokens: promptOf(60, key), maxNewTokens: 30 }));
  await ordinary[1]!.stream.next();
  const urgent = submit(scheduler, { tokens: promptOf(60, 9), maxNewTokens: 5, urgency: 1 });
  t.deepEqual(await ends([...ordinary, urgent]), [3, 0, 1, 2]);
  t.is((await ordinary[1]!.stream.result).preemptions, 1);
  await assertAnswers(serving, [...ordinary, urgent]);
});

servingTests('requests of one urgency are admitted as they came', { slots: 1 }, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine });
  const submitted = [5, 1, 3, 2].map((maxNewTokens, key) => submit(scheduler, { tokens: promptOf(10, key), maxNewTokens }));
  t.deepEqual(await ends(submitted), [0, 1, 2, 3]);
  await assertAnswers(serving, submitted);
});

servingTests("by tenant share, many requests of one tenant do not delay another tenant", { slots: 1 }, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine, order: byTenantShare() });
  const request = (tenant: string, key: number): GenerationRequest => ({ tokens: promptOf(40, key), maxNewTokens: 4, tenant });
  const flood = [0, 1, 2, 3].map((key) => submit(scheduler, request('a', key)));
  await flood[0]!.stream.next();
  const other = submit(scheduler, request('b', 9));
  t.deepEqual(await ends([...flood, other]), [0, 4, 1, 2, 3]);
  await assertAnswers(serving, [...flood, other]);
});

servingTests('by tenant share, the tenant with most computed tokens is preempted, not the latest request', { rows: 9 }, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine, order: byTenantShare(), watermarkRows: 0 });
  const first = submit(scheduler, { tokens: promptOf(200), maxNewTokens: 100, tenant: 'a' });
  const second = submit(scheduler, { tokens: promptOf(100, 1), maxNewTokens: 120, tenant: 'b' });
  await assertAnswers(serving, [first, second]);
  const preemptions = await Promise.all([first, second].map(async ({ stream }) => (await stream.result).preemptions));
  t.deepEqual(preemptions, [1, 0]);
});

servingTests('tenants, salts and adapters never share, nor do requests that opt out', {}, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine });
  const tokens = promptOf(150);
  const kinds: Partial<GenerationRequest>[] = [
    {}, { tenant: 'a' }, { salt: 's' }, { adapter: 'l' }, { caching: 'write' }, { caching: 'off' },
  ];
  await assertAnswers(serving, kinds.map((kind) => submit(scheduler, { tokens, maxNewTokens: 2, ...kind })));
  t.is(scheduler.totals.cachedTokens, 0);
  await assertAnswers(serving, kinds.map((kind) => submit(scheduler, { tokens, maxNewTokens: 2, ...kind })));
  t.is(scheduler.totals.cachedTokens, 4 * 150);
});

servingTests('of a prompt that is cached whole nothing is computed before its first token', {}, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine });
  const tokens = promptOf(130);
  await assertAnswers(serving, [submit(scheduler, { tokens, maxNewTokens: 9 })]);
  const { computedTokens } = engine;
  const again = submit(scheduler, { tokens, maxNewTokens: 1 });
  await assertAnswers(serving, [again]);
  t.is(engine.computedTokens, computedTokens);
  await assertAnswers(serving, [submit(scheduler, { tokens, maxNewTokens: 9 })]);
  const sampler = (logits: Float32Array): number => logits.indexOf(Math.min(...logits));
  const { tokens: answer } = await scheduler.submit({ tokens, maxNewTokens: 9, sampler }).result;
  t.deepEqual([...answer], expectedTokens(tokens, 9, sampler));
  t.is(scheduler.totals.skippedPrefills, 3);
  t.is(scheduler.totals.cachedTokens, 3 * 130);
});

servingTests('a value that the application keeps at the end of a prompt is not taken for logits', {}, async (serving) => {
  const { t, cache, engine, bench } = serving;
  const tokens = promptOf(60);
  const mine = cache.acquire({ tokens, caching: 'read-write' });
  const prefilled = bench.batchOf([mine, 60]);
  cache.prepare(prefilled);
  let hash = 0;
  for (let at = 0; at < 60; at += 1) cache.stamp(mine, at, 1, hash = hashOf(tokens, at));
  t.true(hash > 0);
  cache.commit(prefilled);
  t.true(mine.keepValue({ mine: true }));
  mine.release();
  const scheduler = new OnlineScheduler({ cache, engine });
  await assertAnswers(serving, [submit(scheduler, { tokens, maxNewTokens: 5 })]);
  t.is(scheduler.totals.skippedPrefills, 0);
  t.is(engine.computedTokens, 5);
});

servingTests('answers are right after a reset of the prefix cache while they run', { isAsync: true }, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 1_000 });
  const submitted = [0, 1, 2].map((key) => submit(scheduler, { tokens: promptOf(70, key), maxNewTokens: 12 }));
  await submitted[0]!.stream.next();
  cache.prefixes.reset({ preempt: true });
  await assertAnswers(serving, submitted);
  t.true(scheduler.totals.preemptions >= 3);
});

servingTests('a pass in which the prefix cache is reset runs again', {}, async (serving) => {
  const { t, cache } = serving;
  let passes = 0;
  const pause = async (): Promise<void> => {
    await turn();
    passes += 1;
    if (passes === 1 || passes === 4) cache.prefixes.reset({ preempt: true });
  };
  const engine = new PatternEngine({ cache, pause });
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 1_000 });
  await assertAnswers(serving, [0, 1, 2].map((key) => submit(scheduler, { tokens: promptOf(70, key), maxNewTokens: 12 })));
  t.is(engine.wrongTokens, 0);
  t.is(scheduler.totals.preemptions, 6);
});

servingTests('a stop token ends an answer without being part of it', {}, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const tokens = promptOf(30);
  const whole = await scheduler.submit({ tokens, maxNewTokens: 20 }).result;
  const stop = whole.tokens[6]!;
  const cut = await scheduler.submit({ tokens, maxNewTokens: 20, stopTokens: [stop, vocabularyTokens + 1] }).result;
  t.deepEqual([...cut.tokens], [...whole.tokens].slice(0, whole.tokens.indexOf(stop)));
  t.is(cut.finishReason, 'stop');
  t.is(cut.stopToken, stop);
});

servingTests('requests submitted in one turn start in one step, and the totals add up', {}, async (serving) => {
  const { t, cache, engine } = serving;
  let clockMs = 0;
  const scheduler = new OnlineScheduler({ cache, engine, now: () => ++clockMs });
  const submitted = [0, 1, 2, 3].map((key) => submit(scheduler, { tokens: promptOf(10 + key, key), maxNewTokens: 3 }));
  await assertAnswers(serving, submitted);
  await scheduler.idle();
  const { prefillMs, decodeMs, ...counts } = scheduler.totals;
  t.deepEqual(counts, {
    completedRequests: 4, failedRequests: 0, promptTokens: 46, cachedTokens: 0, generatedTokens: 12, recomputedTokens: 0,
    skippedPrefills: 0, steps: 3, preemptions: 0, badLogits: 0, recoveredRequests: 0,
  });
  t.is(prefillMs, 1);
  t.is(decodeMs, 2);
  const { firstTokenMs, totalMs } = await submitted[0]!.stream.result;
  t.true(firstTokenMs > 0 && totalMs > firstTokenMs);
});
