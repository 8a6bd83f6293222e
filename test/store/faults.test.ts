// System calls that fail: whichever it is, and whether once or for good, nothing that was acknowledged is lost, nothing
// removed comes back, no wrong byte is called good, and the store goes on once the disk does.

import { existsSync, readdirSync, renameSync } from 'node:fs';

import test, { type ExecutionContext } from 'ava';

import { isKvError } from '#internal/base/errors.js';
import { StoreFaults, type StoreFault } from '#internal/store/store-faults.js';
import { DiskStore } from '#internal/store/disk-store.js';
import { HostMemory, pagePieces } from '#internal/tiers/host-memory.js';
import {
  assertAccounts, assertExact, blockOf, fileOf, folderOf, found, inFolder, keyOf, KiB, MiB, options, payloadOf, put, readBack, readTokens, rowsOf, scale,
  versionOf, withStore, type Sizes,
} from './store-world.js';
import { slow } from '../runner/slow.js';

/** What the caller was told last about a block. */
type Told = 'stored' | 'removed' | 'unsure';

const sizes: Sizes = [20 * KiB, 16];
const reversed = Int32Array.from({ length: 16 }, (_, token) => 15 - token);
const numbers = [0, 1, 2, 3, 4, 5, 6, 7, 8];

/** A store's life: puts, reads, removals, new orders, close. `told` gets what the caller was told. */
async function live(t: ExecutionContext, store: DiskStore, told: Map<number, Told>): Promise<void> {
  const keep = async (number: number): Promise<void> => {
    told.set(number, (await put(store, number, 0, sizes)).stored ? 'stored' : 'unsure');
  };
  const remove = async (...gone: number[]): Promise<void> => {
    const { isRecorded } = await store.remove(gone.map(keyOf));
    for (const number of gone) {
      told.set(number, isRecorded ? 'removed' : 'unsure');
      t.is(await versionOf(t, store, number, [0], sizes), undefined, 'what is removed is a miss at once');
    }
  };
  for (const number of numbers.slice(0, 8)) await keep(number);
  for (const number of numbers) await versionOf(t, store, number, [0], sizes);
  await store.reorder(keyOf(3), reversed); // it stays what it was, whatever becomes of this
  await remove(0, 1, 2);
  for (const number of [0, 5, 4]) await store.reorder(keyOf(number), reversed);
  await remove(5);
  for (const number of numbers) await versionOf(t, store, number, [0], sizes);
  for (const number of numbers) await readTokens(t, store, number, 0, sizes, 0, [1, 9]);
  await keep(1);
  await keep(8);
  await store.sync().catch((error: unknown) => t.true(isKvError(error, 'KV_STORE_FAILED')));
}

async function judge(t: ExecutionContext, directory: string, told: ReadonlyMap<number, Told>, what: string): Promise<void> {
  await withStore(options(directory, { threads: 1 }), async (store) => {
    for (const [number, state] of told) {
      const version = await versionOf(t, store, number, [0], sizes);
      if (state === 'stored') t.is(version, 0, `${what}: block ${number} was stored and is lost`);
      if (state === 'removed') t.is(version, undefined, `${what}: block ${number} was removed and is back`);
    }
    assertAccounts(t, store, directory);
    t.true(readdirSync(folderOf(directory)).every((name) => !name.endsWith('.new') || name === 'identity.new'), `${what}: a file is left unfinished`);
    t.deepEqual(await put(store, 99, 1), { stored: true }, what);
    await assertExact(t, store, 99, 1);
  });
}

