// The cache pool: what stays of released sequences, for how long, and which goes first; and what else is known of prompts.

import { ahead, type KvCache } from 'virtual-kv';

import { cacheTests, rowTokens } from '../../helpers/cache.js';
import { refuses } from '../../helpers/refuses.js';
import { Speaker, tokensOf } from './spoken.js';

/** A text of so many whole rows. */
const textOf = (name: number, rows: number): number[] => tokensOf(name, rows * rowTokens);

/** Rows of a text that are cached. */
function cachedRowsOf(cache: KvCache, text: readonly number[]): number {
  return Math.floor(cache.prefixes.lookup({ tokens: [...text, 1] }).cachedTokens / rowTokens);
}

cacheTests('a pool of 0 rows keeps nothing, but running sequences share', { prefixCache: { poolRows: 0 } }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const first = speaker.say(textOf(1, 2));
  t.is(speaker.say([...textOf(1, 2), 5]).cachedTokens, 2 * rowTokens);
  first.release();
  t.is(cachedRowsOf(bench.cache, textOf(1, 2)), 2);
  const other = speaker.say(textOf(2, 2));
  other.release();
  t.is(cachedRowsOf(bench.cache, textOf(2, 2)), 0);
  t.is(bench.cache.counts().pooledRows, 0);
});

for (const [title, prefixCache] of [
  ['rows', { poolRows: 4 }], ['bytes', { poolBytes: 4 * 4 * 65_536 + 1 }],
] as const) {
  cacheTests(`a pool bounded by ${title} drops what was used longest ago, its end first`, { prefixCache }, (t, bench) => {
    const speaker = new Speaker(bench.cache);
    speaker.say(textOf(1, 3)).release();
    speaker.say(textOf(2, 2)).release();
    t.is(bench.cache.counts().pooledRows, 4);
    t.is(cachedRowsOf(bench.cache, textOf(1, 3)), 2);
    t.is(cachedRowsOf(bench.cache, textOf(2, 2)), 2);
    speaker.say([...textOf(1, 2), 3]).release(); // used again, it is the younger one, and has a row more
    t.is(cachedRowsOf(bench.cache, textOf(1, 2)), 2);
    t.is(cachedRowsOf(bench.cache, textOf(2, 2)), 1);
    t.true(bench.cache.prefixes.metrics.droppedRows.bound >= 2);
  });
}

cacheTests('a growing sequence takes rows of the pool, and only what it needs', { rows: 6 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  speaker.say(textOf(1, 2)).release();
  speaker.say(textOf(2, 2)).release();
  t.is(bench.cache.counts().reclaimablePages, 4 * 4);
  const sequence = speaker.say(textOf(3, 3));
  t.is(cachedRowsOf(bench.cache, textOf(1, 2)), 1);
  t.is(cachedRowsOf(bench.cache, textOf(2, 2)), 2);
  t.is(speaker.wrongTokens(sequence, textOf(3, 3)), 0);
  t.is(bench.cache.prefixes.metrics.droppedRows.evicted, 1);
});

cacheTests('pages set aside for a prompt are not evicted for a second time', { rows: 6, growth: ahead() }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  speaker.say(textOf(1, 2)).release();
  speaker.say(textOf(2, 2)).release();
  speaker.say(textOf(3, 3)).release();
  t.is(cachedRowsOf(bench.cache, textOf(2, 2)), 2);
  t.is(cachedRowsOf(bench.cache, textOf(1, 2)), 0, 'one row for the prompt, and one to go on');
});

cacheTests('rows in use are never evicted: the growth is refused instead', { rows: 5 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  speaker.say(textOf(1, 2)).release();
  const user = speaker.say([...textOf(1, 2), 1]);
  const other = bench.cache.acquire();
  t.throws(() => bench.prepare(other, 3 * rowTokens), { code: 'KV_OUT_OF_PAGES' });
  t.is(speaker.wrongTokens(user, [...textOf(1, 2), 1]), 0);
  bench.prepare(other, 2 * rowTokens);
  bench.discard();
});

