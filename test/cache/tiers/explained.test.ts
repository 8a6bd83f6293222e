// What a cache says of text below its device: where each stretch lies, why it is not on the device or not in a tier, and by what
// estimate it was loaded or left.

import test from 'ava';

import { hostTier, type KvCache, type Tier, type TierGet } from 'virtual-kv';

import { processClock } from '#internal/tiers/load-clock.js';
import type { LoadEstimate } from '#internal/tiers/load-estimate.js';
import { timeLoadsBy } from '../../helpers/patient.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';
import { dropFromDevice, turn } from './device-index.js';

const MiB = 2 ** 20;

/** The engine computes so many tokens a millisecond. */
function computes(cache: KvCache, tokensPerMs: number): void {
  for (let pass = 0; pass < 300; pass += 1) cache.prefixes.tiers!.hasPrefilled(tokensPerMs, 1); // what was measured before has faded
}

/** Has a tier's gets wait for `answer`; `get` is what they called before. */
function holdGets(tier: PlainTier): { readonly get: PlainTier['get']; answer(got: TierGet): void } {
  const get = tier.get.bind(tier);
  const held: ((got: TierGet) => void)[] = [];
  tier.get = () => new Promise((resolve) => { held.push(resolve); });
  return { get, answer: (got) => { for (const resolve of held) resolve(got); } };
}

test('a text is told by stretches: what lies on the device, in which tiers, in several of them', async (t) => {
  const [fast, slow] = [hostTier({ bytes: 16 * MiB }), new PlainTier('slow')];
  const bench = benchOf(t, [fast, slow]);
  const { prefixes } = bench.cache;
  const tokens = textOf(100);
  serve(bench, tokens, 3);
  t.deepEqual(prefixes.lookup({ tokens }).stretches, [{ from: 0, to: 99, places: ['device'] }]);
  await prefixes.tiers!.settled();
  t.deepEqual(prefixes.explain({ tokens }).tiers!.stretches, [{ from: 0, to: 100, places: ['device', 'host', 'slow'] }]);
  dropFromDevice(bench.cache);
  await prefixes.promote({ tokens: tokens.subarray(0, 40) });
  for (const { record, payload } of slow.blocks.values()) if (record.position === 64) payload.fill(0);
  const { stretches } = prefixes.lookup({ tokens });
  t.deepEqual(stretches, [{ from: 0, to: 40, places: ['device', 'host', 'slow'] }, { from: 40, to: 100, places: ['host', 'slow'] }]);
  t.deepEqual(prefixes.lookup({ tokens: textOf(100, 1) }).stretches, []);
  const { tiers, tokens: cached } = prefixes.explain({ tokens: Int32Array.from([...tokens, 1, 2, 3]) });
  t.is(cached, 40);
  t.like(tiers, { reachableTokens: 100, left: undefined, absences: { host: 'never-offered', slow: 'never-offered' } });
  t.like(tiers!.estimate, { tokens: 60, loadTokens: 60, computeMs: undefined });
  await close(bench);
});

test('why text was left in its tiers: the deadline, the estimate, memory, a tier that fails', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier], { memoryBudgetBytes: 3 * MiB });
  timeLoadsBy(bench.cache, processClock);
  const { prefixes } = bench.cache;
  const tokens = textOf(1000);
  serve(bench, tokens, 3);
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  const left = (): string | undefined => prefixes.explain({ tokens }).tiers!.left?.end;
  t.is(left(), undefined, 'nothing tried');
  const { get, answer } = holdGets(tier);
  t.is((await prefixes.promote({ tokens, deadlineMs: 1 })).end, 'deadline');
  t.is(left(), 'deadline');
  computes(bench.cache, 1e6);
  t.is((await prefixes.promote({ tokens })).end, 'recompute-cheaper');
  t.is(left(), 'recompute-cheaper');
  const { estimate } = prefixes.explain({ tokens }).tiers!;
  t.is(estimate!.tokens, 1000);
  t.true(estimate!.loadTokens < 1000 && estimate!.loadMs > estimate!.computeMs!, JSON.stringify(estimate));
  t.deepEqual(estimate!.parts.map(({ tier, tokens, bytes }) => ({ tier, tokens, bytes })), [{ tier: 'mine', tokens: 1000, bytes: 1000 * 1024 }]);
  answer({ isFound: false, reason: 'timeout' });
  await turn();
  computes(bench.cache, 1e-6);
  tier.get = (): Promise<TierGet> => Promise.resolve({ isFound: false, reason: 'failed' });
  t.is((await prefixes.promote({ tokens })).end, 'unreachable');
  t.is(left(), 'unreachable');
  tier.get = get;
  const others = Array.from({ length: 3 }, (_, key) => {
    const sequence = bench.cache.acquire({ tokens: textOf(1000, key + 1) });
    bench.prepare(sequence, 1000);
    bench.commit();
    return sequence;
  });
  t.is((await prefixes.promote({ tokens })).end, 'no-memory');
  t.is(left(), 'no-memory');
  for (const sequence of others) sequence.release();
  t.like(await prefixes.promote({ tokens }), { cachedTokens: 1000, end: 'complete' });
  t.is(left(), undefined);
  t.deepEqual(Object.entries(prefixes.tiers!.metrics().promotions).filter(([, count]) => count > 0).sort(), [
    ['complete', 1], ['deadline', 1], ['no-memory', 1], ['recompute-cheaper', 1], ['unreachable', 1],
  ]);
  t.is(prefixes.tiers!.metrics().promotionTimes.count, 5);
  await close(bench);
});

