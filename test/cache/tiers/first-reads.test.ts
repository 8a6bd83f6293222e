// The first requests for text in a tier of which nothing is known yet: one that answers is used at once, one that does not is hardly waited
// for, and is measured by the reads that were begun.

import test from 'ava';

import { measureReads } from '#internal/tiers/text-load.js';
import type { LoadClock } from '#internal/tiers/load-clock.js';
import { LoadEstimate } from '#internal/tiers/load-estimate.js';
import type { OpenTier } from '#internal/tiers/open-tier.js';
import { turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';
import { blockTokens, computeMs, TimedLoads, tokens, type TimedTier } from './timed-loads.js';

/** The tier's reads wait from now on. */
function hold(tier: TimedTier): void {
  tier.latencyMs = () => Infinity;
}

function letThrough(tier: TimedTier): void {
  tier.latencyMs = () => 0;
  tier.letThrough();
}

test('a tier that was never measured is used by the first request where it answers', async (t) => {
  const scene = new TimedLoads(t);
  await scene.store();
  t.like(await scene.promote(), { cachedTokens: tokens, promotedTokens: tokens, end: 'complete' });
  await close(scene.bench);
});

test('one that does not answer is waited for a small share of computing, and measured meanwhile', async (t) => {
  const scene = new TimedLoads(t, ['held']);
  const [tier] = scene.tiers as [TimedTier];
  const { prefixes } = scene.bench.cache;
  await scene.store();
  hold(tier);
  const first = await scene.promote();
  t.like(first, { cachedTokens: 0, promotedTokens: 0, end: 'recompute-cheaper' });
  t.true(Math.abs(first.milliseconds - computeMs / 20) <= 1, `it waited ${first.milliseconds} ms`);
  const gets = tier.signals.length;
  t.true(gets > 0 && tier.signals.every((signal) => signal?.aborted !== true), 'what was begun goes on');
  const { estimate, left } = prefixes.explain({ tokens: textOf(tokens) }).tiers!;
  const parts = [{ tier: 'held', tokens, latencyMs: undefined, bytesPerMs: undefined }];
  t.like(estimate, { tokens, loadTokens: 0, parts });
  t.true(estimate!.loadMs >= 0.9 * computeMs / 20, 'as long as it has been waited for');
  t.is(left?.end, 'recompute-cheaper');
  t.like(await scene.promote(), { promotedTokens: 0, end: 'recompute-cheaper' });
  t.is(tier.signals.length, gets, 'nothing more is read of it until it is known');
  letThrough(tier);
  while (prefixes.tiers!.metrics().tiers[0]!.bytesPerMs === undefined) await turn();
  t.like(prefixes.explain({ tokens: textOf(tokens) }).tiers!.estimate, { loadTokens: tokens });
  t.like(await scene.promote(), { cachedTokens: tokens, end: 'complete' });
  t.deepEqual(serve(scene.bench, textOf(tokens), 3), { found: tokens - 1, wrong: 0, demoted: 0 });
  await close(scene.bench);
});

test('what a fast tier has is loaded while a slower one is not known, and the rest is computed', async (t) => {
  const scene = new TimedLoads(t, ['fast', 'held']);
  const [fast, held] = scene.tiers as [TimedTier, TimedTier];
  await scene.store();
  hold(held);
  const fastTokens = 25 * blockTokens;
  for (const { record } of fast.blocks.values()) if (record.position >= fastTokens) scene.opened[0]!.lose(record.key);
  const want = { cachedTokens: fastTokens, promotedFrom: { fast: fastTokens }, end: 'recompute-cheaper' } as const;
  t.like(await scene.promote(), want);
  t.like(await scene.promote(), want, 'also while the other is being measured');
  letThrough(held);
  await close(scene.bench);
});

test('where nothing is known of the engine either, the first answer has a fixed time', async (t) => {
  const scene = new TimedLoads(t, ['held'], undefined, 0);
  const [tier] = scene.tiers as [TimedTier];
  await scene.store();
  hold(tier);
  t.like(await scene.promote(0, 100), { promotedTokens: 0, end: 'recompute-cheaper' });
  letThrough(tier);
  await close(scene.bench);
});

test('a request that ends while a tier is not known cancels its reads', async (t) => {
  const scene = new TimedLoads(t);
  const [tier] = scene.tiers as [TimedTier];
  await scene.store();
  hold(tier);
  const abort = new AbortController();
  const promotion = scene.bench.cache.prefixes.promote({ tokens: textOf(tokens), signal: abort.signal });
  while (tier.signals.length === 0) await turn();
  abort.abort();
  t.like(await promotion, { promotedTokens: 0, end: 'aborted' });
  t.true(tier.signals.every((signal) => signal!.aborted));
  letThrough(tier);
  await close(scene.bench);
});

test('a first read is not slow because this thread was busy, is slow where the tier failed, and tells nothing where the block was gone', async (t) => {
  let nowMs = 0;
  const clock: LoadClock = { now: () => nowMs, after: () => () => { /* no turn of the event loop comes meanwhile */ } };
  const measured = async (end: unknown, busyMs: number): Promise<LoadEstimate> => {
    const open = { estimate: new LoadEstimate(), tier: new PlainTier('mine') } as unknown as OpenTier;
    const read = new Promise<never>((resolve) => { setImmediate(() => { resolve((end instanceof Function ? end(open) : end) as never); }); });
    measureReads(open, { waitedMs: 5, leastBytes: 1000, reads: [read], isTrial: false }, clock);
    t.true(open.estimate.isAwaited);
    nowMs += busyMs;
    await read;
    await turn();
    return open.estimate;
  };
  const busy = await measured((from: OpenTier) => ({ payload: { length: 4000 }, from }), 200);
  t.true(busy.milliseconds(4000) >= 5 && busy.milliseconds(4000) < 100, `${busy.milliseconds(4000)} ms`);
  const failed = await measured({ reason: 'timeout' }, 0);
  t.true(failed.isMeasured && failed.milliseconds(1000) >= 5);
  const gone = await measured({ reason: 'absent' }, 0);
  t.deepEqual([gone.isMeasured, gone.isAwaited, gone.milliseconds(1000)], [false, false, 0]);
});

test('a prompt of which no token was computed says nothing of how fast the engine is', async (t) => {
  const bench = benchOf(t, [new PlainTier('mine')]);
  const tiers = bench.cache.prefixes.tiers!;
  tiers.hasPrefilled(0, 5);
  t.is(tiers.metrics().prefillTokensPerMs, undefined);
  tiers.hasPrefilled(100, 50);
  tiers.hasPrefilled(0, 5);
  tiers.hasPrefilled(0, 0);
  t.is(tiers.metrics().prefillTokensPerMs, 2);
  await close(bench);
});
