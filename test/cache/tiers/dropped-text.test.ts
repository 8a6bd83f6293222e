// Text that is dropped goes from tiers, too: what they have, what is on its way, what they have from before, and what others store there.

import test from 'ava';

import { diskTier, firstAndLast, hostTier, type Tier, type TierPut, type TierRemoval } from 'virtual-kv';

import { processClock } from '#internal/tiers/load-clock.js';
import { timeLoadsBy } from '../../helpers/patient.js';
import { folderOf } from '../../helpers/temporary-folder.js';
import { dropFromDevice, turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';

const MiB = 2 ** 20;
const [one, other] = [textOf(160), Int32Array.of(...textOf(80), ...textOf(80, 7))];

/** A tier whose puts and openings wait until the test lets them go. */
class GatedTier extends PlainTier {
  waiting: (() => void)[] = [];
  isOpen = false;

  override async open(...given: Parameters<PlainTier['open']>): Promise<void> {
    await this.#gate();
    return super.open(...given);
  }

  override async put(...given: Parameters<PlainTier['put']>): Promise<TierPut> {
    await this.#gate();
    return super.put(...given);
  }

  async #gate(): Promise<void> {
    if (!this.isOpen) await new Promise<void>((resolve) => { this.waiting.push(resolve); });
  }

  release(): void {
    this.isOpen = true;
    for (const go of this.waiting.splice(0)) go();
  }
}

test('a dropped text is in no tier, and another that shares its start is there as before', async (t) => {
  const mine = new PlainTier('mine');
  const bench = benchOf(t, [hostTier({ bytes: 16 * MiB }), mine]);
  const { prefixes } = bench.cache;
  await prefixes.tiers!.ready();
  for (const text of [one, other]) {
    serve(bench, text, 3);
    await prefixes.tiers!.settled();
  }
  t.is(mine.blocks.size, 15);
  const dropped = await prefixes.drop({ tokens: one });
  t.like(dropped, { tierBlocks: 5, unreachedTiers: [] });
  t.is(mine.blocks.size, 10);
  dropFromDevice(bench.cache);
  t.is(prefixes.lookup({ tokens: one }).demotedTokens, 80);
  t.like(await prefixes.promote({ tokens: one }), { cachedTokens: 80 });
  t.like(await prefixes.promote({ tokens: other }), { cachedTokens: 160 });
  bench.cache.verify();
  await close(bench);
});

test('what is on its way to a tier is not there when the drop is over', async (t) => {
  const slow = new GatedTier('slow');
  slow.isOpen = true;
  const bench = benchOf(t, [new PlainTier('fast'), slow]);
  const { prefixes } = bench.cache;
  await prefixes.tiers!.ready();
  slow.isOpen = false;
  serve(bench, one, 3);
  while (slow.waiting.length === 0) await turn();
  serve(bench, textOf(64, 9), 4); // waits behind it
  let isOver = false;
  const dropping = prefixes.drop({ tokens: one }).finally(() => { isOver = true; });
  for (let round = 0; round < 20; round += 1) await turn();
  t.false(isOver, 'a put is under way');
  slow.release();
  await dropping;
  t.is(slow.blocks.size, 0);
  await prefixes.tiers!.settled();
  await close(bench);
  t.is(slow.blocks.size, 4, 'the other text is stored');
});

test('text that is on its way to a tier is dropped with a longer one that begins with it', async (t) => {
  const slow = new GatedTier('slow');
  slow.isOpen = true;
  const bench = benchOf(t, [slow]);
  const { prefixes } = bench.cache;
  await prefixes.tiers!.ready();
  slow.isOpen = false;
  serve(bench, one, 3);
  while (slow.waiting.length === 0) await turn();
  const dropping = prefixes.drop({ tokens: textOf(200) });
  t.is(prefixes.lookup({ tokens: textOf(200) }).cachedTokens, 0);
  slow.release();
  t.deepEqual((await dropping).unreachedTiers, []);
  t.is(slow.blocks.size, 0);
  t.is(serve(bench, textOf(200), 4).wrong, 0);
  await close(bench);
});

test('text that waits to be stored is not', async (t) => {
  const mine = new PlainTier('mine');
  const bench = benchOf(t, [mine]);
  const { prefixes } = bench.cache;
  await prefixes.tiers!.ready();
  serve(bench, one, 3);
  const dropping = prefixes.drop({ tokens: one });
  await dropping;
  await prefixes.tiers!.settled();
  t.is(mine.blocks.size, 0);
  await close(bench);
});

