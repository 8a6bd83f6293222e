// The host driver's count of kernel mappings, against /proc/self/maps, and what it refuses because of it.
// Alone in its process: it takes the kernel mappings of the process.

import { readFileSync } from 'node:fs';

import test, { type ExecutionContext } from 'ava';

import { Random } from '#internal/base/random.js';
import { withBench, type DriverBench } from '../helpers/driver-bench.js';
import { hostDriver, openHost } from '../helpers/drivers.js';
import { kernelMappings } from '../helpers/process-memory.js';
import { seedOf } from '../helpers/seed.js';

/** A reservation makes two: its addresses, and the guard behind them. */
const EMPTY = 2;

/** Compares the count with the kernel's. The guards are seen as one mapping each. */
function compareWithKernel(
  t: ExecutionContext, bench: DriverBench, reservations: readonly (readonly [bigint, number])[],
): void {
  const seen = reservations.map(([address, pages]) => kernelMappings(address, pages * bench.pageBytes).length);
  t.is(bench.counts().mappings, seen.reduce((sum, count) => sum + count + 1, 0));
}

test('an empty reservation is one mapping with a guard behind it', (t) => {
  withBench(t, hostDriver, (bench) => {
    const address = bench.reserve(4);
    t.is(bench.counts().mappings, EMPTY);
    t.deepEqual(kernelMappings(address, 4 * bench.pageBytes).map(({ permissions }) => permissions), ['r--p']);
    t.is(kernelMappings(bench.at(address, 4), 1)[0]?.permissions, '---p');
  });
});

test('pages made for the addresses they are mapped at are one mapping, in whatever order they come', (t) => {
  withBench(t, hostDriver, (bench) => {
    const address = bench.reserve(64);
    for (const index of [5, 3, 4, 0, 1, 2, 7, 6]) {
      bench.place(bench.at(address, index), bench.create(bench.at(address, index)));
    }
    t.is(bench.counts().mappings, EMPTY + 1);
    compareWithKernel(t, bench, [[address, 64]]);
  });
});

test('pages made for no address still follow each other in the order they were made', (t) => {
  withBench(t, hostDriver, (bench) => {
    const address = bench.reserve(64);
    for (let index = 0; index < 8; ++index) bench.place(bench.at(address, index), bench.create());
    t.is(bench.counts().mappings, EMPTY + 1);
    compareWithKernel(t, bench, [[address, 64]]);
  });
});

test('an alias and a hole each break the run they are in', (t) => {
  withBench(t, hostDriver, (bench) => {
    const address = bench.reserve(8);
    const [first] = bench.fillRun(address, 8);
    t.is(bench.counts().mappings, EMPTY, 'the whole reservation is one run');
    bench.unmap(bench.at(address, 4));
    t.is(bench.counts().mappings, EMPTY + 2, 'a hole');
    bench.place(bench.at(address, 4), first!);
    t.is(bench.counts().mappings, EMPTY + 2, 'an alias');
    compareWithKernel(t, bench, [[address, 8]]);
  });
});

test('a page released and made again for its old address merges again', (t) => {
  withBench(t, hostDriver, (bench) => {
    const address = bench.reserve(8);
    const pages = bench.fillRun(address, 4);
    bench.unmap(bench.at(address, 1));
    bench.release(pages[1]!);
    bench.place(bench.at(address, 1), bench.create(bench.at(address, 1)));
    t.is(bench.counts().mappings, EMPTY + 1);
    compareWithKernel(t, bench, [[address, 8]]);
  });
});

