import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { DiskStore } from '#internal/store/disk-store.js';
import { openNamespaces } from '#internal/store/namespaces.js';
import { StoreFaults } from '#internal/store/store-faults.js';
import { crc32c } from '../helpers/crc32c.js';
import { refusesAsync } from '../helpers/refuses.js';
import { assertAccounts, assertExact, fileOf, folderOf, found, inFolder, keyOf, MiB, options, payloadOf, put, scale, withStore } from './store-world.js';

const world = JSON.stringify(require.resolve('./store-world.js'));

test('a file in place of the directory, missing rights and a full disk are typed errors', (t) => inFolder(async (directory) => {
  writeFileSync(`${directory}/file`, 'mine');
  await refusesAsync(t, DiskStore.open(options(`${directory}/file`)), 'KV_STORE_UNAVAILABLE', { statusName: 'ENOTDIR' });
  t.is(readFileSync(`${directory}/file`, 'utf8'), 'mine');
  for (const [call, name] of [['makeFolder', 'EACCES'], ['open', 'EROFS'], ['write', 'ENOSPC'], ['open', 'EMFILE']] as const) {
    const faults = new StoreFaults();
    faults.add({ call, times: 100, error: name });
    await refusesAsync(t, faults.open(options(`${directory}/${call}-${name}`)), 'KV_STORE_UNAVAILABLE', { statusName: name });
    faults.clear();
    await (await faults.open(options(`${directory}/${call}-${name}`))).close();
  }
}));

test('a folder of something else, a damaged identity and another version are refused, their files untouched', (t) => inFolder(async (directory) => {
  await withStore(options(directory), (store) => put(store, 1));
  const identity = `${folderOf(directory)}/identity`;
  const good = readFileSync(identity);
  const refused = async (code: string, bytes: Buffer): Promise<Error> => {
    writeFileSync(identity, bytes);
    const before = readdirSync(folderOf(directory)).map((name) => readFileSync(`${folderOf(directory)}/${name}`));
    const error = await t.throwsAsync(DiskStore.open(options(directory)), { code });
    t.deepEqual(readdirSync(folderOf(directory)).map((name) => readFileSync(`${folderOf(directory)}/${name}`)), before);
    return error;
  };
  await refused('KV_STORE_FOREIGN', Buffer.from('something else'));
  for (const at of [0, 5, 70, 253, 4_000]) {
    const damaged = Buffer.from(good);
    damaged[at]! ^= 1;
    await refused('KV_STORE_FOREIGN', damaged);
  }
  const later = Buffer.from(good);
  for (const version of [1, 3]) {
    later.writeUInt16LE(version, 4);
    later.writeUInt32LE(crc32c(Buffer.concat([later.subarray(0, 252), later.subarray(256)])), 252);
    t.like(await refused('KV_STORE_VERSION', later), { details: { version } });
  }
  writeFileSync(identity, good);
  await withStore(options(directory), (store) => assertExact(t, store, 1));
  mkdirSync(`${directory}/other/${folderOf(directory).split('/').at(-1)!}`, { recursive: true });
  writeFileSync(`${folderOf(`${directory}/other`)}/notes.txt`, 'mine');
  await t.throwsAsync(DiskStore.open(options(`${directory}/other`)), { code: 'KV_STORE_FOREIGN' });
  t.deepEqual(readdirSync(folderOf(`${directory}/other`)), ['notes.txt']);
}));

for (const [kind, code] of [['folder', 'KV_STORE_UNAVAILABLE'], ['pipe', 'KV_STORE_FOREIGN']] as const) {
  test(`a ${kind} in the place of an identity is refused where all stores of a directory are looked for`, (t) => inFolder(async (directory) => {
    const identity = path.join(directory, `kvs-${'0'.repeat(32)}`, 'identity');
    mkdirSync(kind === 'folder' ? identity : path.dirname(identity), { recursive: true });
    if (kind === 'pipe') execFileSync('mkfifo', [identity]);
    await t.throwsAsync(openNamespaces(directory).next(), { code });
  }));
}

test('pipes in the place of files are not waited for', (t) => inFolder(async (directory) => {
  await withStore(options(directory), (store) => put(store, 1));
  execFileSync('mkfifo', [fileOf(directory, 2)]);
  await withStore(options(directory), async (store) => {
    t.true(store.has(keyOf(1)) && !store.has(keyOf(2)));
    t.deepEqual(await put(store, 2), { stored: true });
    await assertExact(t, store, 2);
  });
  const identity = `${folderOf(directory)}/identity`;
  rmSync(identity);
  execFileSync('mkfifo', [identity]);
  await t.throwsAsync(DiskStore.open(options(directory)), { code: 'KV_STORE_FOREIGN' });
}));

