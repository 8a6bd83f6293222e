// Eviction policies that throw or return nonsense: the cache goes on with `lru`, says why once, and its records stay right.

import test from 'ava';

import { KvCache, lru, onDemand, priority, type EvictionPolicy, type EvictionPolicyFactory } from 'virtual-kv';

const model = { layers: 2, kvHeads: 1, headDim: 64, dtype: 'float32' } as const;
const textOf = (name: number, tokens: number): number[] => Array.from({ length: tokens }, (_, at) => 10_000 * name + at);

/** `lru` with some methods replaced. */
const altered = (change: (policy: EvictionPolicy) => Partial<EvictionPolicy>): EvictionPolicyFactory => (context) => {
  const policy = lru()(context);
  const plain: EvictionPolicy = {
    add: (node) => { policy.add(node); }, remove: (node) => { policy.remove(node); },
    split: (upper, lower) => { policy.split(upper, lower); }, victim: () => policy.victim(),
  };
  return { ...plain, ...change(plain) };
};
const fails = (): never => { throw new Error('mine'); };

const broken: Readonly<Record<string, EvictionPolicyFactory>> = {
  ...Object.fromEntries([undefined, null, NaN, 0.5, 1e9, Infinity, 0, 3, true, '1', {}].map((victim) => [
    `names ${typeof victim} ${String(victim)} as victim`, altered(() => ({ victim: () => victim as never })),
  ])),
  'throws in `victim`': altered(() => ({ victim: fails })),
  'throws in `victims`': altered(() => ({ victims: fails })),
  'names a node as victims that is none': altered(() => ({ victims: (leaves) => leaves.fill(1e9).length })),
  'names no node as victims': altered(() => ({ victims: (leaves) => leaves.fill(-1).length })),
  'counts more victims than there is room for': altered(() => ({ victims: (leaves) => leaves.length + 1 })),
  'counts half a victim': altered(() => ({ victims: () => 0.5 })),
  'counts its victims in words': altered(() => ({ victims: () => 'two' as never })),
  'throws in `add`': altered(() => ({ add: fails })),
  'throws in `remove`': altered(() => ({ remove: fails })),
  'throws in `split`': altered(() => ({ split: fails })),
  'throws in `observe`': altered(() => ({ observe: fails })),
  'throws in `floorTokens`': altered(() => ({ floorTokens: fails })),
  'throws in `withholds`': altered(() => ({ withholds: fails })),
  'withholds a number': altered(() => ({ withholds: () => 1 as never })),
  'names NaN as floor': altered(() => ({ floorTokens: () => NaN })),
  'forgets to remove': altered(() => ({ remove: () => {} })),
  'has a clock that returns NaN': priority({ lifetimeMs: () => 1_000, now: () => NaN }),
  'has a clock that throws': priority({ lifetimeMs: () => 1_000, now: fails }),
};

for (const [what, policy] of Object.entries(broken)) {
  for (const bound of [undefined, 4]) {
    test(`a policy that ${what} gives way to lru${bound === undefined ? '' : ', with a bound on the pool too'}`, (t) => {
      const cache = new KvCache({
        driver: 'host', model, slots: 4, maxTokens: 8_192, memoryBudgetBytes: 2 ** 21, pageBytes: 65_536, growth: onDemand(), mapper: 'off',
        prefixCache: { policy, poolRows: bound },
      });
      const batch = cache.createBatch();
      for (let request = 0; request < 12; request += 1) {
        const tokens = [...textOf(request % 3, 300), ...textOf(100 + request, 400)];
        const sequence = cache.acquire({ tokens });
        batch.clear();
        batch.add(sequence, tokens.length - sequence.length);
        cache.prepare(batch);
        cache.commit(batch);
        sequence.release();
        cache.verify();
      }
      t.true(cache.metrics.lateErrors <= 1, 'it is said once');
      cache.prefixes.reset();
      t.is(cache.counts().cachedRows, 0);
      cache.acquire({ promptTokens: 2_048 }).release(); // all of the budget
      cache.close();
    });
  }
}
