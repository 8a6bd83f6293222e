// A policy is asked in the middle of a call. Whatever it does then (calls the cache, changes the batch, throws, answers nonsense),
// nothing is left half changed.

import test from 'ava';

import {
  lru, onDemand, type Batch, type EvictionContext, type KvCache, type KvCacheOptions, type Sequence,
} from 'virtual-kv';

import { CacheBench, rowTokens, withCache } from '../helpers/cache.js';
import { Speaker, tokensOf } from './prefix/spoken.js';

type Act = () => void;

/** Where policies are asked: `act` is called first thing. */
const askedFor: Readonly<Record<string, (act: Act) => Partial<KvCacheOptions>>> = {
  'growth': (act) => ({ growth: (length) => (act(), onDemand()(length, 0)) }),
  'prefixCache.policy': (act) => ({
    prefixCache: {
      policy: (context: EvictionContext) => {
        const policy = lru()(context);
        return { ...methodsOf(policy), victim: () => (act(), policy.victim()) };
      },
    },
  }),
  'prefixCache.now': (act) => ({ prefixCache: { now: () => (act(), 0) } }),
};

function methodsOf(policy: ReturnType<ReturnType<typeof lru>>) {
  return {
    add: (node: number) => { policy.add(node); },
    remove: (node: number) => { policy.remove(node); },
    split: (upper: number, lower: number) => { policy.split(upper, lower); },
  };
}

interface Around {
  readonly cache: KvCache;
  readonly batch: Batch;
  readonly other: Batch;
  readonly sequence: Sequence;
}

const calls: Readonly<Record<string, (around: Around) => unknown>> = {
  'acquire': ({ cache }) => cache.acquire(),
  'release': ({ sequence }) => { sequence.release(); },
  'fork': ({ sequence }) => sequence.fork(),
  'truncate': ({ sequence }) => { sequence.truncate(0); },
  'append': ({ sequence }) => { sequence.append(1); },
  'keepValue': ({ sequence }) => sequence.keepValue(1),
  'prepare': ({ cache, other }) => { cache.prepare(other); },
  'commit': ({ cache, batch }) => { cache.commit(batch); },
  'discard': ({ cache, batch }) => { cache.discard(batch); },
  'completeStep': ({ cache }) => { cache.completeStep(1); },
  'counts': ({ cache }) => cache.counts(),
  'verify': ({ cache }) => { cache.verify(); },
  'lookup': ({ cache }) => cache.prefixes.lookup({ tokens: [1, 2] }),
  'reset': ({ cache }) => cache.prefixes.reset({ preempt: true }),
  'close': ({ cache }) => { cache.close(); },
  'setBudget': ({ cache }) => { cache.pool.setBudget(1); },
  'trim': ({ cache }) => { cache.pool.trim(); },
};

/** Runs what asks every kind of policy, one after the other: texts that come and go in too little memory. */
function busyWork(speaker: Speaker, around: Around): void {
  const { cache, batch, sequence } = around;
  for (let round = 0; round < 4; round += 1) {
    speaker.say(tokensOf(round, 2 * rowTokens)).release();
    cache.acquire({ promptTokens: rowTokens, caching: 'off' }).release();
    cache.prefixes.explain({ tokens: tokensOf(round, 10) });
    batch.clear();
    batch.add(sequence, rowTokens);
    cache.prepare(batch);
    cache.commit(batch);
  }
}

function around(bench: CacheBench): Around {
  const { cache } = bench;
  const sequence = cache.acquire();
  const [batch, other] = [cache.createBatch(), cache.createBatch()];
  other.add(sequence, 1);
  return { cache, batch, other, sequence };
}

for (const [policy, optionsOf] of Object.entries(askedFor)) {
  test(`what \`${policy}\` calls of the cache while it decides is refused, and changes nothing`, async (t) => {
    let act: Act | undefined;
    let asked = 0;
    const options = optionsOf(() => {
      asked += 1;
      act?.();
    });
    await withCache(t, { rows: 6, slots: 3, ...options }, (bench) => {
      const given = around(bench);
      const names = Object.keys(calls);
      act = () => {
        const name = names[asked % names.length]!;
        t.throws(() => calls[name]!(given), { code: 'KV_POLICY_REENTRY' }, name);
        t.true(bench.cache.pool.counts().createdPages >= 0, 'looking at the pool is allowed');
      };
      for (let round = 0; asked < names.length; round += 1) {
        t.true(round < 100, `asked only ${asked} times`);
        busyWork(new Speaker(bench.cache), given);
        given.sequence.truncate(0);
      }
      t.is(given.sequence.length, 0);
      t.is(bench.cache.metrics.lateErrors, 0);
    });
  });

  test(`a \`${policy}\` that throws leaves all counts right, and the next call goes on`, async (t) => {
    let isThrowing = false;
    let thrown = 0;
    const options = optionsOf(() => {
      if (!isThrowing) return;
      thrown += 1;
      throw new Error('on purpose');
    });
    await withCache(t, { rows: 6, slots: 3, ...options }, (bench) => {
      const given = around(bench);
      const speaker = new Speaker(bench.cache);
      busyWork(speaker, given);
      isThrowing = true;
      for (let round = 0; round < 3; round += 1) {
        given.sequence.truncate(0);
        try {
          busyWork(speaker, given);
        } catch (error) {
          t.is((error as Error).message, 'on purpose');
        }
        if (given.batch.isPrepared) bench.cache.discard(given.batch);
        bench.cache.verify();
      }
      t.true(thrown > 0);
      isThrowing = false;
      given.sequence.truncate(0);
      busyWork(speaker, given);
    });
  });
}

test('a policy that is asked while a batch is prepared cannot change the batch', async (t) => {
  let act: Act | undefined;
  const policy = (context: EvictionContext) => {
    const own = lru()(context);
    return { ...methodsOf(own), remove: (node: number) => (act?.(), own.remove(node)), victim: () => own.victim(), withholds: () => true };
  };
  await withCache(t, { prefixCache: { policy } }, (bench) => {
    const { cache } = bench;
    const prompt = tokensOf(1, 3 * rowTokens);
    const speaker = new Speaker(cache);
    const [one, other] = [cache.acquire({ tokens: prompt, reserve: 'none' }), cache.acquire({ tokens: prompt, reserve: 'none' })];
    speaker.compute(one, prompt, prompt.length);
    one.release(); // its text is withheld
    speaker.compute(other, prompt, rowTokens); // of the same text, which the index hears of when more is prepared
    const batch = bench.batchOf([other, rowTokens]);
    const refused: string[] = [];
    act = () => { refused.push(t.throws(() => { batch.clear(); }, { code: 'KV_BATCH_STATE' }).message); };
    cache.prepare(batch);
    act = undefined;
    t.true(refused.length > 0);
    cache.commit(batch);
    t.is(other.length, 2 * rowTokens);
  });
});
