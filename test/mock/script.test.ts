// Scripts: calls that fail, calls that take time, a device that is lost.

import test from 'ava';

import { MockDevice } from 'virtual-kv/testing';

import { MockBench, pageBytes, reservedPages } from '../helpers/mock-bench.js';
import { nativeOf } from '../helpers/native-of.js';

test('the nth call from now on fails, and only that', (t) => {
  const bench = new MockBench();
  bench.create();
  bench.device.failCall('cuMemCreate', { nth: 2, result: 'CUDA_ERROR_OUT_OF_MEMORY' });
  bench.create();
  const error = t.throws(() => bench.create(), { code: 'KV_OUT_OF_DEVICE_MEMORY' });
  t.like(error, { details: { pageBytes, createdPages: 2 } });
  bench.create();
  bench.end();
});

test('the error of a page that cannot be created despite free memory has its bytes and no address', (t) => {
  const bench = new MockBench();
  bench.device.failCall('cuMemCreate', { result: 'CUDA_ERROR_NOT_PERMITTED' });
  const error = t.throws(() => bench.create(), { code: 'KV_DRIVER_CALL_FAILED' });
  t.like(error, { details: { address: 0, bytes: pageBytes } });
  t.notRegex(error!.message, /0x/);
  bench.end();
});

test('several calls in a row can fail, and scripts add up', (t) => {
  const bench = new MockBench();
  bench.device.failCall('cuMemCreate', { nth: 2, times: 2 });
  bench.device.failCall('cuMemCreate', { nth: 5 });
  const succeeds = (): boolean => {
    try {
      bench.create();
      return true;
    } catch {
      return false;
    }
  };
  t.deepEqual(Array.from({ length: 6 }, succeeds), [true, false, false, true, false, true]);
  bench.end();
});

test('a call that fails by script does nothing and is in the journal', (t) => {
  const bench = new MockBench();
  bench.map(0);
  const before = bench.device.leaks();
  bench.device.failCall('cuMemUnmap');
  const error = t.throws(() => bench.unmap(0), { code: 'KV_DRIVER_CALL_FAILED' });
  t.like(error, { details: { call: 'cuMemUnmap', status: 999, statusName: 'CUDA_ERROR_UNKNOWN' } });
  t.deepEqual(bench.device.leaks(), before);
  const entry = bench.device.journal().findLast(({ call }) => call === 'cuMemUnmap');
  t.like(entry, { result: 999, resultName: 'CUDA_ERROR_UNKNOWN', address: bench.at(0), bytes: pageBytes });
  bench.end();
});

test('failures that are still to come can be taken back', (t) => {
  const bench = new MockBench();
  bench.device.failCall('cuMemCreate', { times: 100 });
  t.throws(() => bench.create());
  bench.device.clearFailures();
  t.notThrows(() => bench.create());
  bench.end();
});

test('a result may be given by number, also one that CUDA does not know', (t) => {
  const bench = new MockBench();
  bench.device.failCall('cuMemCreate', { result: 2 });
  t.throws(() => bench.create(), { code: 'KV_OUT_OF_DEVICE_MEMORY' });
  bench.device.failCall('cuMemCreate', { result: 31_415 });
  const error = t.throws(() => bench.create(), { code: 'KV_DRIVER_CALL_FAILED' });
  t.like(error, { details: { status: 31_415, statusName: '' } });
  bench.end();
});

test('setting access is tried again while the device is not ready, and not for ever', (t) => {
  const bench = new MockBench();
  const page = bench.create();
  bench.native.map(bench.at(0), pageBytes, page);
  bench.device.failCall('cuMemSetAccess', { result: 'CUDA_ERROR_NOT_READY', times: 3 });
  bench.device.resetCallCounts();
  bench.native.setAccess(bench.at(0), pageBytes);
  t.like(bench.device.callCounts(), { cuMemSetAccess: 4, cuCtxSynchronize: 3 });
  bench.device.failCall('cuMemSetAccess', { result: 'CUDA_ERROR_NOT_READY', times: 1e9 });
  const error = t.throws(() => bench.native.setAccess(bench.at(0), pageBytes), { code: 'KV_DRIVER_CALL_FAILED' });
  t.like(error, { details: { call: 'cuMemSetAccess', statusName: 'CUDA_ERROR_NOT_READY' } });
  bench.native.unmap(bench.at(0), pageBytes);
  bench.end();
});

test('each call of a kind takes at least its latency', (t) => {
  const bench = new MockBench();
  bench.device.setLatencyNs('cuMemCreate', 3e6);
  const beginMs = performance.now();
  bench.create();
  bench.create();
  t.true(performance.now() - beginMs >= 6);
  bench.device.setLatencyNs('cuMemCreate', 0);
  bench.end();
});

