// Streams whose work is done when the test says so: what is visible before, what events say, and what must not happen to
// memory that queued work uses.

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { HostPages } from '../helpers/host-pages.js';
import { MockBench, pageBytes } from '../helpers/mock-bench.js';
import { seedOf } from '../helpers/seed.js';

const manual = { streams: 'manual' } as const;
const seed = seedOf('mock streams');

test('queued work is done when its stream is completed, in order', (t) => {
  const bench = new MockBench(manual);
  bench.map(0);
  bench.map(1);
  const stream = bench.native.createStream();
  bench.native.fill(bench.at(0), 1, 8, stream);
  bench.native.copy(bench.at(1), bench.at(0), 8, stream);
  bench.native.fill(bench.at(0), 2, 8, stream);
  t.is(bench.device.pendingWork, 3);
  t.deepEqual(bench.read(bench.at(1), 1), [0]);
  bench.device.completeStream(stream);
  t.is(bench.device.pendingWork, 0);
  t.deepEqual([...bench.read(bench.at(0), 1), ...bench.read(bench.at(1), 1)], [2, 1]);
  bench.native.destroyStream(stream);
  bench.end();
});

test('an upload takes its bytes from registered memory when its stream comes to it, from other memory at once', (t) => {
  const bench = new MockBench(manual);
  bench.map(0);
  const stream = bench.native.createStream();
  const host = new HostPages();
  host.write(0, [1, 2]);
  bench.native.upload(bench.at(0), host.address, 2, stream);
  bench.native.registerHost(host.address, HostPages.bytes);
  bench.native.upload(bench.at(0) + 2n, host.address, 2, stream);
  host.write(0, [8, 9]);
  bench.device.completeStream(stream);
  t.deepEqual([...bench.read(bench.at(0), 4)], [1, 2, 8, 9]);
  bench.native.unregisterHost(host.address);
  bench.native.destroyStream(stream);
  host.close();
  bench.end();
});

test('an event is done with the work before it, whatever comes after', (t) => {
  const bench = new MockBench(manual);
  bench.map(0);
  const { native, device } = bench;
  const stream = native.createStream();
  const before = native.recordEvent(stream);
  native.fill(bench.at(0), 1, 8, stream);
  const between = native.recordEvent(stream);
  t.true(native.queryEvent(before), 'nothing was queued yet');
  t.false(native.queryEvent(between));
  device.completeStream(stream);
  t.true(native.queryEvent(between));
  native.fill(bench.at(0), 2, 8, stream);
  t.true(native.queryEvent(between));
  device.completeAll();
  [before, between].forEach((event) => native.destroyEvent(event));
  native.destroyStream(stream);
  bench.end();
});

test('streams do not wait for each other', (t) => {
  const bench = new MockBench(manual);
  bench.map(0);
  const { native, device } = bench;
  const streams = [native.createStream(), native.createStream(), 0n];
  const events = streams.map((stream, index) => {
    native.fill(bench.at(0) + BigInt(index), index + 1, 1, stream);
    return native.recordEvent(stream);
  });
  device.completeStream(streams[1]!);
  t.deepEqual(events.map((event) => native.queryEvent(event)), [false, true, false]);
  device.completeAll();
  t.deepEqual(bench.read(bench.at(0), 3), [1, 2, 3]);
  events.forEach((event) => native.destroyEvent(event));
  streams.slice(0, 2).forEach((stream) => native.destroyStream(stream));
  bench.end();
});

test('a stream that waits for an event does nothing behind it before, and completing it completes what it waits for', (t) => {
  const bench = new MockBench(manual);
  bench.map(0);
  const { native, device } = bench;
  const [first, second] = [native.createStream(), native.createStream()];
  native.fill(bench.at(0), 1, 1, first);
  const event = native.recordEvent(first);
  native.waitEvent(second, event);
  native.fill(bench.at(0), 2, 1, second);
  native.fill(bench.at(0) + 1n, 3, 1, first);
  device.completeStream(second);
  t.true(native.queryEvent(event));
  t.deepEqual(bench.read(bench.at(0), 2), [2, 0], 'what came after the event is still queued');
  native.destroyEvent(event);
  for (const stream of [first, second]) native.destroyStream(stream);
  device.completeAll();
  t.deepEqual(bench.read(bench.at(0), 2), [2, 3]);
  bench.end();
});

test('waiting for a stream does its work', (t) => {
  const bench = new MockBench(manual);
  bench.map(0);
  const stream = bench.native.createStream();
  bench.native.fill(bench.at(0), 3, 1, stream);
  const event = bench.native.recordEvent(stream);
  bench.native.synchronizeStream(stream);
  t.true(bench.native.queryEvent(event));
  t.deepEqual(bench.read(bench.at(0), 1), [3]);
  bench.native.destroyEvent(event);
  bench.native.destroyStream(stream);
  bench.end();
});

