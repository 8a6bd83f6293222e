// A reset in the middle of what tiers do: text that was computed before it is in no tier after it, however far it had come; and tiers
// that break their promise anywhere cost their hits, and nothing else.

import test from 'ava';

import type { Tier, TierPut } from 'virtual-kv';

import { dropFromDevice, turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';

const text = textOf(160);

/** A tier whose puts wait until the test lets them go. */
class GatedTier extends PlainTier {
  waiting: (() => void)[] = [];
  isOpen = false;

  override async put(...given: Parameters<PlainTier['put']>): Promise<TierPut> {
    if (!this.isOpen) await new Promise<void>((resolve) => { this.waiting.push(resolve); });
    return super.put(...given);
  }

  release(): void {
    this.isOpen = true;
    for (const go of this.waiting.splice(0)) go();
  }
}

test('until a preempted sequence is past its fence a promotion says, as a lookup does, that nothing is cached', async (t) => {
  const bench = benchOf(t, [new PlainTier('other')]);
  const { cache } = bench;
  await cache.prefixes.tiers!.ready();
  const sequence = cache.acquire({ tokens: text });
  const batch = cache.createBatch();
  batch.add(sequence, text.length);
  cache.prepare(batch);
  cache.commit(batch, { fence: { step: 5 } });
  cache.prefixes.reset({ preempt: true });
  t.is(cache.prefixes.lookup({ tokens: text }).cachedTokens, 0);
  t.is((await cache.prefixes.promote({ tokens: text })).cachedTokens, 0);
  cache.completeStep(5);
  await close(bench);
});

test('a preempted sequence leaves no text to tiers where another one that has it waits for its fence', async (t) => {
  const bench = benchOf(t, [new PlainTier('other')]);
  const { cache } = bench;
  const { prefixes } = cache;
  await prefixes.tiers!.ready();
  const first = cache.acquire({ tokens: text });
  bench.prepare(first, text.length);
  bench.commit();
  const second = cache.acquire({ tokens: [...text, 1] });
  const batch = cache.createBatch();
  batch.add(second, text.length + 1 - second.cachedTokens);
  cache.prepare(batch);
  cache.commit(batch, { fence: { step: 5 } });
  prefixes.reset({ preempt: true });
  t.is(prefixes.tiers!.metrics().waitingTexts, 0);
  cache.completeStep(5);
  await prefixes.tiers!.settled();
  t.is(prefixes.tiers!.metrics().tiers[0]!.blocks, 0);
  await close(bench);
});

for (const gated of [0, 1]) {
  test(`what a reset finds on its way is in no tier afterwards, whichever it waits for (${gated === 0 ? 'the first' : 'the second'})`, async (t) => {
    const slow = new GatedTier('slow');
    const tiers = gated === 0 ? [slow, new PlainTier('other')] : [new PlainTier('other'), slow];
    const bench = benchOf(t, tiers);
    const { prefixes } = bench.cache;
    await prefixes.tiers!.ready();
    serve(bench, text, 3);
    while (slow.waiting.length === 0) await turn();
    prefixes.reset();
    slow.release();
    await prefixes.tiers!.settled();
    t.deepEqual(prefixes.tiers!.metrics().tiers.map(({ blocks }) => blocks), [0, 0]);
    for (const { name, blocks } of tiers) t.is(blocks.size, 0, name);
    t.like(serve(bench, text, 4), { found: 0, wrong: 0 }, 'with other weights');
    await prefixes.tiers!.settled();
    dropFromDevice(bench.cache);
    t.like(await prefixes.promote({ tokens: text }), { cachedTokens: 160, end: 'complete' });
    t.like(serve(bench, text, 4), { found: 159, wrong: 0 });
    await close(bench);
  });
}

for (const way of ['reset', 'drop'] as const) {
  test(`text that is on its way when a ${way} comes, and the cache closes behind that, is not in the tier after it`, async (t) => {
    const slow = new GatedTier('slow');
    const bench = benchOf(t, [slow]);
    const { cache, cache: { prefixes, prefixes: { tiers } } } = bench;
    await tiers!.ready();
    serve(bench, text, 3);
    while (slow.waiting.length === 0) await turn();
    const dropping = way === 'drop' ? prefixes.drop({ tokens: text }) : undefined;
    if (way === 'reset') prefixes.reset();
    cache.close();
    await turn();
    slow.release();
    await tiers!.close();
    t.is(slow.blocks.size, 0);
    t.deepEqual((await dropping)?.unreachedTiers ?? [], []);
  });
}

test('a put that waits for its turn when a reset comes is not stored after it', async (t) => {
  const slow = new GatedTier('slow');
  const bench = benchOf(t, [slow]);
  const { prefixes } = bench.cache;
  await prefixes.tiers!.ready();
  serve(bench, text, 3);
  while (slow.waiting.length === 0) await turn();
  for (let round = 0; round < 50; round += 1) await turn();
  prefixes.reset();
  slow.release();
  await prefixes.tiers!.settled();
  t.is(slow.blocks.size, 0);
  await close(bench);
});

test('a reset that is refused ends nothing that tiers do', async (t) => {
  const slow = new GatedTier('slow');
  const bench = benchOf(t, [slow]);
  const { cache } = bench;
  const { tiers } = cache.prefixes;
  await tiers!.ready();
  serve(bench, text, 3);
  while (slow.waiting.length === 0) await turn();
  const running = cache.acquire({ tokens: [1, 2, 3] });
  t.throws(() => { cache.prefixes.reset(); }, { code: 'KV_PREFIX_IN_USE' });
  t.is(tiers!.metrics().interruptedTransfers, 0);
  slow.release();
  await tiers!.settled();
  t.is(slow.blocks.size, 10);
  running.release();
  await close(bench);
});

test('a reset while tiers open drops what they have from before', async (t) => {
  const before = new PlainTier('mine');
  const first = benchOf(t, [before]);
  serve(first, text, 3);
  await close(first);
  t.is(before.blocks.size, 10);
  const again = new GatedTier('mine');
  again.release();
  for (const [key, block] of before.blocks) again.blocks.set(key, block);
  const bench = benchOf(t, [again]);
  bench.cache.prefixes.reset();
  await bench.cache.prefixes.tiers!.ready();
  t.like(await bench.cache.prefixes.promote({ tokens: text }), { cachedTokens: 0, promotedTokens: 0 });
  await turn();
  t.is(again.blocks.size, 0);
  await close(bench);
});

test('a block that others stored is found behind one that its own tier has lost', async (t) => {
  const shared = new PlainTier('shared');
  const find = function find(this: PlainTier, keys: readonly string[]): Promise<number> {
    const missing = keys.findIndex((key) => !this.blocks.has(key));
    return Promise.resolve(missing < 0 ? keys.length : missing);
  };
  const fast = new PlainTier('fast');
  const bench = benchOf(t, [fast, Object.assign(shared, { find })]);
  const { prefixes } = bench.cache;
  serve(bench, text, 3);
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  const [second] = [...fast.blocks.values()].filter(({ record }) => record.position === 16);
  second!.payload[0]! ^= 1; // it is lost in the fast tier
  const stored = shared.blocks.get(second!.record.key)!;
  shared.blocks.delete(second!.record.key); // and misses in the other
  t.like(await prefixes.promote({ tokens: text }), { cachedTokens: 16, end: 'lost' });
  shared.blocks.set(second!.record.key, stored); // another process stores it again
  t.like(await prefixes.promote({ tokens: text }), { cachedTokens: 160, end: 'complete' });
  t.like(serve(bench, text, 3), { found: 159, wrong: 0 });
  await close(bench);
});

test('blocks that others stored are found wherever this cache\'s own tiers have a hole', async (t) => {
  const first = new PlainTier('mine');
  const writer = benchOf(t, [first]);
  serve(writer, text, 3);
  await close(writer);
  const [mine, shared] = [new PlainTier('mine'), new PlainTier('shared')];
  for (const [key, block] of first.blocks) {
    const number = block.record.position / 16;
    if (number < 2) mine.blocks.set(key, block); // blocks 2, 5 and 8 come from others, which have 3 and 9 too
    if ([2, 3, 5, 8, 9].includes(number)) shared.blocks.set(key, block);
  }
  let asked = 0;
  const find = function find(this: PlainTier, keys: readonly string[]): Promise<number> {
    asked += 1;
    const missing = keys.findIndex((key) => !this.blocks.has(key));
    return Promise.resolve(missing < 0 ? keys.length : missing);
  };
  Object.assign(shared, { find, open: () => Promise.resolve() });
  const bench = benchOf(t, [mine, shared]);
  await bench.cache.prefixes.tiers!.ready();
  t.like(await bench.cache.prefixes.promote({ tokens: text }), { cachedTokens: 64, promotedFrom: { mine: 32, shared: 32 }, end: 'complete' });
  t.is(asked, 1, 'what it said that it has not is not asked for again');
  t.like(serve(bench, text, 3), { found: 64, wrong: 0 });
  await close(bench);
});

for (const method of ['find', 'borrow', 'lend', 'giveBack', 'sizeOf', 'remove', 'get', 'put'] as const) {
  for (const how of ['throws', 'rejects'] as const) {
    test(`a tier whose ${method} ${how} costs its hits, and what runs goes on`, async (t) => {
      const broken: Tier = new PlainTier('broken');
      const bench = benchOf(t, [broken, new PlainTier('sound')]);
      const { prefixes } = bench.cache;
      await prefixes.tiers!.ready();
      if (method === 'get') {
        serve(bench, text, 3);
        await prefixes.tiers!.settled();
      }
      Object.assign(broken, {
        [method]: () => {
          if (how === 'throws') throw new Error('broken');
          return Promise.reject(new Error('broken'));
        },
      });
      if (how === 'rejects' && ['borrow', 'lend', 'giveBack', 'sizeOf'].includes(method)) { // they return no promise
        await close(bench);
        t.pass();
        return;
      }
      t.is(serve(bench, text, 3).wrong, 0);
      await prefixes.tiers!.settled();
      dropFromDevice(bench.cache);
      const { cachedTokens, end } = await prefixes.promote({ tokens: text });
      t.true(cachedTokens === 160 || method === 'sizeOf' || method === 'lend', `${cachedTokens} ${end}`);
      t.is(serve(bench, text, 3).wrong, 0);
      prefixes.reset();
      await prefixes.tiers!.settled();
      t.like(serve(bench, text, 4), { found: 0, wrong: 0 });
      await close(bench);
    });
  }
}
