// How much of the budget pinned text may take: above its share the pins that were used longest ago end.

import { priority } from 'virtual-kv';

import { cacheTests, rowTokens, type CacheBench } from '../../helpers/cache.js';
import { Speaker, tokensOf } from './spoken.js';

const options = { rows: 8, prefixCache: { policy: priority({ pinnedLevel: 1 }) } };

/** Pins texts of two rows each, the first of key 1. */
function pin({ cache }: CacheBench, texts: number, level = 1): void {
  const speaker = new Speaker(cache);
  for (let key = 1; key <= texts; key += 1) speaker.say(tokensOf(key, 2 * rowTokens), { priority: level }).release();
}

const isCached = ({ cache }: CacheBench, key: number): boolean =>
  cache.prefixes.lookup({ tokens: [...tokensOf(key, 2 * rowTokens), 0] }).cachedTokens === 2 * rowTokens;

cacheTests('pins that were used longest ago end where all take more than half of the budget', options, (t, bench) => {
  pin(bench, 3);
  t.is(bench.cache.counts().admissibleTokens, 4 * rowTokens);
  t.throws(() => bench.cache.acquire({ promptTokens: 5 * rowTokens }), { code: 'KV_OUT_OF_PAGES' });
  bench.cache.acquire({ promptTokens: 4 * rowTokens }).release();
  t.deepEqual([1, 2, 3].map((key) => isCached(bench, key)), [false, true, true]);
});

cacheTests('text whose pin has ended goes after all that was not pinned', options, (t, bench) => {
  pin(bench, 3);
  new Speaker(bench.cache).say(tokensOf(9, 2 * rowTokens)).release();
  bench.cache.acquire({ promptTokens: 2 * rowTokens }).release();
  t.deepEqual([1, 2, 3, 9].map((key) => isCached(bench, key)), [true, true, true, false]);
});

cacheTests('of two levels the pins of the lower one end first', options, (t, bench) => {
  pin(bench, 1, 2);
  const speaker = new Speaker(bench.cache);
  for (const key of [5, 6]) speaker.say(tokensOf(key, 2 * rowTokens), { priority: 1 }).release();
  bench.cache.acquire({ promptTokens: 4 * rowTokens }).release();
  t.deepEqual([1, 5, 6].map((key) => isCached(bench, key)), [true, false, true]);
});

cacheTests('a budget below what is pinned ends the oldest pins at once', options, (t, bench) => {
  const { cache } = bench;
  const { pool, layout } = cache;
  pin(bench, 2);
  pool.setBudget(4 * layout.rowBytes);
  t.true(pool.counts().createdPages <= layout.pagesFor(4));
  pool.setBudget(3 * layout.rowBytes);
  t.true(pool.counts().createdPages <= layout.pagesFor(3));
  t.deepEqual([1, 2].map((key) => isCached(bench, key)), [false, true]);
  cache.acquire({ promptTokens: 3 * rowTokens }).release(); // half of the budget is less than two rows: the pin has ended
  t.false(isCached(bench, 2));
  pool.setBudget(8 * layout.rowBytes);
  cache.acquire({ promptTokens: 8 * rowTokens }).release();
});

cacheTests('text that was divided, and is one again, counts with all its rows', options, (t, bench) => {
  const { cache } = bench;
  const speaker = new Speaker(cache);
  const text = tokensOf(1, 4 * rowTokens);
  speaker.say(text, { priority: 1 }).release();
  speaker.say([...text.slice(0, 2 * rowTokens), ...tokensOf(2, 2 * rowTokens)], { priority: 0 }).release();
  cache.acquire({ promptTokens: 4 * rowTokens }).release(); // what continues the common start otherwise goes
  t.is(cache.counts().admissibleTokens, 4 * rowTokens);
  speaker.say(text, { priority: 1 }).release();
  t.is(cache.counts().admissibleTokens, 4 * rowTokens);
  speaker.say(tokensOf(5, rowTokens), { priority: 1 }).release();
  t.is(cache.counts().admissibleTokens, 5 * rowTokens); // the end of the longer text was the older, and ends first
});

for (const [pinnedShare, rows] of [[0, 8], [0.25, 6], [1, 2]] as const) {
  const policy = priority({ pinnedLevel: 1, pinnedShare });
  cacheTests(`with pinnedShare: ${pinnedShare}, so much of the budget stays pinned`, { rows: 8, prefixCache: { policy } }, (t, bench) => {
    pin(bench, 3);
    t.is(bench.cache.counts().admissibleTokens, rows * rowTokens);
  });
}