test('a destroyed stream still does its work', (t) => {
  const bench = new MockBench(manual);
  bench.map(0);
  const stream = bench.native.createStream();
  bench.native.fill(bench.at(0), 3, 1, stream);
  const event = bench.native.recordEvent(stream);
  bench.native.destroyStream(stream);
  t.false(bench.native.queryEvent(event));
  t.throws(() => bench.device.completeStream(stream), { code: 'KV_INVALID_OPTION' });
  bench.device.completeAll();
  t.true(bench.native.queryEvent(event));
  t.deepEqual(bench.read(bench.at(0), 1), [3]);
  bench.native.destroyEvent(event);
  bench.end();
});

/** The default stream of the thread: a stream of its own that is ordered with the default stream. */
const blocking = 2n;

test('the default stream comes after what blocking streams held, and they after what it held', (t) => {
  const bench = new MockBench(manual);
  bench.map(0);
  const { native, device } = bench;
  const [first, other] = [bench.at(0), bench.at(0) + 1n];
  native.fill(first, 1, 1, blocking);
  native.fill(first, 2, 1, 0n);
  const event = native.recordEvent(0n);
  native.fill(first, 3, 1, blocking);
  native.fill(other, 4, 1, 0n);
  native.synchronizeEvent(event);
  t.is(device.pendingWork, 2, 'only what came before it');
  native.fill(other, 5, 1, blocking);
  device.completeStream(blocking);
  t.is(device.pendingWork, 0, 'its last work comes after the default stream\'s');
  t.deepEqual(bench.read(first, 2), [3, 5]);
  native.destroyEvent(event);
  bench.end();
});

test('an event of the default stream is done with what blocking streams held, and theirs with what it held', (t) => {
  const bench = new MockBench(manual);
  bench.map(0);
  const { native, device } = bench;
  native.fill(bench.at(0), 1, 1, blocking);
  const behindBlocking = native.recordEvent(0n);
  t.false(native.queryEvent(behindBlocking));
  device.completeStream(blocking);
  t.true(native.queryEvent(behindBlocking));
  native.fill(bench.at(0), 2, 1, 0n);
  const behindDefault = native.recordEvent(blocking);
  t.false(native.queryEvent(behindDefault));
  native.synchronizeEvent(behindDefault);
  t.deepEqual(bench.read(bench.at(0), 1), [2]);
  for (const event of [behindBlocking, behindDefault]) native.destroyEvent(event);
  bench.end();
});

test('the default stream waits for no stream that does not block, and none of these for it', (t) => {
  const bench = new MockBench(manual);
  bench.map(0);
  const { native, device } = bench;
  const stream = native.createStream();
  native.fill(bench.at(0), 1, 1, stream);
  native.fill(bench.at(0) + 1n, 2, 1, 0n);
  native.fill(bench.at(0) + 2n, 3, 1, stream);
  device.completeStream(0n);
  t.is(device.pendingWork, 2);
  t.deepEqual(bench.read(bench.at(0), 3), [0, 2, 0]);
  native.fill(bench.at(0), 4, 1, 0n);
  device.completeStream(stream);
  t.is(device.pendingWork, 1);
  native.destroyStream(stream);
  device.completeAll();
  bench.end();
});

test(`the order by the default stream is that of queueing, whatever is completed first (seed ${seed})`, (t) => {
  const random = new Random(seed);
  for (let round = 0; round < 50; round += 1) {
    const bench = new MockBench(manual);
    bench.map(0);
    const { native, device } = bench;
    const own = native.createStream();
    const streams = [0n, blocking, 1n, own];
    let [last, lastOfOwn] = [0, 0];
    for (let value = 1; value <= 40; value += 1) {
      const stream = streams[random.integer(4)]!;
      // Ordered work writes one byte, and the stream that does not block another.
      native.fill(bench.at(0) + (stream === own ? 1n : 0n), value, 1, stream);
      if (stream === own) lastOfOwn = value;
      else last = value;
      if (random.chance(0.1)) device.completeStream(streams[random.integer(4)]!);
    }
    device.completeStream(own);
    for (const stream of random.chance(0.5) ? [0n, blocking] : [blocking, 0n]) native.synchronizeStream(stream);
    t.deepEqual(bench.read(bench.at(0), 2), [last, lastOfOwn], `round ${round}`);
    t.is(device.pendingWork, 0);
    native.destroyStream(own);
    bench.end();
  }
});

