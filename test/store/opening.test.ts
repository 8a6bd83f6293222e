import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';

import test from 'ava';

import { DiskStore } from '#internal/store/disk-store.js';
import { StoreFaults } from '#internal/store/store-faults.js';
import { assertExact, folderOf, inFolder, keyOf, MiB, options, recordOf, scale, segmentsOf, withStore } from './store-world.js';

const world = JSON.stringify(require.resolve('./store-world.js'));

test('a file in place of the directory, missing rights and a full disk are typed errors that name the remedy', (t) => inFolder(async (directory) => {
  writeFileSync(`${directory}/file`, 'mine');
  const error = await t.throwsAsync(DiskStore.open(options(`${directory}/file`)), { code: 'KV_STORE_UNAVAILABLE' });
  t.regex(error!.message, /ENOTDIR.*name a directory/);
  t.is(readFileSync(`${directory}/file`, 'utf8'), 'mine');
  for (const [call, name, remedy] of [['makeFolder', 'EACCES', /right to write/], ['open', 'EROFS', /right to write/], ['write', 'ENOSPC', /Free space/], ['open', 'EMFILE', /ulimit/]] as const) {
    const faults = new StoreFaults();
    faults.add({ call, times: 100, error: name });
    const refused = await t.throwsAsync(faults.open(options(`${directory}/${call}-${name}`)), { code: 'KV_STORE_UNAVAILABLE' });
    t.regex(refused!.message, remedy, name);
    faults.clear();
    await (await faults.open(options(`${directory}/${call}-${name}`))).close();
  }
}));

test('a folder of something else, a damaged identity and a later version are refused, their files untouched', (t) => inFolder(async (directory) => {
  await withStore(options(directory), (store) => store.put(recordOf(1)));
  const identity = `${folderOf(directory)}/identity`;
  const good = readFileSync(identity);
  const refused = async (code: string, bytes: Buffer): Promise<void> => {
    writeFileSync(identity, bytes);
    const before = readdirSync(folderOf(directory)).map((name) => readFileSync(`${folderOf(directory)}/${name}`));
    await t.throwsAsync(DiskStore.open(options(directory)), { code });
    t.deepEqual(readdirSync(folderOf(directory)).map((name) => readFileSync(`${folderOf(directory)}/${name}`)), before);
  };
  await refused('KV_STORE_FOREIGN', Buffer.from('something else'));
  for (const at of [0, 5, 70, 253, 4_000]) {
    const damaged = Buffer.from(good);
    damaged[at]! ^= 1;
    await refused('KV_STORE_FOREIGN', damaged);
  }
  const later = Buffer.from(good);
  later.writeUInt16LE(2, 4);
  later.writeUInt32LE(crc32c(Buffer.concat([later.subarray(0, 252), later.subarray(256)])), 252);
  await refused('KV_STORE_VERSION', later);
  writeFileSync(identity, good);
  await withStore(options(directory), (store) => assertExact(t, store, 1));
  mkdirSync(`${directory}/other/${folderOf(directory).split('/').at(-1)!}`, { recursive: true });
  writeFileSync(`${folderOf(`${directory}/other`)}/notes.txt`, 'mine');
  await t.throwsAsync(DiskStore.open(options(`${directory}/other`)), { code: 'KV_STORE_FOREIGN' });
  t.deepEqual(readdirSync(folderOf(`${directory}/other`)), ['notes.txt']);
}));

test('files of others in a store are left alone and counted', (t) => inFolder(async (directory) => {
  await withStore(options(directory), (store) => store.put(recordOf(1)));
  writeFileSync(`${folderOf(directory)}/notes.txt`, 'mine');
  writeFileSync(segmentsOf(directory)[0]!.replace(/seg-../, 'seg-zz'), 'mine');
  await withStore(options(directory), async (store) => {
    t.is(store.stats().foreignFiles, 2);
    await assertExact(t, store, 1);
  });
  t.is(readFileSync(`${folderOf(directory)}/notes.txt`, 'utf8'), 'mine');
}));

test('records of another namespace are never seen, and both can be open', (t) => inFolder((directory) => withStore(options(directory), async (first) => {
  await first.put(recordOf(1, 1));
  await withStore(options(directory, { namespace: Buffer.from('another model') }), async (second) => {
    t.false(second.has(keyOf(1)));
    await second.put(recordOf(1, 2));
    await assertExact(t, second, 1, 2);
    await assertExact(t, first, 1, 1);
  });
})));

