// Blocks whose every byte follows from their number and version, stores of them in folders of their own, and the
// judgement of what a store answers: exactly the bytes of a version, or a miss.

import { mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import type { ExecutionContext } from 'ava';

import { mix32, type Random } from '#internal/base/random.js';
import { DiskStore } from '#internal/store/disk-store.js';
import type { DiskStoreOptions } from '#internal/store/disk-store-options.js';
import type { FoundBlock, PutResult, ReadMiss, StoreBlock } from '#internal/store/store-block.js';
import { crc32c } from '#internal/tiers/contract-store.js';
export { scale } from '../runner/tier.js';

export const KiB = 2 ** 10;
export const MiB = 2 ** 20;

/** Of every block. */
export const blockTokens = 16;

/** Options of a small store. */
export function options(directory: string, more: Partial<DiskStoreOptions> = {}): DiskStoreOptions {
  return { directory, bytes: 4 * MiB, namespace: Buffer.from('a model'), threads: 2, durability: 'sync', ...more };
}

/** Calls `work` with an empty folder on disk, which is removed afterwards. */
export async function inFolder<T>(work: (directory: string) => Promise<T>): Promise<T> {
  const directory = mkdtempSync(path.join(tmpdir(), 'vkv-store-'));
  try {
    return await work(directory);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Calls `work` with an open store, which is closed afterwards. */
export async function withStore<T>(given: DiskStoreOptions, work: (store: DiskStore) => Promise<T>): Promise<T> {
  const store = await DiskStore.open(given);
  try {
    return await work(store);
  } finally {
    await store.close();
  }
}

/** What a store tells when it is opened, by number; `work` has it open. */
export async function found(given: DiskStoreOptions, work: (store: DiskStore) => Promise<void> = () => Promise.resolve()): Promise<Map<number, FoundBlock>> {
  const blocks = new Map<number, FoundBlock>();
  const store = await DiskStore.open(given, { found: (block) => { blocks.set(block.position / blockTokens, block); } });
  try {
    await work(store);
  } finally {
    await store.close();
  }
  return blocks;
}

export function keyOf(number: number): string {
  const key = Buffer.alloc(32);
  for (let at = 0; at < 32; at += 4) key.writeUInt32LE(mix32(number, at), at);
  return key.toString('hex');
}

/** Bytes of a block's stripes, multiples of 16. Some are empty, some longer than a chunk. */
export type Sizes = readonly number[];

export const smallSizes: Sizes = [304, 0, 704];

export function bytesOf(number: number, version: number, stripe: number, length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  const seed = mix32(number * 64 + stripe, version);
  for (let at = 0; at < length; at += 1) bytes[at] = (seed >>> (at & 15)) + at * 7 + (at >>> 8);
  return bytes;
}

export function payloadOf(number: number, version = 0, sizes: Sizes = smallSizes): Uint8Array {
  return new Uint8Array(Buffer.concat(sizes.map((size, at) => bytesOf(number, version, at + 1, size))));
}

/** With which a block is put. */
export function levelOf(number: number, version: number): number {
  return mix32(number, version) & 255;
}

/** CRC-32C of each stripe. */
export function sumsOf(payload: Uint8Array, sizes: Sizes): Uint32Array {
  let end = 0;
  return Uint32Array.from(sizes, (size) => crc32c(payload.subarray(end, end += size)));
}

export function blockOf(number: number, version = 0, sizes: Sizes = smallSizes): StoreBlock {
  return {
    key: keyOf(number), parent: keyOf(number - 1), position: blockTokens * number, tokens: Int32Array.from({ length: blockTokens }, (_, at) => number * blockTokens + at),
    notes: Uint8Array.of(version & 255, version >>> 8), level: levelOf(number, version), sums: sumsOf(payloadOf(number, version, sizes), sizes),
  };
}

export function rowsOf(sizes: Sizes): number[] {
  return sizes.map((size) => size / blockTokens);
}

export function put(store: DiskStore, number: number, version = 0, sizes: Sizes = smallSizes): Promise<PutResult> {
  return store.put(blockOf(number, version, sizes), rowsOf(sizes), payloadOf(number, version, sizes));
}

/** An order of a block's tokens. */
export function orderOf(random: Random): Int32Array {
  const order = Int32Array.from({ length: blockTokens }, (_, token) => token);
  for (let left = blockTokens; left > 1; left -= 1) {
    const other = random.integer(left);
    [order[left - 1], order[other]] = [order[other]!, order[left - 1]!];
  }
  return order;
}

export interface ReadBack {
  /** `corrupt` also where the bytes do not have the sums that came with them. */
  readonly reason: ReadMiss | undefined;
  readonly payload: Uint8Array;
}

/** Reads a block whole, and checks it as a cache does. */
export async function readBack(store: DiskStore, number: number, sizes: Sizes = smallSizes, payload: Uint8Array = new Uint8Array(sizes.reduce((a, b) => a + b, 0))): Promise<ReadBack> {
  payload.fill(0xee);
  const got = await store.get(keyOf(number), payload);
  if (!got.isFound) return { reason: got.reason, payload };
  return { reason: sumsOf(payload, sizes).every((sum, stripe) => sum === got.sums[stripe]) ? undefined : 'corrupt', payload };
}

/**
 * The version of `versions` that a block has; undefined for a miss. Fails where bytes that are called good are of none.
 */
export async function versionOf(
  t: ExecutionContext, store: DiskStore, number: number, versions: readonly number[], sizes: Sizes = smallSizes,
): Promise<number | undefined> {
  const { reason, payload } = await readBack(store, number, sizes);
  if (reason !== undefined) return undefined;
  const version = versions.find((one) => Buffer.compare(payload, payloadOf(number, one, sizes)) === 0);
  if (version === undefined) t.fail(`block ${number}: bytes of no version are called good`);
  return version;
}

/** Fails unless the block is there, every byte of it. */
export async function assertExact(t: ExecutionContext, store: DiskStore, number: number, version = 0, sizes: Sizes = smallSizes): Promise<void> {
  const { reason, payload } = await readBack(store, number, sizes);
  t.is(reason, undefined, `block ${number}`);
  t.is(Buffer.compare(payload, payloadOf(number, version, sizes)), 0, `block ${number}`);
}

/** Reads all tokens of a stripe one behind the other in an order of their own; undefined: all are exact. */
export async function readTokens(
  t: ExecutionContext, store: DiskStore, number: number, version: number, sizes: Sizes, stripe: number, tokens: readonly number[],
): Promise<ReadMiss | undefined> {
  const row = sizes[stripe]! / blockTokens;
  const target = new Uint8Array(tokens.length * row);
  const { reason } = await store.getTokens(keyOf(number), { stripes: Float64Array.of(stripe), counts: Float64Array.of(tokens.length), tokens: Int32Array.from(tokens) }, target);
  if (reason !== undefined) return reason;
  const whole = bytesOf(number, version, stripe + 1, sizes[stripe]!);
  tokens.forEach((token, at) => {
    if (Buffer.compare(target.subarray(at * row, (at + 1) * row), whole.subarray(token * row, (token + 1) * row)) !== 0) t.fail(`block ${number}: other bytes for token ${token}`);
  });
  return undefined;
}

/** The folder of the one namespace in a directory. */
export function folderOf(directory: string): string {
  return path.join(directory, readdirSync(directory).find((name) => name.startsWith('kvs-'))!);
}

export function fileOf(directory: string, number: number): string {
  return path.join(folderOf(directory), `${keyOf(number)}.block`);
}

/** Paths of the files of blocks. */
export function filesOf(directory: string): string[] {
  const folder = folderOf(directory);
  return readdirSync(folder).filter((name) => name.endsWith('.block')).map((name) => path.join(folder, name));
}

/** Fails unless the store's accounts are what its files are, while nothing is under way. */
export function assertAccounts(t: ExecutionContext, store: DiskStore, directory: string): void {
  const { fileBytes, blocks, bytes, limitBytes, leftFiles } = store.stats();
  const folder = folderOf(directory);
  const files = readdirSync(folder).filter((name) => /^[0-9a-f]{64}\./.test(name));
  if (leftFiles === 0) t.is(blocks, files.length);
  const used = files.reduce((sum, name) => sum + statSync(path.join(folder, name)).size, 0);
  t.true(fileBytes >= used + 8_192 && fileBytes <= used + 256 * KiB, `${fileBytes} counted, ${used} in blocks`);
  t.true(bytes <= used);
  t.true(fileBytes <= limitBytes, `${fileBytes} bytes of files, ${limitBytes} allowed`);
}
