// The numbers of the vAttention paper and code, shown by real caches: Yi-34B TP-2 with pages of 2 MiB unless said otherwise,
// on a simulated device that only counts pages. A row is 120 pages. (The arithmetic alone is in layout.test.ts.)

import test from 'ava';

import { ahead, KvCache, type ModelShape } from 'virtual-kv';

import { assertNothingLeft, cacheTest, openDriver, type BenchOptions, type CacheBench } from '../helpers/cache.js';

const KiB = 1024;
const MiB = 1024 * KiB;
const GiB = 1024 * MiB;
const yi34b: ModelShape = { layers: 60, kvHeads: 8, headDim: 128, dtype: 'float16' };
const yi34bTp2: ModelShape = { ...yi34b, parallel: { tensor: 2 } };
const yi6b: ModelShape = { layers: 32, kvHeads: 4, headDim: 128, dtype: 'float16' };
const llama3: ModelShape = { layers: 32, kvHeads: 8, headDim: 128, dtype: 'float16' };

/** A cache of Yi-34B TP-2 that may have so many rows. */
function yi(rows: number, options: BenchOptions = {}): BenchOptions {
  const pageBytes = options.pageBytes ?? 2 * MiB;
  return {
    model: yi34bTp2, slots: 4, maxTokens: 204_800, pageBytes, memoryBudgetBytes: rows * 120 * pageBytes,
    device: { backing: 'none', memoryBytes: 512 * GiB, granularityBytes: pageBytes }, ...options,
  };
}

const unusedBytes = ({ cache }: CacheBench, tokens: number): number =>
  cache.counts().mappedPages * cache.layout.pageBytes - cache.layout.usedBytes(tokens);

// 1–3: addresses

cacheTest('500 slots of 204,800 tokens: 12.6 TB of addresses, exported per layer with their strides', yi(1, { slots: 500 }),
  (t, { cache, driver }) => {
    t.is(cache.layout.virtualBytes, 12_582_912_000_000);
    t.is(driver.memory().liveReservations, 120);
    t.is(driver.memory().livePages, 0);
    t.is(cache.tensors.length, 120);
    t.is(cache.tensors[0]!.strides.slotBytes, 209_715_200);
    const starts = cache.tensors.map(({ address }) => address).sort((a, b) => (a < b ? -1 : 1));
    for (const [index, start] of starts.entries()) {
      t.is(start % BigInt(2 * MiB), 0n);
      if (index > 0) t.true(start - starts[index - 1]! >= 104_857_600_000n, 'reservations do not overlap');
    }
    const last = Array.from({ length: 500 }, () => cache.acquire()).at(-1)!;
    t.is(last.address(5) - cache.tensors[5]!.address, 499n * 209_715_200n);
  });

cacheTest('12.6 TB of addresses are reserved on host too', { ...yi(1, { slots: 500 }), on: 'host' }, (t, { cache, driver }) => {
  t.is(cache.layout.virtualBytes, 12_582_912_000_000);
  t.is(driver.memory().liveReservations, 120);
  t.is(driver.memory().residentBytes, 0);
});

cacheTest('200,000 tokens, which are no multiple of a page, get a stride of 98 pages', yi(200, { slots: 500, maxTokens: 200_000 }),
  (t, bench) => {
    const { cache } = bench;
    t.is(cache.layout.virtualBytes, 12_331_253_760_000);
    const [first, second] = [cache.acquire(), cache.acquire()];
    t.is(second.address(0) - first.address(0), 205_520_896n);
    bench.compute(first, 200_000);
    bench.compute(second, 200_000);
    t.deepEqual([first.mappedRows, second.mappedRows], [98, 98]);
  });

cacheTest('a slot smaller than a page starts on a page of its own', {
  model: llama3, slots: 4, maxTokens: 512, pageBytes: 2 * MiB, memoryBudgetBytes: GiB, device: { granularityBytes: 2 * MiB },
}, (t, bench) => {
  const { cache } = bench;
  const [first, second] = [bench.sequenceOf(512), bench.sequenceOf(512)];
  t.is(second.address(0) - first.address(0), 2_097_152n);
  t.like(cache.tensors[0]!.strides, { slotBytes: 2_097_152, tokenBytes: 2048 });
  cache.stamp(first, 0, 512, 1);
  cache.stamp(second, 0, 512, 2);
  t.true(bench.isIntact(first, 1));
  t.true(bench.isIntact(second, 2));
});

