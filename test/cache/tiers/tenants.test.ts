// Bounds of tenants in tiers: one tenant's text does not push out another's, whatever it stores, also after a restart.

import test, { type ExecutionContext } from 'ava';

import { diskTier, hostTier, priority, type Tier, type TierKeeping } from 'virtual-kv';

import type { CacheBench } from '../../helpers/cache.js';
import { folderOf } from '../../helpers/temporary-folder.js';
import { benchOf, close, textOf } from './tier-bench.js';
import { dropFromDevice, turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';

/** Bytes of a token of the bench's model, and of a block. */
const tokenBytes = 2 * 2 * 128 * 2;
const blockBytes = 16 * tokenBytes;
const precious = textOf(64, 100_000);

interface Whose {
  readonly tenant?: string | undefined;
  readonly salt?: string | undefined;
  readonly priority?: number;
}

/** Computes a text and lets it go down; the device keeps nothing. */
async function store({ cache }: CacheBench, tokens: Int32Array, whose: Whose): Promise<void> {
  const sequence = cache.acquire({ tokens, ...whose });
  const count = tokens.length - sequence.cachedTokens;
  const batch = cache.createBatch();
  batch.add(sequence, count);
  cache.prepare(batch);
  cache.stamp(sequence, sequence.cachedTokens, count, 1);
  cache.commit(batch);
  sequence.release();
  await cache.prefixes.tiers!.settled();
  dropFromDevice(cache);
}

const stored = ({ cache }: CacheBench, tokens: Int32Array, { tenant, salt }: Whose): number => cache.prefixes.explain({ tokens, tenant, salt }).tiers!.reachableTokens;

/** Many texts of one tenant, under several salts. */
async function flood(bench: CacheBench, tenant: string | undefined, texts = 24): Promise<void> {
  for (let text = 0; text < texts; text += 1) await store(bench, textOf(64, 1_000 * (text + 1)), { tenant, salt: `${text % 3}` });
}

for (const keeps of ['adaptive', 'important'] satisfies TierKeeping[]) {
  test(`a tenant's text stays in memory that keeps '${keeps}', however much others store`, async (t) => {
    const bench = benchOf(t, [hostTier({ bytes: 16 * blockBytes, tenantBytes: 8 * blockBytes, keeps })]);
    await store(bench, precious, { tenant: 'small' });
    await flood(bench, 'large');
    t.is(stored(bench, precious, { tenant: 'small' }), 64);
    const { bytes, blocks, evictedBlocks } = bench.cache.prefixes.tiers!.metrics().tiers[0]!;
    t.true(blocks <= 12 && bytes <= 12 * blockBytes, `${blocks} blocks: 4 and no more than 8 of the other`);
    t.true(evictedBlocks > 80);
    t.is(stored(bench, textOf(64, 24_000), { tenant: 'large', salt: '2' }), 64, 'what it used last is there');
    await close(bench);
  });
}

test('what a tenant stores at the same time stays within its bound, also where the tier takes its time', async (t) => {
  const slow = new PlainTier('slow');
  const put = slow.put.bind(slow);
  const held: (() => void)[] = [];
  slow.put = async (...parameters) => {
    await new Promise<void>((resolve) => { held.push(resolve); });
    return put(...parameters);
  };
  const bench = benchOf(t, [hostTier({ bytes: 64 * blockBytes }), Object.assign(slow, { tenantBytes: 4 * blockBytes })]);
  const tiers = bench.cache.prefixes.tiers!;
  let isOver = false;
  const written = store(bench, textOf(480), { tenant: 'a' }).then(() => tiers.close()).finally(() => { isOver = true; });
  while (!isOver) {
    held.splice(0).forEach((go) => { go(); });
    await turn();
  }
  await written;
  t.is(tiers.metrics().tiers[1]!.blocks, 4);
  bench.cache.verify();
  bench.close();
});

test('requests without a tenant are one, and so are those of the empty name', async (t) => {
  for (const [whose, others] of [[{ tenant: '' }, undefined], [{}, '']] as const) {
    const bench = benchOf(t, [hostTier({ bytes: 16 * blockBytes, tenantBytes: 8 * blockBytes })]);
    await store(bench, precious, whose);
    await flood(bench, others);
    t.is(stored(bench, precious, whose), 64);
    await close(bench);
  }
});

test('a text that is longer than its tenant may have keeps its start, and pushes out nothing of others', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 16 * blockBytes, tenantBytes: 6 * blockBytes })]);
  await store(bench, precious, { tenant: 'small' });
  const long = textOf(256, 500);
  await store(bench, long, { tenant: 'large' });
  t.is(stored(bench, long, { tenant: 'large' }), 6 * 16);
  t.is(stored(bench, precious, { tenant: 'small' }), 64);
  t.like(bench.cache.prefixes.explain({ tokens: long, tenant: 'large' }).tiers, { absences: { host: 'full' } });
  await close(bench);
});

test('pinned text of a tenant stays: what comes above its bound is refused', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 32 * blockBytes, tenantBytes: 4 * blockBytes })], { prefixCache: { policy: priority({ pinnedLevel: 200 }) } });
  await store(bench, precious, { tenant: 'a', priority: 200 });
  await flood(bench, 'a', 5);
  t.is(stored(bench, precious, { tenant: 'a' }), 64);
  t.is(stored(bench, textOf(64, 5_000), { tenant: 'a', salt: '1' }), 0);
  await close(bench);
});

test('a bound below a block stores nothing of any tenant, and says so', async (t) => {
  const bench = benchOf(t, [hostTier({ bytes: 16 * blockBytes, tenantBytes: 4096 })]);
  await store(bench, precious, {});
  t.is(stored(bench, precious, {}), 0);
  t.true(bench.cache.prefixes.tiers!.metrics().tiers[0]!.refusals.full > 0);
  await close(bench);
});

/** What a block takes of the disk: its record has a header. */
const onDisk = blockBytes + 4096 + 256; // its header, and its name in the folder

const disk = (directory: string): Tier => diskTier({ directory, bytes: 2 ** 26, tenantBytes: 24 * onDisk, admit: 'all', durability: 'none' });

async function opened(t: ExecutionContext, directory: string): Promise<CacheBench> {
  const bench = benchOf(t, [disk(directory)]);
  await bench.cache.prefixes.tiers!.ready();
  return bench;
}

test('what a disk has from before counts for its tenant once a request of that uses it', async (t) => {
  const directory = folderOf(t);
  const before = await opened(t, directory);
  for (let text = 0; text < 4; text += 1) await store(before, textOf(64, 1_000 * (text + 1)), { tenant: 'a', salt: `${text % 2}` });
  await store(before, precious, { tenant: 'b' });
  await close(before);
  const bench = await opened(t, directory);
  const blocks = (): number => bench.cache.prefixes.tiers!.metrics().tiers[0]!.blocks;
  t.is(blocks(), 20);
  for (let text = 0; text < 4; text += 1) t.is(stored(bench, textOf(64, 1_000 * (text + 1)), { tenant: 'a', salt: `${text % 2}` }), 64);
  for (let text = 4; text < 12; text += 1) await store(bench, textOf(64, 1_000 * (text + 1)), { tenant: 'a', salt: '5' });
  t.is(blocks(), 24 + 4, 'of the tenant no more than its bound, old and new');
  t.is(stored(bench, textOf(64, 12_000), { tenant: 'a', salt: '5' }), 64);
  t.is(stored(bench, precious, { tenant: 'b' }), 64);
  bench.cache.verify();
  await close(bench);
});
