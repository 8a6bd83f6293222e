// Side tensors through the schedulers: an engine answers with rows, a result and a stream hand them over by position, however the request
// was cut, batched, preempted or found in the cache; and whatever ends a request, nothing of the side tensors stays held.

import {
  KvCache, NaiveScheduler, OfflineScheduler, OnlineScheduler, type GenerationRequest, type GenerationResult, type SchedulerOptions, type TokenStream,
} from 'virtual-kv';

import type { ExecutionContext } from 'ava';
import { cacheTest, drivers, type BenchOptions } from '../helpers/cache.js';
import { refusesAsync } from '../helpers/refuses.js';
import { expectedTokens, turn } from './pattern-engine.js';
import { assertAnswer, collect, promptOf, resultOf, smallModel } from './serving-bench.js';
import { assertSideQuiet, SideEngine, sideTensors, wrongRows, type Spoil } from './side-engine.js';
import { sampled } from '../runner/tier.js';

interface SideServing {
  readonly t: ExecutionContext;
  readonly cache: KvCache;
  readonly engine: SideEngine;
}

function sideTests(
  title: string, { isAsync = false, ...options }: BenchOptions & { isAsync?: boolean }, body: (serving: SideServing) => Promise<void>,
): void {
  for (const on of sampled(drivers, 2)) {
    cacheTest(`${title} (${on})`, { model: smallModel, maxTokens: 400, sideTensors, ...options, on }, async (t, { cache }) => {
      const engine = new SideEngine({ cache, pause: isAsync ? turn : undefined });
      await body({ t, cache, engine });
      assertSideQuiet(t, cache, engine);
    });
  }
}

const runs = {
  naive: (options: SchedulerOptions, requests: readonly GenerationRequest[]) => new NaiveScheduler(options).run(requests),
  offline: (options: SchedulerOptions, requests: readonly GenerationRequest[]) => new OfflineScheduler(options).run(requests),
  async *online(options: SchedulerOptions, requests: readonly GenerationRequest[]) {
    const scheduler = new OnlineScheduler(options);
    const streams = requests.map((request) => scheduler.submit(request));
    for (const [index, stream] of streams.entries()) yield { index, status: 'fulfilled' as const, value: await stream.result };
  },
};
const names = Object.keys(runs) as (keyof typeof runs)[];

/** The answer is right, and so are the rows of all its computed tokens; closes them. */
function assertHandedOver(serving: SideServing, request: GenerationRequest, result: GenerationResult): void {
  const { t, cache } = serving;
  assertAnswer(t, request, result);
  const text = [...Array.from(request.tokens), ...result.tokens];
  t.is(result.side!.tokens, text.length - 1, 'the last token was not computed');
  t.true(result.side!.isComplete);
  t.is(wrongRows(result.side, text, text.length - 1, cache), 0);
  result.side!.close();
}

