// Text that is dropped: what goes, what stays, and what becomes of sequences that are computing it.

import { subscribe, unsubscribe } from 'node:diagnostics_channel';

import test from 'ava';

import { EncoderCache, type AcquireOptions, type PrefixDroppedEvent, type Sequence } from 'virtual-kv';

import { Random } from '#internal/base/random.js';

import { cacheTest, cacheTests, rowTokens, withCache } from '../../helpers/cache.js';
import { seedOf } from '../../helpers/seed.js';
import { domainOf, Speaker, tokensOf } from './spoken.js';

const found = ({ cache }: Speaker, tokens: readonly number[], options: AcquireOptions = {}): number =>
  cache.prefixes.lookup({ tokens: [...tokens, 1], ...options }).cachedTokens;

cacheTests('a text goes up to where another one goes on differently, and what continues it goes with it', {}, async (t, { cache }) => {
  const speaker = new Speaker(cache);
  const start = tokensOf(1, rowTokens + 20);
  const [one, other] = [[...start, ...tokensOf(2, 50)], [...start, ...tokensOf(3, 50)]];
  for (const text of [one, [...one, ...tokensOf(4, 30)], other]) speaker.say(text).release();
  const dropped = await cache.prefixes.drop({ tokens: one });
  t.like(dropped, { sequences: 0, tierBlocks: 0, unreachedTiers: [] });
  t.true(dropped.rows > 0);
  t.is(found(speaker, [...one, ...tokensOf(4, 30)]), start.length);
  t.is(found(speaker, other), other.length);
  const again = speaker.say(one);
  t.is(again.cachedTokens, start.length);
  t.is(speaker.wrongTokens(again, one), 0);
  again.release();
  await cache.prefixes.drop({ tokens: start });
  t.is(found(speaker, one), 0);
  t.is(found(speaker, other), 0);
  t.is(cache.counts().cachedRows, 0);
  t.like(cache.prefixes.metrics, { drops: 2, distrusts: 0 });
});

cacheTests('a text that is no more than the start of what is dropped goes too', {}, async (t, { cache }) => {
  const speaker = new Speaker(cache);
  const text = tokensOf(1, 200);
  speaker.say(text.slice(0, 150)).release();
  await cache.prefixes.drop({ tokens: text });
  t.is(cache.counts().cachedRows, 0);
  t.like(cache.prefixes.explain({ tokens: text }), { reason: 'evicted', dropReason: 'dropped', tokens: 0 });
});

cacheTests('a sequence of dropped text keeps what it uses, and is not cached any more', {}, async (t, { cache }) => {
  const speaker = new Speaker(cache);
  const text = tokensOf(1, 2 * rowTokens + 10);
  const first = speaker.say(text);
  first.keepValue('logits');
  const second = speaker.say([...text, ...tokensOf(2, 5)]);
  t.true(second.cachedTokens > 0);
  const dropping = cache.prefixes.drop({ tokens: text });
  t.is(found(speaker, text), 0, 'at once');
  t.is((await dropping).sequences, 2);
  t.false(first.keepValue('logits'));
  const longer = speaker.goOn(first, text, tokensOf(3, rowTokens));
  const fork = first.fork();
  t.is(found(speaker, longer), 0);
  t.is(speaker.wrongTokens(first, longer), 0);
  t.is(speaker.wrongTokens(second, [...text, ...tokensOf(2, 5)]), 0);
  const longest = speaker.goOn(fork, longer, [7, 8, 9]);
  t.is(speaker.wrongTokens(fork, longest), 0);
  for (const sequence of [first, second, fork]) sequence.release();
  t.is(found(speaker, longer), 0);
  speaker.say(text).release();
  t.is(found(speaker, text), text.length, 'what is computed after it is cached as ever');
});

cacheTests('text that is still to be computed is not cached either', {}, async (t, { cache }) => {
  const speaker = new Speaker(cache);
  const text = tokensOf(1, 3 * rowTokens);
  const sequence = cache.acquire({ tokens: text });
  t.is((await cache.prefixes.drop({ tokens: text.slice(0, rowTokens) })).sequences, 1);
  speaker.compute(sequence, text, text.length);
  t.is(found(speaker, text), 0);
  t.is(cache.prefixes.lookup({ tokens: text }).pendingTokens, 0);
  sequence.release();
  t.is(found(speaker, text), 0);
});

