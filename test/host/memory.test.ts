// Where the host driver's memory is and is not: nothing behind reservations, pages that come and go, and the budget.
// Alone in its process: it counts the memory of the process.

import { readFileSync } from 'node:fs';
import { constants, totalmem } from 'node:os';

import test from 'ava';

import { withBench } from '../helpers/driver-bench.js';
import { hostDriver, openHost } from '../helpers/drivers.js';
import { kernelMappings, pageFileBytes, peek } from '../helpers/process-memory.js';
import { slow } from '../runner/slow.js';

const { EINTR, ENOSPC } = constants.errno;

const residentOfProcess = (): number => Number(readFileSync('/proc/self/statm', 'utf8').split(' ')[1]) * 4096;

// The tests of this file run one after another: they look at the whole process.

test.serial('memory is taken at the first touch and given back with the page', (t) => {
  const before = pageFileBytes();
  withBench(t, hostDriver, (bench) => {
    const held = (): number => pageFileBytes() - before;
    const address = bench.reserve(8);
    const pages = bench.fillRun(address, 4);
    t.is(held(), 0, 'mapped, and never touched');
    bench.native.fill(address, 1, 4 * bench.pageBytes, 0n);
    t.is(held(), 4 * bench.pageBytes);
    t.is(bench.counts().residentBytes, held());
    bench.unmap(address, 4);
    t.is(held(), 4 * bench.pageBytes, 'unmapped, and not released');
    pages.forEach((page) => bench.release(page));
    t.is(held(), 0);
  });
});

test.serial('a page mapped many times is held once', (t) => {
  withBench(t, hostDriver, (bench) => {
    const address = bench.reserve(16);
    const page = bench.create(address);
    for (let index = 0; index < 16; ++index) bench.place(bench.at(address, index), page);
    for (let index = 0; index < 16; ++index) bench.native.fill(bench.at(address, index), index, bench.pageBytes, 0n);
    t.is(bench.counts().residentBytes, bench.pageBytes);
  });
});

test.serial('closing the driver gives everything back, whatever is still mapped', (t) => {
  const before = pageFileBytes();
  const { native } = openHost();
  const { granularityBytes } = native.info();
  const address = native.reserve(4 * granularityBytes, granularityBytes);
  const page = native.createPage(granularityBytes, address);
  native.map(address, granularityBytes, page);
  native.setAccess(address, granularityBytes);
  native.fill(address, 1, granularityBytes, 0n);
  native.close();
  t.is(pageFileBytes(), before);
  t.true(kernelMappings(address, granularityBytes).every(({ permissions }) => permissions !== 'rw-s'));
});

test.serial('a page that outlives its reservation takes no place from the next one', (t) => {
  withBench(t, hostDriver, (bench) => {
    const before = bench.reserve(4);
    const survivor = bench.create(before);
    bench.free(before);
    const address = bench.reserve(4);
    if (address !== before) t.log('the kernel gave other addresses, so the two cannot meet here');
    bench.fillRun(address, 1);
    bench.mark(address, 1);
    bench.release(survivor);
    bench.place(bench.at(address, 1), bench.create(address));
    bench.mark(bench.at(address, 1), 2);
    bench.isMarked(address, 1);
  });
});

slow('touches much memory')('reading where nothing is mapped takes no memory', (t) => {
  withBench(t, hostDriver, (bench) => {
    const address = bench.reserve(1024);
    // Kernels without a shared page of zeros take memory for any read of memory that was never written.
    const untouched = residentOfProcess();
    t.true(new Uint8Array(256 * bench.pageBytes).every((byte) => byte === 0));
    const ofKernel = residentOfProcess() - untouched;
    const before = residentOfProcess();
    const bytes = peek(address, 256 * bench.pageBytes);
    t.true(bytes.every((byte) => byte === 0));
    t.true(residentOfProcess() - before < 1.5 * bytes.length + ofKernel, 'what was read, and nothing for where it was read from');
  });
});

test.serial('the default budget is the memory of the machine, or of a cgroup, less headroom', (t) => {
  withBench(t, hostDriver, (bench) => {
    const { totalBytes, freeBytes } = bench.native.queryMemory();
    t.true(totalBytes > 0 && totalBytes < totalmem());
    t.true(freeBytes > 0 && freeBytes <= totalBytes, 'what is there just now');
  });
});

test.serial('a given budget is not checked against the machine\'s memory', (t) => {
  withBench(t, openHost({ memoryBytes: 2 ** 50 }), (bench) => {
    t.like(bench.native.queryMemory(), { totalBytes: 2 ** 50, freeBytes: 2 ** 50 });
    const page = bench.create(0n, 2 ** 40);
    bench.release(page);
  });
});

test.serial('with populate a page has its memory from the start', (t) => {
  withBench(t, openHost({ populate: true }), (bench) => {
    const address = bench.reserve(2);
    bench.create(address);
    t.is(bench.counts().residentBytes, bench.pageBytes);
    bench.place(address, bench.create());
    t.is(bench.counts().residentBytes, 2 * bench.pageBytes);
  });
});

test.serial('with populate a lack of memory is an error and leaves no page', (t) => {
  withBench(t, openHost({ populate: true }), (bench) => {
    const address = bench.reserve(1);
    bench.create();
    bench.native.failCall('fallocate', 1, ENOSPC);
    bench.refuses('KV_OUT_OF_DEVICE_MEMORY', () => bench.native.createPage(bench.pageBytes, address));
    bench.place(address, bench.create(address));
  });
});

for (const hugePages of [false, true]) {
  test.serial(`with populate, a page that has no memory in the end holds none (huge pages: ${hugePages})`, (t) => {
    withBench(t, openHost({ populate: true, hugePages }), (bench) => {
      const pageBytes = 2 * 2 ** 21;
      const address = bench.reserve(2, pageBytes);
      for (const near of [address, 0n, address]) {
        bench.native.failCall('fallocate', 1, ENOSPC);
        bench.refuses('KV_OUT_OF_DEVICE_MEMORY', () => bench.native.createPage(pageBytes, near));
        t.is(bench.counts().residentBytes, 0);
      }
      bench.release(bench.create(address, pageBytes));
      t.is(bench.counts().residentBytes, 0);
    });
  });
}

test.serial('with populate a signal in between is no lack of memory', (t) => {
  withBench(t, openHost({ populate: true }), (bench) => {
    bench.native.failCall('fallocate', 1, EINTR);
    t.notThrows(() => bench.create());
  });
});
