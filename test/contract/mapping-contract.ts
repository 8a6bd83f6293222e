// The contract of Map, SetAccess and Unmap.

import type { ContractTest } from './driver-contract.js';

export function mappingContract(contractTest: ContractTest): void {
  contractTest('a page keeps its bytes wherever it is mapped', [], (_t, bench) => {
    const address = bench.reserve(4);
    const page = bench.create(address);
    bench.place(address, page);
    bench.mark(address, 12);
    bench.unmap(address);
    bench.place(bench.at(address, 2), page);
    bench.isMarked(bench.at(address, 2), 12);
  });

  contractTest('a page mapped at several addresses is the same memory at all of them', [], (_t, bench) => {
    const address = bench.reserve(4);
    const other = bench.reserve(2);
    const page = bench.create(address);
    const places = [address, bench.at(address, 2), bench.at(address, 3), bench.at(other, 1)];
    places.forEach((place) => bench.place(place, page));
    places.forEach((place, index) => {
      bench.mark(place + 100n, index + 1);
      places.forEach((each) => bench.isMarked(each + 100n, index + 1));
    });
    bench.unmap(address);
    bench.isMarked(bench.at(other, 1) + 100n, places.length);
  });

  contractTest('every mapped page is counted, and no page that is not', [], (t, bench) => {
    const address = bench.reserve(8);
    const empty = bench.counts().mappings;
    const page = bench.create();
    for (const index of [0, 2, 4]) bench.place(bench.at(address, index), page);
    const mapped = bench.counts().mappings;
    t.true(mapped > empty);
    bench.unmap(bench.at(address, 2));
    t.true(bench.counts().mappings < mapped);
    bench.unmap(address);
    bench.unmap(bench.at(address, 4));
    t.is(bench.counts().mappings, empty);
  });

  contractTest('mapping over a mapped page is refused, and the page stays', ['mapped address check'], (_t, bench) => {
    const address = bench.reserve(2);
    const [first, second] = [bench.create(), bench.create()];
    bench.place(address, first);
    bench.mark(address, 7);
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.map(address, bench.pageBytes, second));
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.map(address, bench.pageBytes, first), 'the same page');
    bench.isMarked(address, 7);
  });

  contractTest('mapping outside a reservation, or not on a page, is refused', [], (_t, bench) => {
    const { native, pageBytes } = bench;
    const address = bench.reserve(2);
    const page = bench.create();
    bench.refuses('KV_DRIVER_MISUSE', () => native.map(bench.at(address, 2), pageBytes, page), 'past the end');
    bench.refuses('KV_DRIVER_MISUSE', () => native.map(bench.at(address, -1), pageBytes, page), 'before the start');
    bench.refuses('KV_DRIVER_MISUSE', () => native.map(address + 4096n, pageBytes, page), 'between two pages');
    bench.refuses('KV_DRIVER_MISUSE', () => native.map(BigInt(pageBytes), pageBytes, page), 'nowhere');
    bench.refuses('KV_DRIVER_MISUSE', () => native.map(address, 2 * pageBytes, page), 'more than the page');
  });

  contractTest('a mapped page cannot be used until it has access', ['memory', 'access check'], (t, bench) => {
    const address = bench.reserve(2);
    bench.map(address, bench.create());
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.write(address, 1));
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.read(address, 1));
    bench.native.setAccess(address, bench.pageBytes);
    bench.write(address, 1);
    t.deepEqual(bench.read(address, 1), [1]);
  });

  contractTest('unmapping takes access away', ['memory', 'access check'], (t, bench) => {
    const address = bench.reserve(1);
    const page = bench.create();
    bench.place(address, page);
    bench.write(address, 3);
    bench.unmap(address);
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.read(address, 1), 'unmapped');
    bench.map(address, page);
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.read(address, 1), 'mapped again');
    bench.native.setAccess(address, bench.pageBytes);
    t.deepEqual(bench.read(address, 1), [3]);
  });

  contractTest('access is given to many pages at once, and again to some', [], (_t, bench) => {
    const address = bench.reserve(6);
    for (const index of [5, 0, 3, 1, 4, 2]) bench.map(bench.at(address, index), bench.create());
    bench.native.setAccess(bench.at(address, 2), 2 * bench.pageBytes);
    bench.mark(bench.at(address, 3), 33);
    bench.native.setAccess(address, 6 * bench.pageBytes);
    for (const index of [0, 1, 2, 4, 5]) bench.mark(bench.at(address, index), index);
    [0, 1, 2, 33, 4, 5].forEach((value, index) => bench.isMarked(bench.at(address, index), value));
  });

  contractTest('access over a hole is refused and given to no page', ['access check'], (_t, bench) => {
    const { native, pageBytes } = bench;
    const address = bench.reserve(4);
    for (const index of [0, 1, 3]) bench.map(bench.at(address, index), bench.create());
    bench.refuses('KV_DRIVER_MISUSE', () => native.setAccess(address, 4 * pageBytes));
    if (bench.info.hasMemory) bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.read(address, 1));
    bench.refuses('KV_DRIVER_MISUSE', () => native.setAccess(bench.at(address, 3), 2 * pageBytes), 'past the end');
    bench.refuses('KV_DRIVER_MISUSE', () => native.setAccess(bench.at(address, 2), pageBytes), 'nothing there');
    native.setAccess(address, 2 * pageBytes);
  });

  contractTest('many pages are unmapped at once', [], (_t, bench) => {
    const address = bench.reserve(6);
    const pages = bench.fillRun(address, 6);
    bench.mark(bench.at(address, 5), 55);
    bench.unmap(bench.at(address, 1), 4);
    bench.isMarked(bench.at(address, 5), 55);
    bench.place(bench.at(address, 2), pages[2]!);
    bench.unmap(address);
    bench.unmap(bench.at(address, 2));
  });

  contractTest('unmapping over a hole is refused and unmaps nothing', [], (_t, bench) => {
    const { native, pageBytes } = bench;
    const address = bench.reserve(4);
    for (const index of [0, 1, 3]) bench.place(bench.at(address, index), bench.create());
    bench.mark(address, 4);
    bench.refuses('KV_DRIVER_MISUSE', () => native.unmap(address, 4 * pageBytes));
    bench.refuses('KV_DRIVER_MISUSE', () => native.unmap(bench.at(address, 2), pageBytes), 'nothing there');
    bench.refuses('KV_DRIVER_MISUSE', () => native.unmap(bench.at(address, 3), 2 * pageBytes), 'past the end');
    bench.isMarked(address, 4);
  });

  contractTest('part of a page cannot be unmapped', [], (_t, bench) => {
    const pageBytes = 2 * bench.info.granularityBytes;
    const address = bench.reserve(2, pageBytes);
    const page = bench.create(0n, pageBytes);
    bench.place(address, page);
    const half = pageBytes / 2;
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.unmap(address, half));
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.unmap(address + BigInt(half), half));
  });

  contractTest('an unmapped page cannot be unmapped again', [], (_t, bench) => {
    const address = bench.reserve(2);
    bench.place(address, bench.create());
    bench.unmap(address);
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.unmap(address, bench.pageBytes));
  });

  contractTest('a page that never had access can be unmapped', [], (t, bench) => {
    const address = bench.reserve(3);
    const before = bench.counts().mappings;
    bench.map(address, bench.create());
    bench.place(bench.at(address, 1), bench.create());
    bench.map(bench.at(address, 2), bench.create());
    bench.unmap(address, 3);
    t.is(bench.counts().mappings, before);
  });
}
