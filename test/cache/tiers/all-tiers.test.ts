// Random operations on a cache with all three tiers: host memory, a disk and a real redis-server, with room for everything and with
// hardly any, with a mapper, and with everything failing: calls of the driver and of the disk, the store killed and emptied. Every hit is exact,
// what is found is all that tiers have unless something was refused, counts are conserved, and nothing is left.

import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { ahead, diskTier, hostTier, importance, redisTier, type Tier, type TierKeeping } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import type { DiskStore } from '#internal/store/disk-store.js';
import { CacheBench, type BenchOptions } from '../../helpers/cache.js';
import { patient } from '../../helpers/patient.js';
import { RedisServer } from '../../helpers/redis-server.js';
import { redisTest } from '../../helpers/redis-test.js';
import { assertNothingHeld, assertTiersEmpty } from '../../helpers/nothing-held.js';
import { seedOf } from '../../helpers/seed.js';
import { InjectedFailures, storeOf } from './injected-failures.js';
import { TierWorld, type TierWorldOptions } from './tier-world.js';
import { scale as wanted } from '../../runner/tier.js';

const scale = Math.min(20, wanted);
const MiB = 2 ** 20;

/** Rows of 8 tokens in pages of 4 KiB; 512 bytes a token. */
const mock = {
  on: 'mock', device: { granularityBytes: 4096, hasGarbage: true, journalEntries: 0 }, model: { layers: 1, kvHeads: 1, headDim: 128, dtype: 'float16' },
  slots: 6, maxTokens: 120, pageBytes: 4096,
} as const satisfies BenchOptions;

interface World extends Omit<TierWorldOptions, 'failures' | 'storedBlocks'> {
  readonly options: BenchOptions;
  readonly hostBytes: number;
  readonly keeps?: TierKeeping;
  readonly diskBytes: number;
  /** Bytes of the store's own, which evicts. */
  readonly redisMemory?: string;
  readonly canFail: boolean;
  readonly operations: number;
}

const worlds: Readonly<Record<string, World>> = {
  'room for everything': {
    options: { ...mock, memoryBudgetBytes: 20_000 * 4096 }, hostBytes: 64 * MiB, diskBytes: 64 * MiB, hasRoom: true, isExact: false, keepsTexts: true,
    alphabet: 2, canFail: false, operations: 1_000,
  },
  'hardly any room anywhere, and a mapper': {
    options: { ...mock, memoryBudgetBytes: 60 * 4096, mapper: 'background', growth: ahead(8), scrub: 'between-tenants' }, hostBytes: 32 * 1024, keeps: 'important', hasProbes: true,
    diskBytes: 16 * MiB, redisMemory: '3mb', hasRoom: false, isExact: false, alphabet: 2, canFail: false, operations: 1_500,
  },
  'everything fails now and then': {
    options: { ...mock, memoryBudgetBytes: 60 * 4096, mapper: 'background', growth: ahead(8) }, hostBytes: 32 * 1024, diskBytes: 16 * MiB,
    hasRoom: false, isExact: false, alphabet: 2, canFail: true, operations: 1_500,
  },
  'host memory as the device, and everything fails now and then': {
    options: {
      ...mock, on: 'host', layout: 'sliced', pageBytes: 65_536, memoryBudgetBytes: 100 * 65_536,
      model: { layers: 2, kvHeads: 1, headDim: 1024, dtype: 'float16' },
    },
    hostBytes: MiB, diskBytes: 64 * MiB, hasRoom: false, isExact: false, alphabet: 2, canFail: true, operations: 800,
  },
};

const folder = fs.mkdtempSync(path.join(tmpdir(), 'vkv-all-tiers-'));
test.after.always(() => { fs.rmSync(folder, { recursive: true, force: true }); });

/** How many blocks, from the first on, some tier says that it has. */
async function leadingBlocks(keys: readonly string[], host: Tier, disk: DiskStore, server: RedisServer): Promise<number> {
  const inStore = new Set((await server.client.keys('*')).map((key) => key.split(':').at(-1)!));
  const missing = keys.findIndex((key) => {
    const borrowed = host.borrow!(key);
    borrowed?.release();
    return borrowed === undefined && !disk.has(key) && !inStore.has(key);
  });
  return missing < 0 ? keys.length : missing;
}

async function run(t: ExecutionContext, name: string, seed: number): Promise<void> {
  const { options, hostBytes, keeps, diskBytes, redisMemory, canFail, operations, ...rules } = worlds[name]!;
  const server = await RedisServer.start(t, ...redisMemory === undefined ? [] : ['--maxmemory', redisMemory, '--maxmemory-policy', 'allkeys-lru']);
  const directory = path.join(folder, name);
  const host = hostTier({ bytes: hostBytes, keeps });
  const tiers = [
    host,
    diskTier({ directory, bytes: diskBytes, admit: 'all', durability: 'none', direct: false, chunkBytes: 4096 }),
    redisTier({
      url: server.url, ...patient, breaker: { failures: 3, coolDownMs: 5, maxCoolDownMs: 20 },
    }),
  ];
  const bench = new CacheBench(t, { ...options, prefixCache: { tiers, tierBlockTokens: 8, modelId: `all tiers ${seed}`, importance: rules.hasProbes === true ? {} : undefined, policy: importance() } });
  await bench.cache.prefixes.tiers!.ready();
  const world = new TierWorld(bench, new Random(seed), {
    ...rules, survivesReset: true, canReorder: true, ...canFail ? { failures: new InjectedFailures(bench, directory, server) } : {},
    storedBlocks: (keys) => leadingBlocks(keys, host, storeOf(directory), server),
  });
  let done = 0;
  try {
    for (; done < operations * scale; done += 1) await world.operateOnce();
    await world.mend();
    await world.settle();
    world.end();
    await world.settle();
  } catch (error) {
    throw new Error(`operation ${done} of seed ${seed}: ${(error as Error).message}`, { cause: error });
  }
  t.log(Object.entries(world.counts).map(([what, count]) => `${what} ${count}`).join(', '));
  const { tiers: metrics } = bench.cache.prefixes.tiers!.metrics();
  for (const { name: tier, damagedBlocks, misses, refusals, storedBlocks } of metrics) {
    t.true(scale < 1 || storedBlocks > 0, `${tier} was never used`);
    if (!canFail) t.deepEqual([damagedBlocks, misses.corrupt, refusals.failed], [0, 0, 0], tier);
  }
  t.true(scale < 1 || (world.counts['promoted tokens']! > 0 && world.counts['loaded selections']! > 0));
  assertNothingHeld(t, bench.cache, name, world.signals);
  if (!canFail) await assertTiersEmpty(t, bench.cache, ['redis']);
  await bench.cache.prefixes.tiers!.close();
  bench.close();
}

for (const name of Object.keys(worlds)) {
  const seed = seedOf(`all tiers: ${name}`);
  redisTest(`${name}: every token found in three tiers was stored and every byte is right (seed ${seed})`, (t) => run(t, name, seed));
}
