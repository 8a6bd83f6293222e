// Tiers of all speeds, from fifty times faster than computing to three times slower, and prompts of all lengths: the request that finds out how fast a
// tier is, and few others, are hardly slower than computing; and what is clearly faster is loaded. On a clock that the test steps.

import test, { type ExecutionContext } from 'ava';

import type { Promotion } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { seedOf } from '../../helpers/seed.js';
import { close } from './tier-bench.js';
import { blockTokens, computeMs, TimedLoads, tokens, totalMs, type TimedTier } from './timed-loads.js';
import { slow } from '../../runner/slow.js';

const requests = 40;
const blocks = tokens / blockTokens;
/** Of what computing the whole text takes: how long loading it does. */
const speeds = [0.02, 0.1, 0.2, 0.5, 0.75, 0.9, 1, 1.1, 1.3, 2, 3];
/** How often as many reads as are under way at a time make the whole text. */
const rounds = 4;
/** A request that tries a tier waits for a twentieth of computing, and that takes as little as 33 steps of the clock. */
const mostTrying = 1.12;

type SetUp = (tier: TimedTier, loadMs: number, random: Random) => void;

const kinds: readonly (readonly [name: string, setUp: SetUp])[] = [
  ['by latency', (tier, loadMs) => { tier.latencyMs = () => loadMs / rounds; }],
  ['by bandwidth', (tier, loadMs) => { tier.gapMs = loadMs / blocks; }],
  ['by half of both', (tier, loadMs) => {
    tier.latencyMs = () => loadMs / rounds / 2;
    tier.gapMs = loadMs / blocks / 2;
  }],
];

/** Requests for the start of a text, of any length: how long each took, over computing it. */
async function ratiosOf(t: ExecutionContext, random: Random, setUp: SetUp, speed: number): Promise<number[]> {
  const loads = new TimedLoads(t);
  await loads.store();
  setUp(loads.tiers[0]!, speed * computeMs, random);
  const ratios: number[] = [];
  for (let request = 0; request < requests; request += 1) {
    const length = blockTokens * (2 + random.integer(blocks - 1));
    const promotion = await loads.promote(0, length);
    ratios.push(totalMs(promotion, length) / ((computeMs * length) / tokens));
    if (promotion.end !== 'complete') await loads.wait(4 * computeMs); // its reads end
  }
  await close(loads.bench);
  return ratios;
}

const mean = (ratios: readonly number[]): number => ratios.reduce((sum, ratio) => sum + ratio, 0) / ratios.length;
const shown = (ratios: readonly number[]): string => ratios.map((ratio) => ratio.toFixed(2)).join(' ');

for (const [name, setUp] of kinds) {
  const seed = seedOf(`tier speeds ${name}`);
  slow('many requests over a timed tier')(`a tier that is slow ${name} makes requests hardly slower than computing, and is used where it is faster (seed ${seed})`, async (t) => {
    const random = new Random(seed);
    for (const speed of speeds) {
      const [first, ...others] = await ratiosOf(t, random, setUp, speed);
      t.true(first! <= mostTrying, `${speed}: the first took ${first}`);
      t.true(Math.max(...others) <= 1.35 && others.filter((ratio) => ratio > 1.05).length <= requests / 10, `${speed}: ${shown(others)}`);
      if (speed <= 0.2) t.true(mean(others) <= 0.3 + 2 * speed, `${speed}: ${shown(others)}`);
    }
  });
}

for (const [speed, end] of [[0.5, 'complete'], [3, 'recompute-cheaper']] as const) {
  test(`a tier of latency ${speed} that only a short load has told of is tried once by a much longer one, and then ${end === 'complete' ? 'used' : 'left alone'}`, async (t) => {
    const loads = new TimedLoads(t);
    await loads.store();
    const tier = loads.tiers[0]!;
    tier.latencyMs = () => speed * computeMs / rounds;
    const promote = async (length: number): Promise<Promotion> => {
      const promotion = await loads.promote(0, length);
      if (promotion.end !== 'complete') await loads.wait(4 * computeMs);
      return promotion;
    };
    t.is((await promote(2 * blockTokens)).end, 'recompute-cheaper');
    const triedMs = totalMs(await promote(tokens), tokens);
    t.true(triedMs > computeMs && triedMs <= 1.06 * computeMs, `${triedMs}`);
    const before = tier.reads;
    t.is((await promote(tokens)).end, end);
    t.is(tier.reads > before, end === 'complete');
    await close(loads.bench);
  });
}

const seed = seedOf('tier speeds jitter');
slow('many requests over a timed tier')(`reads that take between half and three halves of their time make requests faster than computing in the mean (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  for (const speed of speeds) {
    const ratios = await ratiosOf(t, random, (tier, loadMs) => { tier.latencyMs = () => (0.5 + random.next()) * loadMs / rounds; }, speed);
    t.true(mean(ratios) <= 1.05, `${speed}: ${shown(ratios)}`);
    if (speed <= 0.1) t.true(mean(ratios) <= 0.5, `${speed}: ${shown(ratios)}`);
  }
});
