// Levels of blocks: hints that the store keeps in their headers, through restarts and reordering.

import { readFileSync, writeFileSync } from 'node:fs';

import test from 'ava';

import { assertExact, blockOf, fileOf, found, inFolder, keyOf, options, payloadOf, rowsOf, smallSizes, type Sizes } from './store-world.js';
import type { DiskStore } from '#internal/store/disk-store.js';

/** In a block's header. */
const levelAt = 36;
const sizes: Sizes = [16_384];
const fromTheEnd = Int32Array.from({ length: 16 }, (_, token) => 15 - token);

async function levelsIn(given: ReturnType<typeof options>, work?: (store: DiskStore) => Promise<void>): Promise<[number, number][]> {
  return [...await found(given, work)].map(([number, { level }]): [number, number] => [number, level]).toSorted(([a], [b]) => a - b);
}

function putAt(store: DiskStore, number: number, level: number | undefined, of: Sizes = smallSizes): Promise<unknown> {
  return store.put({ ...blockOf(number, 0, of), level }, rowsOf(of), payloadOf(number, 0, of));
}

test('a block has the level that it was put with, also when its store is opened again', (t) => inFolder(async (directory) => {
  const all: [number, number | undefined][] = [[1, 0], [2, 1], [3, 200], [4, 255], [5, undefined]];
  await levelsIn(options(directory), async (store) => {
    for (const [number, level] of all) t.deepEqual(await putAt(store, number, level), { stored: true });
  });
  t.deepEqual(await levelsIn(options(directory)), all.map(([number, level = 0]) => [number, level]));
}));

test('a level that is set later is written with the next copy of its block, in another order', (t) => inFolder(async (directory) => {
  const given = options(directory);
  await levelsIn(given, async (store) => {
    for (let number = 0; number < 4; number += 1) await putAt(store, number, 3, sizes);
    for (const number of [0, 1, 2]) store.setLevel(keyOf(number), 200 + number);
    store.setLevel(keyOf(99), 1); // which it does not have
  });
  t.deepEqual(await levelsIn(given, async (store) => {
    for (const number of [0, 1, 2]) store.setLevel(keyOf(number), 200 + number);
    t.deepEqual(await store.reorder(keyOf(0), fromTheEnd), { stored: true });
    t.deepEqual(await store.reorder(keyOf(2), fromTheEnd), { stored: true });
    store.setLevel(keyOf(2), 9); // behind its copy
  }), [[0, 3], [1, 3], [2, 3], [3, 3]], 'none was written alone');
  t.deepEqual(await levelsIn(given, async (store) => {
    for (const number of [0, 1, 2, 3]) await assertExact(t, store, number, 0, sizes);
  }), [[0, 200], [1, 3], [2, 202], [3, 3]]);
}));

test('a flipped bit of a level hides its block, and never changes the level', (t) => inFolder(async (directory) => {
  await levelsIn(options(directory, { direct: false }), async (store) => { await putAt(store, 1, 0xa5); });
  const image = readFileSync(fileOf(directory, 1));
  t.is(image[levelAt], 0xa5);
  for (let bit = 0; bit < 8; bit += 1) {
    const damaged = Buffer.from(image);
    damaged[levelAt]! ^= 1 << bit;
    writeFileSync(fileOf(directory, 1), damaged);
    t.deepEqual(await levelsIn(options(directory, { direct: false }), (store) => {
      t.is(store.stats().damagedFiles, 1);
      return Promise.resolve();
    }), [], `bit ${bit}`);
  }
}));
