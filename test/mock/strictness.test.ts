// What a broken rule looks like from above: the error, and what the device remembers. That every rule is noticed is shown
// in rules.test.ts.

import test from 'ava';

import { MockBench, pageBytes, reservedPages } from '../helpers/mock-bench.js';

const breaches: Readonly<Record<string, (bench: MockBench) => void>> = {
  'reserving half a host page': (bench) => bench.native.reserve(2048, 4096),
  'freeing part of a reservation': ({ native, base }) => native.freeReservation(base, pageBytes),
  'freeing a reservation with a page mapped in it': (bench) => {
    bench.map(0);
    bench.native.freeReservation(bench.base, reservedPages * pageBytes);
  },
  'creating half a page': ({ native }) => native.createPage(pageBytes / 2, 0n),
  'releasing a page that was never created': ({ native }) => native.releasePage(42n, pageBytes),
  'mapping a page that was never created': (bench) => bench.native.map(bench.at(0), pageBytes, 42n),
  'mapping over a page': (bench) => bench.native.map(bench.at(0), pageBytes, bench.map(0)),
  'mapping outside a reservation': (bench) => bench.native.map(bench.at(reservedPages), pageBytes, bench.create()),
  'mapping a page in part': (bench) => bench.native.map(bench.at(0), 2 * pageBytes, bench.create()),
  'giving access to a hole': (bench) => bench.native.setAccess(bench.at(0), pageBytes),
  'unmapping a hole': (bench) => bench.native.unmap(bench.at(0), pageBytes),
  'unmapping across a hole': (bench) => {
    bench.map(0);
    bench.map(2);
    bench.native.unmap(bench.at(0), 3 * pageBytes);
  },
  'waiting for a stream that was never created': ({ native }) => native.synchronizeStream(42n),
  'asking an event that was never recorded': ({ native }) => native.queryEvent(42n),
};

for (const [title, commit] of Object.entries(breaches)) {
  test(`${title} is a misuse, and is remembered`, (t) => {
    const bench = new MockBench();
    t.throws(() => commit(bench), { code: 'KV_DRIVER_MISUSE' });
    const [misuse, ...others] = bench.device.misuses();
    t.deepEqual(others, []);
    const last = bench.device.journal().filter(({ result }) => result !== 0).at(-1)!;
    t.like(misuse, { step: last.step, call: last.call, address: last.address, bytes: last.bytes, handle: last.handle });
    t.throws(() => bench.device.assertNoLeaks(), { message: new RegExp(`step ${misuse!.step}, ${misuse!.call}: `) });
    bench.device.clearMisuses();
    t.deepEqual(bench.device.misuses(), []);
  });
}

test('a second unmap says which call was the first', (t) => {
  const bench = new MockBench();
  bench.map(1);
  bench.unmap(1);
  const first = bench.device.journal().findLast(({ call }) => call === 'cuMemUnmap')!;
  t.throws(() => bench.native.unmap(bench.at(1), pageBytes), { code: 'KV_DRIVER_MISUSE' });
  t.is(bench.device.misuses()[0]!.earlierStep, first.step);
  bench.device.clearMisuses();
  bench.end();
});

test('a second release says which call was the first', (t) => {
  const bench = new MockBench();
  const page = bench.native.createPage(pageBytes, 0n);
  bench.native.releasePage(page, pageBytes);
  const first = bench.device.journal().findLast(({ call }) => call === 'cuMemRelease')!;
  t.throws(() => bench.native.releasePage(page, pageBytes), { code: 'KV_DRIVER_MISUSE' });
  t.is(bench.device.misuses()[0]!.earlierStep, first.step);
  bench.device.clearMisuses();
  bench.end();
});

test('bytes without access are out of range, and a misuse', (t) => {
  const bench = new MockBench();
  bench.map(0);
  const end = bench.at(1);
  for (const call of [
    () => bench.native.write(end - 1n, Uint8Array.of(1, 2)),
    () => bench.native.read(new Uint8Array(2), end - 1n),
    () => bench.native.fill(end - 1n, 0, 2, 0n),
    () => bench.native.copy(bench.at(0), end - 1n, 2, 0n),
    () => bench.native.copy(end - 1n, bench.at(0), 2, 0n),
  ]) {
    t.throws(call, { code: 'KV_COPY_OUT_OF_RANGE' });
  }
  t.is(bench.device.misuses().length, 5);
  bench.device.clearMisuses();
  bench.end();
});

test('a mapped page has no access until it is given, and none after an unmap', (t) => {
  const bench = new MockBench();
  const page = bench.create();
  bench.native.map(bench.at(0), pageBytes, page);
  t.throws(() => bench.read(bench.at(0), 1), { code: 'KV_COPY_OUT_OF_RANGE' });
  bench.native.setAccess(bench.at(0), pageBytes);
  bench.native.write(bench.at(0), Uint8Array.of(5));
  bench.native.unmap(bench.at(0), pageBytes);
  bench.native.map(bench.at(0), pageBytes, page);
  t.throws(() => bench.read(bench.at(0), 1), { code: 'KV_COPY_OUT_OF_RANGE' });
  bench.native.setAccess(bench.at(0), pageBytes);
  t.deepEqual(bench.read(bench.at(0), 1), [5], 'the bytes stayed');
  bench.native.unmap(bench.at(0), pageBytes);
  bench.device.clearMisuses();
  bench.end();
});

test('a copy between two addresses of one page is refused', (t) => {
  const bench = new MockBench();
  bench.map(1, bench.map(0));
  t.throws(() => bench.native.copy(bench.at(1) + 8n, bench.at(0), 16, 0n), { code: 'KV_COPY_OUT_OF_RANGE' });
  bench.native.copy(bench.at(1) + 16n, bench.at(0), 16, 0n);
  t.is(bench.device.misuses().length, 1);
  bench.device.clearMisuses();
  bench.end();
});

test('a released page keeps its memory until it is unmapped everywhere', (t) => {
  const bench = new MockBench();
  const { native, device } = bench;
  const page = native.createPage(pageBytes, 0n);
  native.map(bench.at(0), pageBytes, page);
  native.map(bench.at(1), pageBytes, page);
  native.setAccess(bench.at(0), 2 * pageBytes);
  native.write(bench.at(0), Uint8Array.of(9));
  native.releasePage(page, pageBytes);
  t.throws(() => native.map(bench.at(2), pageBytes, page), { code: 'KV_DRIVER_MISUSE' });
  t.like(device.leaks(), { pages: 0, mappings: 2, pageBytes });
  native.unmap(bench.at(0), pageBytes);
  t.deepEqual(bench.read(bench.at(1), 1), [9]);
  t.is(device.leaks().pageBytes, pageBytes);
  native.unmap(bench.at(1), pageBytes);
  t.is(device.leaks().pageBytes, 0);
  t.is(native.queryMemory().residentBytes, 0);
  device.clearMisuses();
  bench.end();
});
