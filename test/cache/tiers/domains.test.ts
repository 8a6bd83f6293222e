// Tiers and what else a cache knows: tenants and their quotas, priorities, events for routers, resets, and counts that must agree.

import { subscribe, unsubscribe } from 'node:diagnostics_channel';

import test from 'ava';

import { hostTier, lru, priority, type PrefixStoredEvent, type Tier } from 'virtual-kv';

import { refuses } from '../../helpers/refuses.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';
import { dropFromDevice } from './device-index.js';

const MiB = 2 ** 20;

test('text of one tenant is promoted for it alone, and counts for its quota', async (t) => {
  const bench = benchOf(t, [], { prefixCache: { tiers: [hostTier({ bytes: 16 * MiB })], tenantRows: 2, policy: lru() } });
  const { cache } = bench;
  const { prefixes } = cache;
  const long = textOf(768); // 3 rows of 256 tokens
  const sequence = cache.acquire({ tokens: long, tenant: 'a' });
  bench.compute(sequence, 768);
  await prefixes.tiers!.settled();
  sequence.release();
  await prefixes.tiers!.settled();
  dropFromDevice(cache);
  t.is(prefixes.lookup({ tokens: long }).demotedTokens, 0);
  t.is(prefixes.lookup({ tokens: long, tenant: 'b' }).demotedTokens, 0);
  const found = prefixes.lookup({ tokens: long, tenant: 'a' }).demotedTokens;
  t.true(found >= 512, `${found}`);
  await prefixes.promote({ tokens: long, tenant: 'a' });
  cache.counts();
  t.true(cache.counts().pooledRows <= 2, `${cache.counts().pooledRows} rows`);
  t.is(prefixes.lookup({ tokens: long, tenant: 'b' }).cachedTokens, 0);
  cache.verify();
  await close(bench);
});

test('what is promoted stays by the priority that its request will have', async (t) => {
  const row = 4 * 65_536;
  const bench = benchOf(t, [], { memoryBudgetBytes: 3 * row, prefixCache: { tiers: [hostTier({ bytes: 16 * MiB })], policy: priority() } });
  const { prefixes } = bench.cache;
  for (const key of [1, 2]) serve(bench, textOf(256, key), key);
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  t.like(await prefixes.promote({ tokens: textOf(256, 1), priority: 5 }), { cachedTokens: 256 });
  t.like(await prefixes.prefetch({ tokens: textOf(256, 2) }), { cachedTokens: 256 });
  serve(bench, textOf(512, 3), 3); // takes the place of one of them
  t.true(prefixes.lookup({ tokens: textOf(256, 1) }).cachedTokens > 0);
  t.is(prefixes.lookup({ tokens: textOf(256, 2) }).cachedTokens, 0, 'it was used last, and goes first');
  await t.throwsAsync(prefixes.promote({ tokens: [1], priority: 256 }), { code: 'KV_INVALID_OPTION' });
  await t.throwsAsync(prefixes.prefetch({ tokens: [1], deadlineMs: 1 } as never), { code: 'KV_UNKNOWN_OPTION' });
  await close(bench);
});

test('routers hear of promoted text as of computed text', async (t) => {
  const bench = benchOf(t, [], { prefixCache: { tiers: [hostTier({ bytes: 16 * MiB })], events: { blockTokens: 16, label: 'tiers' } } });
  const { prefixes } = bench.cache;
  const stored: string[] = [];
  const onStored = (message: unknown): void => {
    const { label, blockKeys } = message as PrefixStoredEvent;
    if (label === 'tiers') stored.push(...blockKeys);
  };
  subscribe('virtual-kv:prefix-stored', onStored);
  try {
    serve(bench, textOf(64), 3);
    await prefixes.tiers!.settled();
    const told = [...stored];
    t.is(told.length, 4);
    dropFromDevice(bench.cache);
    prefixes.lookup({ tokens: [1] });
    t.is(await prefixes.promote({ tokens: textOf(64) }).then(({ promotedTokens }) => promotedTokens), 64);
    prefixes.lookup({ tokens: [1] }); // commits are told
    t.deepEqual(stored.slice(4), told, 'the same keys');
  } finally {
    unsubscribe('virtual-kv:prefix-stored', onStored);
  }
  await close(bench);
});

test('a reset drops what this cache alone has, and leaves to others what they may use', async (t) => {
  const [own, shared] = [new PlainTier('own'), new PlainTier('shared')];
  const found: Tier = Object.assign(shared, { find: (keys: readonly string[]) => {
    const missing = keys.findIndex((key) => !shared.blocks.has(key));
    return Promise.resolve(missing < 0 ? keys.length : missing);
  } });
  const bench = benchOf(t, [own, found]);
  const { prefixes } = bench.cache;
  serve(bench, textOf(64), 3);
  await prefixes.tiers!.settled();
  t.is(prefixes.tiers!.metrics().tiers[1]!.blocks, 4);
  prefixes.reset();
  t.deepEqual([own.blocks.size, shared.blocks.size], [0, 4]);
  t.deepEqual(prefixes.tiers!.metrics().tiers.map(({ blocks, bytes }) => [blocks, bytes]), [[0, 0], [0, 0]]);
  prefixes.setNamespace('new weights');
  t.like(await prefixes.promote({ tokens: textOf(64) }), { cachedTokens: 0 });
  bench.cache.verify();
  await close(bench);
});

test('counts of blocks and bytes agree between the texts and every tier, and a wrong one is found', async (t) => {
  const [fast, slow] = [hostTier({ bytes: MiB }), new PlainTier('slow')];
  const bench = benchOf(t, [fast, slow]);
  const { cache } = bench;
  for (let key = 0; key < 12; key += 1) {
    serve(bench, textOf(100 + 7 * key, key % 5), key % 5);
    await cache.prefixes.tiers!.settled();
    cache.verify();
  }
  const { opened } = cache.prefixes.tiers as unknown as { readonly opened: readonly { readonly contents: { bytes: number } }[] };
  opened[1]!.contents.bytes += 1;
  refuses(t, () => { cache.verify(); },
    'KV_INTERNAL', { what: opened[1]!.contents.bytes, howMany: opened[1]!.contents.bytes - 1 });
  opened[1]!.contents.bytes -= 1;
  cache.verify();
  await close(bench);
});
