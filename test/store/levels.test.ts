// Levels of records: hints that the store keeps in their headers, through restarts, garbage collection and reordering, and that a file which is older
// than levels lacks.

import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';
import { brotliDecompressSync } from 'node:zlib';

import test from 'ava';

import type { DiskStore } from '#internal/store/disk-store.js';
import { assertExact, folderOf, inFolder, keyOf, KiB, options, recordOf, segmentsOf, versionOf, withStore } from './store-world.js';

/** Of the first record of a segment, and of a level in a record's header. */
const [firstRecordAt, levelAt] = [4 * KiB, 208];
const sizes = [16 * KiB];
const fromTheEnd = Int32Array.from({ length: 16 }, (_, token) => 15 - token);

/** By the first token of each record: its level. */
async function levelsOf(store: DiskStore): Promise<ReadonlyMap<number, number>> {
  const levels = new Map<number, number>();
  for await (const { tokens, level } of store.records()) levels.set(tokens[0]! / 16, level);
  return levels;
}

test('a record has the level that it was put with, also when its store is opened again', (t) => inFolder(async (directory) => {
  const all: [number, number][] = [[1, 0], [2, 1], [3, 200], [4, 255]];
  await withStore(options(directory), async (store) => {
    for (const [number, level] of all) t.deepEqual(await store.put({ ...recordOf(number), level }), { stored: true });
    const { level, ...without } = recordOf(5);
    t.is(typeof level, 'number');
    await store.put(without);
    t.deepEqual([...await levelsOf(store)].sort(), [...all, [5, 0]]);
    for (const wrong of [-1, 256, 0.5, '1' as unknown as number]) {
      await t.throwsAsync(store.put({ ...recordOf(6), level: wrong }), { code: 'KV_INVALID_OPTION' });
      t.throws(() => { store.setLevel(keyOf(1), wrong); }, { code: 'KV_INVALID_OPTION' });
    }
    copyFileSync(segmentsOf(directory)[0]!, path.join(directory, 'unfinished'));
  });
  await withStore(options(directory), async (store) => { t.deepEqual([...await levelsOf(store)].sort(), [...all, [5, 0]]); });
  copyFileSync(path.join(directory, 'unfinished'), segmentsOf(directory)[0]!); // without a footer: headers are searched
  await withStore(options(directory), async (store) => { t.deepEqual([...await levelsOf(store)].sort(), [...all, [5, 0]]); });
}));

test('a level that is set later is written with the next copy of its record: by a collection, or in another order', (t) => inFolder(async (directory) => {
  const given = options(directory);
  await withStore(given, async (store) => {
    for (let number = 0; number < 12; number += 1) await store.put({ ...recordOf(number, 0, sizes), level: 3 });
    for (const number of [0, 1, 2]) store.setLevel(keyOf(number), 200 + number);
    store.setLevel(keyOf(99), 1); // which it does not have
    t.deepEqual([...(await levelsOf(store)).entries()].filter(([number]) => number < 4), [[0, 200], [1, 201], [2, 202], [3, 3]]);
  });
  await withStore(given, async (store) => {
    t.true([...(await levelsOf(store)).values()].every((level) => level === 3), 'it was not written alone');
    for (const number of [0, 1, 2]) store.setLevel(keyOf(number), 200 + number);
    t.deepEqual(await store.reorder(keyOf(0), fromTheEnd), { stored: true });
    await store.remove([3, 4, 5, 6].map(keyOf)); // most of the first file
    t.true((await store.gc()).copiedBytes >= 2 * 16 * KiB);
    store.setLevel(keyOf(2), 9); // behind its copy
    t.is((await levelsOf(store)).get(2), 9);
  });
  await withStore(given, async (store) => {
    const levels = await levelsOf(store);
    t.deepEqual([0, 1, 2, 7].map((number) => levels.get(number)), [200, 201, 202, 3]);
    for (const number of [0, 1, 2, 7]) await assertExact(t, store, number, 0, sizes);
  });
}));

