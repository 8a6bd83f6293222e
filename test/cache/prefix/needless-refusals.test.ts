// What runs keeps what it needs and nothing else: rows that are cached, pinned or mapped beside its own never cost another request
// its place. Each test asks for exactly what is left, and for one row more.

import test from 'ava';

import { KvCache, PagePool, onDemand, type Sequence } from 'virtual-kv';

import { assertNothingLeft, cacheTest, cacheTests, openDriver, pageBytes, rowTokens, tinyModel, type CacheBench } from '../../helpers/cache.js';
import { Speaker, tokensOf } from './spoken.js';

/** A prompt of all that `rows` rows hold is admitted, one of a token more is not. */
function assertAdmitsExactly(bench: CacheBench, rows: number): void {
  const { t, cache } = bench;
  const tokens = rows * rowTokens;
  t.is(cache.counts().admissibleTokens, tokens);
  t.throws(() => cache.acquire({ promptTokens: tokens + 1 }), { code: 'KV_OUT_OF_PAGES' });
  t.notThrows(() => {
    cache.acquire({ promptTokens: tokens }).release();
  });
}

const text = tokensOf(1, rowTokens + 10);
const prompts = {
  'the same prompt again': text,
  'a prompt that goes on differently': [...text.slice(0, rowTokens + 5), ...tokensOf(2, 20)],
} as const;
const moments = ['before its first commit', 'after it'] as const;

for (const caching of ['read-write', 'read', 'write'] as const) {
  for (const [name, prompt] of Object.entries(prompts)) {
    for (const moment of moments) {
      cacheTests(`a last row of its own leaves the cached one to others: ${caching}, ${name}, ${moment}`, { rows: 8 }, (t, bench) => {
        const speaker = new Speaker(bench.cache);
        speaker.say(text).release();
        const sequence = bench.cache.acquire({ tokens: prompt, caching });
        if (moment === 'after it') speaker.compute(sequence, prompt, prompt.length - sequence.length);
        assertAdmitsExactly(bench, 6);
        t.is(speaker.wrongTokens(sequence, prompt), 0);
        sequence.release();
      });
    }
  }
}

cacheTests('a sequence that took tokens back writes on where it is when there is no room for a copy', { rows: 3, slots: 2 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  speaker.say(text).release();
  const sequence = bench.cache.acquire({ tokens: [...text, 1] });
  sequence.truncate(rowTokens + 3);
  const other = bench.cache.acquire({ promptTokens: rowTokens });
  const whole = speaker.goOn(sequence, text.slice(0, rowTokens + 3), [7, 8, 9]);
  t.is(speaker.wrongTokens(sequence, whole), 0);
  t.is(bench.cache.metrics.detachedRows, 0);
  other.release();
  sequence.release();
});

cacheTests('a batch whose copies and growth do not fit loses no cached row, however many pages were free before', { rows: 10 }, (t, bench) => {
  const { cache } = bench;
  const speaker = new Speaker(cache);
  speaker.say(tokensOf(3, rowTokens)).release();
  const parent = speaker.say(text.slice(0, 10), { reserve: 'none' });
  const fork = parent.fork();
  const other = cache.acquire({ promptTokens: 0 });
  bench.compute(other, 8 * rowTokens); // nothing asks the mapper since
  t.is(bench.pool().freePages, 0);
  t.throws(() => { bench.prepare(parent, rowTokens); }, { code: 'KV_OUT_OF_PAGES' });
  t.is(cache.metrics.detachedRows, 0);
  t.is(cache.prefixes.lookup({ tokens: [...tokensOf(3, rowTokens), 1] }).cachedTokens, rowTokens);
  for (const sequence of [parent, fork]) t.is(speaker.wrongTokens(sequence, text), 0);
});

cacheTests('a batch whose copies and growth do not fit together changes nothing', { rows: 5 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const parent = speaker.say(text);
  const forks = [parent.fork(), parent.fork(), parent.fork()];
  const before = bench.pool().mappedPages;
  const batch = bench.batchOf(...[parent, ...forks].map((sequence): [Sequence, number] => [sequence, rowTokens]));
  t.throws(() => {
    bench.cache.prepare(batch);
  }, { code: 'KV_OUT_OF_PAGES' });
  t.is(bench.pool().mappedPages, before);
  t.is(bench.cache.metrics.detachedRows, 0);
  t.notThrows(() => {
    bench.cache.prepare(bench.batchOf(...[parent, ...forks].map((sequence): [Sequence, number] => [sequence, 1])));
  });
});