test('one store at a time has a directory, until its process is killed', (t) => inFolder(async (directory) => {
  await withStore(options(directory), async () => {
    await t.throwsAsync(DiskStore.open(options(directory)), { code: 'KV_STORE_LOCKED', message: new RegExp(`process ${process.pid}\\b`) });
  });
  const program = `
    const world = require(${world});
    world.withStore(world.options(process.argv[1]), async (store) => {
      await store.put(world.recordOf(1));
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

test('a store of thousands of records is opened by a few reads for each segment', (t) => inFolder(async (directory) => {
  const count = scale > 1 ? 10_000 : 2_000;
  const given = options(directory, { bytes: 512 * MiB, segmentBytes: 4 * MiB, durability: 'none', threads: 4 });
  await withStore(given, async (store) => {
    for (let number = 0; number < count; number += 100) {
      const stored = await Promise.all(Array.from({ length: 100 }, (_, index) => store.put(recordOf(number + index))));
      t.true(stored.every((result) => result.stored));
    }
  });
  const faults = new StoreFaults();
  const startMs = performance.now();
  const opened = await faults.open(given);
  t.log(`${count} records opened in ${Math.round(performance.now() - startMs)} ms`);
  const { read } = faults.counts();
  const { segments, records } = opened.stats();
  await opened.close();
  t.is(records, count);
  t.true(segments > 3 && read <= 3 * segments + 2, `${read} reads for ${segments} segments: first block, last block, footer; and the identity`);
  await withStore(given, async (store) => {
    const found = new Set<number>();
    for await (const { position } of store.records()) found.add(position / 16);
    t.is(found.size, count);
    for (let number = 0; number < count; number += 97) await assertExact(t, store, number);
  });
}));

test('options that make no sense are refused, and say what would', async (t) => {
  const wrong = async (more: object, message: RegExp): Promise<void> => {
    await t.throwsAsync(DiskStore.open({ ...options('/nowhere'), ...more } as never), { message });
  };
  await wrong({ directory: '' }, /not empty/);
  await wrong({ directory: 'a\0b' }, /zero character/);
  await wrong({ bytes: 128 * 1024 }, /`bytes`/);
  await wrong({ segmentBytes: 5_000 }, /`segmentBytes`/);
  await wrong({ segmentBytes: 2 * MiB }, /4 × `segmentBytes`/);
  await wrong({ durability: 'synk' }, /Did you mean 'sync'/);
  await wrong({ threads: 0 }, /`threads`/);
  await wrong({ namespace: 'text' }, /`namespace`/);
  await wrong({ dir: 'x' }, /Unknown option `dir`/);
});

test('bad arguments are refused before anything happens', (t) => inFolder((directory) => withStore(options(directory), async (store) => {
  const key = keyOf(1);
  const invalid = { code: 'KV_INVALID_OPTION' };
  const resizable = new (ArrayBuffer as unknown as new (bytes: number, options: object) => ArrayBuffer)(8, { maxByteLength: 16 });
  const growable = new (SharedArrayBuffer as unknown as new (bytes: number, options: object) => SharedArrayBuffer)(8, { maxByteLength: 16 });
  const record = recordOf(1);
  for (const bad of [
    { ...record, key: new Uint8Array(31) }, { ...record, key: new Float32Array(8) }, { ...record, tokens: [1, 2] }, { ...record, position: -1 },
    { ...record, extra: new Uint8Array(2 ** 18 + 1) }, { ...record, stripes: [{ id: 1, source: key }, { id: 1, source: key }] },
    { ...record, stripes: [{ id: -1, source: key }] }, { ...record, stripes: [{ id: 1, source: 'x' }] },
    { ...record, stripes: [{ id: 1, source: new Uint8Array(resizable) }] },
    { ...record, stripes: [{ id: 1, source: new Uint8Array(growable) }] },
    { ...record, stripes: [{ id: 1, source: { address: 0n, bytes: 8 } }] }, { ...record, stripes: [{ id: 1, source: { address: 8n, bytes: -8 } }] },
    { ...record, stripes: undefined },
  ]) await t.throwsAsync(store.put(bad as never), invalid);
  for (const bad of [[{ stripe: 1 }], [{ stripe: 1, target: new Uint8Array(1), offset: -1 }], [{ stripe: 1.5, target: key }], undefined, 'x']) {
    await t.throwsAsync(store.get(key, bad as never), invalid);
  }
  await t.throwsAsync(store.get(new Uint8Array(3), []), invalid);
  await t.throwsAsync(store.remove([new Uint8Array(3)]), invalid);
  await t.throwsAsync(store.verify({ signal: 3 as never }), invalid);
  t.throws(() => store.has('x' as never), invalid);
  t.throws(() => new (DiskStore as unknown as new () => unknown)(), invalid);
  t.is(store.stats().records, 0);
})));

test('a closed store answers closed, and closes once', (t) => inFolder(async (directory) => {
  const store = await DiskStore.open(options(directory));
  const stored = store.put(recordOf(1));
  const closing = store.close();
  t.is(store.close(), closing);
  t.true(store.isClosed);
  t.deepEqual(await store.put(recordOf(2)), { stored: false, reason: 'closed' });
  t.deepEqual(await store.get(keyOf(1), [{ stripe: 1, target: new Uint8Array(1) }]), { isHit: false, reason: 'closed', reads: ['closed'] });
  for (const call of [() => store.remove([keyOf(1)]), () => store.sync(), () => store.gc(), () => store.verify(), () => store.records().next()]) {
    await t.throwsAsync(call, { code: 'KV_CLOSED' });
  }
  t.deepEqual(await stored, { stored: true }, 'what was asked for before is done');
  await closing;
  t.false(store.has(keyOf(1)));
  t.like(store.stats(), { records: 1, puts: 1 });
}));

function crc32c(bytes: Uint8Array): number {
  let sum = -1;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = (sum & 1) === 0 ? sum >>> 1 : (sum >>> 1) ^ 0x82f63b78;
  }
  return ~sum >>> 0;
}

test('a store that is opened while this process closes it waits for that', (t) => inFolder(async (directory) => {
  const first = await DiskStore.open(options(directory));
  await first.put(recordOf(1));
  const closing = first.close();
  const second = await DiskStore.open(options(directory));
  await assertExact(t, second, 1);
  await t.throwsAsync(DiskStore.open(options(directory)), { code: 'KV_STORE_LOCKED' });
  await closing;
  await second.close();
}));
