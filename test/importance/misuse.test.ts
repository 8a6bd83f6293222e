// Selections that are asked for wrongly, engines that load wrongly: each is refused by name, or costs the request its
// speed and nothing else; and what changes between a selection and its sequence never makes a wrong answer.

import test, { type ExecutionContext } from 'ava';

import {
  diskTier, firstAndLast, hostTier, isKvError, KvCache, OnlineScheduler, type DiskTierOptions, type KvCacheOptions, type LayerQueries, type SelectionOptions,
  type Tier,
} from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { dropFromDevice, turn } from '../cache/tiers/device-index.js';
import { PlainTier } from '../cache/tiers/plain-tier.js';
import { benchOf, close, model, serve, textOf as plainText } from '../cache/tiers/tier-bench.js';
import { CacheBench } from '../helpers/cache.js';
import { mostLikely } from '../helpers/logits.js';
import { seedOf } from '../helpers/seed.js';
import { SelectionWorld, sizes } from './selection-world.js';

const seed = seedOf('misused selections');
const selection = { ratio: 0.2, selector: firstAndLast() };

function textOf(random: Random, tokens: number): Int32Array {
  return Int32Array.from({ length: tokens }, () => random.integer(sizes.vocabularyTokens));
}

async function worldOf(t: ExecutionContext, tier = new PlainTier('mine')): Promise<{ world: SelectionWorld; text: Int32Array; exact: Float64Array }> {
  const random = new Random(seed);
  const world = new SelectionWorld(t, random, { tiers: [tier] });
  const text = textOf(random, 90);
  await world.store(text.subarray(0, 80));
  const [exact] = world.plain.logits(text).slice(-1);
  return { world, text, exact: exact! };
}

test('a layer may take a second, or as long as a timer can wait', async (t) => {
  const { world, text: tokens } = await worldOf(t);
  for (const layerTimeoutMs of [1_000, 2 ** 31 - 1]) t.truthy((await world.cache.prefixes.promote({ tokens, selection: { ...selection, layerTimeoutMs } })).selected);
  await world.close();
});

const asked: readonly (readonly [string, KvCacheOptions['model'], SelectionOptions, RegExp])[] = [
  ['MLA', { layers: 1, attention: 'latent', latentDim: 64, dtype: 'float16' }, selection, /MLA/],
  ['K and V of 8 bits', { layers: 1, kvHeads: 2, headDim: 32, dtype: 'int8' }, selection, /int8/],
  ['probe keys that no block has', { layers: 1, kvHeads: 2, headDim: 32, dtype: 'float16' }, { ratio: 0.5 }, /prefixCache\.importance/],
];
for (const [what, model, chosen, says] of asked) {
  test(`${what}: a selection is refused by name, when it is asked for of a cache and of a scheduler`, async (t) => {
    const bench = benchOf(t, [hostTier({ bytes: 2 ** 24 })], { model });
    const { cache } = bench;
    const tokens = plainText(40);
    serve(bench, tokens, 3);
    await cache.prefixes.tiers!.settled();
    dropFromDevice(cache);
    await t.throwsAsync(cache.prefixes.promote({ tokens, selection: chosen }), { code: 'KV_INVALID_OPTION', message: says });
    const engine = { vocabularyTokens: 60_000, canSelect: true, prefill: () => ({ logits: new Float32Array(60_000) }), decode: () => ({ logits: new Float32Array(60_000) }) };
    const scheduler = new OnlineScheduler({ cache, engine });
    t.throws(() => scheduler.submit({ tokens, maxNewTokens: 1, selection: chosen }), { code: 'KV_INVALID_OPTION', message: says });
    await scheduler.close();
    await close(bench);
  });
}

