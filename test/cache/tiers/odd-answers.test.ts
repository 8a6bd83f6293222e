// Tiers of users that do not keep to the contract: what they answer costs hits, and nothing else.

import test, { type ExecutionContext } from 'ava';
import { Registry } from 'prom-client';

import type { BorrowedBlock, TierGet } from 'virtual-kv';
import { registerMetrics } from 'virtual-kv/prometheus';

import { type CacheBench, type DriverName, drivers } from '../../helpers/cache.js';
import { dropFromDevice, turn } from './device-index.js';
import { LendingTier } from './lending-tier.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';

const tokens = 40 * 16;

type Get = (tier: PlainTier, key: string, payload: Uint8Array) => unknown;

const answerOf = (tier: PlainTier, key: string, payload: Uint8Array): Promise<TierGet & { readonly isFound: true }> =>
  PlainTier.prototype.get.call(tier, key, payload) as Promise<TierGet & { readonly isFound: true }>;

/** A bench whose text is in the tier alone. */
async function storedIn(t: ExecutionContext, tier: PlainTier | LendingTier, on: DriverName = 'mock'): Promise<CacheBench> {
  const bench = benchOf(t, [tier], { on });
  serve(bench, textOf(tokens), 3);
  await bench.cache.prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  return bench;
}

/** By what is wrong with them. */
const oddAnswers: Readonly<Record<string, Get>> = {
  'nothing': () => undefined,
  'null': () => Promise.resolve(null),
  'a miss without a reason': () => Promise.resolve({ isFound: false }),
  'a miss with a reason of its own': () => Promise.resolve({ isFound: false, reason: 'moved' }),
  'a block without sums': async (tier, key, payload) => ({ ...await answerOf(tier, key, payload), sums: undefined }),
  'too few sums': async (tier, key, payload) => ({ isFound: true, sums: (await answerOf(tier, key, payload)).sums.slice(1) }),
  'sums in a plain array': async (tier, key, payload) => ({ isFound: true, sums: [...(await answerOf(tier, key, payload)).sums] }),
  'a getter that throws': () => Promise.resolve({ get isFound(): boolean { throw new Error('mine'); } }),
};

for (const on of drivers) {
  for (const [title, get] of Object.entries(oddAnswers)) {
    test(`a tier that answers a get by ${title} has failed, and the text is computed (${on})`, async (t) => {
      const tier = new PlainTier('mine');
      const bench = await storedIn(t, tier, on);
      const { prefixes } = bench.cache;
      tier.get = ((key: string, payload: Uint8Array) => get(tier, key, payload)) as PlainTier['get'];
      t.like(await prefixes.promote({ tokens: textOf(tokens) }), { cachedTokens: 0, end: 'unreachable' });
      await turn(); // unhandled rejections would be noticed
      t.deepEqual(prefixes.tiers!.metrics().tiers[0]!.misses, { absent: 0, corrupt: 0, timeout: 0, failed: 16 });
      t.deepEqual(serve(bench, textOf(tokens), 3), { found: 0, wrong: 0, demoted: tokens - 1 });
      await close(bench);
    });
  }

  test(`a record that is null is none (${on})`, async (t) => {
    const tier = new PlainTier('mine');
    const bench = await storedIn(t, tier, on);
    const { prefixes } = bench.cache;
    tier.get = async (key, payload) => ({ ...await answerOf(tier, key, payload), record: null as never });
    t.like(await prefixes.promote({ tokens: textOf(tokens) }), { cachedTokens: tokens, end: 'complete' });
    t.is(serve(bench, textOf(tokens), 3).wrong, 0);
    await close(bench);
  });

  test(`another block's bytes are not taken for the block's, with their own sums either (${on})`, async (t) => {
    const tier = new PlainTier('mine');
    const bench = await storedIn(t, tier, on);
    const { prefixes } = bench.cache;
    const keys = [...tier.blocks.keys()];
    const stored = new Map(tier.blocks);
    tier.get = (key, payload) => {
      const { record, payload: other } = stored.get(keys[(keys.indexOf(key) + 1) % keys.length]!)!;
      payload.set(other);
      return Promise.resolve({ isFound: true, sums: record.sums.slice() });
    };
    t.like(await prefixes.promote({ tokens: textOf(tokens) }), { cachedTokens: 0, end: 'corrupt' });
    t.true(prefixes.tiers!.metrics().tiers[0]!.damagedBlocks > 0);
    t.deepEqual(serve(bench, textOf(tokens), 3).wrong, 0);
    await close(bench);
  });
}

