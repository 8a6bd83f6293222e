// CacheBench: one cache in one test, on a driver of its own. It knows how to let a sequence compute tokens, counts driver
// calls, makes calls of the layer below fail, and at the end closes everything and asserts that nothing is left. The
// cache waits for its tiers without limit; a test in which the cache gives up hands in another clock (`timeLoadsBy`).

import { constants } from 'node:os';

import test, { type ExecutionContext, type TestFn } from 'ava';

import {
  Driver, KvCache, onDemand, type Batch, type KvCacheOptions, type ModelShape, type PoolCounts, type Sequence,
} from 'virtual-kv';
import { MockDevice, type MockCall, type MockDeviceOptions } from 'virtual-kv/testing';

import { nativeOf } from './native-of.js';
import { standingClock, timeLoadsBy } from './patient.js';

export const drivers = ['mock', 'host'] as const;
export type DriverName = (typeof drivers)[number];

/** 1,024 bytes per token and tensor, 4 tensors: with pages of 64 KiB a row is 64 tokens and 4 pages. */
export const tinyModel: ModelShape = { layers: 2, kvHeads: 4, headDim: 128, dtype: 'float16' };
export const pageBytes = 64 * 1024;
export const rowTokens = 64;

export interface BenchOptions extends Partial<Omit<KvCacheOptions, 'driver' | 'pool'>> {
  /** Default mock. */
  readonly on?: DriverName;
  /** Rows that the budget allows (per-layer). Default 20; `memoryBudgetBytes` goes before it. */
  readonly rows?: number;
  /** Of the simulated device. */
  readonly device?: MockDeviceOptions;
  /** Of the host driver. */
  readonly mappingLimit?: number;
}

export class CacheBench {
  readonly t: ExecutionContext;
  readonly driver: Driver;
  readonly device: MockDevice | undefined;
  readonly cache: KvCache;
  readonly #batch: Batch;

  constructor(t: ExecutionContext, options: BenchOptions = {}) {
    this.t = t;
    const { driver, device } = openDriver(options);
    this.driver = driver;
    this.device = device;
    try {
      this.cache = new KvCache(cacheOptions(options, driver));
    } catch (error) {
      driver.close();
      throw error;
    }
    if (this.cache.prefixes.tiers !== undefined) timeLoadsBy(this.cache, standingClock);
    this.#batch = this.cache.createBatch();
  }

  /** The device of a bench on the mock. */
  get mock(): MockDevice {
    if (this.device === undefined) throw new Error('this bench is not on the mock');
    return this.device;
  }

  pool(): PoolCounts {
    return this.cache.pool.counts();
  }

  /** A batch of its own with these sequences. */
  batchOf(...entries: readonly (readonly [Sequence, number])[]): Batch {
    const batch = this.cache.createBatch();
    for (const [sequence, tokens] of entries) batch.add(sequence, tokens);
    return batch;
  }

