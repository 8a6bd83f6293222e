// The addon as TypeScript sees it: its classes, how it is found and loaded, and how its Status becomes an error. Everything
// here trusts its arguments; the classes above it validate before they call. Each Node environment has its own.

import * as path from 'node:path';

import bindings = require('bindings');

import {
  codeOfNative, createError, nativeCodes, reasonOfNative, type CodedError,
} from '../base/errors.js';
import { deviceLost } from './change-signal.js';
import type { MockCall, MockJournalEntry, MockLeaks, MockMisuse } from './mock-records.js';
import type { NativeDriver } from './native-driver.js';
import type { NativeDense, NativeDenseOptions, NativeKernels, NativeKernelsOptions } from './native-kernels.js';

export type { NativeDriver, NativeDriverInfo, NativeMemoryInfo } from './native-driver.js';

export interface NativePoolCounts {
  readonly budgetPages: number;
  readonly createdPages: number;
  readonly freePages: number;
  readonly mappedPages: number;
  readonly promisedPages: number;
  readonly quarantinedPages: number;
}

export interface NativePool {
  counts(): NativePoolCounts;
  /** Below zero when a lowered budget is exceeded. */
  available(): number;
  setBudget(bytes: number): void;
  trim(keepPages: number): void;
  close(): void;
}

export interface NativeCacheOptions {
  readonly pageBytes: number;
  readonly slots: number;
  readonly maxTokens: number;
  /** Bytes of one token in each reservation. */
  readonly tokenBytes: Float64Array;
  /** Per tensor: reservation, offset in that reservation's token, bytes. */
  readonly tensors: Float64Array;
  readonly scrub: boolean;
  readonly mapper: boolean;
}

export interface NativeCacheCounters {
  readonly foregroundRows: number;
  readonly foregroundMaps: number;
  readonly backgroundRows: number;
  readonly backgroundMaps: number;
  /** Rows mapped from what other slots or the prefix cache have; their pages in `aliasMaps`. */
  readonly aliasedRows: number;
  readonly aliasMaps: number;
  /** Shared rows that a slot got pages of its own for, because it was going to write there. */
  readonly detachedRows: number;
  /** Bytes of K and V copied within the cache. */
  readonly copiedBytes: number;
  readonly unmappedRows: number;
  readonly unmaps: number;
  readonly scrubbedPages: number;
  readonly mappedRows: number;
  readonly mappedPages: number;
  /** Groups of rows kept for their content, mapped or not. */
  readonly keptGroups: number;
  readonly quarantinedSlots: number;
}

export interface NativeMapperState {
  readonly isIdle: boolean;
  readonly lateErrors: number;
  readonly droppedRequests: number;
  readonly lastError: Error | undefined;
}

/** Places of `NativeCache.news()`. */
export const cacheNews = {
  /** Failures of the driver that the mapper met, since the cache was opened; where it has grown, `mapperState()` has the last one. */
  lateErrors: 0,
  /** Requests that the mapper dropped for want of pages, device memory or kernel mappings, since the cache was opened. */
  droppedRequests: 1,
  /** 1: the mapper has nothing to do, and all that it mapped is in the bound arrays; 0: it works or is about to. */
  isIdle: 2,
  /** Pages that can be taken from the pool, by any of its caches, beside those set aside; below zero when a lowered budget is exceeded. */
  availablePages: 3,
} as const;

/**
 * Slots and rows. `pairs` is [slot, rows] × count.
 *
 * The addon writes the arrays that the cache was opened with, on the JavaScript thread and only inside a call: what `grow`, `shrink`,
 * `admit`, `assign`, `alias`, `detach`, `cancel`, `quiesce` and `close` changed stands there when they return or throw, and with it
 * what the mapper has changed by then; no other call changes a slot. `synchronize` is for the mapper's news alone. Where the memory
 * of an array was given away, these calls do what they do and then throw KV_INTERNAL, all but `close`.
 *
 * `shrink`, `admit`, `assign`, `alias` and `detach` cancel what the mapper was asked for the slot before they look at it.
 */