type Borrow = (borrowed: BorrowedBlock) => unknown;

/** By what is wrong with them. */
const oddBorrows: Readonly<Record<string, Borrow>> = {
  'fewer bytes': (borrowed) => ({ ...borrowed, payload: borrowed.payload.subarray(1) }),
  'more bytes': (borrowed) => ({ ...borrowed, payload: new Uint8Array(borrowed.payload.length + 1) }),
  'a promise that is rejected': () => Promise.reject(new Error('mine')),
};

for (const [title, odd] of Object.entries(oddBorrows)) {
  test(`a tier that lends ${title} has failed, and the text is computed`, async (t) => {
    const tier = new LendingTier('mine');
    const bench = await storedIn(t, tier);
    const { prefixes } = bench.cache;
    tier.borrow = ((key: string) => odd(LendingTier.prototype.borrow.call(tier, key)!)) as LendingTier['borrow'];
    t.like(await prefixes.promote({ tokens: textOf(tokens) }), { cachedTokens: 0, end: 'unreachable' });
    await turn(); // unhandled rejections would be noticed
    t.is(serve(bench, textOf(tokens), 3).wrong, 0);
    await close(bench);
  });
}

test('what ends reading may throw: it is reported, and all that was asked for is there', async (t) => {
  const tier = new LendingTier('mine');
  const bench = await storedIn(t, tier);
  const { prefixes } = bench.cache;
  tier.borrow = (key) => ({
    ...LendingTier.prototype.borrow.call(tier, key)!, release: () => { throw new Error('mine'); },
  });
  t.like(await prefixes.promote({ tokens: textOf(tokens) }), { cachedTokens: tokens, end: 'complete' });
  t.is(bench.cache.metrics.lateErrors, tokens / 16);
  await close(bench);
});

test('what a tier that was opened again gives is compared with the sums that it named then', async (t) => {
  const tier = new PlainTier('mine');
  const first = benchOf(t, [tier]);
  serve(first, textOf(tokens), 3);
  await first.cache.prefixes.tiers!.settled();
  await close(first);
  const bench = benchOf(t, [tier]);
  await bench.cache.prefixes.tiers!.ready();
  const [one, other] = [...tier.blocks.values()];
  tier.blocks.set(one!.record.key, { record: { ...one!.record, sums: other!.record.sums }, payload: other!.payload });
  t.like(await bench.cache.prefixes.promote({ tokens: textOf(tokens) }), { cachedTokens: 0, end: 'corrupt' });
  await close(bench);
});

/** By what is wrong with them. */
const oddStatistics: Readonly<Record<string, () => unknown>> = {
  'an error': () => { throw new Error('mine'); },
  'nothing': () => undefined,
  'a promise': () => Promise.resolve({ blocks: 1, bytes: 1 }),
  'a promise that is rejected': () => Promise.reject(new Error('mine')),
  'no numbers': () => ({ blocks: '1', bytes: NaN }),
  'a getter that throws': () => ({ blocks: 1, get bytes(): number { throw new Error('mine'); } }),
};

for (const [title, statistics] of Object.entries(oddStatistics)) {
  test(`a tier whose statistics are ${title} is counted, and the other tiers' numbers are there, in scrapes, too`, async (t) => {
    const tier = new PlainTier('mine');
    const bench = benchOf(t, [tier, new PlainTier('other')]);
    const tiers = bench.cache.prefixes.tiers!;
    serve(bench, textOf(tokens), 3);
    await tiers.settled();
    tier.statistics = statistics as PlainTier['statistics'];
    const [mine, other] = tiers.metrics().tiers;
    t.like(mine, { name: 'mine', storedBlocks: 40, own: undefined, failedStatistics: 1 });
    t.like(other, { name: 'other', own: { blocks: 40 }, failedStatistics: 0 });
    const register = new Registry();
    registerMetrics(bench.cache, { register });
    const text = await register.metrics();
    t.regex(text, /virtual_kv_tier_failed_statistics_total\{tier="mine"\} 2\n/);
    t.regex(text, /virtual_kv_tier_stored_blocks_total\{tier="mine"\} 40\n/);
    t.regex(text, /virtual_kv_tier_stored_blocks_total\{tier="other"\} 40\n/);
    t.is(bench.cache.metrics.lateErrors, 1, 'the first is reported');
    await close(bench);
  });
}

