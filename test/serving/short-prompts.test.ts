// How the tokens of a step are shared between prompts, and what an order of one's own sees of requests.

import { NaiveScheduler, OfflineScheduler, OnlineScheduler, type GenerationRequest, type OrderedRequest, type RequestOrder } from 'virtual-kv';

import { PatternEngine } from './pattern-engine.js';
import { assertAnswer, collect, promptOf, servingTests } from './serving-bench.js';

/** Steps until a stream has its first token. */
async function stepsUntil(scheduler: OnlineScheduler, stream: AsyncIterator<number>): Promise<number> {
  await stream.next();
  return scheduler.totals.steps;
}

const long = (key: number): GenerationRequest => ({ tokens: promptOf(360, key), maxNewTokens: 2 });
const short = (key: number): GenerationRequest => ({ tokens: promptOf(4, key), maxNewTokens: 2 });
const options = { slots: 12, rows: 96 };

servingTests('a short prompt waits for no long one that came before it, whether that runs or waits', options, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 16 });
  const requests = [...[0, 1, 2, 3].map(long), short(4)];
  const streams = requests.map((request) => scheduler.submit(request));
  t.true(await stepsUntil(scheduler, streams[4]!) <= 2);
  for (const [at, stream] of streams.entries()) assertAnswer(t, requests[at]!, await stream.result);
  t.is(engine.largestPrefill, 16);
});

servingTests('a long prompt goes on beside short ones without end', options, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 16 });
  const stream = scheduler.submit(long(0));
  let isOver = false;
  const shorts = async (key: number): Promise<void> => {
    while (!isOver) await scheduler.submit({ ...short(key), caching: 'off' }).result;
  };
  const others = Promise.all([1, 2, 3, 4, 5, 6].map(shorts));
  t.true(await stepsUntil(scheduler, stream) <= 1 + Math.ceil(360 / 12));
  isOver = true;
  await others;
});

servingTests('with `shortPromptShare: 0`, and before a more urgent prompt, no short one passes', options, async ({ t, cache, engine }) => {
  for (const [shortPromptShare, urgency] of [[0, 0], [0.25, 1]] as const) {
    const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 16, shortPromptShare });
    const first = scheduler.submit({ ...long(0), caching: 'off', urgency });
    const stream = scheduler.submit({ ...short(1), caching: 'off' });
    t.true(await stepsUntil(scheduler, stream) >= Math.floor(360 / 16));
    await first.result;
  }
});

servingTests('lists of requests, for which nobody waits, are computed in large steps, and totals are sums in all schedulers', options, async ({ t, cache }) => {
  const requests = [0, 1, 2, 3].map((key) => ({ ...long(key), caching: 'off' as const }));
  for (const Scheduler of [NaiveScheduler, OfflineScheduler]) {
    const engine = new PatternEngine({ cache });
    const scheduler = new Scheduler({ cache, engine });
    for (const round of [1, 2]) {
      await collect(scheduler.run(requests));
      const { completedRequests, promptTokens, generatedTokens } = scheduler.totals;
      t.deepEqual({ completedRequests, promptTokens, generatedTokens }, { completedRequests: 4 * round, promptTokens: 1_440 * round, generatedTokens: 8 * round });
    }
    t.is(engine.largestPrefill, Scheduler === NaiveScheduler ? 360 : 1_440);
  }
});

const orders: Readonly<Record<string, (a: OrderedRequest, b: OrderedRequest) => number>> = {
  'the earliest deadline': (a, b) => a.deadlineAtMs - b.deadlineAtMs,
  'the most cached': (a, b) => b.cachedTokens - a.cachedTokens,
  'an adapter': (a, b) => Number(b.adapter === 'lora') - Number(a.adapter === 'lora'),
  'a value of its own': (a, b) => (b.orderValue as number) - (a.orderValue as number),
  'the latest': (a, b) => b.submittedMs - a.submittedMs,
};

for (const [name, compare] of Object.entries(orders)) {
  const order: RequestOrder = (a, b) => compare(a, b) || a.arrival - b.arrival;
  servingTests(`an order of one's own may put first: ${name}`, { slots: 1 }, async ({ t, cache, engine }) => {
    await new OnlineScheduler({ cache, engine }).submit({ tokens: promptOf(60, 9), maxNewTokens: 1 }).result;
    let nowMs = 0;
    const scheduler = new OnlineScheduler({ cache, engine, order, now: () => nowMs, timer: () => () => {} });
    const ends: number[] = [];
    const submit = (at: number, request: Partial<GenerationRequest>): Promise<unknown> => {
      nowMs += 1;
      return scheduler.submit({ tokens: promptOf(60, at), maxNewTokens: 3, orderValue: 0, ...request }).result.then(() => ends.push(at));
    };
    const running = submit(0, {});
    const wanted = { deadlineMs: 1_000, adapter: name === 'an adapter' ? 'lora' : undefined, orderValue: 7 };
    const tokens = name === 'the most cached' ? promptOf(60, 9) : promptOf(60, 3);
    await Promise.all([running, submit(1, {}), submit(2, {}), submit(3, { ...wanted, tokens })]);
    t.true(ends.indexOf(3) < ends.indexOf(1) && ends.indexOf(3) < ends.indexOf(2), ends.join());
  });
}