/** The life of a store that was opened again: what it has is read, removed, put anew; then there is more. */
async function liveAgain(t: ExecutionContext, store: DiskStore, told: Map<number, Told>): Promise<void> {
  const keep = async (number: number): Promise<void> => {
    const result = await put(store, number, 0, sizes);
    told.set(number, result.stored || result.reason === 'exists' ? 'stored' : 'unsure');
  };
  for (const number of numbers) await versionOf(t, store, number, [0], sizes);
  const { isRecorded } = await store.remove([4, 6].map(keyOf));
  for (const number of [4, 6]) told.set(number, isRecorded ? 'removed' : 'unsure');
  for (const number of [7, 3, 4]) await store.reorder(keyOf(number), reversed.toReversed());
  for (const number of numbers) if (number !== 4 && number !== 6) await versionOf(t, store, number, [0], sizes);
  for (const number of [0, 4, 9, 10, 11]) await keep(number);
  await store.remove([keyOf(10)]).then((result) => told.set(10, result.isRecorded ? 'removed' : 'unsure'));
  await keep(12);
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

for (const [which, before] of [['a store', undefined], ['a store that is opened again', live]] as const) {
  const first = (t: ExecutionContext): Parameters<typeof liveWith>[3] => before && ((store, told) => before(t, store, told));
  for (const error of ['EIO', 'ENOSPC', 'EINTR'] as const) {
    test(`any system call of ${which} may fail with ${error}, once or for good`, async (t) => {
      const calls = sumOf(await liveWith(t, undefined, 'no fault', first(t)));
      t.true(calls > 60, `${calls} calls`);
      const step = scale > 1 ? 1 : scale < 1 ? 29 : 11; // the three errors take turns at the calls
      for (let nth = 1 + 3 * ['EIO', 'ENOSPC', 'EINTR'].indexOf(error); nth <= calls; nth += step) {
        await liveWith(t, { nth, error }, `call ${nth} fails with ${error}`, first(t));
        await liveWith(t, { nth, times: 2 ** 32, error }, `all calls from ${nth} on fail with ${error}`, first(t));
      }
    });
  }

  slow('a sweep of all reads and writes')(`reads and writes of ${which} may move less than they were asked for, once or every time`, async (t) => {
    const counts = await liveWith(t, undefined, 'no fault', first(t));
    for (const call of ['read', 'write'] as const) {
      t.true(counts[call]! > 8, `${counts[call]} calls of ${call}`);
      for (const mostBytes of [1, 4_095, 4_096, 5_000, 12_288]) {
        for (let nth = 1; nth <= counts[call]!; nth += scale > 1 ? 1 : 13) {
          await liveWith(t, { call, nth, mostBytes }, `${call} ${nth} moves ${mostBytes} bytes`, first(t));
        }
      }
      for (const mostBytes of [512, 5_000]) await liveWith(t, { call, times: 2 ** 32, mostBytes }, `every ${call} moves ${mostBytes} bytes`, first(t));
    }
  });
}

test('a header that could not be read when a store was opened leaves its block as it is, until it is put anew', (t) => inFolder(async (directory) => {
  await withStore(options(directory), async (store) => {
    for (const number of [1, 2]) await put(store, number, 1);
  });
  const faults = new StoreFaults();
  faults.add({ call: 'read', nth: 3, times: 2, error: 'EIO' }); // the identity is read before it is locked and after
  const store = await faults.open(options(directory, { threads: 1 }));
  t.false(store.has(keyOf(1)) || store.has(keyOf(2)));
  t.like(store.stats(), { blocks: 0, damagedFiles: 0, failedReads: 2, lastError: 'preadv: EIO' });
  t.true(store.stats().fileBytes >= 2 * 8 * KiB, 'their room counts');
  t.false((await store.remove([])).isRecorded, 'a restart may find in them what was to be removed');
  const { fileBytes } = store.stats();
  t.deepEqual(await put(store, 1, 2), { stored: true });
  t.like(store.stats(), { fileBytes, leftFiles: 0 }, 'it takes the place of the file that was there');
  await assertExact(t, store, 1, 2);
  await store.close();
  await withStore(options(directory), async (again) => {
    await assertExact(t, again, 1, 2);
    await assertExact(t, again, 2, 1);
  });
  faults.add({ call: 'read', nth: 3, error: 'EIO' });
  const third = await faults.open(options(directory, { threads: 1 }));
  const gone = [1, 2].map(keyOf);
  t.like(await third.remove(gone), { removed: 1, isRecorded: true }, 'nothing unread is left');
  assertAccounts(t, third, directory);
  await third.close();
}));

test('a refused sync of a put is told as failed, and leaves nothing', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { threads: 1 }));
  t.deepEqual(await put(store, 1), { stored: true });
  for (const [call, name] of [['sync', 'fdatasync'], ['syncFolder', 'fsync']] as const) {
    faults.add({ call, error: 'EIO' });
    t.deepEqual(await put(store, 2), { stored: false, reason: 'failed' });
    t.like(store.stats(), { lastError: `${name}: EIO`, blocks: 1 });
    t.false(existsSync(fileOf(directory, 2)));
    assertAccounts(t, store, directory);
  }
  t.is(store.stats().failedSyncs, 2);
  t.deepEqual(await put(store, 2), { stored: true });
  await store.close();
}));

