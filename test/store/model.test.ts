import { unlinkSync } from 'node:fs';

import test, { type ExecutionContext } from 'ava';

import { Random } from '#internal/base/random.js';
import { DiskStore } from '#internal/store/disk-store.js';
import { StoreFaults } from '#internal/store/store-faults.js';
import type { PutResult } from '#internal/store/store-record.js';
import { seedOf } from '../helpers/seed.js';
import { assertAccounts, inFolder, keyOf, KiB, levelOf, MiB, options, orderOf, readBack, recordOf, scale, segmentsOf, versionOf, withStore } from './store-world.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('disk store model');

/** Of every other record so that its tokens can be reordered. */
function sizesOf(number: number): [number, number] {
  const sizes: [number, number] = [(number * 977) % (30 * KiB), number];
  return number % 2 === 1 ? sizes : [sizes[0] - sizes[0] % 16, 16 * (number % 3)];
}

/** What levels the records of a store have. */
class ModelLevels {
  /** By record: with which it was put, then those that were set since. */
  readonly #levels = new Map<number, number[]>();

  put(number: number, version: number): void {
    this.#levels.set(number, [levelOf(number, version)]);
  }

  set(store: DiskStore, number: number, level: number): void {
    store.setLevel(keyOf(number), level);
    this.#levels.get(number)!.push(level);
  }

  removed(number: number): void {
    this.#levels.delete(number);
  }