test('why a tier lacks text: evicted, damaged, refused, seen once, part of a block', async (t) => {
  const absence = (cache: KvCache, tokens: Int32Array): unknown => cache.prefixes.explain({ tokens }).tiers!.absences;
  const tier = new PlainTier('mine');
  const small = hostTier({ bytes: 512 * 1024 });
  const twice: Tier = Object.assign(new PlainTier('twice'), { admitAfter: 2 });
  const whole: Tier = Object.assign(new PlainTier('whole'), { takesOnlyWholeBlocks: true });
  const bench = benchOf(t, [small, tier, twice, whole]);
  const { cache } = bench;
  const { prefixes } = cache;
  const first = textOf(100);
  serve(bench, first, 1);
  await prefixes.tiers!.settled();
  t.is(absence(cache, first), undefined, 'all of it lies somewhere');
  for (const { record, payload } of tier.blocks.values()) if (record.position === 96) payload.fill(0);
  for (let key = 1; key <= 6; key += 1) serve(bench, textOf(100, key), key); // more than `small` has room for
  await prefixes.tiers!.settled();
  dropFromDevice(cache);
  t.like(await prefixes.promote({ tokens: first }), { cachedTokens: 96, end: 'corrupt' });
  t.deepEqual(absence(cache, first), { host: 'evicted', mine: 'corrupt', twice: 'seen-once', whole: 'part-of-block' });
  tier.put = () => Promise.resolve({ isStored: false, reason: 'busy' });
  const refused = textOf(160, 90);
  const firstOnly = refused.subarray(0, 16);
  serve(bench, refused, 9);
  await prefixes.tiers!.settled();
  prefixes.reset();
  t.deepEqual(absence(cache, firstOnly), { host: 'never-offered', mine: 'never-offered', twice: 'seen-once', whole: 'never-offered' }, 'a reset forgets');
  serve(bench, refused, 9);
  await prefixes.tiers!.settled();
  t.is(prefixes.tiers!.metrics().tiers[1]!.refusals.busy > 0, true);
  await close(bench);
});

test('the start of a text comes from a fast tier where its end in a slow one is better computed', async (t) => {
  const [fast, slow] = [new PlainTier('fast'), new PlainTier('slow')];
  const bench = benchOf(t, [fast, slow]);
  const { prefixes } = bench.cache;
  const tokens = textOf(160);
  serve(bench, tokens, 3);
  await prefixes.tiers!.settled();
  for (const { record } of [...fast.blocks.values()]) if (record.position >= 80) fast.blocks.delete(record.key);
  const open = prefixes.tiers as unknown as { readonly opened: readonly { lose(key: string): void; readonly estimate: LoadEstimate }[] };
  for (const { record } of slow.blocks.values()) if (record.position >= 80) open.opened[0]!.lose(record.key);
  for (let load = 0; load < 20; load += 1) {
    open.opened[0]!.estimate.measured({ bytes: (1 + load) * MiB, milliseconds: 1e-3 });
    open.opened[1]!.estimate.measured({ bytes: (1 + load) * MiB, milliseconds: 1e9 });
  }
  dropFromDevice(bench.cache);
  computes(bench.cache, 1e-4);
  t.like(prefixes.explain({ tokens }).tiers!.estimate, { tokens: 160, loadTokens: 80 });
  t.like(await prefixes.promote({ tokens }), { cachedTokens: 80, promotedFrom: { fast: 80 }, end: 'recompute-cheaper' });
  await close(bench);
});

