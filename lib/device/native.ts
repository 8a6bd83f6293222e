// The addon as TypeScript sees it: its classes, and how its Status becomes an error. Everything
// here trusts its arguments; the classes above it validate before they call. Each Node environment has its own.

import {
  codeOfNative, createError, nativeCodes, reasonOfNative, type CodedError,
} from '../base/errors.js';
import { packageVersion } from '../base/package.js';
import { deviceLost } from './wait.js';
import { loadAddon } from './load-addon.js';
import type { MockCall, MockJournalEntry, MockLeaks, MockMisuse } from './mock-records.js';
import type { NativeArena, NativeCache, NativeCacheOptions, NativePool } from './native-cache.js';
import type { NativeDriver } from './native-driver.js';
import type {
  NativeDense, NativeDenseOptions, NativeKernels, NativeKernelsOptions, NativeSampling, NativeSamplingOptions,
} from './native-kernels.js';
import type { NativeOnnx, NativeOnnxAnswer, NativeOnnxOptions } from './native-onnx.js';
import type { NativeStore, NativeStoreAnswer, NativeStoreFaults, NativeStoreOptions } from './native-store.js';

export {
  cacheNews, countPages, type NativeArena, type NativeCache, type NativeCacheCounters, type NativeCacheOptions,
  type NativeMapperState, type NativePool,
  type NativePoolCounts,
} from './native-cache.js';
export type { NativeDriver, NativeDriverInfo, NativeMemoryInfo } from './native-driver.js';

/** Plain memory of a driver. Both copies wait for the stream first, where one is given. */
export interface NativeMemory {
  address(): bigint;
  write(toByte: number, bytes: Uint8Array, stream: bigint | undefined): void;
  read(into: Uint8Array, fromByte: number, stream: bigint | undefined): void;
  close(): void;
}

/**
 * A regular file of so many bytes, mapped read-only until the object is forgotten; work that reads it has to hold it.
 * The constructor throws KV_DRIVER_CALL_FAILED with the errno that native/host/mapped_file.h gives.
 */
export interface NativeMappedFile {
  address(): bigint;
  /** Whether all that was read of it is what it held when it was opened. */
  isIntact(): boolean;
  read(into: Uint8Array, fromByte: number): void;
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
  code: number, call: string, status: number, statusName: string, what: number, howMany: number, driver: string,
  others: number,
  text: string,
) => Error;

export interface Native {
  readonly buildTool: string;
  readonly version: string;
  setMakeError(makeError: MakeError): void;
  /**
   * Once: what hears of host streams' marks; `command`: how many were queued before one that failed, since the mark
   * before.
   */
  setOnStreamMark(onMark: (id: number, error: Error | undefined, command: number) => void): void;
  /** What Node-API answers to an ArrayBuffer over memory of the addon's: 0, or why there can be none. */
  readonly externalBufferStatus: number;
  isDriver(value: unknown): boolean;
  /** Detaches an ArrayBuffer: its views have length 0 from here on. It must be one that can be detached. */
  detach(buffer: ArrayBuffer): void;
  addressOf(memory: Uint8Array): bigint;
  /** Memory that was not touched yet comes in huge pages, where the system has some to spare. */
  preferHugePages(memory: Uint8Array): void;
  /** Fills `sums` with the CRC-32C of each `chunkBytes` of the memory; returns that of all of it. */
  sumChunks(memory: Uint8Array, chunkBytes: number, sums: Uint32Array): number;
  /**
   * Copies rows one behind the other into `target`, and checks the chunks that hold them. Returns how many chunks, or
   * −1: one has another sum.
   */
  copyRows(
    memory: Uint8Array, chunkBytes: number, sums: Uint32Array, rowBytes: number, rows: Int32Array, target: Uint8Array,
  ): number;
  /**
   * Floats as int8 blocks of 34 bytes, one behind the other; false where a block is not finite or too large for its
   * scale.
   */
  quantizeRows(floats: Float32Array, into: Uint8Array): boolean;
  openHostDriver(options: {
    memoryBytes: number; populate: boolean; hugePages: boolean; mappingLimit: number;
  }): NativeDriver;
  openCudaDriver(device: number, libraryPath: string | undefined): NativeDriver;
  readonly NativePool: new (
    driver: NativeDriver, pageBytes: number, budgetBytes: number, headroomBytes: number, readyPages: number,
  ) => NativePool;
  readonly NativeCache: new (
    /** `rows`: mapped rows, `isQuarantined`: 0 or 1; index the slot. */
    pool: NativePool, options: NativeCacheOptions, rows: Int32Array, isQuarantined: Uint8Array, first?: Int32Array,
  ) => NativeCache;
  readonly NativeKernels: new (driver: NativeDriver, options: NativeKernelsOptions) => NativeKernels;
  readonly NativeDense: new (driver: NativeDriver | undefined, options: NativeDenseOptions) => NativeDense;
  /**
   * `image`: PTX of the kernel that writes rows to many pages at once, ended by a zero; copies go one by one where it
   * is refused.
   */
  readonly NativeArena: new (device: NativeDriver, host: NativeDriver, image: Uint8Array) => NativeArena;
  readonly NativeSampling: new (options: NativeSamplingOptions) => NativeSampling;
  readonly NativeMappedFile: new (descriptor: number, bytes: number) => NativeMappedFile;
  readonly NativeMemory: new (driver: NativeDriver, bytes: number) => NativeMemory;
  /**
   * Loads an image of the CUDA kernels (PTX ended by a zero, or a fatbin) as the driver's module of this name; at once
   * where it is there already.
   */
  loadKernels(driver: NativeDriver, module: string, image: Uint8Array): void;
  /** The same on another thread. */
  loadKernelsAsync(driver: NativeDriver, module: string, image: Uint8Array): Promise<void>;
  readonly NativeStore: new (
    options: NativeStoreOptions, onAnswer: NativeStoreAnswer, faults?: NativeStoreFaults,
  ) => NativeStore;
  readonly NativeStoreFaults: new () => NativeStoreFaults;
  readonly NativeOnnx: new (
    options: NativeOnnxOptions, onAnswer: NativeOnnxAnswer, driver?: NativeDriver,
  ) => NativeOnnx;
  /** Vectors that this machine's CPU has, widest first. */
  readonly cpuInstructions: readonly string[];
  /** The CUDA driver's results by name. */
  readonly cudaResults: Readonly<Record<string, number>>;
  readonly NativeMockDevice: new (options: Readonly<Record<string, unknown>>) => NativeMockDevice;
}

