// Every error that the memory layer can raise, once: its class, its recovery, its details by value, and a message without holes.

import test, { type ExecutionContext } from 'ava';

import {
  ahead, diskTier, Driver, KvAbortError, KvCache, KvCapacityError, KvDriverError, KvStateError, PagePool, type ErrorCode, type KvError, type Recovery,
} from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import {
  assertNothingLeft, cacheOptions, CacheBench, openDriver, pageBytes, rowTokens, tinyModel, withCache, type BenchOptions,
} from '../helpers/cache.js';
import { refuses } from '../helpers/refuses.js';

interface Refusal {
  readonly options?: BenchOptions;
  readonly provoke: (bench: CacheBench) => unknown;
  readonly class: abstract new (...parameters: never[]) => Error;
  readonly recovery: Recovery;
  readonly details: Readonly<Record<string, unknown>>;
}

const refusals: Readonly<Partial<Record<ErrorCode, Refusal>>> = {
  KV_UNKNOWN_OPTION: {
    provoke: ({ driver }) => new KvCache({ ...cacheOptions({}, driver), maxToken: 5 } as never),
    class: TypeError, recovery: 'fix', details: { owner: 'KvCache', option: 'maxToken', suggestion: 'maxTokens' },
  },
  KV_INVALID_OPTION: {
    provoke: ({ driver }) => new KvCache({ ...cacheOptions({}, driver), slots: 0.5 }),
    class: RangeError, recovery: 'fix', details: { reason: 'range', owner: 'KvCache', option: 'slots', received: 0.5 },
  },
  KV_INVALID_SHAPE: {
    provoke: ({ driver }) => new KvCache({ ...cacheOptions({}, driver), model: { ...tinyModel, parallel: { tensor: 3 } } }),
    class: RangeError, recovery: 'fix', details: { option: 'kvHeads', value: 4 },
  },
  KV_LENGTH_OUT_OF_RANGE: {
    provoke: ({ cache }) => cache.acquire({ promptTokens: 1025 }),
    class: RangeError, recovery: 'fix', details: { tokens: 1025, maxTokens: 1024 },
  },
  KV_COPY_OUT_OF_RANGE: {
    provoke: ({ cache }) => cache.stamp(cache.acquire(), 0, 2, 1),
    class: RangeError, recovery: 'fix', details: { call: 'stamp', bytes: 2 * 4096 },
  },
  KV_CLOSED: {
    provoke: ({ cache }) => {
      cache.close();
      cache.acquire();
    },
    class: KvStateError, recovery: 'fix', details: { operation: 'acquire a slot', owner: 'KvCache' },
  },
  KV_SLOT_RELEASED: {
    provoke: (bench) => {
      const sequence = bench.sequenceOf(1);
      sequence.release();
      sequence.release();
    },
    class: KvStateError, recovery: 'fix', details: { generation: 0, currentGeneration: 1 },
  },
  KV_SLOT_BUSY: {
    provoke: (bench) => {
      const sequence = bench.sequenceOf(1);
      bench.cache.prepare(bench.batchOf([sequence, 1]));
      sequence.truncate(0);
    },
    class: KvStateError, recovery: 'fix', details: { operation: 'truncate', holder: 'a prepared batch' },
  },
  KV_BATCH_STATE: {
    provoke: ({ cache }) => cache.commit(cache.createBatch()),
    class: KvStateError, recovery: 'fix', details: { operation: 'commit', problem: 'is not prepared' },
  },
  KV_DRIVER_IN_USE: {
    provoke: ({ driver }) => driver.close(),
    class: KvStateError, recovery: 'fix', details: { owner: 'Driver', users: 1 },
  },
  KV_NO_FREE_SLOT: {
    options: { slots: 2 },
    provoke: (bench) => {
      bench.sequenceOf(1).release({ fence: { step: 1 } });
      bench.cache.acquire();
      bench.cache.acquire();
    },
    class: KvCapacityError, recovery: 'free', details: { slots: 2, retiringSlots: 1 },
  },
  KV_OUT_OF_PAGES: {
    options: { rows: 2 },
    provoke: (bench) => bench.sequenceOf(3 * rowTokens),
    class: KvCapacityError, recovery: 'free',
    details: {
      needRows: 3, haveRows: 2, needPages: 12, havePages: 8, budgetBytes: 8 * pageBytes, pageBytes, pagesPerRow: 4,
    },
  },
  KV_OUT_OF_DEVICE_MEMORY: {
    options: { device: { memoryBytes: 5 * pageBytes } },
    provoke: (bench) => bench.sequenceOf(2 * rowTokens),
    class: KvCapacityError, recovery: 'free', details: { pageBytes, createdPages: 0, budgetPages: 80, freeBytes: 5 * pageBytes },
  },
  KV_OUT_OF_ADDRESS_SPACE: {
    provoke: ({ driver }) => new KvCache({ ...cacheOptions({}, driver), slots: 2 ** 20, maxTokens: 2 ** 24 }),
    class: KvCapacityError, recovery: 'fix',
    details: { bytes: 4 * 2 ** 20 * 2 ** 34, reservations: 4, slots: 2 ** 20, maxTokens: 2 ** 24 },
  },
  KV_OUT_OF_MAPPINGS: {
    options: { on: 'host', mappingLimit: 9 },
    provoke: (bench) => bench.sequenceOf(1),
    class: KvCapacityError, recovery: 'free', details: { limitMappings: 9 },
  },
  KV_TIMEOUT: {
    options: { slots: 1 },
    provoke: ({ cache }) => {
      cache.acquire();
      return cache.slotFree({ timeoutMs: 1 });
    },
    class: KvCapacityError, recovery: 'retry', details: { timeoutMs: 1, waitedFor: 'a free slot' },
  },
  KV_DRIVER_UNAVAILABLE: {
    provoke: () => Driver.open('cuda', { libraryPath: '/nowhere/libcuda.so.1' }),
    class: KvDriverError, recovery: 'fix', details: { driver: 'cuda', reason: 'no-library' },
  },
  KV_DRIVER_UNSUPPORTED: {
    options: { device: { backing: 'none' } },
    provoke: (bench) => bench.sequenceOf(1).view(0),
    class: KvDriverError, recovery: 'fix', details: { call: 'view' },
  },
  KV_DRIVER_CALL_FAILED: {
    provoke: (bench) => {
      bench.fail('cuMemSetAccess', 1);
      return bench.sequenceOf(1);
    },
    class: KvDriverError, recovery: 'retry',
    details: { call: 'cuMemSetAccess', status: 999, statusName: 'CUDA_ERROR_UNKNOWN', bytes: pageBytes },
  },
  KV_DRIVER_LOST: {
    provoke: (bench) => {
      bench.mock.loseDevice();
      return bench.sequenceOf(1);
    },
    class: KvDriverError, recovery: 'restart', details: { status: 700, statusName: 'CUDA_ERROR_ILLEGAL_ADDRESS' },
  },
  KV_DRIVER_MISUSE: {
    provoke: (bench) => {
      try {
        bench.sequenceOf(1).release({ fence: { stream: 99n } });
      } finally {
        bench.mock.clearMisuses();
      }
    },
    class: KvDriverError, recovery: 'report', details: { call: 'cuEventRecord', status: 400 },
  },
  KV_ABORTED: {
    options: { slots: 1 },
    provoke: ({ cache }) => {
      cache.acquire();
      return cache.slotFree({ signal: AbortSignal.abort() });
    },
    class: KvAbortError, recovery: 'none', details: { operation: 'waiting for a free slot' },
  },
};

