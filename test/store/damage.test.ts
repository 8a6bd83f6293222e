// Files that are no longer as they were written: every flipped bit, cut, exchanged and made-up file ends in exact bytes
// or in a miss.

import { closeSync, copyFileSync, existsSync, openSync, readFileSync, readSync, statSync, truncateSync, unlinkSync, writeFileSync, writeSync } from 'node:fs';

import test, { type ExecutionContext } from 'ava';

import { isKvError } from '#internal/base/errors.js';
import { Random } from '#internal/base/random.js';
import { DiskStore } from '#internal/store/disk-store.js';
import { crc32c } from '../helpers/crc32c.js';
import { seedOf } from '../helpers/seed.js';
import {
  assertAccounts, assertExact, bytesOf, fileOf, filesOf, inFolder, keyOf, options, put, readBack, readTokens, scale, smallSizes, versionOf, withStore,
} from './store-world.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('disk store damage');
const blocks = 12;
const sizesOf = (number: number): readonly number[] => (number === 5 ? [70_000, 16] : smallSizes);

async function fill(directory: string, more = {}): Promise<void> {
  await withStore(options(directory, more), async (store) => {
    for (let number = 0; number < blocks; number += 1) await put(store, number, number, sizesOf(number));
  });
}

/** How many blocks are hits; fails where one is wrong. */
async function hits(t: ExecutionContext, store: DiskStore): Promise<number> {
  let count = 0;
  for (let number = 0; number < blocks; number += 1) count += (await versionOf(t, store, number, [number], sizesOf(number))) === undefined ? 0 : 1;
  return count;
}

slow('every bit of a block')('with any one bit of a block flipped, a read is exact or a miss, and chunks of other stripes stay readable', (t) => inFolder(async (directory) => {
  await withStore(options(directory, { direct: false }), async (store) => {
    await put(store, 1);
    const file = openSync(fileOf(directory, 1), 'r+');
    const [start, used] = [4_096, 256 + 4 * (16 + 3 + 3 + 2) + 2]; // fixed part, tokens, rows, sums, sums of chunks, notes
    const byte = Buffer.alloc(1);
    let misses = 0;
    for (let bit = 0; bit < 8 * statSync(fileOf(directory, 1)).size; bit += 1) {
      const at = bit >>> 3;
      if (scale <= 1 && at >= used + 20 && (at < start || at > start + 1_008 + 20)) continue; // padding
      readSync(file, byte, 0, 1, at);
      byte[0]! ^= 1 << (bit & 7);
      writeSync(file, byte, 0, 1, at);
      const { reason, payload } = await readBack(store, 1);
      if (reason === undefined && Buffer.compare(payload, Buffer.concat([bytesOf(1, 0, 1, 304), bytesOf(1, 0, 3, 704)])) !== 0) t.fail(`bit ${bit & 7} of byte ${at}: wrong bytes`);
      if (reason !== undefined) misses += 1;
      if (reason !== undefined && reason !== 'corrupt') t.fail(`bit ${bit & 7} of byte ${at}: ${reason}`);
      if (at >= start && bit % 64 === 0) {
        const all = Array.from({ length: 16 }, (_, token) => token);
        if (at < start + 1_008) t.is(await readTokens(t, store, 1, 0, smallSizes, 0, all), at < start + 304 ? 'corrupt' : undefined);
        if (at < start + 1_008) t.is(await readTokens(t, store, 1, 0, smallSizes, 2, all), at < start + 304 ? undefined : 'corrupt');
      }
      byte[0]! ^= 1 << (bit & 7);
      writeSync(file, byte, 0, 1, at);
    }
    closeSync(file);
    t.is(misses, 8 * (used + 1_008));
    await assertExact(t, store, 1);
  });
}));

test('a verify names the blocks with a flipped bit', (t) => inFolder(async (directory) => {
  await fill(directory, { direct: false });
  const bytes = readFileSync(fileOf(directory, 4));
  bytes[bytes.indexOf(bytesOf(4, 4, 3, 704)) + 100]! ^= 4;
  writeFileSync(fileOf(directory, 4), bytes);
  await withStore(options(directory), async (store) => {
    const progress: number[] = [];
    const { corrupt, blocks: checked } = await store.verify({ onProgress: ({ blocks: done }) => progress.push(done) });
    t.deepEqual(corrupt, [keyOf(4)]);
    t.is(checked, blocks);
    t.deepEqual(progress, Array.from({ length: blocks }, (_, index) => index + 1));
    const stop = new AbortController();
    const stopped = await store.verify({ onProgress: () => stop.abort(), signal: stop.signal });
    t.like(stopped, { blocks: 1, isInterrupted: true });
    t.is(await hits(t, store), blocks - 1);
    t.like(await store.remove(corrupt), { removed: 1 });
    t.deepEqual(await put(store, 4, 4), { stored: true });
    t.is(await hits(t, store), blocks);
  });
}));