// 4: tokens of a page

for (const [name, model, perPage] of [
  ['Yi-6B', yi6b, [64, 128, 256, 2048]], ['Llama-3-8B', llama3, [32, 64, 128, 1024]], ['Yi-34B TP-2', yi34bTp2, [64, 128, 256, 2048]],
] as const) {
  for (const [index, pageBytes] of [64 * KiB, 128 * KiB, 256 * KiB, 2 * MiB].entries()) {
    cacheTest(`${name} with pages of ${pageBytes / KiB} KiB grows every ${perPage[index]} tokens`, yi(0, {
      model, pageBytes, maxTokens: 8192, memoryBudgetBytes: GiB,
    }), (t, bench) => {
      const sequence = bench.sequenceOf(perPage[index]!);
      t.is(sequence.mappedRows, 1);
      bench.compute(sequence, 1);
      t.is(sequence.mappedRows, 2);
    });
  }
}

// 5–8: one sequence grows

for (const [tokens, rows] of [[0, 0], [1, 1], [2048, 1], [2049, 2], [33_000, 17], [204_800, 100]] as const) {
  cacheTest(`${tokens} tokens have ${rows} rows`, yi(100), (t, bench) => {
    t.is(bench.sequenceOf(tokens).mappedRows, rows);
    t.is(bench.cache.counts().mappedPages, rows * 120);
    t.is(bench.mock.callCounts().cuMemMap, rows * 120);
  });
}

cacheTest('204,801 tokens are an error and map nothing', yi(200), (t, bench) => {
  const { cache } = bench;
  const expected = { code: 'KV_LENGTH_OUT_OF_RANGE', instanceOf: RangeError };
  const atOnce = t.throws(() => cache.acquire({ promptTokens: 204_801 }), expected);
  t.like(atOnce, { details: { tokens: 204_801, maxTokens: 204_800 } });
  const sequence = cache.acquire();
  t.like(t.throws(() => bench.prepare(sequence, 204_801), expected), { details: { slot: sequence.slot, tokens: 204_801 } });
  t.is(cache.counts().mappedPages, 0);
  bench.compute(sequence, 204_800);
  t.throws(() => bench.prepare(sequence, 1), expected);
  t.is(sequence.mappedRows, 100);
});

cacheTest('33,000 tokens: 17 rows, 2,040 pages, 223,150,080 bytes not yet used', yi(17), (t, bench) => {
  bench.sequenceOf(33_000);
  t.like(bench.cache.counts(), { mappedRows: 17, mappedPages: 2040, usedTokens: 33_000 });
  t.is(bench.cache.counts().mappedPages * 2 * MiB, 4_278_190_080);
  t.is(unusedBytes(bench, 33_000), 223_150_080);
});

cacheTest('33,000 tokens in pages of 64 KiB: 61,920 pages, 2,949,120 bytes not yet used', yi(600, { pageBytes: 64 * KiB }), (t, bench) => {
  bench.sequenceOf(33_000);
  t.is(bench.pool().mappedPages, 61_920);
  t.is(unusedBytes(bench, 33_000), 2_949_120);
});

cacheTest('33,000 tokens `sliced`: 967 pages in each of two tensors, counted by bytes', yi(100, { layout: 'sliced' }), (t, bench) => {
  bench.sequenceOf(33_000);
  t.is(bench.pool().mappedPages, 1934);
  t.is(unusedBytes(bench, 33_000), 851_968);
});

cacheTest('from 2,048 to 2,049 tokens are exactly 120 maps, and the growth after 33,000 is at 34,817', yi(20), (t, bench) => {
  const sequence = bench.sequenceOf(2048);
  bench.mock.resetCallCounts();
  t.deepEqual(bench.changes(() => bench.compute(sequence, 1)), { foreground: 120, background: 0, unmaps: 0 });
  t.like(bench.mock.callCounts(), { cuMemMap: 120, cuMemSetAccess: 120, cuMemCreate: 120, cuMemUnmap: 0 });
  bench.compute(sequence, 33_000 - 2049);
  t.is(bench.changes(() => bench.compute(sequence, 1)).foreground, 0);
  t.is(bench.changes(() => bench.compute(sequence, 34_816 - 33_001)).foreground, 0);
  t.is(bench.changes(() => bench.compute(sequence, 1)).foreground, 120);
  t.is(sequence.length, 34_817);
});

