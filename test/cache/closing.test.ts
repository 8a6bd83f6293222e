// Opening and closing: what a cache does in each state of its life, and what closes with it.

import test from 'ava';

import { ahead, Driver, KvCache, PagePool, type Batch, type Sequence } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import {
  assertNothingLeft, cacheOptions, cacheTest, cacheTests, drivers, openDriver, pageBytes, tinyModel, type CacheBench,
} from '../helpers/cache.js';

const states = {
  open: () => {},
  closed: ({ cache }) => cache.close(),
  'half closed': (bench) => {
    bench.sequenceOf(100);
    bench.fail('cuMemUnmap', 2);
    bench.t.throws(() => bench.cache.close(), { code: 'KV_DRIVER_CALL_FAILED' });
  },
} satisfies Readonly<Record<string, (bench: CacheBench) => void>>;

/** What each member of a cache does when it is not open. */
const members: Readonly<Record<string, {
  readonly call: (cache: KvCache, sequence: Sequence) => unknown;
  readonly isAlwaysAllowed?: boolean;
}>> = {
  acquire: { call: (cache) => cache.acquire() },
  createBatch: { call: (cache) => cache.createBatch() },
  prepare: { call: (cache) => cache.prepare(batches.get(cache)!.filled) },
  commit: { call: (cache) => cache.commit(batches.get(cache)!.prepared) },
  discard: { call: (cache) => cache.discard(batches.get(cache)!.prepared) },
  completeStep: { call: (cache) => cache.completeStep(1) },
  counts: { call: (cache) => cache.counts() },
  metrics: { call: (cache) => cache.metrics },
  verify: { call: (cache) => cache.verify() },
  inspect: { call: (cache) => cache.inspect() },
  stamp: { call: (cache, sequence) => cache.stamp(sequence, 0, 1, 1) },
  verifyStamp: { call: (cache, sequence) => cache.verifyStamp(sequence, 0, 1, 1) },
  close: { call: (cache) => cache.close(), isAlwaysAllowed: true },
  isClosed: { call: (cache) => cache.isClosed, isAlwaysAllowed: true },
  driver: { call: (cache) => cache.driver.info, isAlwaysAllowed: true },
  layout: { call: (cache) => cache.layout.pagesFor(1), isAlwaysAllowed: true },
  tensors: { call: (cache) => cache.tensors.length, isAlwaysAllowed: true },
};

/** Batches of the cache of a test, made while it was open. */
const batches = new WeakMap<KvCache, { readonly filled: Batch; readonly prepared: Batch }>();

for (const [member, { call, isAlwaysAllowed = false }] of Object.entries(members)) {
  for (const [state, enter] of Object.entries(states)) {
    const isAllowed = isAlwaysAllowed || state === 'open';
    cacheTest(`\`${member}\` of a cache that is ${state} ${isAllowed ? 'is allowed' : 'is KV_CLOSED'}`, {}, (t, bench) => {
      const { cache } = bench;
      const [sequence, other] = [bench.sequenceOf(10), bench.sequenceOf(10)];
      const entry = { filled: bench.batchOf([sequence, 1]), prepared: bench.batchOf([other, 1]) };
      cache.prepare(entry.prepared);
      batches.set(cache, entry);
      enter(bench);
      if (isAllowed) {
        t.notThrows(() => call(cache, sequence));
      } else {
        t.like(t.throws(() => call(cache, sequence), { code: 'KV_CLOSED' }), { recovery: 'fix', details: { owner: 'KvCache' } });
      }
      cache.close();
    });
  }
}

for (const wait of ['slotFree', 'settled'] as const) {
  cacheTest(`\`${wait}\` of a cache that is closed meanwhile is KV_CLOSED`, { slots: 1, growth: ahead(500) }, async (t, bench) => {
    const { cache, mock } = bench;
    mock.setLatencyNs('cuMemMap', 20_000_000); // the mapper is busy for half a second, and ends with its call
    cache.acquire();
    const waiting = cache[wait]();
    cache.close();
    await t.throwsAsync(waiting, { code: 'KV_CLOSED' });
    await t.throwsAsync(cache[wait](), { code: 'KV_CLOSED' });
  });
}