cacheTests('an admission that does not fit leaves counts, order and contents; what it would use of the pool counts', { rows: 6 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  speaker.say(textOf(1, 3)).release();
  speaker.say(textOf(2, 2)).release();
  const before = bench.cache.counts();
  // 3 rows are cached and must stay for it: 3 more can be had, 4 are needed.
  t.throws(() => bench.cache.acquire({ tokens: [...textOf(1, 3), ...textOf(5, 4)] }), { code: 'KV_OUT_OF_PAGES' });
  t.deepEqual(bench.cache.counts(), before);
  t.is(cachedRowsOf(bench.cache, textOf(1, 3)), 3);
  t.is(cachedRowsOf(bench.cache, textOf(2, 2)), 2);
  const other = speaker.say(textOf(6, 2)); // the order is as it was: the first text is the older one
  t.is(cachedRowsOf(bench.cache, textOf(1, 3)), 2);
  t.is(cachedRowsOf(bench.cache, textOf(2, 2)), 2);
  other.release();
});

cacheTests('a prompt that fits an empty cache fits a full one, whatever of it is cached', { rows: 6, slots: 1 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  speaker.say(textOf(1, 6)).release();
  const alike = [...textOf(1, 6).slice(0, 100), ...tokensOf(2, 6 * rowTokens - 100)]; // ends inside the second row
  const sequence = speaker.say(alike);
  t.is(sequence.cachedTokens, rowTokens, 'there is no room to copy from the second row');
  t.is(speaker.wrongTokens(sequence, alike), 0);
  sequence.release();
});

const unequal = {
  pageBytes: 65_536, rows: 40,
  model: { layers: 2, layerShapes: [{ kvHeads: 1, headDim: 4096 }, { kvHeads: 1, headDim: 2048 }], dtype: 'float16' },
} as const;

cacheTests('a sequence that adopts a slot that ends inside a row of several pages has memory for the whole prompt', unequal, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const { layout } = bench.cache;
  t.is(layout.pagesPerRow, 2 * (2 + 1));
  const text = tokensOf(1, 2 * layout.tokensPerRow - 6);
  speaker.say(text).release();
  const whole = [...text, ...tokensOf(2, layout.tokensPerRow)];
  const sequence = bench.cache.acquire({ tokens: whole, reserve: 'prompt' });
  t.is(sequence.cachedBy.adoptedTokens, text.length);
  t.is(sequence.mappedRows, 2);
  t.is(bench.pool().earmarkedPages, layout.pagesPerRow);
  sequence.release();
});

cacheTests('a sequence that computes again what is cached fits where it would fit an empty cache', { rows: 5, slots: 2 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const text = textOf(1, 5);
  speaker.say(text).release();
  const again = speaker.say(text.slice(0, rowTokens), { caching: 'write' });
  for (let length = rowTokens; length < text.length; length += rowTokens) { // all of it in rows of its own
    bench.cache.counts(); // the index hears of what was computed so far, and nobody else may have the cached rows now
    speaker.goOn(again, text.slice(0, length), text.slice(length, length + rowTokens));
  }
  t.is(again.mappedRows, 5);
  t.is(speaker.wrongTokens(again, text), 0);
  t.is(cachedRowsOf(bench.cache, text), 5);
  t.true(bench.cache.prefixes.metrics.droppedRows.replaced > 0);
  bench.cache.verify();
  again.release();
  t.is(cachedRowsOf(bench.cache, text), 5);
  const heir = speaker.say(text.slice(0, 200));
  t.is(heir.cachedTokens, 199);
  t.is(speaker.wrongTokens(heir, text), 0);
  heir.release();
});

cacheTests('a text computed side by side takes one copy once either sequence is released, and no other text goes for a second', { rows: 9, slots: 4 }, (t, bench) => {
  const { cache } = bench;
  const speaker = new Speaker(cache);
  const kept = textOf(2, 2);
  const text = textOf(1, 3);
  for (const first of [0, 1] as const) {
    cache.prefixes.reset();
    speaker.say(kept).release();
    const twins = [cache.acquire({ tokens: text }), cache.acquire({ tokens: text })] as const;
    for (const twin of twins) speaker.compute(twin, text, text.length);
    cache.counts();
    twins[first].release();
    const other = cache.acquire({ promptTokens: 4 * rowTokens }); // 2 + 3 + 4 rows
    bench.compute(other, 4 * rowTokens);
    t.is(cachedRowsOf(cache, kept), 2);
    t.is(cachedRowsOf(cache, text), 3);
    t.is(speaker.wrongTokens(twins[1 - first]!, text), 0);
    cache.verify();
    for (const sequence of [other, twins[1 - first]!]) sequence.release();
  }
});

