// Which text memory has above a disk: what selections read of is brought there where it is worth more than what goes for it, by the rule of the
// tier; every reader gets the same bytes; and what a tier does wrong costs no request.

import test, { type ExecutionContext } from 'ava';

import { diskTier, hostTier, type Tier, type TierMetrics, type TokenSelector } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import type { OpenTier } from '#internal/tiers/open-tier.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { SelectionWorld, sizes } from './selection-world.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('placement');
const blockTokens = 16;
/** Room for one block and not two: K, V and probe keys of 16 tokens. */
const oneBlock = 40_000;
const first: TokenSelector = { name: 'first', looksAt: 'nothing', select: ({ count }) => Int32Array.from({ length: count }, (_, token) => token) };

const textOf = (letter: number, tokens = blockTokens + 1): Int32Array => Int32Array.from({ length: tokens }, (_, at) => (letter * 7 + at * 3) % sizes.vocabularyTokens);
const [a, b] = [textOf(1), textOf(2)];

function disk(directory: string): Tier {
  return diskTier({ directory, bytes: 2 ** 30, admit: 'all', durability: 'none', chunkBytes: 4096 });
}

/** A world whose disk has the texts from before, and whose memory is empty. */
async function open(t: ExecutionContext, texts: readonly Int32Array[], host: Tier, tier = disk, reorderAfter?: number): Promise<SelectionWorld> {
  const directory = folderOf(t);
  const before = new SelectionWorld(t, new Random(seed), { tiers: [disk(directory)] });
  await before.cache.prefixes.tiers!.ready();
  for (const text of texts) await before.store(text.subarray(0, text.length - 1));
  await before.close();
  const world = new SelectionWorld(t, new Random(seed), { tiers: [host, tier(directory)], reorderAfter });
  await world.cache.prefixes.tiers!.ready();
  return world;
}

/** A request that is given so many tokens of each block in every layer. */
async function read(world: SelectionWorld, text: Int32Array, tokens: number): Promise<Float32Array> {
  const sequence = await world.lossy(text, { selector: first, ratio: tokens * Math.floor(text.length / blockTokens) / (text.length - 1) });
  const logits = await world.finish(sequence, text);
  sequence.release();
  await world.cache.prefixes.tiers!.settled();
  return logits;
}

type Get = Tier['get'];

/** A tier whose `get` is another, which is given its own. */
function withGet(inner: Tier, get: (own: Get, ...given: Parameters<Get>) => ReturnType<Get>): Tier {
  return new Proxy(inner, { get: (target, name) => {
    const value: unknown = Reflect.get(target, name);
    if (name === 'get') return (...given: Parameters<Get>) => get((value as Get).bind(target), ...given);
    return typeof value === 'function' ? (value as () => unknown).bind(target) : value;
  } });
}

/** First tokens of what memory has. */
const inMemory = (world: SelectionWorld): number[] => {
  const { opened } = world.cache.prefixes.tiers as unknown as { readonly opened: readonly OpenTier[] };
  return [...opened[0]!.contents.blocks()].map(({ tokens }) => tokens[0]!);
};

/** What was written to the disk, and what lies there. */
const onDisk = (world: SelectionWorld): unknown => {
  const [, { storedBlocks, blocks, bytes, own }] = world.cache.prefixes.tiers!.metrics().tiers as [TierMetrics, TierMetrics];
  const { puts, putBytes, fileBytes } = own!;
  return { storedBlocks, blocks, bytes, puts, putBytes, fileBytes };
};

const raised = (world: SelectionWorld): number => world.cache.prefixes.tiers!.metrics().raisedBlocks;

test('a block of two important tokens and two uses has the only room before one with one and three; two more, and they change', async (t) => {
  const world = await open(t, [a, b], hostTier({ bytes: oneBlock, keeps: 'important' }));
  for (let use = 0; use < 3; use += 1) await read(world, a, 1);
  t.deepEqual(inMemory(world), [a[0]!]);
  await read(world, b, 2);
  t.deepEqual(inMemory(world), [a[0]!]);
  await read(world, b, 2);
  t.deepEqual(inMemory(world), [b[0]!]);
  await read(world, a, 1);
  t.deepEqual(inMemory(world), [b[0]!]);
  await read(world, a, 1);
  t.deepEqual(inMemory(world), [a[0]!]);
  t.is(raised(world), 3);
  await world.close();
});

