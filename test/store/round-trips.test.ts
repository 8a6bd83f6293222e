import { spawnSync } from 'node:child_process';

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { HostMemory, pagePieces } from '#internal/tiers/host-memory.js';
import { seedOf } from '../helpers/seed.js';
import {
  assertAccounts, assertExact, blockOf, blockTokens, found, inFolder, keyOf, KiB, MiB, options, orderOf, payloadOf, put, readBack, readTokens, rowsOf,
  withStore, type Sizes,
} from './store-world.js';

const seed = seedOf('disk store round trips');

function randomSizes(random: Random): Sizes {
  const longest = [10, 300, 4_500, 20_000][random.integer(4)]!;
  return Array.from({ length: 1 + random.integer(6) }, () => blockTokens * random.integer(longest));
}

for (const direct of [true, false]) {
  test(`blocks of any size come back exactly, also after a restart, ${direct ? 'around' : 'through'} the page cache (seed ${seed})`, (t) => inFolder(async (directory) => {
    const random = new Random(seed);
    const sizes = Array.from({ length: 24 }, () => randomSizes(random));
    const given = options(directory, { bytes: 64 * MiB, durability: 'interval', direct });
    await withStore(given, async (store) => {
      const stored = await Promise.all(sizes.map((size, number) => put(store, number, 0, size)));
      t.true(stored.every((result) => result.stored));
      for (const [number, size] of sizes.entries()) await assertExact(t, store, number, 0, size);
      assertAccounts(t, store, directory);
    });
    await withStore(given, async (store) => {
      t.is(store.stats().blocks, sizes.length);
      await Promise.all(sizes.map((size, number) => assertExact(t, store, number, 0, size)));
      t.like(await store.verify(), { blocks: sizes.length, corrupt: [], unreadable: [], isInterrupted: false });
      assertAccounts(t, store, directory);
    });
  }));
}

test('a payload of whole pages goes straight into its memory, in the order of the text or another', (t) => inFolder(async (directory) => {
  const memory = new HostMemory(16 * MiB, 2 * MiB, pagePieces);
  const sizes = [256 * KiB, 64 * KiB, 4 * KiB];
  const payload = memory.take(324 * KiB)!;
  await withStore(options(directory, { bytes: 16 * MiB }), async (store) => {
    payload.set(payloadOf(1, 0, sizes));
    t.deepEqual(await store.put(blockOf(1, 0, sizes), rowsOf(sizes), payload), { stored: true });
    const before = store.stats().readCalls;
    t.is((await readBack(store, 1, sizes, payload)).reason, undefined);
    t.is(store.stats().readCalls, before + 1, 'one call reads the header and all bytes');
    t.is(Buffer.compare(payload, payloadOf(1, 0, sizes)), 0);
    t.deepEqual(await store.reorder(keyOf(1), orderOf(new Random(seed))), { stored: true });
    t.is((await readBack(store, 1, sizes, payload)).reason, undefined);
    t.is(Buffer.compare(payload, payloadOf(1, 0, sizes)), 0);
  });
  memory.give(payload);
}));

test('rows of any tokens can be read, also once the block is reordered, and its file is opened once', (t) => inFolder((directory) => withStore(options(directory, { bytes: 16 * MiB, chunkBytes: 4 * KiB }), async (store) => {
  const random = new Random(seed);
  const sizes = [300_000, 160];
  await put(store, 1, 0, sizes);
  t.is(store.stats().openFiles, 0);
  for (let turn = 0; turn < 30; turn += 1) {
    if (turn === 15) t.deepEqual(await store.reorder(keyOf(1), orderOf(random)), { stored: true });
    const tokens = Array.from({ length: blockTokens }, (_, token) => token).filter(() => random.chance(0.4));
    t.is(await readTokens(t, store, 1, 0, sizes, random.integer(2), tokens), undefined);
    t.is(store.stats().openFiles, 1);
  }
  t.is(await readTokens(t, store, 1, 0, sizes, 0, [blockTokens]), 'absent');
  t.is(await readTokens(t, store, 2, 0, sizes, 0, [1]), 'absent');
  await store.remove([keyOf(1)]);
  t.is(store.stats().openFiles, 0);
})));

test('files of blocks that are kept open are few', (t) => inFolder((directory) => withStore(options(directory, { bytes: 16 * MiB, durability: 'none' }), async (store) => {
  for (let number = 0; number < 300; number += 1) {
    await put(store, number);
    t.is(await readTokens(t, store, number, 0, [304, 0, 704], 2, [3, 7]), undefined);
  }
  t.is(store.stats().openFiles, 256);
})));

