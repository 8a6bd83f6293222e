// MockDevice: a simulated CUDA device, for tests. It replaces the CUDA driver library, so that a cache over it runs the
// shipped code; it checks every rule of CUDA's virtual memory calls; and a test can make it fail, slow it down, lose
// it, or decide when its work completes. Threads: the environment's own.

import { createError } from '../base/errors.js';
import {
  arrayOf, boolean, checkInteger, integer, isAddress, oneOf, readOptions, string, withDefault, type Field,
  type OptionsOf,
} from '../base/options.js';
import { Driver } from './driver.js';
import {
  describeLeaks, mockCalls, type MockCall, type MockJournalEntry, type MockLeaks, type MockMisuse,
} from './mock-records.js';
import { native, type NativeMockDevice } from './native.js';

/** Options of `MockDevice`. */
export interface MockDeviceOptions {
  /** Bytes of all pages together. Default 1 GiB. */
  readonly memoryBytes?: number | undefined;
  /** Bytes of all reservations together. Default 128 TiB (with real backing this machine may allow less). */
  readonly addressSpaceBytes?: number | undefined;
  /** Bytes that every page size is a multiple of; itself a multiple of 4,096. Default 2 MiB, as on GPUs. */
  readonly granularityBytes?: number | undefined;
  /**
   * `real` (default): pages are host memory mapped at their addresses, which the CPU can read and write directly; at
   * most 15,000 mappings. `none`: pages are only counted, for models of large machines; copies and fills are checked
   * but move nothing, reads and writes are refused.
   */
  readonly backing?: 'real' | 'none' | undefined;
  /**
   * `immediate` (default): work is done when it is queued. `manual`: when the test completes it, or a call waits for
   * it.
   */
  readonly streams?: 'immediate' | 'manual' | undefined;
  /**
   * How long waits for a stream, an event or the whole device take. `instant` (default). `slow`: 2 ms, in which calls
   * of other threads run, while what is waited for is still to be done: for tests of code that several threads share.
   */
  readonly waits?: 'instant' | 'slow' | undefined;
  /**
   * Fill new pages with 0xff, which is NaN in every float format, instead of zeros. Real backing only. Default false.
   */
  readonly hasGarbage?: boolean | undefined;
  /** Bytes of `memoryBytes` that a context takes while a driver is open. Default 0; a GPU's is some 500 MiB. */
  readonly contextBytes?: number | undefined;
  /** Bytes of `memoryBytes` that a module of kernels takes. Default 0. */
  readonly moduleBytes?: number | undefined;
  /**
   * What unmapping does while work is queued. `checks` (default): unmapping memory that the work uses is a misuse, any
   * other returns at once. `waits`: it waits for all queued work first, as a driver may.
   */
  readonly unmap?: 'checks' | 'waits' | undefined;
  /** False makes a device without virtual memory management, which no driver opens. Default true. */
  readonly hasVirtualMemory?: boolean | undefined;
  /** Name of the device. Default "mock device". */
  readonly name?: string | undefined;
  /** CUDA version of the driver, 1000 × major + 10 × minor. Default 13000. */
  readonly driverVersion?: number | undefined;
  /** 10 × major + minor. Default 90. */
  readonly computeCapability?: number | undefined;
  /** How many of the latest calls the journal keeps. Default 4,096. */
  readonly journalEntries?: number | undefined;
}

/** Options of `MockDevice.failCall`. */
export interface FailCallOptions {
  /** Which call of this kind from now on; 1 is the next. Default 1. */
  readonly nth?: number | undefined;
  /**
   * The CUresult that the call returns, by name or number. A result that ends a real device
   * (CUDA_ERROR_ILLEGAL_ADDRESS, …) also loses this one. Default CUDA_ERROR_UNKNOWN (999).
   */
  readonly result?: string | number | undefined;
  /** How many calls in a row. Default 1. */
  readonly times?: number | undefined;
}

/** A range that queued work uses. */
export interface MockUse {
  /** Where the memory begins. */
  readonly address: bigint;
  /** Its length, at least 1. */
  readonly bytes: number;
  /** Whether it is read or written. */
  readonly access: 'read' | 'write';
}

const hostPageBytes = 4096;
/** A test that asked for more would hang rather than be slow: a call holds its thread. */
const mostLatencyNs = 1e9;