  /** Lets a sequence compute tokens: one step. */
  compute(sequence: Sequence, tokens: number): void {
    this.prepare(sequence, tokens);
    this.cache.commit(this.#batch);
  }

  /** The first half of a step; `commit` or `discard` ends it. */
  prepare(sequence: Sequence, tokens: number): void {
    this.#batch.clear();
    this.#batch.add(sequence, tokens);
    this.cache.prepare(this.#batch);
  }

  commit(): void {
    this.cache.commit(this.#batch);
  }

  discard(): void {
    this.cache.discard(this.#batch);
  }

  /** A sequence without an earmark that has computed so many tokens. */
  sequenceOf(tokens: number, tenant?: string): Sequence {
    const sequence = this.cache.acquire({ promptTokens: tokens, reserve: 'none', tenant });
    if (tokens > 0) this.compute(sequence, tokens);
    return sequence;
  }

  /** An idle slot with so many rows mapped; returns its number. */
  idleSlotOf(rows: number): number {
    const sequence = this.sequenceOf(this.cache.layout.tokensIn(rows));
    sequence.release();
    return sequence.slot;
  }

  /** Everything of a sequence is what `stamp` wrote under `key`. */
  isIntact(sequence: Sequence, key: number): boolean {
    return this.cache.verifyStamp(sequence, 0, sequence.length, key) === 0;
  }

  /** What a call did: pages mapped in the foreground and background, and unmapped. */
  changes<T>(call: () => T): { readonly foreground: number; readonly background: number; readonly unmaps: number } {
    const before = this.cache.metrics;
    call();
    const after = this.cache.metrics;
    return {
      foreground: after.foregroundMaps - before.foregroundMaps,
      background: after.backgroundMaps - before.backgroundMaps,
      unmaps: after.unmaps - before.unmaps,
    };
  }

  /** The `nth` next call of this kind fails: a CUDA entry point on the mock, a system call on host. */
  fail(call: string, nth: number, result = this.device === undefined ? constants.errno.ENOMEM : 999): void {
    if (this.device === undefined) nativeOf(this.driver).failCall(call, nth, result);
    else this.device.failCall(call as MockCall, { nth, result });
  }

  /** Withdraws what `fail` has scripted and has not happened. */
  forgiveAll(): void {
    if (this.device !== undefined) this.device.clearFailures();
    else for (const call of hostCalls) nativeOf(this.driver).failCall(call, 0, 0);
  }

  /** Verifies, closes, and asserts that nothing is left. */
  close(): void {
    if (!this.cache.isClosed) {
      this.cache.verify();
      this.cache.close();
    }
    assertNothingLeft(this.t, this.driver, this.device);
  }

  /** Ends a bench whose test has failed. */
  abandon(): void {
    try {
      this.cache.close();
      this.device?.close();
      this.driver.close();
    } catch {
      // the test's own failure counts
    }
  }
}

/** Calls of the host driver that can be made to fail. */
export const hostCalls = ['ftruncate', 'mmap-reserve', 'mmap-map', 'mmap-unmap', 'munmap', 'fallocate'] as const;

/** The driver of a bench, for tests that make caches and pools themselves; `assertNothingLeft` ends it. */
export function openDriver(
  { on = 'mock', device: deviceOptions, mappingLimit }: BenchOptions = {},
): { readonly driver: Driver; readonly device: MockDevice | undefined } {
  if (on === 'host') return { driver: Driver.open('host', { mappingLimit }), device: undefined };
  const device = new MockDevice({ granularityBytes: pageBytes, ...deviceOptions });
  return { driver: device.driver, device };
}

/** Options of a cache over a driver, with the defaults of a bench: its tests name the work that they queue. */
export function cacheOptions(options: BenchOptions, driver: Driver): KvCacheOptions {
  const { on: _on, rows = 20, device: _device, mappingLimit: _limit, ...given } = options;
  const bytes = given.pageBytes ?? pageBytes;
  const tensors = (given.model ?? tinyModel).layers * 2;
  return {
    model: tinyModel, slots: 8, maxTokens: 1024, growth: onDemand(), pageBytes: bytes, layout: 'per-layer',
    work: given.stream === undefined ? 'awaited' : 'queued',
    memoryBudgetBytes: rows * tensors * bytes, ...given, driver,
  };
}

/** The driver has no page and no reservation left, and the mock saw no misuse; then it is closed. */
export function assertNothingLeft(t: ExecutionContext, driver: Driver, device: MockDevice | undefined): void {
  if (device === undefined || !device.leaks().isLost) {
    const { livePages, liveReservations } = driver.memory();
    t.deepEqual({ livePages, liveReservations }, { livePages: 0, liveReservations: 0 });
  }
  device?.assertNoLeaks();
  driver.close();
  device?.assertNoLeaks();
  device?.close();
}

/** Runs `body` with a cache of its own, and asserts that nothing is left when it succeeded. */
export async function withCache(
  t: ExecutionContext, options: BenchOptions, body: (bench: CacheBench) => void | Promise<void>,
): Promise<void> {
  const bench = new CacheBench(t, options);
  try {
    await body(bench);
  } catch (error) {
    bench.abandon();
    throw error;
  }
  bench.close();
}

type BenchBody = (t: ExecutionContext, bench: CacheBench) => void | Promise<void>;

/** Declares a test with a cache of its own on the mock; `declare` stands for `test`: `slow('why')`. */
export function cacheTest(title: string, options: BenchOptions, body: BenchBody, declare = test as TestFn): void {
  declare(title, (t) => withCache(t, options, (bench) => body(t, bench)));
}

/** Declares the same test on every driver. */
export function cacheTests(title: string, options: BenchOptions, body: BenchBody): void {
  for (const on of drivers) cacheTest(`${title} (${on})`, { ...options, on }, body);
}