test('a sync that is refused refuses what waited for it, too', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { threads: 4 }));
  const before = faults.counts().rename;
  faults.add({ call: 'syncFolder', error: 'EIO', holds: true });
  const first = put(store, 1);
  while (faults.held === 0) await new Promise(setImmediate);
  const second = put(store, 2);
  while (faults.counts().rename < before + 2) await new Promise(setImmediate); // before the first sync is over
  faults.clear();
  t.deepEqual(await Promise.all([first, second]), [first, second].map(() => ({ stored: false, reason: 'failed' })));
  t.deepEqual([1, 2].map((number) => existsSync(fileOf(directory, number))), [false, false]);
  assertAccounts(t, store, directory);
  t.deepEqual(await put(store, 2), { stored: true });
  await store.close();
}));

test('a refused sync of what was stored since the last one loses those blocks, and says which', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const lost: string[] = [];
  const store = await faults.open(options(directory, { threads: 1, durability: 'interval' }), { lost: (keys) => { lost.push(...keys); } });
  for (const number of [1, 2]) await put(store, number);
  await store.sync();
  await put(store, 3);
  faults.add({ call: 'sync', error: 'EIO' });
  await t.throwsAsync(store.sync(), { code: 'KV_STORE_FAILED' });
  t.deepEqual(lost, [keyOf(3)]);
  t.false(store.has(keyOf(3)));
  t.is((await readBack(store, 3)).reason, 'absent');
  t.deepEqual(await put(store, 3), { stored: true }, 'once its file is gone');
  await store.sync();
  await store.close();
  await withStore(options(directory), async (again) => {
    for (const number of [1, 2, 3]) await assertExact(t, again, number);
  });
}));

test('a block whose sync is refused before its put is answered is not stored', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const lost: string[] = [];
  const store = await faults.open(options(directory, { threads: 1, durability: 'interval' }), { lost: (keys) => { lost.push(...keys); } });
  faults.add({ call: 'sync', error: 'EIO' });
  const storing = put(store, 1);
  const syncing = t.throwsAsync(store.sync(), { code: 'KV_STORE_FAILED' });
  const removing = store.remove([keyOf(2)]);
  // Its thread has delivered all that comes before, and this one has heard of nothing.
  while (faults.counts().unlink === 0) { /* soon */ }
  t.deepEqual(await storing, { stored: false, reason: 'failed' });
  await Promise.all([syncing, removing]);
  t.false(store.has(keyOf(1)));
  t.deepEqual(lost, []);
  assertAccounts(t, store, directory);
  t.deepEqual(await put(store, 1, 2), { stored: true });
  await store.sync();
  await assertExact(t, store, 1, 2);
  await store.close();
}));

test('a sync beside another waits until what was stored before is on disk', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { threads: 4, durability: 'interval' }));
  faults.add({ call: 'sync', holds: true });
  await put(store, 1);
  const first = store.sync(); // or the timer came before
  while (faults.held === 0) await new Promise(setImmediate);
  let isOver = false;
  const second = store.sync().then(() => { isOver = true; });
  for (let turn = 0; turn < 50; turn += 1) await new Promise(setImmediate);
  await store.get(keyOf(1), payloadOf(1)); // its thread had time
  t.false(isOver);
  faults.clear();
  await Promise.all([first, second]);
  await store.close();
}));