test('without tiers a lookup tells the device alone, and an explanation nothing more', async (t) => {
  const bench = benchOf(t, []);
  serve(bench, textOf(100), 3);
  t.deepEqual(bench.cache.prefixes.lookup({ tokens: textOf(100) }).stretches, [{ from: 0, to: 99, places: ['device'] }]);
  t.deepEqual(bench.cache.prefixes.explain({ tokens: textOf(100) }), { tokens: 100, reason: 'complete' });
  bench.close();
});

test('what a tier cannot say is unreachable, and neither complete nor never offered', async (t) => {
  const shared = new PlainTier('shared');
  let isAnswering = false;
  const found: Tier = Object.assign(shared, { find: (keys: readonly string[]) => Promise.resolve(isAnswering ? countLeading(shared, keys) : undefined) });
  const bench = benchOf(t, [found]);
  const { prefixes } = bench.cache;
  const text = textOf(64);
  await prefixes.tiers!.ready();
  const other = benchOf(t, [shared]); // another process, which stores there
  serve(other, text, 3);
  await close(other);
  const stop = new AbortController();
  const cancelled = prefixes.promote({ tokens: text }, { signal: stop.signal });
  stop.abort();
  t.like(await cancelled, { end: 'aborted', cachedTokens: 0 });
  t.is(prefixes.explain({ tokens: text }).tiers!.absences!['shared'], 'never-offered', 'a question that was taken back says nothing');
  t.like(await prefixes.promote({ tokens: text }), { end: 'unreachable', cachedTokens: 0 });
  t.is(prefixes.explain({ tokens: text }).tiers!.absences!['shared'], 'unreachable');
  isAnswering = true;
  t.like(await prefixes.promote({ tokens: text }), { end: 'complete', promotedTokens: 64 });
  const unknown = textOf(64, 9);
  t.like(await prefixes.promote({ tokens: unknown }), { end: 'complete', cachedTokens: 0 });
  t.is(prefixes.explain({ tokens: unknown }).tiers!.absences!['shared'], 'never-offered');
  await close(bench);
});

test('a tier that did not open ends a promotion as unreachable', async (t) => {
  const broken = Object.assign(new PlainTier('broken'), { open: () => Promise.reject(new Error('no room')) });
  const bench = benchOf(t, [broken]);
  const { prefixes } = bench.cache;
  await t.throwsAsync(prefixes.tiers!.ready());
  t.like(await prefixes.promote({ tokens: textOf(64) }), { end: 'unreachable', cachedTokens: 0 });
  t.is(prefixes.explain({ tokens: textOf(64) }).tiers!.absences!['broken'], 'out-of-service');
  await close(bench);
});

test('options of a promotion may be beside the prompt, and are checked there', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier]);
  const { prefixes } = bench.cache;
  const tokens = textOf(64);
  serve(bench, tokens, 3);
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  const { get, answer } = holdGets(tier);
  t.like(await prefixes.promote({ tokens }, { deadlineMs: 1 }), { end: 'deadline', promotedTokens: 0 });
  t.like(await prefixes.promote({ tokens, deadlineMs: 1e6 }, { deadlineMs: 1 }), { end: 'deadline', promotedTokens: 0 });
  t.like(await prefixes.promote({ tokens }, { signal: AbortSignal.abort() }), { end: 'aborted', promotedTokens: 0 });
  t.like(await prefixes.prefetch({ tokens }, { signal: AbortSignal.abort() }), { end: 'aborted', promotedTokens: 0 });
  await t.throwsAsync(prefixes.promote({ tokens }, { foo: 1 } as object), { code: 'KV_UNKNOWN_OPTION' });
  await t.throwsAsync(prefixes.promote({ tokens }, { tokens } as object), { code: 'KV_UNKNOWN_OPTION' });
  await t.throwsAsync(prefixes.promote({ tokens }, 5 as unknown as object), { code: 'KV_INVALID_OPTION' });
  await t.throwsAsync(prefixes.prefetch({ tokens }, { deadlineMs: 5 } as object), { code: 'KV_UNKNOWN_OPTION' });
  tier.get = get;
  answer({ isFound: false, reason: 'timeout' });
  t.like(await prefixes.promote({ tokens }, {}), { end: 'complete', promotedTokens: 64 });
  await close(bench);
});

function countLeading({ blocks }: PlainTier, keys: readonly string[]): number {
  const missing = keys.findIndex((key) => !blocks.has(key));
  return missing < 0 ? keys.length : missing;
}
