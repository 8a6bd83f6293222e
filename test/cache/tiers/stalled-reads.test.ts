// No hit makes a request slower than a miss: how long requests wait for a tier that was fast and stalls, trickles, or is tried again, on a clock
// that the test steps.

import test from 'ava';

import { dropFromDevice, turn } from './device-index.js';
import { textOf, close } from './tier-bench.js';
import { blockTokens, computeMs, TimedLoads, tokens, totalMs, type TimedTier } from './timed-loads.js';
import { slow } from '../../runner/slow.js';

/** Of computing: what a wait in vain may cost. */
const share = 0.05;

test('a tier that was fast and stalls is waited for a small share of computing, and its reads go on and measure it', async (t) => {
  const scene = new TimedLoads(t);
  const [tier] = scene.tiers as [TimedTier];
  await scene.store();
  for (let load = 0; load < 5; load += 1) t.like(await scene.promote(), { cachedTokens: tokens, end: 'complete' });
  tier.latencyMs = () => Infinity;
  const before = tier.reads;
  const stalled = await scene.promote();
  t.like(stalled, { cachedTokens: 0, end: 'recompute-cheaper' });
  t.true(totalMs(stalled) <= 1.06 * computeMs, `${totalMs(stalled)} ms where computing takes ${computeMs}`);
  t.true(stalled.milliseconds >= share * computeMs);
  t.true(tier.signals.slice(before).every((signal) => signal?.aborted === false), 'its reads go on');
  const reads = tier.reads;
  const next = await scene.promote();
  t.like(next, { cachedTokens: 0, end: 'recompute-cheaper', milliseconds: 0 }, 'others do not wait for it');
  t.is(tier.reads, reads);
  await scene.wait(5000);
  tier.letThrough();
  await turn();
  t.true(scene.opened[0]!.estimate.milliseconds(1e6) > 300, 'it is measured by what it took');
  await close(scene.bench);
});

test('a tier that stalls in the middle of a text is waited for a small share of computing what is left', async (t) => {
  const scene = new TimedLoads(t);
  const [tier] = scene.tiers as [TimedTier];
  await scene.store();
  await scene.promote();
  tier.latencyMs = (block) => (block < 40 ? 0 : Infinity);
  const stalled = await scene.promote();
  t.like(stalled, { cachedTokens: 40 * blockTokens, end: 'recompute-cheaper' });
  t.true(stalled.milliseconds <= share * computeMs * 36 / 60 + 2, `${stalled.milliseconds} ms`); // up to 16 blocks were being copied when the wait began
  tier.letThrough();
  await turn();
  await close(scene.bench);
});

test('a tier that trickles is left about when computing the rest is sooner', async (t) => {
  for (const from of [0, 30]) {
    const scene = new TimedLoads(t);
    const [tier] = scene.tiers as [TimedTier];
    await scene.store();
    await scene.promote();
    tier.latencyMs = (block) => {
      tier.gapMs = block < from ? 0 : 20; // sooner than an answer is given up, more slowly than the engine computes
      return 0;
    };
    const trickled = await scene.promote();
    t.is(trickled.end, 'recompute-cheaper');
    t.true(totalMs(trickled) <= 1.1 * computeMs, `${totalMs(trickled)} ms where computing takes ${computeMs}, from block ${from}`);
    await scene.wait(2000);
    await close(scene.bench);
  }
});

test('a tier whose answers are late as they used to be is waited for', async (t) => {
  const scene = new TimedLoads(t);
  const [tier] = scene.tiers as [TimedTier];
  await scene.store();
  tier.latencyMs = () => 45; // the first request waits 50 for it
  t.like(await scene.promote(), { cachedTokens: tokens, end: 'complete' });
  tier.latencyMs = () => 80;
  t.like(await scene.promote(), { cachedTokens: tokens, end: 'complete' });
  t.like(await scene.promote(), { cachedTokens: tokens, end: 'complete' });
  await close(scene.bench);
});

test('a tier that is tried again costs the request that tries it a small share of computing, and is used once it is fast again', async (t) => {
  const scene = new TimedLoads(t);
  const [tier] = scene.tiers as [TimedTier];
  await scene.store();
  await scene.promote();
  tier.latencyMs = () => 10 * computeMs;
  const before = tier.reads;
  let most = 0;
  for (let round = 0; round < 200; round += 1) {
    const reads = tier.reads;
    const { milliseconds, cachedTokens, end } = await scene.promote();
    t.deepEqual([cachedTokens, end], [0, 'recompute-cheaper']);
    most = Math.max(most, milliseconds);
    if (tier.reads > reads) await scene.wait(11 * computeMs);
  }
  t.true(most <= 1.1 * share * computeMs, `${most} ms`);
  t.is(tier.reads - before, 16 * 4, 'the first of them, and one in 64');
  tier.latencyMs = () => 2;
  let rounds = 0;
  while ((await scene.promote()).cachedTokens === 0) rounds += 1;
  t.true(rounds <= 64, `${rounds} requests were computed before it was tried`);
  t.like(await scene.promote(), { cachedTokens: tokens, end: 'complete' }, 'and from then on it is used');
  await close(scene.bench);
});

