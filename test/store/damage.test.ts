// Files that are no longer as they were written: every flipped bit, cut and made-up header ends in exact bytes or in a miss.

import { closeSync, copyFileSync, openSync, readFileSync, readSync, statSync, truncateSync, writeFileSync, writeSync } from 'node:fs';

import test, { type ExecutionContext } from 'ava';

import { isKvError } from '#internal/base/errors.js';
import { Random } from '#internal/base/random.js';
import { DiskStore } from '#internal/store/disk-store.js';
import { seedOf } from '../helpers/seed.js';
import { assertAccounts, assertExact, bytesOf, folderOf, inFolder, keyOf, KiB, options, readBack, recordOf, scale, segmentsOf, smallSizes, versionOf, withStore } from './store-world.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('disk store damage');
const records = 12;

async function fill(directory: string, more = {}): Promise<void> {
  await withStore(options(directory, more), async (store) => {
    for (let number = 0; number < records; number += 1) await store.put(recordOf(number, number, number === 5 ? [70_000, 20] : smallSizes));
  });
}

const sizesOf = (number: number): readonly number[] => (number === 5 ? [70_000, 20] : smallSizes);

/** How many records are hits; fails where one is wrong. */
async function hits(t: ExecutionContext, store: DiskStore): Promise<number> {
  let count = 0;
  for (let number = 0; number < records; number += 1) count += (await versionOf(t, store, number, [number], sizesOf(number))) === undefined ? 0 : 1;
  return count;
}

slow('every bit of a record')('with any one bit of a record flipped, a read is exact or a miss, and other stripes stay readable', (t) => inFolder(async (directory) => {
  await withStore(options(directory, { direct: false }), async (store) => {
    await store.put(recordOf(1));
    const file = openSync(segmentsOf(directory)[0]!, 'r+');
    const start = 4 * KiB;
    const header = 4 * KiB;
    const stripe3 = start + header + 320; // behind 300 bytes, aligned to 64
    const used = scale > 1 ? [[start, 8 * KiB]] : [[start, 500], [start + header, 1_020]]; // the rest is padding
    const byte = Buffer.alloc(1);
    let misses = 0;
    for (const [from, length] of used as [number, number][]) {
      for (let bit = 0; bit < 8 * length; bit += 1) {
        const at = from + (bit >>> 3);
        readSync(file, byte, 0, 1, at);
        byte[0]! ^= 1 << (bit & 7);
        writeSync(file, byte, 0, 1, at);
        const { result: { isHit, reads, reason }, stripes } = await readBack(store, 1);
        reads.forEach((state, index) => {
          if (state === 'good' && Buffer.compare(stripes[index]!, bytesOf(1, 0, index + 1, smallSizes[index]!)) !== 0) t.fail(`bit ${bit & 7} of byte ${at}: wrong bytes`);
        });
        if (!isHit) misses += 1;
        if (!isHit && reason !== 'corrupt') t.fail(`bit ${bit & 7} of byte ${at}: ${reason}`);
        if (at >= start + header && at < start + header + 300 && reads.join() !== 'corrupt,good,good') t.fail(`byte ${at}: ${reads.join()}`);
        if (at >= stripe3 && at < stripe3 + 700 && reads.join() !== 'good,good,corrupt') t.fail(`byte ${at}: ${reads.join()}`);
        byte[0]! ^= 1 << (bit & 7);
        writeSync(file, byte, 0, 1, at);
      }
    }
    closeSync(file);
    const headerBytes = 256 + 64 + 8 + 3 * 48 + 2 * 4; // fixed part, tokens, extra, stripes, sums
    t.is(misses, 8 * (headerBytes + 1_000));
    await assertExact(t, store, 1);
  });
}));

test('a verify names the records with a flipped bit', (t) => inFolder(async (directory) => {
  await fill(directory, { direct: false });
  const file = segmentsOf(directory)[0]!;
  const bytes = readFileSync(file);
  bytes[bytes.indexOf(bytesOf(4, 4, 3, 700)) + 100]! ^= 4;
  writeFileSync(file, bytes);
  await withStore(options(directory), async (store) => {
    const progress: number[] = [];
    const { corrupt, records: checked } = await store.verify({ onProgress: ({ records: done }) => progress.push(done) });
    t.deepEqual(corrupt.map((key) => Buffer.compare(key, keyOf(4))), [0]);
    t.is(checked, records);
    t.deepEqual(progress, Array.from({ length: records }, (_, index) => index + 1));
    const stop = new AbortController();
    const stopped = await store.verify({ onProgress: () => stop.abort(), signal: stop.signal });
    t.like(stopped, { records: 1, isInterrupted: true });
    t.is(await hits(t, store), records - 1);
    t.like(await store.remove(corrupt), { removed: 1 });
    t.deepEqual(await store.put(recordOf(4, 4)), { stored: true });
    t.is(await hits(t, store), records);
  });
}));

