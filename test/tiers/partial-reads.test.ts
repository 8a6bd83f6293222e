// Single tokens out of a disk tier: little more is read than the chunks that hold them, and a damaged chunk costs only its own tokens.

import { open } from 'node:fs/promises';
import * as fs from 'node:fs';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { diskTier, type Tier, type TierTokens } from 'virtual-kv';

import { digestOf, makeBlock, type MadeBlock } from '#internal/tiers/contract-store.js';
import { folderOf, inFolder } from '../store/store-world.js';

const KiB = 2 ** 10;
const chunkBytes = 4 * KiB;
/** Two stripes of a row that is half a chunk, one of a row that ends anywhere. */
const stripeTokenBytes = [2 * KiB, 2 * KiB, 1_000];
const namespace = digestOf('partial reads');

async function opened(directory: string, direct = false): Promise<Tier> {
  const tier = diskTier({ directory, bytes: 64 * 2 ** 20, admit: 'all', chunkBytes, direct, durability: 'none' });
  await tier.open({ namespace, stripeTokenBytes, blockTokens: 64, found: () => {}, lost: () => {} });
  return tier;
}

function rowsOf({ record, payload }: MadeBlock, parts: readonly TierTokens[]): Buffer {
  return Buffer.concat(parts.flatMap(({ stripe, tokens }) => {
    const bytes = stripeTokenBytes[stripe]!;
    const start = record.tokens.length * stripeTokenBytes.slice(0, stripe).reduce((sum, before) => sum + before, 0);
    return [...tokens].map((token) => payload.subarray(start + token * bytes, start + (token + 1) * bytes));
  }));
}

interface Counted {
  readonly outcome: string;
  readonly readBytes: number;
  readonly chunks: number;
  /** What the system moved meanwhile, by the store's own count. */
  readonly movedBytes: number;
  readonly calls: number;
}

async function read(t: ExecutionContext, tier: Tier, block: MadeBlock, stripe: number, tokens: readonly number[]): Promise<Counted> {
  const parts = [{ stripe, tokens: Int32Array.from(tokens) }];
  const rows = rowsOf(block, parts);
  const into = new Uint8Array(rows.length);
  const before = tier.statistics();
  const result = await tier.getTokens!(block.record.key, parts, into);
  const after = tier.statistics();
  if (result.isFound) t.is(Buffer.compare(into, rows), 0);
  return {
    outcome: result.isFound ? 'found' : result.reason, readBytes: result.readBytes, chunks: result.chunks,
    movedBytes: Number(after['readBytes']) - Number(before['readBytes']), calls: Number(after['readCalls']) - Number(before['readCalls']),
  };
}

for (const direct of [false, true]) {
  test(`only chunks that hold the tokens are read, neighbours with one call${direct ? ', around the page cache' : ''}`, (t) => inFolder(async (directory) => {
    const tier = await opened(directory, direct);
    const block = makeBlock({ namespace, stripeTokenBytes }, { seed: 1, tokens: 64 });
    t.deepEqual(await tier.put(block.record, block.payload), { isStored: true });
    await read(t, tier, block, 0, [0]); // and with it the header, once
    const chunks = async (stripe: number, tokens: readonly number[]): Promise<Counted> => read(t, tier, block, stripe, tokens);
    const expected = (count: number, calls: number): Counted => ({ outcome: 'found', readBytes: count * chunkBytes, chunks: count, movedBytes: count * chunkBytes, calls });
    t.deepEqual(await chunks(0, [0]), expected(1, 1));
    t.deepEqual(await chunks(0, [0, 1]), expected(1, 1));
    t.deepEqual(await chunks(0, [1, 2]), expected(2, 1));
    t.deepEqual(await chunks(1, [0, 3, 6, 9]), expected(4, 2)); // chunks 0 and 1, 3 and 4
    t.deepEqual(await chunks(1, Array.from({ length: 64 }, (_, token) => token)), expected(32, 1));
    t.deepEqual(await chunks(2, [4]), expected(2, 1)); // a row over the end of a chunk
    t.deepEqual(await chunks(2, [5, 6]), expected(1, 1));
    const last = await chunks(2, [63]);
    t.deepEqual([last.outcome, last.chunks, last.calls], ['found', 1, 1]);
    await tier.close();
  }));
}

test('a damaged chunk is a miss for its own tokens alone, and stays one', (t) => inFolder(async (directory) => {
  const tier = await opened(directory);
  const block = makeBlock({ namespace, stripeTokenBytes }, { seed: 2, tokens: 64 });
  await tier.put(block.record, block.payload);
  const blockFile = path.join(folderOf(directory), `${block.record.key}.block`);
  const row = block.payload.subarray(64 * 2 * KiB + 10 * 2 * KiB).subarray(0, 2 * KiB); // token 10 of the second stripe
  const at = fs.readFileSync(blockFile).indexOf(row);
  t.true(at > 0);
  const file = await open(blockFile, 'r+');
  await file.write(Uint8Array.of(row[100]! ^ 1), 0, 1, at + 100);
  await file.close();
  for (let token = 0; token < 64; token += 1) {
    for (const stripe of [0, 1, 2]) {
      const { outcome } = await read(t, tier, block, stripe, [token]);
      t.is(outcome, stripe === 1 && (token === 10 || token === 11) ? 'corrupt' : 'found', `stripe ${stripe}, token ${token}`);
    }
  }
  t.is((await read(t, tier, block, 1, [3, 11, 40])).outcome, 'corrupt');
  const payload = new Uint8Array(block.record.bytes);
  t.true((await tier.get(block.record.key, payload)).isFound); // of a whole block the cache checks the stripes
  t.is(payload.findIndex((byte, index) => byte !== block.payload[index]), 64 * 2 * KiB + 10 * 2 * KiB + 100);
  await tier.close();
}));

test('blocks with small chunks and large ones live in one store', (t) => inFolder(async (directory) => {
  const blocks = [3, 4].map((seed) => makeBlock({ namespace, stripeTokenBytes }, { seed, tokens: 64 }));
  const small = await opened(directory);
  await small.put(blocks[0]!.record, blocks[0]!.payload);
  await small.close();
  const large = diskTier({ directory, bytes: 64 * 2 ** 20, admit: 'all' });
  await large.open({ namespace, stripeTokenBytes, blockTokens: 64, found: () => {}, lost: () => {} });
  await large.put(blocks[1]!.record, blocks[1]!.payload);
  for (const [index, block] of blocks.entries()) {
    const payload = new Uint8Array(block.record.bytes);
    t.true((await large.get(block.record.key, payload)).isFound);
    t.is(Buffer.compare(payload, block.payload), 0);
    await read(t, large, block, 0, [0]);
    t.is((await read(t, large, block, 0, [5])).readBytes, index === 0 ? 4 * KiB : 64 * KiB);
  }
  await large.close();
}));