test('a promotion that is under way brings nothing of it', async (t) => {
  const mine = new PlainTier('mine');
  const waiting: (() => void)[] = [];
  let isOpen = false;
  const slow = Object.assign(mine, {
    get: async (...given: Parameters<PlainTier['get']>) => {
      const got = await PlainTier.prototype.get.apply(mine, given);
      if (!isOpen) await new Promise<void>((resolve) => { waiting.push(resolve); });
      return got;
    },
  });
  const bench = benchOf(t, [slow]);
  const { prefixes } = bench.cache;
  serve(bench, one, 3);
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  const promoting = prefixes.promote({ tokens: one }, { deadlineMs: 600_000 });
  while (waiting.length === 0) await turn();
  await prefixes.drop({ tokens: one });
  isOpen = true;
  for (const go of waiting) go();
  t.like(await promoting, { cachedTokens: 0, promotedTokens: 0 });
  t.is(mine.blocks.size, 0);
  bench.cache.verify();
  await close(bench);
});

test('text of a tenant goes from a disk, also what is there from before, and no other', async (t) => {
  const directory = folderOf(t);
  const tiers = (): Tier[] => [diskTier({ directory, bytes: 64 * MiB, admit: 'all' })];
  const first = benchOf(t, tiers());
  await first.cache.prefixes.tiers!.ready();
  for (const tenant of ['a', 'b']) {
    const sequence = first.cache.acquire({ tokens: one, tenant });
    first.compute(sequence, one.length);
    sequence.release();
  }
  await close(first);
  const second = benchOf(t, tiers());
  await second.cache.prefixes.tiers!.ready();
  t.like(await second.cache.prefixes.drop({ tenant: 'a' }), { tierBlocks: 10, unreachedTiers: [] });
  t.is(second.cache.prefixes.lookup({ tokens: one, tenant: 'a' }).demotedTokens, 0);
  t.is(second.cache.prefixes.lookup({ tokens: one, tenant: 'b' }).demotedTokens, 159);
  await close(second);
  const third = benchOf(t, tiers());
  await third.cache.prefixes.tiers!.ready();
  t.is(third.cache.prefixes.lookup({ tokens: one, tenant: 'a' }).demotedTokens, 0);
  t.is(third.cache.prefixes.lookup({ tokens: one, tenant: 'b' }).demotedTokens, 159);
  await close(third);
});

test('blocks of which no tier tells whose they are go with every tenant', async (t) => {
  const mine = new PlainTier('mine');
  const first = benchOf(t, [mine]);
  serve(first, one, 3);
  await close(first);
  for (const block of mine.blocks.values()) block.record = { ...block.record, notes: new Uint8Array(0) };
  const again = new PlainTier('mine');
  for (const [key, block] of mine.blocks) again.blocks.set(key, block);
  const bench = benchOf(t, [again]);
  await bench.cache.prefixes.tiers!.ready();
  await bench.cache.prefixes.drop({ tenant: 'a' });
  t.is(again.blocks.size, 0);
  await close(bench);
});

test('a tier that is still opening has nothing of it once it is open', async (t) => {
  const before = new PlainTier('mine');
  const first = benchOf(t, [before]);
  for (const text of [one, other]) serve(first, text, 3);
  await close(first);
  const again = new GatedTier('mine');
  for (const [key, block] of before.blocks) again.blocks.set(key, block);
  const bench = benchOf(t, [again]);
  const { prefixes } = bench.cache;
  const dropping = prefixes.drop({ tokens: one });
  await turn();
  again.release();
  t.deepEqual((await dropping).unreachedTiers, []);
  t.is(again.blocks.size, 10);
  t.is(prefixes.lookup({ tokens: one }).demotedTokens, 80);
  await close(bench);
});

test('a tier that takes no note, once it is open, of what was dropped before is named', async (t) => {
  const before = new PlainTier('mine');
  const first = benchOf(t, [before]);
  serve(first, one, 3);
  await close(first);
  const removal: TierRemoval = { isRemoved: false };
  const again = Object.assign(new GatedTier('mine'), { remove: () => Promise.resolve(removal) });
  for (const [key, block] of before.blocks) again.blocks.set(key, block);
  const bench = benchOf(t, [again, new PlainTier('other')]);
  const dropping = bench.cache.prefixes.drop({ tokens: one });
  await turn();
  again.release();
  t.deepEqual((await dropping).unreachedTiers, ['mine']);
  await close(bench);
});