for (const name of names) {
  sideTests(`${name}: results hand over the rows of prompt and answer, cached or computed in chunks, of duplicates too`, { isAsync: true, slots: 6 }, async (serving) => {
    const { cache, engine, t } = serving;
    const prompts = [promptOf(90), promptOf(90), promptOf(60), promptOf(33, 3), Int32Array.from([...promptOf(70), 5, 6, 7]), promptOf(1, 9)];
    const requests = [...prompts, ...prompts].map((tokens) => ({ tokens, maxNewTokens: 5, handOver: true }));
    const options = { cache, engine, prefillTokensPerStep: 32, minPendingTokens: Infinity };
    let hits = 0;
    for await (const outcome of runs[name](options, requests)) {
      const result = resultOf(outcome);
      if (result.cachedTokens > 0) hits += 1;
      assertHandedOver(serving, requests[outcome.index]!, result);
    }
    t.true(hits >= 5, `${hits} hits`);
  });

  sideTests(`${name}: a request hands over what it names, carries what it needs, and nothing unless it asks`, {}, async ({ t, cache, engine }) => {
    const tokens = promptOf(40);
    const ask = async (request: Partial<GenerationRequest>): Promise<GenerationResult> =>
      resultOf((await collect(runs[name]({ cache, engine }, [{ tokens, maxNewTokens: 2, ...request }])))[0]);
    const plain = await ask({});
    t.is(plain.side, undefined);
    t.is(cache.sideCounts().leasedSlots, 0);
    const one = await ask({ handOver: ['feature'] });
    t.deepEqual(one.side!.names, ['feature']);
    one.side!.close();
    const narrow = await ask({ needs: ['hidden'], handOver: true, salt: 'another' });
    t.deepEqual(narrow.side!.names, ['hidden']);
    narrow.side!.close();
    t.is((await ask({ salt: 'another' })).cachedTokens, 0, 'its feature was never written');
    t.is((await ask({ salt: 'another', needs: [] })).cachedTokens, 40);
  });

  sideTests(`${name}: a request waits while hand-overs keep all side slots, and starts when one is closed`, { slots: 1, handOverSlots: 1 }, async (serving) => {
    const { t, cache, engine } = serving;
    const request = (key: number): GenerationRequest => ({ tokens: promptOf(30, key), maxNewTokens: 2, handOver: true });
    const results: GenerationResult[] = [];
    const finished = (async () => {
      for (const key of [1, 2, 3]) results.push(resultOf((await collect(runs[name]({ cache, engine }, [request(key)])))[0]));
    })();
    for (let turns = 0; turns < 20 || results.length < 2; turns += 1) await turn();
    t.is(results.length, 2, 'the third waits');
    results[0]!.side!.close();
    await finished;
    for (const { side } of results) side!.close();
  });

  sideTests(`${name}: a request waits for pages of side tensors that a hand-over keeps`, { sideBudgetBytes: 12 * 64 * 1024, slots: 3 }, async (serving) => {
    const { t, cache, engine } = serving;
    const held = resultOf((await collect(runs[name]({ cache, engine }, [{ tokens: promptOf(100), maxNewTokens: 1, handOver: true }])))[0]);
    const request = { tokens: promptOf(110, 2), maxNewTokens: 20, handOver: true };
    let isOver = false;
    const waiting = collect(runs[name]({ cache, engine }, [request])).finally(() => { isOver = true; });
    for (let turns = 0; turns < 20; turns += 1) await turn();
    t.false(isOver);
    held.side!.close();
    assertHandedOver(serving, request, resultOf((await waiting)[0]));
  });

  sideTests(`${name}: a request whose side rows can never fit the budget is refused by name`, { sideBudgetBytes: 4 * 64 * 1024 }, async ({ t, cache, engine }) => {
    const run = async (): Promise<unknown> => resultOf((await collect(runs[name]({ cache, engine }, [{ tokens: promptOf(200), maxNewTokens: 1 }])))[0]);
    await refusesAsync(t, run(), 'KV_OUT_OF_PAGES', { sideTensor: 'hidden' });
    const [outcome] = await collect(runs[name]({ cache, engine }, [{ tokens: promptOf(200), maxNewTokens: 1, needs: [] }]));
    assertAnswer(t, { tokens: promptOf(200), maxNewTokens: 1 }, resultOf(outcome));
  });

  sideTests(`${name}: what fits an empty side budget fits a full one, also where the page is cached in which its text ends`, { sideBudgetBytes: 4 * 64 * 1024 }, async (serving) => {
    const { cache, engine } = serving;
    for (const tokens of [promptOf(40), promptOf(40), promptOf(44), promptOf(40, 2), Int32Array.from([...promptOf(38), 1, 1])]) {
      const request = { tokens, maxNewTokens: 3, handOver: true };
      for await (const outcome of runs[name]({ cache, engine }, [request])) assertHandedOver(serving, request, resultOf(outcome));
    }
  });
}

sideTests('a stream hands over rows by position as it grows, from its admission on', { isAsync: true }, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine });
  const request = { tokens: promptOf(50), maxNewTokens: 30, handOver: true };
  const stream = scheduler.submit(request);
  t.is(stream.side, undefined, 'it waits');
  const text = [...request.tokens];
  let at = 0;
  for await (const token of stream) {
    const side = stream.side!;
    t.true(side.tokens >= text.length && side.tokens > at);
    t.is(wrongRows(side, [...text, token], text.length, cache), 0);
    t.is(side.rows('feature', at, side.tokens).length, (side.tokens - at) * 24);
    at = side.tokens;
    text.push(token);
  }
  const result = await stream.result;
  t.is(result.side, stream.side);
  assertHandedOver(serving, request, result);
  await scheduler.close();
});

