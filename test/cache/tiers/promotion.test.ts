// What a user of tiers sees: text that the device has no room for comes back, exact to the token, from the tier that has it; what is damaged
// is a miss; and nothing that runs waits or is refused for it.

import test from 'ava';

import { hostTier, isKvError, layoutKinds, type Tier } from 'virtual-kv';

import { CacheBench, drivers } from '../../helpers/cache.js';
import { dropFromDevice, turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, model, serve, textOf } from './tier-bench.js';
import { slow } from '../../runner/slow.js';

const MiB = 2 ** 20;

for (const on of drivers) {
  for (const layout of layoutKinds) {
    test(`text that was dropped from the device comes back from host memory, to the token (${on}, ${layout})`, async (t) => {
      const bench = benchOf(t, [hostTier({ bytes: 64 * MiB })], { on, layout });
      const { prefixes } = bench.cache;
      const text = textOf(1000);
      serve(bench, text, 5);
      await prefixes.tiers!.settled();
      dropFromDevice(bench.cache);
      t.like(prefixes.lookup({ tokens: text }), { cachedTokens: 0, demotedTokens: 999 });
      // Another text that agrees for 500 tokens, which end inside a block.
      const other = Int32Array.from([...text.subarray(0, 500), ...textOf(100, 7)]);
      t.like(await prefixes.promote({ tokens: other }), { cachedTokens: 500, promotedTokens: 500, promotedFrom: { host: 500 }, end: 'complete' });
      t.like(prefixes.lookup({ tokens: text }), { cachedTokens: 500, demotedTokens: 499 });
      t.like(await prefixes.promote({ tokens: text }), { cachedTokens: 1000, promotedTokens: 500, end: 'complete' });
      t.deepEqual(serve(bench, text, 5), { found: 999, wrong: 0, demoted: 0 });
      t.like(await prefixes.promote({ tokens: text }), { cachedTokens: 1000, promotedTokens: 0, end: 'complete' });
      await close(bench);
    });
  }
}

test('of a stored block no token behind those that agree is taken for text that a running sequence alone has', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 64 * MiB })]);
  const { cache } = bench;
  const text = textOf(20);
  serve(bench, text, 3);
  await cache.prefixes.tiers!.settled();
  dropFromDevice(cache);
  const other = Int32Array.from([...text.subarray(0, 8), ...textOf(12, 7)]);
  const running = cache.acquire({ tokens: other });
  const batch = cache.createBatch();
  batch.add(running, 12);
  cache.prepare(batch);
  cache.stamp(running, 0, 12, 9);
  cache.commit(batch, { fence: { step: 1 } }); // so nothing can be copied from it now
  const promoted = await cache.prefixes.promote({ tokens: other });
  t.like(promoted, { cachedTokens: 12, promotedTokens: 0, end: 'complete' });
  running.truncate(0);
  t.true(cache.prefixes.lookup({ tokens: other }).cachedTokens <= 8);
  cache.completeStep(1);
  running.release();
  await close(bench);
});

test('a tier of the user\'s own that outlives the cache serves the next one, under another layout and page size', async (t) => {
  const tier = new PlainTier('mine');
  const first = benchOf(t, [tier]);
  const text = textOf(300);
  serve(first, text, 9);
  await close(first);
  t.is(tier.blocks.size, 19, '18 whole blocks and one of 12 tokens');
  const again = new PlainTier('mine');
  for (const [key, block] of tier.blocks) again.blocks.set(key, block);
  const second = benchOf(t, [again], { on: 'host', layout: 'fused', pageBytes: 2 * 65_536 });
  await second.cache.prefixes.tiers!.ready();
  t.like(await second.cache.prefixes.promote({ tokens: text }), { promotedFrom: { mine: 300 }, end: 'complete' });
  t.deepEqual(serve(second, text, 9), { found: 299, wrong: 0, demoted: 0 });
  await close(second);
});