test('a folder whose sync was refused is synced with the next', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { threads: 1, durability: 'interval' }));
  await put(store, 1);
  await store.sync();
  await store.remove([keyOf(1)]);
  faults.add({ call: 'syncFolder', error: 'EIO' });
  const before = faults.counts().syncFolder;
  await t.throwsAsync(store.sync(), { code: 'KV_STORE_FAILED' });
  t.is(faults.counts().syncFolder, before + 1, 'removals are synced with their folder');
  await store.sync();
  t.is(faults.counts().syncFolder, before + 2);
  await store.sync();
  t.is(faults.counts().syncFolder, before + 2, 'nothing is new in it');
  await store.close();
}));

test('a file that the disk refuses to delete counts, is a miss, and goes with a later change', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { threads: 1 }));
  for (const number of [1, 2]) await put(store, number);
  const { fileBytes } = store.stats();
  faults.add({ call: 'unlink', error: 'EROFS', times: 2 });
  t.deepEqual(await store.remove([keyOf(1)]), { removed: 1, isRecorded: false });
  t.is((await readBack(store, 1)).reason, 'absent');
  t.like(store.stats(), { leftFiles: 1, fileBytes, blocks: 1, lastError: 'unlink: EROFS' });
  t.false((await store.remove([keyOf(9)])).isRecorded, 'what was removed before may be back');
  t.like(store.stats(), { leftFiles: 1, fileBytes });
  t.true((await store.remove([])).isRecorded);
  t.like(store.stats(), { leftFiles: 0 });
  t.false(existsSync(fileOf(directory, 1)));
  assertAccounts(t, store, directory);
  faults.add({ call: 'unlink', error: 'EROFS' });
  await store.remove([keyOf(2)]);
  t.deepEqual(await put(store, 2, 5), { stored: true }, 'a new file takes its place');
  t.is(store.stats().leftFiles, 0);
  assertAccounts(t, store, directory);
  await store.close();
  await withStore(options(directory), (again) => assertExact(t, again, 2, 5));
}));

test('of a folder that is away for a time no block is lost, and none counts as deleted until it is back', (t) => inFolder(async (directory) => {
  const store = await DiskStore.open(options(directory, { threads: 1 }));
  for (const number of [1, 2, 3]) await put(store, number);
  const [folder, away] = [folderOf(directory), `${directory}/away`];
  renameSync(folder, away);
  t.deepEqual(await store.remove([keyOf(1)]), { removed: 1, isRecorded: false });
  t.is((await readBack(store, 2)).reason, 'io');
  t.false((await put(store, 4)).stored);
  t.like(store.stats(), { blocks: 2, leftFiles: 1 });
  renameSync(away, folder);
  await assertExact(t, store, 2, 0);
  await store.remove([keyOf(3)]);
  t.like(store.stats(), { blocks: 1, leftFiles: 0 });
  assertAccounts(t, store, directory);
  await store.close();
  t.deepEqual([...(await found(options(directory))).keys()], [2]);
}));

test('a full disk refuses blocks, keeps answering reads, gives room back by removals, and takes blocks again', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { threads: 1 }));
  for (const number of [1, 2, 3]) await put(store, number, 0, sizes);
  faults.add({ call: 'write', times: 2 ** 32, error: 'ENOSPC' });
  t.deepEqual(await put(store, 4, 0, sizes), { stored: false, reason: 'no-space' });
  t.deepEqual(await store.reorder(keyOf(1), reversed), { stored: false, reason: 'no-space' });
  t.is(store.stats().lastError, 'pwritev: ENOSPC');
  assertAccounts(t, store, directory);
  for (const number of [1, 2, 3]) await assertExact(t, store, number, 0, sizes);
  t.deepEqual(await store.remove([keyOf(1)]), { removed: 1, isRecorded: true });
  t.false(existsSync(fileOf(directory, 1)));
  faults.clear();
  t.deepEqual(await put(store, 4, 0, sizes), { stored: true });
  await store.close();
  await withStore(options(directory), async (again) => {
    t.is(await versionOf(t, again, 1, [0], sizes), undefined);
    for (const number of [2, 3, 4]) await assertExact(t, again, number, 0, sizes);
  });
}));