  async check(t: ExecutionContext, store: DiskStore): Promise<void> {
    const expected = [...this.#levels].map(([number, levels]) => [number, levels.at(-1)!]);
    t.deepEqual((await this.#listed(store)).sort(([a], [b]) => a - b), expected.sort(([a], [b]) => a! - b!));
  }

  /** One that was set is there where the record was copied since. */
  async checkReopened(t: ExecutionContext, store: DiskStore): Promise<void> {
    const listed = await this.#listed(store);
    t.is(listed.length, this.#levels.size);
    for (const [number, level] of listed) {
      t.true(this.#levels.get(number)!.includes(level), `record ${number} has level ${level}, not one of ${this.#levels.get(number)!.join(', ')}`);
      this.#levels.set(number, [level]);
    }
  }

  async #listed(store: DiskStore): Promise<[number, number][]> {
    const listed: [number, number][] = [];
    for await (const { position, level } of store.records()) listed.push([position / 16, level]);
    return listed;
  }
}

for (const durability of ['none', 'sync'] as const) {
  slow('thousands of puts')(`thousands of puts, removals and collections leave what a Map has, and accounts that equal the files, with durability ${durability} (seed ${seed})`, (t) => inFolder(async (directory) => {
    const random = new Random(seed);
    const given = options(directory, { durability, bytes: 2 * MiB, threads: 4, direct: durability === 'sync' });
    let store = await DiskStore.open(given);
    const model = new Map<number, number>();
    const levels = new ModelLevels();
    let version = 0;
    let full = 0;
    let reordered = 0;
    const records = 60;
    const turns = (durability === 'none' ? 1_000 : 200) * Math.max(1, scale);
    for (let turn = 0; turn < turns; turn += 1) {
      const number = random.integer(records);
      const sizes = sizesOf(number);
      if (random.chance(0.01)) {
        await store.close();
        store = await DiskStore.open(given);
        await levels.checkReopened(t, store);
      } else if (random.chance(0.02)) {
        await store.gc();
      } else if (model.has(number) && random.chance(0.05)) {
        levels.set(store, number, random.integer(256));
        await levels.check(t, store);
      } else if (model.has(number) && random.chance(0.2)) {
        const result = await store.reorder(keyOf(number), orderOf(random));
        if (result.stored) reordered += 1;
        else t.true(result.reason === 'full' || (number % 2 === 1 && result.reason === 'absent'), result.reason);
      } else if (model.has(number) && random.chance(0.6)) {
        t.is(await versionOf(t, store, number, [model.get(number)!], sizes), model.get(number));
      } else if (model.has(number)) {
        t.deepEqual(await store.remove([keyOf(number)]), { removed: 1, isRecorded: true });
        model.delete(number);
        levels.removed(number);
      } else {
        version = (version + 1) % 60_000;
        const result = await store.put(recordOf(number, version, sizes));
        levels.put(number, version);
        if (result.stored) model.set(number, version);
        else {
          t.is(result.reason, 'full');
          full += 1;
          const gone = [...model.keys()].slice(0, 12);
          t.like(await store.remove(gone.map(keyOf)), { removed: gone.length });
          for (const one of gone) {
            model.delete(one);
            levels.removed(one);
          }
          await store.gc();
          t.deepEqual(await store.put(recordOf(number, version, sizes)), { stored: true }, 'what was removed and collected gives its bytes back');
          model.set(number, version);
        }
      }
      t.is(store.stats().records, model.size);
      if (turn % 10 === 0) assertAccounts(t, store, directory);
    }
    for (const [number, expected] of model) t.is(await versionOf(t, store, number, [expected], sizesOf(number)), expected);
    t.true(reordered > 3, `${reordered} records were reordered`);
    await store.remove([...model.keys()].map(keyOf));
    await store.close();
    store = await DiskStore.open(given);
    t.is(store.stats().records, 0);
    await store.gc();
    t.true(store.stats().segments <= 2, `${store.stats().segments} segments of nothing`);
    await store.close();
    if (durability === 'none') t.log(`${full} times full`);
  }));
}

slow('thousands of puts')(`files that another program removes cost their records, and the accounts equal the files (seed ${seed})`, (t) => inFolder(async (directory) => {
  const random = new Random(seed);
  const given = options(directory, { durability: 'none', bytes: 2 * MiB, threads: 4 });
  let store = await DiskStore.open(given);
  /** By record: the versions that were ever stored. What removed it may be gone with its file. */
  const versions = new Map<number, number[]>();
  for (let turn = 0; turn < 400 * Math.max(1, scale); turn += 1) {
    const number = random.integer(60);
    if (random.chance(0.04)) {
      const isOpen = random.chance(0.5);
      if (!isOpen) await store.close();
      const files = segmentsOf(directory);
      if (files.length > 0) unlinkSync(files[random.integer(files.length)]!);
      if (isOpen) await store.gc();
      if (isOpen) await store.close();
      store = await DiskStore.open(given);
      assertAccounts(t, store, directory);
      const { corrupt, unreadable, records } = await store.verify();
      t.deepEqual([corrupt.length, unreadable.length, records], [0, 0, store.stats().records]);
    } else if (store.has(keyOf(number)) && random.chance(0.2)) {
      await store.reorder(keyOf(number), orderOf(random));
    } else if (store.has(keyOf(number)) && random.chance(0.5)) {
      await store.remove([keyOf(number)]);
      t.is((await readBack(store, number, sizesOf(number))).result.reason, 'absent');
    } else if (store.has(keyOf(number))) {
      t.not(await versionOf(t, store, number, versions.get(number)!, sizesOf(number)), undefined);
    } else {
      const version = turn % 60_000;
      const { stored } = await store.put(recordOf(number, version, sizesOf(number)));
      if (stored) versions.set(number, [...versions.get(number) ?? [], version]);
      else await store.gc();
    }
  }
  await store.close();
}));

test('a removal outlives the files that it kept dead while a copy of its record is under way', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const given = options(directory, { durability: 'none', segmentBytes: 64 * KiB, threads: 2 });
  const store = await faults.open(given);
  const [kept, size] = [1, 16 * KiB];
  const sizes = [size];
  /** Fills segments with records and removes them. */
  const seal = async (from: number): Promise<void> => {
    const numbers = Array.from({ length: 12 }, (_, at) => from + at);
    for (const number of numbers) t.deepEqual(await store.put(recordOf(number, 0, sizes)), { stored: true });
    await store.remove(numbers.map(keyOf));
  };
  await store.put(recordOf(kept, 0, sizes));
  await seal(100);
  faults.add({ call: 'read', holds: true });
  const copying = store.reorder(keyOf(kept), orderOf(new Random(seed)));
  while (faults.held === 0) await new Promise(setImmediate);
  t.deepEqual(await store.remove([keyOf(kept)]), { removed: 1, isRecorded: true });
  await seal(200);
  const files = new Set(segmentsOf(directory));
  await store.gc();
  t.false(segmentsOf(directory).some((file) => files.has(file) && file.endsWith('1.seg')), 'the first file is gone');
  faults.clear();
  t.deepEqual(await copying, { stored: false, reason: 'absent' });
  await store.close();
  await withStore(given, (again) => {
    t.false(again.has(keyOf(kept)), 'the copy was written behind the removal, and is dead');
    return Promise.resolve();
  });
}));

test('a full store gives garbage back also where every file is more than half alive', (t) => inFolder(async (directory) => {
  const given = options(directory, { durability: 'none', bytes: 2 * MiB });
  const sizes = [3 * KiB];
  await withStore(given, async (store) => {
    let stored = 0;
    while ((await store.put(recordOf(stored, 0, sizes))).stored) stored += 1;
    const gone = Array.from({ length: stored }, (_, number) => number).filter((number) => number % 4 === 0);
    await store.remove(gone.map(keyOf));
    t.true(store.stats().fileBytes > given.bytes * 0.85, 'no file is dead');
    let more = 0;
    for (; more < gone.length * 0.6; more += 1) {
      const put = (): Promise<PutResult> => store.put(recordOf(stored + more, 0, sizes));
      let result = await put();
      if (!result.stored) {
        await store.gc();
        result = await put();
      }
      t.deepEqual(result, { stored: true }, `record ${more} of ${gone.length} that there was room for`);
    }
    assertAccounts(t, store, directory);
    for (let number = 0; number < stored + more; number += 1) {
      t.is(await versionOf(t, store, number, [0], sizes), number < stored && number % 4 === 0 ? undefined : 0);
    }
  });
}));

slow('thousands of puts')('records do not slip beyond the limit into files that were made for removals', (t) => inFolder(async (directory) => {
  const given = options(directory, { durability: 'none', bytes: 2 * MiB });
  const sizes = [KiB];
  await withStore(given, async (store) => {
    const kept: number[] = [];
    while ((await store.put(recordOf(kept.length, 0, sizes))).stored) kept.push(kept.length);
    let full = 0;
    for (let number = kept.length, last = number + 400; number < last; number += 1) {
      const [gone] = kept.splice((number * 61) % kept.length, 1);
      await store.remove([keyOf(gone!)]);
      if ((await store.put(recordOf(number, 0, sizes))).stored) {
        kept.push(number);
      } else {
        full += 1;
        await store.gc();
      }
      assertAccounts(t, store, directory);
    }
    t.true(full > 3 && full < 150, `${full} times full`);
    for (const number of kept) t.is(await versionOf(t, store, number, [0], sizes), 0);
  });
}));
