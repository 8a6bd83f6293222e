// Reordered blocks: tokens that are read together lie in few chunks, and every read has the same bytes before, meanwhile and after.

import * as fs from 'node:fs';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { diskTier, type Tier } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { digestOf, makeBlock, type MadeBlock } from '#internal/tiers/contract-store.js';
import { seedOf } from '../helpers/seed.js';
import { folderOf, inFolder, scale } from '../store/store-world.js';
import { slow } from '../runner/slow.js';
import { tier as testTier } from '../runner/tier.js';

const KiB = 2 ** 10;
const namespace = digestOf('reordered blocks');
const stripeTokenBytes = [2 * KiB, 2 * KiB, 1_000];
const seed = seedOf('reordered blocks');

interface Opened {
  readonly tier: Tier;
  readonly found: readonly string[];
}

async function opened(directory: string, bytes = 64 * 2 ** 20): Promise<Opened> {
  const tier = diskTier({ directory, bytes, admit: 'all', chunkBytes: 4_096, durability: 'none' });
  const found: string[] = [];
  await tier.open({ namespace, stripeTokenBytes, blockTokens: 64, found: ({ key }) => found.push(key), lost: () => {} });
  return { tier, found };
}

function blockOf(made: number, tokens: number): MadeBlock {
  return makeBlock({ namespace, stripeTokenBytes }, { seed: made, tokens });
}

function rowsOf({ record, payload }: MadeBlock, stripe: number, tokens: readonly number[]): Buffer {
  const start = record.tokens.length * stripeTokenBytes.slice(0, stripe).reduce((sum, bytes) => sum + bytes, 0);
  const bytes = stripeTokenBytes[stripe]!;
  return Buffer.concat(tokens.map((token) => payload.subarray(start + token * bytes, start + (token + 1) * bytes)));
}

/** Fails unless the tokens have their bytes; returns how many chunks were read for them. */
async function chunksOf(t: ExecutionContext, tier: Tier, block: MadeBlock, stripe: number, tokens: readonly number[]): Promise<number> {
  const rows = rowsOf(block, stripe, tokens);
  const into = new Uint8Array(rows.length);
  const result = await tier.getTokens!(block.record.key, [{ stripe, tokens: Int32Array.from(tokens) }], into);
  t.true(result.isFound);
  t.is(Buffer.compare(into, rows), 0, `tokens ${tokens.join()} of stripe ${stripe}`);
  return result.chunks;
}

async function isWhole(t: ExecutionContext, tier: Tier, block: MadeBlock): Promise<void> {
  const payload = new Uint8Array(block.record.bytes);
  const result = await tier.get(block.record.key, payload);
  t.true(result.isFound);
  t.is(Buffer.compare(payload, block.payload), 0);
  if (result.isFound) t.deepEqual(result.sums, block.record.sums);
}

function shuffled(random: Random, length: number): Int32Array {
  const order = Int32Array.from({ length }, (_, token) => token);
  for (let left = length; left > 1; left -= 1) {
    const other = random.integer(left);
    [order[left - 1], order[other]] = [order[other]!, order[left - 1]!];
  }
  return order;
}

/** The file of the one block in a directory. */
function fileOf(directory: string): string {
  return path.join(folderOf(directory), fs.readdirSync(folderOf(directory)).find((name) => name.endsWith('.block'))!);
}

/** Its flags and its list. */
function listOf(directory: string, tokens: number): { readonly flags: number; readonly storedToLogical: number[] } {
  const file = fs.readFileSync(fileOf(directory));
  const listAt = 256 + 4 * (tokens + 2 * file.readUInt32LE(24) + file.readUInt32LE(28)); // behind tokens, rows, sums, and sums of chunks
  return { flags: file.readUInt32LE(8), storedToLogical: Array.from({ length: tokens }, (_, token) => file.readUInt32LE(listAt + 4 * token)) };
}

test('tokens 0 and 3 of four take two chunks, and one once they are stored first', (t) => inFolder(async (directory) => {
  const block = blockOf(1, 4);
  const { tier } = await opened(directory);
  await tier.put(block.record, block.payload);
  t.is(await chunksOf(t, tier, block, 0, [0, 3]), 2);
  t.deepEqual(await tier.reorder!(block.record.key, Int32Array.of(0, 3, 1, 2)), { isStored: true });
  t.is(await chunksOf(t, tier, block, 0, [0, 3]), 1);
  t.is(await chunksOf(t, tier, block, 1, [1, 2]), 1);
  await isWhole(t, tier, block);
  t.deepEqual(listOf(directory, 4), { flags: 1, storedToLogical: [0, 3, 1, 2] });
  const { ino } = fs.statSync(fileOf(directory));
  t.deepEqual(await tier.reorder!(block.record.key, Int32Array.of(0, 3, 1, 2)), { isStored: true });
  t.is(fs.statSync(fileOf(directory)).ino, ino, 'what is in this order is not written again');
  t.deepEqual(await tier.reorder!(block.record.key, Int32Array.of(0, 1, 2, 3)), { isStored: true });
  t.is(listOf(directory, 4).flags, 0, 'the order of the text needs no list');
  t.is(await chunksOf(t, tier, block, 0, [0, 3]), 2);
  await isWhole(t, tier, block);
  await tier.close();
}));