test('a flipped bit of a level hides its record, and never changes the level', (t) => inFolder(async (directory) => {
  await withStore(options(directory, { direct: false }), async (store) => {
    await store.put({ ...recordOf(1), level: 0xa5 });
    await store.put({ ...recordOf(2), level: 3 });
  });
  const file = segmentsOf(directory)[0]!;
  const image = readFileSync(file);
  t.is(image[firstRecordAt + levelAt], 0xa5);
  t.true(image.subarray(firstRecordAt + levelAt + 1, firstRecordAt + 252).every((byte) => byte === 0), 'what later fields may have');
  for (let bit = 0; bit < 8 * (252 - levelAt); bit += 1) {
    const damaged = Buffer.from(image);
    // Both copies of the header: in its place, and in the footer.
    for (let at = damaged.indexOf('VKVR'); at >= 0; at = damaged.indexOf('VKVR', at + 4)) damaged[at + levelAt + (bit >>> 3)]! ^= 1 << (bit & 7);
    writeFileSync(file, damaged);
    await withStore(options(directory, { direct: false }), async (store) => { t.deepEqual([...await levelsOf(store)], [], `bit ${bit}`); });
  }
}));

/** The segment of a store with one record, as the package wrote it before records had levels. */
const older = {
  name: 'seg-95c0f4f82856d568f3c83451b64b744f-00000001.kvs',
  bytes: brotliDecompressSync(Buffer.from([
    'G/9PMC4KbOcVK2gaxtmlMGfYHmhkPPAd6r8AXebAOTigm7cHJNUC5RWouKzUPSmXycuVZome5BFjr6mVRtxLACG8UxEZXycHZAFoKoFJ+xZYGEgqYSDYPEtCONxQRE2O4uMDsGNlDgFwX/m5ubv0+W',
    '66nNKPMIb6Xj39m1kYHqsMZqCuEeqNV31yxOc+rfM4OGFiedMWJ51rAPA8tugDAHaszKAA3uEJ8A5EIAA0ABGCPH3wGJm+bb/EuhD/ybwXM54ni7JFVyuPNFgxbft5b/QAfHPhDF7CRG7qw0URc8vB',
    'x2mpr6NL2aRjuqsOBw0A+8URiaJGLu4RU/w0QBIppJFBFjnkUUARJZRRQRU11AEQEiQCItAnAIuARj4UDACAAIDe43lbgLSQRdj5dhurNxVioqG6juvP8FUN5p91APDpqSjAzTMQZmN8RDc/qMsUvB',
    'xsqK7hfNz5VkrtUiD8MsAeALxDQHwGiHestL4AdgEwBH4C8LCuv6B0DQBuX38F',
  ].join(''), 'base64')),
  sizes: [16, 32],
};

test('a record that was written before records had levels has level 0, and gets one with its next copy', (t) => inFolder(async (directory) => {
  const given = options(directory);
  await withStore(given, () => Promise.resolve());
  writeFileSync(path.join(folderOf(directory), older.name), older.bytes);
  await withStore(given, async (store) => {
    t.deepEqual([...await levelsOf(store)], [[1, 0]]);
    t.is(await versionOf(t, store, 1, [0], older.sizes), 0);
    t.is((await store.verify()).corrupt.length, 0);
    store.setLevel(keyOf(1), 7);
  });
  await withStore(given, async (store) => {
    t.deepEqual([...await levelsOf(store)], [[1, 0]]);
    store.setLevel(keyOf(1), 7);
    t.deepEqual(await store.reorder(keyOf(1), fromTheEnd), { stored: true });
  });
  await withStore(given, async (store) => {
    t.deepEqual([...await levelsOf(store)], [[1, 7]]);
    t.is(await versionOf(t, store, 1, [0], older.sizes), 0);
  });
}));
