// What a long queue costs, counted in calls of the scheduler's order: nothing for a request that cannot run, little more than linear
// for a burst. And orders of every kind, which the queue must follow.

import test from 'ava';

import { byArrival, byTenantShare, OnlineScheduler, type KvCache, type RequestOrder, type TokenStream } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { ChangeSignal } from '#internal/device/wait.js';
import { checkedClock } from '#internal/serving/scheduler-options.js';
import { Generation } from '#internal/serving/generation.js';
import { noTotals, OpenRequests } from '#internal/serving/open-requests.js';
import { ServingTimes } from '#internal/serving/serving-times.js';
import { readRequest } from '#internal/serving/request.js';
import { refusesAsync } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { turn } from './pattern-engine.js';
import { promptOf, servingTests } from './serving-bench.js';
import { SteppedClock } from './stepped-clock.js';
import { sampled } from '../runner/tier.js';

/** An order that counts its calls. */
function counting(order: RequestOrder): { readonly order: RequestOrder; asked: number } {
  const counter = {
    asked: 0,
    order: ((a, b) => {
      counter.asked += 1;
      return order(a, b);
    }) as RequestOrder,
  };
  return counter;
}

const orders = { byArrival, byTenantShare } as const;

for (const [name, make] of Object.entries(orders)) {
  servingTests(`a queued request that cannot run costs a step nothing (${name})`, { slots: 1 }, async ({ t, cache, engine }) => {
    const perStep = async (queued: number): Promise<number> => {
      const counter = counting(make());
      const scheduler = new OnlineScheduler({ cache, engine, order: counter.order, maxWaiting: queued, ...new SteppedClock().options });
      const running = scheduler.submit({ tokens: promptOf(30), maxNewTokens: 60 });
      await running.next();
      const { signal } = new AbortController();
      for (let key = 1; key <= queued; key += 1) {
        void scheduler.submit({ tokens: [key % 60], maxNewTokens: 1, tenant: `tenant ${key % 50}`, deadlineMs: 1e6, signal }).result.catch(() => {});
      }
      for (let tokens = 0; tokens < 5; tokens += 1) await running.next();
      const { steps } = scheduler.totals;
      counter.asked = 0;
      for (let tokens = 0; tokens < 20; tokens += 1) await running.next();
      const asked = counter.asked / (scheduler.totals.steps - steps);
      await scheduler.close();
      return asked;
    };
    const [few, many] = [await perStep(20), await perStep(2_000)];
    t.true(many <= few + 12, `${few} and ${many} comparisons in a step`);
  });
}

for (const name of sampled(['cancel', 'signals', 'one signal', 'deadlines'] as const, 4)) {
  servingTests(`ending many queued requests in one turn does not call the order: ${name}`, { slots: 1 }, async ({ t, cache, engine }) => {
    const counter = counting(byArrival());
    const clock = new SteppedClock();
    const scheduler = new OnlineScheduler({ cache, engine, order: counter.order, maxWaiting: 10_000, ...clock.options });
    const running = scheduler.submit({ tokens: promptOf(30), maxNewTokens: 60 });
    await running.next();
    const controllers = Array.from({ length: 3_000 }, () => new AbortController());
    const streams: TokenStream[] = controllers.map(({ signal }) => scheduler.submit({
      tokens: [1], maxNewTokens: 1, signal: name === 'one signal' ? controllers[0]!.signal : signal, deadlineMs: 1_000,
    }));
    await running.next();
    await running.next();
    counter.asked = 0;
    if (name === 'cancel') for (const stream of streams) stream.cancel();
    else if (name === 'deadlines') clock.advance(1_000);
    else for (const controller of controllers) controller.abort();
    t.is(counter.asked, 0);
    t.is(scheduler.waitingRequests, 0);
    const code = name === 'deadlines' ? 'KV_DEADLINE_EXCEEDED' : 'KV_ABORTED';
    for (const { result } of streams) await t.throwsAsync(result, { code });
    t.is(clock.alarms, 0);
    await scheduler.close();
  });
}

servingTests('requests that come and go while the engine computes leave nothing behind', { slots: 1 }, async ({ t, cache, engine }) => {
  let answer = (): void => {};
  let isComputing = false;
  const held = { vocabularyTokens: engine.vocabularyTokens, decode: engine.decode.bind(engine), prefill: async () => new Promise<never>((_, reject) => {
    answer = () => { reject(new Error('enough')); };
    isComputing = true;
  }) };
  const scheduler = new OnlineScheduler({ cache, engine: held, maxWaiting: 1 });
  const first = scheduler.submit({ tokens: promptOf(30), maxNewTokens: 1 });
  while (!isComputing) await turn(); // it has begun to run some turns before, where its pages take long to map
  for (let round = 0; round < 1_000; round += 1) {
    const stream = scheduler.submit({ tokens: [1], maxNewTokens: 1, tenant: `tenant ${round}` });
    stream.cancel();
    await t.throwsAsync(stream.result, { code: 'KV_ABORTED' });
  }
  t.is(scheduler.waitingRequests, 0);
  answer();
  await t.throwsAsync(first.result, { code: 'KV_ENGINE_FAILED' });
});