cacheTests('a cached text that a sequence has just left makes room for it', { rows: 4, slots: 2 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const text = textOf(1, 4);
  speaker.say(text).release();
  const start = text.slice(0, rowTokens + 5);
  const other = speaker.say(start); // its second row is a copy; the cached one could be needed until the texts part
  const parted = speaker.goOn(other, start, [1]);
  const whole = speaker.goOn(other, parted, tokensOf(2, 3 * rowTokens - 6));
  t.is(other.mappedRows, 4);
  t.is(speaker.wrongTokens(other, whole), 0);
  t.is(cachedRowsOf(bench.cache, text), 1);
  other.release();
});

cacheTests('a tenant has no more than its quota, and takes nothing from others', { prefixCache: { tenantRows: 2 } }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  speaker.say(textOf(1, 2), { tenant: 'a' }).release();
  for (let name = 2; name < 6; name += 1) speaker.say(textOf(name, 2), { tenant: 'b' }).release();
  t.is(bench.cache.prefixes.lookup({ tokens: textOf(1, 2), tenant: 'a' }).cachedTokens, 2 * rowTokens - 1);
  t.is(bench.cache.counts().pooledRows, 4);
  t.true(bench.cache.prefixes.metrics.droppedRows.quota >= 6);
});

cacheTests('the mapper finds free pages although the pool has taken all', { rows: 6, growth: ahead(rowTokens) }, async (t, bench) => {
  const speaker = new Speaker(bench.cache);
  speaker.say(textOf(1, 5)).release();
  await bench.cache.settled();
  const sequence = speaker.say(textOf(2, 1));
  await bench.cache.settled();
  t.is(bench.cache.counts().reclaimablePages > 0, true);
  const { foregroundRows } = bench.cache.metrics;
  speaker.goOn(sequence, textOf(2, 1), [1]);
  t.is(bench.cache.metrics.foregroundRows, foregroundRows);
});

cacheTests('a lowered budget evicts', { rows: 8 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  speaker.say(textOf(1, 4)).release();
  speaker.say(textOf(2, 3)).release();
  bench.cache.pool.setBudget(4 * bench.cache.layout.rowBytes);
  t.is(bench.cache.counts().pooledRows, 4);
  t.is(bench.pool().createdPages, 16);
  t.is(cachedRowsOf(bench.cache, textOf(2, 3)), 3);
});

cacheTests('what was said last is known of by its tokens: hit rates and how', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const text = textOf(1, 2);
  speaker.say(text).release();
  speaker.say([...text, 1, 2]).release();
  const { requests, promptTokens, cachedTokens, adoptedTokens, hitRate, recentHitRate } = bench.cache.prefixes.metrics;
  t.deepEqual({ requests, promptTokens, cachedTokens, adoptedTokens }, {
    requests: 2, promptTokens: 4 * rowTokens + 2, cachedTokens: 2 * rowTokens, adoptedTokens: 2 * rowTokens,
  });
  t.is(hitRate, (2 * rowTokens) / (4 * rowTokens + 2));
  t.is(recentHitRate, hitRate);
});

cacheTests('the recent hit rate is that of the last requests', { prefixCache: { recentRequests: 2 }, rows: 30 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  for (const name of [1, 2, 3]) speaker.say(textOf(name, 1)).release();
  t.is(bench.cache.prefixes.metrics.recentHitRate, 0);
  for (const name of [1, 2]) speaker.say([...textOf(name, 1), 5]).release();
  t.is(bench.cache.prefixes.metrics.recentHitRate, rowTokens / (rowTokens + 1));
});

cacheTests('a value kept at the end of a prompt makes a hit of all of it', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const text = [...textOf(1, 2), 4, 5];
  const logits = new Float32Array([1, 2]);
  const first = speaker.say(text);
  t.is(first.keptValue, undefined);
  t.true(first.keepValue(logits));
  first.release();
  const again = bench.cache.acquire({ tokens: text });
  t.is(again.cachedTokens, text.length);
  t.is(again.keptValue, logits);
  const whole = speaker.goOn(again, text, [9]);
  t.is(speaker.wrongTokens(again, whole), 0);
  const second = bench.cache.acquire({ tokens: text });
  t.is(second.cachedTokens, text.length);
  t.deepEqual(second.cachedBy, { adoptedTokens: 0, aliasedTokens: 2 * rowTokens, copiedTokens: 2 });
  t.is(bench.cache.acquire({ tokens: text.slice(0, -1) }).keptValue, undefined);
  t.false(bench.cache.acquire({ promptTokens: 4 }).keepValue(logits));
});