for (const [title, call, result] of [
  ['an illegal address', 'cuMemMap', 'CUDA_ERROR_ILLEGAL_ADDRESS'],
  ['a failed launch', 'cuMemcpyHtoDAsync', 'CUDA_ERROR_LAUNCH_FAILED'],
  ['an uncorrectable memory error', 'cuMemSetAccess', 'CUDA_ERROR_ECC_UNCORRECTABLE'],
  ['a driver that was deinitialized', 'cuMemMap', 'CUDA_ERROR_DEINITIALIZED'],
  ['a destroyed context', 'cuMemMap', 'CUDA_ERROR_CONTEXT_IS_DESTROYED'],
] as const) {
  test(`after ${title} the driver is lost, and asks the device nothing more`, (t) => {
    const bench = new MockBench();
    bench.device.failCall(call, { result });
    const error = t.throws(() => {
      bench.map(0);
      bench.native.write(bench.at(0), Uint8Array.of(1));
    }, { code: 'KV_DRIVER_LOST' });
    t.like(error, { details: { call, statusName: result } });
    t.true(bench.device.driver.isLost);
    bench.device.resetCallCounts();
    const later = t.throws(() => bench.native.reserve(pageBytes, pageBytes), { code: 'KV_DRIVER_LOST' });
    t.like(later, { details: { call, statusName: result } }, 'the first failure, not the last');
    t.throws(() => bench.native.freeReservation(bench.base, reservedPages * pageBytes), { code: 'KV_DRIVER_LOST' });
    t.throws(() => bench.device.driver.memory(), { code: 'KV_DRIVER_LOST' });
    t.is(sum(bench.device.callCounts()), 0);
    bench.device.driver.close();
    t.is(sum(bench.device.callCounts()), 0);
    bench.device.close();
  });
}

test('with the context gone, giving back succeeds, because nothing is left', (t) => {
  const bench = new MockBench();
  bench.map(0);
  bench.device.failCall('cuMemUnmap', { result: 'CUDA_ERROR_CONTEXT_IS_DESTROYED' });
  t.notThrows(() => bench.unmap(0));
  t.true(bench.device.driver.isLost);
  t.throws(() => bench.native.reserve(pageBytes, pageBytes), { code: 'KV_DRIVER_LOST' });
  bench.device.close();
});

test('a lost device answers every call with its error, and leaks nothing', (t) => {
  const bench = new MockBench();
  bench.map(0);
  bench.device.loseDevice();
  const error = t.throws(() => bench.create(), { code: 'KV_DRIVER_LOST' });
  t.like(error, { details: { call: 'cuMemCreate', statusName: 'CUDA_ERROR_ILLEGAL_ADDRESS' } });
  t.true(bench.device.leaks().isLost);
  t.notThrows(() => bench.device[Symbol.dispose]());
});

test('a failure that ends a device also ends this one', (t) => {
  const bench = new MockBench();
  const other = bench.device.openDriver();
  bench.device.failCall('cuMemCreate', { result: 'CUDA_ERROR_LAUNCH_FAILED' });
  t.throws(() => bench.create(), { code: 'KV_DRIVER_LOST' });
  t.false(other.isLost, 'it has not asked yet');
  t.throws(() => other.memory(), { code: 'KV_DRIVER_LOST' });
  t.true(other.isLost);
  other.close();
  bench.device.close();
});

for (const [call, result, code, details] of [
  ['cuInit', 'CUDA_ERROR_NO_DEVICE', 'KV_DRIVER_UNAVAILABLE', { reason: 'no-device' }],
  ['cuInit', 'CUDA_ERROR_STUB_LIBRARY', 'KV_DRIVER_UNAVAILABLE', { reason: 'stub-library' }],
  ['cuInit', 'CUDA_ERROR_SYSTEM_DRIVER_MISMATCH', 'KV_DRIVER_UNAVAILABLE', { reason: 'init-failed' }],
  ['cuDevicePrimaryCtxRetain', 'CUDA_ERROR_DEVICE_UNAVAILABLE', 'KV_DRIVER_UNAVAILABLE', { reason: 'init-failed' }],
  ['cuDeviceGetAttribute', 'CUDA_ERROR_INVALID_VALUE', 'KV_DRIVER_UNSUPPORTED', { device: 0 }],
  ['cuDeviceGetName', 'CUDA_ERROR_UNKNOWN', 'KV_DRIVER_CALL_FAILED', { call: 'cuDeviceGetName' }],
  ['cuCtxPushCurrent', 'CUDA_ERROR_OUT_OF_MEMORY', 'KV_DRIVER_CALL_FAILED', { call: 'cuCtxPushCurrent' }],
  ['cuMemGetAllocationGranularity', 'CUDA_ERROR_UNKNOWN', 'KV_DRIVER_CALL_FAILED', { status: 999 }],
] as const) {
  test(`opening fails with ${result} from ${call}, and keeps nothing`, (t) => {
    const device = new MockDevice();
    device.failCall(call, { result });
    t.like(t.throws(() => device.openDriver(), { code }), { details });
    if (!device.leaks().isLost) t.notThrows(() => device.assertNoLeaks());
    device.close();
  });
}

test('a driver opens once the failure is withdrawn', (t) => {
  const device = new MockDevice();
  device.failCall('cuDevicePrimaryCtxRetain', { result: 'CUDA_ERROR_OUT_OF_MEMORY' });
  t.throws(() => device.driver, { code: 'KV_DRIVER_UNAVAILABLE' });
  t.is(nativeOf(device.driver).info().kind, 'mock');
  device[Symbol.dispose]();
});

function sum(counts: Readonly<Record<string, number>>): number {
  return Object.values(counts).reduce((total, count) => total + count, 0);
}