cacheTests('closing is idempotent, and takes back what sequences, idle slots and fences hold', {}, (t, bench) => {
  const { cache, driver } = bench;
  bench.sequenceOf(200);
  bench.idleSlotOf(2);
  bench.sequenceOf(50).release({ fence: { step: 5 } });
  bench.sequenceOf(50).release({ fence: { stream: 0n } });
  cache.prepare(bench.batchOf([bench.sequenceOf(3), 1]));
  cache.close();
  cache.close();
  cache[Symbol.dispose]();
  t.true(cache.isClosed);
  t.like(driver.memory(), { livePages: 0, liveReservations: 0 });
});

cacheTest('a close that the driver refused goes on where it was', {}, (t, bench) => {
  const { cache } = bench;
  for (let index = 0; index < 4; index += 1) bench.sequenceOf(100);
  for (const call of ['cuMemUnmap', 'cuMemAddressFree', 'cuMemRelease']) {
    bench.fail(call, 3);
    t.throws(() => cache.close(), { code: 'KV_DRIVER_CALL_FAILED' }, call);
    t.false(cache.isClosed);
  }
  cache.close();
  t.true(cache.isClosed);
});

// Who owns what

for (const on of drivers) {
  test(`a driver that was given stays open, one that the cache opened is closed with it (${on})`, (t) => {
    const { driver, device } = openDriver({ on });
    const first = new KvCache(cacheOptions({}, driver));
    t.is(first.driver, driver);
    const inUse = t.throws(() => driver.close(), { code: 'KV_DRIVER_IN_USE' });
    t.like(inUse, { details: { owner: 'Driver', users: 1 } });
    first.close();
    t.false(driver.isClosed);
    const own = new KvCache({ ...cacheOptions({}, driver), driver: 'host' });
    own.close();
    t.true(own.driver.isClosed);
    t.true(own.pool.isClosed);
    assertNothingLeft(t, driver, device);
    t.throws(() => new KvCache(cacheOptions({}, driver)), { code: 'KV_CLOSED' });
    t.throws(() => driver.memory(), { code: 'KV_CLOSED' });
  });

  test(`a pool is closed after its caches and before its driver (${on})`, (t) => {
    const { driver, device } = openDriver({ on });
    const pool = new PagePool({ driver, pageBytes, memoryBudgetBytes: 2 ** 20 });
    const [first, second] = [1, 2].map(() => new KvCache({ model: tinyModel, slots: 2, maxTokens: 256, pool })) as [KvCache, KvCache];
    t.like(t.throws(() => pool.close(), { code: 'KV_DRIVER_IN_USE' }), { details: { owner: 'PagePool', users: 2 } });
    t.throws(() => driver.close(), { code: 'KV_DRIVER_IN_USE' });
    second.close();
    t.throws(() => pool.close(), { code: 'KV_DRIVER_IN_USE' });
    first.close();
    pool.close();
    pool.close();
    t.throws(() => pool.counts(), { code: 'KV_CLOSED' });
    t.throws(() => pool.setBudget(1), { code: 'KV_CLOSED' });
    t.throws(() => pool.trim(), { code: 'KV_CLOSED' });
    t.throws(() => new KvCache({ model: tinyModel, slots: 2, maxTokens: 256, pool }), { code: 'KV_CLOSED' });
    assertNothingLeft(t, driver, device);
  });
}

test('closing a device right after its caches leaves nothing retained', (t) => {
  using device = new MockDevice({ granularityBytes: pageBytes });
  const cache = new KvCache(cacheOptions({}, device.driver));
  cache.acquire();
  cache.close();
  device.driver.close();
  t.is(device.leaks().retainedContexts, 0);
});