cacheTests('images and embeddings in a prompt are told apart by their hashes', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const text = textOf(1, 2);
  const item = (hash: string, kind: 'item' | 'embedding' = 'item') => [{ at: 10, length: 20, kind, hash }] as const;
  speaker.say(text, { items: item('cat') }).release();
  t.is(bench.cache.prefixes.lookup({ tokens: text, items: item('cat') }).cachedTokens, text.length - 1);
  for (const items of [item('dog'), item('cat', 'embedding'), []]) {
    t.is(bench.cache.prefixes.lookup({ tokens: text, items }).cachedTokens, 10);
  }
  for (const items of [[{ at: 0, length: 0, kind: 'item', hash: 'x' }], [{ at: 0, length: 1, kind: 'picture', hash: 'x' }], 'cat']) {
    t.throws(() => bench.cache.acquire({ tokens: text, items: items as never }), { code: 'KV_INVALID_OPTION' });
  }
});

cacheTests('what stands under an item does not count, and what stands beside it does', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const items = [{ at: 10, length: 2, kind: 'item', hash: 'cat' }] as const;
  const text = textOf(1, 2);
  speaker.say(text, { items }).release();
  for (const placeholder of [-1, 1.5, Number.NaN, 2 ** 40, undefined, 1n]) {
    const tokens = text.with(10, placeholder as never).with(11, placeholder as never);
    t.is(bench.cache.prefixes.lookup({ tokens, items }).cachedTokens, text.length - 1);
    t.is(bench.cache.acquire({ tokens, items, caching: 'off' }).cachedTokens, 0);
    refuses(t, () => bench.cache.acquire({ tokens: tokens.with(12, -1), items }),
      'KV_INVALID_OPTION', { option: 'tokens[12]', received: -1 });
  }
  const typed = Int32Array.from(text).fill(-1, 10, 12);
  t.is(bench.cache.prefixes.lookup({ tokens: typed, items }).cachedTokens, text.length - 1);
  refuses(t, () => bench.cache.prefixes.lookup({ tokens: typed }),
    'KV_INVALID_OPTION', { option: 'tokens[10]', received: -1 });
});

cacheTests('a prompt names the token that is none', {}, (t, bench) => {
  for (const [tokens, at, received] of [
    [[1n, 2n], 0, 1n], [[1, '2'], 1, '2'], [Uint32Array.of(5, 2 ** 31), 1, 2 ** 31],
    [[1, , 3], 1, undefined], // eslint-disable-line no-sparse-arrays
  ] as const) {
    refuses(t, () => bench.cache.acquire({ tokens: tokens as never }),
      'KV_INVALID_OPTION', { option: `tokens[${at}]`, received });
  }
});

cacheTests('after truncate a text is known up to its length, also where that stays as it was', {}, (t, bench) => {
  const { cache } = bench;
  const speaker = new Speaker(cache);
  const prompt = textOf(1, 2);
  const first = cache.acquire({ tokens: prompt });
  speaker.compute(first, prompt, 10);
  first.truncate(10);
  const other = [...prompt.slice(0, 10), ...tokensOf(7, 90)];
  first.append(other.slice(10));
  speaker.compute(first, other, 90);
  t.is(cache.prefixes.lookup({ tokens: prompt }).cachedTokens, 10, 'the rest of the prompt was never computed');
  t.is(cache.prefixes.lookup({ tokens: [...other, 1] }).cachedTokens, 100);
});

cacheTests('a sequence that stores nothing keeps no value, whatever is cached', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const prompt = textOf(1, 1);
  speaker.say(prompt).release();
  t.false(speaker.say(prompt, { caching: 'read' }).keepValue('logits'));
  t.is(bench.cache.acquire({ tokens: prompt }).keptValue, undefined);
});

cacheTests('a miss is explained', { prefixCache: { poolRows: 2, now: () => 42 } }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const { prefixes } = bench.cache;
  speaker.say(textOf(1, 3)).release();
  t.like(prefixes.explain({ tokens: textOf(1, 3) }), { tokens: 2 * rowTokens, reason: 'evicted', atMs: 42, dropReason: 'bound' });
  t.like(prefixes.explain({ tokens: textOf(1, 2) }), { reason: 'complete' });
  const other = [...textOf(1, 1), 7, 7];
  t.like(prefixes.explain({ tokens: other }), { tokens: rowTokens, reason: 'differs', askedToken: 7 });
  t.like(prefixes.explain({ tokens: textOf(1, 1), salt: 'x' }), { tokens: 0, reason: 'other-domain', parts: ['salt'] });
});