const deviceSpec = {
  memoryBytes: withDefault(integer({ min: 1 }), 2 ** 30),
  addressSpaceBytes: withDefault(integer({ min: 1 }), 2 ** 47),
  granularityBytes: withDefault(integer({ min: hostPageBytes, multipleOf: hostPageBytes }), 2 * 2 ** 20),
  backing: withDefault(oneOf(['real', 'none']), 'real'),
  streams: withDefault(oneOf(['immediate', 'manual']), 'immediate'),
  waits: withDefault(oneOf(['instant', 'slow']), 'instant'),
  contextBytes: withDefault(integer(), 0),
  moduleBytes: withDefault(integer(), 0),
  unmap: withDefault(oneOf(['checks', 'waits']), 'checks'),
  hasGarbage: withDefault(boolean, false),
  hasVirtualMemory: withDefault(boolean, true),
  name: withDefault(string, 'mock device'),
  driverVersion: withDefault(integer({ min: 1000, max: 999_990 }), 13_000),
  computeCapability: withDefault(integer({ min: 10, max: 999 }), 90),
  journalEntries: withDefault(integer({ max: 2 ** 24 }), 4096),
};

const failureSpec = {
  nth: withDefault(integer({ min: 1 }), 1),
  result: cudaResult('CUDA_ERROR_UNKNOWN'),
  times: withDefault(integer({ min: 1 }), 1),
};

const bigint: Field<bigint> = (value, place) => {
  if (isAddress(value)) return value;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'a bigint from 0 to 2⁶⁴ − 1', received: value,
  });
};
const useSpec = { address: bigint, bytes: integer({ min: 1 }), access: oneOf(['read', 'write']) };
const mockUse: Field<OptionsOf<typeof useSpec>> =
  (value, place) => readOptions(place.owner, value, useSpec, place.option);

/** A simulated CUDA device that checks every call and loses itself where a real one would. For tests. */
export class MockDevice {
  #native: NativeMockDevice | undefined;
  #driver: Driver | undefined;

  /** Throws KV_DRIVER_UNAVAILABLE when the system refuses the memory file that real backing needs. */
  constructor(options: MockDeviceOptions = {}) {
    this.#native = new (native().NativeMockDevice)(readOptions('MockDevice', options, deviceSpec));
  }

  /**
   * The driver for caches and pools: opened at the first use of this property, closed with the device. Throws as
   * `openDriver()`.
   */
  get driver(): Driver {
    this.#driver ??= this.openDriver();
    return this.#driver;
  }

