// How a request gets cached tokens: by adoption, alias and copy; and what of it is memory that two sequences share.

import test from 'ava';

import { cacheTest, cacheTests, rowTokens } from '../../helpers/cache.js';
import { nativeOf } from '../../helpers/native-of.js';
import { Speaker, tokensOf } from './spoken.js';

const prompt = tokensOf(1, 3 * rowTokens + 10);
const { length } = prompt;

cacheTests('the next turn of a conversation adopts its slot: nothing is mapped for what was said, nothing copied', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const first = speaker.say(prompt);
  const { slot } = first;
  first.release();
  const before = bench.cache.metrics;
  const turn = [...prompt, ...tokensOf(2, 20)];
  const second = bench.cache.acquire({ tokens: turn, reserve: 'none' });
  t.is(second.slot, slot);
  t.is(second.cachedTokens, length);
  t.deepEqual(second.cachedBy, { adoptedTokens: length, aliasedTokens: 0, copiedTokens: 0 });
  t.like(bench.cache.metrics, { foregroundMaps: before.foregroundMaps, unmaps: before.unmaps, copiedBytes: 0, aliasMaps: 0 });
  speaker.compute(second, turn, 20);
  t.is(speaker.wrongTokens(second, turn), 0);
});

cacheTests('a running sequence is aliased from, its last row copied up to the token', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const first = speaker.say(prompt);
  const other = [...prompt.slice(0, 2 * rowTokens + 7), ...tokensOf(3, 50)];
  const second = speaker.say(other);
  t.deepEqual(second.cachedBy, { adoptedTokens: 0, aliasedTokens: 2 * rowTokens, copiedTokens: 7 });
  t.is(bench.cache.metrics.aliasedRows, 2);
  t.is(bench.pool().mappedPages, 4 * (4 + 3 - 2));
  t.is(speaker.wrongTokens(first, prompt), 0);
  t.is(speaker.wrongTokens(second, other), 0);
});

cacheTests('a prompt that leaves an idle text near its end takes its slot over: what lies behind is unmapped, and stays cached', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const first = speaker.say(prompt);
  const { slot } = first;
  first.release();
  const other = [...prompt.slice(0, 3 * rowTokens), ...tokensOf(3, 50)];
  const second = bench.cache.acquire({ tokens: other, reserve: 'none' });
  t.is(second.slot, slot);
  t.deepEqual(second.cachedBy, { adoptedTokens: 3 * rowTokens, aliasedTokens: 0, copiedTokens: 0 });
  t.like(bench.cache.metrics, { aliasMaps: 0, unmaps: 4 });
  speaker.compute(second, other, 50);
  const again = speaker.say(prompt);
  t.is(again.cachedTokens, length - 1);
  for (const [sequence, text] of [[second, other], [again, prompt]] as const) t.is(speaker.wrongTokens(sequence, text), 0);
});

cacheTests('an idle text keeps its slot where more lies behind the match than the match has', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const first = speaker.say(prompt);
  const { slot } = first;
  first.release();
  const other = [...prompt.slice(0, rowTokens), ...tokensOf(3, 50)];
  const second = speaker.say(other);
  t.not(second.slot, slot);
  t.deepEqual(second.cachedBy, { adoptedTokens: 0, aliasedTokens: rowTokens, copiedTokens: 0 });
  t.is(bench.cache.metrics.unmaps, 0);
  for (const [sequence, text] of [[second, other], [speaker.say([...prompt, 1]), [...prompt, 1]]] as const) t.is(speaker.wrongTokens(sequence, text), 0);
});

cacheTests('a prompt that is cached as a whole leaves one token to compute', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  for (const tokens of [prompt, prompt.slice(0, 2 * rowTokens), [5]]) {
    speaker.say(tokens).release();
    const again = bench.cache.acquire({ tokens });
    t.is(again.cachedTokens, tokens.length - 1);
    speaker.compute(again, tokens, 1);
    t.is(speaker.wrongTokens(again, tokens), 0);
    again.release();
  }
});