cacheTest('a step of the engine is in nobody\'s way where the cache has only not looked yet at what was computed since', { rows: 8 }, (t, bench) => {
  const { cache } = bench;
  const prompt = tokensOf(1, 4);
  const [fifth, other] = tokensOf(2, 2) as [number, number];
  const parent = cache.acquire({ tokens: prompt });
  bench.compute(parent, 4);
  const fork = parent.fork();
  fork.append(fifth);
  bench.compute(fork, 1);
  parent.append(other);
  const batch = bench.batchOf([parent, 1]);
  cache.prepare(batch);
  cache.commit(batch, { fence: { step: 1 } });
  parent.truncate(2);
  parent.append(prompt[2]!);
  t.notThrows(() => { bench.compute(parent, 1); });
  t.is(cache.metrics.detachedRows, 1);
  cache.completeStep(1);
  for (const sequence of [fork, parent]) sequence.release();
});

cacheTest('a batch in which a step of the engine is in the way of one sequence copies no row for another', { rows: 8 }, (t, bench) => {
  const { cache } = bench;
  const pairs = [1, 2].map((name) => {
    const parent = cache.acquire({ tokens: tokensOf(name, 4) });
    bench.compute(parent, 4);
    return { parent, fork: parent.fork() };
  });
  const [free, busy] = pairs as [typeof pairs[0], typeof pairs[0]];
  const batch = bench.batchOf([busy.parent, 1]);
  cache.prepare(batch);
  cache.discard(batch, { fence: { step: 1 } });
  const third = busy.parent.fork();
  const { admissiblePages } = cache.counts();
  t.throws(() => { cache.prepare(bench.batchOf([free.fork, 1], [busy.parent, 1])); }, { code: 'KV_WORK_QUEUED' });
  t.is(cache.counts().admissiblePages, admissiblePages);
  t.is(cache.metrics.detachedRows, 1);
  cache.completeStep(1);
  for (const sequence of [third, ...pairs.flatMap(({ parent, fork }) => [parent, fork])]) sequence.release();
});

cacheTests('a prompt that lacks a row is refused before the slot that it would get gives up its text', { rows: 8, slots: 2 }, (t, bench) => {
  const { cache } = bench;
  const speaker = new Speaker(cache);
  speaker.say(tokensOf(1, rowTokens)).release();
  const running = bench.sequenceOf(4 * rowTokens);
  const { unmaps } = cache.metrics;
  t.throws(() => cache.acquire({ promptTokens: 5 * rowTokens }), { code: 'KV_OUT_OF_PAGES' });
  t.is(cache.metrics.unmaps, unmaps);
  running.release();
  const again = cache.acquire({ tokens: [...tokensOf(1, rowTokens), 1] });
  t.is(again.cachedBy.adoptedTokens, rowTokens);
  again.release();
});

test('what is admissible counts what other caches of the pool can give back, and not what is earmarked for them', (t) => {
  const { driver, device } = openDriver();
  const pool = new PagePool({ driver, pageBytes, memoryBudgetBytes: 20 * 4 * pageBytes });
  const [a, b] = [1, 2].map(() => new KvCache({ model: tinyModel, slots: 2, maxTokens: 1024, growth: onDemand(), pool })) as [KvCache, KvCache];
  new Speaker(a).say(tokensOf(1, 5 * rowTokens)).release();
  for (const cache of [a, b]) t.like(cache.counts(), { admissiblePages: 80, admissibleTokens: 1024 });
  const earmarked = a.acquire({ promptTokens: 8 * rowTokens });
  for (const cache of [a, b]) t.like(cache.counts(), { admissiblePages: 48, admissibleTokens: 12 * rowTokens });
  t.throws(() => b.acquire({ promptTokens: 12 * rowTokens + 1 }), { code: 'KV_OUT_OF_PAGES' });
  const sequences = [b.acquire({ promptTokens: 12 * rowTokens }), b.acquire({})];
  t.like(b.counts(), { admissiblePages: 0, admissibleTokens: 0 });
  for (const sequence of [earmarked, ...sequences]) sequence.release();
  const both = [b.acquire(), b.acquire()];
  t.like(b.counts(), { admissiblePages: 80, admissibleTokens: 0 });
  for (const sequence of both) sequence.release();
  a.close();
  b.close();
  pool.close();
  assertNothingLeft(t, driver, device);
});
