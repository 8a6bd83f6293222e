// Reordering in a running cache: what selections chose is noted by block, and blocks are stored anew so that later ones read less; every byte
// stays what it was, for selections and for whole promotions, while it is done and after.

import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { diskTier, hostTier, type Tier, type TierPut, type TokenSelector } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import type { OpenTier } from '#internal/tiers/open-tier.js';
import { difference } from '../helpers/logits.js';
import { randomText } from '../helpers/llama-shapes.js';
import { removeFolder } from '../helpers/made-llama.js';
import { seedOf } from '../helpers/seed.js';
import { MiB, SelectionWorld, sizes } from './selection-world.js';
import { deadlineMs } from '../helpers/patient.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('reordering');
/** Rows of 256 bytes: a chunk of 4 KiB has 16, a stripe of a whole block 16 chunks. */
const blockTokens = 256;

function disk(t: ExecutionContext, name = 'disk'): Tier {
  const directory = mkdtempSync(path.join(tmpdir(), 'vkv-reordering-'));
  t.teardown(() => removeFolder(directory));
  return diskTier({ directory, bytes: 64 * MiB, admit: 'all', chunkBytes: 4096, name });
}

/** Every 16th token: one of each chunk, in the order of the text. */
const scattered: TokenSelector = {
  name: 'scattered', looksAt: 'nothing', select: ({ tokens }) => Int32Array.from({ length: Math.ceil(tokens / 16) }, (_, index) => 16 * index),
};
const selection = { ratio: 1 / 16, selector: scattered };

interface Answer {
  readonly logits: Float32Array;
  readonly chunks: number;
  readonly readBytes: number;
}

async function answerOf(world: SelectionWorld, text: Int32Array, chosen = selection): Promise<Answer> {
  const sequence = await world.lossy(text, chosen);
  const logits = await world.finish(sequence, text);
  const { chunks, readBytes } = sequence.selection!.counts;
  sequence.release();
  return { logits, chunks, readBytes };
}

async function worldOf(t: ExecutionContext, tiers: readonly Tier[], texts = 1, reorderAfter = 0): Promise<{ world: SelectionWorld; texts: Int32Array[]; exact: Float32Array[] }> {
  const random = new Random(seed);
  const world = new SelectionWorld(t, random, { tiers, blockTokens, reorderAfter });
  await world.cache.prefixes.tiers!.ready();
  const made = Array.from({ length: texts }, () => Int32Array.from(randomText(random, 400)));
  const exact: Float32Array[] = [];
  for (const text of made) exact.push(await world.store(text));
  return { world, texts: made, exact };
}

test(`what selections read lies together once blocks are reordered, and no byte is another (seed ${seed})`, async (t) => {
  const { world, texts: [text], exact: [exact] } = await worldOf(t, [disk(t)]);
  const tiers = world.cache.prefixes.tiers!;
  const before = await answerOf(world, text!);
  for (let request = 1; request < 3; request += 1) await answerOf(world, text!);
  t.is(await tiers.reorder(), 0, 'three selections are too few');
  await answerOf(world, text!);
  t.like(tiers.metrics().reordering, { notedBlocks: 1, reorderedBlocks: 0, refusedBlocks: 0 }, 'the last block of the text is begun by it alone in part');
  t.is(await tiers.reorder(), 1);
  const after = await answerOf(world, text!);
  t.deepEqual(after.logits, before.logits);
  const [stripes, layers] = [6, 3];
  t.is(before.chunks - after.chunks, stripes * 15, 'sixteen chunks of a stripe are one');
  t.true(after.readBytes < before.readBytes);
  t.is(await tiers.reorder(), 0, 'it is as good as it can be');
  t.like(tiers.metrics(), { reordering: { notedBlocks: 1, reorderedBlocks: 1, refusedBlocks: 0 }, selections: { fallBacks: 0, layers: 5 * layers } });

  const { promotedTokens } = await world.cache.prefixes.promote({ tokens: text!, deadlineMs });
  t.true(promotedTokens >= text!.length - 1);
  const sequence = world.cache.acquire({ tokens: text! });
  t.is(sequence.cachedTokens, text!.length - 1);
  t.true(difference(await world.finish(sequence, text!), exact!) < 1e-5, 'the whole text is exact; another pass rounds otherwise');
  sequence.release();
  world.cache.prefixes.reset({ preempt: true });
  t.is(tiers.metrics().reordering.notedBlocks, 0);
  await world.close();
});

