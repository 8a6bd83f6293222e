// Priority levels of requests in tiers: what they keep when they are full, and how a level comes to a stored text.

import test from 'ava';

import { hostTier, lru, priority, type EvictionPolicyFactory, type KvCache, type TierKeeping } from 'virtual-kv';

import type { CacheBench } from '../../helpers/cache.js';
import { benchOf, close, textOf } from './tier-bench.js';
import { dropFromDevice } from './device-index.js';

/** Bytes of a token of the bench's model. */
const tokenBytes = 2 * 2 * 128 * 2;
const byLevel = { prefixCache: { policy: priority() } };
const pinned = textOf(64, 100_000);

/** Computes a text of a level and lets it go down; the device keeps nothing. */
async function store({ cache }: CacheBench, tokens: Int32Array, level: number): Promise<void> {
  const sequence = cache.acquire({ tokens, priority: level });
  const count = tokens.length - sequence.cachedTokens;
  const batch = cache.createBatch();
  batch.add(sequence, count);
  cache.prepare(batch);
  cache.stamp(sequence, sequence.cachedTokens, count, 1);
  cache.commit(batch);
  sequence.release();
  await cache.prefixes.tiers!.settled();
  dropFromDevice(cache);
}

function storedTokens(cache: KvCache, tokens: Int32Array): number {
  return cache.prefixes.explain({ tokens }).tiers!.reachableTokens;
}

for (const keeps of ['adaptive', 'important'] satisfies TierKeeping[]) {
  test(`text that is pinned on the device stays in a full tier that keeps '${keeps}', whatever else comes`, async (t) => {
    const bench = benchOf(t, [hostTier({ bytes: 256 * tokenBytes, keeps })], { prefixCache: { policy: priority({ pinnedLevel: 200 }) } });
    const { cache } = bench;
    await store(bench, pinned, 200);
    for (let turn = 0; turn < 20; turn += 1) await store(bench, textOf(64, 1_000 * (1 + turn % 10)), turn % 3);
    t.is(storedTokens(cache, pinned), pinned.length);
    t.true(cache.prefixes.tiers!.metrics().tiers[0]!.evictedBlocks > 20);
    t.like(await cache.prefixes.promote({ tokens: pinned }), { promotedTokens: pinned.length, end: 'complete' });
    await close(bench);
  });
}

test('text never pushes out text of a higher level: it is refused, and `explain` says so', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 64 * tokenBytes })], byLevel);
  const { cache } = bench;
  await store(bench, pinned, 1);
  const other = textOf(48);
  await store(bench, other, 0);
  t.deepEqual([storedTokens(cache, pinned), storedTokens(cache, other)], [64, 0]);
  t.like(cache.prefixes.explain({ tokens: other }).tiers, { absences: { host: 'full' } });
  t.true(cache.prefixes.tiers!.metrics().tiers[0]!.refusals.full > 0);
  await store(bench, other, 1);
  t.deepEqual([storedTokens(cache, pinned), storedTokens(cache, other)], [16, 48], 'of the same level what is used last stays');
  await close(bench);
});

test('text of a level that expires on the device is kept as that of the next lower one that does not', async (t) => {
  const policy = priority({ lifetimeMs: (level) => (level === 0 || level === 2 ? Infinity : 1_000), now: () => 0 });
  const bench = benchOf(t, [hostTier({ bytes: 64 * tokenBytes })], { prefixCache: { policy } });
  const { cache } = bench;
  for (const [level, other] of [[1, 0], [4, 2]] as const) {
    await store(bench, pinned, level);
    const text = textOf(64, 1_000 + 500 * level);
    await store(bench, text, other);
    t.deepEqual([storedTokens(cache, pinned), storedTokens(cache, text)], [0, 64], `level ${level} and ${other}`);
  }
  await store(bench, textOf(64), 1);
  t.is(storedTokens(cache, textOf(64)), 0);
  await close(bench);
});

test('levels count for nothing in tiers where they do not on the device', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 64 * tokenBytes })], {});
  const { cache } = bench;
  await store(bench, pinned, 9);
  await store(bench, textOf(64), 0);
  t.deepEqual([storedTokens(cache, pinned), storedTokens(cache, textOf(64))], [0, 64]);
  await close(bench);
});

test('a policy whose lasting level is none gives way to lru, and is reported once', async (t) => {
  for (const lastingLevel of [() => -1, () => 256, () => 0.5, (): never => { throw new Error('mine'); }]) {
    const policy: EvictionPolicyFactory = (context) => Object.assign(lru()(context), { lastingLevel });
    const bench = benchOf(t, [hostTier({ bytes: 64 * tokenBytes })], { prefixCache: { policy } });
    for (const first of [1_000, 2_000]) await store(bench, textOf(32, first), 3);
    t.is(storedTokens(bench.cache, textOf(32, 2_000)), 32);
    t.is(bench.cache.metrics.lateErrors, 1);
    await close(bench);
  }
});

test('the level of stored text is the highest of the requests that used it, promotions included', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 96 * tokenBytes })], byLevel);
  const { cache } = bench;
  const [promoted, extended, passing] = [textOf(16), textOf(16, 50_000), textOf(96, 200_000)];
  await store(bench, promoted, 0);
  await store(bench, extended, 0);
  await cache.prefixes.promote({ tokens: promoted, priority: 3 });
  dropFromDevice(cache);
  await store(bench, Int32Array.from([...extended, ...textOf(16, 300_000)]), 2);
  await store(bench, extended, 0); // a lower one changes nothing
  await store(bench, passing, 1);
  t.deepEqual([storedTokens(cache, promoted), storedTokens(cache, extended), storedTokens(cache, passing)], [16, 16, 48]);
  await close(bench);
});

test('a longer text that takes the place of the end of a shorter one is of its level', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 64 * tokenBytes })], byLevel);
  const { cache } = bench;
  const text = textOf(32);
  await store(bench, text.subarray(0, 24), 5); // a block and a half
  await store(bench, text, 0);
  await store(bench, textOf(64, 200_000), 4);
  t.is(storedTokens(cache, text), 32);
  cache.verify();
  await close(bench);
});
