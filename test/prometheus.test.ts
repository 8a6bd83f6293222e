import test from 'ava';
import { Counter, Gauge, register as defaultRegister, Registry } from 'prom-client';

import { diskTier, hostTier, type HandOver, type TokenSelector } from 'virtual-kv';
import { registerMetrics } from 'virtual-kv/prometheus';

import { Random } from '#internal/base/random.js';
import { refuses } from './helpers/refuses.js';
import { dropFromDevice } from './cache/tiers/device-index.js';
import { PlainTier } from './cache/tiers/plain-tier.js';
import { cacheTest, withCache } from './helpers/cache.js';
import { folderOf } from './helpers/temporary-folder.js';
import { MiB, SelectionWorld } from './importance/selection-world.js';
import { deadlineMs } from './helpers/patient.js';

const tokens = (length: number): number[] => Array.from({ length }, (_, at) => at);

/** Values by name and labels, as in the text that is scraped. */
async function scrape(register: Registry): Promise<Record<string, number>> {
  const lines = (await register.metrics()).split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  return Object.fromEntries(lines.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ')))]));
}

cacheTest('a scrape shows the counts of the cache at that moment', {}, async (t, bench) => {
  const { cache } = bench;
  const register = new Registry();
  registerMetrics(cache, { register, labels: { worker: '3' } });
  t.is((await scrape(register))['virtual_kv_slots{worker="3",state="idle"}'], 8);

  const one = cache.acquire({ tokens: tokens(200) });
  bench.compute(one, 200);
  const two = cache.acquire({ tokens: tokens(160) });
  bench.compute(two, 1);
  one.release();
  const { counts, metrics, prefixes, pool } = {
    counts: cache.counts(), metrics: cache.metrics, prefixes: cache.prefixes.metrics, pool: cache.pool.counts(),
  };
  t.like(two.cachedBy, { aliasedTokens: 128, copiedTokens: 31 });
  const seen = await scrape(register);
  const expected = {
    'virtual_kv_slots{worker="3",state="active"}': 1,
    'virtual_kv_slots{worker="3",state="idle"}': 7,
    'virtual_kv_used_tokens{worker="3"}': 160,
    'virtual_kv_rows{worker="3",use="mapped"}': counts.mappedRows,
    'virtual_kv_rows{worker="3",use="cached"}': counts.cachedRows,
    'virtual_kv_pool_pages{worker="3",state="free"}': pool.freePages,
    'virtual_kv_pool_pages{worker="3",state="mapped"}': pool.mappedPages,
    'virtual_kv_pool_budget_bytes{worker="3"}': cache.pool.memoryBudgetBytes,
    'virtual_kv_sequences_acquired_total{worker="3"}': 2,
    'virtual_kv_mapped_pages_total{worker="3",by="foreground"}': metrics.foregroundMaps,
    'virtual_kv_mapped_pages_total{worker="3",by="alias"}': 8,
    'virtual_kv_copied_bytes_total{worker="3"}': metrics.copiedBytes,
    'virtual_kv_prefix_requests_total{worker="3"}': 2,
    'virtual_kv_prefix_prompt_tokens_total{worker="3"}': 360,
    'virtual_kv_prefix_cached_tokens_total{worker="3",by="aliased"}': 128,
    'virtual_kv_prefix_cached_tokens_total{worker="3",by="copied"}': 31,
    'virtual_kv_recent_hit_ratio{worker="3"}': prefixes.recentHitRate,
  };
  for (const [name, value] of Object.entries(expected)) t.is(seen[name], value, name);
  t.deepEqual(await scrape(register), seen, 'a second scrape counts nothing twice');
});

cacheTest('a scrape shows the bytes of side tensors, by use', {
  sideTensors: { hidden: { width: 8, dtype: 'float32', place: 'device' } }, sideBudgetBytes: 2 ** 22,
}, async (t, bench) => {
  const { cache } = bench;
  const register = new Registry();
  registerMetrics(cache, { register });
  const say = (text: readonly number[]): HandOver => {
    const sequence = cache.acquire({ tokens: text });
    const batch = bench.batchOf([sequence, text.length]);
    cache.prepare(batch);
    cache.writeSide(batch, { hidden: new Float32Array(8 * text.length) });
    cache.commit(batch);
    const handOver = sequence.handOver();
    sequence.release();
    return handOver;
  };
  say([1, 2, 3]).close();
  const handOver = say([4, 5]);
  const { usedBytes, heldBytes } = cache.sideCounts();
  t.true(heldBytes > 0 && heldBytes < usedBytes);
  const seen = await scrape(register);
  const expected = {
    virtual_kv_side_budget_bytes: 2 ** 22, 'virtual_kv_side_bytes{use="held"}': heldBytes, 'virtual_kv_side_bytes{use="cached"}': usedBytes - heldBytes,
    'virtual_kv_side_bytes{use="quarantined"}': 0, virtual_kv_side_leased_slots: 1, virtual_kv_side_registered_bytes: 0, virtual_kv_side_pageable_bytes_total: 0,
  };
  for (const [name, value] of Object.entries(expected)) t.is(seen[name], value, name);
  handOver.close();
  t.is((await scrape(register))['virtual_kv_side_bytes{use="held"}'], 0);
});

test('a register that has one of the names keeps it, and gets none of the others', async (t) => {
  await withCache(t, {}, async ({ cache }) => {
    const register = new Registry();
    const own = new Counter({ name: 'virtual_kv_late_errors_total', help: 'Mine.', registers: [register] });
    t.throws(() => registerMetrics(cache, { register }), { message: /already been registered/ });
    t.deepEqual(register.getMetricsAsArray().map(({ name }) => name), ['virtual_kv_late_errors_total']);
    t.is(register.getSingleMetric('virtual_kv_late_errors_total'), own);
    register.clear();
    registerMetrics(cache, { register });
    t.is((await scrape(register))['virtual_kv_slots{state="idle"}'], 8);
  });
});

test('what comes after a closed cache may have its labels at once', async (t) => {
  const register = new Registry();
  const labels = { cache: 'a' };
  let unregister: (() => void) | undefined;
  await withCache(t, {}, async ({ cache }) => { unregister = registerMetrics(cache, { register, labels }); });
  await withCache(t, {}, async ({ cache }) => {
    registerMetrics(cache, { register, labels });
    unregister!();
    t.is((await scrape(register))['virtual_kv_slots{cache="a",state="idle"}'], 8);
    t.throws(() => registerMetrics(cache, { register, labels }), { code: 'KV_INVALID_OPTION' });
  });
});

test('several caches of one register are told apart by their labels', async (t) => {
  const register = new Registry();
  await withCache(t, {}, async (one) => {
    await withCache(t, { slots: 3 }, async (two) => {
      const leave = registerMetrics(one.cache, { register, labels: { worker: '1' } });
      registerMetrics(two.cache, { register, labels: { worker: '2' } });
      const idle = async (): Promise<(number | undefined)[]> => {
        const seen = await scrape(register);
        return ['1', '2'].map((worker) => seen[`virtual_kv_slots{worker="${worker}",state="idle"}`]);
      };
      t.deepEqual(await idle(), [8, 3]);
      t.throws(() => registerMetrics(one.cache, { register, labels: { worker: '2' } }), { code: 'KV_INVALID_OPTION' });
      t.throws(() => registerMetrics(one.cache, { register, labels: { model: 'a' } }), { code: 'KV_INVALID_OPTION' });
      t.throws(() => registerMetrics(one.cache, { register }), { code: 'KV_INVALID_OPTION' });
      leave();
      leave();
      t.deepEqual(await idle(), [undefined, 3]);
      two.cache.close();
      t.deepEqual(await idle(), [undefined, undefined], 'a closed cache goes by itself');
      registerMetrics(one.cache, { register });
      t.is((await scrape(register))['virtual_kv_slots{state="idle"}'], 8, 'and with the last one the names of labels');
    });
  });
});

cacheTest('the metrics of a closed cache are refused', {}, async (t, { cache }) => {
  const register = new Registry();
  cache.close();
  t.throws(() => registerMetrics(cache, { register }), { code: 'KV_CLOSED' });
  t.is(await register.metrics(), '\n');
});

cacheTest('metrics go to the default register, under a prefix of their own', {}, async (t, { cache }) => {
  const other = new Gauge({ name: 'other', help: 'of another package' });
  const leave = registerMetrics(cache, { prefix: 'engine_kv_' });
  t.true(defaultRegister.getSingleMetric('engine_kv_slots') instanceof Gauge);
  t.true(defaultRegister.getSingleMetric('engine_kv_prefix_requests_total') instanceof Counter);
  leave();
  t.deepEqual(defaultRegister.getMetricsAsArray().map(({ name }) => name), ['other']);
  defaultRegister.removeSingleMetric('other');
  t.truthy(other);
});

cacheTest('a missing prom-client is named, and one that does not load says why', {}, (t, { cache }) => {
  const missing = (): never => { throw Object.assign(new Error('Cannot find module'), { code: 'MODULE_NOT_FOUND' }); };
  refuses(t, () => registerMetrics(cache, {}, missing), 'KV_DEPENDENCY_MISSING', { dependency: 'prom-client' });
  const broken = (): never => { throw new Error('broken'); };
  t.throws(() => registerMetrics(cache, {}, broken), { message: 'broken' });
});

test('tiers have series by their names, and a cache without tiers has none of them', async (t) => {
  const register = new Registry();
  await withCache(t, {}, async ({ cache }) => {
    const leave = registerMetrics(cache, { register, labels: { worker: '3' } });
    t.deepEqual(Object.keys(await scrape(register)).filter((name) => name.startsWith('virtual_kv_tier')), []);
    leave();
  });
  const host = hostTier({ bytes: 2 ** 20 });
  const tiers = [host, new PlainTier('mine')];
  await withCache(t, { prefixCache: { tiers, tierBlockTokens: 16, modelId: 'm' } }, async (bench) => {
    const { cache } = bench;
    registerMetrics(cache, { register, labels: { worker: '3' } });
    const sequence = cache.acquire({ tokens: tokens(64) });
    bench.compute(sequence, 64);
    sequence.release();
    await cache.prefixes.tiers!.settled();
    dropFromDevice(cache);
    host.borrow = () => undefined; // it has lost it
    t.is((await cache.prefixes.promote({ tokens: tokens(64), deadlineMs })).promotedTokens, 64);
    cache.prefixes.tiers!.hasPrefilled(8, 1);
    const seen = await scrape(register);
    const { tiers: [first, mine], staging } = cache.prefixes.tiers!.metrics();
    const expected = {
      'virtual_kv_tier_state{worker="3",tier="host",state="open"}': 1,
      'virtual_kv_tier_state{worker="3",tier="mine",state="failed"}': 0,
      'virtual_kv_tiers_staging_bytes{worker="3",memory="pinned"}': staging!.pinnedBytes,
      'virtual_kv_tiers_staging_bytes{worker="3",memory="pageable"}': 0,
      'virtual_kv_tier_blocks{worker="3",tier="host"}': 0,
      'virtual_kv_tier_blocks{worker="3",tier="mine"}': 4,
      'virtual_kv_tier_capacity_bytes{worker="3",tier="host"}': 2 ** 20,
      'virtual_kv_tier_capacity_bytes{worker="3",tier="mine"}': undefined,
      'virtual_kv_tier_bandwidth_bytes{worker="3",tier="mine"}': mine!.bytesPerMs! * 1e3,
      'virtual_kv_tier_promoted_tokens_total{worker="3",tier="mine"}': 64,
      'virtual_kv_tier_promoted_tokens_total{worker="3",tier="host"}': 0,
      'virtual_kv_tier_stored_bytes_total{worker="3",tier="host"}': first!.storedBytes,
      'virtual_kv_tier_misses_total{worker="3",tier="mine",reason="timeout"}': 0,
      'virtual_kv_tier_get_seconds_count{worker="3",tier="mine"}': 4,
      'virtual_kv_tier_put_seconds_bucket{worker="3",tier="host",le="+Inf"}': 4,
      'virtual_kv_tier_breaker_state{worker="3",tier="mine",lane="reads"}': undefined,
      'virtual_kv_tiers_promotions_total{worker="3",end="complete"}': 1,
      'virtual_kv_tiers_prefetches_total{worker="3",end="complete"}': 0,
      'virtual_kv_tiers_promotion_seconds_count{worker="3"}': 1,
      'virtual_kv_tiers_prefill_tokens{worker="3"}': 8_000,
    };
    for (const [name, value] of Object.entries(expected)) t.is(seen[name], value, name);
    await cache.prefixes.tiers!.close();
  });
});

test('selections and what is reordered for them have series apart from those of promotions', async (t) => {
  const disk = diskTier({ directory: folderOf(t), bytes: 64 * MiB, admit: 'all', chunkBytes: 4096 });
  const world = new SelectionWorld(t, new Random(1), { tiers: [disk], blockTokens: 256 });
  const tiers = world.cache.prefixes.tiers!;
  await tiers.ready();
  const register = new Registry();
  registerMetrics(world.cache, { register, labels: { worker: '3' } });
  const text = Int32Array.from({ length: 257 }, (_, at) => at % 50);
  await world.store(text.subarray(0, 256));
  /** One token of each chunk; the first layer trusts no choice. */
  const scattered: TokenSelector = {
    name: 'scattered', looksAt: 'nothing', select: ({ layer, count }) => layer === 0 ? undefined : Int32Array.from({ length: count }, (_, index) => 16 * index),
  };
  for (let request = 0; request < 4; request += 1) {
    const sequence = await world.lossy(text, { ratio: 1 / 16, selector: scattered });
    await world.finish(sequence, text);
    sequence.release();
  }
  t.is(await tiers.reorder(), 1);
  const seen = await scrape(register);
  const { selections: { readBytes } } = tiers.metrics();
  t.true(readBytes >= 4 * 2 * (256 + 2 * 16) * 256, 'K and V of 256 bytes');
  const expected = {
    selected_sequences: 4, lost_selections: 0, selection_layers: 12, selection_fallbacks: 4, selection_tokens: 12 * 256, selected_tokens: 4 * (256 + 2 * 16),
    selection_read_bytes: readBytes, raised_blocks: 0, reordered_blocks: 1, refused_reorders: 0,
  };
  for (const [name, value] of Object.entries(expected)) t.is(seen[`virtual_kv_tiers_${name}_total{worker="3"}`], value, name);
  t.is(seen['virtual_kv_tiers_promotions_total{worker="3",end="complete"}'], 0);
  t.is(seen['virtual_kv_tier_promoted_tokens_total{worker="3",tier="disk"}'], 0);
  await world.close();
});
