// The contract of CreatePage and ReleasePage.

import { withBench } from '../helpers/driver-bench.js';
import type { DriverDescription } from '../helpers/drivers.js';
import type { ContractTest } from './driver-contract.js';

export function pageContract(driver: DriverDescription, contractTest: ContractTest): void {
  contractTest('every page has a handle of its own, and none is 0', [], (t, bench) => {
    const pages = Array.from({ length: 20 }, () => bench.create());
    t.is(new Set(pages).size, 20);
    t.false(pages.includes(0n));
    t.is(bench.counts().livePages, 20);
    pages.slice(5).forEach((page) => bench.release(page));
    t.is(bench.counts().livePages, 5);
  });

  contractTest('a page is of any multiple of the granularity', [], (_t, bench) => {
    for (const factor of [1, 3, 4]) {
      const pageBytes = factor * bench.info.granularityBytes;
      const address = bench.reserve(2, pageBytes);
      const last = address + BigInt(2 * pageBytes - 1);
      bench.place(address + BigInt(pageBytes), bench.create(0n, pageBytes));
      bench.mark(last, factor);
      bench.isMarked(last, factor);
    }
  });

  contractTest('a page that is empty, or no multiple of the granularity, is refused', [], (_t, bench) => {
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.createPage(0, 0n));
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.createPage(bench.pageBytes + 4096, 0n));
  });

  contractTest('the hint where a page will be mapped is only a hint', [], (_t, bench) => {
    const address = bench.reserve(4);
    const hints = [address, address, bench.at(address, 3), address + 1n, 4096n];
    const pages = hints.map((near) => bench.create(near));
    pages.slice(0, 4).reverse().forEach((page, index) => {
      bench.place(bench.at(address, index), page);
      bench.mark(bench.at(address, index), index + 1);
    });
    [1, 2, 3, 4].forEach((value, index) => bench.isMarked(bench.at(address, index), value));
  });

  contractTest('a released page gives its memory back', ['memory'], (t, bench) => {
    const address = bench.reserve(4);
    const pages = bench.fillRun(address, 4);
    bench.native.fill(address, 9, 4 * bench.pageBytes, 0n);
    bench.native.synchronizeStream(0n);
    t.is(bench.counts().residentBytes, 4 * bench.pageBytes);
    bench.unmap(address, 4);
    t.is(bench.counts().residentBytes, 4 * bench.pageBytes, 'an unmapped page keeps its memory');
    pages.slice(1).forEach((page) => bench.release(page));
    t.is(bench.counts().residentBytes, bench.pageBytes);
  });

  contractTest('a new page is zeros, also where a released one was', ['zeroed pages'], (t, bench) => {
    const address = bench.reserve(1);
    for (let round = 0; round < 3; ++round) {
      const page = bench.create(address);
      bench.place(address, page);
      t.true(bench.read(address, bench.pageBytes).every((byte) => byte === 0));
      bench.native.fill(address, 0xff, bench.pageBytes, 0n);
      bench.unmap(address);
      bench.release(page);
    }
  });

  contractTest('a released page is refused', ['page handle check'], (_t, bench) => {
    const address = bench.reserve(1);
    const page = bench.create(address);
    bench.release(page);
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.releasePage(page, bench.pageBytes));
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.map(address, bench.pageBytes, page));
    bench.create(address);
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.map(address, bench.pageBytes, page), 'its place is taken');
  });

  contractTest('a handle that never was a page is refused', ['page handle check'], (_t, bench) => {
    const address = bench.reserve(1);
    bench.create();
    for (const page of [0n, 12_345_678n, 2n ** 63n]) {
      bench.refuses('KV_DRIVER_MISUSE', () => bench.native.releasePage(page, bench.pageBytes));
      bench.refuses('KV_DRIVER_MISUSE', () => bench.native.map(address, bench.pageBytes, page));
    }
  });

  contractTest('a page that is mapped cannot be released', ['mapped page check'], (_t, bench) => {
    const address = bench.reserve(2);
    const page = bench.create();
    bench.map(address, page);
    bench.place(bench.at(address, 1), page);
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.releasePage(page, bench.pageBytes));
    bench.unmap(bench.at(address, 1));
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.releasePage(page, bench.pageBytes), 'still mapped once');
    bench.unmap(address);
    bench.release(page);
  });

  contractTest('pages beyond the budget are refused until one is released', ['budget'], (t, { pageBytes }) => {
    const memoryBytes = 8 * pageBytes;
    withBench(t, driver.open({ memoryBytes }), (bench) => {
      t.is(bench.native.queryMemory().totalBytes, memoryBytes);
      const pages = Array.from({ length: 8 }, () => bench.create());
      t.is(bench.native.queryMemory().freeBytes, 0);
      bench.refuses('KV_OUT_OF_DEVICE_MEMORY', () => bench.native.createPage(pageBytes, 0n));
      const error = t.throws(() => bench.native.createPage(pageBytes, 0n));
      t.like(error, { details: { pageBytes, createdPages: 8 } });
      bench.release(pages[3]!);
      t.is(bench.native.queryMemory().freeBytes, pageBytes);
      bench.create();
    });
  });
}
