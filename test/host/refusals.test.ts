// What the host driver refuses beyond the contract of every driver, and how it undoes a call that fails half-way.

import { constants } from 'node:os';

import test from 'ava';

import { withBench } from '../helpers/driver-bench.js';
import { hostDriver } from '../helpers/drivers.js';
import { peek } from '../helpers/process-memory.js';

const { EIO, ENOMEM } = constants.errno;

test('a reservation takes pages of the size it was made for', (t) => {
  withBench(t, hostDriver, (bench) => {
    const twice = 2 * bench.pageBytes;
    const small = bench.reserve(4);
    const large = bench.reserve(4, twice);
    const page = bench.create();
    const largePage = bench.create(0n, twice);
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.map(large, bench.pageBytes, page));
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.map(small, twice, largePage));
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.releasePage(page, twice), 'released as if it were larger');
  });
});

test('access that fails half-way is given to no page', (t) => {
  withBench(t, hostDriver, (bench) => {
    const address = bench.reserve(4);
    for (const index of [3, 2, 1, 0]) bench.map(bench.at(address, index), bench.create()); // no two merge
    bench.native.failCall('mmap-map', 3, ENOMEM);
    bench.refuses('KV_OUT_OF_MAPPINGS', () => bench.native.setAccess(address, 4 * bench.pageBytes));
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.read(address, 1));
    bench.native.setAccess(address, 4 * bench.pageBytes);
    bench.write(bench.at(address, 3), 1);
  });
});

test('access that fails half-way and cannot be taken back is kept, so that the unmap finds it', (t) => {
  withBench(t, hostDriver, (bench) => {
    const address = bench.reserve(2);
    bench.map(bench.at(address, 1), bench.create());
    bench.map(address, bench.create());
    bench.native.failCall('mmap-map', 2, ENOMEM);
    bench.native.failCall('mmap-unmap', 1, ENOMEM);
    t.throws(() => bench.native.setAccess(address, 2 * bench.pageBytes), { code: 'KV_OUT_OF_MAPPINGS' });
    bench.write(address, 77);
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.read(bench.at(address, 1), 1));
    bench.unmap(address, 2);
    t.is(peek(address, 1)[0], 0);
  });
});

test('any other refusal of the kernel carries its call, its errno and the address', (t) => {
  withBench(t, hostDriver, (bench) => {
    const address = bench.reserve(1);
    bench.map(address, bench.create());
    bench.native.failCall('mmap-map', 1, EIO);
    const error = t.throws(() => bench.native.setAccess(address, bench.pageBytes), { code: 'KV_DRIVER_CALL_FAILED' });
    const { pageBytes } = bench;
    const refused = { address: Number(address), bytes: pageBytes };
    t.like(error, { details: { call: 'mmap', status: EIO, statusName: 'EIO', ...refused } });
  });
});

test('a reservation that cannot be trimmed to its alignment is given back', (t) => {
  withBench(t, hostDriver, (bench) => {
    const pageBytes = 1009 * bench.info.granularityBytes; // the kernel puts nothing at a multiple of this by itself
    bench.native.failCall('munmap', 1, ENOMEM);
    bench.refuses('KV_OUT_OF_ADDRESS_SPACE', () => bench.native.reserve(pageBytes, pageBytes));
    t.is(bench.reserve(1, pageBytes) % BigInt(pageBytes), 0n);
  });
});

test('a failure can be scripted for a later call, and withdrawn', (t) => {
  withBench(t, hostDriver, (bench) => {
    bench.native.failCall('mmap-reserve', 2, ENOMEM);
    bench.reserve(1);
    bench.refuses('KV_OUT_OF_ADDRESS_SPACE', () => bench.native.reserve(bench.pageBytes, bench.pageBytes));
    bench.native.failCall('mmap-reserve', 1, ENOMEM);
    bench.native.failCall('mmap-reserve', 0, 0);
    bench.reserve(1);
    bench.refuses('KV_DRIVER_MISUSE', () => bench.native.failCall('mmap', 1, ENOMEM), 'no such kind');
  });
});