test('reads and writes come after what the driver queued on the default stream, and after nothing else', (t) => {
  const bench = new MockBench(manual);
  bench.map(0);
  bench.map(1);
  const stream = bench.native.createStream();
  bench.native.fill(bench.at(1), 7, 1, stream);
  t.deepEqual(bench.read(bench.at(1), 1), [0]);
  bench.native.destroyStream(stream);
  bench.device.completeAll();
  bench.native.fill(bench.at(0), 3, 4, 0n);
  t.deepEqual(bench.read(bench.at(0), 1), [3]);
  bench.native.fill(bench.at(0), 4, 4, 0n);
  bench.native.write(bench.at(0), Uint8Array.of(5));
  t.deepEqual(bench.read(bench.at(0), 2), [5, 4]);
  bench.end();
});

test('work is done at once in immediate mode', (t) => {
  const bench = new MockBench();
  bench.map(0);
  const stream = bench.native.createStream();
  bench.native.fill(bench.at(0), 3, 1, stream);
  t.is(bench.device.pendingWork, 0);
  t.deepEqual(bench.read(bench.at(0), 1), [3]);
  bench.native.destroyStream(stream);
  bench.end();
});

test('memory that queued work uses must not be unmapped: the device is lost', (t) => {
  for (const queue of [
    (bench: MockBench) => bench.native.fill(bench.at(1), 1, 8, 0n),
    (bench: MockBench) => bench.native.copy(bench.at(0), bench.at(1), 8, 0n),
    (bench: MockBench) => bench.device.queueWork(0n, [{ address: bench.at(1), bytes: 1, access: 'read' }]),
  ]) {
    const bench = new MockBench(manual);
    bench.map(0);
    bench.map(1);
    queue(bench);
    const error = t.throws(() => bench.native.unmap(bench.at(0), 2 * pageBytes), { code: 'KV_DRIVER_LOST' });
    t.like(error, { details: { call: 'cuMemUnmap', statusName: 'CUDA_ERROR_ILLEGAL_ADDRESS' } });
    t.regex(bench.device.misuses()[0]!.rule, /queued work/);
    t.throws(() => bench.device[Symbol.dispose](), { message: /queued work/ });
  }
});

test('memory can be unmapped when the work is done, and its neighbours at any time', (t) => {
  const bench = new MockBench(manual);
  [0, 1, 2].forEach((page) => bench.map(page));
  bench.device.queueWork(0n, [{ address: bench.at(1), bytes: pageBytes, access: 'write' }]);
  t.notThrows(() => bench.unmap(0));
  t.notThrows(() => bench.unmap(2));
  bench.device.completeAll();
  t.notThrows(() => bench.unmap(1));
  bench.end();
});

test('a kernel that uses unmapped memory loses the device when it runs', (t) => {
  const bench = new MockBench(manual);
  bench.device.queueWork(0n, [{ address: bench.at(0), bytes: 8, access: 'read' }]);
  t.notThrows(() => bench.create(), 'it has not run yet');
  t.throws(() => bench.native.synchronizeStream(0n), { code: 'KV_DRIVER_LOST' });
  t.like(bench.device.misuses()[0], { call: 'cuLaunchKernel', address: bench.at(0), bytes: 8 });
  bench.device.close();
});

test('a kernel may use memory that is mapped before it runs', (t) => {
  const bench = new MockBench(manual);
  bench.device.queueWork(0n, [{ address: bench.at(0), bytes: 8, access: 'write' }]);
  bench.map(0);
  bench.device.completeAll();
  t.deepEqual(bench.device.misuses(), []);
  bench.end();
});

test('a kernel must not write a page at one address and use it at another', (t) => {
  const bench = new MockBench();
  bench.map(1, bench.map(0));
  const use = (page: number, access: 'read' | 'write', offset = 0) =>
    ({ address: bench.at(page) + BigInt(offset), bytes: 8, access });
  bench.device.queueWork(0n, [use(0, 'read'), use(1, 'read')]);
  bench.device.queueWork(0n, [use(0, 'write'), use(1, 'read', 8)]);
  bench.device.queueWork(0n, [use(0, 'write'), use(0, 'read', 4)]);
  t.deepEqual(bench.device.misuses(), []);
  bench.device.queueWork(0n, [use(1, 'read', 4), use(0, 'write')]);
  t.is(bench.device.misuses().length, 1);
  t.false(bench.device.leaks().isLost, 'a real device would compute nonsense, not fail');
  bench.device.clearMisuses();
  bench.end();
});

test('closing a driver waits for the work it left', (t) => {
  const bench = new MockBench(manual);
  bench.map(0);
  bench.native.fill(bench.at(0), 1, 8, 0n);
  bench.device.driver.close();
  t.deepEqual(bench.device.misuses(), []);
  t.is(bench.device.pendingWork, 0);
  bench.device.close();
});
