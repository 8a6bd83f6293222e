// Records whose every byte follows from their number and version, stores of them in folders of their own, and the judgement of what a store
// answers: exactly the bytes of a version, or a miss.

import { mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import type { ExecutionContext } from 'ava';

import { mix32, type Random } from '#internal/base/random.js';
import { DiskStore } from '#internal/store/disk-store.js';
import type { DiskStoreOptions } from '#internal/store/disk-store-options.js';
import type { GetResult, StoreRecord } from '#internal/store/store-record.js';
export { scale } from '../runner/tier.js';

export const KiB = 2 ** 10;
export const MiB = 2 ** 20;

/** How much more than the short form that CI runs; docs/store-format.md says what the long form is. */

/** Options of a small store. */
export function options(directory: string, more: Partial<DiskStoreOptions> = {}): DiskStoreOptions {
  return { directory, bytes: 4 * MiB, segmentBytes: 128 * KiB, namespace: Buffer.from('a model'), threads: 2, durability: 'sync', ...more };
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

export function keyOf(number: number): Uint8Array {
  const key = new Uint8Array(32);
  const view = new DataView(key.buffer);
  for (let at = 0; at < 32; at += 4) view.setUint32(at, mix32(number, at), true);
  return key;
}

/** Sizes of a record's stripes, by their ids 1, 2, 3. Some are empty, some longer than a chunk. */
export type Sizes = readonly number[];

export const smallSizes: Sizes = [300, 0, 700];

export function bytesOf(number: number, version: number, stripe: number, length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  const seed = mix32(number * 64 + stripe, version);
  for (let at = 0; at < length; at += 1) bytes[at] = (seed >>> (at & 15)) + at * 7 + (at >>> 8);
  return bytes;
}

/** With which a record is put. */
export function levelOf(number: number, version: number): number {
  return mix32(number, version) & 255;
}

export function recordOf(number: number, version = 0, sizes: Sizes = smallSizes): StoreRecord {
  return {
    key: keyOf(number), parent: keyOf(number - 1), position: 16 * number, tokens: Int32Array.from({ length: 16 }, (_, at) => number * 16 + at),
    extra: Uint8Array.of(version & 255, version >>> 8), level: levelOf(number, version),
    stripes: sizes.map((size, at) => ({ id: at + 1, source: bytesOf(number, version, at + 1, size) })),
  };
}

/** An order of a record's 16 tokens. */
export function orderOf(random: Random): Int32Array {
  const order = Int32Array.from({ length: 16 }, (_, token) => token);
  for (let left = 16; left > 1; left -= 1) {
    const other = random.integer(left);
    [order[left - 1], order[other]] = [order[other]!, order[left - 1]!];
  }
  return order;
}

export interface ReadBack {
  readonly result: GetResult;
  /** The bytes of each stripe as read. */
  readonly stripes: readonly Uint8Array[];
}

/** Reads a record whole. */
export async function readBack(store: DiskStore, number: number, sizes: Sizes = smallSizes): Promise<ReadBack> {
  const stripes = sizes.map((size) => new Uint8Array(size).fill(0xee));
  const result = await store.get(keyOf(number), stripes.map((target, at) => ({ stripe: at + 1, target })));
  return { result, stripes };
}

/** The version of `versions` that a record has; undefined for a miss. Fails where a read that is called good has other bytes. */
export async function versionOf(
  t: ExecutionContext, store: DiskStore, number: number, versions: readonly number[], sizes: Sizes = smallSizes,
): Promise<number | undefined> {
  const { result, stripes } = await readBack(store, number, sizes);
  const fitting = versions.filter((version) => stripes.every((bytes, at) =>
    result.reads[at] !== 'good' || Buffer.compare(bytes, bytesOf(number, version, at + 1, sizes[at]!)) === 0));
  if (fitting.length === 0 && result.reads.includes('good')) t.fail(`record ${number}: bytes of no version are called good`);
  return result.isHit ? fitting[0] : undefined;
}

/** Fails unless the record is there, every byte of it. */
export async function assertExact(t: ExecutionContext, store: DiskStore, number: number, version = 0, sizes: Sizes = smallSizes): Promise<void> {
  const { result, stripes } = await readBack(store, number, sizes);
  t.true(result.isHit, `record ${number}: ${result.reason ?? ''}`);
  stripes.forEach((bytes, at) => t.is(Buffer.compare(bytes, bytesOf(number, version, at + 1, sizes[at]!)), 0, `record ${number}, stripe ${at + 1}`));
}

/** The folder of the one namespace in a directory. */
export function folderOf(directory: string): string {
  return path.join(directory, readdirSync(directory).find((name) => name.startsWith('kvs-'))!);
}

/** Paths of the segment files, in the order in which they were made. */
export function segmentsOf(directory: string): string[] {
  const folder = folderOf(directory);
  const number = (name: string): number => Number(name.slice(37, -4));
  return readdirSync(folder).filter((name) => name.startsWith('seg-')).toSorted((a, b) => number(a) - number(b)).map((name) => path.join(folder, name));
}

/** Fails unless the store's accounts are what its files are. */
export function assertAccounts(t: ExecutionContext, store: DiskStore, directory: string): void {
  const { fileBytes, segments, liveBytes, deadBytes, limitBytes } = store.stats();
  const files = segmentsOf(directory);
  t.is(segments, files.length);
  t.is(fileBytes, files.reduce((sum, file) => sum + statSync(file).size, 0));
  t.true(liveBytes + deadBytes <= fileBytes);
  // Lists of removals are written beyond the limit rather than not at all.
  t.true(fileBytes <= limitBytes + 256 * KiB, `${fileBytes} bytes of files, ${limitBytes} allowed`);
}