test('files of others in a store are left alone and counted', (t) => inFolder(async (directory) => {
  await withStore(options(directory), (store) => put(store, 1));
  const others = ['notes.txt', `${keyOf(2)}.copy`, `${keyOf(2).slice(1)}.block`];
  for (const name of others) writeFileSync(`${folderOf(directory)}/${name}`, 'mine');
  await withStore(options(directory), async (store) => {
    t.is(store.stats().foreignFiles, 3);
    await assertExact(t, store, 1);
  });
  for (const name of others) t.is(readFileSync(`${folderOf(directory)}/${name}`, 'utf8'), 'mine');
}));

test('a block of a later format is refused with the store, and stays', (t) => inFolder(async (directory) => {
  await withStore(options(directory), (store) => put(store, 1));
  const header = readFileSync(fileOf(directory, 1));
  header.writeUInt16LE(3, 4);
  const used = header.readUInt32LE(12);
  header.writeUInt32LE(crc32c(Buffer.concat([header.subarray(0, 252), header.subarray(256, used)])), 252);
  writeFileSync(fileOf(directory, 1), header);
  await t.throwsAsync(DiskStore.open(options(directory)), { code: 'KV_STORE_VERSION' });
  t.deepEqual(readFileSync(fileOf(directory, 1)), header);
}));

test('blocks of another namespace are never seen, and both can be open', (t) => inFolder((directory) => withStore(options(directory), async (first) => {
  await put(first, 1, 1);
  await withStore(options(directory, { namespace: Buffer.from('another model') }), async (second) => {
    t.false(second.has(keyOf(1)));
    await put(second, 1, 2);
    await assertExact(t, second, 1, 2);
    await assertExact(t, first, 1, 1);
  });
})));

test('one store at a time has a directory, until its process is killed', (t) => inFolder(async (directory) => {
  await withStore(options(directory), async () => {
    await refusesAsync(t, DiskStore.open(options(directory)), 'KV_STORE_LOCKED', { process: process.pid });
  });
  const program = `
    const world = require(${world});
    world.withStore(world.options(process.argv[1]), async (store) => {
      await world.put(store, 1);
      console.log('open');
      await new Promise(() => setInterval(() => {}, 1e6));
    });`;
  const child = spawn(process.execPath, ['-e', program, directory], { cwd: process.cwd(), stdio: ['ignore', 'pipe', 'inherit'] });
  await once(child.stdout, 'data');
  await t.throwsAsync(DiskStore.open(options(directory)), { code: 'KV_STORE_LOCKED', message: new RegExp(`process ${child.pid!}\\b`) });
  child.kill('SIGKILL');
  await once(child, 'exit');
  await withStore(options(directory), (store) => assertExact(t, store, 1));
}));

test('blocks that cannot be opened when their store is take their room all the same', (t) => inFolder(async (directory) => {
  const before = await withStore(options(directory), async (store) => {
    for (const number of [1, 2, 3]) await put(store, number);
    return store.stats().fileBytes;
  });
  const faults = new StoreFaults();
  const paths = [1, 2, 3].map((number) => fileOf(directory, number));
  faults.add({ call: 'open', nth: 4, times: 3, error: 'EMFILE' }); // behind the identity, the lock and the identity
  const store = await faults.open(options(directory, { threads: 1 }));
  t.like(store.stats(), { blocks: 0, fileBytes: before });
  await store.close();
  t.true(paths.every((file) => existsSync(file)));
  t.is((await found(options(directory))).size, 3);
}));

test('an unfinished file that cannot be deleted when a store is opened counts, and goes with a later change', (t) => inFolder(async (directory) => {
  await withStore(options(directory), (store) => put(store, 1));
  const left = fileOf(directory, 2).replace('.block', '.new');
  writeFileSync(left, Buffer.alloc(20_000));
  const faults = new StoreFaults();
  faults.add({ call: 'unlink', times: 2, error: 'EROFS' });
  const store = await faults.open(options(directory, { threads: 1, durability: 'none' }));
  for (let number = 3; number < 103; number += 1) await put(store, number); // more names than the folder had room for
  t.is(store.stats().leftFiles, 0, 'the second change deletes it');
  t.false(existsSync(left));
  assertAccounts(t, store, directory);
  await store.close();
}));