cacheTests('text of a tenant, an adapter, a salt or a namespace goes, and no other', {}, async (t, { cache }) => {
  const speaker = new Speaker(cache);
  const text = tokensOf(1, rowTokens);
  const owners: AcquireOptions[] = [{}, { tenant: 'a' }, { tenant: 'a', adapter: 'x' }, { tenant: 'b', adapter: 'x' }, { tenant: 'b', salt: 's' }];
  for (const owner of owners) speaker.say(text, owner).release();
  const left = (): number[] => owners.map((owner) => Math.min(1, found(speaker, text, owner)));
  await cache.prefixes.drop({ adapter: 'x' });
  t.deepEqual(left(), [1, 1, 0, 0, 1]);
  await cache.prefixes.drop({ tenant: 'b', salt: 's' });
  t.deepEqual(left(), [1, 1, 0, 0, 0]);
  await cache.prefixes.drop({ tokens: text });
  t.deepEqual(left(), [0, 1, 0, 0, 0], 'tokens are of one domain');
  cache.prefixes.setNamespace('v2');
  speaker.say(text).release();
  await cache.prefixes.drop({ namespace: '' });
  t.deepEqual(left(), [1, 0, 0, 0, 0]);
  cache.prefixes.setNamespace('');
  t.deepEqual(left(), [0, 0, 0, 0, 0]);
  await cache.prefixes.drop({ tokens: text, namespace: 'v2' });
  t.is(cache.counts().cachedRows, 0);
});

cacheTest('side tensors and items in an encoder cache go with the text', { sideTensors: { hidden: { width: 8, dtype: 'float32' } }, handOverSlots: 2 }, async (t, bench) => {
  const { cache } = bench;
  const items = [{ at: 0, length: 4, kind: 'item' as const, hash: 'cat' }];
  const tokens = [-1, -1, -1, -1, ...tokensOf(1, rowTokens)];
  const sequence = cache.acquire({ tokens, items, tenant: 'a' });
  bench.prepare(sequence, tokens.length);
  sequence.writeSide(0, { hidden: new Float32Array(8 * tokens.length) });
  bench.commit();
  sequence.release();
  const encoder = new EncoderCache({ budgetBytes: 1024, kinds: { image: { width: 4, dtype: 'float32' } } });
  const name = (hash: string, tenant: string) => ({ kind: 'image', hash, domain: { tenant } });
  for (const each of [name('cat', 'a'), name('dog', 'a'), name('cat', 'b')]) {
    (await encoder.acquire({ ...each, compute: () => new Float32Array(16) })).release();
  }
  t.is(cache.prefixes.lookup({ tokens, items, tenant: 'a' }).cachedTokens, tokens.length - 1);
  await cache.prefixes.drop({ tokens, items, tenant: 'a', encoders: [encoder] });
  t.is(cache.prefixes.lookup({ tokens, items, tenant: 'a' }).cachedTokens, 0);
  t.is(cache.sideCounts().usedBytes, 0);
  t.deepEqual([encoder.has(name('cat', 'a')), encoder.has(name('dog', 'a')), encoder.has(name('cat', 'b'))], [false, true, true]);
  await cache.prefixes.drop({ tenant: 'a', encoders: [encoder] });
  t.deepEqual([encoder.has(name('dog', 'a')), encoder.has(name('cat', 'b'))], [false, true]);
  encoder.close();
});

cacheTest('a drop is told, and one of nothing in particular is refused', {}, async (t, { cache }) => {
  const told: PrefixDroppedEvent[] = [];
  const listen = (event: unknown): void => { if ((event as PrefixDroppedEvent).cache === cache) told.push(event as PrefixDroppedEvent); };
  subscribe('virtual-kv:prefix-dropped', listen);
  const speaker = new Speaker(cache);
  speaker.say(tokensOf(1, rowTokens)).release();
  await cache.prefixes.drop({ tokens: tokensOf(1, rowTokens) });
  unsubscribe('virtual-kv:prefix-dropped', listen);
  t.like(told, [{ reason: 'asked', rows: 1, sequences: 0, tierBlocks: 0 }]);
  for (const wrong of [{}, { tokens: [] }, { tokens: [], tenant: 'a' }, { tokens: [-1] }, { tenant: 1 }, { encoders: [cache], tenant: 'a' }, { salts: 's' }]) {
    await t.throwsAsync(cache.prefixes.drop(wrong as never), { code: 'salts' in wrong ? 'KV_UNKNOWN_OPTION' : 'KV_INVALID_OPTION' });
  }
});