for (const ends of ['opens', 'fails to open', 'never opens'] as const) {
  test(`text that is finished while a tier opens is stored in all that are open once it ${ends}`, async (t) => {
    const slow = ends === 'opens' ? new GatedTier('slow') : new PlainTier('slow');
    let fail = (): void => {};
    if (ends === 'fails to open') slow.open = () => new Promise((_, reject) => { fail = () => { reject(new Error('mine')); }; });
    if (ends === 'never opens') slow.open = () => new Promise(() => {});
    const quick = new PlainTier('quick');
    const bench = benchOf(t, [quick, slow], { prefixCache: { tierCloseTimeoutMs: ends === 'never opens' ? 20 : 60_000 } });
    if (ends === 'never opens') timeLoadsBy(bench.cache, processClock);
    const { prefixes } = bench.cache;
    const tiers = prefixes.tiers!;
    serve(bench, one, 3);
    t.is((await prefixes.promote({ tokens: other })).end, 'unreachable');
    const selection = { ratio: 0.5, selector: firstAndLast() };
    t.is((await prefixes.promote({ tokens: other, selection })).end, 'unreachable');
    t.is((await prefixes.promote({ tokens: other, selection, signal: AbortSignal.abort() })).end, 'aborted');
    if (slow instanceof GatedTier) slow.release();
    fail();
    await tiers.settled();
    t.is(quick.blocks.size, 10);
    t.is(slow.blocks.size, ends === 'opens' ? quick.blocks.size : 0);
    t.is(tiers.metrics().droppedTexts, 0);
    if (ends === 'never opens') await t.throwsAsync(tiers.close(), { code: 'KV_TIER_STALLED' });
    else await tiers.close();
    bench.cache.close();
  });
}

test('a store that others share loses the whole blocks of a dropped text, also those that this cache has not heard of', async (t) => {
  const shared = new PlainTier('shared');
  const find = function find(this: PlainTier, keys: readonly string[]): Promise<number> {
    const missing = keys.findIndex((key) => !this.blocks.has(key));
    return Promise.resolve(missing < 0 ? keys.length : missing);
  };
  const first = benchOf(t, [Object.assign(shared, { find })]);
  serve(first, one, 3);
  await close(first);
  t.is(shared.blocks.size, 10);
  const mine = new PlainTier('shared');
  mine.open = () => Promise.resolve(); // it tells nothing
  for (const [key, block] of shared.blocks) mine.blocks.set(key, block);
  const bench = benchOf(t, [Object.assign(mine, { find })]);
  await bench.cache.prefixes.tiers!.ready();
  t.like(await bench.cache.prefixes.drop({ tokens: one }), { tierBlocks: 0, unreachedTiers: [] });
  t.is(mine.blocks.size, 0);
  await close(bench);
});

test('a tier whose store takes no note is named', async (t) => {
  const mine = new PlainTier('mine');
  const removal: TierRemoval = { isRemoved: false, error: new Error('no answer') };
  const bench = benchOf(t, [Object.assign(mine, { remove: () => Promise.resolve(removal) })]);
  const { prefixes } = bench.cache;
  serve(bench, one, 3);
  await prefixes.tiers!.settled();
  t.deepEqual((await prefixes.drop({ tokens: one })).unreachedTiers, ['mine']);
  t.is(prefixes.lookup({ tokens: one }).demotedTokens, 0, 'this cache does not find it');
  t.deepEqual((await prefixes.drop({ tokens: other })).unreachedTiers, ['mine'], 'it may hold what it was to remove before');
  await close(bench);
});

test('text that is computed again while it is being removed is stored behind that', async (t) => {
  for (const forget of ['drop', 'reset'] as const) {
    const mine = new GatedTier('mine');
    mine.isOpen = true;
    let isHeld = true;
    const removals: (() => void)[] = [];
    const remove = async (keys: readonly string[]): Promise<void> => {
      if (isHeld) await new Promise<void>((resolve) => { removals.push(resolve); });
      return PlainTier.prototype.remove.call(mine, keys);
    };
    const bench = benchOf(t, [Object.assign(mine, { remove })]);
    const { prefixes } = bench.cache;
    await prefixes.tiers!.ready();
    serve(bench, one, 3);
    await prefixes.tiers!.settled();
    const dropping = forget === 'drop' ? prefixes.drop({ tokens: one }) : prefixes.reset();
    serve(bench, one, 4);
    for (let round = 0; round < 20; round += 1) await turn();
    isHeld = false;
    for (const go of removals) go();
    await dropping;
    await prefixes.tiers!.settled();
    dropFromDevice(bench.cache);
    t.like(await prefixes.promote({ tokens: one }), { cachedTokens: 160 }, forget);
    t.is(serve(bench, one, 4).wrong, 0, forget);
    await close(bench);
  }
});
