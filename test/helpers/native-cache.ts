// NativeCacheBench: a cache of the addon without the policy above it, for tests of what its calls promise lib/cache. The simulated
// device does queued work when told to. Two tensors, the second with half as large tokens, so that a row has
// three pages.

import type { ExecutionContext } from 'ava';

import type { Driver } from 'virtual-kv';
import type { MockDevice } from 'virtual-kv/testing';

import { countPages, native, type NativeCache, type NativePool } from '#internal/device/native.js';

import { assertNothingLeft, openDriver, pageBytes } from './cache.js';
import { nativeOf } from './native-of.js';

export const slots = 4;
export const pagesPerRow = 3;
export const rowTokens = 128;

export interface NativeCacheBenchOptions {
  /** Of the pool. Default 60. */
  readonly pages?: number | undefined;
  readonly scrub?: boolean;
  /** Bytes of a token of each tensor. Default 1,024 and 512. */
  readonly tokenBytes?: readonly number[];
}

export class NativeCacheBench {
  readonly t: ExecutionContext;
  readonly device: MockDevice;
  readonly driver: Driver;
  readonly pool: NativePool;
  readonly cache: NativeCache;
  readonly rows = new Int32Array(slots);
  readonly first = new Int32Array(slots);
  readonly isQuarantined = new Uint8Array(slots);

  constructor(t: ExecutionContext, { pages = 60, scrub = false, tokenBytes = [1024, 512] }: NativeCacheBenchOptions = {}) {
    this.t = t;
    const { driver, device } = openDriver({ device: { streams: 'manual' } });
    this.device = device!;
    this.driver = driver;
    this.pool = new (native().NativePool)(nativeOf(driver), pageBytes, pages * pageBytes, 0, 0);
    this.cache = new (native().NativeCache)(this.pool, {
      pageBytes, slots, maxTokens: 1024, tokenBytes: Float64Array.from(tokenBytes),
      tensors: Float64Array.from(tokenBytes.flatMap((bytes, tensor) => [tensor, 0, bytes])), scrub, mapper: true,
    }, this.rows, this.isQuarantined, this.first);
  }

  grow(slot: number, rows: number): void {
    this.cache.grow(Int32Array.of(slot, rows), 1);
  }

  /** Keeps the first rows of a slot as `ids`. */
  keep(slot: number, ids: readonly number[]): void {
    this.cache.keep(Int32Array.from(ids.flatMap((id, row) => [slot, row, id])), ids.length);
  }

  drop(ids: readonly number[]): void {
    this.cache.drop(Int32Array.from(ids), ids.length);
  }

  /** The bound arrays say what the cache's own counters say. */
  assertSeen(what: string): void {
    const { mappedRows, quarantinedSlots } = this.cache.counters();
    const seen = { mappedRows: sum(this.rows) - sum(this.first), quarantinedSlots: sum(this.isQuarantined) };
    this.t.deepEqual(seen, { mappedRows, quarantinedSlots }, what);
  }

  /** The records agree, and every page is counted once. */
  verify(): void {
    const pages = this.cache.verify();
    const { createdPages, freePages, mappedPages, quarantinedPages } = countPages(this.pool);
    this.t.is(mappedPages, pages);
    this.t.is(freePages + mappedPages + quarantinedPages, createdPages);
  }

  /** Verifies, closes, and asserts that nothing is left. */
  close(): void {
    this.device.clearFailures();
    this.device.completeAll();
    this.verify();
    this.cache.close();
    this.t.deepEqual([...this.rows, ...this.first, ...this.isQuarantined], new Array(3 * slots).fill(0));
    this.t.is(countPages(this.pool).earmarkedPages, 0);
    this.pool.close();
    assertNothingLeft(this.t, this.driver, this.device);
  }
}

export function sum(numbers: Iterable<number>): number {
  let total = 0;
  for (const number of numbers) total += number;
  return total;
}
