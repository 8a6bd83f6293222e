// Promotions end when their signal, their deadline or their cache does, whatever a tier does that never answers.

import { getEventListeners } from 'node:events';

import test from 'ava';

import { drivers, type CacheBench } from '../../helpers/cache.js';
import { deadlineMs } from '../../helpers/patient.js';
import { dropFromDevice, turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';

const tokens = 40 * 16;

function never<T>(): Promise<T> {
  return new Promise(() => { /* no answer */ });
}

/** One in which others store too. */
class SharedTier extends PlainTier {
  answer = (): Promise<number> => Promise.resolve(0);

  find(): Promise<number> {
    return this.answer();
  }
}

/** Text that the tier alone has. */
async function store(bench: CacheBench): Promise<void> {
  serve(bench, textOf(tokens), 3);
  await bench.cache.prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
}

for (const on of drivers) {
  for (const what of ['cache.close', 'tiers.close'] as const) {
    test(`hints, promotions and those that wait for their turn end with ${what} (${on})`, async (t) => {
      const tier = new PlainTier('mine');
      const signals: (AbortSignal | undefined)[] = [];
      const bench = benchOf(t, [tier], { on });
      await store(bench);
      const { prefixes } = bench.cache;
      tier.get = (_key, _payload, signal?: AbortSignal) => {
        signals.push(signal);
        return never();
      };
      const hints = [prefixes.prefetch({ tokens: textOf(tokens) }), prefixes.prefetch({ tokens: textOf(tokens) })];
      const promotion = prefixes.promote({ tokens: textOf(tokens), deadlineMs: 2 ** 40 });
      await turn();
      t.is(signals.length, 16);
      if (what === 'cache.close') bench.cache.close();
      else await prefixes.tiers!.close();
      for (const ended of await Promise.all([...hints, promotion])) t.like(ended, { cachedTokens: 0, promotedTokens: 0, end: 'aborted' });
      t.true(signals.every((signal) => signal?.aborted === true), 'the tier is told');
      bench.close();
    });
  }
}

test('a tier that never says what others have stored there ends with the signal, the deadline and the cache', async (t) => {
  const tier = new SharedTier('mine');
  const bench = benchOf(t, [tier]);
  await store(bench);
  const { prefixes } = bench.cache;
  tier.answer = never;
  const longer = { tokens: textOf(tokens + 32) };
  const cancel = new AbortController();
  const cancelled = prefixes.promote({ ...longer, signal: cancel.signal });
  await turn();
  cancel.abort();
  t.is((await cancelled).end, 'aborted');
  t.is((await prefixes.promote({ ...longer, deadlineMs: 1 })).end, 'deadline');
  t.is(getEventListeners(cancel.signal, 'abort').length, 0);
  const hint = prefixes.prefetch(longer);
  await turn();
  await prefixes.tiers!.close();
  t.is((await hint).end, 'aborted');
  await close(bench);
});

test('however a promotion ends, it leaves no listener on its signal', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier]);
  await store(bench);
  const { prefixes } = bench.cache;
  const { signal } = new AbortController();
  const ends: string[] = [];
  const promote = async (deadlineMs?: number): Promise<void> => {
    ends.push((await prefixes.promote({ tokens: textOf(tokens), signal, deadlineMs })).end);
  };
  await promote(deadlineMs);
  await promote(); // all is there
  dropFromDevice(bench.cache);
  const { get } = tier;
  tier.get = never;
  await promote(1);
  tier.get = () => Promise.reject(new Error('mine'));
  await promote(deadlineMs);
  tier.get = get;
  bench.fail('cuCtxPushCurrent', 1);
  await promote(deadlineMs).catch(() => { ends.push('refused'); });
  bench.forgiveAll();
  t.deepEqual(ends, ['complete', 'complete', 'deadline', 'unreachable', 'refused']);
  t.is(getEventListeners(signal, 'abort').length, 0);
  await close(bench);
});