cacheTests('rows outlive their slot when another request takes it', { slots: 1 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  speaker.say(prompt).release();
  const other = speaker.say(tokensOf(9, rowTokens));
  t.is(other.cachedTokens, 0);
  other.release();
  const again = speaker.say([...prompt, 1]);
  t.deepEqual(again.cachedBy, { adoptedTokens: 0, aliasedTokens: 3 * rowTokens, copiedTokens: 10 });
  t.is(speaker.wrongTokens(again, [...prompt, 1]), 0);
});

cacheTests('what a sequence has generated and announced is cached too', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const sequence = speaker.say(prompt);
  let text = prompt;
  for (const token of tokensOf(4, 70)) text = speaker.goOn(sequence, text, [token]);
  sequence.release();
  const next = bench.cache.acquire({ tokens: [...text, 1, 2] });
  t.is(next.cachedTokens, text.length);
  t.is(speaker.wrongTokens(next, text), 0);
});

cacheTests('tokens computed without being announced end what is cached', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const sequence = speaker.say(prompt);
  bench.compute(sequence, 1);
  sequence.append([8, 9]);
  bench.compute(sequence, 2);
  sequence.release();
  t.is(bench.cache.prefixes.lookup({ tokens: [...prompt, 7, 8, 9, 1] }).cachedTokens, length);
});

cacheTests('only committed tokens are found', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const sequence = bench.cache.acquire({ tokens: prompt });
  speaker.compute(sequence, prompt, 70);
  bench.prepare(sequence, 50);
  t.is(bench.cache.prefixes.lookup({ tokens: prompt }).cachedTokens, 70);
  bench.discard();
  t.is(bench.cache.prefixes.lookup({ tokens: prompt }).cachedTokens, 70);
});

cacheTests('an identical prompt that is being computed is announced as pending', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const first = bench.cache.acquire({ tokens: prompt });
  t.is(first.pendingTokens, 0);
  speaker.compute(first, prompt, 100);
  t.like(bench.cache.prefixes.lookup({ tokens: prompt }), { cachedTokens: 100, pendingTokens: length - 1, demotedTokens: 0 });
  const second = bench.cache.acquire({ tokens: prompt });
  t.is(second.cachedTokens, 100);
  t.is(second.pendingTokens, length - 1);
  t.is(bench.cache.prefixes.lookup({ tokens: [...prompt.slice(0, 150), 1] }).pendingTokens, 150);
});

cacheTests('what a sequence takes back of its prompt, and what it has not computed then, is pending no more', {}, (t, bench) => {
  const { prefixes } = bench.cache;
  const speaker = new Speaker(bench.cache);
  const first = bench.cache.acquire({ tokens: prompt });
  speaker.compute(first, prompt, 100);
  first.truncate(80);
  t.is(prefixes.lookup({ tokens: prompt }).pendingTokens, 80);
  first.append(tokensOf(2, 50));
  t.is(prefixes.lookup({ tokens: [...prompt.slice(0, 80), ...tokensOf(2, 50), ...prompt.slice(130), 1] }).pendingTokens, 80);
  const second = bench.cache.acquire({ tokens: prompt });
  second.truncate(second.length); // forgets the rest of its prompt alone
  t.is(prefixes.lookup({ tokens: prompt }).pendingTokens, 80);
});

cacheTests('two that computed the same text at the same time keep their own bytes, one copy is cached', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const [a, b] = [bench.cache.acquire({ tokens: prompt }), bench.cache.acquire({ tokens: prompt })];
  for (const sequence of [a, b]) speaker.compute(sequence, prompt, length);
  bench.cache.verify();
  a.release();
  b.release();
  bench.cache.verify();
  t.is(bench.cache.counts().pooledRows, 4);
  const next = speaker.say([...prompt, 3]);
  t.is(next.cachedTokens, length);
  t.is(speaker.wrongTokens(next, [...prompt, 3]), 0);
});