test('the count is the kernel’s after any order of mapping, aliasing and unmapping', (t) => {
  const seed = seedOf('mappings');
  t.log(`VKV_TEST_SEED=${seed}`);
  const random = new Random(seed);
  withBench(t, hostDriver, (bench) => {
    const pagesEach = 20;
    const bases = [bench.reserve(pagesEach), bench.reserve(pagesEach), bench.reserve(pagesEach)];
    const places = bases.flatMap((base) => Array.from({ length: pagesEach }, (_, index) => bench.at(base, index)));
    const pages = places.slice(0, 40).map((address) => bench.create(random.chance(0.8) ? address : 0n));
    const mapped = new Set<bigint>();
    for (let step = 0; step < 600; ++step) {
      const place = random.integer(places.length);
      const address = places[place]!;
      if (mapped.delete(address)) bench.unmap(address);
      else {
        bench.place(address, pages[random.chance(0.7) ? place % pages.length : random.integer(pages.length)]!);
        mapped.add(address);
      }
      if (step % 20 === 0) compareWithKernel(t, bench, bases.map((base) => [base, pagesEach] as const));
    }
  });
});

test('drivers of one process count their mappings together, until they are closed', (t) => {
  withBench(t, hostDriver, (first) => {
    const together = (): number => first.native.queryMemory().processMappings;
    withBench(t, hostDriver, (second) => {
      first.fillRun(first.reserve(8), 4);
      second.fillRun(second.reserve(8), 8);
      t.is(together(), first.counts().mappings + second.counts().mappings);
    });
    t.is(together(), first.counts().mappings);
  });
});

test('a driver that is closed with pages mapped counts no more', (t) => {
  withBench(t, hostDriver, (bench) => {
    const { native } = openHost();
    const { granularityBytes } = native.info();
    const address = native.reserve(4 * granularityBytes, granularityBytes);
    native.map(address, granularityBytes, native.createPage(granularityBytes, address));
    t.is(bench.native.queryMemory().processMappings, 3);
    native.close();
    t.is(bench.native.queryMemory().processMappings, 0);
  });
});

test('the default limit is half of vm.max_map_count', (t) => {
  withBench(t, hostDriver, ({ info }) => {
    t.is(info.mappingLimit, Math.floor(Number(readFileSync('/proc/sys/vm/max_map_count', 'utf8')) / 2));
  });
});

test('a mapping beyond the limit is refused before the kernel is asked; one that merges is not', (t) => {
  withBench(t, openHost({ mappingLimit: 6 }), (bench) => {
    const address = bench.reserve(16);
    for (const index of [2, 6]) bench.place(bench.at(address, index), bench.create(bench.at(address, index)));
    const page = bench.create(bench.at(address, 10));
    bench.refuses('KV_OUT_OF_MAPPINGS', () => bench.native.map(bench.at(address, 10), bench.pageBytes, page));
    const error = t.throws(() => bench.native.map(bench.at(address, 10), bench.pageBytes, page));
    t.like(error, { details: { neededMappings: 8, limitMappings: 6 } });
    bench.place(bench.at(address, 3), bench.create(bench.at(address, 3)));
    bench.place(bench.at(address, 7), bench.create(bench.at(address, 7)));
    compareWithKernel(t, bench, [[address, 16]]);
  });
});

test('a reservation beyond the limit is refused', (t) => {
  withBench(t, openHost({ mappingLimit: 5 }), (bench) => {
    bench.reserve(1);
    bench.reserve(1);
    bench.refuses('KV_OUT_OF_MAPPINGS', () => bench.native.reserve(bench.pageBytes, bench.pageBytes));
  });
});

test('at the limit everything can still be unmapped, also what makes more mappings for a while', (t) => {
  withBench(t, openHost({ mappingLimit: 3 }), (bench) => {
    const address = bench.reserve(9);
    bench.fillRun(address, 8);
    t.is(bench.counts().mappings, 3);
    for (const index of [1, 3, 5]) bench.unmap(bench.at(address, index));
    t.is(bench.counts().mappings, 9);
    compareWithKernel(t, bench, [[address, 9]]);
    for (const index of [0, 2, 4]) bench.unmap(bench.at(address, index));
    bench.unmap(bench.at(address, 6), 2);
  });
});
