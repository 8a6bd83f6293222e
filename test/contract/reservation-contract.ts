// The contract of Reserve and FreeReservation.

import type { ContractTest } from './driver-contract.js';

const TiB = 2 ** 40;

export function reservationContract(contractTest: ContractTest): void {
  contractTest('a reservation is aligned to the page that will be mapped in it', [], (t, bench) => {
    for (const factor of [1, 2, 8, 32]) {
      const pageBytes = factor * bench.info.granularityBytes;
      t.is(bench.reserve(3, pageBytes) % BigInt(pageBytes), 0n, `${pageBytes}`);
    }
  });

  contractTest('reservations do not overlap', [], (t, bench) => {
    const pages = [1, 7, 64, 2, 1, 30];
    const ranges = pages.map((count) => ({ from: bench.reserve(count), bytes: BigInt(count * bench.pageBytes) }));
    ranges.sort((a, b) => (a.from < b.from ? -1 : 1));
    ranges.reduce((below, above) => {
      t.true(below.from + below.bytes <= above.from);
      return above;
    });
    t.is(bench.counts().liveReservations, pages.length);
  });

  contractTest('reserved addresses take no memory', [], (t, bench) => {
    const freeBefore = bench.native.queryMemory().freeBytes;
    bench.reserve(TiB / bench.pageBytes);
    t.is(bench.counts().residentBytes, 0);
    // What a machine and a GPU have free changes with every other process.
    if (bench.info.kind === 'mock') t.is(bench.native.queryMemory().freeBytes, freeBefore);
  });

  contractTest('more addresses than the machine has are refused', [], (_t, bench) => {
    bench.refuses('KV_OUT_OF_ADDRESS_SPACE', () => bench.native.reserve(1024 * TiB, bench.pageBytes));
  });

  contractTest('a range that is empty is refused', [], (_t, bench) => {
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.reserve(0, bench.pageBytes));
  });

  contractTest('a range that is no multiple of the page is refused', ['reservation size check'], (_t, bench) => {
    const { native, pageBytes } = bench;
    bench.refuses('KV_DRIVER_MISUSE', () => native.reserve(pageBytes + 4096, pageBytes));
  });

  contractTest('a freed reservation is gone', [], (t, bench) => {
    const address = bench.reserve(4);
    bench.free(address);
    t.is(bench.counts().liveReservations, 0);
    const page = bench.create();
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.map(address, bench.pageBytes, page));
  });

  contractTest('a freed reservation cannot be freed again', ['whole reservation check'], (_t, bench) => {
    const address = bench.reserve(4);
    bench.free(address);
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.freeReservation(address, 4 * bench.pageBytes));
  });

  contractTest('only a whole reservation can be freed', ['whole reservation check'], (_t, bench) => {
    const { native, pageBytes } = bench;
    const address = bench.reserve(4);
    bench.refuses('KV_DRIVER_MISUSE', () => native.freeReservation(address, 3 * pageBytes));
    bench.refuses('KV_DRIVER_MISUSE', () => native.freeReservation(address, 5 * pageBytes));
    bench.refuses('KV_DRIVER_MISUSE', () => native.freeReservation(bench.at(address, 1), 3 * pageBytes));
  });

  contractTest('a reservation with a page in it cannot be freed', ['empty reservation check'], (_t, bench) => {
    const address = bench.reserve(4);
    bench.map(bench.at(address, 3), bench.create());
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.freeReservation(address, 4 * bench.pageBytes), 'no access');
    bench.native.setAccess(bench.at(address, 3), bench.pageBytes);
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.freeReservation(address, 4 * bench.pageBytes), 'with access');
    bench.unmap(bench.at(address, 3));
    bench.free(address);
  });

  contractTest('pages outlive the reservation they were mapped in', [], (_t, bench) => {
    const first = bench.reserve(1);
    const page = bench.create(first);
    bench.place(first, page);
    bench.mark(first, 5);
    bench.unmap(first);
    bench.free(first);
    const second = bench.reserve(3);
    bench.fillRun(second, 2);
    bench.place(bench.at(second, 2), page);
    bench.isMarked(bench.at(second, 2), 5);
  });
}