export interface NativeCache {
  grow(pairs: Int32Array, count: number): void;
  request(pairs: Int32Array, count: number): void;
  /** Drops what the mapper was asked for the slot, and waits for the row at hand if it is the slot's. */
  cancel(slot: number): void;
  /** Drops all requests and waits for the row at hand. */
  quiesce(): void;
  shrink(slot: number, rows: number): void;
  /** Sets pages aside until the slot has `rows` rows; with fewer than it has, none are any more. */
  earmark(slot: number, rows: number): void;
  assign(slot: number, tenant: bigint): void;
  /** Keeps the first `rows` rows of groups as `id`, and only those: `quads` is [slot, group, id, rows] × count. */
  keep(quads: Int32Array, count: number): void;
  drop(ids: Int32Array, count: number): void;
  /**
   * What an idle slot gets for a new sequence, all of it or nothing: it is `tenant`'s; the kept groups ids[from … to) are mapped
   * behind its rows, which end at group `from` if there are any; rows of its own behind those, until it has `rows`; pages are set aside
   * until it has `earmarkedRows` (0: none are); and with `copyTokens` > 0 the slot's tokens before that which lie in group `to` are copied
   * there, from the slot `copySource`, or where it is -1 from what is kept as `copyId`; done when it returns, or with `stream` (and
   * `copySource`) queued there.
   *
   * Needs as many pages as lie between the rows behind the groups and the larger of `rows` and `earmarkedRows`, and mappings for the groups
   * as well. Throws KV_OUT_OF_PAGES, KV_OUT_OF_MAPPINGS, KV_OUT_OF_DEVICE_MEMORY or what else the driver says; the slot then has
   * the rows it had and no more pages set aside, so that the same call can follow once there is room. Where the driver refused the undo
   * too, it is in quarantine.
   */
  admit(
    slot: number, tenant: bigint, ids: Int32Array, from: number, to: number, rows: number, earmarkedRows: number,
    copySource: number, copyId: number, copyTokens: number, stream: bigint | undefined,
  ): void;
  /** Maps the kept groups ids[from … to) behind the slot's rows. */
  alias(slot: number, ids: Int32Array, from: number, to: number): void;
  /**
   * Gives the slot pages of its own for the rows of a group that hold tokens before `tokens`, which are copied: from `fromSlot`, which
   * maps them too, by a copy that is queued on `stream`; where it is -1, the copy is done when the call returns.
   */
  detach(slot: number, group: number, tokens: number, fromSlot: number, stream: bigint): void;
  /** Copies the slot's tokens before `tokens` that lie in `group` into rows of its own, as `admit` does; done when the call returns. */
  copy(slot: number, group: number, fromSlot: number, id: number, tokens: number): void;
  /**
   * Writes tokens of a cache with one reservation: `quads` is [slot, first token, tokens, token of `bytes`] × count. The slots have rows
   * for them, and no queued work uses them.
   */
  put(quads: Int32Array, count: number, bytes: Uint8Array): void;
  /** Writes the slots that the mapper changed into the bound arrays, and `news()`. Throws KV_CLOSED once closed. */
  synchronize(): void;
  /** The array of `cacheNews` that `synchronize` writes, and no other call: always the same one, made with the cache, of zeros at first. */
  news(): Float64Array;
  mapperState(): NativeMapperState;
  counters(): NativeCacheCounters;
  address(reservation: number): bigint;
  /** The first bytes of a slot in a reservation, which are mapped; valid until `revoke`. */
  window(slot: number, reservation: number, bytes: number): ArrayBuffer;
  /**
   * The windows of a slot show nothing of it any more: reads give zeros. Where one `isEscaped`, writes reach private memory; else
   * the caller must not touch them.
   */
  revoke(slot: number, isEscaped: boolean): void;
  stamp(slot: number, from: number, tokens: number, key: bigint): void;
  check(slot: number, from: number, tokens: number, key: bigint): number;
  /** Throws KV_INTERNAL; returns the pages in use here, each counted once. */
  verify(): number;
  close(): void;
}

/** Plain memory of a driver. Both copies wait for the stream first, where one is given. */
export interface NativeMemory {
  address(): bigint;
  write(toByte: number, bytes: Uint8Array, stream: bigint | undefined): void;
  read(into: Uint8Array, fromByte: number, stream: bigint | undefined): void;
  close(): void;
}