/** Tokens in which two texts agree. */
function agreed(a: readonly number[], b: readonly number[]): number {
  let at = 0;
  while (at < a.length && a[at] === b[at]) at += 1;
  return at;
}

const seed = seedOf('dropped-text');
const scale = Number(process.env['VKV_TEST_SCALE'] ?? 1);

for (const [title, options] of [
  ['room for everything', { rows: 200 }], ['short of pages', { rows: 12 }], ['a small pool', { rows: 200, prefixCache: { poolRows: 6 } }],
] as const) {
  test(`after each drop among random requests none finds dropped text, bytes are right and counts agree, seed ${seed} (${title})`, async (t) => {
    await withCache(t, { slots: 6, ...options }, async ({ cache }) => {
      const random = new Random(seed);
      const speaker = new Speaker(cache);
      const running: { sequence: Sequence; text: number[]; options: AcquireOptions; isDropped: boolean }[] = [];
      /** Texts that may be cached, by domain. */
      const texts = new Map<string, number[][]>();
      const known = (owner: AcquireOptions): number[][] => texts.get(domainOf(owner)) ?? texts.set(domainOf(owner), []).get(domainOf(owner))!;
      const makeText = (): number[] => Array.from({ length: 1 + random.integer(4) }, () => tokensOf(random.integer(3), 1 + random.integer(90))).flat();
      for (let turn = 0; turn < 150 * scale; turn += 1) {
        const owner: AcquireOptions = random.integer(3) === 0 ? { tenant: 'a' } : {};
        const choice = random.integer(10);
        if (choice < 4 && running.length < 6) {
          const text = makeText();
          try {
            running.push({ sequence: speaker.say(text, owner), text, options: owner, isDropped: false });
            known(owner).push(text);
          } catch { /* no room */ }
        } else if (choice < 6 && running.length > 0) {
          const one = running[random.integer(running.length)]!;
          try {
            one.text = speaker.goOn(one.sequence, one.text, tokensOf(random.integer(3), 1 + random.integer(40)), domainOf(one.options));
            if (!one.isDropped) known(one.options).push(one.text);
          } catch { /* no room: it does not say it */
            one.sequence.truncate(one.sequence.length);
          }
        } else if (choice < 8 && running.length > 0) {
          const [one] = running.splice(random.integer(running.length), 1);
          t.is(speaker.wrongTokens(one!.sequence, one!.text, domainOf(one!.options)), 0);
          one!.sequence.release();
        } else if (choice === 8) {
          const all = known(owner);
          const whole = all.length > 0 && random.integer(4) > 0 ? all[random.integer(all.length)]! : makeText();
          const text = whole.slice(0, 1 + random.integer(whole.length));
          const goes = (other: readonly number[]): boolean => agreed(text, other) === Math.min(text.length, other.length);
          const dropping = cache.prefixes.drop({ tokens: text, ...owner });
          cache.verify();
          texts.set(domainOf(owner), all.filter((other) => !goes(other)));
          for (const one of running) if (domainOf(one.options) === domainOf(owner) && goes(one.text)) one.isDropped = true;
          const most = Math.max(0, ...known(owner).map((other) => agreed(text, other)));
          t.true(found(speaker, text, owner) <= most, `turn ${turn}: ${found(speaker, text, owner)} of ${text.length} tokens found, ${most} are another's`);
          await dropping;
        } else if (random.integer(4) === 0) {
          await cache.prefixes.drop({ tenant: 'a' });
          texts.set(domainOf({ tenant: 'a' }), []);
          for (const one of running) one.isDropped ||= one.options.tenant === 'a';
          t.is(found(speaker, makeText(), { tenant: 'a' }), 0);
        }
        cache.verify();
      }
      for (const { sequence } of running) sequence.release();
    });
  });
}
