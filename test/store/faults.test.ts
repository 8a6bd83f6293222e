// System calls that fail: whichever it is, and whether once or for good, nothing that was acknowledged is lost, nothing removed comes
// back, no wrong byte is called good, and the store goes on once the disk does.

import { rmSync } from 'node:fs';

import test, { type ExecutionContext } from 'ava';

import { isKvError } from '#internal/base/errors.js';
import { StoreFaults, type StoreFault } from '#internal/store/store-faults.js';
import type { DiskStore } from '#internal/store/disk-store.js';
import { assertExact, inFolder, keyOf, KiB, MiB, options, recordOf, scale, versionOf, withStore, type Sizes } from './store-world.js';
import { slow } from '../runner/slow.js';

/** What the caller was told last about a record. */
type Told = 'stored' | 'removed' | 'unsure';

const sizes: Sizes = [20 * KiB, 16];
const reversed = Int32Array.from({ length: 16 }, (_, token) => 15 - token);
const numbers = [0, 1, 2, 3, 4, 5, 6, 7, 8];

/** A store's life: puts over two segments, reads, removals, garbage collection, close. `told` gets what the caller was told. */
async function live(t: ExecutionContext, store: DiskStore, told: Map<number, Told>): Promise<void> {
  const put = async (number: number): Promise<void> => {
    told.set(number, (await store.put(recordOf(number, 0, sizes))).stored ? 'stored' : 'unsure');
  };
  const remove = async (...gone: number[]): Promise<void> => {
    const { isRecorded } = await store.remove(gone.map(keyOf));
    for (const number of gone) {
      told.set(number, isRecorded ? 'removed' : 'unsure');
      t.is(await versionOf(t, store, number, [0], sizes), undefined, 'what is removed is a miss at once');
    }
  };
  for (const number of numbers.slice(0, 8)) await put(number);
  for (const number of numbers) await versionOf(t, store, number, [0], sizes);
  await store.reorder(keyOf(3), reversed); // it stays what it was, whatever becomes of this
  await remove(0, 1, 2);
  for (const number of [0, 5, 4]) await store.reorder(keyOf(number), reversed);
  await remove(5);
  for (const number of numbers) await versionOf(t, store, number, [0], sizes);
  await put(1);
  await store.gc();
  await put(8);
  await store.sync().catch((error: unknown) => t.true(isKvError(error, 'KV_STORE_FAILED')));
  for await (const { key } of store.records()) t.is(key.length, 32);
}

async function judge(t: ExecutionContext, directory: string, told: ReadonlyMap<number, Told>, what: string): Promise<void> {
  await withStore(options(directory, { threads: 1 }), async (store) => {
    for (const [number, state] of told) {
      const version = await versionOf(t, store, number, [0], sizes);
      if (state === 'stored') t.is(version, 0, `${what}: record ${number} was stored and is lost`);
      if (state === 'removed') t.is(version, undefined, `${what}: record ${number} was removed and is back`);
    }
    t.like(await store.put(recordOf(99, 1)), { stored: true }, what);
    await assertExact(t, store, 99, 1);
  });
}

/** The life of a store that was opened again: what it has is read, removed, put anew; then there is more. */
async function liveAgain(t: ExecutionContext, store: DiskStore, told: Map<number, Told>): Promise<void> {
  const put = async (number: number): Promise<void> => {
    const result = await store.put(recordOf(number, 0, sizes));
    told.set(number, result.stored || result.reason === 'exists' ? 'stored' : 'unsure');
  };
  for (const number of numbers) await versionOf(t, store, number, [0], sizes);
  const { removed, isRecorded } = await store.remove([4, 6].map(keyOf));
  for (const number of [7, 3, 4]) await store.reorder(keyOf(number), reversed.toReversed());
  for (const number of numbers) if (number !== 4 && number !== 6) await versionOf(t, store, number, [0], sizes);
  // What is not seen for a failing disk cannot be removed.
  for (const number of [4, 6]) told.set(number, isRecorded && removed === 2 ? 'removed' : 'unsure');
  for (const number of [0, 4, 9, 10, 11]) await put(number);
  await store.gc();
  await store.remove([keyOf(10)]).then((result) => told.set(10, result.isRecorded && result.removed === 1 ? 'removed' : 'unsure'));
  await put(12);
}

/** One life with a fault; `before`: one without it. Returns how often each call was made. */
async function liveWith(t: ExecutionContext, fault: StoreFault | undefined, what: string, before?: (store: DiskStore, told: Map<number, Told>) => Promise<void>): Promise<Readonly<Record<string, number>>> {
  const faults = new StoreFaults();
  return inFolder(async (directory) => {
    const told = new Map<number, Told>();
    if (before !== undefined) await withStore(options(directory, { threads: 1 }), (store) => before(store, told));
    if (fault !== undefined) faults.add(fault);
    let store: DiskStore | undefined;
    try {
      store = await faults.open(options(directory, { threads: 1 }));
      await (before === undefined ? live : liveAgain)(t, store, told);
    } catch (error) {
      // A folder whose making failed half-way is the caller's to see; the next start finishes it.
      if (!isKvError(error, 'KV_STORE_UNAVAILABLE') && !isKvError(error, 'KV_STORE_FAILED')) throw error;
    }
    await store?.close();
    const counts = faults.counts();
    await judge(t, directory, told, what);
    return counts;
  });
}