test('every flipped bit of a stored block is a miss, what comes before it is found, and the block is dropped', async (t) => {
  for (const flip of [0, 1, 4095, 4096, 8191]) { // a block has 2 x 2 stripes of 4,096 bytes
    const tier = new PlainTier('mine');
    const bench = benchOf(t, [tier]);
    const text = textOf(64);
    serve(bench, text, 3);
    await bench.cache.prefixes.tiers!.settled();
    dropFromDevice(bench.cache);
    const third = [...tier.blocks.values()].find(({ record }) => record.position === 32)!;
    third.payload[flip]! ^= 1 << (flip % 8);
    t.like(await bench.cache.prefixes.promote({ tokens: text }), { cachedTokens: 32, promotedFrom: { mine: 32 }, end: 'corrupt' });
    t.false(tier.blocks.has(third.record.key));
    t.deepEqual(serve(bench, text, 3), { found: 32, wrong: 0, demoted: 0 });
    t.is(bench.cache.prefixes.tiers!.metrics().tiers[0]!.damagedBlocks, 1);
    await close(bench);
  }
});

test('what is damaged in one tier comes from the next', async (t) => {
  const [fast, slow] = [new PlainTier('fast'), new PlainTier('slow')];
  const bench = benchOf(t, [fast, slow]);
  const text = textOf(64);
  serve(bench, text, 3);
  await bench.cache.prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  for (const { payload } of fast.blocks.values()) payload.fill(0);
  t.like(await bench.cache.prefixes.promote({ tokens: text }), { cachedTokens: 64, promotedFrom: { slow: 64 }, end: 'complete' });
  t.is(fast.blocks.size, 0);
  t.deepEqual(serve(bench, text, 3), { found: 63, wrong: 0, demoted: 0 });
  await close(bench);
});

slow('damages each of many blocks')('of many blocks any may be damaged: those before it are found, and those behind it too where another tier has it', async (t) => {
  const blocks = 40; // five loads, of which two are under way at a time
  const tokens = textOf(16 * blocks);
  for (let damaged = 0; damaged < blocks; damaged += 1) {
    const [fast, slow] = [new PlainTier('fast'), new PlainTier('slow')];
    const bench = benchOf(t, damaged % 2 === 0 ? [fast] : [fast, slow]);
    serve(bench, tokens, 3);
    await bench.cache.prefixes.tiers!.settled();
    dropFromDevice(bench.cache);
    for (const { record: { position }, payload } of fast.blocks.values()) if (position === 16 * damaged) payload[position % payload.length]! ^= 1;
    const cachedTokens = damaged % 2 === 0 ? 16 * damaged : 16 * blocks;
    const end = damaged % 2 === 0 ? 'corrupt' : 'complete';
    t.like(await bench.cache.prefixes.promote({ tokens }), { cachedTokens, promotedTokens: cachedTokens, end });
    t.is(fast.blocks.size, blocks - 1);
    bench.cache.verify();
    t.deepEqual(serve(bench, tokens, 3), { found: Math.min(cachedTokens, tokens.length - 1), wrong: 0, demoted: 0 });
    await close(bench);
  }
});

test('another model, tenant, salt or adapter finds nothing', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier]);
  const tokens = textOf(64);
  serve(bench, tokens, 3);
  await bench.cache.prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  for (const domain of [{ tenant: 'a' }, { salt: 'a' }, { adapter: 'a' }]) {
    t.like(await bench.cache.prefixes.promote({ tokens, ...domain }), { cachedTokens: 0, promotedTokens: 0 });
  }
  bench.cache.prefixes.setNamespace('new weights');
  t.like(await bench.cache.prefixes.promote({ tokens }), { cachedTokens: 0, promotedTokens: 0 });
  bench.cache.prefixes.setNamespace('');
  t.like(await bench.cache.prefixes.promote({ tokens }), { cachedTokens: 64 });
  await close(bench);
});

