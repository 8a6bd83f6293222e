// Streams that a driver lends to engines: work goes there, apart from the default stream; they live as long as the driver.

import test from 'ava';

import { Driver, Kernels, KvCache, PagePool } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { nativeOf } from '../helpers/native-of.js';
import { refuses } from '../helpers/refuses.js';

const pageBytes = 65_536;
const model = { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float16' } as const;
const openCache = (driver: Driver): KvCache =>
  new KvCache({ model, slots: 2, maxTokens: 64, memoryBudgetBytes: 4 * pageBytes, driver, pageBytes, mapper: 'off' });

test('a stream that was acquired can be captured, and is apart from the default stream', (t) => {
  const device = new MockDevice({ granularityBytes: pageBytes, streams: 'manual' });
  const { driver } = device;
  const stream = driver.acquireStream();
  const cache = openCache(driver);
  const kernels = new Kernels({ cache, queryHeads: 1, stream });
  t.notThrows(() => { kernels.captureSteps({ record: () => {}, sizes: [1] }); });
  nativeOf(driver).copy(0n, 0n, 0, stream);
  device.queueWork(0n, []);
  device.completeStream(stream);
  t.is(device.pendingWork, 1);
  device.completeAll();
  kernels.close();
  cache.close();
  driver.releaseStream(stream);
  device.assertNoLeaks();
  device.close();
});

test('a stream that was given back is lent again, ends with the driver, and may be named by a cache until then', (t) => {
  const device = new MockDevice({ granularityBytes: pageBytes });
  const { driver } = device;
  const stream = driver.acquireStream();
  t.not(driver.acquireStream(), stream);
  const cache = openCache(driver);
  const sequence = cache.acquire({ stream });
  const batch = cache.createBatch();
  batch.add(sequence, 3);
  cache.prepare(batch);
  cache.commit(batch, { fence: { stream } });
  driver.releaseStream(stream);
  sequence.release({ fence: { stream } });
  cache.close();
  t.is(driver.acquireStream(), stream);
  driver.releaseStream(stream);
  t.throws(() => { device.assertNoLeaks(); }, { message: /not given back: 1 stream$/ }, 'the other one');
  driver.close();
  t.is(device.leaks().streams, 0);
  t.throws(() => { device.assertNoLeaks(); }, { message: /given back only when the driver was closed: 1 stream$/ });
  device.close();
});

test('a driver whose device refuses to end a stream can be closed again', (t) => {
  const device = new MockDevice();
  const driver = device.openDriver();
  const streams = [driver.acquireStream(), driver.acquireStream()];
  for (const stream of streams) driver.releaseStream(stream);
  device.failCall('cuStreamDestroy', { nth: 2 });
  t.throws(() => { driver.close(); }, { code: 'KV_DRIVER_CALL_FAILED' });
  t.false(driver.isClosed);
  driver.close();
  device.assertNoLeaks();
  device.close();
});

test('a pool that could not close the driver that it opened closes it with the next call', (t) => {
  const pool = new PagePool({ driver: 'host', memoryBudgetBytes: 2 ** 24 });
  const { driver } = pool;
  Object.defineProperty(driver, 'close', { configurable: true, value: () => { throw new Error('refused'); } });
  t.throws(() => { pool.close(); }, { message: 'refused' });
  Reflect.deleteProperty(driver, 'close');
  t.false(driver.isClosed);
  pool.close();
  t.true(driver.isClosed);
});

test('what was not acquired, or was given back, is no stream to give back', (t) => {
  for (const driver of [Driver.open('host'), new MockDevice({ granularityBytes: pageBytes }).driver]) {
    const other = nativeOf(driver).createStream();
    const given = driver.acquireStream();
    driver.releaseStream(given);
    for (const stream of [given, 0n, 2n, other, 12_345n, 1 as never, undefined as never]) {
      refuses(t, () => { driver.releaseStream(stream); }, 'KV_INVALID_OPTION', { option: 'stream', received: stream });
    }
    driver.close();
    t.throws(() => driver.acquireStream(), { code: 'KV_CLOSED' });
    t.throws(() => { driver.releaseStream(given); }, { code: 'KV_CLOSED' });
  }
});

test('streams of a device that is lost are given back, and no others are lent', (t) => {
  const device = new MockDevice({ granularityBytes: pageBytes });
  const stream = device.driver.acquireStream();
  device.loseDevice();
  t.throws(() => device.driver.memory(), { code: 'KV_DRIVER_LOST' });
  t.throws(() => device.driver.acquireStream(), { code: 'KV_DRIVER_LOST' });
  device.driver.releaseStream(stream);
  t.notThrows(() => { device.close(); });
});