test('a file that is cut off at any 512 bytes is no block, gives its room back, and takes no other along', (t) => inFolder(async (directory) => {
  await fill(directory);
  const image = readFileSync(fileOf(directory, 5));
  for (let size = 0; size < image.length; size += 512 * (scale > 1 ? 1 : 19)) {
    writeFileSync(fileOf(directory, 5), image);
    truncateSync(fileOf(directory, 5), size);
    await withStore(options(directory), async (store) => {
      t.is(await hits(t, store), blocks - 1);
      t.false(existsSync(fileOf(directory, 5)));
      t.is(store.stats().damagedFiles, 1);
      assertAccounts(t, store, directory);
      t.deepEqual(await put(store, 5, 5, sizesOf(5)), { stored: true });
      t.is(await hits(t, store), blocks);
    });
  }
}));

test('a file that is cut off while its store is open is a miss', (t) => inFolder(async (directory) => {
  await fill(directory);
  await withStore(options(directory), async (store) => {
    for (const size of [70_000, 4_096, 1_000, 0]) {
      truncateSync(fileOf(directory, 5), size);
      t.is((await readBack(store, 5, sizesOf(5))).reason, 'corrupt', `${size} bytes`);
      t.is(await readTokens(t, store, 5, 5, sizesOf(5), 0, [15]), 'corrupt');
    }
    t.deepEqual((await store.verify()).corrupt, [keyOf(5)]);
    t.is(await hits(t, store), blocks - 1);
  });
}));

test('files that another program exchanges or removes are misses, and count as gone', (t) => inFolder(async (directory) => {
  await fill(directory);
  const [one, other] = [readFileSync(fileOf(directory, 1)), readFileSync(fileOf(directory, 2))];
  await withStore(options(directory), async (store) => {
    writeFileSync(fileOf(directory, 1), other);
    unlinkSync(fileOf(directory, 3));
    t.is((await readBack(store, 1)).reason, 'corrupt');
    t.is((await readBack(store, 3)).reason, 'absent');
    t.false(store.has(keyOf(3)));
    assertAccounts(t, store, directory);
    t.is(await hits(t, store), blocks - 2);
  });
  writeFileSync(fileOf(directory, 2), one);
  await withStore(options(directory), async (store) => {
    t.like(store.stats(), { damagedFiles: 2, blocks: blocks - 3 });
    assertAccounts(t, store, directory);
  });
}));

test('a block of another namespace under a name of this one is no block', (t) => inFolder(async (directory) => {
  await fill(directory);
  const file = fileOf(directory, 1);
  await inFolder(async (elsewhere) => {
    await withStore(options(elsewhere, { namespace: Buffer.from('another') }), (store) => put(store, 1, 1));
    copyFileSync(fileOf(elsewhere, 1), file);
  });
  await withStore(options(directory), async (store) => {
    t.false(store.has(keyOf(1)));
    t.is(await hits(t, store), blocks - 1);
  });
}));

test(`files with made-up bytes in them give exact bytes or misses, and crash nothing (seed ${seed})`, (t) => inFolder(async (directory) => {
  const random = new Random(seed);
  await fill(directory);
  const files = filesOf(directory);
  const images = files.map((file) => readFileSync(file));
  for (let turn = 0; turn < 30 * Math.max(1, scale); turn += 1) {
    for (const [index, image] of images.entries()) {
      const bytes = Buffer.from(image);
      const pages = bytes.length / 4_096;
      for (let changes = 1 + random.integer(4); changes > 0; changes -= 1) {
        // Headers mostly, or anywhere; a byte, a field of any size, or a page of another file.
        const at = random.chance(0.7) ? random.integer(420) : random.integer(bytes.length);
        const kind = random.integer(3);
        if (kind === 0) bytes[at] = random.integer(256);
        else if (kind === 1) bytes.writeUInt32LE([0, 1, 2 ** 31, 2 ** 32 - 1, random.integer(2 ** 32)][random.integer(5)]!, Math.min(at & ~3, bytes.length - 4));
        else images[random.integer(images.length)]!.copy(bytes, 4_096 * random.integer(pages), 0, 4_096);
      }
      if (turn % 2 === 1) repairSum(bytes, random);
      writeFileSync(files[index]!, bytes);
    }
    const opened = await DiskStore.open(options(directory)).catch((error: unknown) => error);
    if (!(opened instanceof DiskStore)) { // a version that was made to look right
      t.true(turn % 2 === 1 && isKvError(opened, 'KV_STORE_VERSION'), String(opened));
      continue;
    }
    // Where the sum was made to fit, what the file says counts: nothing is to be told from the truth then but a crash.
    if (turn % 2 === 0) await hits(t, opened);
    for (let number = 0; number < blocks; number += 1) {
      await readBack(opened, number, sizesOf(number));
      const target = new Uint8Array(2 * sizesOf(number)[0]! / 16);
      await opened.getTokens(keyOf(number), { stripes: Float64Array.of(0), counts: Float64Array.of(2), tokens: Int32Array.of(1, 9) }, target);
      await opened.reorder(keyOf(number), Int32Array.from({ length: 16 }, (_, token) => 15 - token));
    }
    t.true((await opened.verify()).corrupt.length <= blocks);
    await opened.close();
  }
}));

/** Gives some headers a right sum again, so that what they say is looked at. */
function repairSum(bytes: Buffer, random: Random): void {
  const used = bytes.readUInt32LE(12);
  if (random.chance(0.3) || used < 256 || used > bytes.length) return;
  bytes.writeUInt32LE(crc32c(bytes.subarray(256, used), crc32c(bytes.subarray(0, 252))), 252);
}
