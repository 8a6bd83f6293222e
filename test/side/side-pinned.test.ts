// Side rows of text that the eviction policy of K and V withholds: they stay as its K and V do, until it expires, and a request that lacks
// their memory is refused as one that lacks K and V's is. Beyond the policy's share they go after all other rows. Tokens take a page for each four, in K, V and the side tensor.

import test from 'ava';

import { KvCache, OnlineScheduler, priority, type KvCacheOptions } from 'virtual-kv';
import { cacheTest, drivers } from '../helpers/cache.js';
import { refuses } from '../helpers/refuses.js';
import { assertAnswer, promptOf, smallModel } from '../serving/serving-bench.js';
import { SideEngine, sideTensors } from '../serving/side-engine.js';
import { SideSpeaker } from './side-speaker.js';

const pageBytes = 64 * 1024;
const system = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

class World {
  readonly cache: KvCache;
  readonly speaker: SideSpeaker;

  /** @param pages Of the side tensor. */
  constructor(pages: number, policy = priority({ pinnedLevel: 1, pinnedShare: 1 }), options: Partial<KvCacheOptions> = {}) {
    this.cache = new KvCache({
      model: { layers: 1, kvHeads: 16, headDim: 256, dtype: 'float32' }, slots: 3, maxTokens: 64, memoryBudgetBytes: 2 ** 24, pageBytes, driver: 'host',
      mapper: 'off', prefixCache: { policy }, sideTensors: { hidden: { width: 4096, dtype: 'float32', pageBytes } }, sideBudgetBytes: pages * pageBytes,
      ...options,
    });
    this.speaker = new SideSpeaker(this.cache);
  }

  /** Caches the text with what it has of its rows. */
  cacheText(tokens: readonly number[], level = 0, needs?: readonly string[]): void {
    const sequence = this.cache.acquire({ tokens, priority: level, needs });
    this.speaker.compute([{ sequence, text: [...tokens] }], tokens.length - sequence.cachedTokens);
    sequence.release();
  }

  /** Tokens that are found with their rows. */
  found(tokens: readonly number[]): number {
    return this.cache.prefixes.lookup({ tokens: [...tokens, 99] }).cachedTokens;
  }

  [Symbol.dispose](): void {
    this.cache.verify();
    this.cache.close();
  }
}

const textOf = (first: number, length = 8): number[] => Array.from({ length }, (_, index) => first + index);

test('rows of pinned text stay while those of texts that were used later go', (t) => {
  using world = new World(8);
  world.cacheText(system, 1);
  for (const first of [100, 200, 300, 400]) world.cacheText(textOf(first));
  t.deepEqual([system, textOf(100), textOf(200), textOf(300), textOf(400)].map((text) => world.found(text)), [10, 0, 4, 8, 8]);
  t.is(world.cache.prefixes.lookup({ tokens: [...textOf(100), 99], needs: [] }).cachedTokens, 8, 'its K and V are there');
});

test('of a text that goes on behind pinned text the end goes, and the pinned start stays', (t) => {
  using world = new World(5);
  world.cacheText(system, 1);
  world.cacheText([...system, ...textOf(50, 6)]);
  t.is(world.found([...system, ...textOf(50, 6)]), 16);
  world.cacheText(textOf(100));
  t.deepEqual([world.found([...system, ...textOf(50, 6)]), world.found(textOf(100))], [12, 8], 'a page is shared with what goes on in it');
  world.cacheText(textOf(200));
  t.deepEqual([world.found(system), world.found(textOf(100)), world.found(textOf(200))], [10, 0, 8]);
});

test('a request that lacks only what pinned rows keep gets KV_OUT_OF_PAGES, and nothing is evicted for it', (t) => {
  using world = new World(5);
  world.cacheText(system, 1);
  world.cacheText(textOf(100, 4));
  const before = world.cache.sideCounts();
  refuses(t, () => world.cache.acquire({ tokens: textOf(200, 12) }),
    'KV_OUT_OF_PAGES', { sideTensor: 'hidden', needPages: 3, havePages: 2 });
  t.deepEqual([world.cache.sideCounts(), before.heldBytes, world.found(textOf(100, 4))], [before, 0, 4]);
  world.cacheText([...system, 60], 0); // shares them
  t.is(world.found([...system, 60]), 11);
  world.cacheText(textOf(200, 12), 0, []);
  world.cache.prefixes.reset();
  world.cacheText(textOf(200, 12));
  t.is(world.found(textOf(200, 12)), 12);
});

test('a lower budget leaves the share of pinned rows, and takes all others', (t) => {
  using world = new World(8);
  world.cacheText(system, 1);
  world.cacheText(textOf(100));
  world.cache.setSideBudget(3 * pageBytes);
  t.deepEqual([world.found(system), world.found(textOf(100)), world.cache.sideCounts().usedBytes], [10, 0, 3 * pageBytes]);
  world.cache.setSideBudget(pageBytes);
  t.deepEqual([world.found(system), world.cache.sideCounts().usedBytes], [4, pageBytes], 'no more than the budget is kept');
});