for (const [caching, stored, found] of [
  ['read-write', true, true], ['read', false, true], ['write', true, false], ['off', false, false],
] as const) {
  cacheTests(`caching: '${caching}' ${stored ? 'stores' : 'does not store'} and ${found ? 'finds' : 'does not find'}`, {}, (t, bench) => {
    const speaker = new Speaker(bench.cache);
    const known = tokensOf(5, 100);
    speaker.say(known).release();
    t.is(bench.cache.acquire({ tokens: [...known, 1], caching }).cachedTokens, found ? 100 : 0);
    speaker.say(prompt, { caching }).release();
    t.is(bench.cache.prefixes.lookup({ tokens: [...prompt, 1] }).cachedTokens, stored ? length : 0);
  });
}

cacheTests('prefixCache: off shares nothing', { prefixCache: 'off' }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const first = speaker.say(prompt);
  t.is(speaker.say(prompt).cachedTokens, 0);
  first.append(1);
  first.release();
  t.is(bench.cache.acquire({ tokens: prompt }).cachedTokens, 0);
  t.is(bench.cache.counts().cachedRows, 0);
});

for (const [title, a, b] of [
  ['tenants', { tenant: 'a' }, { tenant: 'b' }], ['salts', { salt: 'a' }, { salt: 'b' }],
  ['adapters', { adapter: 'a' }, { adapter: 'b' }], ['an adapter and a salt of the same name', { adapter: 'a' }, { salt: 'a' }],
  ['an empty salt and none', { salt: '' }, {}], ['an empty tenant and none', { tenant: '' }, {}],
  ['an empty adapter and none', { adapter: '' }, {}], ['a tenant and a salt of the same name', { tenant: 'a' }, { salt: 'a' }],
] as const) {
  cacheTests(`${title} are apart`, {}, (t, bench) => {
    const speaker = new Speaker(bench.cache);
    speaker.say(prompt, a).release();
    t.is(bench.cache.prefixes.lookup({ tokens: prompt, ...b }).cachedTokens, 0);
    const other = speaker.say(prompt, b);
    t.is(other.cachedTokens, 0);
    const same = speaker.say(prompt, a);
    t.is(same.cachedTokens, length - 1);
  });
}

cacheTests('scrubbing between tenants leaves shared rows alone', { scrub: 'between-tenants', slots: 2, rows: 10 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const a = { tenant: 'a' };
  const domain = JSON.stringify(['a', undefined, undefined]);
  speaker.say(prompt, a).release();
  const b = speaker.say(tokensOf(8, 2 * rowTokens), { tenant: 'b' });
  const again = speaker.say([...prompt, 4], a);
  t.is(again.cachedTokens, length);
  t.is(speaker.wrongTokens(again, [...prompt, 4], domain), 0);
  b.release();
  again.release();
});

cacheTests('after a change of namespace old prefixes are unreachable', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  speaker.say(prompt).release();
  bench.cache.prefixes.setNamespace('weights 2');
  t.is(bench.cache.prefixes.namespace, 'weights 2');
  t.is(speaker.say(prompt).cachedTokens, 0);
  bench.cache.prefixes.setNamespace('');
  t.is(bench.cache.prefixes.lookup({ tokens: prompt }).cachedTokens, length - 1);
});

cacheTests('reset drops everything, but not under running sequences unless it may preempt them', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  speaker.say(prompt).release();
  const running = speaker.say(tokensOf(6, 100));
  t.throws(() => bench.cache.prefixes.reset(), { code: 'KV_PREFIX_IN_USE' });
  t.is(bench.cache.prefixes.lookup({ tokens: prompt }).cachedTokens, length - 1);
  t.true(bench.cache.prefixes.reset({ preempt: true }) >= 4);
  t.true(running.isReleased);
  t.like(bench.cache.counts(), { cachedRows: 0, pooledRows: 0 });
  t.is(bench.cache.prefixes.lookup({ tokens: prompt }).cachedTokens, 0);
  t.is(bench.pool().mappedPages, bench.cache.counts().reclaimablePages);
});