for (const [title, isSealed] of [['finished', true], ['unfinished', false]] as const) {
  test(`a segment that is ${title} and cut off at any 512 bytes gives exact bytes or misses`, (t) => inFolder((model) => inFolder(async (directory) => {
    if (isSealed) await fill(model);
    else {
      const store = await DiskStore.open(options(model));
      for (let number = 0; number < records; number += 1) await store.put(recordOf(number, number, sizesOf(number)));
      copyFileSync(segmentsOf(model).at(-1)!, `${model}/kept`);
      await store.close();
      copyFileSync(`${model}/kept`, segmentsOf(model).at(-1)!);
    }
    await withStore(options(directory), async () => {});
    const original = segmentsOf(model);
    const cut = original.at(-1)!;
    let most = 0;
    for (let size = 0; size <= statSync(cut).size; size += 512 * (scale > 1 ? 1 : isSealed ? 5 : 11)) {
      for (const file of original) copyFileSync(file, `${folderOf(directory)}/${file.split('/').at(-1)!}`);
      truncateSync(`${folderOf(directory)}/${cut.split('/').at(-1)!}`, size);
      await withStore(options(directory), async (store) => {
        const found = await hits(t, store);
        t.true(found >= most || found >= records - 1 || isSealed, `${found} records at ${size} bytes, ${most} at less`);
        most = Math.max(most, found);
        assertAccounts(t, store, directory);
        t.true((await store.put(recordOf(100))).stored);
        await store.remove([keyOf(100)]);
      });
    }
    t.is(most, records);
  })));
}

test(`files with made-up bytes in them give exact bytes or misses, and crash nothing (seed ${seed})`, (t) => inFolder((model) => inFolder(async (directory) => {
  const random = new Random(seed);
  await fill(model);
  await withStore(options(directory), async () => {});
  const original = segmentsOf(model);
  const images = original.map((file) => readFileSync(file));
  for (let turn = 0; turn < 30 * Math.max(1, scale); turn += 1) {
    for (const [index, image] of images.entries()) {
      const bytes = Buffer.from(image);
      const changes = 1 + random.integer(4);
      for (let change = 0; change < changes; change += 1) {
        // Headers, the footer and the trailer, or anywhere; a byte, a field of any size, or a block from somewhere else.
        const blocks = bytes.length / 4_096;
        const block = random.chance(0.5) ? random.integer(blocks) : blocks - 1 - random.integer(3);
        const at = 4_096 * Math.max(0, block) + random.integer(random.chance(0.7) ? 512 : 4_096);
        const kind = random.integer(3);
        if (kind === 0) bytes[at % bytes.length] = random.integer(256);
        else if (kind === 1) bytes.writeUInt32LE([0, 1, 2 ** 31, 2 ** 32 - 1, random.integer(2 ** 32)][random.integer(5)]!, Math.min(at & ~3, bytes.length - 4));
        else bytes.copyWithin(4_096 * Math.max(0, block), 4_096 * random.integer(blocks), 4_096 * (1 + random.integer(blocks)));
      }
      if (turn % 2 === 1) repairSums(bytes, random);
      writeFileSync(`${folderOf(directory)}/${original[index]!.split('/').at(-1)!}`, bytes);
    }
    const open = DiskStore.open(options(directory));
    const refusal = await open.then(() => undefined, (error: unknown) => error);
    if (refusal !== undefined) { // a version that was made to look right
      t.true(turn % 2 === 1 && isKvError(refusal, 'KV_STORE_VERSION'), String(refusal));
      continue;
    }
    await (await open).close();
    await withStore(options(directory), async (store) => {
      // Where the sums were made to fit, what the file says counts: nothing is to be told from the truth then but a crash.
      const look = async (): Promise<void> => {
        if (turn % 2 === 0) await hits(t, store);
        else for (let number = 0; number < records; number += 1) await readBack(store, number, sizesOf(number));
      };
      await look();
      for await (const { key } of store.records()) t.is(key.length, 32);
      await store.gc();
      await look();
    });
  }
})));

/** Gives some headers, trailers and segments' first blocks a right sum again, so that what they say is looked at. */
function repairSums(bytes: Buffer, random: Random): void {
  for (let at = 0; at + 4_096 <= bytes.length; at += 4_096) {
    const magic = bytes.toString('latin1', at, at + 4);
    if (!/^VKV[RSF]$/.test(magic) || random.chance(0.3)) continue;
    const length = magic === 'VKVR' ? bytes.readUInt32LE(at + 12) : 4_096;
    if (length < 256 || at + length > bytes.length) continue;
    bytes.writeUInt32LE(crc32c(bytes.subarray(at + 256, at + length), crc32c(bytes.subarray(at, at + 252))), at + 252);
  }
}

const table = Int32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit += 1) value = (value & 1) === 0 ? value >>> 1 : (value >>> 1) ^ 0x82f63b78;
  return value;
});

function crc32c(bytes: Uint8Array, before = 0): number {
  let sum = ~before;
  for (const byte of bytes) sum = table[(sum ^ byte) & 255]! ^ (sum >>> 8);
  return ~sum >>> 0;
}