test('what a getter of an option throws is what the caller gets, and nothing has changed', async (t) => {
  const { world, text: tokens } = await worldOf(t);
  const { cache, engine } = world;
  const scheduler = new OnlineScheduler({ cache, engine });
  const mine = new Error('mine');
  const throwing = (object: object, name: string): object => Object.defineProperty({ ...object }, name, { enumerable: true, get: () => { throw mine; } });
  const before = { counts: cache.counts(), tiers: cache.prefixes.tiers!.metrics().selections };
  const selections = [
    ...['ratio', 'selector', 'layerTimeoutMs'].map((name) => throwing(selection, name)),
    ...['name', 'looksAt', 'select'].map((name) => ({ ratio: 0.5, selector: throwing(firstAndLast(), name) })),
  ] as SelectionOptions[];
  for (const chosen of selections) {
    t.is(await t.throwsAsync(cache.prefixes.promote({ tokens, selection: chosen })), mine);
    t.is(t.throws(() => scheduler.submit({ tokens, maxNewTokens: 1, selection: chosen })), mine);
  }
  for (const name of ['directory', 'bytes', 'chunkBytes', 'admit', 'durability', 'threads', 'direct', 'name']) {
    t.is(t.throws(() => diskTier(throwing({ directory: '/nowhere', bytes: 2 ** 24 }, name) as DiskTierOptions)), mine, name);
  }
  for (const name of ['chunkBytes', 'keeps', 'name', 'isLasting']) {
    const tier = throwing({ name: 'mine', isLasting: false, takesOnlyWholeBlocks: false }, name) as Tier;
    t.is(t.throws(() => new KvCache({ model, maxTokens: 256, slots: 1, memoryBudgetBytes: 2 ** 24, driver: 'host', prefixCache: { tiers: [tier] } })), mine, name);
  }
  t.deepEqual({ counts: cache.counts(), tiers: cache.prefixes.tiers!.metrics().selections }, before);
  await scheduler.close();
  await world.close();
});

test('a sequence of selected tokens carries no side tensors: `needs` with a selection is refused by a cache and by a scheduler', async (t) => {
  const world = new SelectionWorld(t, new Random(seed), { sideTensors: { hidden: { width: 4, dtype: 'float32' } } });
  const { cache, engine } = world;
  const text = textOf(new Random(seed), 90);
  await world.store(text.subarray(0, 80));
  const { selected } = await cache.prefixes.promote({ tokens: text, selection });
  t.throws(() => cache.acquire({ tokens: text, selected, needs: ['hidden'] }), { code: 'KV_INVALID_OPTION', message: /needs/ });
  const scheduler = new OnlineScheduler({ cache, engine });
  t.throws(() => scheduler.submit({ tokens: text, maxNewTokens: 1, selection, needs: ['hidden'] }), { code: 'KV_INVALID_OPTION', message: /needs/ });
  await scheduler.close();
  t.is(cache.counts().activeSlots, 0);
  const sequence = cache.acquire({ tokens: text, selected, needs: [] });
  t.true(sequence.isLossy);
  sequence.release();
  await world.close();
});

test('an engine that loads wrongly is told so, and may load rightly then; no layer is loaded twice, also at the same time', async (t) => {
  const { world, text } = await worldOf(t);
  const lossy = await world.lossy(text, selection);
  const own = lossy.selection!;
  const { queryHeads, headDim, layers } = sizes;
  const right: LayerQueries = { queries: new Float32Array(queryHeads * headDim).fill(0.1), queryHeads };
  const wrong: readonly unknown[] = [
    undefined, null, 5, {}, { queries: right.queries }, { ...right, queryHeads: 3 }, { ...right, queryHeads: 6 }, { ...right, queries: [1] },
    { ...right, queries: new Float32Array(0) }, { ...right, queries: new Float32Array(headDim) }, { ...right, queries: new Float64Array(queryHeads * headDim) },
    ...[Number.NaN, Infinity, '1', null].map((scale) => ({ ...right, scale })), ...[5, {}, null].map((signal) => ({ ...right, signal })),
  ];
  for (const queries of wrong) await t.throwsAsync(own.load(0, queries as LayerQueries), { code: 'KV_INVALID_OPTION' });
  await t.throwsAsync(own.load(0, { ...right, scales: 1 } as LayerQueries), { code: 'KV_UNKNOWN_OPTION' });
  for (const layer of [-1, layers, 0.5, Number.NaN, '0', undefined]) {
    await t.throwsAsync(own.load(layer as number, right), { code: 'KV_INVALID_OPTION' });
    t.throws(() => own.droppedTokens(layer as number), { code: 'KV_INVALID_OPTION' });
  }
  t.is(own.failure, undefined);
  for (let layer = 0; layer < layers; layer += 1) {
    const [first, second] = await Promise.allSettled([own.load(layer, right), own.load(layer, right)]);
    t.is(first.status, 'fulfilled');
    t.true(second.status === 'rejected' && isKvError(second.reason, 'KV_SEQUENCE_LOSSY'));
  }
  t.true(own.isLoaded);
  t.is(own.failure, undefined);
  t.like(own.counts, { layers, tokens: 80 * layers, selectedTokens: 16 * layers });
  lossy.release();
  await world.close();
});