sideTests('a stream that is preempted and resumed hands over the same rows at the same positions', { isAsync: true, slots: 1 }, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine });
  const request = { tokens: promptOf(70), maxNewTokens: 12, handOver: true };
  const stream = scheduler.submit(request);
  await stream.next();
  const first = stream.side!;
  const before = first.rows('hidden', 0, 70).slice();
  const urgent = { tokens: promptOf(30, 4), maxNewTokens: 2, urgency: 9, handOver: true };
  const other = scheduler.submit(urgent);
  const otherResult = await other.result;
  t.true(first.isClosed, 'what it held was wanted');
  assertHandedOver(serving, urgent, otherResult);
  const result = await stream.result;
  t.is(result.preemptions, 1);
  t.not(result.side, first);
  t.deepEqual(result.side!.rows('hidden', 0, 70), before);
  assertHandedOver(serving, request, result);
  await scheduler.close();
});

sideTests('running requests that lack pages of side tensors are preempted in order, and all are answered', {
  isAsync: true, slots: 4, sideBudgetBytes: 12 * 64 * 1024,
}, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine });
  const requests = [1, 2, 3, 4].map((key) => ({ tokens: promptOf(30, key), maxNewTokens: 60, handOver: true }));
  const streams = requests.map((request) => scheduler.submit(request));
  await Promise.all(streams.map(async (stream, index) => { assertHandedOver(serving, requests[index]!, await stream.result); }));
  t.true(scheduler.totals.preemptions > 0);
  await scheduler.close();
});

sideTests('cancelled, late and closed requests leave no lease, whatever they were doing', { isAsync: true, slots: 3 }, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 16 });
  const submit = (key: number, more: Partial<GenerationRequest> = {}) =>
    scheduler.submit({ tokens: promptOf(60, key), maxNewTokens: 40, handOver: true, ...more });
  const controller = new AbortController();
  const cancelled = [submit(1), submit(2, { signal: controller.signal }), submit(3), submit(4), submit(5, { deadlineMs: 0 })];
  await turn();
  cancelled[0]!.cancel(); // in the middle of its prompt
  await cancelled[2]!.next();
  const { side } = cancelled[2]!;
  t.true(side!.tokens >= 60);
  await cancelled[2]!.return();
  controller.abort();
  const last = submit(6);
  await last.next();
  await scheduler.close();
  for (const stream of [...cancelled, last]) {
    await t.throwsAsync(stream.result);
    t.is(stream.side, undefined);
  }
  t.true(side!.isClosed);
  t.is(cache.sideCounts().leasedSlots, 0);
});

const aborts: Readonly<Record<string, (stream: TokenStream, controller: AbortController) => void>> = {
  cancelled: (stream) => { stream.cancel(); },
  'aborted by its signal': (_stream, controller) => { controller.abort(); },
};
for (const [how, abort] of Object.entries(aborts)) {
  // Of a prompt of 60 tokens: passes of 16, then of an answer's token each.
  for (const [pass, before, behind] of [[1, 0, 16], [2, 16, 32], [4, 48, 60], [6, 61, 62]] as const) {
    for (const isFailing of [false, true]) {
      const found = isFailing ? before : behind;
      const engineDoes = isFailing ? 'fails then' : 'answers all the same';
      sideTests(`of a request ${how} inside pass ${pass}, which ${engineDoes}, ${before} tokens are found in the pass and ${found} behind it, with their rows`, {}, async ({ t, cache }) => {
        const controller = new AbortController();
        const request = { tokens: promptOf(60), maxNewTokens: 8, handOver: true, signal: controller.signal };
        const text = [...request.tokens, ...expectedTokens(request.tokens, 8)];
        const lookups = (): number[] => [undefined, [], ['hidden'], ['feature']].map((needs) => cache.prefixes.lookup({ tokens: text, needs }).cachedTokens);
        let passes = 0;
        const pause = async (): Promise<void> => {
          passes += 1;
          await turn();
          if (passes !== pass) return;
          abort(stream, controller);
          t.deepEqual(lookups(), [before, before, before, before]);
          await turn();
          if (isFailing) throw new Error('the engine gave up');
        };
        const engine = new SideEngine({ cache, pause });
        const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 16 });
        const stream = scheduler.submit(request);
        await t.throwsAsync(stream.result, { code: 'KV_ABORTED' });
        await scheduler.close();
        t.is(passes, pass);
        t.deepEqual(lookups(), [found, found, found, found]);
        const again = cache.acquire({ tokens: text, caching: 'read' });
        t.is(again.cachedTokens, found);
        const handOver = again.handOver();
        t.is(wrongRows(handOver, text, found, cache), 0);
        handOver.close();
        again.release();
        assertSideQuiet(t, cache, engine);
      });
    }
  }
}