let loaded: Native | undefined;
let loadedFile = '';

/**
 * The addon, loaded at the first call. `VKV_ADDON` names another file (a build with sanitizers). Throws
 * KV_ADDON_NOT_FOUND with every place that was tried, KV_ADDON_MISMATCH when it was built for another version.
 */
export function native(): Native {
  if (loaded !== undefined) return loaded;
  const { exports, file } = loadAddon();
  const addon = exports as Native;
  if (addon.version !== packageVersion) {
    throw createError('KV_ADDON_MISMATCH', { addonVersion: String(addon.version), packageVersion });
  }
  addon.setMakeError(makeError);
  loaded = addon;
  loadedFile = file;
  return addon;
}

/** The file of the addon, loaded if it was not. Throws as `native` does. */
export function addonFile(): string {
  native();
  return loadedFile;
}

const closedOwners: Readonly<Record<string, 'Driver' | 'Kernels'
  | 'DenseKernels' | 'DeviceMemory' | 'DiskStore' | 'OnnxDecoder'>> = {
  'driver': 'Driver', 'kernels': 'Kernels', 'dense kernels': 'DenseKernels', 'device memory': 'DeviceMemory',
  'disk store': 'DiskStore', 'onnx session': 'OnnxDecoder',
};

/**
 * Turns a native Status into an error of the catalogue. `driver` is the kind of the one in use, `text` what it wrote
 * about it.
 */
function makeError(
  number: number, call: string, status: number, statusName: string, what: number, howMany: number, driver: string,
  others: number,
  text: string,
): Error {
  const code = codeOfNative(number);
  const driverCall = { call, status, statusName };
  const make: { readonly [C in typeof code]: () => CodedError } = {
    KV_OUT_OF_PAGES: () => createError('KV_OUT_OF_PAGES', {
      needRows: 0, haveRows: 0, needPages: what, havePages: howMany, budgetBytes: 0, pageBytes: 0, slots: [],
      pagesPerRow: 0,
    }),
    KV_OUT_OF_DEVICE_MEMORY: () => createError('KV_OUT_OF_DEVICE_MEMORY', {
      pageBytes: what, createdPages: howMany, budgetPages: howMany,
    }),
    KV_OUT_OF_ADDRESS_SPACE: () => createError('KV_OUT_OF_ADDRESS_SPACE', { bytes: what }),
    KV_OUT_OF_MAPPINGS: () => createError('KV_OUT_OF_MAPPINGS', {
      neededMappings: what, limitMappings: howMany, otherMappings: others < 0 ? undefined : others,
      isKernelLimit: status !== 0,
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
      problem: number === nativeCodes.kInvalidArgument.number ? 'the addon cannot take what it was given'
        : 'the native records do not add up',
      call, what, howMany,
    }),
    KV_COPY_OUT_OF_RANGE: () => createError('KV_COPY_OUT_OF_RANGE', { call, address: what, bytes: howMany }),
    KV_KERNELS_REFUSED: () => createError('KV_KERNELS_REFUSED', { ...driverCall, log: text }),
    KV_STORE_UNAVAILABLE: () => createError('KV_STORE_UNAVAILABLE', { ...driverCall, path: text }),
    KV_STORE_LOCKED: () => createError('KV_STORE_LOCKED', { path: text, process: what }),
    KV_STORE_FOREIGN: () => createError('KV_STORE_FOREIGN', { path: text }),
    KV_STORE_VERSION: () => createError('KV_STORE_VERSION', { path: text, version: what, latestVersion: howMany }),
    KV_STORE_FAILED: () => createError('KV_STORE_FAILED', { ...driverCall, path: text }),
    KV_ONNX_UNAVAILABLE: () => createError('KV_ONNX_UNAVAILABLE', { problem: text }),
    KV_ONNX_FAILED: () => createError('KV_ONNX_FAILED', { call, status: what, problem: text }),
    KV_CUBLAS_UNAVAILABLE: () =>
      createError('KV_CUBLAS_UNAVAILABLE', { missing: call === 'dlopen' ? undefined : call }),
  };
  return make[code]();
}