cacheTest('after a step at 2,048 the next row is mapped ahead, and 2,049 maps nothing', yi(20, { growth: ahead(1) }), async (t, bench) => {
  const { cache } = bench;
  const sequence = bench.sequenceOf(2047);
  await cache.settled();
  t.is(sequence.mappedRows, 1, '2,048 tokens fit the first row');
  const before = cache.metrics;
  bench.compute(sequence, 1);
  await cache.settled();
  t.is(sequence.mappedRows, 2);
  t.is(cache.metrics.foregroundMaps, before.foregroundMaps);
  t.is(cache.metrics.backgroundMaps, before.backgroundMaps + 120);
  t.is(bench.changes(() => bench.compute(sequence, 1)).foreground, 0);
});

// 9–10: many sequences, one budget

cacheTest('10 rows are admitted to the slot that kept 17: no map, no unmap, 83 rows free, 7 reclaimable', yi(100), (t, bench) => {
  const { cache } = bench;
  const first = bench.sequenceOf(33_000);
  first.release();
  let second = first;
  t.deepEqual(bench.changes(() => { second = bench.sequenceOf(20_000); }), { foreground: 0, background: 0, unmaps: 0 });
  t.is(second.slot, first.slot);
  t.is(cache.counts().reclaimablePages, 7 * 120);
  t.is(bench.pool().budgetPages - bench.pool().mappedPages, 83 * 120);
});

cacheTest('20 rows admitted to the slot that kept 17 are 360 maps', yi(100), (t, bench) => {
  const first = bench.sequenceOf(33_000);
  first.release();
  let second = first;
  t.deepEqual(bench.changes(() => { second = bench.sequenceOf(40_000); }), { foreground: 360, background: 0, unmaps: 0 });
  t.is(second.slot, first.slot);
  t.is(second.mappedRows, 20);
});

cacheTest('two sequences that need 12 of 10 rows are refused together and nothing is mapped; 6 and 4 fit', yi(10), (t, bench) => {
  const { cache } = bench;
  const [first, second] = [cache.acquire(), cache.acquire()];
  const tooMuch = bench.batchOf([first, 12_000], [second, 12_000]);
  const error = t.throws(() => cache.prepare(tooMuch), { code: 'KV_OUT_OF_PAGES' });
  t.like(error, {
    recovery: 'free',
    details: { needRows: 12, haveRows: 10, needPages: 1440, havePages: 1200, pagesPerRow: 120, slots: [first.slot, second.slot] },
  });
  t.is(bench.mock.callCounts().cuMemMap, 0);
  t.is(bench.mock.callCounts().cuMemCreate, 0);
  const fitting = bench.batchOf([first, 12_000], [second, 8000]);
  cache.prepare(fitting);
  cache.commit(fitting);
  t.deepEqual([first.mappedRows, second.mappedRows], [6, 4]);
  t.deepEqual([first.length, second.length], [12_000, 8000]);
});

// 11: a token larger than a page

cacheTest('a token of 122,880 bytes in pages of 64 KiB: 1 token has 2 pages per tensor, 8 tokens have 15, each written whole', {
  model: yi34b, layout: 'sliced', slots: 2, maxTokens: 64, memoryBudgetBytes: 64 * MiB,
}, (t, bench) => {
  t.is(bench.cache.layout.commonTokenBytes, 122_880);
  const sequence = bench.sequenceOf(1);
  t.is(sequence.mappedRows, 2);
  bench.compute(sequence, 7);
  t.is(sequence.mappedRows, 15);
  t.is(bench.pool().mappedPages, 30);
  bench.cache.stamp(sequence, 0, 8, 11);
  t.true(bench.isIntact(sequence, 11));
});

test('a cache of 12.6 TB opens and closes without mapping or creating anything', (t) => {
  const { driver, device } = openDriver({ device: { backing: 'none', granularityBytes: 2 * MiB } });
  using cache = new KvCache({ model: yi34bTp2, slots: 500, maxTokens: 204_800, memoryBudgetBytes: GiB, driver });
  cache.verify();
  cache.close();
  t.like(device!.callCounts(), { cuMemAddressReserve: 120, cuMemAddressFree: 120, cuMemCreate: 0, cuMemMap: 0 });
  assertNothingLeft(t, driver, device);
});
