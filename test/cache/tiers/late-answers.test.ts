// Tiers of users that answer when something else has happened: what was dropped, lost or closed meanwhile is not there.

import test, { type ExecutionContext } from 'ava';

import type { BlockRecord, TierContext, TierPut, TierRemoval } from 'virtual-kv';

import { dropFromDevice, turn } from './device-index.js';
import { LendingTier } from './lending-tier.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';

const text = textOf(64);

/** What waits until the test lets it go. */
class Gate {
  readonly #waiting: (() => void)[] = [];
  isOpen = false;

  async pass(): Promise<void> {
    if (!this.isOpen) await new Promise<void>((resolve) => { this.#waiting.push(resolve); });
  }

  async isAwaited(): Promise<void> {
    while (this.#waiting.length === 0) await turn();
  }

  open(): void {
    this.isOpen = true;
    for (const go of this.#waiting.splice(0)) go();
  }
}

for (const fails of ['takes no note', 'throws'] as const) {
  test(`a tier is named whose store ${fails} where a block came after its text was dropped`, async (t) => {
    const [tier, puts] = [new PlainTier('mine'), new Gate()];
    tier.put = async (record, payload): Promise<TierPut> => {
      await puts.pass();
      return PlainTier.prototype.put.call(tier, record, payload);
    };
    const remove = (): Promise<TierRemoval> =>
      (fails === 'throws' ? Promise.reject(new Error('mine')) : Promise.resolve({ isRemoved: false }));
    const bench = benchOf(t, [Object.assign(tier, { remove })]);
    const { prefixes } = bench.cache;
    await prefixes.tiers!.ready();
    serve(bench, text, 3);
    await puts.isAwaited();
    const dropping = prefixes.drop({ tokens: text });
    puts.open();
    t.deepEqual((await dropping).unreachedTiers, ['mine']);
    t.true(tier.blocks.size > 0, 'it is there still');
    await close(bench);
  });
}

for (const order of ['before', 'behind'] as const) {
  test(`what others have stored is not found ${order} a drop whose removal is under way`, async (t) => {
    const [before, shared] = [new PlainTier('shared'), new PlainTier('shared')];
    const first = benchOf(t, [before]);
    serve(first, text, 3);
    await close(first);
    for (const [key, block] of before.blocks) shared.blocks.set(key, block);
    const [finds, removals] = [new Gate(), new Gate()];
    finds.isOpen = order === 'behind';
    const bench = benchOf(t, [Object.assign(shared, {
      open: () => Promise.resolve(), // it tells nothing
      find: async (keys: readonly string[]) => {
        const count = keys.filter((key) => shared.blocks.has(key)).length;
        await finds.pass();
        return count;
      },
      remove: async (keys: readonly string[]) => {
        await removals.pass();
        return PlainTier.prototype.remove.call(shared, keys);
      },
    })]);
    const { prefixes } = bench.cache;
    await prefixes.tiers!.ready();
    const promoting = order === 'before' ? prefixes.promote({ tokens: text }, { deadlineMs: 600_000 }) : undefined;
    if (order === 'before') await finds.isAwaited();
    const dropping = prefixes.drop({ tokens: text });
    finds.open();
    t.like(await (promoting ?? prefixes.promote({ tokens: text }, { deadlineMs: 600_000 })), { cachedTokens: 0, promotedTokens: 0 });
    removals.open();
    t.deepEqual((await dropping).unreachedTiers, []);
    t.is(shared.blocks.size, 0);
    t.is(prefixes.lookup({ tokens: text }).cachedTokens, 0);
    serve(bench, text, 3);
    await prefixes.tiers!.settled();
    dropFromDevice(bench.cache);
    t.like(await prefixes.promote({ tokens: text }), { cachedTokens: 64 });
    bench.cache.verify();
    await close(bench);
  });
}

/** A tier with the blocks of `text` that another cache stored. */
async function filledTier(t: ExecutionContext): Promise<PlainTier> {
  const before = new PlainTier('mine');
  const first = benchOf(t, [before]);
  serve(first, text, 3);
  await close(first);
  const tier = new PlainTier('mine');
  for (const [key, block] of before.blocks) tier.blocks.set(key, block);
  return tier;
}

test('what is stored anew is not taken for dropped text that comes to the store behind it', async (t) => {
  const [memory, shared, removals] = [new LendingTier('memory'), new PlainTier('shared'), new Gate()];
  const puts: (() => void)[] = [];
  let isHeld = true;
  const bench = benchOf(t, [memory, Object.assign(shared, {
    find: (keys: readonly string[]) => Promise.resolve(keys.filter((key) => shared.blocks.has(key)).length),
    put: async (record: BlockRecord, payload: Uint8Array): Promise<TierPut> => {
      if (isHeld) await new Promise<void>((resolve) => { puts.push(resolve); });
      return PlainTier.prototype.put.call(shared, record, payload);
    },
    remove: async (keys: readonly string[]) => {
      await removals.pass();
      return PlainTier.prototype.remove.call(shared, keys);
    },
  })]);
  const { prefixes } = bench.cache;
  const block = text.subarray(0, 16);
  const turns = async (): Promise<void> => {
    for (let round = 0; round < 20; round += 1) await turn();
  };
  await prefixes.tiers!.ready();
  serve(bench, block, 3);
  while (puts.length === 0) await turn();
  removals.isOpen = true;
  const dropping = prefixes.drop({ tokens: block });
  await turns();
  removals.isOpen = false;
  serve(bench, block, 4);
  await turns();
  puts[1]?.();
  await turns();
  memory.loseOne();
  dropFromDevice(bench.cache);
  puts[0]!();
  await turns();
  t.is(shared.blocks.size, 1, 'it has come');
  await prefixes.promote({ tokens: block }, { deadlineMs: 600_000 });
  t.is(serve(bench, block, 4).wrong, 0);
  isHeld = false;
  for (const go of puts) go();
  removals.open();
  t.deepEqual((await dropping).unreachedTiers, []);
  await prefixes.tiers!.settled();
  memory.loseOne();
  dropFromDevice(bench.cache);
  await prefixes.promote({ tokens: block }, { deadlineMs: 600_000 });
  t.is(serve(bench, block, 4).wrong, 0);
  await close(bench);
});

test('what a tier finds and loses while it opens it does not have', async (t) => {
  const tier = await filledTier(t);
  const open = async (context: TierContext): Promise<void> => {
    await PlainTier.prototype.open.call(tier, context);
    context.lost([...tier.blocks.keys()].slice(2));
  };
  const bench = benchOf(t, [Object.assign(tier, { open })]);
  await bench.cache.prefixes.tiers!.ready();
  t.is(bench.cache.prefixes.lookup({ tokens: text }).demotedTokens, 32);
  await close(bench);
});

test('a tier that was closed while it removed what it had found before a reset is closed', async (t) => {
  const tier = await filledTier(t);
  const [opening, removals] = [new Gate(), new Gate()];
  const bench = benchOf(t, [Object.assign(tier, {
    open: async (context: TierContext) => {
      await PlainTier.prototype.open.call(tier, context);
      await opening.pass();
    },
    remove: async (keys: readonly string[]) => {
      await removals.pass();
      return PlainTier.prototype.remove.call(tier, keys);
    },
  })]);
  const tiers = bench.cache.prefixes.tiers!;
  bench.cache.prefixes.reset();
  opening.open();
  await removals.isAwaited();
  const closing = tiers.close();
  await turn();
  removals.open();
  await closing;
  t.is(tiers.metrics().tiers[0]!.state, 'closed');
  t.is(tier.blocks.size, 0);
  bench.close();
});