test(`once layers and requests agree, a selection reads at most 1.2 times the bytes of its tokens and probe keys (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const rowBytes = 1024;
  const world = new SelectionWorld(t, random, { tiers: [disk(t)], blockTokens, headDim: rowBytes / sizes.kvHeads / 4, probeHeads: 1, maxTokens: 1024 });
  const { tiers } = world.cache.prefixes;
  await tiers!.ready();
  const text = Int32Array.from(randomText(random, 2 * blockTokens + 1));
  await world.store(text.subarray(0, 2 * blockTokens));
  const ranking = Array.from({ length: 2 * blockTokens }, (_, token) => [token, random.next()] as const).toSorted((a, b) => a[1] - b[1]).map(([token]) => token);
  const agreeing: TokenSelector = { name: 'agreeing', looksAt: 'probe-keys', select: ({ count }) => Int32Array.from(ranking.slice(0, count)).sort() };
  /** Bytes that the disk gave, by those that are needed. */
  const amplification = async (ratio: number): Promise<number> => {
    const before = Number(tiers!.metrics().tiers[0]!.own!['readBytes']);
    const sequence = await world.lossy(text, { ratio, selector: agreeing });
    await world.finish(sequence, text);
    const { selectedTokens, tokens, readBytes, fallBacks } = sequence.selection!.counts;
    sequence.release();
    const moved = Number(tiers!.metrics().tiers[0]!.own!['readBytes']) - before;
    t.is(fallBacks, 0);
    t.is(readBytes, moved, 'a request is told what the system moved');
    return moved / (selectedTokens * 2 * rowBytes + tokens * rowBytes / sizes.kvHeads);
  };
  const ratios = [0.05, 0.1, 0.25, 0.5];
  const plain: number[] = [];
  for (const ratio of ratios) plain.push(await amplification(ratio));
  t.is(await tiers!.reorder(), 2);
  const reordered: number[] = [];
  for (const ratio of ratios) reordered.push(await amplification(ratio));
  const shown = (list: readonly number[]): string => list.map((one) => one.toFixed(3)).join(', ');
  t.log(`at ${ratios.join(', ')}: ${shown(plain)} before, ${shown(reordered)} after`);
  for (const [index, ratio] of ratios.entries()) t.true(reordered[index]! <= 1.2, `at ${ratio}: ${reordered[index]!}`);
  t.true(plain.every((one, index) => one > 1.2 && one > reordered[index]! + 0.1), 'and not without');
  await world.close();
});

slow('reorders in the background')(`blocks are reordered by themselves behind so many selections, in the background, and no byte is another (seed ${seed})`, async (t) => {
  for (const reorderAfter of [4, 7, 0]) {
    const random = new Random(seed);
    const world = new SelectionWorld(t, random, { tiers: [disk(t)], blockTokens, reorderAfter });
    const tiers = world.cache.prefixes.tiers!;
    await tiers.ready();
    const text = Int32Array.from(randomText(random, 400));
    await world.store(text);
    const before = await answerOf(world, text);
    for (let selections = 1; selections < (reorderAfter || 7); selections += 1) {
      t.is(tiers.metrics().reordering.reorderedBlocks, 0, `${selections} selections, ${reorderAfter} at least`);
      await answerOf(world, text);
    }
    while (reorderAfter > 0 && tiers.metrics().reordering.reorderedBlocks === 0) await answerOf(world, text);
    const after = await answerOf(world, text);
    t.deepEqual(after.logits, before.logits);
    t.is(after.chunks < before.chunks, reorderAfter > 0);
    await world.close();
  }
});

test('tiers that cannot reorder are left alone by themselves, and a cache that closes ends a run', async (t) => {
  const { world: plain, texts: [text] } = await worldOf(t, [hostTier({ bytes: 16 * MiB })], 1, 1);
  for (let request = 0; request < 3; request += 1) await answerOf(plain, text!);
  t.like(plain.cache.prefixes.tiers!.metrics().reordering, { reorderedBlocks: 0, refusedBlocks: 0 });
  await plain.close();
  const { world, texts } = await worldOf(t, [disk(t)], 3, 1);
  for (let request = 0; request < 5; request += 1) for (const each of texts) await answerOf(world, each);
  await world.close();
});

test('layers that were given all of the text say nothing of its tokens', async (t) => {
  const { world, texts: [text] } = await worldOf(t, [disk(t)]);
  const all: TokenSelector = { name: 'all', looksAt: 'nothing', select: ({ layer, tokens }) => layer === 0 ? undefined : Int32Array.from({ length: tokens }, (_, token) => token) };
  await answerOf(world, text!, { ratio: 1 / 16, selector: all });
  await answerOf(world, text!, { ratio: 1, selector: scattered });
  t.is(world.cache.prefixes.tiers!.metrics().reordering.notedBlocks, 0);
  await world.close();
});

test(`selections and promotions go on while blocks are reordered, and are as before (seed ${seed})`, async (t) => {
  const { world, texts, exact } = await worldOf(t, [disk(t)], 3);
  const tiers = world.cache.prefixes.tiers!;
  const first: Float32Array[] = [];
  for (const [index, text] of texts.entries()) for (let request = 0; request < 4; request += 1) first[index] = (await answerOf(world, text)).logits;
  const runs = [tiers.reorder({ mostBlocks: 2 }), tiers.reorder()];
  for (const [index, text] of texts.entries()) t.deepEqual((await answerOf(world, text)).logits, first[index]);
  t.deepEqual(await Promise.all(runs), [2, 0], 'one run at a time');
  for (const [index, text] of texts.entries()) t.deepEqual((await answerOf(world, text)).logits, first[index]);
  t.is(await tiers.reorder(), 1);
  for (const [index, text] of texts.entries()) {
    const [, { promotedTokens }] = await Promise.all([tiers.reorder(), world.cache.prefixes.promote({ tokens: text, deadlineMs })]);
    t.true(promotedTokens >= text.length - 1);
    const sequence = world.cache.acquire({ tokens: text });
    t.true(difference(await world.finish(sequence, text), exact[index]!) < 1e-5);
    sequence.release();
  }
  await world.close();
});

/** A disk whose `reorder` does what the test says. */
function scripted(t: ExecutionContext, reorder: (own: () => Promise<TierPut>) => Promise<TierPut>, closing: () => void = () => {}): Tier {
  const own = disk(t);
  return Object.assign(Object.create(own) as object, {
    ...bound(own), chunkBytes: 4096, reorder: (key: string, order: Int32Array) => reorder(() => own.reorder!(key, order)),
    close: () => {
      closing();
      return own.close();
    },
  }) as Tier;
}

function bound(tier: Tier): Partial<Tier> {
  const names = ['open', 'put', 'get', 'getTokens', 'remove', 'statistics', 'close', 'sizeOf'] as const;
  return Object.fromEntries(names.map((name) => [name, (tier[name] as (...values: unknown[]) => unknown).bind(tier)]));
}

test('a tier that throws, rejects or refuses loses nothing, and is not asked again at every turn', async (t) => {
  const wrong: (() => Promise<TierPut>)[] = [
    () => { throw new Error('thrown'); }, () => Promise.reject(new Error('rejected')), () => Promise.resolve({ isStored: false, reason: 'full' }),
  ];
  let asked = 0;
  for (const [index, answer] of wrong.entries()) {
    const { world, texts: [text] } = await worldOf(t, [scripted(t, () => { asked += 1; return answer(); })]);
    const tiers = world.cache.prefixes.tiers!;
    for (let request = 0; request < 4; request += 1) await answerOf(world, text!);
    const before = await answerOf(world, text!);
    t.is(await tiers.reorder(), 0);
    t.is(await tiers.reorder(), 0);
    t.is(asked, index + 1);
    t.like(tiers.metrics().reordering, { reorderedBlocks: 0, refusedBlocks: 1 });
    t.deepEqual(await answerOf(world, text!), before);
    await world.close();
  }
});

test(`a block that was dropped and stored again is reordered again (seed ${seed})`, async (t) => {
  const { world, texts: [text] } = await worldOf(t, [disk(t)]);
  const tiers = world.cache.prefixes.tiers!;
  const lives: number[][] = [];
  for (let life = 0; life < 2; life += 1) {
    if (life > 0) {
      world.cache.prefixes.reset({ preempt: true });
      await world.store(text!);
    }
    const chunks: number[] = [];
    for (let request = 0; request < 4; request += 1) chunks[0] = (await answerOf(world, text!)).chunks;
    t.is(await tiers.reorder(), 1, `life ${life}`);
    chunks[1] = (await answerOf(world, text!)).chunks;
    lives.push(chunks);
  }
  t.deepEqual(lives[1], lives[0]);
  t.true(lives[0]![1]! < lives[0]![0]!);
  await world.close();
});

test('what is noted of text that another tier has alone is kept until the disk has it', async (t) => {
  const directory = mkdtempSync(path.join(tmpdir(), 'vkv-reordering-'));
  t.teardown(() => removeFolder(directory));
  const { world, texts: [text] } = await worldOf(t, [hostTier({ bytes: 16 * MiB }), diskTier({ directory, bytes: 64 * MiB, admit: 'twice', chunkBytes: 4096 })]);
  const tiers = world.cache.prefixes.tiers!;
  for (let request = 0; request < 4; request += 1) await answerOf(world, text!);
  t.is(await tiers.reorder(), 0);
  t.like(tiers.metrics().reordering, { notedBlocks: 1, refusedBlocks: 0 });
  await world.store(text!);
  t.is(await tiers.reorder(), 1);
  await world.close();
});

test('closing waits for the block under way, which is not evicted meanwhile, and begins no other', async (t) => {
  let asked = 0;
  const events: string[] = [];
  let goOn = (): void => {};
  const held = new Promise<void>((resolve) => { goOn = resolve; });
  let begun = (): void => {};
  const hasBegun = new Promise<void>((resolve) => { begun = resolve; });
  const { world, texts } = await worldOf(t, [scripted(t, async (own) => {
    asked += 1;
    begun();
    await held;
    const put = await own();
    events.push('reordered');
    return put;
  }, () => { events.push('closed'); })], 2);
  const tiers = world.cache.prefixes.tiers!;
  for (const text of texts) for (let request = 0; request < 4; request += 1) await answerOf(world, text);
  const running = tiers.reorder();
  await hasBegun;
  const [{ contents }] = (tiers as unknown as { readonly opened: readonly [OpenTier] }).opened;
  t.is([...contents.blocks()].filter((block) => contents.isRead(block)).length, 1);
  const closing = world.close();
  goOn();
  t.is(await running, 1);
  await closing;
  t.is(asked, 1);
  t.deepEqual(events, ['reordered', 'closed']);
  await t.throwsAsync(tiers.reorder(), { code: 'KV_CLOSED' });
});

test('a signal ends it behind a block, and wrong options and tiers that cannot are refused by name', async (t) => {
  const { world, texts } = await worldOf(t, [disk(t)], 2);
  const tiers = world.cache.prefixes.tiers!;
  for (const text of texts) for (let request = 0; request < 4; request += 1) await answerOf(world, text);
  t.is(await tiers.reorder({ signal: AbortSignal.abort() }), 0);
  t.is(await tiers.reorder({ mostBlocks: 1 }), 1);
  for (const wrong of [{ mostBlocks: 0 }, { mostBlocks: 1.5 }, { signal: {} }, 5]) await t.throwsAsync(tiers.reorder(wrong as object), { code: 'KV_INVALID_OPTION' });
  await t.throwsAsync(tiers.reorder({ most: 1 } as object), { code: 'KV_UNKNOWN_OPTION' });
  await world.close();

  const { world: onlyHost } = await worldOf(t, [hostTier({ bytes: 16 * MiB })]);
  const { message } = (await t.throwsAsync(onlyHost.cache.prefixes.tiers!.reorder(), { code: 'KV_INVALID_OPTION' }))!;
  t.regex(message, /prefixCache\.tiers.*`diskTier`.*host \(open\)/);
  await onlyHost.close();
});