// Options

const wrongOptions: readonly (readonly [Readonly<Record<string, unknown>>, string, string])[] = [
  [{ slots: 0 }, 'KV_INVALID_OPTION', 'slots'],
  [{ slots: 2 ** 21 }, 'KV_INVALID_OPTION', 'slots'],
  [{ maxTokens: 0 }, 'KV_INVALID_OPTION', 'maxTokens'],
  [{ maxTokens: 2 ** 31 }, 'KV_INVALID_OPTION', 'maxTokens'],
  [{ memoryBudgetBytes: 0 }, 'KV_INVALID_OPTION', 'memoryBudgetBytes'],
  [{ memoryBudgetBytes: undefined }, 'KV_INVALID_OPTION', 'memoryBudgetBytes'],
  [{ driver: 'mock' }, 'KV_INVALID_OPTION', 'driver'],
  [{ driver: {} }, 'KV_INVALID_OPTION', 'driver'],
  [{ pool: {} }, 'KV_INVALID_OPTION', 'pool'],
  [{ pageBytes: pageBytes + 1 }, 'KV_INVALID_OPTION', 'pageBytes'],
  [{ pageBytes: 4096 }, 'KV_INVALID_OPTION', 'pageBytes'],
  [{ layout: 'per-layers' }, 'KV_INVALID_OPTION', 'layout'],
  [{ growth: 16 }, 'KV_INVALID_OPTION', 'growth'],
  [{ eagerRows: -1 }, 'KV_INVALID_OPTION', 'eagerRows'],
  [{ idleRowsLimit: 0.5 }, 'KV_INVALID_OPTION', 'idleRowsLimit'],
  [{ scrub: true }, 'KV_INVALID_OPTION', 'scrub'],
  [{ mapper: 'on' }, 'KV_INVALID_OPTION', 'mapper'],
  [{ model: { ...tinyModel, dtype: 'float64' } }, 'KV_INVALID_OPTION', 'dtype'],
  [{ model: { ...tinyModel, parallel: { tensor: 3 } } }, 'KV_INVALID_SHAPE', 'kvHeads'],
  [{ maxToken: 5 }, 'KV_UNKNOWN_OPTION', 'maxToken'],
];

for (const [options, code, option] of wrongOptions) {
  test(`${JSON.stringify(options)} is ${code}, and nothing is opened`, (t) => {
    const { driver, device } = openDriver();
    const error = t.throws(() => new KvCache({ ...cacheOptions({}, driver), ...options } as never), { code });
    t.is((error as unknown as { details: { option: string } }).details.option, option);
    assertNothingLeft(t, driver, device);
  });
}

test('a pool brings its own budget, driver and page size', (t) => {
  const { driver, device } = openDriver();
  const pool = new PagePool({ driver, pageBytes, memoryBudgetBytes: 2 ** 20 });
  for (const [option, value] of Object.entries({ memoryBudgetBytes: 1, driver, pageBytes })) {
    const options = { model: tinyModel, slots: 1, maxTokens: 1, pool, [option]: value };
    const error = t.throws(() => new KvCache(options), { code: 'KV_INVALID_OPTION' });
    t.like(error, { details: { option } });
  }
  pool.close();
  assertNothingLeft(t, driver, device);
});

test('more addresses than the machine has are refused with the numbers, and none stay reserved', (t) => {
  const driver = Driver.open('host');
  const options = { ...cacheOptions({ slots: 2 ** 20, maxTokens: 2 ** 28 }, driver) };
  const error = t.throws(() => new KvCache(options), { code: 'KV_OUT_OF_ADDRESS_SPACE' });
  t.like(error, { recovery: 'fix', details: { reservations: 4, slots: 2 ** 20, maxTokens: 2 ** 28 } });
  assertNothingLeft(t, driver, undefined);
});