test('an order that is no permutation of the tokens is refused, as is one of a block that is not there', (t) => inFolder(async (directory) => {
  const block = blockOf(1, 4);
  const { tier } = await opened(directory);
  await tier.put(block.record, block.payload);
  const refused = { isStored: false, reason: 'failed' } as const;
  for (const order of [[], [0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 4], [0, 1, 2, -1], [0, 1, 2, 3, 4]]) {
    t.deepEqual(await tier.reorder!(block.record.key, Int32Array.from(order)), refused, order.join());
  }
  t.deepEqual(await tier.reorder!(digestOf('unknown'), Int32Array.of(0)), refused);
  await isWhole(t, tier, block);
  await tier.close();
  t.deepEqual(await tier.reorder!(block.record.key, Int32Array.of(0, 3, 1, 2)), refused);
}));

slow('32 readers beside a reorderer')(`any order gives the same bytes: all, some tokens, each of two parts; also after a restart and in its copies (seed ${seed})`, (t) => inFolder(async (directory) => {
  const random = new Random(seed);
  const blocks = [1, 2, 7, 64, 200].map((tokens, made) => blockOf(made, tokens));
  const look = async (tier: Tier): Promise<void> => {
    for (const block of blocks) {
      await isWhole(t, tier, block);
      const tokens = Array.from({ length: block.record.tokens.length }, (_, token) => token);
      // As where a node of the tree is split: the two nodes read their own tokens.
      const cut = random.integer(tokens.length + 1);
      for (const stripe of [0, 1, 2]) {
        for (const part of [tokens.slice(0, cut), tokens.slice(cut), tokens.filter(() => random.chance(0.2))]) await chunksOf(t, tier, block, stripe, part);
      }
    }
  };
  let { tier } = await opened(directory, 16 * 2 ** 20);
  for (const { record, payload } of blocks) await tier.put(record, payload);
  for (let round = 0; round < 4; round += 1) {
    for (const { record } of blocks) t.deepEqual(await tier.reorder!(record.key, shuffled(random, record.tokens.length)), { isStored: true });
    await look(tier);
    await tier.close();
    const next = await opened(directory, 16 * 2 ** 20);
    const { found } = next;
    ({ tier } = next);
    t.deepEqual([...found].sort(), blocks.map(({ record }) => record.key).sort());
    await look(tier);
  }
  await tier.close();
}));

slow('32 readers beside a reorderer')(`32 readers have no wrong byte and no miss while blocks are reordered (seed ${seed})`, (t) => inFolder(async (directory) => {
  const random = new Random(seed);
  const blocks = Array.from({ length: 8 }, (_, made) => blockOf(made, 64));
  const { tier } = await opened(directory, 16 * 2 ** 20);
  for (const { record, payload } of blocks) await tier.put(record, payload);
  const reads = Math.round((testTier === 'release' ? 1_000 : 300) * Math.min(1, scale));
  const all = Array.from({ length: 64 }, (_, token) => token);
  let wrong = 0;
  let running = 32;
  const reader = async (number: number): Promise<void> => {
    const mine = new Random(seed + number);
    const payload = new Uint8Array(blocks[0]!.record.bytes);
    for (let turn = 0; turn < reads; turn += 1) {
      const block = blocks[mine.integer(blocks.length)]!;
      if (turn % 2 === 0) {
        const { isFound } = await tier.get(block.record.key, payload);
        if (!isFound || Buffer.compare(payload, block.payload) !== 0) wrong += 1;
      } else {
        const stripe = mine.integer(3);
        const tokens = all.filter(() => mine.chance(0.2));
        const rows = rowsOf(block, stripe, tokens);
        const into = new Uint8Array(rows.length);
        const { isFound } = await tier.getTokens!(block.record.key, [{ stripe, tokens: Int32Array.from(tokens) }], into);
        if (!isFound || Buffer.compare(into, rows) !== 0) wrong += 1;
      }
    }
    running -= 1;
  };
  let reordered = 0;
  const writer = async (): Promise<void> => {
    while (running > 0) {
      const { isStored } = await tier.reorder!(blocks[random.integer(blocks.length)]!.record.key, shuffled(random, 64));
      reordered += isStored ? 1 : 0;
    }
  };
  await Promise.all([writer(), ...Array.from({ length: 32 }, (_, number) => reader(number))]);
  t.is(wrong, 0);
  t.true(reordered > 0);
  t.log(`${32 * reads} reads, ${reordered} times reordered`);
  await tier.close();
}));

test('damage in a block is neither reordered away nor spread', (t) => inFolder(async (directory) => {
  const block = blockOf(5, 64);
  const { tier } = await opened(directory);
  await tier.put(block.record, block.payload);
  const file = fileOf(directory);
  const bytes = fs.readFileSync(file);
  bytes[bytes.indexOf(rowsOf(block, 1, [9])) + 7]! ^= 1;
  fs.writeFileSync(file, bytes);
  t.deepEqual(await tier.reorder!(block.record.key, shuffled(new Random(1), 64)), { isStored: false, reason: 'failed' });
  await chunksOf(t, tier, block, 1, [0, 1, 2, 7, 10]);
  await chunksOf(t, tier, block, 0, [8, 9]);
  t.like(await tier.getTokens!(block.record.key, [{ stripe: 1, tokens: Int32Array.of(9) }], new Uint8Array(2 * KiB)), { isFound: false, reason: 'corrupt' });
  await tier.close();
}));