cacheTests('a reset under running work: nothing is found or stored until it is over, and then nothing is left', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const { prefixes } = bench.cache;
  speaker.say(tokensOf(6, 100)).release({ fence: { step: 1 } });
  const running = speaker.say(prompt);
  bench.prepare(running, 1);
  t.throws(() => prefixes.reset(), { code: 'KV_PREFIX_IN_USE' });
  prefixes.reset({ preempt: true });
  t.true(running.isReleased);
  t.is(prefixes.lookup({ tokens: prompt }).cachedTokens, 0);
  t.is(prefixes.explain({ tokens: prompt }).tokens, 0);
  const blind = speaker.say(prompt);
  t.is(blind.cachedTokens, 0);
  blind.release();
  bench.commit();
  t.is(prefixes.lookup({ tokens: prompt }).cachedTokens, 0);
  bench.cache.completeStep(1);
  t.like(bench.cache.counts(), { cachedRows: 0, pooledRows: 0, retiringSlots: 0 });
  speaker.say(prompt).release();
  t.is(prefixes.lookup({ tokens: prompt }).cachedTokens, length - 1);
  bench.cache.verify();
});

cacheTest('a prompt is cached again once the work that a reset waits for is over, without another call', { device: { streams: 'manual' } }, (t, bench) => {
  const { cache, mock } = bench;
  const speaker = new Speaker(cache);
  const stream = nativeOf(bench.driver).createStream();
  const running = speaker.say(prompt);
  mock.queueWork(stream, [{ address: running.address(0), bytes: 1, access: 'read' }]);
  const batch = bench.batchOf([running, 1]);
  cache.prepare(batch);
  cache.commit(batch, { fence: { stream } });
  cache.prefixes.reset({ preempt: true });
  mock.completeStream(stream);
  speaker.say(prompt).release();
  t.is(cache.prefixes.lookup({ tokens: prompt }).cachedTokens, length - 1);
  nativeOf(bench.driver).destroyStream(stream);
});

const yi = { layers: 60, kvHeads: 4, headDim: 128, dtype: 'float16' } as const;
const shared = tokensOf(1, 5_000);

cacheTests('a shared prefix of 5,000 tokens is 2 rows aliased and 904 tokens copied; the first release leaves them mapped', {
  model: yi, slots: 2, maxTokens: 204_800, pageBytes: 2 ** 21, rows: 8,
}, (t, bench) => {
  const { cache } = bench;
  const a = cache.acquire({ tokens: [...shared, 1] });
  bench.compute(a, 5_001);
  const b = cache.acquire({ tokens: [...shared, 2] });
  t.deepEqual(b.cachedBy, { adoptedTokens: 0, aliasedTokens: 4_096, copiedTokens: 904 });
  t.is(cache.metrics.copiedBytes, 904 * 1_024 * 120);
  bench.compute(b, 1);
  t.is(bench.pool().mappedPages, 4 * 120);
  a.release();
  t.is(b.mappedRows, 3);
  cache.verify();
});

test('two sequences of 33,000 tokens that share 4,096 hold 32 rows = 3,840 pages, not 34', async (t) => {
  const { CacheBench } = await import('../../helpers/cache.js');
  const bench = new CacheBench(t, {
    model: yi, slots: 2, maxTokens: 204_800, pageBytes: 2 ** 21, rows: 40,
    device: { granularityBytes: 2 ** 21, backing: 'none', memoryBytes: 2 ** 40 },
  });
  const prefix = tokensOf(1, 4_096);
  for (const name of [2, 3]) bench.compute(bench.cache.acquire({ tokens: [...prefix, ...tokensOf(name, 28_904)] }), name === 2 ? 33_000 : 28_904);
  t.is(bench.pool().mappedPages, 3_840);
  bench.close();
});


cacheTest('cached rows of the slot that a failed admission would have had can be evicted afterwards', { rows: 6, slots: 2, mapper: 'off' }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const cached = tokensOf(1, 3 * rowTokens);
  speaker.say(cached).release();
  bench.fail('cuMemMap', 1); // of the row that goes on differently
  t.throws(() => bench.cache.acquire({ tokens: [...cached.slice(0, 2 * rowTokens + 10), 1] }), { code: 'KV_DRIVER_CALL_FAILED' });
  bench.forgiveAll();
  t.is(speaker.say(tokensOf(2, 6 * rowTokens)).length, 6 * rowTokens);
});
