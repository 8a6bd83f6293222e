// Tiers that outlive a cache, through caches: what one computed the next one finds, in another process's place, from a disk and from a
// store that several share, byte for byte.

import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { diskTier, hostTier, isKvError, redisTier, type Tier } from 'virtual-kv';

import { CacheBench, type BenchOptions } from '../../helpers/cache.js';
import { deadlineMs, patient } from '../../helpers/patient.js';
import { hasRedis, RedisServer } from '../../helpers/redis-server.js';
import { refuses } from '../../helpers/refuses.js';
import { dropFromDevice } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import * as tierBench from './tier-bench.js';
import { slow } from '../../runner/slow.js';

const { close, model, serve, textOf } = tierBench;
const MiB = 2 ** 20;
const folder = fs.mkdtempSync(path.join(tmpdir(), 'vkv-lasting-'));
test.after.always(() => { fs.rmSync(folder, { recursive: true, force: true }); });

let server: Promise<RedisServer> | undefined;
test.after.always(async () => (await server)?.stop());

/** A bench whose tiers are open. */
async function benchOf(t: ExecutionContext, tiers: readonly Tier[], options: BenchOptions = {}, modelId = 'm'): Promise<CacheBench> {
  const bench = tierBench.benchOf(t, tiers, { ...options, prefixCache: { modelId } });
  await bench.cache.prefixes.tiers!.ready();
  return bench;
}

test('text on a disk is found by the next cache, under another layout and driver, and not by another model', async (t) => {
  const tier = (): Tier => diskTier({ directory: path.join(folder, 'restart'), bytes: 64 * MiB, admit: 'all', durability: 'sync' });
  const first = await benchOf(t, [hostTier({ bytes: 16 * MiB }), tier()]);
  serve(first, textOf(500), 3);
  serve(first, textOf(200, 1), 4);
  await close(first);
  const second = await benchOf(t, [tier()], { on: 'host', layout: 'fused' });
  t.like(await second.cache.prefixes.promote({ tokens: textOf(500), deadlineMs }), { cachedTokens: 500, promotedFrom: { disk: 500 }, end: 'complete' });
  t.like(serve(second, textOf(500), 3), { found: 499, wrong: 0 });
  t.like(await second.cache.prefixes.promote({ tokens: textOf(200, 1), deadlineMs }), { cachedTokens: 200 });
  t.like(serve(second, textOf(200, 1), 4), { found: 199, wrong: 0 });
  await close(second);
  const other = await benchOf(t, [tier()], {}, 'other weights');
  t.like(await other.cache.prefixes.promote({ tokens: textOf(500), deadlineMs }), { cachedTokens: 0, promotedTokens: 0 });
  await close(other);
});

slow('writes a disk again and again')("with `admit: 'twice'` a disk takes what was seen twice, and a small one keeps what was used last", async (t) => {
  const bench = await benchOf(t, [diskTier({ directory: path.join(folder, 'twice'), bytes: 16 * MiB, admit: 'twice' })]);
  serve(bench, textOf(320), 3);
  await bench.cache.prefixes.tiers!.settled();
  t.is(bench.cache.prefixes.tiers!.metrics().tiers[0]!.blocks, 0);
  serve(bench, textOf(320), 3);
  await bench.cache.prefixes.tiers!.settled();
  t.is(bench.cache.prefixes.tiers!.metrics().tiers[0]!.blocks, 20);
  for (let first = 1; first <= 40; first += 1) { // 20 blocks of 16 KiB each: more than there is room for
    serve(bench, textOf(320, first), first);
    serve(bench, textOf(320, first), first);
    await bench.cache.prefixes.tiers!.settled();
  }
  dropFromDevice(bench.cache);
  const { blocks, evictedBlocks, refusals } = bench.cache.prefixes.tiers!.metrics().tiers[0]!;
  t.true(evictedBlocks > 0 && blocks > 200, `${blocks} blocks, ${evictedBlocks} evicted, ${JSON.stringify(refusals)}`);
  t.like(await bench.cache.prefixes.promote({ tokens: textOf(320, 40), deadlineMs }), { cachedTokens: 320, end: 'complete' });
  t.like(serve(bench, textOf(320, 40), 40), { found: 319, wrong: 0 });
  await close(bench);
});

test('a folder that cannot be used, or is in use, is an error of ready() that says so, and the cache goes on without it', async (t) => {
  const file = path.join(folder, 'file');
  fs.writeFileSync(file, 'x');
  const open = (directory: string): CacheBench =>
    new CacheBench(t, { model, prefixCache: { tiers: [diskTier({ directory, bytes: 16 * MiB })], modelId: 'm' } });
  const bench = open(file);
  t.true(isKvError(await t.throwsAsync(bench.cache.prefixes.tiers!.ready()), 'KV_STORE_UNAVAILABLE'));
  t.like(serve(bench, textOf(100), 3), { found: 0, wrong: 0 });
  t.is(fs.readFileSync(file, 'utf8'), 'x');
  const holder = open(path.join(folder, 'held'));
  await holder.cache.prefixes.tiers!.ready();
  const second = open(path.join(folder, 'held'));
  t.true(isKvError(await t.throwsAsync(second.cache.prefixes.tiers!.ready()), 'KV_STORE_LOCKED'));
  for (const each of [bench, second, holder]) await close(each);
});

(hasRedis ? test : test.skip)('what one cache computed another finds in a Redis that both use, whole blocks of it', async (t) => {
  server ??= RedisServer.start(undefined);
  const { url } = await server;
  const tier = (): Tier => redisTier({ url, ...patient });
  const [first, second] = [await benchOf(t, [tier()]), await benchOf(t, [hostTier({ bytes: 16 * MiB }), tier()], { on: 'host' })];
  serve(first, textOf(100), 3);
  await first.cache.prefixes.tiers!.settled();
  t.is(second.cache.prefixes.lookup({ tokens: textOf(100) }).demotedTokens, 0, 'no request has asked yet');
  t.like(await second.cache.prefixes.promote({ tokens: textOf(100), deadlineMs }), { cachedTokens: 96, promotedFrom: { redis: 96 }, end: 'complete' });
  t.like(serve(second, textOf(100), 3), { found: 96, wrong: 0 });
  t.like(await second.cache.prefixes.promote({ tokens: textOf(100, 5), deadlineMs }), { cachedTokens: 0, end: 'complete' });
  for (const each of [first, second]) await close(each);
});

test('host memory behind a tier that outlives the process is refused by name; the other way round, and tiers of the user that have no memory to lend, are not', async (t) => {
  const directory = path.join(folder, 'order');
  const disk = (): Tier => diskTier({ directory, bytes: 16 * MiB });
  const wrong = [[disk(), hostTier({ bytes: MiB })], [new PlainTier('mine'), disk(), hostTier({ bytes: MiB })], [redisTier({ url: 'redis://127.0.0.1:1' }), hostTier({ bytes: MiB })]];
  for (const tiers of wrong) {
    refuses(t, () => new CacheBench(t, { model, prefixCache: { tiers, modelId: 'm' } }),
      'KV_INVALID_OPTION', { option: 'prefixCache.tiers', received: tiers.map(({ name }) => name).join(', ') });
  }
  for (const tiers of [[hostTier({ bytes: MiB }), disk()], [disk(), new PlainTier('mine')]]) await close(await benchOf(t, tiers));
});
