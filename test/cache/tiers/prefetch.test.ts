// Hints that a prompt is likely to come: its text is brought ahead, behind what requests wait for, and never in the way of one.

import test from 'ava';

import { hostTier } from 'virtual-kv';

import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';
import { dropFromDevice, turn } from './device-index.js';

const MiB = 2 ** 20;

/** A tier whose reads wait until `open` is called. */
function heldTier(): { tier: PlainTier; open: () => void; waiting: () => number } {
  const tier = new PlainTier('held');
  const get = tier.get.bind(tier);
  const waiting: (() => void)[] = [];
  let isHeld = true;
  tier.get = async (key, payload) => {
    if (isHeld) await new Promise<void>((resolve) => { waiting.push(resolve); });
    return get(key, payload);
  };
  const open = (): void => {
    isHeld = false;
    for (const go of waiting) go();
  };
  return { tier, open, waiting: () => waiting.length };
}

test('a hint brings text before its request comes, whatever the estimate says', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 16 * MiB })]);
  const { prefixes } = bench.cache;
  serve(bench, textOf(500), 3);
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  for (let pass = 0; pass < 60; pass += 1) prefixes.tiers!.hasPrefilled(1e9, 1);
  t.like(await prefixes.prefetch({ tokens: textOf(500) }), { cachedTokens: 500, promotedTokens: 500, end: 'complete' });
  t.deepEqual(serve(bench, textOf(500), 3), { found: 499, wrong: 0, demoted: 0 });
  t.like(prefixes.tiers!.metrics(), { prefetches: { complete: 1 }, promotions: { complete: 0 } });
  t.like(await prefixes.prefetch({ tokens: textOf(500, 1) }), { cachedTokens: 0, end: 'complete' });
  await close(bench);
});

test('hints load one at a time, so that requests need not wait for them', async (t) => {
  const { tier, open, waiting } = heldTier();
  const bench = benchOf(t, [tier]);
  const { prefixes } = bench.cache;
  for (let key = 1; key <= 4; key += 1) serve(bench, textOf(16, key), key);
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  const hints = [1, 2, 3].map((key) => prefixes.prefetch({ tokens: textOf(16, key) }));
  while (waiting() < 1) await turn();
  for (let wait = 0; wait < 20; wait += 1) await turn();
  t.is(waiting(), 1);
  const request = prefixes.promote({ tokens: textOf(16, 4) });
  while (waiting() < 2) await turn();
  open();
  t.like(await request, { cachedTokens: 16, end: 'complete' });
  for (const hint of hints) t.like(await hint, { cachedTokens: 16, end: 'complete' });
  await close(bench);
});

test('a request for the same text joins the hint, and a hint that is cancelled ends at once', async (t) => {
  const { tier, open, waiting } = heldTier();
  const bench = benchOf(t, [tier]);
  const { prefixes } = bench.cache;
  const tokens = textOf(64);
  serve(bench, tokens, 3);
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  const stop = new AbortController();
  const cancelled = prefixes.prefetch({ tokens, signal: stop.signal });
  while (waiting() < 4) await turn();
  stop.abort();
  t.like(await cancelled, { promotedTokens: 0, end: 'aborted' });
  const hint = prefixes.prefetch({ tokens });
  while (waiting() < 8) await turn();
  const request = prefixes.promote({ tokens });
  await turn();
  t.is(waiting(), 8, 'it reads nothing twice');
  open();
  t.like(await hint, { promotedTokens: 64, end: 'complete' });
  t.like(await request, { cachedTokens: 64, promotedTokens: 0, end: 'complete' });
  t.deepEqual(serve(bench, tokens, 3), { found: 63, wrong: 0, demoted: 0 });
  await close(bench);
});

test('a request that wants the memory of a hint gets it at once', async (t) => {
  const { tier, open, waiting } = heldTier();
  const bench = benchOf(t, [tier], { memoryBudgetBytes: 2 * MiB }); // 8 rows of 256 tokens
  const { prefixes } = bench.cache;
  serve(bench, textOf(1024), 3);
  await prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
  const hint = prefixes.prefetch({ tokens: textOf(1024) });
  while (waiting() < 1) await turn();
  t.deepEqual(serve(bench, textOf(2048, 7), 7), { found: 0, wrong: 0, demoted: 0 }, 'all memory there is');
  open();
  t.true(['no-memory', 'complete'].includes((await hint).end));
  t.deepEqual(serve(bench, textOf(2048, 7), 7).wrong, 0);
  await close(bench);
});