test('text with images is stored by the images\' contents', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier]);
  const tokens = textOf(100);
  const prompt = (hash: string) => ({ tokens, items: [{ at: 20, length: 30, kind: 'item' as const, hash }] });
  const sequence = bench.cache.acquire(prompt('cat'));
  bench.compute(sequence, 100);
  sequence.release();
  await close(bench);
  const again = new PlainTier('mine');
  for (const [key, block] of tier.blocks) again.blocks.set(key, block);
  const other = benchOf(t, [again]);
  await other.cache.prefixes.tiers!.ready();
  t.like(await other.cache.prefixes.promote(prompt('dog')), { cachedTokens: 20 }, 'up to the image');
  t.like(await other.cache.prefixes.promote(prompt('cat')), { cachedTokens: 100 });
  await close(other);
});

test('requests that want the memory of a promotion get it', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier], { memoryBudgetBytes: 16 * 65_536 }); // 4 rows of 256 tokens
  const { cache } = bench;
  const text = textOf(800);
  serve(bench, text, 3);
  await cache.prefixes.tiers!.settled();
  dropFromDevice(cache);
  const { get } = tier;
  const waiting: (() => void)[] = [];
  tier.get = async function slow(key, payload) {
    if (tier.blocks.get(key)!.record.position > 400) await new Promise<void>((resolve) => { waiting.push(resolve); });
    return get.call(this, key, payload);
  };
  const promotion = cache.prefixes.promote({ tokens: text });
  while (waiting.length === 0) await turn();
  const sequence = cache.acquire({ tokens: textOf(1024, 1) });
  bench.compute(sequence, 1024);
  for (const go of waiting) go();
  const { end, cachedTokens } = await promotion;
  t.is(end, 'no-memory');
  t.true(cachedTokens < 800);
  sequence.release();
  cache.verify();
  await close(bench);
});

test('promotions of the same text share one load, and all slots stay with the users', async (t) => {
  const tier = new PlainTier('mine');
  let gets = 0;
  const { get } = tier;
  tier.get = function counting(key, payload) {
    gets += 1;
    return get.call(this, key, payload);
  };
  const bench = benchOf(t, [tier]);
  const { cache } = bench;
  const tokens = textOf(320);
  serve(bench, tokens, 3);
  await cache.prefixes.tiers!.settled();
  dropFromDevice(cache);
  const running = Array.from({ length: 4 }, (_, index) => cache.acquire({ tokens: textOf(10, 1000 + index) }));
  const error = t.throws(() => cache.acquire({ tokens }));
  t.true(isKvError(error, 'KV_NO_FREE_SLOT'));
  t.is(cache.counts().idleSlots, 0);
  const promotions = await Promise.all(Array.from({ length: 5 }, () => cache.prefixes.promote({ tokens })));
  t.deepEqual(promotions.map(({ cachedTokens }) => cachedTokens), [320, 320, 320, 320, 320]);
  t.is(promotions.reduce((sum, { promotedTokens }) => sum + promotedTokens, 0), 320);
  t.is(gets, 20);
  for (const sequence of running) sequence.release();
  t.deepEqual(serve(bench, tokens, 3), { found: 319, wrong: 0, demoted: 0 });
  await close(bench);
});

test('a deadline and a cancellation end a promotion where it is', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier]);
  const { prefixes } = bench.cache;
  const tokens = textOf(160);
  serve(bench, tokens, 3);
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  t.like(await prefixes.promote({ tokens, signal: AbortSignal.abort() }), { promotedTokens: 0, end: 'aborted' });
  const { get } = tier;
  const cancel = new AbortController();
  let gets = 0;
  tier.get = function stopping(key, payload) {
    gets += 1;
    if (gets === 12) cancel.abort();
    return get.call(this, key, payload);
  };
  const { cachedTokens, end } = await prefixes.promote({ tokens, signal: cancel.signal });
  t.is(end, gets >= 12 ? 'aborted' : 'complete');
  t.is(prefixes.lookup({ tokens }).cachedTokens, Math.min(cachedTokens, 159));
  tier.get = () => new Promise(() => { /* it never answers */ });
  const other = textOf(160, 3);
  serve(bench, other, 4);
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  const slow: Tier['get'] = (_key, _payload, signal) => new Promise((resolve) => {
    signal!.addEventListener('abort', () => { resolve({ isFound: false, reason: 'timeout' }); });
  });
  tier.get = slow;
  t.like(await prefixes.promote({ tokens: other, deadlineMs: 1 }), { promotedTokens: 0, end: 'deadline' });
  await close(bench);
});