test('where descriptors are short, those of blocks that are kept open are closed first', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { threads: 1 }));
  for (const number of [1, 2]) await put(store, number, 0, sizes);
  for (const [what, again, call = 'open'] of [
    ['a read', async () => { await assertExact(t, store, 2, 0, sizes); }],
    ['a put', async () => { t.deepEqual(await put(store, 3, 0, sizes), { stored: true }); }],
    ['a sync of the folder', async () => { t.deepEqual(await put(store, 4, 0, sizes), { stored: true }); }, 'syncFolder'],
  ] as const) {
    await readTokens(t, store, 1, 0, sizes, 0, [1]);
    t.is(store.stats().openFiles, 1);
    faults.add({ call, error: 'EMFILE' });
    await again();
    t.is(store.stats().openFiles, 0, what);
  }
  await store.close();
  const later = await faults.open(options(directory, { threads: 1, durability: 'interval' }));
  await readTokens(t, later, 1, 0, sizes, 0, [1]);
  faults.add({ call: 'open', nth: 2, error: 'EMFILE' }); // behind that of the put
  await put(later, 5, 0, sizes);
  await later.sync();
  t.is(later.stats().openFiles, 0, 'a sync');
  await later.close();
}));

test('whichever call of a read fails, once or for good, a block is read exactly or told as unreadable', (t) => inFolder(async (directory) => {
  const memory = new HostMemory(16 * MiB, 2 * MiB, pagePieces);
  const whole = [256 * KiB, 64 * KiB];
  const payload = memory.take(320 * KiB)!;
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { bytes: 16 * MiB, threads: 1 }));
  payload.set(payloadOf(1, 0, whole));
  await store.put(blockOf(1, 0, whole), rowsOf(whole), payload);
  for (let nth = 1; nth <= 2; nth += 1) { // to open it, and to read it
    const outcomes: (readonly [string, Omit<StoreFault, 'nth'>, (string | undefined)[]])[] = [
      ['fails once', { error: 'EIO' }, ['io']],
      ['is interrupted', { error: 'EINTR' }, nth === 1 ? ['io'] : [undefined]],
      ['brings less', { mostBytes: 70_000 }, [undefined]],
      ['and all behind it bring less', { mostBytes: 70_000, times: 2 ** 32 }, [undefined]],
      ['brings another bit', { flippedBit: 8 * 8_292 }, nth === 1 ? [undefined] : ['corrupt']],
      ['brings another header', { flippedBit: 8 * 100 }, nth === 1 ? [undefined] : [undefined, 'corrupt']],
    ];
    for (const [what, fault, expected] of outcomes) {
      faults.clear();
      faults.add({ nth, ...fault });
      const { reason } = await readBack(store, 1, whole, payload);
      t.true(expected.includes(reason), `call ${nth} ${what}: ${reason}`);
      if (reason === undefined) t.is(Buffer.compare(payload, payloadOf(1, 0, whole)), 0);
    }
  }
  faults.clear();
  t.is((await readBack(store, 1, whole, payload)).reason, undefined);
  await store.close();
  memory.give(payload);
}));

test('where a file system has no O_DIRECT, the store does without and says so', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  let store = await faults.open(options(directory, { threads: 1 }));
  faults.add({ call: 'open', error: 'EINVAL' });
  t.deepEqual(await put(store, 1), { stored: true });
  t.is(store.stats().direct, 'unsupported');
  await assertExact(t, store, 1);
  await store.close();
  store = await faults.open(options(directory, { direct: false }));
  t.is(store.stats().direct, 'off');
  await assertExact(t, store, 1);
  await store.close();
  t.is((await found(options(directory))).size, 1);
}));