/** Open requests without a scheduler. */
function bookOf(order: RequestOrder): { readonly book: OpenRequests; readonly add: (tenant: string, urgency: number) => Generation } {
  const clock = checkedClock(() => 0, () => () => {});
  const book: OpenRequests = new OpenRequests({ times: new ServingTimes(),
    order, clock, totals: noTotals(), onPrompt: () => {}, onFollower: () => {}, onOver: (generation, error) => { book.fail(generation, error); }, onFailure: (error) => { throw error; },
  });
  let arrival = 0;
  const add = (tenant: string, urgency: number): Generation => {
    const request = readRequest('test', { tokens: [1], maxNewTokens: 1, tenant, urgency }, { vocabularyTokens: 61, sideTensors: [], canSelect: false, reads: [], keepsPrefixes: true });
    const generation = new Generation({ cache: {} as KvCache, request, arrival: arrival += 1, nowMs: 0, listener: { done: () => {}, failed: () => {} } });
    book.expect(generation);
    book.enqueue(generation);
    return generation;
  };
  return { book, add };
}

for (const [name, make] of Object.entries({
  ...orders, 'the most computed first': (): RequestOrder => (a, b) => b.tenantTokens - a.tenantTokens || a.arrival - b.arrival,
})) {
  const seed = seedOf(`queue-${name}`);
  test(`while requests come, end, are blocked and are computed, the first one is that of the order: ${name} (seed ${seed})`, (t) => {
    const random = new Random(seed);
    const order = make();
    const { book, add } = bookOf(order);
    const { waiting } = book;
    const open = new Set<Generation>();
    const blocked = new Set<Generation>();
    for (let round = 0; round < 20_000; round += 1) {
      const action = random.integer(6);
      if (action <= 1 && open.size < 60) open.add(add(`tenant ${random.integer(7)}`, random.integer(3)));
      waiting.beginStep();
      const withBlocked = random.chance(0.5);
      const candidates = [...open].filter((one) => withBlocked || !blocked.has(one));
      const first = waiting.first(withBlocked);
      t.is(first, candidates.sort(order)[0]);
      t.is(waiting.length, open.size);
      t.is(waiting.urgency, Math.max(-1, ...[...open].map(({ urgency }) => urgency)));
      const some = [...open][random.integer(open.size)];
      if (action === 2 && some !== undefined) {
        book.fail(some, new Error('enough'));
        open.delete(some);
        blocked.delete(some);
      } else if (action === 3 && first !== undefined && !blocked.has(first)) {
        waiting.block(first);
        blocked.add(first);
      } else if (action === 4 && some !== undefined) {
        some.share!.tokens += random.integer(5);
        waiting.reorder(some.share!);
      } else if (action === 5 && random.chance(0.3)) {
        waiting.unblock();
        blocked.clear();
      }
    }
  });
}

test('a new tenant starts at the least share of all tenants', (t) => {
  const { book, add } = bookOf(byTenantShare());
  const random = new Random(seedOf('shares'));
  const open: Generation[] = [];
  for (let round = 0; round < 3_000; round += 1) {
    const least = open.length === 0 ? 0 : Math.min(...open.map(({ tenantTokens }) => tenantTokens));
    const generation = add(`tenant ${round}`, 0);
    t.is(generation.tenantTokens, least);
    open.push(generation);
    book.waiting.beginStep();
    const grown = open[random.integer(open.length)]!;
    grown.share!.tokens += random.integer(100);
    book.waiting.reorder(grown.share!);
    if (open.length > 40) book.fail(open.splice(random.integer(open.length), 1)[0]!, new Error('enough'));
  }
});

for (const wrong of [Number.NaN, undefined, 'first', 1n]) {
  servingTests(`an order that answers ${typeof wrong} ${String(wrong)} ends the requests with an error that says so`, {}, async ({ t, cache, engine }) => {
    const scheduler = new OnlineScheduler({ cache, engine, order: (() => wrong) as never });
    const streams = [0, 1].map((key) => scheduler.submit({ tokens: promptOf(30, key), maxNewTokens: 3 }));
    for (const { result } of streams) await refusesAsync(t, result, 'KV_INVALID_OPTION', { option: 'order' });
    await scheduler.close();
  });
}

servingTests('an order that throws in the middle loses no request', {}, async ({ t, cache, engine }) => {
  const seed = seedOf('throwing-order');
  const random = new Random(seed);
  for (let round = 0; round < 30; round += 1) {
    let calls = 5 + random.integer(60);
    const scheduler = new OnlineScheduler({ cache, engine, order: (a, b) => {
      if (--calls === 0) throw new Error('undecided');
      return a.arrival - b.arrival;
    } });
    const streams = Array.from({ length: 12 }, (_, key) => scheduler.submit({ tokens: promptOf(10, key), maxNewTokens: 3, tenant: `tenant ${key % 3}` }));
    const ends = await Promise.allSettled(streams.map(({ result }) => result));
    for (const end of ends) {
      if (end.status !== 'rejected') continue;
      t.like(end.reason as Error, { code: 'KV_CALLBACK_FAILED', details: { option: 'order' }, cause: { message: 'undecided' } }, `seed ${seed}`);
    }
    await scheduler.close();
  }
});

test('a change wakes each waiting call once', (t) => {
  const signal = new ChangeSignal();
  const heard: number[] = [];
  signal.once(() => { heard.push(1); });
  signal.once(() => { heard.push(2); })();
  signal.once(() => { signal.once(() => { heard.push(4); }); heard.push(3); });
  signal.raise();
  t.deepEqual(heard, [1, 3]);
  signal.raise();
  signal.raise();
  t.deepEqual(heard, [1, 3, 4]);
});
