import { readdirSync } from 'node:fs';

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { DiskStore } from '#internal/store/disk-store.js';
import { StoreFaults } from '#internal/store/store-faults.js';
import { seedOf } from '../helpers/seed.js';
import {
  assertAccounts, assertExact, folderOf, found, inFolder, keyOf, KiB, levelOf, MiB, options, orderOf, put, readTokens, scale, versionOf, withStore,
} from './store-world.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('disk store model');

function sizesOf(number: number): [number, number] {
  return [16 * ((number * 61) % 1_900), 16 * (number % 3)];
}

for (const durability of ['none', 'interval', 'sync'] as const) {
  slow('thousands of puts')(`thousands of puts, removals and new orders leave what a Map has, and accounts that equal the files, with durability ${durability} (seed ${seed})`, (t) => inFolder(async (directory) => {
    const random = new Random(seed);
    const given = options(directory, { durability, bytes: MiB, threads: 4, direct: durability === 'sync', chunkBytes: 4 * KiB });
    /** By number: its version and the levels that it may have. */
    const model = new Map<number, { readonly version: number; levels: number[] }>();
    let store = await DiskStore.open(given);
    let [version, full, reordered] = [0, 0, 0];
    for (let turn = 0; turn < (durability === 'sync' ? 200 : 600) * Math.max(1, scale); turn += 1) {
      const number = random.integer(80);
      const sizes = sizesOf(number);
      const known = model.get(number);
      if (random.chance(0.01)) {
        await store.close();
        t.deepEqual([...await found(given)].map(([key, { level }]) => model.get(key)?.levels.includes(level)), [...model].map(() => true));
        store = await DiskStore.open(given);
      } else if (known !== undefined && random.chance(0.05)) {
        const level = random.integer(256);
        store.setLevel(keyOf(number), level);
        known.levels.push(level);
      } else if (known !== undefined && random.chance(0.2)) {
        const result = await store.reorder(keyOf(number), orderOf(random));
        if (result.stored) reordered += 1;
        else t.is(result.reason, 'full');
      } else if (known !== undefined && random.chance(0.25)) {
        t.is(await readTokens(t, store, number, known.version, sizes, 0, [2, 3, 11]), undefined);
      } else if (known !== undefined && random.chance(0.5)) {
        t.is(await versionOf(t, store, number, [known.version], sizes), known.version);
      } else if (known !== undefined) {
        t.deepEqual(await store.remove([keyOf(number)]), { removed: 1, isRecorded: true });
        model.delete(number);
      } else {
        version = (version + 1) % 60_000;
        let result = await put(store, number, version, sizes);
        if (!result.stored) {
          t.is(result.reason, 'full');
          full += 1;
          const gone = [...model.keys()].slice(0, 12);
          t.like(await store.remove(gone.map(keyOf)), { removed: gone.length });
          for (const one of gone) model.delete(one);
          result = await put(store, number, version, sizes);
        }
        t.deepEqual(result, { stored: true }, 'what was removed gives its bytes back');
        model.set(number, { version, levels: [levelOf(number, version)] });
      }
      t.is(store.stats().blocks, model.size);
      if (turn % 10 === 0) assertAccounts(t, store, directory);
    }
    for (const [number, known] of model) t.is(await versionOf(t, store, number, [known.version], sizesOf(number)), known.version);
    t.true(reordered > 3 && full > 1, `${reordered} times reordered, ${full} times full`);
    await store.remove([...model.keys()].map(keyOf));
    assertAccounts(t, store, directory);
    await store.close();
    t.deepEqual(readdirSync(folderOf(directory)).toSorted(), ['identity', 'lock']);
  }));
}

slow('hundreds of puts')(`calls for a block that overlap end as they were made, one after the other (seed ${seed})`, (t) => inFolder(async (directory) => {
  const random = new Random(seed);
  const given = options(directory, { durability: 'none', threads: 4 });
  const sizes = [4 * KiB];
  await withStore(given, async (store) => {
    for (let turn = 0; turn < 60; turn += 1) {
      const calls: Promise<unknown>[] = [];
      let expected: number | undefined;
      let isThere = store.has(keyOf(1));
      if (isThere) calls.push(store.remove([keyOf(1)]));
      isThere = false;
      for (let call = 0; call < 8; call += 1) {
        const version = 8 * turn + call;
        if (!isThere) {
          calls.push(put(store, 1, version, sizes).then((result) => { t.deepEqual(result, { stored: true }); }));
          [isThere, expected] = [true, version];
        } else if (random.chance(0.5)) {
          calls.push(store.remove([keyOf(1)]).then((result) => { t.deepEqual(result, { removed: 1, isRecorded: true }); }));
          [isThere, expected] = [false, undefined];
        } else {
          calls.push(store.reorder(keyOf(1), orderOf(random)));
        }
      }
      await Promise.all(calls);
      if (expected === undefined) t.false(store.has(keyOf(1)));
      else await assertExact(t, store, 1, expected, sizes);
      assertAccounts(t, store, directory);
    }
  });
}));

test('a block that is removed while it is being reordered stays removed', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const given = options(directory, { durability: 'none', threads: 2 });
  const store = await faults.open(given);
  await put(store, 1, 0, [16 * KiB]);
  faults.add({ call: 'write', holds: true });
  const copying = store.reorder(keyOf(1), orderOf(new Random(seed)));
  while (faults.held === 0) await new Promise(setImmediate);
  const removal = store.remove([keyOf(1)]);
  t.false(store.has(keyOf(1)), 'from the call on');
  faults.clear();
  t.deepEqual(await copying, { stored: true });
  t.deepEqual(await removal, { removed: 1, isRecorded: true });
  assertAccounts(t, store, directory);
  await store.close();
  t.is((await found(given)).size, 0);
}));