/** What a test scripts and asks of the simulated device; mock-device.ts says what each means. */
export interface NativeMockDevice {
  openDriver(): NativeDriver;
  close(): void;
  failCall(call: string, nth: number, result: number, times: number): void;
  clearFailures(): void;
  setLatencyNs(call: string, ns: number): void;
  loseDevice(result: number): void;
  /** `uses` is [address, bytes, 1 where it writes] × count; false when the stream is not live. */
  queueWork(stream: bigint, uses: BigUint64Array): boolean;
  completeStream(stream: bigint): boolean;
  completeAll(): void;
  pendingWork(): number;
  journal(): MockJournalEntry[];
  clearJournal(): void;
  callCounts(): Record<MockCall, number>;
  resetCallCounts(): void;
  leaks(): MockLeaks;
  misuses(): MockMisuse[];
  clearMisuses(): void;
}

type MakeError = (
  code: number, call: string, status: number, statusName: string, what: number, howMany: number, driver: string, others: number,
  text: string,
) => Error;

export interface Native {
  readonly buildTool: string;
  readonly version: string;
  setMakeError(makeError: MakeError): void;
  /** What Node-API answers to an ArrayBuffer over memory of the addon's: 0, or why there can be none. */
  readonly externalBufferStatus: number;
  /** Whether it is a driver that the addon opened. */
  isDriver(value: unknown): boolean;
  /** Detaches an ArrayBuffer: its views have length 0 from here on. It must be one that can be detached. */
  detach(buffer: ArrayBuffer): void;
  openHostDriver(options: {
    memoryBytes: number; populate: boolean; hugePages: boolean; mappingLimit: number;
  }): NativeDriver;
  openCudaDriver(device: number, libraryPath: string | undefined): NativeDriver;
  readonly NativePool: new (
    driver: NativeDriver, pageBytes: number, budgetBytes: number, headroomBytes: number, readyPages: number,
  ) => NativePool;
  readonly NativeCache: new (
    /** `rows`: mapped rows, `isQuarantined`: 0 or 1; index the slot. */
    pool: NativePool, options: NativeCacheOptions, rows: Int32Array, isQuarantined: Uint8Array,
  ) => NativeCache;
  readonly NativeKernels: new (driver: NativeDriver, options: NativeKernelsOptions) => NativeKernels;
  readonly NativeDense: new (driver: NativeDriver | undefined, options: NativeDenseOptions) => NativeDense;
  readonly NativeMemory: new (driver: NativeDriver, bytes: number) => NativeMemory;
  /**
   * Loads an image of the CUDA kernels (PTX ended by a zero, or a fatbin) as the driver's module of this name; at once where it is
   * there already.
   */
  loadKernels(driver: NativeDriver, module: string, image: Uint8Array): void;
  /** The same on another thread. */
  loadKernelsAsync(driver: NativeDriver, module: string, image: Uint8Array): Promise<void>;
  /** Vectors that this machine's CPU has, widest first. */
  readonly cpuInstructions: readonly string[];
  /** The CUDA driver's results by name. */
  readonly cudaResults: Readonly<Record<string, number>>;
  readonly NativeMockDevice: new (options: Readonly<Record<string, unknown>>) => NativeMockDevice;
}

const packageRoot = path.resolve(__dirname, '..', '..');
let loaded: Native | undefined;

/**
 * The addon, loaded at the first call. `VKV_ADDON` names another file (a build with sanitizers). Throws KV_ADDON_NOT_FOUND
 * with every place that was tried, KV_ADDON_MISMATCH when it was built for another version.
 */
export function native(): Native {
  if (loaded !== undefined) return loaded;
  const addon = load();
  const packageVersion = (require(path.join(packageRoot, 'package.json')) as { version: string }).version;
  if (addon.version !== packageVersion) {
    throw createError('KV_ADDON_MISMATCH', { addonVersion: String(addon.version), packageVersion });
  }
  addon.setMakeError(makeError);
  loaded = addon;
  return addon;
}

