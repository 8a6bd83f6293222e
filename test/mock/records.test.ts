// What the device records: the journal, the counts, the leaks.

import test from 'ava';

import { MockDevice, mockCalls } from 'virtual-kv/testing';

import { MockBench, pageBytes, reservedPages } from '../helpers/mock-bench.js';
import { nativeOf } from '../helpers/native-of.js';

test('the journal has every call in order, with its arguments and its result', (t) => {
  const bench = new MockBench();
  bench.device.clearJournal();
  const page = bench.map(2);
  bench.native.write(bench.at(2), Uint8Array.of(1, 2));
  bench.native.copy(bench.at(2) + 8n, bench.at(2), 2, 0n);
  const journal = bench.device.journal();
  const scope = ['cuCtxPushCurrent', 'cuThreadExchangeStreamCaptureMode', 'cuCtxPopCurrent'];
  const work = journal.filter(({ call }) => !scope.includes(call));
  const own = work.find(({ call }) => call === 'cuMemcpyHtoDAsync')!.stream;
  t.not(own, 0n);
  const about = { step: 0, address: bench.at(2), from: 0n, handle: 0n, stream: 0n, result: 0, resultName: 'CUDA_SUCCESS' };
  t.deepEqual(work.map((entry) => ({ ...entry, step: 0 })), [
    { ...about, call: 'cuMemCreate', address: 0n, bytes: pageBytes, handle: page },
    { ...about, call: 'cuMemMap', bytes: pageBytes, handle: page },
    { ...about, call: 'cuMemSetAccess', bytes: pageBytes },
    { ...about, call: 'cuMemcpyHtoDAsync', bytes: 2, stream: own },
    { ...about, call: 'cuStreamSynchronize', address: 0n, bytes: 0, handle: own },
    { ...about, call: 'cuMemcpyDtoDAsync', address: bench.at(2) + 8n, from: bench.at(2), bytes: 2 },
  ]);
  const first = journal[0]!.step;
  t.deepEqual(journal.map(({ step }) => step), journal.map((_, index) => first + index));
  bench.end();
});

test('the journal keeps the latest calls', (t) => {
  const device = new MockDevice({ journalEntries: 3 });
  device.driver.memory();
  const journal = device.journal();
  t.is(journal.length, 3);
  t.is(journal.at(-1)!.call, 'cuCtxPopCurrent');
  device[Symbol.dispose]();
});

test('calls are counted by kind, failed ones too', (t) => {
  const bench = new MockBench();
  bench.device.resetCallCounts();
  bench.map(0);
  bench.map(1);
  bench.device.failCall('cuMemMap');
  t.throws(() => bench.map(2));
  t.like(bench.device.callCounts(), { cuMemMap: 3, cuMemSetAccess: 2, cuMemCreate: 3, cuMemUnmap: 0 });
  bench.end();
});

test('the kinds of calls are those of the native side', (t) => {
  const device = new MockDevice();
  t.deepEqual(Object.keys(device.callCounts()), [...mockCalls]);
  device.close();
});

test('leaks are the objects that were not given back', (t) => {
  const bench = new MockBench();
  bench.map(0);
  bench.map(1);
  const stream = bench.native.createStream();
  const event = bench.native.recordEvent(stream);
  t.deepEqual(bench.device.leaks(), {
    reservations: 1, mappings: 2, pages: 2, streams: 2, events: 1, registrations: 0, pageBytes: 2 * pageBytes, // one stream is the driver's own
    modules: 0, graphs: 0, retainedContexts: 1, pushedContexts: 0, isLost: false,
    leftByDrivers: { reservations: 0, mappings: 0, pages: 0, streams: 0, events: 0, registrations: 0 },
  });
  t.throws(() => bench.device.assertNoLeaks(), {
    message: /: 1 reservation, 2 mappings, 2 pages, 1 stream, 1 event, 128 KiB/,
  });
  bench.native.destroyEvent(event);
  bench.native.destroyStream(stream);
  bench.end();
});

test('what a driver had not given back when it was closed is given back, and stays a leak', (t) => {
  const bench = new MockBench();
  bench.map(0);
  bench.map(1, bench.map(2));
  bench.native.recordEvent(bench.native.createStream());
  bench.device.driver.close();
  t.like(bench.device.leaks(), {
    reservations: 0, mappings: 0, pages: 0, pageBytes: 0, streams: 0, events: 0, retainedContexts: 0, pushedContexts: 0,
    leftByDrivers: { reservations: 1, mappings: 3, pages: 2, streams: 1, events: 1, registrations: 0 },
  });
  t.deepEqual(bench.device.misuses(), []);
  t.throws(() => bench.device[Symbol.dispose](), {
    message: /closed: 1 reservation, 3 mappings, 2 pages, 1 stream, 1 event$/,
  });
});

test('an open driver of the device itself is no leak, another one is', (t) => {
  const device = new MockDevice();
  t.is(device.driver.kind, 'mock');
  t.notThrows(() => device.assertNoLeaks());
  const other = device.openDriver();
  t.throws(() => device.assertNoLeaks(), { message: /1 retained context/ });
  other.close();
  device[Symbol.dispose]();
});

test('drivers over one device share its memory and keep their own accounts', (t) => {
  const bench = new MockBench();
  const other = bench.device.openDriver();
  bench.map(0);
  t.is(other.memory().freeBytes, 63 * pageBytes);
  t.like(other.memory(), { livePages: 0, liveReservations: 0, mappings: 0 });
  t.like(bench.native.queryMemory(), { livePages: 1, liveReservations: 1, mappings: 1 });
  other.close();
  bench.end();
});

test('a device outlives its close under drivers that are still open', (t) => {
  const device = new MockDevice({ granularityBytes: pageBytes });
  const driver = device.openDriver();
  device.close();
  const native = nativeOf(driver);
  const address = native.reserve(reservedPages * pageBytes, pageBytes);
  native.freeReservation(address, reservedPages * pageBytes);
  t.notThrows(() => driver.close());
});

test('a closed device can be closed again, and nothing else', (t) => {
  const device = new MockDevice();
  device.close();
  t.notThrows(() => device.close());
  t.notThrows(() => device[Symbol.dispose]());
  t.throws(() => device.leaks(), { code: 'KV_CLOSED' });
  t.throws(() => device.openDriver(), { code: 'KV_CLOSED' });
});
