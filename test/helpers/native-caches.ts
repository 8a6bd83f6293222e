// NativeCaches: several caches of the addon over one pool, without the policy above them, as the layer sets of a model are: each
// with tensors of its own, all with tokens of one size, so that a row is 16 tokens and a page of each tensor.

import type { ExecutionContext } from 'ava';

import type { Driver } from 'virtual-kv';
import type { MockDevice } from 'virtual-kv/testing';

import { cacheNews, countPages, native, type NativeCache, type NativePool } from '#internal/device/native.js';

import { assertNothingLeft, openDriver, pageBytes, type DriverName } from './cache.js';
import { nativeOf } from './native-of.js';

export const rowTokens = 16;
export const maxRows = 16;

export interface NativeCachesOptions {
  readonly on?: DriverName;
  readonly pages: number;
  /** Tensors of each cache. */
  readonly tensors: readonly number[];
  readonly slots: number;
  /** Whether all of them share a mapper. */
  readonly mapper: boolean;
  readonly readyPages?: number;
  readonly scrub?: boolean;
}

/** One of them, and the arrays that it writes. */
export interface NativeSet {
  readonly tensors: number;
  readonly cache: NativeCache;
  readonly rows: Int32Array;
  readonly first: Int32Array;
  readonly isQuarantined: Uint8Array;
}

export class NativeCaches {
  readonly t: ExecutionContext;
  readonly driver: Driver;
  readonly device: MockDevice | undefined;
  readonly pool: NativePool;
  readonly sets: readonly NativeSet[];

  constructor(t: ExecutionContext, options: NativeCachesOptions) {
    this.t = t;
    const { driver, device } = openDriver({ on: options.on ?? 'mock' });
    this.driver = driver;
    this.device = device;
    this.pool = new (native().NativePool)(nativeOf(driver), pageBytes, options.pages * pageBytes, 0, options.readyPages ?? 0);
    const sets: NativeSet[] = [];
    for (const tensors of options.tensors) sets.push(this.#open(options, tensors, sets[0]?.cache));
    this.sets = sets;
  }

  #open({ slots, mapper, scrub = false }: NativeCachesOptions, tensors: number, shared: NativeCache | undefined): NativeSet {
    const [rows, first, isQuarantined] = [new Int32Array(slots), new Int32Array(slots), new Uint8Array(slots)];
    const tokenBytes = pageBytes / rowTokens;
    const cache = new (native().NativeCache)(this.pool, {
      pageBytes, slots, maxTokens: maxRows * rowTokens, scrub, mapper: mapper ? shared ?? true : false,
      tokenBytes: new Float64Array(tensors).fill(tokenBytes),
      tensors: Float64Array.from(Array.from({ length: tensors }, (_, tensor) => [tensor, 0, tokenBytes]).flat()),
    }, rows, isQuarantined, first);
    return { tensors, cache, rows, first, isQuarantined };
  }

  /** The mapper has nothing left to do for any of them, and what it did is in their arrays. */
  async idle(): Promise<void> {
    for (const { cache } of this.sets) {
      do {
        await new Promise(setImmediate);
        cache.synchronize();
      } while (cache.news()[cacheNews.isIdle] === 0);
    }
  }

  /** The records of all agree, and every page is counted once. */
  verify(): void {
    let pages = 0;
    for (const { cache } of this.sets) pages += cache.verify();
    const { createdPages, freePages, mappedPages, quarantinedPages } = countPages(this.pool);
    this.t.is(mappedPages, pages);
    this.t.is(freePages + mappedPages + quarantinedPages, createdPages);
  }

  /** Closes the caches in this order, and asserts that nothing is left. */
  close(order: readonly NativeSet[] = this.sets): void {
    for (const { cache } of order) cache.close();
    this.t.deepEqual(this.sets.flatMap(({ rows, first }) => [...rows, ...first]).filter((row) => row !== 0), []);
    this.t.is(countPages(this.pool).earmarkedPages, 0);
    this.pool.close();
    assertNothingLeft(this.t, this.driver, this.device);
  }
}
