// Reads of whole records around the page cache, which go from the file straight into aligned targets: exact or a miss, whatever a call does or
// the file holds.

import { closeSync, openSync, readSync, writeSync } from 'node:fs';

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { StoreFaults, type StoreFault } from '#internal/store/store-faults.js';
import type { DiskStore } from '#internal/store/disk-store.js';
import { HostMemory, pagePieces } from '#internal/tiers/host-memory.js';
import { seedOf } from '../helpers/seed.js';
import { bytesOf, inFolder, keyOf, KiB, MiB, options, orderOf, recordOf, segmentsOf, withStore } from './store-world.js';

/** Whole blocks of a file, so that all of it goes straight into its targets; two pieces of a mebibyte at most. */
const sizes = [256 * KiB, 512 * KiB, 256 * KiB, 4 * KiB];
const seed = seedOf('whole reads');
const direct = { bytes: 64 * MiB, segmentBytes: 4 * MiB, direct: true, threads: 1 } as const;
const memory = new HostMemory(64 * MiB, 2 * MiB, pagePieces);

/** Reads these stripes whole, in this order. */
async function read(store: DiskStore, stripes: readonly number[], number = 1): Promise<{ readonly reads: readonly string[]; readonly isExact: boolean }> {
  const bytes = stripes.map((stripe) => sizes[stripe - 1] ?? 4 * KiB);
  const payload = memory.take(bytes.reduce((sum, size) => sum + size, 0))!;
  payload.fill(0xee);
  let end = 0;
  const targets = bytes.map((size) => payload.subarray(end, end += size));
  const { reads } = await store.get(keyOf(number), stripes.map((stripe, at) => ({ stripe, target: targets[at]! })));
  const isExact = stripes.every((stripe, at) => reads[at] !== 'good' || Buffer.compare(targets[at]!, bytesOf(number, 0, stripe, bytes[at]!)) === 0);
  memory.give(payload);
  return { reads, isExact };
}

const all = ['good', 'good', 'good', 'good'];

test('a record is read exactly, whole or in part, in any order, and stored in an order of its own', (t) => inFolder(async (directory) => {
  await withStore(options(directory, direct), async (store) => {
    if (!store.stats().direct) t.log('the folder has no O_DIRECT');
    t.true((await store.put(recordOf(1, 0, sizes))).stored);
    for (const stripes of [[1, 2, 3, 4], [4, 3, 2, 1], [3, 2, 1, 4]]) t.deepEqual(await read(store, stripes), { reads: all, isExact: true }, stripes.join());
    t.deepEqual(await read(store, [2, 3]), { reads: ['good', 'good'], isExact: true });
    t.deepEqual(await read(store, [1, 2, 3, 9]), { reads: ['good', 'good', 'good', 'absent'], isExact: true }, 'as many bytes, and another stripe');
    t.deepEqual(await read(store, [1, 2, 3, 4], 2), { reads: ['absent', 'absent', 'absent', 'absent'], isExact: true });
    t.true((await store.reorder(keyOf(1), orderOf(new Random(seed)))).stored);
    t.deepEqual(await read(store, [1, 2, 3, 4]), { reads: all, isExact: true });
  });
  await withStore(options(directory, { ...direct, chunkBytes: 4 * KiB }), async (store) => {
    t.true((await store.put(recordOf(3, 0, sizes))).stored);
    for (const number of [1, 3]) t.deepEqual(await read(store, [1, 2, 3, 4], number), { reads: all, isExact: true });
  });
}));

test('whichever call fails, once or for good, a whole record is read exactly or told as unreadable', (t) => inFolder(async (directory) => {
  await withStore(options(directory, direct), (store) => store.put(recordOf(1, 0, sizes)));
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, direct));
  const calls = (): number => Object.values(faults.counts()).reduce((sum, count) => sum + count, 0);
  const before = calls();
  t.deepEqual(await read(store, [1, 2, 3, 4]), { reads: all, isExact: true });
  const needed = calls() - before;
  t.is(needed, 3, 'the header, a mebibyte and the rest');
  for (let nth = 1; nth <= needed; nth += 1) {
    const outcomes: (readonly [string, Omit<StoreFault, 'nth'>, (reads: readonly string[]) => boolean])[] = [
      ['fails once', { error: 'EIO' }, (reads) => reads.join() === all.join() || (nth === 1 && reads.every((state) => state === 'io'))], // the header is not read again
      ['and all behind it fail', { error: 'EIO', times: 2 ** 32 }, (reads) => reads.includes('io')],
      ['brings less', { mostBytes: 70_000 }, (reads) => reads.join() === all.join()],
      ['and all behind it bring less', { mostBytes: 70_000, times: 2 ** 32 }, (reads) => reads.join() === all.join()],
      ['brings another bit', { flippedBit: 8 * 8_292 }, (reads) => reads.includes('corrupt')],
    ];
    for (const [what, fault, isExpected] of outcomes) {
      faults.clear();
      faults.add({ nth, ...fault });
      const { reads, isExact } = await read(store, [1, 2, 3, 4]);
      t.true(isExact && isExpected(reads), `call ${nth} ${what}: ${reads.join()}`);
    }
  }
  faults.clear();
  t.deepEqual(await read(store, [1, 2, 3, 4]), { reads: all, isExact: true });
  await store.close();
}));

test(`with any byte of a record changed, a whole read is exact or a miss, and other stripes stay readable (seed ${seed})`, (t) => inFolder((directory) => withStore(options(directory, direct), async (store) => {
  await store.put(recordOf(1, 0, sizes));
  const random = new Random(seed);
  const file = openSync(segmentsOf(directory)[0]!, 'r+');
  const byte = Buffer.alloc(1);
  const header = 4 * KiB;
  const places = [...Array.from({ length: 64 }, (_, at) => header + 9 * at), ...Array.from({ length: 64 }, () => 2 * header + random.integer(MiB + 4 * KiB))];
  for (const at of places) {
    readSync(file, byte, 0, 1, at);
    byte[0]! ^= 0x10;
    writeSync(file, byte, 0, 1, at);
    const { reads, isExact } = await read(store, [1, 2, 3, 4]);
    t.true(isExact, `byte ${at}`);
    if (at >= 2 * header) t.is(reads.filter((state) => state === 'corrupt').length, 1, `byte ${at}: ${reads.join()}`);
    else t.true(new Set(reads).size === 1, `byte ${at}: ${reads.join()}`);
    byte[0]! ^= 0x10;
    writeSync(file, byte, 0, 1, at);
  }
  closeSync(file);
  t.deepEqual(await read(store, [1, 2, 3, 4]), { reads: all, isExact: true });
})));