test('of statistics only numbers, strings and booleans are shown, and none below 0 in scrapes', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier]);
  tier.statistics = () => ({ blocks: 1, bytes: 2, putsDropped: -1, queuedBytes: 3, note: 'mine', isBusy: true, rate: NaN, more: {} as never });
  t.deepEqual(bench.cache.prefixes.tiers!.metrics().tiers[0]!.own, { blocks: 1, bytes: 2, putsDropped: -1, queuedBytes: 3, note: 'mine', isBusy: true });
  const register = new Registry();
  registerMetrics(bench.cache, { register });
  const text = await register.metrics();
  t.regex(text, /virtual_kv_tier_queued_bytes\{tier="mine"\} 3\n/);
  t.notRegex(text, /tier_dropped_blocks_total\{/);
  await close(bench);
});

test('a put that is answered by nothing has failed', async (t) => {
  const tier = new PlainTier('mine');
  tier.put = () => Promise.resolve({ isStored: false } as never);
  const bench = benchOf(t, [tier]);
  serve(bench, textOf(tokens), 3);
  await bench.cache.prefixes.tiers!.settled();
  t.deepEqual(bench.cache.prefixes.tiers!.metrics().tiers[0]!.refusals, { full: 0, busy: 0, failed: 40 });
  await close(bench);
});

/** A tier that has a text from before but for the third of its blocks: what comes behind that is of no use. */
async function withHole(t: ExecutionContext): Promise<PlainTier> {
  const [before, tier] = [new PlainTier('mine'), new PlainTier('mine')];
  const first = benchOf(t, [before]);
  serve(first, textOf(160), 3);
  await close(first);
  for (const [key, block] of before.blocks) if (block.record.position !== 32) tier.blocks.set(key, block);
  return tier;
}

test('a tier whose `remove` is not asynchronous is opened though it has what is of no use', async (t) => {
  const tier = await withHole(t);
  tier.remove = ((keys: readonly string[]) => { void PlainTier.prototype.remove.call(tier, keys); }) as never;
  const bench = benchOf(t, [tier]);
  await t.notThrowsAsync(bench.cache.prefixes.tiers!.ready());
  t.is(tier.blocks.size, 2);
  await close(bench);
});

test('what is of no use and is computed again while it is being removed is stored behind that', async (t) => {
  const tier = await withHole(t);
  let go = (): void => {};
  const held = new Promise<void>((resolve) => { go = resolve; });
  tier.remove = async (keys) => {
    await held;
    await PlainTier.prototype.remove.call(tier, keys);
  };
  const bench = benchOf(t, [tier]);
  const { prefixes } = bench.cache;
  await prefixes.tiers!.ready();
  serve(bench, textOf(160), 3);
  for (let round = 0; round < 20; round += 1) await turn();
  go();
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  t.like(await prefixes.promote({ tokens: textOf(160) }), { cachedTokens: 160, end: 'complete' });
  await close(bench);
});

test('a block is not taken for the text that a tier names with it, where its key names another', async (t) => {
  const tier = new PlainTier('mine');
  const first = benchOf(t, [tier]);
  for (const key of [3, 4]) serve(first, textOf(16, key), key);
  await close(first);
  const [one, other] = [...tier.blocks.values()];
  const mixed = new PlainTier('mine');
  for (const [{ record, payload }, { record: { tokens } }] of [[one!, other!], [other!, one!]] as const) {
    mixed.blocks.set(record.key, { record: { ...record, tokens }, payload });
  }
  const bench = benchOf(t, [mixed]);
  await bench.cache.prefixes.tiers!.ready();
  for (const key of [3, 4]) {
    t.like(await bench.cache.prefixes.promote({ tokens: textOf(16, key) }), { cachedTokens: 0 });
    t.is(serve(bench, textOf(16, key), key).wrong, 0);
  }
  await close(bench);
});
