// What a tier of the user's own lends is given back, and what it says that it found is taken over only where it can be a block.

import test from 'ava';

import { hostTier, priority, type BorrowedBlock, type TierPut } from 'virtual-kv';

import { deadlineMs } from '../../helpers/patient.js';
import { dropFromDevice, turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';

/** One that stores copies, and lends these. */
class LendingTier extends PlainTier {
  lent = 0;
  borrows = 0;

  borrow(key: string): BorrowedBlock | undefined {
    const block = this.blocks.get(key);
    if (block === undefined) return undefined;
    this.borrows += 1;
    this.lent += 1;
    let isOver = false;
    const release = (): void => {
      if (!isOver) this.lent -= 1;
      isOver = true;
    };
    return { payload: block.payload, sums: block.record.sums.slice(), release };
  }
}

test('a tier that lends copies of what it was given has all of them back, when text was stored and when it was read', async (t) => {
  const [tier, slow] = [new LendingTier('mine'), new PlainTier('slow')];
  const bench = benchOf(t, [tier, slow]);
  const { prefixes } = bench.cache;
  serve(bench, textOf(48), 3);
  await prefixes.tiers!.settled();
  t.is(slow.blocks.size, 3);
  t.true(tier.borrows >= 3);
  t.is(tier.lent, 0);
  dropFromDevice(bench.cache);
  t.like(await prefixes.promote({ tokens: textOf(48), deadlineMs }), { end: 'complete', promotedFrom: { mine: 48 } });
  t.is(tier.lent, 0);
  bench.fail('cuCtxPushCurrent', 1);
  dropFromDevice(bench.cache);
  await prefixes.promote({ tokens: textOf(48), deadlineMs }).catch(() => { /* the driver refused */ });
  t.is(tier.lent, 0);
  bench.forgiveAll();
  await close(bench);
});

test('a block that a tier names with another size than its tokens have is not found, nor what goes on behind it', async (t) => {
  const tier = new PlainTier('mine');
  const first = benchOf(t, [tier]);
  serve(first, textOf(48), 3);
  await first.cache.prefixes.tiers!.settled();
  await close(first);
  const [, second] = [...tier.blocks.values()];
  Object.assign(second!.record, { bytes: second!.record.bytes + 16 });
  const bench = benchOf(t, [tier]);
  const { prefixes } = bench.cache;
  await prefixes.tiers!.ready();
  t.is(prefixes.explain({ tokens: textOf(48) }).tiers!.reachableTokens, 16);
  t.like(await prefixes.promote({ tokens: textOf(48), deadlineMs }), { cachedTokens: 16, promotedTokens: 16 });
  t.is(tier.blocks.size, 1, 'it was told to remove what is of no use');
  await close(bench);
});

test('a level that rises while a slow tier stores the block is told once it has it', async (t) => {
  const told: [string, number][] = [];
  const puts: (() => void)[] = [];
  const tier = Object.assign(new PlainTier('slow'), { setLevel: (key: string, level: number) => { told.push([key, level]); } });
  const put = tier.put.bind(tier);
  tier.put = (record, payload) => new Promise<TierPut>((resolve) => { puts.push(() => { resolve(put(record, payload)); }); });
  const bench = benchOf(t, [hostTier({ bytes: 2 ** 20 }), tier], { prefixCache: { policy: priority() } });
  const { cache } = bench;
  serve(bench, textOf(16), 3);
  while (puts.length === 0) await turn();
  const again = cache.acquire({ tokens: textOf(16), priority: 5 });
  bench.compute(again, 16 - again.cachedTokens);
  again.release();
  while (cache.prefixes.tiers!.metrics().waitingTexts > 0) await turn();
  for (let turns = 0; turns < 5; turns += 1) await turn();
  t.deepEqual(told, []);
  let isSettled = false;
  void cache.prefixes.tiers!.settled().then(() => { isSettled = true; });
  while (!isSettled || puts.length > 0) {
    for (const go of puts.splice(0)) go();
    await turn();
  }
  t.deepEqual(told, [[[...tier.blocks.keys()][0]!, 5]]);
  await close(bench);
});

test('a tier that names a block with a lower level than another tier does is told the higher one', async (t) => {
  const stored = new PlainTier('first');
  const policy = { prefixCache: { policy: priority() } };
  const first = benchOf(t, [stored], policy);
  serve(first, textOf(16), 3);
  await close(first);
  const [key, { record, payload }] = [...stored.blocks][0]!;
  const told: string[] = [];
  const tiers = [9, 0].map((named) => {
    const tier = Object.assign(new PlainTier(`of ${named}`), { setLevel: (_key: string, level: number) => { told.push(`of ${named}: ${level}`); } });
    tier.blocks.set(key, { record: { ...record, level: named }, payload });
    return tier;
  });
  const bench = benchOf(t, tiers, policy);
  await bench.cache.prefixes.tiers!.ready();
  t.deepEqual(told, ['of 0: 9']);
  await close(bench);
});