const sumOf = (counts: Readonly<Record<string, number>>): number => Object.values(counts).reduce((sum, count) => sum + count, 0);

for (const error of ['EIO', 'ENOSPC', 'EINTR'] as const) {
  test(`any system call may fail with ${error}, once or for good`, async (t) => {
    const calls = sumOf(await liveWith(t, undefined, 'no fault'));
    t.true(calls > 80, `${calls} calls`);
    const step = scale > 1 ? 1 : scale < 1 ? 29 : 11; // the three errors take turns at the calls
    for (let nth = 1 + 3 * ['EIO', 'ENOSPC', 'EINTR'].indexOf(error); nth <= calls; nth += step) {
      await liveWith(t, { nth, error }, `call ${nth} fails with ${error}`);
      await liveWith(t, { nth, times: 2 ** 32, error }, `all calls from ${nth} on fail with ${error}`);
    }
  });
}

test('what could not be read when a store was opened stays older than what was stored then', (t) => inFolder(async (directory) => {
  const given = options(directory, { threads: 1, bytes: 16 * MiB, segmentBytes: MiB });
  await withStore(given, async (store) => {
    for (let version = 1; version <= 20; version += 1) {
      await store.put(recordOf(1, version));
      await store.remove([keyOf(1)]);
    }
    await store.put(recordOf(2, 1));
  });
  const faults = new StoreFaults();
  // The identity and the first block can be read, and nothing behind it.
  let isHidden = false;
  for (let nth = 2; nth < 8 && !isHidden; nth += 1) {
    faults.clear();
    faults.add({ call: 'read', nth, times: 2 ** 32, error: 'EIO' });
    const store = await faults.open(given).catch(() => undefined);
    if (store === undefined) continue;
    isHidden = !store.has(keyOf(2));
    faults.clear();
    if (isHidden) {
      await store.remove([keyOf(1)]);
      t.deepEqual(await store.put(recordOf(1, 21)), { stored: true });
      await assertExact(t, store, 1, 21);
    }
    await store.close();
  }
  t.true(isHidden);
  await withStore(given, async (store) => {
    await assertExact(t, store, 1, 21);
    await assertExact(t, store, 2, 1);
  });
}));

for (const error of ['EIO', 'ENOSPC', 'EINTR'] as const) {
  test(`any system call of a store that is opened again may fail with ${error}, once or for good`, async (t) => {
    const before = (store: DiskStore, told: Map<number, Told>): Promise<void> => live(t, store, told);
    const calls = sumOf(await liveWith(t, undefined, 'no fault', before));
    t.true(calls > 80, `${calls} calls`);
    const step = scale > 1 ? 1 : scale < 1 ? 29 : 11;
    for (let nth = 1 + 3 * ['EIO', 'ENOSPC', 'EINTR'].indexOf(error); nth <= calls; nth += step) {
      await liveWith(t, { nth, error }, `call ${nth} fails with ${error}`, before);
      await liveWith(t, { nth, times: 2 ** 32, error }, `all calls from ${nth} on fail with ${error}`, before);
    }
  });
}

for (const [which, before] of [['a store', undefined], ['a store that is opened again', live]] as const) {
  slow('a sweep of all reads and writes')(`reads and writes of ${which} may move less than they were asked for, once or every time`, async (t) => {
    const first = before && ((store: DiskStore, told: Map<number, Told>) => before(t, store, told));
    const counts = await liveWith(t, undefined, 'no fault', first);
    for (const call of ['read', 'write'] as const) {
      t.true(counts[call]! > 10, `${counts[call]} calls of ${call}`);
      for (const mostBytes of [1, 4_095, 4_096, 5_000, 12_288]) {
        for (let nth = 1; nth <= counts[call]!; nth += scale > 1 ? 1 : 13) {
          await liveWith(t, { call, nth, mostBytes }, `${call} ${nth} moves ${mostBytes} bytes`, first);
        }
      }
      for (const mostBytes of [512, 5_000]) await liveWith(t, { call, times: 2 ** 32, mostBytes }, `every ${call} moves ${mostBytes} bytes`, first);
    }
  });
}

test('after a refused sync nothing more goes into that file, and what it should have kept is told as failed', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { threads: 1 }));
  t.deepEqual(await store.put(recordOf(1)), { stored: true });
  faults.add({ call: 'sync', error: 'EIO' });
  t.deepEqual(await store.put(recordOf(2)), { stored: false, reason: 'failed' });
  t.like(store.stats(), { failedSegments: 1, failedSyncs: 1, lastError: 'fdatasync: EIO', records: 1 });
  t.deepEqual(await store.put(recordOf(3)), { stored: true });
  t.is(store.stats().segments, 2, 'in another file');
  await assertExact(t, store, 1);
  await assertExact(t, store, 3);
  t.is(await versionOf(t, store, 2, [0]), undefined);
  await store.close();
}));

