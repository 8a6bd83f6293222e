// What kinds of device there are, and how wrong options are refused.

import test from 'ava';

import { KvCache } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { MockBench, pageBytes, reservedPages } from '../helpers/mock-bench.js';
import { nativeOf } from '../helpers/native-of.js';
import { refuses } from '../helpers/refuses.js';

test('without options the device has 1 GiB and pages of 2 MiB', (t) => {
  const device = new MockDevice();
  t.deepEqual(device.driver.info, {
    kind: 'mock', deviceName: 'mock device', device: 0, driverVersion: 13_000, computeCapability: 90,
    granularityBytes: 2 ** 21, defaultPageBytes: 2 ** 21, mappingLimit: 0, hasStreams: true, hasHostAccess: true,
    hasZeroedPages: false, hasReadableHoles: false, hasMemory: true, kernels: 'cuda',
  });
  t.is(device.driver.memory().totalBytes, 2 ** 30);
  device[Symbol.dispose]();
});

test('the properties of the device can be chosen', (t) => {
  const device = new MockDevice({
    name: 'Imaginary 9000', driverVersion: 12_040, computeCapability: 120, granularityBytes: 65_536, memoryBytes: 2 ** 20,
  });
  t.like(device.driver.info, {
    deviceName: 'Imaginary 9000', driverVersion: 12_040, computeCapability: 120, granularityBytes: 65_536,
    defaultPageBytes: 65_536,
  });
  t.is(device.driver.memory().totalBytes, 2 ** 20);
  device[Symbol.dispose]();
});

test('a device without virtual memory management opens no driver', (t) => {
  const device = new MockDevice({ hasVirtualMemory: false });
  t.throws(() => device.driver, { code: 'KV_DRIVER_UNSUPPORTED' });
  device[Symbol.dispose]();
});

test('pages beyond the memory of the device are refused', (t) => {
  const bench = new MockBench({ memoryBytes: 3 * pageBytes + 1 });
  Array.from({ length: 3 }, () => bench.create());
  t.is(bench.native.queryMemory().freeBytes, 1);
  const error = t.throws(() => bench.create(), { code: 'KV_OUT_OF_DEVICE_MEMORY' });
  t.like(error, { details: { pageBytes, createdPages: 3 } });
  bench.end();
});

test('reservations beyond the address space of the device are refused', (t) => {
  const bench = new MockBench({ addressSpaceBytes: (reservedPages + 4) * pageBytes });
  const error = t.throws(() => bench.native.reserve(5 * pageBytes, pageBytes), { code: 'KV_OUT_OF_ADDRESS_SPACE' });
  t.like(error, { details: { bytes: 5 * pageBytes } });
  bench.native.freeReservation(bench.native.reserve(4 * pageBytes, pageBytes), 4 * pageBytes);
  bench.end();
});

test('a reservation is aligned to its page, also where that is no power of two', (t) => {
  for (const granularityBytes of [4096, 3 * 4096, 2 ** 21]) {
    const device = new MockDevice({ granularityBytes });
    const native = nativeOf(device.driver);
    for (const alignedTo of [granularityBytes, 8 * granularityBytes]) {
      const address = native.reserve(3 * alignedTo, alignedTo);
      t.is(address % BigInt(alignedTo), 0n);
      native.freeReservation(address, 3 * alignedTo);
    }
    device[Symbol.dispose]();
  }
});

test('a new page is zeros, or garbage when the device has it', (t) => {
  const zeros = new MockBench();
  zeros.map(0);
  t.deepEqual(zeros.read(zeros.at(1) - 2n, 2), [0, 0]);
  zeros.end();

  const garbage = new MockBench({ hasGarbage: true });
  const page = garbage.map(0);
  t.deepEqual(garbage.read(garbage.at(1) - 2n, 2), [255, 255]);
  garbage.native.write(garbage.at(0), Uint8Array.of(1));
  garbage.map(1, page);
  t.deepEqual(garbage.read(garbage.at(1), 2), [1, 255], 'only a new page is');
  garbage.end();
});