slow('many requests over a tier that stalls')('a slow tier behind a fast one costs the request that tries it no more than a share of computing what it has', async (t) => {
  const scene = new TimedLoads(t, ['fast', 'slow']);
  const [fast, slow] = scene.tiers as [TimedTier, TimedTier];
  await scene.store();
  for (const { record } of fast.blocks.values()) if (record.position >= 30 * blockTokens) scene.opened[0]!.lose(record.key);
  slow.gapMs = 20;
  let most = 0;
  for (let round = 0; round < 150; round += 1) {
    const reads = slow.reads;
    const promotion = await scene.promote();
    t.true(promotion.cachedTokens >= 30 * blockTokens);
    most = Math.max(most, totalMs(promotion));
    if (slow.reads > reads) await scene.wait(1500);
  }
  t.true(most <= 1.2 * computeMs / 2, `${most} ms where the fast tier's half and computing the rest take ${computeMs / 2}`);
  await close(scene.bench);
});

slow('many requests over a tier that stalls')('what a tier that stalls owes comes from the next that has it, and the tier is used again once it is fast', async (t) => {
  const scene = new TimedLoads(t, ['stalling', 'steady']);
  const [stalling, steady] = scene.tiers as [TimedTier, TimedTier];
  await scene.store();
  steady.latencyMs = () => 10;
  t.like((await scene.promote()).promotedFrom, { stalling: tokens });
  stalling.latencyMs = () => Infinity;
  t.like(await scene.promote(), { cachedTokens: 0, end: 'recompute-cheaper' }, 'the first waits for it');
  for (let request = 0; request < 5; request += 1) t.like(await scene.promote(), { promotedFrom: { steady: tokens }, end: 'complete' });
  await scene.wait(5000);
  stalling.letThrough();
  await turn();
  stalling.latencyMs = () => 1;
  for (let request = 0; request < 5; request += 1) t.like(await scene.promote(), { promotedFrom: { steady: tokens }, end: 'complete' }, 'it was measured to be slow');
  let requests = 0;
  while ((await scene.promote()).promotedFrom['stalling'] === undefined && requests < 100) requests += 1;
  t.true(requests <= 64, `${requests} requests passed it over`);
  t.like(await scene.promote(), { promotedFrom: { stalling: tokens }, end: 'complete' });
  await close(scene.bench);
});

test('requests that wait for a load of the same text, or for their turn, wait no longer for one that stalls', async (t) => {
  const scene = new TimedLoads(t);
  const [tier] = scene.tiers as [TimedTier];
  for (let text = 0; text < 5; text += 1) await scene.store(1000 * text);
  await scene.promote();
  dropFromDevice(scene.bench.cache);
  tier.latencyMs = () => Infinity;
  const { prefixes } = scene.bench.cache;
  const cancel = new AbortController();
  const hint = prefixes.prefetch({ tokens: textOf(tokens), signal: cancel.signal });
  await turn();
  const same = await scene.pass(prefixes.promote({ tokens: textOf(tokens) }));
  t.like(same, { cachedTokens: 0, end: 'recompute-cheaper' });
  t.true(same.milliseconds <= 1.1 * share * computeMs, `${same.milliseconds} ms`);
  const others = await scene.pass(Promise.all([1, 2, 3, 4].map((text) => prefixes.promote({ tokens: textOf(tokens, 1000 * text) }))));
  for (const { milliseconds, end } of others) {
    t.is(end, 'recompute-cheaper');
    t.true(milliseconds <= 2.1 * share * computeMs, `${milliseconds} ms`);
  }
  cancel.abort();
  tier.letThrough();
  await hint;
  await close(scene.bench);
});

test('a request waits for its turn while those before it bring their text', async (t) => {
  const scene = new TimedLoads(t);
  const [tier] = scene.tiers as [TimedTier];
  for (let text = 0; text < 6; text += 1) await scene.store(1000 * text);
  tier.latencyMs = () => 20;
  await scene.promote(); // four windows of 16 blocks: 80 ms
  dropFromDevice(scene.bench.cache);
  const { prefixes } = scene.bench.cache;
  const all = await scene.pass(Promise.all([0, 1, 2, 3, 4, 5].map((text) => prefixes.promote({ tokens: textOf(tokens, 1000 * text) }))));
  for (const { end, cachedTokens } of all) t.deepEqual([end, cachedTokens], ['complete', tokens]);
  await close(scene.bench);
});
