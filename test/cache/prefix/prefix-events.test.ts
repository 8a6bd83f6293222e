// Events for routers: a router that applies them, and sees nothing else, knows what each cache has.

import * as diagnostics from 'node:diagnostics_channel';

import test, { type ExecutionContext } from 'ava';

import {
  prefixBlockKeys, type KvCache, type PrefixClearedEvent, type PrefixEvent, type PrefixRemovedEvent, type PrefixStoredEvent,
  type PromptOptions, type Sequence,
} from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { cacheTest, cacheTests, withCache, type CacheBench } from '../../helpers/cache.js';
import { seedOf } from '../../helpers/seed.js';
import { scale } from '../../runner/tier.js';

const names = ['prefix-stored', 'prefix-removed', 'prefix-cleared'] as const;

/** A router of one cache. */
class Router {
  readonly keys = new Set<string>();
  readonly events: { name: (typeof names)[number]; event: PrefixEvent }[] = [];
  readonly #t: ExecutionContext;
  readonly #cache: KvCache;
  readonly #subscriptions: (() => void)[] = [];
  #last: number | undefined;

  constructor(t: ExecutionContext, cache: KvCache) {
    this.#t = t;
    this.#cache = cache;
    for (const name of names) {
      const listen = (message: unknown): void => { this.#hear(name, message as PrefixEvent); };
      diagnostics.subscribe(`virtual-kv:${name}`, listen);
      this.#subscriptions.push(() => diagnostics.unsubscribe(`virtual-kv:${name}`, listen));
    }
  }

  /** Tokens of the prompt in leading blocks that it knows of. */
  cachedTokens(prompt: PromptOptions, blockTokens: number): number {
    const keys = prefixBlockKeys({ ...prompt, blockTokens });
    const missing = keys.findIndex((key) => !this.keys.has(key));
    return (missing < 0 ? keys.length : missing) * blockTokens;
  }

  close(): void {
    for (const end of this.#subscriptions) end();
  }

  #hear(name: (typeof names)[number], event: PrefixEvent): void {
    if (event.cache !== this.#cache) return;
    if (this.#last !== undefined) this.#t.is(event.eventNumber, this.#last + 1);
    this.#last = event.eventNumber;
    this.events.push({ name, event });
    if (name === 'prefix-cleared') this.keys.clear();
    else if (name === 'prefix-stored') this.#store(event as PrefixStoredEvent);
    else for (const key of (event as PrefixRemovedEvent).blockKeys) this.#t.true(this.keys.delete(key), 'it was stored');
  }

  #store({ blockKeys, parentKey }: PrefixStoredEvent): void {
    this.#t.true(parentKey === undefined || this.keys.has(parentKey), 'its parent is stored');
    for (const key of blockKeys) {
      this.#t.false(this.keys.has(key), 'it was not stored');
      this.keys.add(key);
    }
  }
}

async function withRouter(t: ExecutionContext, bench: CacheBench, body: (router: Router) => Promise<void>): Promise<void> {
  const router = new Router(t, bench.cache);
  try {
    await body(router);
  } finally {
    router.close();
  }
}

const tokens = (length: number, from = 0): number[] => Array.from({ length }, (_, at) => from + at);
const published = (): Promise<void> => Promise.resolve();

cacheTests('a router hears of blocks when they are committed, and when the last copy goes', {
  prefixCache: { events: { blockTokens: 16, label: 'worker 3' } },
}, async (t, bench) => withRouter(t, bench, async (router) => {
  const { cache } = bench;
  const one = cache.acquire({ tokens: tokens(100), tenant: 'a', salt: 'secret' });
  bench.compute(one, 40);
  t.is(router.events.length, 0, 'never in the middle of a call');
  await published();
  const keys = prefixBlockKeys({ tokens: tokens(100), tenant: 'a', salt: 'secret' });
  t.is(keys.length, 6);
  t.like(router.events[0], {
    name: 'prefix-stored',
    event: {
      label: 'worker 3', eventNumber: 1, blockKeys: keys.slice(0, 2), parentKey: undefined, blockTokens: 16, fromToken: 0, tokens: undefined,
      domain: { namespace: '', tenant: 'a', adapter: undefined, isSalted: true },
    },
  });
  t.false(JSON.stringify(router.events.map(({ event }) => ({ ...event, cache: 0 }))).includes('secret'));
  bench.compute(one, 60);
  await published();
  t.like(router.events[1], { event: { blockKeys: keys.slice(2), parentKey: keys[1], fromToken: 32 } });

  const two = cache.acquire({ tokens: [...tokens(64), ...tokens(36, 500)], tenant: 'a', salt: 'secret' });
  bench.compute(two, 100 - two.cachedTokens);
  one.release();
  await published();
  const [, , branch] = router.events;
  t.like(branch, { name: 'prefix-stored', event: { parentKey: keys[3], fromToken: 64 } });
  t.is(router.keys.size, 8, 'what two texts share is stored once');
  two.release();
  cache.prefixes.setNamespace('new weights');
  t.is(router.cachedTokens({ tokens: tokens(100), tenant: 'a', salt: 'secret' }, 16), 96, 'old entries are still there');
  t.is(cache.prefixes.reset(), 3);
  await published();
  t.like(router.events.at(-1), { name: 'prefix-cleared', event: { reason: 'reset' } });
  t.is(router.keys.size, 0);
  const three = cache.acquire({ tokens: tokens(20) });
  bench.compute(three, 20);
  await published();
  t.like(router.events.at(-1), { event: { blockKeys: prefixBlockKeys({ tokens: tokens(20), namespace: 'new weights' }) } });
}));

cacheTest('a router that comes late is told everything', { prefixCache: { events: {} } }, async (t, bench) => {
  const { cache } = bench;
  for (const from of [0, 1000, 2000]) {
    const sequence = cache.acquire({ tokens: tokens(80, from) });
    bench.compute(sequence, 80);
    if (from > 0) sequence.release();
  }
  await published();
  await withRouter(t, bench, async (router) => {
    cache.prefixes.publishAll();
    t.deepEqual(router.events.map(({ name }) => name), ['prefix-cleared', ...Array.from({ length: 3 }, () => 'prefix-stored')]);
    t.is((router.events[0]!.event as PrefixClearedEvent).reason, 'republished');
    for (const from of [0, 1000, 2000]) t.is(router.cachedTokens({ tokens: tokens(80, from) }, 16), 80);
    await published();
    t.is(router.events.length, 4, 'once');
    cache.close();
    t.is((router.events[4]!.event as PrefixClearedEvent).reason, 'closed');
    await published();
    t.is(router.events.length, 5, 'nothing comes after that');
  });
});

cacheTest('events tell tokens only when asked to', { prefixCache: { events: { blockTokens: 8, includesTokens: true } } },
  async (t, bench) => withRouter(t, bench, async (router) => {
    const sequence = bench.cache.acquire({ tokens: tokens(30) });
    bench.compute(sequence, 20);
    await published();
    bench.compute(sequence, 10);
    await published();
    const stored = router.events.map(({ event }) => event as PrefixStoredEvent);
    t.deepEqual(stored.map((event) => [...event.tokens!]), [tokens(16), tokens(8, 16)]);
  }));

cacheTest('an image counts by its hash, not by its place in the cache', { prefixCache: { events: { blockTokens: 8, includesTokens: true } } },
  async (t, bench) => withRouter(t, bench, async (router) => {
    const { cache } = bench;
    const image = (hash: string) => [{ at: 4, length: 6, kind: 'item', hash }] as const;
    cache.prefixes.lookup({ tokens: tokens(30), items: image('seen before') });
    const sequence = cache.acquire({ tokens: tokens(30), items: image('cat') });
    bench.compute(sequence, 30);
    await published();
    t.is(router.cachedTokens({ tokens: tokens(30), items: image('cat') }, 8), 24);
    t.is(router.cachedTokens({ tokens: tokens(30).fill(7, 4, 10), items: image('cat') }, 8), 24, 'placeholders do not count');
    t.is(router.cachedTokens({ tokens: tokens(30), items: image('dog') }, 8), 0);
    t.is(router.cachedTokens({ tokens: tokens(30) }, 8), 0);
    const told = (router.events[0]!.event as PrefixStoredEvent).tokens!;
    t.deepEqual([...told], [...tokens(4), -1, -1, -1, -1, -1, -1, ...tokens(14, 10)]);
    t.is(router.cachedTokens({ tokens: told, items: image('cat') }, 8), 24, 'what events tell is a prompt again');
    const keys = cache.prefixes.externalKeys({ tokens: tokens(30), items: image('cat') }, 8);
    t.notDeepEqual(cache.prefixes.externalKeys({ tokens: tokens(30), items: image('dog') }, 8), keys);
  }));

cacheTest('a subscriber may use the cache', { prefixCache: { events: {} } }, async (t, bench) => {
  const { cache } = bench;
  const found: number[] = [];
  const listen = (message: unknown): void => {
    if ((message as PrefixEvent).cache === cache) found.push(cache.prefixes.lookup({ tokens: tokens(65) }).cachedTokens);
  };
  diagnostics.subscribe('virtual-kv:prefix-stored', listen);
  try {
    bench.compute(cache.acquire({ tokens: tokens(64) }), 64);
    await published();
  } finally {
    diagnostics.unsubscribe('virtual-kv:prefix-stored', listen);
  }
  t.deepEqual(found, [64]);
});

/** Caches two texts of 64 tokens, which nothing has been published of. */
function cacheTwoTexts(bench: CacheBench): void {
  for (const from of [0, 1_000]) {
    const sequence = bench.cache.acquire({ tokens: tokens(64, from) });
    bench.compute(sequence, 64);
    sequence.release();
  }
}

cacheTest('a subscriber may close the cache: nothing is published behind that', { prefixCache: { events: {} } },
  async (t, bench) => withRouter(t, bench, async (router) => {
    const { cache } = bench;
    cacheTwoTexts(bench);
    const close = (message: unknown): void => { if ((message as PrefixEvent).cache === cache) cache.close(); };
    diagnostics.subscribe('virtual-kv:prefix-stored', close);
    try {
      await published();
    } finally {
      diagnostics.unsubscribe('virtual-kv:prefix-stored', close);
    }
    t.deepEqual(router.events.map(({ name }) => name), ['prefix-stored', 'prefix-cleared']);
    t.like(router.events[1]!.event, { reason: 'closed' });
  }));

cacheTest('a subscriber that drops all and starts over hears of nothing that is gone', { prefixCache: { events: {} } },
  async (t, bench) => withRouter(t, bench, async (router) => {
    const { cache } = bench;
    cacheTwoTexts(bench);
    let isFirst = true;
    const startOver = (message: unknown): void => {
      if (!isFirst || (message as PrefixEvent).cache !== cache) return;
      isFirst = false;
      cache.prefixes.reset();
      cache.prefixes.publishAll();
    };
    diagnostics.subscribe('virtual-kv:prefix-stored', startOver);
    try {
      await published();
      await published();
    } finally {
      diagnostics.unsubscribe('virtual-kv:prefix-stored', startOver);
    }
    t.is(router.cachedTokens({ tokens: tokens(64) }, 16), 0);
    t.is(router.cachedTokens({ tokens: tokens(64, 1_000) }, 16), 0);
  }));

cacheTest('without the option nothing is published', {}, async (t, bench) => withRouter(t, bench, async (router) => {
  const sequence = bench.cache.acquire({ tokens: tokens(100) });
  bench.compute(sequence, 100);
  sequence.release();
  bench.cache.prefixes.publishAll();
  bench.cache.prefixes.reset();
  await published();
  bench.cache.close();
  t.deepEqual(router.events, []);
}));

/** Random requests of a few tenants whose prompts often begin alike. */
async function play(t: ExecutionContext, bench: CacheBench, random: Random, blockTokens: number, steps: number): Promise<void> {
  const { cache } = bench;
  const running: Sequence[] = [];
  const prompts: PromptOptions[] = [];
  const promptLike = (): PromptOptions => {
    const model = prompts[random.integer(prompts.length)];
    const before = (model?.tokens ?? []) as readonly number[];
    const kept = before.slice(0, random.integer(before.length + 1));
    const prompt = { tokens: [...kept, ...Array.from({ length: 1 + random.integer(150) }, () => random.integer(3))].slice(0, 300) };
    const tenant = model?.tenant ?? ['', 'a', 'b'][random.integer(3)]!;
    const adapter = random.chance(0.1) ? 'x' : undefined;
    prompts[prompts.length < 20 ? prompts.length : random.integer(20)] = { ...prompt, tenant, adapter };
    return { ...prompt, tenant, adapter };
  };
  const change = (): void => {
    const dice = random.integer(100);
    const sequence = running[random.integer(running.length)];
    const free = 8 - running.length;
    if (dice < 25 && free > 0) {
      const caching = (['read-write', 'read-write', 'read', 'write'] as const)[random.integer(4)]!;
      running.push(cache.acquire({ ...promptLike(), caching, reserve: 'none' }));
    } else if (sequence === undefined) return;
    else if (dice < 60) {
      if (sequence.length > 400) return;
      if (random.chance(0.5)) sequence.append(Array.from({ length: 3 }, () => random.integer(3)));
      bench.compute(sequence, 1 + random.integer(random.chance(0.5) ? 5 : 80));
    } else if (dice < 70) sequence.truncate(random.integer(sequence.length + 1));
    else if (dice < 75 && free > 0) running.push(sequence.fork());
    else if (dice < 97) running.splice(running.indexOf(sequence), 1)[0]!.release();
    else if (dice < 98) {
      cache.prefixes.reset({ preempt: true });
      running.length = 0;
    }
  };
  await withRouter(t, bench, async (router) => {
    for (let step = 0; step < steps; step += 1) {
      try {
        change();
      } catch (error) {
        if ((error as { code?: string }).code !== 'KV_OUT_OF_PAGES') throw error;
        for (const sequence of running.splice(0)) sequence.release();
      }
      if (step % 4 !== 0) continue;
      await published();
      for (const prompt of [...prompts.slice(0, 4), promptLike()]) {
        const { cachedTokens } = cache.prefixes.lookup({ ...prompt, tokens: [...prompt.tokens!, 0] });
        t.is(router.cachedTokens(prompt, blockTokens), cachedTokens - (cachedTokens % blockTokens));
      }
    }
    for (const sequence of running) sequence.release();
    cache.prefixes.reset();
    await published();
    t.is(router.keys.size, 0);
  });
}

for (const on of ['mock', 'host'] as const) {
  for (const blockTokens of [1, 16, 100]) {
    const seed = seedOf(`${on} ${blockTokens}`);
    test(`a router with blocks of ${blockTokens} knows at any time what the cache would find (${on}, seed ${seed})`, async (t) => {
      const options = { on, rows: 14, prefixCache: { poolRows: 9, events: { blockTokens } } };
      await withCache(t, options, (bench) => play(t, bench, new Random(seed), blockTokens, 400 * scale));
    });
  }
}