test('a folder whose sync was refused is synced with the next', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { threads: 1, durability: 'none' }));
  t.deepEqual(await store.put(recordOf(1)), { stored: true }); // makes a file
  faults.add({ call: 'syncFolder', error: 'EIO' });
  const folderSyncs = (): number => faults.counts().syncFolder;
  const before = folderSyncs();
  await t.throwsAsync(store.sync(), { code: 'KV_STORE_FAILED' });
  t.is(folderSyncs(), before + 1);
  await store.sync();
  t.is(folderSyncs(), before + 2);
  await store.sync();
  t.is(folderSyncs(), before + 2, 'nothing is new in it');
  t.is(store.stats().failedSyncs, 1);
  await store.close();
}));

test('a refused sync drops what was stored since the last one, and has removals written down again', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { threads: 1, durability: 'none' }));
  for (const number of [1, 2]) await store.put(recordOf(number));
  await store.sync();
  await store.put(recordOf(3));
  await store.remove([keyOf(1)]);
  faults.add({ call: 'sync', error: 'EIO' });
  await t.throwsAsync(store.sync(), { code: 'KV_STORE_FAILED' });
  t.like(store.stats(), { records: 1, unrecordedRemovals: 1 });
  t.is(await versionOf(t, store, 3, [0]), undefined);
  await store.sync();
  t.like(store.stats(), { unrecordedRemovals: 0, tombstones: 1 });
  await store.close();
  await withStore(options(directory), async (again) => {
    t.is(await versionOf(t, again, 1, [0]), undefined);
    await assertExact(t, again, 2);
  });
}));

test('a full disk refuses records and keeps answering reads and removals, and takes records again once there is room', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { threads: 1 }));
  let last = 0;
  while ((await store.put(recordOf(last, 0, sizes))).stored && store.stats().segments < 4) last += 1;
  faults.add({ call: 'allocate', times: 2 ** 32, error: 'ENOSPC' });
  let number = last + 1;
  let result = await store.put(recordOf(number, 0, sizes));
  while (result.stored) result = await store.put(recordOf(number += 1, 0, sizes));
  t.deepEqual(result, { stored: false, reason: 'no-space' });
  t.is(store.stats().lastError, 'fallocate: ENOSPC');
  for (let good = 0; good < number; good += 1) await assertExact(t, store, good, 0, sizes);
  const before = store.stats().fileBytes;
  const gone = Array.from({ length: number - 2 }, (_, index) => index);
  t.deepEqual(await store.remove(gone.map(keyOf)), { removed: number - 2, isRecorded: true });
  t.true(store.stats().fileBytes < before, 'files without a live record are deleted without room for anything');
  faults.clear();
  t.deepEqual(await store.put(recordOf(number, 0, sizes)), { stored: true });
  await store.close();
  await withStore(options(directory), async (again) => {
    for (const one of gone) t.is(await versionOf(t, again, one, [0], sizes), undefined);
    for (const one of [number - 2, number - 1, number]) await assertExact(t, again, one, 0, sizes);
  });
}));

test('one unreadable part of the disk takes no other stripe along', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { threads: 1 }));
  await store.put(recordOf(1, 0, [100, 70_000 - 4_096, 300]));
  // The header, then all of it at once, then each chunk by itself: the second of them fails too.
  faults.add({ call: 'read', nth: 2, error: 'EIO' });
  faults.add({ call: 'read', nth: 4, error: 'EIO' });
  // Nowhere near a page, so that they are read through a buffer.
  const targets = [100, 70_000 - 4_096, 300].map((size) => new Uint8Array(size + 1).subarray(1));
  const { reads, reason } = await store.get(keyOf(1), targets.map((target, at) => ({ stripe: at + 1, target })));
  t.deepEqual([reads, reason], [['good', 'io', 'good'], 'io']);
  await assertExact(t, store, 1, 0, [100, 70_000 - 4_096, 300]);
  faults.add({ call: 'read', nth: 2, flippedBit: 8 * 10 });
  t.deepEqual((await store.get(keyOf(1), targets.map((target, at) => ({ stripe: at + 1, target })))).reads, ['corrupt', 'good', 'good']);
  await store.close();
}));

test('where a file system has neither O_DIRECT nor preallocation, the store does without and says so', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  faults.add({ call: 'allocate', times: 2 ** 32, error: 'EOPNOTSUPP' });
  let store = await faults.open(options(directory, { threads: 1 }));
  faults.add({ call: 'open', error: 'EINVAL' });
  await store.put(recordOf(1));
  t.like(store.stats(), { direct: 'unsupported', preallocation: 'unsupported' });
  await assertExact(t, store, 1);
  await store.close();
  rmSync(`${directory}/none`, { force: true });
  faults.clear();
  store = await faults.open(options(directory, { direct: false }));
  t.is(store.stats().direct, 'off');
  await assertExact(t, store, 1);
  await store.close();
}));
