import { spawnSync } from 'node:child_process';

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { native } from '#internal/device/native.js';
import { DiskStore } from '#internal/store/disk-store.js';
import { seedOf } from '../helpers/seed.js';
import {
  assertAccounts, assertExact, bytesOf, inFolder, keyOf, KiB, MiB, options, readBack, recordOf, withStore, type Sizes,
} from './store-world.js';

const seed = seedOf('disk store round trips');

function randomSizes(random: Random): Sizes {
  const longest = [10, 5_000, 70_000, 300_000][random.integer(4)]!;
  return Array.from({ length: 1 + random.integer(6) }, () => random.integer(longest));
}

for (const direct of [true, false]) {
  test(`records of any size come back exactly, also after a restart, ${direct ? 'around' : 'through'} the page cache (seed ${seed})`, (t) => inFolder(async (directory) => {
    const random = new Random(seed);
    const sizes = Array.from({ length: 40 }, () => randomSizes(random));
    const given = options(directory, { bytes: 64 * MiB, segmentBytes: 4 * MiB, durability: 'interval', direct });
    await withStore(given, async (store) => {
      const stored = await Promise.all(sizes.map((size, number) => store.put(recordOf(number, 0, size))));
      t.true(stored.every((result) => result.stored));
      for (const [number, size] of sizes.entries()) await assertExact(t, store, number, 0, size);
      assertAccounts(t, store, directory);
    });
    await withStore(given, async (store) => {
      t.is(store.stats().records, sizes.length);
      await Promise.all(sizes.map((size, number) => assertExact(t, store, number, 0, size)));
      t.deepEqual(await store.verify(), { records: sizes.length, bytes: store.stats().liveBytes, corrupt: [], unreadable: [], isInterrupted: false });
    });
  }));
}

test('any range of a stripe can be read, and is checked', (t) => inFolder((directory) => withStore(options(directory, { bytes: 16 * MiB, segmentBytes: 2 * MiB }), async (store) => {
  const random = new Random(seed);
  const size = 300_000;
  await store.put(recordOf(1, 0, [size, 10]));
  const whole = bytesOf(1, 0, 1, size);
  for (let turn = 0; turn < 200; turn += 1) {
    const offset = random.integer(size);
    const target = new Uint8Array(random.integer(size - offset + 1));
    t.true((await store.get(keyOf(1), [{ stripe: 1, offset, target }])).isHit);
    t.is(Buffer.compare(target, whole.subarray(offset, offset + target.length)), 0, `${target.length} bytes at ${offset}`);
  }
})));

test('one get scatters ranges of many stripes, and says of each whether it is there', (t) => inFolder((directory) => withStore(options(directory), async (store) => {
  await store.put(recordOf(1));
  const [first, last, behind, none] = [new Uint8Array(100), new Uint8Array(700), new Uint8Array(101), new Uint8Array(1)];
  const result = await store.get(keyOf(1), [
    { stripe: 3, target: last }, { stripe: 1, offset: 200, target: first }, { stripe: 1, offset: 200, target: behind }, { stripe: 4, target: none },
    { stripe: 2, target: new Uint8Array(0) },
  ]);
  t.deepEqual(result, { isHit: false, reason: 'absent', reads: ['good', 'good', 'absent', 'absent', 'good'] });
  t.is(Buffer.compare(first, bytesOf(1, 0, 1, 300).subarray(200)), 0);
  t.is(Buffer.compare(last, bytesOf(1, 0, 3, 700)), 0);
  t.deepEqual((await readBack(store, 2)).result, { isHit: false, reason: 'absent', reads: ['absent', 'absent', 'absent'] });
  t.deepEqual(await store.get(keyOf(1), []), { isHit: true, reads: [] });
})));

test('sources and targets may be addresses', (t) => inFolder((directory) => withStore(options(directory), async (store) => {
  const driver = native().openHostDriver({ memoryBytes: 2 ** 30, populate: false, hugePages: false, mappingLimit: 0 });
  const memory = new (native().NativeMemory)(driver, 8 * KiB);
  memory.write(0, bytesOf(5, 0, 1, 4_000), undefined);
  t.deepEqual(await store.put({ ...recordOf(5), stripes: [{ id: 1, source: { address: memory.address(), bytes: 4_000 } }] }), { stored: true });
  const read = await store.get(keyOf(5), [{ stripe: 1, offset: 1_000, target: { address: memory.address() + 4_096n, bytes: 3_000 } }]);
  t.true(read.isHit);
  const bytes = new Uint8Array(3_000);
  memory.read(bytes, 4_096, undefined);
  t.is(Buffer.compare(bytes, bytesOf(5, 0, 1, 4_000).subarray(1_000)), 0);
  memory.close();
})));