sideTests('of a request that is cancelled before its first pass nothing is found', { slots: 1, isAsync: true }, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine });
  const first = { tokens: promptOf(40), maxNewTokens: 4, handOver: true };
  const [running, waiting] = [scheduler.submit(first), scheduler.submit({ ...first, tokens: promptOf(60, 2) })];
  waiting.cancel();
  await t.throwsAsync(waiting.result, { code: 'KV_ABORTED' });
  assertHandedOver(serving, first, await running.result);
  t.is(cache.prefixes.lookup({ tokens: promptOf(60, 2), needs: [] }).cachedTokens, 0);
  await scheduler.close();
});

sideTests('a hand-over that is read while the request runs may be closed early', { isAsync: true }, async (serving) => {
  const { t, cache, engine } = serving;
  const scheduler = new OnlineScheduler({ cache, engine });
  const request = { tokens: promptOf(40), maxNewTokens: 6, handOver: true };
  const stream = scheduler.submit(request);
  await stream.next();
  stream.side!.close();
  const result = await stream.result;
  assertAnswer(t, request, result);
  t.true(result.side!.isClosed);
  await scheduler.close();
});

sideTests('results of a run that is left early are closed', { isAsync: true }, async ({ t, cache, engine }) => {
  const requests = [1, 2, 3, 4].map((key) => ({ tokens: promptOf(20, key), maxNewTokens: 1, handOver: true }));
  for await (const outcome of new OfflineScheduler({ cache, engine }).run(requests)) {
    resultOf(outcome).side!.close(); // the others ended in the same step
    break;
  }
  t.is(cache.sideCounts().leasedSlots, 0);
});

const wrongAnswers: Readonly<Record<string, Spoil>> = {
  'another width': (side) => ({ ...side, hidden: side['hidden']!.subarray(1) }),
  'another row count': (side) => ({ ...side, feature: side['feature']!.subarray(24) }),
  'another dtype': (side) => ({ ...side, hidden: new Uint16Array(side['hidden']!.length) }),
  'a name that the cache lacks': (side) => ({ ...side, hiden: side['hidden']! }),
  'no object': () => 7,
  'a getter that throws': () => ({ get hidden() { throw new Error('gone'); } }),
};
for (const [what, spoil] of Object.entries(wrongAnswers)) {
  sideTests(`side rows of ${what} fail the requests of their pass, and the rest of the step goes on`, {}, async (serving) => {
    const { t, cache, engine } = serving;
    const scheduler = new OnlineScheduler({ cache, engine });
    const good = { tokens: promptOf(40), maxNewTokens: 12, handOver: true };
    const stream = scheduler.submit(good);
    await stream.next();
    engine.spoil = (side, call) => (call === 'prefill' ? spoil(side, call) : side);
    const bad = scheduler.submit({ tokens: promptOf(50, 2), maxNewTokens: 3, handOver: true });
    const error = await t.throwsAsync(bad.result, { code: 'KV_ENGINE_FAILED' });
    t.truthy(error.cause);
    t.is(cache.prefixes.lookup({ tokens: promptOf(50, 2), needs: [] }).cachedTokens, 0, 'nothing of the pass counts');
    engine.spoil = (side) => side;
    assertHandedOver(serving, good, await stream.result);
    const again = { tokens: promptOf(50, 2), maxNewTokens: 3, handOver: true };
    assertHandedOver(serving, again, await scheduler.submit(again).result);
    await scheduler.close();
  });
}

sideTests('a name that a pass leaves out ends what is cached and handed over of that tensor, and fails nothing', {}, async (serving) => {
  const { t, cache, engine } = serving;
  let passes = 0;
  engine.spoil = (side) => ((passes += 1) === 2 ? { feature: side['feature']! } : side);
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 16 });
  const request = { tokens: promptOf(60), maxNewTokens: 4, handOver: true };
  const result = await scheduler.submit(request).result;
  assertAnswer(t, request, result);
  t.is(result.side!.tokens, 16);
  t.is(wrongRows(result.side, promptOf(60), 16, cache), 0);
  result.side!.close();
  t.is(cache.prefixes.lookup({ tokens: promptOf(60) }).cachedTokens, 16);
  t.is(cache.prefixes.lookup({ tokens: promptOf(60), needs: ['feature'] }).cachedTokens, 60);
  assertHandedOver(serving, request, await scheduler.submit(request).result);
  await scheduler.close();
});