test('one namespace gives nothing to another: what was selected before a change is computed, by a scheduler too', async (t) => {
  const { world, text, exact } = await worldOf(t);
  const { cache, cache: { prefixes }, engine } = world;
  const { selected } = await prefixes.promote({ tokens: text, selection });
  prefixes.setNamespace('next weights');
  t.is((await prefixes.promote({ tokens: text, selection })).selected, undefined, 'the other namespace has no such text');
  const sequence = cache.acquire({ tokens: text, selected });
  t.false(sequence.isLossy);
  t.is(sequence.length, 0);
  sequence.release();

  prefixes.setNamespace('');
  const others = Array.from({ length: 4 }, () => cache.acquire());
  const scheduler = new OnlineScheduler({ cache, engine });
  const { result } = scheduler.submit({ tokens: text, maxNewTokens: 1, selection });
  for (let turns = 0; turns < 20; turns += 1) await turn(); // what was selected waits for a slot
  t.is(scheduler.waitingRequests, 1);
  prefixes.setNamespace('next weights');
  for (const other of others) other.release();
  const { tokens, selection: made } = await result;
  t.deepEqual([...tokens], [mostLikely(exact)]);
  t.is(made, undefined);
  await scheduler.close();
  await world.close();
});

test('once tiers are closed a prompt ends as lost, with a selection and without, and what was selected before is computed', async (t) => {
  const { world, text, exact } = await worldOf(t);
  const { cache: { prefixes }, cache } = world;
  const { selected } = await prefixes.promote({ tokens: text, selection });
  await prefixes.tiers!.close();
  t.like(await prefixes.promote({ tokens: text }), { end: 'lost', promotedTokens: 0 });
  t.like(await prefixes.promote({ tokens: text, selection }), { end: 'lost', promotedTokens: 0, selected: undefined });
  const sequence = cache.acquire({ tokens: text, selected });
  t.false(sequence.isLossy);
  const logits = await world.finish(sequence, text);
  t.is(mostLikely(logits), mostLikely(exact));
  sequence.release();
  t.is(prefixes.tiers!.metrics().selections.sequences, 0);
  await world.close();
});

test('a prompt with items is promoted whole, and its sequence is exact', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 2 ** 24 })], { prefixCache: { importance: {} } });
  const { cache } = bench;
  const prompt = { tokens: plainText(100), items: [{ at: 20, length: 10, kind: 'item' as const, hash: 'a picture' }] };
  const first = cache.acquire(prompt);
  bench.prepare(first, 100);
  cache.stamp(first, 0, 100, 5);
  bench.commit();
  first.release();
  await cache.prefixes.tiers!.settled();
  dropFromDevice(cache);
  const { selected, cachedTokens, promotedTokens, end } = await cache.prefixes.promote({ ...prompt, selection });
  t.deepEqual({ selected, cachedTokens, promotedTokens, end }, { selected: undefined, cachedTokens: 100, promotedTokens: 100, end: 'complete' });
  const sequence = cache.acquire(prompt);
  t.false(sequence.isLossy);
  t.is(sequence.length, 99);
  t.is(cache.verifyStamp(sequence, 0, 99, 5), 0);
  sequence.release();
  const { selected: ofText } = await cache.prefixes.promote({ tokens: prompt.tokens, selection });
  t.is(ofText, undefined, 'the text alone is another prompt');
  await close(bench);
});

test('a cache without tiers has nothing to select from', async (t) => {
  const bench = new CacheBench(t, { model, maxTokens: 256, pageBytes: 65_536, memoryBudgetBytes: 2 ** 24, prefixCache: {} });
  const tokens = plainText(40);
  serve(bench, tokens, 3);
  t.like(await bench.cache.prefixes.promote({ tokens, selection }), { cachedTokens: 40, promotedTokens: 0, end: 'complete', selected: undefined });
  bench.close();
});

test('a signal that aborts a layer ends all of it at once, though the tier never answers; a cache may close then', async (t) => {
  const tier = new PlainTier('mine');
  const { world, text } = await worldOf(t, tier);
  tier.get = () => new Promise(() => { /* never */ });
  for (const chosen of [selection, { ratio: 0.2 }]) {
    const lossy = await world.lossy(text, chosen);
    const abort = new AbortController();
    const queries = { queries: new Float32Array(sizes.queryHeads * sizes.headDim), queryHeads: sizes.queryHeads, signal: abort.signal };
    const loading = lossy.selection!.load(0, queries);
    abort.abort();
    await t.throwsAsync(loading, { code: 'KV_SELECTION_LOST' });
    await t.throwsAsync(lossy.selection!.load(1, queries), { code: 'KV_SELECTION_LOST' });
    t.is(lossy.selection!.droppedTokens(0), 80);
    lossy.release();
  }
  await world.close();
});
