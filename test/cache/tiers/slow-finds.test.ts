// No hit makes a request slower than a miss: how long requests wait for a tier of a user's own to say what others have stored there (`find`), on a
// clock that the test steps.

import test, { type ExecutionContext } from 'ava';

import { turn } from './device-index.js';
import { close, textOf } from './tier-bench.js';
import { blockTokens, computeMs, SharedTimedTier, TimedLoads, TimedTier, tokens, totalMs } from './timed-loads.js';

/** Of computing: what a wait in vain may cost. */
const share = 0.05;

/** A tier called `mine` has text that others have stored, and of which the cache knows nothing; before it stand tiers of these names. */
async function sharedScene(t: ExecutionContext, before: readonly string[] = []): Promise<{ scene: TimedLoads; tier: SharedTimedTier }> {
  const scene = new TimedLoads(t, [...before, 'mine'], (name, clock) => (name === 'mine' ? new SharedTimedTier(name, clock) : new TimedTier(name, clock)));
  await scene.store();
  scene.bench.cache.prefixes.reset();
  return { scene, tier: scene.tiers.at(-1) as SharedTimedTier };
}

/** The cache forgets that the tier has the text. */
function forget(scene: TimedLoads): void {
  scene.bench.cache.prefixes.reset();
}

test('what others have stored is found and loaded where the tier says so in time', async (t) => {
  const { scene, tier } = await sharedScene(t);
  for (const findMs of [0, 5, 45]) {
    tier.findMs = findMs;
    t.like(await scene.promote(), { cachedTokens: tokens, promotedFrom: { mine: tokens }, end: 'complete' });
    forget(scene);
  }
  await close(scene.bench);
});

test('a find that is slow is waited for a small share of computing, and goes on and measures the tier', async (t) => {
  const { scene, tier } = await sharedScene(t);
  tier.findMs = 0.9 * computeMs;
  const slow = await scene.promote();
  t.like(slow, { cachedTokens: 0, promotedTokens: 0, end: 'recompute-cheaper' });
  t.true(totalMs(slow) <= 1.06 * computeMs, `${totalMs(slow)} ms where computing takes ${computeMs}`);
  t.true(slow.milliseconds >= share * computeMs);
  t.false(tier.findSignals[0]!.aborted, 'it goes on');
  t.is((await scene.promote()).milliseconds, 0, 'others do not wait for it');
  t.is(tier.findSignals.length, 1, 'nor ask it');
  await scene.wait(computeMs);
  for (let request = 0; request < 3; request += 1) {
    t.is((await scene.promote()).milliseconds, 0, 'it is known to be slow');
    await scene.wait(computeMs);
  }
  t.is(tier.findSignals.length, 4, 'and is measured by requests that do not wait');
  tier.findMs = 1;
  let requests = 0;
  for (; (await scene.promote()).cachedTokens === 0 && requests < 10; requests += 1) await scene.wait(2);
  t.true(requests <= 1, `${requests} requests computed what it has once it was fast`);
  await close(scene.bench);
});

test('a request goes on with what the other tiers have while one does not say what it has', async (t) => {
  const { scene, tier } = await sharedScene(t, ['first']);
  tier.findMs = Infinity;
  scene.bench.cache.prefixes.tiers!.hasPrefilled(tokens, computeMs);
  await scene.store(1000);
  const before = tier.findSignals.length;
  const promotion = await scene.promote(1000, tokens + 2 * blockTokens);
  t.like(promotion, { cachedTokens: tokens, promotedFrom: { first: tokens }, end: 'recompute-cheaper' });
  t.true(promotion.milliseconds <= share * computeMs, `${promotion.milliseconds} ms`);
  t.is(tier.findSignals.length, before + 1);
  tier.letThrough();
  await turn();
  await close(scene.bench);
});

test('a tier that never answers a find is asked again by one request in 64, and owes two answers at most', async (t) => {
  const { scene, tier } = await sharedScene(t);
  tier.findMs = Infinity;
  let waits = 0;
  for (let request = 0; request < 300; request += 1) waits += (await scene.promote(0, 4 * blockTokens)).milliseconds > 0 ? 1 : 0;
  t.deepEqual([tier.findSignals.length, waits], [2, 2]);
  tier.findMs = 0;
  tier.letThrough();
  await turn();
  t.is((await scene.promote()).cachedTokens, tokens, 'it is asked again once it has answered');
  await close(scene.bench);
});

test('a request that is cancelled while a tier says what it has tells the tier; a hint waits as long as that takes', async (t) => {
  const { scene, tier } = await sharedScene(t);
  tier.findMs = Infinity;
  const cancel = new AbortController();
  const { prefixes } = scene.bench.cache;
  const cancelled = prefixes.promote({ tokens: textOf(tokens), signal: cancel.signal });
  await turn();
  cancel.abort();
  t.is((await cancelled).end, 'aborted');
  t.true(tier.findSignals[0]!.aborted);
  const hint = prefixes.prefetch({ tokens: textOf(tokens) });
  await scene.wait(3 * computeMs);
  tier.letThrough();
  t.like(await scene.pass(hint), { cachedTokens: tokens, end: 'complete' });
  await close(scene.bench);
});