test('the records are listed with all that their headers say', (t) => inFolder(async (directory) => {
  const given = options(directory);
  const list = async (store: DiskStore): Promise<Map<number, unknown>> => {
    const found = new Map<number, unknown>();
    for await (const record of store.records()) found.set(record.position / 16, record);
    return found;
  };
  const kinds = { chunkBytes: 65_536, isReordered: false };
  const expected = (number: number, sizes: Sizes): unknown => {
    const { key, parent, position, tokens, extra, level } = recordOf(number, 300 + number, sizes);
    return { key, parent, position, tokens, extra, level, stripes: sizes.map((bytes, at) => ({ id: at + 1, bytes })), storedBytes: 4_096 * (1 + Math.ceil(sizes[0]! / 4_096)), ...kinds };
  };
  await withStore(given, async (store) => {
    t.is((await list(store)).size, 0);
    for (let number = 0; number < 30; number += 1) await store.put(recordOf(number, 300 + number, [1 + 500 * number]));
    await store.remove([keyOf(3)]);
    t.is((await list(store)).size, 29);
  });
  await withStore(given, async (store) => {
    const found = await list(store);
    for (let number = 0; number < 30; number += 1) t.deepEqual(found.get(number), number === 3 ? undefined : expected(number, [1 + 500 * number]));
    const bare = { key: keyOf(99), tokens: Uint32Array.of(2 ** 32 - 1), stripes: [] };
    t.deepEqual(await store.put(bare), { stored: true });
    for await (const record of store.records()) {
      if (Buffer.compare(record.key, bare.key) !== 0) continue;
      t.deepEqual(record, { ...bare, tokens: Int32Array.of(-1), parent: new Uint8Array(32), position: 0, extra: new Uint8Array(0), level: 0, storedBytes: 4_096, ...kinds });
    }
  });
}));

test('what one process stored another reads', (t) => inFolder(async (directory) => {
  const program = `
    const world = require(${JSON.stringify(require.resolve('./store-world.js'))});
    world.withStore(world.options(process.argv[1]), async (store) => {
      for (let number = 0; number < 5; number += 1) await store.put(world.recordOf(number, 9));
    });`;
  t.is(spawnSync(process.execPath, ['-e', program, directory], { cwd: process.cwd(), stdio: 'inherit' }).status, 0);
  await withStore(options(directory), async (store) => {
    for (let number = 0; number < 5; number += 1) await assertExact(t, store, number, 9);
  });
}));

test('a key is stored once, and again after it was removed', (t) => inFolder((directory) => withStore(options(directory), async (store) => {
  const both = await Promise.all([store.put(recordOf(1, 1)), store.put(recordOf(1, 2))]);
  t.deepEqual(both, [{ stored: true }, { stored: false, reason: 'exists' }]);
  t.true(store.has(keyOf(1)));
  t.deepEqual(await store.put(recordOf(1, 3)), { stored: false, reason: 'exists' });
  t.deepEqual(await store.remove([keyOf(1), keyOf(2)]), { removed: 1, isRecorded: true });
  t.false(store.has(keyOf(1)));
  t.deepEqual(await store.put(recordOf(1, 4)), { stored: true });
  await assertExact(t, store, 1, 4);
})));

test('a removal counts at once, also for a record that is still being stored', (t) => inFolder(async (directory) => {
  await withStore(options(directory), async (store) => {
    const stored = store.put(recordOf(1, 1));
    const removed = store.remove([keyOf(1)]);
    t.false(store.has(keyOf(1)));
    const again = store.put(recordOf(1, 2));
    t.deepEqual(await Promise.all([stored, removed, again]), [{ stored: true }, { removed: 1, isRecorded: true }, { stored: true }]);
    await assertExact(t, store, 1, 2);
  });
  await withStore(options(directory), (store) => assertExact(t, store, 1, 2));
}));

test('a put beyond the queue is answered busy, one larger than a segment too large', (t) => inFolder((directory) => withStore(options(directory, { queueBytes: 2_000 }), async (store) => {
  const results = await Promise.all([store.put(recordOf(1)), store.put(recordOf(2)), store.put(recordOf(3))]);
  t.deepEqual(results.map(({ stored }) => stored), [true, true, false]);
  t.deepEqual(results[2], { stored: false, reason: 'busy' });
  t.deepEqual(await store.put(recordOf(4, 0, [3_000])), { stored: true }, 'with nothing in the queue anything goes');
  t.deepEqual(await store.put(recordOf(5, 0, [128 * KiB])), { stored: false, reason: 'too-large' });
  t.is(store.stats().queuedBytes, 0);
  t.true(store.stats().refusedPuts >= 2);
})));