test('folders whose sync was refused when they were made are synced by the next start', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const given = options(path.join(directory, 'made', 'here'));
  faults.add({ call: 'syncFolder', times: 100, error: 'EIO' });
  await t.throwsAsync(faults.open(given), { code: 'KV_STORE_UNAVAILABLE' });
  faults.clear();
  faults.startJournal();
  const store = await faults.open(given);
  const synced = new Set(faults.takeJournal().filter(({ call }) => call === 'syncFolder').map((change) => change.path));
  for (const folder of [directory, path.join(directory, 'made'), given.directory, folderOf(given.directory)]) t.true(synced.has(folder), folder);
  await store.close();
}));

test('a store of many blocks is opened by one read for each, and tells all of them', (t) => inFolder(async (directory) => {
  const count = scale > 1 ? 10_000 : 300;
  const given = options(directory, { bytes: 512 * MiB, durability: 'none', threads: 4 });
  await withStore(given, async (store) => {
    for (let number = 0; number < count; number += 100) {
      const stored = await Promise.all(Array.from({ length: 100 }, (_, index) => put(store, number + index)));
      t.true(stored.every((result) => result.stored));
    }
  });
  const faults = new StoreFaults();
  const startMs = performance.now();
  const opened = await faults.open(given);
  t.log(`${count} blocks opened in ${Math.round(performance.now() - startMs)} ms`);
  t.is(faults.counts().read, count + 2, 'a header each, and the identity before it is locked and after');
  t.is(opened.stats().blocks, count);
  await opened.close();
  t.is((await found(given, async (store) => {
    for (let number = 0; number < count; number += 97) await assertExact(t, store, number);
  })).size, count);
}));

test('a store tells its blocks in the order in which they were written', (t) => inFolder(async (directory) => {
  const order = [3, 1, 4, 0, 2];
  await withStore(options(directory), async (store) => {
    for (const number of order) await put(store, number);
  });
  for (const [at, number] of order.entries()) utimesSync(fileOf(directory, number), at, at);
  t.deepEqual([...(await found(options(directory))).keys()], order);
}));

test('options that make no sense are refused by name', async (t) => {
  const wrong = { directory: '', bytes: 60_000, chunkBytes: 5_000, durability: 'synk', threads: 0, namespace: 'text' };
  for (const [option, received] of [...Object.entries(wrong), ['directory', 'a\0b']] as const) {
    await refusesAsync(t, DiskStore.open({ ...options('/nowhere'), [option]: received } as never),
      'KV_INVALID_OPTION', { option, received });
  }
  await refusesAsync(t, DiskStore.open({ ...options('/nowhere'), dir: 'x' } as never), 'KV_UNKNOWN_OPTION', { option: 'dir' });
});

test('a store is made by `open` alone, and names a wrong option of `verify`', (t) => inFolder((directory) => withStore(options(directory), async (store) => {
  await t.throwsAsync(store.verify({ signal: 3 as never }), { code: 'KV_INVALID_OPTION' });
  t.throws(() => new (DiskStore as unknown as new () => unknown)(), { code: 'KV_INVALID_OPTION' });
})));

test('a closed store answers closed, and closes once', (t) => inFolder(async (directory) => {
  const store = await DiskStore.open(options(directory));
  const stored = put(store, 1);
  const closing = store.close();
  t.is(store.close(), closing);
  t.true(store.isClosed);
  t.deepEqual(await put(store, 2), { stored: false, reason: 'closed' });
  t.deepEqual(await store.get(keyOf(1), payloadOf(1)), { isFound: false, reason: 'closed' });
  t.deepEqual(await store.reorder(keyOf(1), Int32Array.of(0)), { stored: false, reason: 'closed' });
  for (const call of [() => store.remove([keyOf(1)]), () => store.sync(), () => store.verify()]) {
    await t.throwsAsync(call, { code: 'KV_CLOSED' });
  }
  t.deepEqual(await stored, { stored: true }, 'what was asked for before is done');
  await closing;
  t.false(store.has(keyOf(1)));
  t.like(store.stats(), { blocks: 1, puts: 1 });
}));

test('a store that is opened while this process closes it waits for that', (t) => inFolder(async (directory) => {
  const first = await DiskStore.open(options(directory));
  await put(first, 1);
  const closing = first.close();
  const second = await DiskStore.open(options(directory));
  await assertExact(t, second, 1);
  await t.throwsAsync(DiskStore.open(options(directory)), { code: 'KV_STORE_LOCKED' });
  await closing;
  await second.close();
}));
