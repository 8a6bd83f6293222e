// The first requests for text in a tier of which nothing is known yet: one that answers is used at once, one that does not is hardly waited
// for, and is measured by the reads that were begun.

import test from 'ava';

import type { KvCache } from 'virtual-kv';

import { measureReads } from '#internal/tiers/left-reads.js';
import { processClock } from '#internal/tiers/load-clock.js';
import { LoadEstimate } from '#internal/tiers/load-estimate.js';
import type { OpenTier } from '#internal/tiers/open-tier.js';
import type { CacheBench } from '../../helpers/cache.js';
import { dropFromDevice, turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';

/** Reads wait until they are let through. */
class HeldTier extends PlainTier {
  readonly signals: (AbortSignal | undefined)[] = [];
  #waiting: (() => void)[] | undefined = [];

  override async get(key: string, payload: Uint8Array, signal?: AbortSignal): ReturnType<PlainTier['get']> {
    this.signals.push(signal);
    await new Promise<void>((resolve) => {
      if (this.#waiting === undefined) resolve();
      else this.#waiting.push(resolve);
    });
    return super.get(key, payload);
  }

  letThrough(): void {
    for (const go of this.#waiting ?? []) go();
    this.#waiting = undefined;
  }
}

/** So long that a share of it is nothing that a busy machine takes by chance. */
const computeMs = 4_000;

/** The engine takes `computeMs` for so many tokens. */
function computes(cache: KvCache, tokens: number): void {
  cache.prefixes.tiers!.hasPrefilled(tokens, computeMs);
}

/** A text that tiers alone have. */
async function demoted(bench: CacheBench, tokens: number): Promise<Int32Array> {
  const text = textOf(tokens);
  serve(bench, text, 3);
  await bench.cache.prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  return text;
}

async function untilMeasured(cache: KvCache): Promise<void> {
  while (cache.prefixes.tiers!.metrics().tiers[0]!.bytesPerMs === undefined) await turn();
}

test('a tier that was never measured is used by the first request where it answers', async (t) => {
  const bench = benchOf(t, [new PlainTier('mine')]);
  const { prefixes } = bench.cache;
  const tokens = await demoted(bench, 1000);
  computes(bench.cache, 1000);
  t.like(await prefixes.promote({ tokens }), { cachedTokens: 1000, promotedTokens: 1000, end: 'complete' });
  await close(bench);
});

test('one that does not answer is waited for a small share of computing, and measured meanwhile', async (t) => {
  const tier = new HeldTier('held');
  const bench = benchOf(t, [tier]);
  const { prefixes } = bench.cache;
  const tokens = await demoted(bench, 1000);
  computes(bench.cache, 1000);
  const first = await prefixes.promote({ tokens });
  t.like(first, { cachedTokens: 0, promotedTokens: 0, end: 'recompute-cheaper' });
  t.true(first.milliseconds < computeMs / 2, `it waited ${first.milliseconds} ms where computing takes ${computeMs}`);
  const gets = tier.signals.length;
  t.true(gets > 0 && tier.signals.every((signal) => signal?.aborted !== true), 'what was begun goes on');
  const { estimate, left } = prefixes.explain({ tokens }).tiers!;
  t.like(estimate, { tokens: 1000, loadTokens: 0, parts: [{ tier: 'held', tokens: 1000, latencyMs: undefined, bytesPerMs: undefined }] });
  t.true(estimate!.loadMs >= 0.9 * computeMs / 20, 'as long as it has been waited for');
  t.is(left?.end, 'recompute-cheaper');
  t.like(await prefixes.promote({ tokens }), { promotedTokens: 0, end: 'recompute-cheaper' });
  t.is(tier.signals.length, gets, 'nothing more is read of it until it is known');
  tier.letThrough();
  await untilMeasured(bench.cache);
  t.like(prefixes.explain({ tokens }).tiers!.estimate, { loadTokens: 1000 });
  t.like(await prefixes.promote({ tokens }), { cachedTokens: 1000, end: 'complete' });
  t.deepEqual(serve(bench, tokens, 3), { found: 999, wrong: 0, demoted: 0 });
  await close(bench);
});

test('what a fast tier has is loaded while a slower one is not known, and the rest is computed', async (t) => {
  const [fast, held] = [new PlainTier('fast'), new HeldTier('held')];
  const bench = benchOf(t, [fast, held]);
  const { prefixes } = bench.cache;
  const tokens = await demoted(bench, 1000);
  const { opened } = prefixes.tiers as unknown as { readonly opened: readonly OpenTier[] };
  for (const { record } of fast.blocks.values()) if (record.position >= 400) opened[0]!.lose(record.key);
  computes(bench.cache, 1000);
  const want = { cachedTokens: 400, promotedFrom: { fast: 400 }, end: 'recompute-cheaper' } as const;
  t.like(await prefixes.promote({ tokens }), want);
  dropFromDevice(bench.cache);
  t.like(await prefixes.promote({ tokens }), want, 'also while the other is being measured');
  held.letThrough();
  await close(bench);
});

test('where nothing is known of the engine either, the first answer has a fixed time', async (t) => {
  const tier = new HeldTier('held');
  const bench = benchOf(t, [tier]);
  const { prefixes } = bench.cache;
  const tokens = await demoted(bench, 100);
  t.like(await prefixes.promote({ tokens }), { promotedTokens: 0, end: 'recompute-cheaper' });
  tier.letThrough();
  await close(bench);
});

test('a request that ends while a tier is not known cancels its reads', async (t) => {
  const tier = new HeldTier('held');
  const bench = benchOf(t, [tier]);
  const { prefixes } = bench.cache;
  const tokens = await demoted(bench, 100);
  computes(bench.cache, 1);
  const abort = new AbortController();
  const promotion = prefixes.promote({ tokens, signal: abort.signal });
  while (tier.signals.length === 0) await turn();
  abort.abort();
  t.like(await promotion, { promotedTokens: 0, end: 'aborted' });
  t.true(tier.signals.every((signal) => signal!.aborted));
  tier.letThrough();
  await close(bench);
});

test('a first read is not slow because this thread was busy, is slow where the tier failed, and tells nothing where the block was gone', async (t) => {
  const measured = async (end: unknown, work: () => void): Promise<LoadEstimate> => {
    const open = { estimate: new LoadEstimate(), tier: new PlainTier('mine') } as unknown as OpenTier;
    const read = new Promise<never>((resolve) => { setImmediate(() => { resolve((end instanceof Function ? end(open) : end) as never); }); });
    measureReads(open, { waitedMs: 5, leastBytes: 1000, reads: [read], isTrial: false }, processClock);
    t.true(open.estimate.isAwaited);
    work();
    await read;
    await turn();
    return open.estimate;
  };
  const busy = await measured((from: OpenTier) => ({ payload: { length: 4000 }, from }), () => {
    for (const untilMs = performance.now() + 200; performance.now() < untilMs;);
  });
  t.true(busy.milliseconds(4000) >= 5 && busy.milliseconds(4000) < 100, `${busy.milliseconds(4000)} ms`);
  const failed = await measured({ reason: 'timeout' }, () => { /* nothing */ });
  t.true(failed.isMeasured && failed.milliseconds(1000) >= 5);
  const gone = await measured({ reason: 'absent' }, () => { /* nothing */ });
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