function load(): Native {
  const override = process.env['VKV_ADDON'];
  try {
    if (override !== undefined) return require(override) as Native;
    return bindings({ bindings: 'virtual_kv', module_root: packageRoot }) as Native;
  } catch (cause) {
    const tried = (cause as { tries?: readonly string[] }).tries ?? [override ?? packageRoot];
    const reason = cause instanceof Error ? (cause.message.split('\n')[0] ?? '') : String(cause);
    throw createError('KV_ADDON_NOT_FOUND', {
      platform: `${process.platform}-${process.arch}`,
      nodeVersion: process.version,
      tried: tried.map((file, index) => ({ path: file, reason: index === 0 ? reason : 'not found' })),
    }, { cause });
  }
}

const closedOwners: Readonly<Record<string, 'Driver' | 'Kernels' | 'DenseKernels' | 'DeviceMemory'>> = {
  'driver': 'Driver', 'kernels': 'Kernels', 'dense kernels': 'DenseKernels', 'device memory': 'DeviceMemory',
};

/** Turns a native Status into an error of the catalogue. `driver` is the kind of the one in use, `text` what it wrote about it. */
function makeError(
  number: number, call: string, status: number, statusName: string, what: number, howMany: number, driver: string, others: number,
  text: string,
): Error {
  const code = codeOfNative(number);
  const driverCall = { call, status, statusName };
  const make: { readonly [C in typeof code]: () => CodedError } = {
    KV_OUT_OF_PAGES: () => createError('KV_OUT_OF_PAGES', {
      needRows: 0, haveRows: 0, needPages: what, havePages: howMany, budgetBytes: 0, pageBytes: 0, slots: [], pagesPerRow: 0,
    }),
    KV_OUT_OF_DEVICE_MEMORY: () => createError('KV_OUT_OF_DEVICE_MEMORY', {
      pageBytes: what, createdPages: howMany, budgetPages: howMany,
    }),
    KV_OUT_OF_ADDRESS_SPACE: () => createError('KV_OUT_OF_ADDRESS_SPACE', { bytes: what }),
    KV_OUT_OF_MAPPINGS: () => createError('KV_OUT_OF_MAPPINGS', {
      neededMappings: what, limitMappings: howMany, otherMappings: others < 0 ? undefined : others, isKernelLimit: status !== 0,
      ...(call === 'view' ? { isForView: true } : {}),
    }),
    KV_DRIVER_UNAVAILABLE: () => createError('KV_DRIVER_UNAVAILABLE', {
      ...driverCall, driver, reason: reasonOfNative(what), device: howMany,
    }),
    KV_DRIVER_UNSUPPORTED: () => createError('KV_DRIVER_UNSUPPORTED', {
      ...driverCall, device: what, feature: 'virtual memory management',
    }),
    KV_DRIVER_TOO_OLD: () => createError('KV_DRIVER_TOO_OLD', { ...driverCall, missing: call, driverVersion: what }),
    KV_DRIVER_CALL_FAILED: () => createError('KV_DRIVER_CALL_FAILED', { ...driverCall, address: what, bytes: howMany }),
    KV_DRIVER_LOST: () => {
      deviceLost.raise();
      return createError('KV_DRIVER_LOST', { ...driverCall, driver });
    },
    KV_DRIVER_MISUSE: () => createError('KV_DRIVER_MISUSE', { ...driverCall, address: what, bytes: howMany }),
    KV_SLOT_BUSY: () => createError('KV_SLOT_BUSY', { slot: what, operation: 'change', holder: 'the quarantine' }),
    KV_CLOSED: () => createError('KV_CLOSED', { operation: 'use it', owner: closedOwners[call] ?? 'KvCache' }),
    KV_INTERNAL: () => createError('KV_INTERNAL', {
      problem: number === nativeCodes.kInvalidArgument.number ? 'the addon cannot take what it was given' : 'the native records do not add up',
      call, what, howMany,
    }),
    KV_COPY_OUT_OF_RANGE: () => createError('KV_COPY_OUT_OF_RANGE', { call, address: what, bytes: howMany }),
    KV_KERNELS_REFUSED: () => createError('KV_KERNELS_REFUSED', { ...driverCall, log: text }),
    KV_CUBLAS_UNAVAILABLE: () => createError('KV_CUBLAS_UNAVAILABLE', { missing: call === 'dlopen' ? undefined : call }),
  };
  return make[code]();
}