test('a store that is opened tells all that the headers say', (t) => inFolder(async (directory) => {
  const given = options(directory);
  const expected = (number: number, sizes: Sizes): unknown => ({
    ...blockOf(number, 300 + number, sizes), rowBytes: Uint32Array.from(rowsOf(sizes)), bytes: sizes.reduce((a, b) => a + b, 0), chunkBytes: 65_536, isReordered: number === 4,
  });
  const sizesOf = (number: number): Sizes => [16 + 512 * number, 80_000];
  t.is((await found(given, async (store) => {
    for (let number = 0; number < 12; number += 1) await put(store, number, 300 + number, sizesOf(number));
    await store.remove([keyOf(3)]);
    await store.reorder(keyOf(4), Int32Array.from({ length: blockTokens }, (_, token) => blockTokens - 1 - token));
    t.deepEqual(store.contents(), { tokens: 11 * blockTokens, reordered: 1 });
  })).size, 0);
  const blocks = await found(given, (store) => {
    t.deepEqual(store.contents(), { tokens: 11 * blockTokens, reordered: 1 });
    return Promise.resolve();
  });
  for (let number = 0; number < 12; number += 1) t.deepEqual(blocks.get(number), number === 3 ? undefined : expected(number, sizesOf(number)) as never);
}));

test('what one process stored another reads', (t) => inFolder(async (directory) => {
  const program = `
    const world = require(${JSON.stringify(require.resolve('./store-world.js'))});
    world.withStore(world.options(process.argv[1]), async (store) => {
      for (let number = 0; number < 5; number += 1) await world.put(store, number, 9);
    });`;
  t.is(spawnSync(process.execPath, ['-e', program, directory], { cwd: process.cwd(), stdio: 'inherit' }).status, 0);
  await withStore(options(directory), async (store) => {
    for (let number = 0; number < 5; number += 1) await assertExact(t, store, number, 9);
  });
}));

test('a key is stored once, and again after it was removed', (t) => inFolder((directory) => withStore(options(directory), async (store) => {
  const both = await Promise.all([put(store, 1, 1), put(store, 1, 2)]);
  t.deepEqual(both, [{ stored: true }, { stored: false, reason: 'exists' }]);
  t.true(store.has(keyOf(1)));
  t.deepEqual(await put(store, 1, 3), { stored: false, reason: 'exists' });
  t.deepEqual(await store.remove([keyOf(1), keyOf(2)]), { removed: 1, isRecorded: true });
  t.false(store.has(keyOf(1)));
  t.deepEqual(await put(store, 1, 4), { stored: true });
  await assertExact(t, store, 1, 4);
})));

test('a removal counts at once, also for a block that is still being stored', (t) => inFolder(async (directory) => {
  await withStore(options(directory), async (store) => {
    const stored = put(store, 1, 1);
    const removed = store.remove([keyOf(1)]);
    t.false(store.has(keyOf(1)));
    const again = put(store, 1, 2);
    t.deepEqual(await Promise.all([stored, removed, again]), [{ stored: true }, { removed: 1, isRecorded: true }, { stored: true }]);
    await assertExact(t, store, 1, 2);
    assertAccounts(t, store, directory);
  });
  await withStore(options(directory), (store) => assertExact(t, store, 1, 2));
}));

test('a put beyond the queue is answered busy, one larger than the store too large', (t) => inFolder((directory) => withStore(options(directory, { queueBytes: 2_100, bytes: 256 * KiB }), async (store) => {
  const results = await Promise.all([put(store, 1), put(store, 2), put(store, 3)]);
  t.deepEqual(results.map(({ stored }) => stored), [true, true, false]);
  t.deepEqual(results[2], { stored: false, reason: 'busy' });
  t.deepEqual(await put(store, 4, 0, [3_200]), { stored: true }, 'with nothing in the queue anything goes');
  t.deepEqual(await put(store, 5, 0, [256 * KiB]), { stored: false, reason: 'too-large' });
  t.is(store.stats().queuedBytes, 0);
  t.true(store.stats().refusedPuts >= 2);
})));

test('a full store takes a block for each that goes, however many come at a time', (t) => inFolder((directory) => withStore(options(directory, { bytes: 2 * MiB, threads: 4, durability: 'none' }), async (store) => {
  const sizes = [28 * KiB];
  const kept: number[] = [];
  let next = 0;
  while ((await put(store, next, 0, sizes)).stored) kept.push(next++);
  t.true(kept.length * 32 * KiB > 1.9 * MiB, 'of its bytes hardly any are not used');
  t.deepEqual(await put(store, 9_999, 0, sizes), { stored: false, reason: 'full' });
  const random = new Random(seed);
  await Promise.all(Array.from({ length: 16 }, async () => {
    for (let turn = 0; turn < 10; turn += 1) {
      const [gone] = kept.splice(random.integer(kept.length), 1);
      await store.remove([keyOf(gone!)]);
      const number = next += 1;
      t.deepEqual(await put(store, number, 0, sizes), { stored: true });
      kept.push(number);
    }
  }));
  assertAccounts(t, store, directory);
  for (const number of kept) await assertExact(t, store, number, 0, sizes);
})));
