// Random operations on a cache with all three tiers: host memory, a disk and a real redis-server, with room for everything and with
// hardly any, with a mapper, and with everything failing: calls of the driver and of the disk, the store killed and emptied. Every hit is exact,
// what is found is all that tiers have unless something was refused, counts are conserved, and nothing is left.

import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { ahead, diskTier, hostTier, redisTier, type Tier } from 'virtual-kv';
import { StoreFaults } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { DiskStore } from '#internal/store/disk-store.js';
import { CacheBench, type BenchOptions } from '../../helpers/cache.js';
import { patient } from '../../helpers/patient.js';
import { RedisServer } from '../../helpers/redis-server.js';
import { redisTest } from '../../helpers/redis-test.js';
import { seedOf } from '../../helpers/seed.js';
import { TierWorld, type TierFailures, type TierWorldOptions } from './tier-world.js';

const scale = Math.min(20, Number(process.env['VKV_TEST_SCALE'] ?? 1));
const MiB = 2 ** 20;

/** Rows of 8 tokens in pages of 4 KiB; 512 bytes a token. */
const mock = {
  on: 'mock', device: { granularityBytes: 4096, hasGarbage: true, journalEntries: 0 }, model: { layers: 1, kvHeads: 1, headDim: 128, dtype: 'float16' },
  slots: 6, maxTokens: 120, pageBytes: 4096,
} as const satisfies BenchOptions;

interface World extends Omit<TierWorldOptions, 'failures' | 'storedBlocks'> {
  readonly options: BenchOptions;
  readonly hostBytes: number;
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
    options: { ...mock, memoryBudgetBytes: 60 * 4096, mapper: 'background', growth: ahead(8), scrub: 'between-tenants' }, hostBytes: 32 * 1024,
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

// The store of each disk tier, opened with faults of the test's.
const faults = new Map<string, StoreFaults>();
const stores = new Map<string, DiskStore>();
Object.assign(DiskStore, {
  open: async (...[options]: Parameters<typeof DiskStore.open>): Promise<DiskStore> => {
    const store = await faults.get(options.directory)!.open(options);
    stores.set(options.directory, store);
    return store;
  },
});

/** Lets one thing fail at a time: the store, the disk, or the driver. */
class Failures implements TierFailures {
  readonly #bench: CacheBench;
  readonly #server: RedisServer;
  readonly #disk: StoreFaults;

  constructor(bench: CacheBench, server: RedisServer, disk: StoreFaults) {
    this.#bench = bench;
    this.#server = server;
    this.#disk = disk;
  }

  async begin(random: Random): Promise<void> {
    const nth = 1 + random.integer(20);
    const times = random.chance(0.5) ? 1 : 2 ** 32;
    switch (random.integer(5)) {
      case 0: return this.#server.kill();
      case 1: return void await this.#server.client.flushall();
      case 2: return this.#disk.add({ nth, times, error: (['EIO', 'ENOSPC', 'EINTR'] as const)[random.integer(3)]! });
      case 3: return this.#disk.add({ call: 'read', nth, times, flippedBit: random.integer(4096) });
      default:
        if (this.#bench.device === undefined) this.#bench.fail('mmap-map', nth);
        else this.#bench.fail((['cuMemCreate', 'cuMemMap', 'cuMemSetAccess', 'cuMemcpyHtoD', 'cuMemcpyDtoH', 'cuMemcpyHtoDAsync', 'cuMemcpyDtoHAsync'] as const)[random.integer(7)]!, nth, 2);
    }
  }

  async end(): Promise<void> {
    this.#bench.forgiveAll();
    this.#disk.clear();
    await this.#server.kill();
    await this.#server.restart();
  }
}

/** How many blocks, from the first on, some tier says that it has. */
async function leadingBlocks(keys: readonly string[], host: Tier, disk: DiskStore, server: RedisServer): Promise<number> {
  const inStore = new Set((await server.client.keys('*')).map((key) => key.split(':').at(-1)!));
  const missing = keys.findIndex((key) => {
    const borrowed = host.borrow!(key);
    borrowed?.release();
    return borrowed === undefined && !disk.has(Buffer.from(key, 'hex')) && !inStore.has(key);
  });
  return missing < 0 ? keys.length : missing;
}

async function run(t: ExecutionContext, name: string, seed: number): Promise<void> {
  const { options, hostBytes, diskBytes, redisMemory, canFail, operations, ...rules } = worlds[name]!;
  const server = await RedisServer.start(t, ...redisMemory === undefined ? [] : ['--maxmemory', redisMemory, '--maxmemory-policy', 'allkeys-lru']);
  const directory = path.join(folder, String(seed));
  const diskFaults = new StoreFaults();
  faults.set(directory, diskFaults);
  const host = hostTier({ bytes: hostBytes });
  const tiers = [
    host,
    diskTier({ directory, bytes: diskBytes, admit: 'all', durability: 'none', direct: false }),
    redisTier({
      url: server.url, ...patient, breaker: { failures: 3, coolDownMs: 5, maxCoolDownMs: 20 },
    }),
  ];
  const bench = new CacheBench(t, { ...options, prefixCache: { tiers, tierBlockTokens: 8, modelId: `all tiers ${seed}` } });
  await bench.cache.prefixes.tiers!.ready();
  const world = new TierWorld(bench, new Random(seed), {
    ...rules, ...canFail ? { failures: new Failures(bench, server, diskFaults) } : {},
    storedBlocks: (keys) => leadingBlocks(keys, host, stores.get(directory)!, server),
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
  t.true(scale < 1 || world.counts['promoted tokens']! > 0);
  await bench.cache.prefixes.tiers!.close();
  bench.close();
}

for (const name of Object.keys(worlds)) {
  const seed = seedOf(`all tiers: ${name}`);
  redisTest(`${name}: every token found in three tiers was stored and every byte is right (seed ${seed})`, (t) => run(t, name, seed));
}