for (const [pinnedShare, kept] of [[0, 0], [0.5, 4], [0.75, 6], [1, 8]] as const) {
  test(`pinned rows take ${pinnedShare * 100} % of the budget at most when others need it, and those used longest ago go`, (t) => {
    using world = new World(8, priority({ pinnedLevel: 1, pinnedShare }));
    const texts = [100, 200, 300, 400].map((first) => textOf(first));
    for (const text of texts) world.cacheText(text, 1);
    t.deepEqual(texts.map((text) => world.found(text)), [8, 8, 8, 8], 'they may have more while nobody needs it');
    const free = 8 - kept;
    if (free < 8) t.throws(() => world.cacheText(textOf(500, 4 * (free + 1))), { code: 'KV_OUT_OF_PAGES' });
    if (free > 0) world.cacheText(textOf(500, 4 * free));
    const pages = texts.map((text) => world.found(text) / 4);
    t.is(pages.reduce((sum, count) => sum + count, 0), kept);
    t.deepEqual(pages, [0, 2, 4, 6].map((later) => Math.min(2, Math.max(0, kept - (6 - later)))), 'the last used are kept');
  });
}

for (const withheldShare of [NaN, -0.5, 1.5, '1']) {
  test(`a policy whose share is ${typeof withheldShare} ${String(withheldShare)} gives way to lru, and all rows may go`, (t) => {
    using world = new World(8, (context) => Object.assign(priority({ pinnedLevel: 1 })(context), { withheldShare }));
    world.cacheText(system, 1);
    world.cacheText(textOf(100, 28));
    world.cacheText(textOf(200, 28));
    t.deepEqual([world.found(system), world.found(textOf(200, 28)), world.cache.metrics.lateErrors], [0, 28, 1]);
  });
}

test('rows of other texts go before pinned rows, however many these are', (t) => {
  using world = new World(8, priority({ pinnedLevel: 1, pinnedShare: 0.25 }));
  for (const first of [100, 200, 300]) world.cacheText(textOf(first), 1);
  world.cacheText(textOf(400));
  world.cacheText(textOf(500));
  t.deepEqual([100, 200, 300, 400, 500].map((first) => world.found(textOf(first))), [8, 8, 8, 0, 8]);
  world.cacheText(textOf(600, 16));
  t.deepEqual([100, 200, 300, 500].map((first) => world.found(textOf(first))), [0, 8, 8, 0]);
});

test('a sequence that would go on in the last page of pinned text gets a copy or is refused, and that text keeps its rows', (t) => {
  using world = new World(3);
  world.cacheText(system, 1);
  const shorter = [...system.slice(0, 9), 60];
  const sequence = world.cache.acquire({ tokens: shorter, reserve: 'none' });
  t.is(sequence.cachedTokens, 9);
  t.throws(() => { world.speaker.compute([{ sequence, text: shorter }], 1); }, { code: 'KV_OUT_OF_PAGES' });
  world.cache.setSideBudget(4 * pageBytes);
  world.speaker.compute([{ sequence, text: shorter }], 1);
  sequence.release();
  t.deepEqual([world.found(system), world.found(shorter)], [10, 10]);
});

test('pinned rows that have expired go, also where eviction has passed them over before', (t) => {
  let nowMs = 0;
  using world = new World(8, priority({ pinnedLevel: 1, pinnedShare: 1, lifetimeMs: (level) => (level === 0 ? Infinity : 1000), now: () => nowMs }));
  world.cacheText(system, 1);
  for (const first of [100, 200]) world.cacheText(textOf(first));
  world.cache.setSideBudget(6 * pageBytes);
  t.deepEqual([world.found(system), world.found(textOf(100)), world.found(textOf(200))], [10, 4, 8]);
  nowMs = 1000;
  world.cache.setSideBudget(5 * pageBytes);
  t.deepEqual([world.found(system), world.found(textOf(100)), world.found(textOf(200))], [8, 4, 8], 'the oldest is next');
});

for (const on of drivers) {
  cacheTest(`a scheduler refuses a request that lacks only what pinned side rows keep, and others wait for none (${on})`, {
    model: smallModel, maxTokens: 400, sideTensors, on, sideBudgetBytes: 12 * pageBytes, prefixCache: { policy: priority({ pinnedLevel: 1, pinnedShare: 1 }) },
  }, async (t, { cache }) => {
    const engine = new SideEngine({ cache });
    const scheduler = new OnlineScheduler({ cache, engine });
    await scheduler.submit({ tokens: promptOf(100), maxNewTokens: 1, priority: 1 }).result;
    const request = { tokens: promptOf(110, 2), maxNewTokens: 20 };
    await t.throwsAsync(scheduler.submit(request).result, { code: 'KV_OUT_OF_PAGES' });
    t.is(cache.prefixes.lookup({ tokens: promptOf(100) }).cachedTokens, 100);
    assertAnswer(t, { ...request, needs: [] }, await scheduler.submit({ ...request, needs: [] }).result);
    cache.prefixes.reset();
    assertAnswer(t, request, await scheduler.submit(request).result);
    await scheduler.close();
  });

  cacheTest(`a request runs where pinned side rows have more than their share of the budget that it needs (${on})`, {
    model: smallModel, maxTokens: 400, sideTensors, on, sideBudgetBytes: 12 * pageBytes, prefixCache: { policy: priority({ pinnedLevel: 1 }) },
  }, async (t, { cache }) => {
    const engine = new SideEngine({ cache });
    const scheduler = new OnlineScheduler({ cache, engine });
    for (const seed of [1, 2, 3]) await scheduler.submit({ tokens: promptOf(60, seed), maxNewTokens: 1, priority: 1 }).result;
    const request = { tokens: promptOf(60, 4), maxNewTokens: 20 };
    assertAnswer(t, request, await scheduler.submit(request).result);
    await scheduler.close();
  });
}