test('a deadline beyond the longest timer of Node is none that has passed', async (t) => {
  const bench = benchOf(t, [new PlainTier('mine')]);
  const { prefixes } = bench.cache;
  const tokens = textOf(160);
  serve(bench, tokens, 3);
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  const warnings: Error[] = [];
  const hear = (warning: Error): void => { warnings.push(warning); };
  process.on('warning', hear);
  t.like(await prefixes.promote({ tokens, deadlineMs: 2 ** 40 }), { end: 'complete' });
  process.off('warning', hear);
  t.deepEqual(warnings, []);
  await close(bench);
});

test('a tier that throws, refuses or has gone costs its hits and nothing else', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier]);
  const tokens = textOf(64);
  tier.put = () => { throw new Error('no'); };
  serve(bench, tokens, 3);
  await bench.cache.prefixes.tiers!.settled();
  t.is(bench.cache.prefixes.tiers!.metrics().tiers[0]!.refusals.failed, 4);
  delete (tier as Partial<PlainTier>).put;
  serve(bench, tokens, 3);
  await bench.cache.prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  tier.get = () => Promise.reject(new Error('gone'));
  t.like(await bench.cache.prefixes.promote({ tokens }), { cachedTokens: 0, end: 'unreachable' });
  t.deepEqual(serve(bench, tokens, 3), { found: 0, wrong: 0, demoted: 63 });
  await close(bench);
});

test('reset drops what tiers have too', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 8 * MiB }), new PlainTier('mine')]);
  const { prefixes } = bench.cache;
  const tokens = textOf(100);
  serve(bench, tokens, 3);
  await prefixes.tiers!.settled();
  prefixes.reset();
  t.like(await prefixes.promote({ tokens }), { cachedTokens: 0, promotedTokens: 0 });
  t.deepEqual(prefixes.tiers!.metrics().tiers.map(({ blocks }) => blocks), [0, 0]);
  await close(bench);
});

test('a full tier drops the ends of what was used longest ago', async (t) => {
  // A block of 16 tokens has 16 KiB: room for 20.
  const bench = benchOf(t, [hostTier({ bytes: 20 * 16 * 1024 })]);
  const { prefixes } = bench.cache;
  for (const first of [1, 2, 3]) {
    serve(bench, textOf(128, first), first);
    await prefixes.tiers!.settled();
  }
  dropFromDevice(bench.cache);
  const demoted = [1, 2, 3].map((first) => prefixes.lookup({ tokens: textOf(129, first) }).demotedTokens);
  t.deepEqual(demoted, [64, 128, 128]);
  await close(bench);
});

test('a cache whose tiers outlive it must say whose weights it has; a tier has one cache', async (t) => {
  const open = (tiers: readonly Tier[], modelId?: string): CacheBench =>
    new CacheBench(t, { model, prefixCache: { tiers, modelId } });
  t.true(isKvError(t.throws(() => open([new PlainTier('mine')])), 'KV_INVALID_OPTION'));
  t.true(isKvError(t.throws(() => open([new PlainTier('a'), new PlainTier('a')], 'm')), 'KV_INVALID_OPTION'));
  t.true(isKvError(t.throws(() => open([{} as Tier], 'm')), 'KV_INVALID_OPTION'));
  const tier = hostTier({ bytes: MiB });
  const bench = open([tier]);
  await bench.cache.prefixes.tiers!.ready();
  const other = open([tier]);
  t.true(isKvError(await t.throwsAsync(other.cache.prefixes.tiers!.ready()), 'KV_INVALID_OPTION'));
  await close(other);
  await close(bench);
});

