// Scrubbing where caches share a pool: a page remembers whose it was, so what a tenant of a scrubbing cache left is seen by nobody
// else, whatever the other cache's own `scrub` is and however it comes by the page.

import test, { type ExecutionContext } from 'ava';

import { ahead, KvCache, onDemand, PagePool, type Driver, type Sequence } from 'virtual-kv';

import { assertNothingLeft, drivers, openDriver, pageBytes, rowTokens, tinyModel, type DriverName } from '../helpers/cache.js';
import { nativeOf } from '../helpers/native-of.js';

const rows = 6;
const scrubs = ['off', 'between-tenants'] as const;
type Scrub = (typeof scrubs)[number];

/** Bytes that are not zero in the rows of a sequence, from a token on. */
function dirtyBytes(driver: Driver, cache: KvCache, sequence: Sequence, fromToken: number): number {
  let dirty = 0;
  for (const { index, reservation, strides } of cache.tensors) {
    const start = fromToken * strides.tokenBytes;
    const bytes = new Uint8Array(cache.layout.pagesIn(reservation, sequence.mappedRows) * pageBytes - start);
    nativeOf(driver).read(bytes, sequence.address(index) + BigInt(start));
    dirty += bytes.reduce((count, byte) => count + (byte === 0 ? 0 : 1), 0);
  }
  return dirty;
}

/** Computes tokens, and writes them where there is a key. */
function compute(cache: KvCache, sequence: Sequence, tokens: number, key?: number): void {
  const batch = cache.createBatch();
  batch.add(sequence, tokens);
  cache.prepare(batch);
  if (key !== undefined) cache.stamp(sequence, sequence.length, tokens, key);
  cache.commit(batch);
}

/** A tenant fills all the pool has, and leaves. */
function fillPool(cache: KvCache, tenant: string): void {
  const sequence = cache.acquire({ tenant });
  compute(cache, sequence, rows * rowTokens, 77);
  sequence.release();
}

const text = (length: number, last: number): Int32Array => Int32Array.from({ length }, (_, at) => (at === length - 1 ? last : at));

/** How a sequence comes by rows that nobody has written for it; returns it, with the token behind those that it has written. */
const ways: Readonly<Record<string, (cache: KvCache, tenant: string) => Promise<readonly [Sequence, number]> | readonly [Sequence, number]>> = {
  'grows': (cache, tenant) => {
    const sequence = cache.acquire({ tenant });
    compute(cache, sequence, 2 * rowTokens);
    return [sequence, 0];
  },
  'gets rows from the mapper': async (cache, tenant) => {
    const sequence = cache.acquire({ tenant });
    compute(cache, sequence, 1);
    await cache.settled();
    return [sequence, 0];
  },
  'writes to a shared row, which is copied': (cache, tenant) => {
    const parent = cache.acquire({ tenant });
    compute(cache, parent, 10, 5);
    const fork = parent.fork();
    compute(cache, fork, 1, 5);
    return [fork, 11];
  },
  'begins with a prefix of which one row is aliased and one copied': (cache, tenant) => {
    const first = cache.acquire({ tokens: text(rowTokens + 20, 1), tenant });
    compute(cache, first, rowTokens + 20, 5);
    const second = cache.acquire({ tokens: text(rowTokens + 11, 2), tenant });
    if (second.length !== rowTokens + 10) throw new Error(`${second.length} tokens were cached`);
    return [second, rowTokens + 10];
  },
};

interface World {
  readonly driver: Driver;
  readonly open: (scrub: Scrub, growth?: 'ahead') => KvCache;
}

async function withPool(t: ExecutionContext, on: DriverName, work: (world: World) => void | Promise<void>): Promise<void> {
  const { driver, device } = openDriver({ on });
  const pool = new PagePool({ driver, pageBytes, memoryBudgetBytes: rows * 4 * pageBytes });
  const caches: KvCache[] = [];
  const open: World['open'] = (scrub, growth) => {
    const cache = new KvCache({
      model: tinyModel, slots: 3, maxTokens: rows * rowTokens, layout: 'per-layer', pool, scrub, growth: growth === 'ahead' ? ahead(2 * rowTokens) : onDemand(),
    });
    caches.push(cache);
    return cache;
  };
  try {
    await work({ driver, open });
  } finally {
    for (const cache of caches) cache.close();
    pool.close();
  }
  assertNothingLeft(t, driver, device);
}

for (const on of drivers) {
  for (const [way, getRows] of Object.entries(ways)) {
    for (const left of scrubs) {
      for (const got of scrubs) {
        for (const order of ['before', 'after'] as const) {
          const isSeen = left === 'off' && got === 'off';
          const title = `what a tenant left in a cache with \`scrub\` ${left} is ${isSeen ? '' : 'not '}seen where another one, opened ` +
            `${order} it with ${got}, ${way} (${on})`;
          test(title, (t) => withPool(t, on, async ({ driver, open }) => {
            const openGetter = (): KvCache => open(got, 'ahead');
            const early = order === 'before' ? openGetter() : undefined;
            fillPool(open(left), 'x');
            const cache = early ?? openGetter();
            const [sequence, from] = await getRows(cache, 'y');
            await cache.settled();
            const dirty = dirtyBytes(driver, cache, sequence, from);
            if (isSeen) t.true(dirty > 0);
            else t.is(dirty, 0);
          }));
        }
      }
    }
  }

  test(`a page that went through a cache without scrubbing is zeroed again for a tenant (${on})`, (t) => withPool(t, on, ({ driver, open }) => {
    const [scrubbing, other] = [open('between-tenants'), open('off')];
    for (const tenant of ['x', 'y']) {
      fillPool(scrubbing, tenant);
      fillPool(other, '');
    }
    const sequence = scrubbing.acquire({ tenant: 'y' });
    compute(scrubbing, sequence, 2 * rowTokens);
    t.is(dirtyBytes(driver, scrubbing, sequence, 0), 0);
  }));

  test(`a tenant is the same one in every scrubbing cache of a pool, and finds nothing zeroed (${on})`, (t) => withPool(t, on, ({ open }) => {
    const [first, second] = [open('between-tenants'), open('between-tenants')];
    fillPool(first, 'x');
    const before = second.metrics.scrubbedPages;
    fillPool(second, 'x');
    t.is(second.metrics.scrubbedPages, before);
  }));

  test(`caches that do not scrub zero nothing for each other (${on})`, (t) => withPool(t, on, ({ open }) => {
    const [first, second] = [open('off'), open('off')];
    fillPool(first, 'x');
    fillPool(second, 'y');
    t.is(second.metrics.scrubbedPages + first.metrics.scrubbedPages, 0);
  }));
}