  /** Opens another driver over this device, which the caller closes. Throws what opening a GPU may throw. */
  openDriver(): Driver {
    return new Driver(this.#open().openDriver());
  }

  // Script

  /** Makes one call of a kind, or several in a row, return an error and do nothing. Scripts for one kind add up. */
  failCall(call: MockCall, options: FailCallOptions = {}): void {
    const { nth, result, times } = readOptions('MockDevice.failCall', options, failureSpec);
    checkCall('MockDevice.failCall', call);
    this.#open().failCall(call, nth, result, times);
  }

  /** Forgets the failures that are still to come. */
  clearFailures(): void {
    this.#open().clearFailures();
  }

  /**
   * Makes every call of this kind take this long from now on, at most a second. Calls that map wait for each other, as
   * with a real driver.
   */
  setLatencyNs(call: MockCall, ns: number): void {
    checkCall('MockDevice.setLatencyNs', call);
    checkInteger('MockDevice.setLatencyNs', 'ns', ns, 0, mostLatencyNs);
    this.#open().setLatencyNs(call, ns);
  }

  /** Ends the device: every later call returns this CUresult. Default CUDA_ERROR_ILLEGAL_ADDRESS (700). */
  loseDevice(result?: string | number): void {
    const place = { owner: 'MockDevice.loseDevice', option: 'result' };
    this.#open().loseDevice(cudaResult('CUDA_ERROR_ILLEGAL_ADDRESS')(result, place));
  }

  // Streams

  /**
   * Queues work on a stream that uses these ranges, as an engine's kernel would. Memory that queued work uses must not
   * be unmapped, and must be mapped and accessible when the work is done; otherwise the device is lost, as a real one
   * would be. The journal shows it as a `cuLaunchKernel`.
   */
  queueWork(stream: bigint, uses: readonly MockUse[]): void {
    const owner = 'MockDevice.queueWork';
    bigint(stream, { owner, option: 'stream' });
    const checked = arrayOf(mockUse)(uses, { owner, option: 'uses' });
    const flat = BigUint64Array.from(
      checked.flatMap(({ address, bytes, access }) => [address, BigInt(bytes), access === 'write' ? 1n : 0n]));
    if (!this.#open().queueWork(stream, flat)) throw unknownStream(owner, stream);
  }

  /** Does all work that is queued on a stream. */
  completeStream(stream: bigint): void {
    const owner = 'MockDevice.completeStream';
    bigint(stream, { owner, option: 'stream' });
    if (!this.#open().completeStream(stream)) throw unknownStream(owner, stream);
  }

  /** Does all work that is queued anywhere. */
  completeAll(): void {
    this.#open().completeAll();
  }

  /** How many pieces of work are queued. */
  get pendingWork(): number {
    return this.#open().pendingWork();
  }

  // Records

  /** The latest calls, oldest first. */
  journal(): readonly MockJournalEntry[] {
    return this.#open().journal();
  }

  /** Forgets the calls so far. */
  clearJournal(): void {
    this.#open().clearJournal();
  }

  /** How often each kind was called, since the device was made or `resetCallCounts()`. */
  callCounts(): Readonly<Record<MockCall, number>> {
    return this.#open().callCounts();
  }

  /** Counts calls from 0 again. */
  resetCallCounts(): void {
    this.#open().resetCallCounts();
  }

  /** Calls that broke a rule, the first thousand. */
  misuses(): readonly MockMisuse[] {
    return this.#open().misuses();
  }

  /** Forgets the misuses so far. */
  clearMisuses(): void {
    this.#open().clearMisuses();
  }

  /** Counts what is still reserved, mapped or created. */
  leaks(): MockLeaks {
    return this.#open().leaks();
  }

  /**
   * Throws an Error that lists every leak and every misuse, if there are any. Call it last, with caches and pools
   * closed.
   */
  assertNoLeaks(): void {
    const device = this.#open();
    const leaks = device.leaks();
    // Open on purpose, with streams of its own and its kernels' module.
    const driver = this.#driver?.isClosed === false ? this.#driver : undefined;
    const own = driver === undefined ? 0 : 1;
    const lines = describeLeaks({
      ...leaks, retainedContexts: leaks.retainedContexts - own,
      streams: leaks.streams - own - (driver?.idleStreams ?? 0),
      modules: Math.max(0, leaks.modules - own),
    }, device.misuses());
    if (lines.length > 0) throw new Error(`The mock device was not left clean:\n- ${lines.join('\n- ')}`);
  }

  /** Closes `driver`, then the device. Throws KV_DRIVER_IN_USE while the driver has users. Idempotent. */
  close(): void {
    this.#driver?.close();
    this.#native?.close();
    this.#native = undefined;
  }

  /** Closes `driver`, asserts that nothing leaked, and closes. */
  [Symbol.dispose](): void {
    if (this.#native === undefined) return;
    this.#driver?.close();
    try {
      this.assertNoLeaks();
    } finally {
      this.close();
    }
  }

  #open(): NativeMockDevice {
    if (this.#native === undefined) throw createError('KV_CLOSED', { operation: 'use it', owner: 'MockDevice' });
    return this.#native;
  }
}

/** A CUresult other than success, by name or number. */
function cudaResult(fallback: string): Field<number> {
  return (value, place) => {
    if (typeof value === 'number') return integer({ min: 1, max: 99_999 })(value, place);
    const { cudaResults } = native();
    const errors = Object.keys(cudaResults).filter((name) => cudaResults[name] !== 0);
    return cudaResults[oneOf(errors)(value ?? fallback, place)]!;
  };
}

function checkCall(owner: string, call: MockCall): void {
  oneOf(mockCalls)(call, { owner, option: 'call' });
}

function unknownStream(owner: string, stream: bigint): Error {
  return createError('KV_INVALID_OPTION', {
    reason: 'range', owner, option: 'stream', expected: 'a stream of a driver over this device, or 0n',
    received: stream,
  });
}
