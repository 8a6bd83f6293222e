// What is brought up is of use: requests that cannot use it do not wait for it, what came for one request does not go for another's, and a promotion
// is complete only where all that is stored is on the device.

import test from 'ava';

import { hostTier, OfflineScheduler, OnlineScheduler, type GenerationResult } from 'virtual-kv';
import { PatternEngine, turn } from '../../serving/pattern-engine.js';
import { refusesAsync } from '../../helpers/refuses.js';
import { dropFromDevice } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';

const prompt = (tokens: number, first = 0): number[] => Array.from({ length: tokens }, (_, at) => (first + at * 7 + Math.floor(at / 61)) % 61);
/** By it an engine takes minutes for a pass, so that loading is always worth it. */
function slowClock(): () => number {
  let now = 0;
  return () => now += 1e6;
}

const sideTensors = { hidden: { width: 4, dtype: 'float32' } } as const;

test('a request that carries side tensors is promised nothing from tiers, and waits for nothing; its text says that its rows are gone', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier], { sideTensors });
  const { cache } = bench;
  const { prefixes } = cache;
  const text = textOf(64);
  const first = cache.acquire({ tokens: text });
  bench.prepare(first, 64);
  first.writeSide(0, { hidden: new Float32Array(64 * 4) });
  bench.commit();
  first.release();
  await prefixes.tiers!.settled();
  dropFromDevice(cache);
  const longer = [...text, 1];
  t.is(prefixes.lookup({ tokens: longer, needs: [] }).demotedTokens, 64);
  t.is(prefixes.lookup({ tokens: longer }).demotedTokens, 0);
  const request = cache.acquire({ tokens: longer });
  t.is(request.demotedTokens, 0);
  request.release();

  t.is((await prefixes.promote({ tokens: longer })).promotedTokens, 64);
  t.like(prefixes.explain({ tokens: longer, needs: ['hidden'] }), { tokens: 0, reason: 'side-evicted', keyValueTokens: 64 });
  await close(bench);
});

test('side rows that were evicted whole are told as evicted', async (t) => {
  const bench = benchOf(t, [], { sideTensors: { hidden: { width: 4096, dtype: 'float32', pageBytes: 65_536 } }, sideBudgetBytes: 2 * 65_536 }); // 4 tokens a page
  const { cache } = bench;
  for (const first of [0, 1000]) {
    const sequence = cache.acquire({ tokens: textOf(8, first) });
    bench.prepare(sequence, 8);
    sequence.writeSide(0, { hidden: new Float32Array(8 * 4096) });
    bench.commit();
    sequence.release();
  }
  t.like(cache.prefixes.explain({ tokens: [...textOf(8), 1] }), { tokens: 0, reason: 'side-evicted', keyValueTokens: 8 });
  bench.close();
  await turn();
});

test('a scheduler has requests wait for tiers only where they carry no side tensors', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 2 ** 24 })], { sideTensors });
  const { cache } = bench;
  const engine = new PatternEngine({ cache });
  const scheduler = new OnlineScheduler({ cache, engine, now: slowClock() });
  const promoted: (number | undefined)[] = [];
  for (const needs of [[], undefined, []]) {
    const { promotion } = await scheduler.submit({ tokens: prompt(100), maxNewTokens: 1, needs }).result;
    promoted.push(promotion?.promotedTokens);
    await cache.prefixes.tiers!.settled();
    dropFromDevice(cache);
  }
  t.is(promoted[1], undefined);
  t.true(promoted[2]! >= 96);
  await scheduler.close();
  await close(bench);
});

test('what tiers brought for requests is there when these start, though more is stored than the device holds', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 2 ** 26 })], { slots: 2, memoryBudgetBytes: 2 ** 22 }); // 1,024 bytes a token: 64 rows
  const { cache } = bench;
  const engine = new PatternEngine({ cache, pause: turn });
  const requests = Array.from({ length: 8 }, (_, request) => ({ tokens: prompt(1000, request), maxNewTokens: 4 }));
  const run = async (these: typeof requests): Promise<GenerationResult[]> => {
    const results: GenerationResult[] = [];
    for await (const outcome of new OfflineScheduler({ cache, engine, now: slowClock() }).run(these)) {
      if (outcome.status === 'rejected') throw outcome.reason;
      results.push(outcome.value);
    }
    await cache.prefixes.tiers!.settled();
    return results;
  };
  for (const request of requests) await run([request]);
  dropFromDevice(cache);
  const results = await run(requests);
  const found = results.map(({ cachedTokens }) => cachedTokens);
  const promoted = results.map(({ promotion }) => promotion?.promotedTokens ?? 0);
  const sum = (numbers: readonly number[]): number => numbers.reduce((all, each) => all + each, 0);
  t.true(sum(promoted) > 7000, `${promoted}`);
  t.true(sum(found) >= sum(promoted) - 16, `${found} of ${promoted}`);
  t.is(engine.wrongTokens, 0);
  await close(bench);
});

test('a promotion is complete only where all that is stored came: behind a lost block more is', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier]);
  const { prefixes } = bench.cache;
  const text = textOf(64);
  serve(bench, text, 1);
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  t.like(await prefixes.promote({ tokens: text }), { end: 'complete', cachedTokens: 64 });
  dropFromDevice(bench.cache);
  const second = [...tier.blocks.values()].find(({ record }) => record.position === 16)!;
  tier.blocks.delete(second.record.key);
  t.like(await prefixes.promote({ tokens: text }), { end: 'lost', cachedTokens: 16 });
  t.like(await prefixes.promote({ tokens: text }), { end: 'lost', cachedTokens: 16 }, 'also once it is known');
  t.like(await prefixes.promote({ tokens: text.subarray(0, 16) }), { end: 'complete', cachedTokens: 16 });
  await close(bench);
});

test('a tier in which no block has room says so when it opens, and the others work', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 4096 }), new PlainTier('mine')]);
  const { tiers } = bench.cache.prefixes;
  await refusesAsync(t, tiers!.ready(), 'KV_INVALID_OPTION', { owner: 'host', option: 'bytes', received: 4096 });
  serve(bench, textOf(64), 1);
  await tiers!.settled();
  t.deepEqual(tiers!.metrics().tiers.map(({ storedBlocks }) => storedBlocks), [0, 4]);
  await close(bench);
});