for (const [code, { options = {}, provoke, class: errorClass, recovery, details }] of Object.entries(refusals)) {
  test(`${code}: ${errorClass.name}, ${recovery}, with its numbers`, (t) => withCache(t, options, async (bench) => {
    const error = await t.throwsAsync(async () => { await provoke(bench); }, { code, instanceOf: errorClass }) as KvError;
    t.is(error.recovery, recovery);
    t.like(error.details, details);
    t.notRegex(error.message, /undefined|NaN|\[object|null/);
    t.regex(error.message, /[.?]$/);
  }));
}

test('`auto` takes host where there is no cuda, and tells other failures apart', (t) => {
  const driver = Driver.open('auto', { libraryPath: '/nowhere/libcuda.so.1' });
  t.is(driver.kind, 'host');
  driver.close();
});

test('an open that fails leaves nothing of the cache, and a driver that it opened is closed', (t) => {
  const device = new MockDevice({ granularityBytes: pageBytes });
  const pool = new PagePool({ driver: device.driver, pageBytes, memoryBudgetBytes: 2 ** 20 });
  device.failCall('cuMemAddressReserve', { nth: 3 });
  assertThrowsAndCleans(t, device, () => new KvCache({ model: tinyModel, slots: 1, maxTokens: 64, pool }));
  const cache = new KvCache({ model: tinyModel, slots: 1, maxTokens: 64, growth: ahead(), pool });
  cache.close();
  pool.close();
  assertNothingLeft(t, device.driver, device);
});

test('an open that tiers refuse leaves no side tensors, and says why', (t) => {
  const device = new MockDevice({ granularityBytes: pageBytes });
  const options = {
    model: tinyModel, slots: 1, maxTokens: 64, memoryBudgetBytes: 2 ** 24, pageBytes,
    sideTensors: { hidden: { width: 8, dtype: 'float16', place: 'device' } },
    prefixCache: { tiers: [diskTier({ directory: '/nowhere', bytes: 2 ** 24 })] },
  } as const;
  for (const driver of [device.driver, 'host'] as const) {
    refuses(t, () => new KvCache({ ...options, driver }), 'KV_INVALID_OPTION', { option: 'prefixCache.modelId' });
  }
  assertNothingLeft(t, device.driver, device);
});

function assertThrowsAndCleans(t: ExecutionContext, device: MockDevice, call: () => unknown): void {
  t.throws(call, { code: 'KV_DRIVER_CALL_FAILED' });
  t.like(device.leaks(), { reservations: 0, pages: 0, mappings: 0 });
}

test('more rows of a slot than can be numbered are refused, with what to do', (t) => {
  const { driver, device } = openDriver({ device: { granularityBytes: 4096, addressSpaceBytes: 2 ** 52 } });
  refuses(t, () => new KvCache({ ...cacheOptions({ pageBytes: 4096 }, driver), slots: 1, maxTokens: 2 ** 31 - 1 }),
    'KV_INVALID_SHAPE', { option: 'maxTokens', value: 2 ** 31 - 1 });
  assertNothingLeft(t, driver, device);
});
