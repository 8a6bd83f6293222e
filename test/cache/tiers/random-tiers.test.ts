// Random operations on a cache with tiers, on every driver and layout, against the model of what was stored: with room for
// everything, where all must come back, and with hardly any, where every layer evicts. VKV_TEST_SEED repeats a run, VKV_TEST_SCALE
// (0 … 1) makes it shorter.

import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import { ahead, diskTier, hostTier, importance, priority, type TierKeeping } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { CacheBench, type BenchOptions } from '../../helpers/cache.js';
import { assertNothingHeld, assertTiersEmpty } from '../../helpers/nothing-held.js';
import { seedOf } from '../../helpers/seed.js';
import { TierWorld, type TierWorldOptions } from './tier-world.js';
import { scale } from '../../runner/tier.js';

const device = { granularityBytes: 4096, hasGarbage: true, journalEntries: 0 } as const;
/** Rows of 8 tokens in pages of 4 KiB; 512 bytes a token. */
const common = {
  on: 'mock', device, model: { layers: 1, kvHeads: 1, headDim: 128, dtype: 'float16' }, slots: 8, maxTokens: 200, pageBytes: 4096,
} as const satisfies BenchOptions;

interface World extends TierWorldOptions {
  readonly options: BenchOptions;
  readonly bytes: number;
  readonly tenantBytes?: number;
  readonly blockTokens: number;
  /** Whether there is a disk below. */
  readonly hasDisk?: boolean;
  /** Whether text of higher levels stays longer, on the device and in tiers. */
  readonly hasLevels?: boolean;
  readonly keeps?: TierKeeping;
  /** Whether blocks are large enough that some are worth storing in another order. */
  readonly reorders?: boolean;
  readonly operations: number;
}

const MiB = 2 ** 20;

const worlds: Readonly<Record<string, World>> = {
  'room for everything': {
    options: { ...common, memoryBudgetBytes: 20_000 * 4096 }, bytes: 256 * MiB, blockTokens: 16, hasRoom: true, isExact: false, keepsTexts: true,
    alphabet: 2, operations: 4_000,
  },
  'a small device over a large tier': {
    options: { ...common, memoryBudgetBytes: 90 * 4096, growth: ahead(8), scrub: 'between-tenants' },
    bytes: 256 * MiB, blockTokens: 16, hasRoom: false, isExact: false, alphabet: 3, operations: 7_000,
  },
  'hardly any room in either': {
    options: { ...common, slots: 3, maxTokens: 80, memoryBudgetBytes: 40 * 4096 }, bytes: 64 * 1024, blockTokens: 8, hasLevels: true, hasRoom: false, isExact: false,
    alphabet: 2, operations: 7_000,
  },
  'hardly any host memory, and a disk': {
    options: { ...common, memoryBudgetBytes: 60 * 4096 }, bytes: 64 * 1024, blockTokens: 8, hasDisk: true, keeps: 'important', hasLevels: true, hasRoom: false, isExact: false,
    alphabet: 3, operations: 4_000,
  },
  'layers that differ': {
    options: {
      ...common, memoryBudgetBytes: 300 * 4096,
      model: { layers: 2, layerShapes: [{ kvHeads: 1, headDim: 256 }, { kvHeads: 1, headDim: 128 }], dtype: 'float16' },
    },
    bytes: 4 * MiB, tenantBytes: MiB, blockTokens: 32, hasRoom: false, isExact: false, alphabet: 3, operations: 4_000,
  },
  'rows that end inside a token': {
    options: { ...common, layout: 'fused', memoryBudgetBytes: 200 * 4096, model: { layers: 2, kvHeads: 1, headDim: 75, dtype: 'float16' } },
    bytes: 4 * MiB, blockTokens: 10, hasRoom: false, isExact: false, alphabet: 3, operations: 4_000,
  },
  'host memory, and a disk whose blocks are many chunks': {
    options: {
      ...common, on: 'host', layout: 'sliced', pageBytes: 65_536, memoryBudgetBytes: 150 * 65_536,
      model: { layers: 2, kvHeads: 1, headDim: 1024, dtype: 'float16' },
    },
    bytes: MiB, blockTokens: 8, hasDisk: true, keeps: 'important', hasProbes: true, reorders: true, hasRoom: false, isExact: false, alphabet: 3, operations: 4_000,
  },
};

const folder = fs.mkdtempSync(path.join(tmpdir(), 'vkv-tiers-'));
test.after.always(() => { fs.rmSync(folder, { recursive: true, force: true }); });

for (const [name, { options, bytes, tenantBytes, blockTokens, operations, hasDisk = false, hasLevels = false, keeps = 'adaptive', reorders = false, ...rules }] of Object.entries(worlds)) {
  const seed = seedOf(`tiers: ${name}`);
  test(`${name}: every token found was stored and every byte is right (seed ${seed})`, async (t) => {
    const disk = hasDisk ? [diskTier({ directory: path.join(folder, name), bytes: 16 * MiB, admit: 'all', durability: 'none', direct: false, chunkBytes: 4096 })] : [];
    const tiers = [hostTier({ bytes, tenantBytes, keeps }), ...disk];
    const policy = hasLevels ? priority() : keeps === 'important' ? importance() : undefined;
    const bench = new CacheBench(t, { ...options, prefixCache: { tiers, tierBlockTokens: blockTokens, modelId: 'm', importance: rules.hasProbes === true ? {} : undefined, policy } });
    await bench.cache.prefixes.tiers!.ready();
    const world = new TierWorld(bench, new Random(seed), { ...rules, canReorder: hasDisk });
    const total = Math.max(50, Math.round(operations * scale));
    let done = 0;
    try {
      // Whether a block is worth reordering depends on when texts reach the disk.
      const isDone = (): boolean => scale < 1 || !reorders || (world.counts['reordered blocks'] ?? 0) > 0;
      for (; done < total || (done < 5 * total && !isDone()); done += 1) await world.operateOnce();
      await world.settle();
      world.end();
      await world.settle();
    } catch (error) {
      throw new Error(`operation ${done} of seed ${seed}: ${(error as Error).message}`, { cause: error });
    }
    t.log(Object.entries(world.counts).map(([what, count]) => `${what} ${count}`).join(', '));
    t.true(scale < 1 || (world.counts['promoted tokens']! > 0 && world.counts['loaded selections']! > 0));
    t.true(scale < 1 || !reorders || world.counts['reordered blocks']! > 0);
    t.true(scale < 1 || hasLevels || keeps !== 'important' || bench.cache.prefixes.tiers!.metrics().raisedTokens > 0);
    for (const { damagedBlocks, misses, refusals } of bench.cache.prefixes.tiers!.metrics().tiers) t.deepEqual([damagedBlocks, misses.corrupt, refusals.failed], [0, 0, 0]);
    assertNothingHeld(t, bench.cache, name, world.signals);
    await assertTiersEmpty(t, bench.cache);
    await bench.cache.prefixes.tiers!.close();
    bench.close();
  });
}
