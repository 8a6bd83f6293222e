// One pool of pages under several caches: different models take idle rows from each other, and every page is counted once.

import test, { type ExecutionContext } from 'ava';

import { ahead, DeviceMemory, KvCache, onDemand, PagePool, type KvCacheOptions, type Sequence } from 'virtual-kv';

import { assertNothingLeft, drivers, openDriver, pageBytes, tinyModel, type DriverName } from '../helpers/cache.js';

/** A pool with caches of several models: rows of 4, 2 and 6 pages, each of 64, 64 and 16 tokens. */
class PoolBench {
  readonly #t: ExecutionContext;
  readonly #opened: ReturnType<typeof openDriver>;
  readonly pool: PagePool;
  readonly large: KvCache;
  readonly small: KvCache;
  readonly wide: KvCache;

  constructor(t: ExecutionContext, on: DriverName, pages: number, options: Partial<KvCacheOptions> = {}) {
    this.#t = t;
    this.#opened = openDriver({ on });
    this.pool = new PagePool({ driver: this.#opened.driver, pageBytes, memoryBudgetBytes: pages * pageBytes });
    const open = (model: KvCacheOptions['model']) =>
      new KvCache({ model, slots: 3, maxTokens: 512, layout: 'per-layer', growth: onDemand(), ...options, pool: this.pool });
    this.large = open(tinyModel);
    this.small = open({ ...tinyModel, layers: 1 });
    this.wide = open({ ...tinyModel, layers: 3, kvHeads: 16 });
  }

  get caches(): readonly KvCache[] {
    return [this.large, this.small, this.wide];
  }

  get livePages(): number {
    return this.#opened.driver.memory().livePages;
  }

  assertConserved(): void {
    const { freePages, mappedPages, quarantinedPages, createdPages } = this.pool.counts();
    const own = this.caches.filter(({ isClosed }) => !isClosed).reduce((pages, cache) => pages + cache.counts().mappedPages, 0);
    this.#t.is(mappedPages, own);
    this.#t.is(freePages + mappedPages + quarantinedPages, createdPages);
    this.#t.is(createdPages, this.livePages);
    for (const cache of this.caches) if (!cache.isClosed) cache.verify();
  }

  close(): void {
    for (const cache of this.caches) cache.close();
    this.pool.close();
    assertNothingLeft(this.#t, this.#opened.driver, this.#opened.device);
  }
}

/** A sequence with so many rows. */
function sequenceOf(cache: KvCache, rows: number): Sequence {
  const tokens = cache.layout.tokensIn(rows);
  const sequence = cache.acquire({ promptTokens: tokens, reserve: 'none' });
  grow(cache, sequence, tokens);
  return sequence;
}

function grow(cache: KvCache, sequence: Sequence, tokens: number): void {
  const batch = cache.createBatch();
  batch.add(sequence, tokens);
  cache.prepare(batch);
  cache.commit(batch);
}

for (const on of drivers) {
  const poolTest = (
    title: string, pages: number, body: (t: ExecutionContext, bench: PoolBench) => void | Promise<void>, options?: Partial<KvCacheOptions>,
  ) => test(`${title} (${on})`, async (t) => {
    const bench = new PoolBench(t, on, pages, options);
    try {
      await body(t, bench);
      bench.assertConserved();
    } finally {
      bench.close();
    }
  });

  poolTest('caches share the budget', 20, (t, { large, small, wide, pool }) => {
    sequenceOf(large, 2);
    sequenceOf(small, 3);
    sequenceOf(wide, 1);
    t.like(pool.counts(), { mappedPages: 20, budgetPages: 20 });
    const error = t.throws(() => sequenceOf(small, 1), { code: 'KV_OUT_OF_PAGES' });
    t.like(error, { details: { needPages: 2, havePages: 0, needRows: 1, haveRows: 0, pagesPerRow: 2 } });
  });

  poolTest('a cache takes its own idle rows first, then those of the others, and only what it lacks', 16, (t, { large, small, pool }) => {
    sequenceOf(large, 2).release();
    const keep = sequenceOf(small, 2);
    sequenceOf(small, 2).release();
    t.like(pool.counts(), { mappedPages: 16 });
    grow(small, keep, 64);
    t.is(small.counts().idleRows, 1);
    t.is(large.counts().idleRows, 2);
    grow(small, keep, 2 * 64);
    t.is(small.counts().idleRows, 0);
    t.is(large.counts().idleRows, 1, 'a whole row of 4 pages for the 2 that were short');
    t.is(pool.counts().freePages, 2);
    t.is(keep.mappedRows, 5);
  });

  poolTest('the tail of an active sequence of another cache can be taken too', 12, (t, { large, wide }) => {
    const tail = sequenceOf(large, 3);
    tail.truncate(64);
    sequenceOf(wide, 1);
    t.is(tail.mappedRows, 1);
  });

  poolTest('an earmark in one cache is safe from the others', 12, (t, { large, small, pool }) => {
    const reserved = large.acquire({ promptTokens: 2 * 64 });
    t.is(pool.counts().earmarkedPages, 8);
    const growing = sequenceOf(small, 2);
    t.throws(() => grow(small, growing, 1), { code: 'KV_OUT_OF_PAGES' });
    t.throws(() => small.acquire({ promptTokens: 1 }), { code: 'KV_OUT_OF_PAGES' });
    grow(large, reserved, 2 * 64);
    t.is(pool.counts().earmarkedPages, 0);
  });

  poolTest('an earmark ends when its cache is closed', 12, (t, { large, pool }) => {
    const reserved = large.acquire({ promptTokens: 3 * 64 });
    grow(large, reserved, 64);
    t.is(pool.counts().earmarkedPages, 8);
    large.close();
    t.is(pool.counts().earmarkedPages, 0);
  });

  poolTest('what an earmark lacks is taken from idle rows of other caches', 12, (t, { large, wide, pool }) => {
    sequenceOf(wide, 2).release();
    const reserved = large.acquire({ promptTokens: 2 * 64 });
    t.is(wide.counts().idleRows, 0);
    t.like(pool.counts(), { earmarkedPages: 8, freePages: 12 });
    reserved.release();
  });

  poolTest('lowering the budget takes idle rows from all', 24, (t, { large, small, wide, pool }) => {
    for (const [cache, rows] of [[large, 2], [small, 5], [wide, 1]] as const) sequenceOf(cache, rows).release();
    pool.setBudget(6 * pageBytes);
    const { mappedPages, createdPages } = pool.counts();
    t.true(mappedPages <= 6 && createdPages <= 6);
    pool.setBudget(pageBytes);
    t.is(pool.counts().mappedPages, 0);
    t.true(pool.counts().createdPages <= 1);
  });

  poolTest('a cache that closes leaves its pages to the others', 12, (t, bench) => {
    const { large, small, pool } = bench;
    sequenceOf(large, 3);
    large.close();
    t.like(pool.counts(), { freePages: 12, mappedPages: 0 });
    sequenceOf(small, 6);
    t.like(pool.counts(), { freePages: 0, mappedPages: 12, createdPages: 12 });
    bench.assertConserved();
  });

  poolTest('a cache that closes above a lowered budget gives its pages back to the system', 12, (t, bench) => {
    sequenceOf(bench.large, 3);
    bench.pool.setBudget(4 * pageBytes);
    t.is(bench.livePages, 12);
    bench.large.close();
    t.is(bench.livePages, 4);
  });

  poolTest('bytes of one cache are never those of another, whatever they take from each other', 22, (t, { caches }) => {
    const alive: { readonly cache: KvCache; readonly sequence: Sequence; readonly key: number }[] = [];
    for (let round = 0; round < 60; round += 1) {
      const cache = caches[round % 3]!;
      if (alive.length === 3) alive.shift()!.sequence.release();
      const sequence = sequenceOf(cache, 1 + (round % 2));
      cache.stamp(sequence, 0, sequence.length, round);
      alive.push({ cache, sequence, key: round });
      for (const { cache: of, sequence: each, key } of alive) t.is(of.verifyStamp(each, 0, each.length, key), 0);
    }
    t.true(caches.some((cache) => cache.metrics.unmaps > 0));
  });

  poolTest('the mappers of several caches run dry together, and counts stay right', 30, async (t, bench) => {
    for (const cache of bench.caches) for (let slot = 0; slot < 3; slot += 1) cache.acquire();
    for (const cache of bench.caches) await cache.settled();
    bench.assertConserved();
    t.true(bench.pool.counts().mappedPages <= 30);
    t.true(bench.caches.some((cache) => cache.metrics.droppedRequests > 0));
    t.deepEqual(bench.caches.map((cache) => cache.metrics.lateErrors), [0, 0, 0]);
  }, { growth: ahead(512) });
}

test('a pool whose own driver has other users stays open until they are closed', (t) => {
  const pool = new PagePool({ driver: 'host', memoryBudgetBytes: pageBytes, pageBytes });
  const first = new DeviceMemory({ driver: pool.driver, bytes: 1 });
  t.like(t.throws(() => { pool.close(); }, { code: 'KV_DRIVER_IN_USE' }), { details: { owner: 'Driver', users: 1 } });
  t.is(pool.counts().createdPages, 0, 'it is open');
  first.close();
  pool.close();
  t.true(pool.driver.isClosed);
});

test('a cache that is not closed since its own pool or driver has other users goes on', async (t) => {
  const cache = new KvCache({
    model: tinyModel, slots: 2, maxTokens: 64, driver: 'host', memoryBudgetBytes: 8 * pageBytes, pageBytes,
  });
  const sequence = cache.acquire({ promptTokens: 3 });
  const goesOn = (owner: 'Driver' | 'PagePool'): void => {
    t.like(t.throws(() => { cache.close(); }, { code: 'KV_DRIVER_IN_USE' }), { details: { owner, users: 1 } });
    cache.verify();
    const batch = cache.createBatch();
    batch.add(sequence, 1);
    cache.prepare(batch);
    cache.commit(batch);
  };
  const memory = new DeviceMemory({ driver: cache.driver, bytes: 1 });
  goesOn('Driver');
  const other = new KvCache({ model: tinyModel, slots: 1, maxTokens: 64, pool: cache.pool });
  goesOn('PagePool');
  t.is(sequence.length, 2);
  other.close();
  await t.throwsAsync(cache.shutdown(), { code: 'KV_DRIVER_IN_USE' });
  t.false(cache.isClosed);
  memory.close();
  await cache.shutdown();
  t.true(cache.isClosed && cache.driver.isClosed);
});
