// Random worlds in which a small cache of a random shape has everything at once (WholeWorld): side tensors, tiers, restarts, damage, and
// refusals, against a model of what can be found. Each world has a seed of its own, which a failure names: VKV_TEST_SEED repeats that world
// as the first one; `npm test` and `test:all` live two short worlds, VKV_TEST_SCALE=10 lives 2,000 of 500 operations.

import { mkdirSync } from 'node:fs';
import * as path from 'node:path';

import type { ExecutionContext } from 'ava';

import { ahead, diskTier, Driver, hostTier, KvCache, lru, onDemand, priority, type SideTensorShape } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { assertNothingLeft } from '../../helpers/cache.js';
import { assertNothingHeld, assertTiersEmpty } from '../../helpers/nothing-held.js';
import { seedOf } from '../../helpers/seed.js';
import { folderOf } from '../../helpers/temporary-folder.js';
import { costly } from '../../runner/slow.js';
import { scale, scaled, tier } from '../../runner/tier.js';
import { DeviceSource } from '../../side/device-source.js';
import { faultsOf } from './injected-failures.js';
import { WholeWorld } from './whole-world.js';

const KiB = 1024;
const MiB = KiB * KiB;
/** Two short worlds, but for `test:release` and for VKV_TEST_SCALE above 1. */
const isQuick = scale <= 1 && tier !== 'release';
const operations = isQuick ? 100 : 500;
/** Each of these tests has as many. */
const worlds = isQuick ? 2 : scaled(100);

for (const on of ['mock', 'host'] as const) {
  const first = seedOf(`whole world on ${on}`);
  costly('a world of everything')(`in a world with everything each byte is that of its text, and what is refused changes nothing (${on}, from seed ${first})`, async (t) => {
    const folder = folderOf(t);
    const counts: Record<string, number> = {};
    for (let world = 0; world < worlds; world += 1) {
      const seed = first + world;
      try {
        await live(t, on, seed, path.join(folder, `${world}`), counts);
      } catch (error) {
        throw new Error(`seed ${seed}: ${error instanceof Error ? (error.stack ?? '') : String(error)}`, { cause: error });
      }
    }
    t.log(Object.entries(counts).map(([what, count]) => `${what} ${count}`).join(', '));
    if (isQuick) return;
    for (const what of ['restarts', 'KV_OUT_OF_PAGES', 'hand-overs', 'promoted tokens', 'found tokens']) t.true(counts[what]! > 0, what);
  });
}

/** One world, from its first day to its last. */
async function live(t: ExecutionContext, on: 'mock' | 'host', seed: number, directory: string, counts: Record<string, number>): Promise<void> {
  mkdirSync(directory);
  const random = new Random(seed);
  const draw = <T>(...from: readonly T[]): T => from[random.integer(from.length)]!;
  const pageBytes = on === 'mock' ? 4 * KiB : 64 * KiB;
  const device = on === 'mock' ? new MockDevice({ granularityBytes: pageBytes, backing: 'real', hasGarbage: true, journalEntries: 0 }) : undefined;
  const driver = device?.driver ?? Driver.open('host');
  const model = { layers: draw(1, 2), kvHeads: 1, headDim: on === 'mock' ? draw(64, 128) : draw(512, 1024), dtype: 'float16' } as const;
  const leastPages = 2 * model.layers;
  const budgets = [draw(6, 10, 20), draw(4, 8), 40].map((rows) => rows * leastPages * pageBytes);
  const mapper = draw('off', 'off', 'background');
  const side = (width: number): SideTensorShape => {
    const place = draw('host', 'device');
    return { width, dtype: 'float32', place, pageBytes: place === 'host' ? 64 * KiB : pageBytes };
  };
  const sideTensors: Record<string, SideTensorShape> = { wide: side(draw(700, 2048, 5000)), ...(random.chance(0.5) ? { narrow: side(draw(3, 64)) } : {}) };
  const sidePages = Object.values(sideTensors).reduce((sum, { pageBytes: bytes }) => sum + bytes!, 0);
  const sideBudgets = [draw(4, 10), draw(2, 5), 30].map((pages) => pages * sidePages);
  const [slots, maxTokens, tierBlockTokens] = [draw(4, 6, 8), draw(32, 64, 80), draw(4, 8, 16)];
  const tierBytes = Math.max(4096, draw(2, 6, 60) * tierBlockTokens * 4 * model.layers * model.headDim);
  const keeps = draw<'adaptive' | 'important'>('adaptive', 'important');
  const prefixCache = {
    modelId: 'm', tierBlockTokens, policy: draw(undefined, lru(), priority(), priority({ pinnedLevel: 7, pinnedShare: 0.25 })), tenantRows: draw(undefined, undefined, 6), poolRows: draw(undefined, undefined, 12),
  };
  const shape = {
    model, slots, maxTokens, pageBytes, driver, mapper, sideTensors, layout: draw('per-layer', 'sliced', 'fused'), growth: draw(onDemand(), ahead(8)),
    scrub: draw('off', 'between-tenants'), eagerRows: draw(0, 1), handOverSlots: draw(1, 4),
  } as const;
  const source = new DeviceSource(driver);
  const world = new WholeWorld({
    random, driver, directory, budgets, sideBudgets, source, faults: faultsOf(directory), isExact: mapper === 'off',
    open: () => new KvCache({
      ...shape, memoryBudgetBytes: budgets[0]!, sideBudgetBytes: sideBudgets[0]!,
      prefixCache: {
        ...prefixCache,
        tiers: [
          hostTier({ bytes: tierBytes, keeps }),
          diskTier({ directory, bytes: 16 * MiB, admit: 'all', durability: 'none', direct: false, chunkBytes: 4 * KiB, threads: 2 }),
        ],
      },
    }),
  });
  let done = 0;
  try {
    await world.cache.prefixes.tiers!.ready();
    for (; done < operations; done += 1) await world.operate();
    await world.end();
  } catch (error) {
    throw new Error(`operation ${done}: ${error instanceof Error ? (error.stack ?? '') : String(error)}`, { cause: error });
  }
  const { cache } = world;
  assertNothingHeld(t, cache, `seed ${seed}`, world.signals);
  if (!world.isDamaged) await assertTiersEmpty(t, cache);
  await cache.shutdown();
  assertNothingLeft(t, driver, device);
  for (const [what, count] of Object.entries(world.counts)) counts[what] = (counts[what] ?? 0) + count;
}
