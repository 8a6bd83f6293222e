// From which tier each block of a plan is loaded: what comparing tiers for each block would say, with few comparisons.

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { LoadEstimate, PrefillRate } from '#internal/tiers/load-estimate.js';
import { LoadPlan, sourceOf } from '#internal/tiers/load-plan.js';
import type { OpenTier } from '#internal/tiers/open-tier.js';
import type { StoredBlock } from '#internal/tiers/stored-texts.js';
import { seedOf } from '../helpers/seed.js';

const seed = seedOf('load plan');
const bytesOf = (tokens: number): number => 4_096 * tokens;

/** Tiers that count what they are asked. */
function tiersOf(count: number): { readonly tiers: readonly OpenTier[]; readonly estimates: readonly LoadEstimate[]; asked: number } {
  const world = { estimates: Array.from({ length: count }, () => new LoadEstimate()), tiers: [] as readonly OpenTier[], asked: 0 };
  world.tiers = world.estimates.map((estimate, number) => ({
    has: ({ tiers }: StoredBlock) => {
      world.asked += 1;
      return (tiers & (1 << number)) !== 0;
    },
    get estimate() {
      world.asked += 1;
      return estimate;
    },
  } as unknown as OpenTier));
  return world;
}

function planOf(all: readonly OpenTier[], blocks: readonly StoredBlock[]): LoadPlan {
  return new LoadPlan({ all, bytesOf }, { blocks, tokens: 0 }, 0, new PrefillRate());
}

function blockOf(tiers: number, tokens: number): StoredBlock {
  return { tiers, tokens: new Int32Array(tokens) } as unknown as StoredBlock;
}

test('a plan asks each tier a few times, however many blocks it has', (t) => {
  const world = tiersOf(3);
  world.estimates[2]!.measured({ bytes: bytesOf(256), milliseconds: 1 });
  const asked = [10, 1_000].map((count) => {
    // In host memory, behind it on a disk as well, and the last one, which is shorter, in Redis alone.
    const blocks = Array.from({ length: count }, (_, at) => (at === count - 1 ? blockOf(4, 31) : blockOf(at < count / 2 ? 1 : 3, 256)));
    const plan = planOf(world.tiers, blocks);
    world.asked = 0;
    t.deepEqual([...new Set(blocks.map((block) => world.tiers.indexOf(plan.sourceOf(block)!)))], [0, 2]);
    plan.passOver();
    return world.asked;
  });
  t.is(asked[0], asked[1]);
  t.true(asked[1]! < 30, `${asked[1]} questions`);
});

test(`each block comes from the tier that comparing them for it alone finds (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const seen = new Set<number>();
  for (let turn = 0; turn < 500; turn += 1) {
    const { tiers, estimates } = tiersOf(4);
    for (const estimate of estimates) {
      for (let load = random.integer(3); load > 0; load -= 1) estimate.measured({ bytes: bytesOf(256 * (1 + random.integer(20))), milliseconds: random.integer(3_000) });
      if (random.chance(0.2)) estimate.awaited({ milliseconds: random.integer(2_000) });
    }
    const plan = planOf(tiers, []);
    for (let block = 0; block < 40; block += 1) {
      const made = blockOf(random.integer(16), [256, 256, 17][random.integer(3)]!);
      const expected = sourceOf(tiers.filter((open) => open.has(made)), bytesOf(made.tokens.length));
      t.is(plan.sourceOf(made), expected);
      seen.add(expected === undefined ? -1 : tiers.indexOf(expected));
    }
  }
  t.deepEqual([...seen].sort(), [-1, 0, 1, 2, 3]);
});