test('memory that keeps what is likely to return changes with the second use', async (t) => {
  const world = await open(t, [a, b], hostTier({ bytes: oneBlock }));
  for (let use = 0; use < 3; use += 1) await read(world, a, 1);
  for (let use = 1; use <= 4; use += 1) {
    await read(world, b, 2);
    t.deepEqual(inMemory(world), [(use < 2 ? a : b)[0]!]);
  }
  t.is(raised(world), 2);
  await world.close();
});

slow('many texts on a disk')(`every reader gets the same bytes while blocks come and go, and nothing is written for those that go (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const texts = Array.from({ length: 6 }, (_, letter) => textOf(letter + 1, 3 * blockTokens + 1));
  const world = await open(t, texts, hostTier({ bytes: 5 * oneBlock, keeps: 'important' }));
  const exact = texts.map((text) => world.plain.logits(text).at(-1)!);
  const before = onDisk(world);
  t.like(before, { storedBlocks: 0, blocks: 18, puts: 0 });
  for (let turn = 0; turn < 300; turn += 1) { // blocks are brought beside the next requests
    const letter = turn < 100 ? random.integer(3) : 3 + random.integer(3); // other texts become popular
    const text = texts[letter]!;
    const ratio = random.chance(0.5) ? 1 : 0.25;
    const sequence = await world.lossy(text, { selector: first, ratio });
    const logits = await world.finish(sequence, text);
    t.true(sequence.isLossy);
    t.is(sequence.selection?.failure, undefined);
    sequence.release();
    if (ratio === 1) for (const [token, logit] of logits.entries()) t.true(Math.abs(logit - exact[letter]![token]!) < 1e-4);
  }
  await world.cache.prefixes.tiers!.settled();
  const [{ evictedBlocks }] = world.cache.prefixes.tiers!.metrics().tiers as [TierMetrics];
  t.log({ raised: raised(world), evictedBlocks });
  t.true(raised(world) > 8 && evictedBlocks > 3);
  t.deepEqual(onDisk(world), before, 'the disk has all');
  await world.close();
});

test('a tier that does not give a block whole, and a cache that closes meanwhile, cost no request', async (t) => {
  const failing = (directory: string): Tier => withGet(disk(directory), () => Promise.reject(new Error('no whole block today')));
  const world = await open(t, [a, b], hostTier({ bytes: oneBlock, keeps: 'important' }), failing);
  await read(world, a, 4);
  t.is(raised(world), 0);
  t.is(world.cache.prefixes.tiers!.metrics().tiers[1]!.misses.failed, 1);
  const sequence = await world.lossy(b, { selector: first, ratio: 0.5 });
  await world.finish(sequence, b);
  sequence.release();
  await world.close(); // the offer is under way
});

test('a block that comes with a bit flipped is not put into another tier, and goes from where it came', async (t) => {
  const flipping = (directory: string): Tier => withGet(disk(directory), async (get, key, payload) => {
    const got = await get(key, payload);
    payload[payload.length - 1]! ^= 1; // of a probe key, which no copy to the device looks at
    return got;
  });
  const world = await open(t, [a], hostTier({ bytes: oneBlock, keeps: 'important' }), flipping);
  await read(world, a, 4);
  const [host, { damagedBlocks, blocks }] = world.cache.prefixes.tiers!.metrics().tiers as [TierMetrics, TierMetrics];
  t.deepEqual([raised(world), host.blocks, damagedBlocks, blocks], [0, 0, 1, 0]);
  await world.close();
});

slow('many texts on a disk')('a tier whose properties throw costs no request its selection: what memory keeps and reorders are hints', async (t) => {
  for (const name of ['borrow', 'chunkBytes', 'reorder']) {
    let isThrowing = false;
    const throwing = (directory: string): Tier => new Proxy(disk(directory), { get: (target, property) => {
      if (isThrowing && property === name) throw new Error(`no ${name} today`);
      const value: unknown = Reflect.get(target, property);
      return typeof value === 'function' ? (value as () => unknown).bind(target) : value;
    } });
    const world = await open(t, [a], hostTier({ bytes: oneBlock }), throwing, 1);
    isThrowing = true;
    const { lateErrors } = world.cache.metrics;
    const sequence = await world.lossy(a, { selector: first, ratio: 0.25 });
    await world.finish(sequence, a);
    t.true(sequence.selection!.isLoaded);
    t.is(sequence.selection!.failure, undefined, name);
    sequence.release();
    if (name !== 'borrow') t.is(world.cache.metrics.lateErrors, lateErrors + 1, name);
    isThrowing = false;
    await world.close();
  }
});
