// The option `prefixCache.policy`: what is no policy is refused when the cache is opened, and nothing stays open then.

import test from 'ava';

import { KvCache, lru, type EvictionPolicyFactory } from 'virtual-kv';

import { assertNothingLeft, cacheOptions, openDriver } from '../../helpers/cache.js';
import { refuses } from '../../helpers/refuses.js';

const notToday = new Error('not today');
const broken: Readonly<Record<string, { readonly policy: EvictionPolicyFactory; readonly thrown?: Error }>> = {
  'returns nothing': { policy: () => undefined as never },
  'returns a policy without `victim`': {
    policy: () => ({ add: () => undefined, remove: () => undefined, split: () => undefined }) as never,
  },
  throws: {
    policy: () => {
      throw notToday;
    },
    thrown: notToday,
  },
};

for (const [what, { policy, thrown }] of Object.entries(broken)) {
  for (const on of ['mock', 'host'] as const) {
    test(`a policy that ${what} leaves nothing open (${on})`, (t) => {
      const { driver, device } = openDriver({ on });
      const open = (): unknown => new KvCache({ ...cacheOptions({ on }, driver), prefixCache: { policy } });
      if (thrown === undefined) refuses(t, open, 'KV_INVALID_OPTION', { option: 'prefixCache.policy', isReturned: true });
      else t.throws(open, { is: thrown });
      assertNothingLeft(t, driver, device);
    });
  }
}

test('a policy hears what each request asked, what of it was new, and how long its answer was', (t) => {
  const told: object[] = [];
  const { driver, device } = openDriver({});
  const cache = new KvCache({
    ...cacheOptions({ slots: 2 }, driver),
    prefixCache: {
      policy: (context) => {
        const policy = lru()(context);
        return {
          add: (node) => { policy.add(node); },
          remove: (node) => { policy.remove(node); },
          split: (upper, lower) => { policy.split(upper, lower); },
          victim: () => policy.victim(),
          observe: (_node, tokens, request) => { told.push({ tokens, ...request }); },
        };
      },
    },
  });
  const batch = cache.createBatch();
  const speak = (prompt: readonly number[], answer: readonly number[]): void => {
    const sequence = cache.acquire({ tokens: prompt });
    if (answer.length > 0) sequence.append(Int32Array.from(answer));
    batch.clear();
    batch.add(sequence, prompt.length + answer.length - sequence.length);
    cache.prepare(batch);
    cache.commit(batch);
    sequence.release();
  };
  const prompt = Array.from({ length: 40 }, (_, token) => token);
  speak(prompt, [500, 501, 502]);
  speak([...prompt, 500, 501, 502, 600, 601], []);
  t.deepEqual(told, [
    { tokens: 43, promptTokens: 40, newTokens: 40, answerTokens: 3 },
    { tokens: 45, promptTokens: 45, newTokens: 2, answerTokens: 0 },
  ]);
  cache.close();
  assertNothingLeft(t, driver, device);
});

test('a clock of the prefix cache that returns no number stands still, and that is a late error', (t) => {
  const times: unknown[] = [5, NaN, 7, '8', undefined, Infinity];
  let at = 0;
  const { driver, device } = openDriver({});
  const cache = new KvCache({ ...cacheOptions({ slots: 2 }, driver), prefixCache: { policy: lru(), poolRows: 0, now: () => times[at] as number } });
  const batch = cache.createBatch();
  const seen = times.map((_, index) => {
    at = index;
    const tokens = Array.from({ length: 100 }, (_unused, token) => 1_000 * index + token);
    const sequence = cache.acquire({ tokens });
    batch.clear();
    batch.add(sequence, 100);
    cache.prepare(batch);
    cache.commit(batch);
    sequence.release();
    const explanation = cache.prefixes.explain({ tokens });
    return explanation.reason === 'evicted' ? explanation.atMs : explanation.reason;
  });
  t.deepEqual(seen, [5, 5, 7, 7, 7, 7]);
  t.is(cache.metrics.lateErrors, 4);
  cache.close();
  assertNothingLeft(t, driver, device);
});