test('memory is given back to this machine with the page', (t) => {
  const bench = new MockBench();
  const page = bench.map(0);
  bench.native.fill(bench.at(0), 1, pageBytes, 0n);
  t.is(bench.native.queryMemory().residentBytes, pageBytes);
  bench.unmap(0);
  t.is(bench.native.queryMemory().residentBytes, pageBytes, 'it is not released');
  t.is(page, bench.map(0, page));
  t.deepEqual(bench.read(bench.at(0), 1), [1]);
  bench.end();
});

test('without backing the device can be larger than this machine', (t) => {
  const bench = new MockBench({ backing: 'none', memoryBytes: 2 ** 50 });
  const { native } = bench;
  t.like(native.info(), { hasMemory: false, hasHostAccess: false });
  const address = native.reserve(100 * 2 ** 40, pageBytes);
  t.is(address % BigInt(pageBytes), 0n);
  bench.map(0);
  bench.map(1);
  native.fill(bench.at(0), 1, pageBytes, 0n);
  native.copy(bench.at(1), bench.at(0), pageBytes, 0n);
  t.throws(() => native.fill(bench.at(2), 1, 1, 0n), { code: 'KV_COPY_OUT_OF_RANGE' }, 'it is still strict');
  bench.device.clearMisuses();
  const noBytes = { statusName: 'CUDA_ERROR_NOT_SUPPORTED' };
  refuses(t, () => native.write(bench.at(0), Uint8Array.of(1)), 'KV_DRIVER_CALL_FAILED', noBytes);
  refuses(t, () => bench.read(bench.at(0), 1), 'KV_DRIVER_CALL_FAILED', noBytes);
  t.like(native.queryMemory(), { totalBytes: 2 ** 50, residentBytes: 2 * pageBytes, livePages: 2, mappings: 2 });
  native.freeReservation(address, 100 * 2 ** 40);
  bench.end();
});

test('without backing, addresses are not used again', (t) => {
  const bench = new MockBench({ backing: 'none' });
  const seen = new Set([bench.base]);
  for (let round = 0; round < 100; round++) {
    const address = bench.native.reserve(pageBytes, pageBytes);
    t.false(seen.has(address));
    seen.add(address);
    bench.native.freeReservation(address, pageBytes);
  }
  bench.end();
});

test('real backing refuses mappings before this machine runs out of them', (t) => {
  const limit = 15_000;
  const bytes = 4096;
  const device = new MockDevice({ granularityBytes: bytes });
  const native = nativeOf(device.driver);
  const address = native.reserve(2 * (limit + 1) * bytes, bytes);
  const page = native.createPage(bytes, 0n);
  const at = (index: number): bigint => address + BigInt(2 * index * bytes);
  for (let index = 0; index < limit; index++) native.map(at(index), bytes, page);
  const error = t.throws(() => native.map(at(limit), bytes, page), { code: 'KV_DRIVER_CALL_FAILED' });
  t.like(error, { details: { call: 'cuMemMap', statusName: 'CUDA_ERROR_OPERATING_SYSTEM' } });
  for (let index = 0; index < limit; index++) native.unmap(at(index), bytes);
  native.releasePage(page, bytes);
  native.freeReservation(address, 2 * (limit + 1) * bytes);
  device[Symbol.dispose]();
});

test('a closed cache leaves no leak on the device', (t) => {
  const device = new MockDevice();
  const cache = new KvCache({
    driver: device.driver, model: { layers: 2, kvHeads: 2, headDim: 64, dtype: 'float16' }, slots: 4, maxTokens: 4096,
    memoryBudgetBytes: 2 ** 28,
  });
  t.throws(() => device.close(), { code: 'KV_DRIVER_IN_USE' });
  cache.close();
  t.notThrows(() => device[Symbol.dispose]());
});
