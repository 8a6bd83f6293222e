// Driver: the only part that depends on the machine. `cuda` is a GPU, `host` the CPU's own memory; `mock` is a
// simulated device of MockDevice (virtual-kv/testing). One driver serves any number of page pools, kernel sets and
// device memories of its environment.

import type { DriverKind } from '../base/driver-kind.js';
import { createError, isKvError } from '../base/errors.js';
import { formatNumber } from '../base/format.js';
import {
  abortSignal, boolean, integer, notConstructible, oneOf, optional, readOptions, streamField, string, withDefault,
  type Field,
} from '../base/options.js';
import { native, type NativeDriver, type NativeDriverInfo, type NativeMemoryInfo } from './native.js';
import { StreamWork } from './stream-work.js';
import { WeakUsers, type Membership, type UserMemory } from './weak-users.js';

export type { DriverKind } from '../base/driver-kind.js';

/** What a driver is and can do; it never changes. */
export type DriverInfo = NativeDriverInfo;

/** Memory of the device at the moment of the call. */
export type DriverMemory = NativeMemoryInfo;

/** Options of `Driver.open`. */
export interface DriverOptions {
  /** `cuda`: ordinal of the device. Default 0. */
  readonly device?: number | undefined;
  /** `cuda`: the driver library to open instead of the system's libcuda.so.1. */
  readonly libraryPath?: string | undefined;
  /**
   * `host`: bytes of all pages together, at least 1. Default: the memory of this machine, or of its tightest memory
   * cgroup, less headroom for everything else: an eighth, from 128 MiB (half, where the limit is smaller) to 2 GiB; a
   * page is then also refused while its memory is not free. A number of yours is not checked, and may exceed the
   * machine's memory: pages that are never touched take none.
   */
  readonly memoryBytes?: number | undefined;
  /**
   * `host`: take a page's memory from the system when the page is created instead of when it is first touched, so that
   * first touches take no faults; where it is mapped a second time, what is read takes few. A page is refused
   * (KV_OUT_OF_DEVICE_MEMORY) while fewer than its bytes and the headroom are free, whatever `memoryBytes` says.
   * Default false.
   */
  readonly populate?: boolean | undefined;
  /**
   * `host`: ask the kernel for huge pages where pages are multiples of 2 MiB, which makes mapping, touching and
   * unmapping them many times cheaper. Takes memory and refuses pages as `populate` does; no effect where the kernel
   * has no huge pages. Default false.
   */
  readonly hugePages?: boolean | undefined;
  /**
   * `host`: most kernel mappings of this driver, at least 1, at most seven eighths of `vm.max_map_count`. Default: half
   * of that limit, shared by all host drivers of the process, in all its threads; only a driver with a larger
   * `mappingLimit` may exceed the half.
   */
  readonly mappingLimit?: number | undefined;
}

/** Options of `Driver.synchronize`. */
export interface SynchronizeOptions {
  /**
   * Gives up with KV_ABORTED once no queued work runs any more: on host it drops commands that have not begun, of all
   * kernels; on a device queued work runs to its end. Default: none.
   */
  readonly signal?: AbortSignal | undefined;
}

/** Which driver to open. `auto`: cuda where there is a GPU, else host. */
export type DriverChoice = 'auto' | 'cuda' | 'host';

const driverChoices: readonly DriverChoice[] = ['auto', 'cuda', 'host'];

const spec = {
  device: withDefault(integer(), 0),
  libraryPath: optional(string),
  memoryBytes: withDefault(integer({ min: 1 }), 0),
  populate: withDefault(boolean, false),
  hugePages: withDefault(boolean, false),
  mappingLimit: withDefault(integer({ min: 1 }), 0),
};

/**
 * One device's memory, or the CPU's own. Page pools, caches, kernels and device memory are opened on a driver. For one
 * Node thread.
 */
export class Driver {
  /** What the driver is and can do; fixed when it is opened. */
  readonly info: DriverInfo;
  readonly #native: NativeDriver;
  readonly #users = new WeakUsers<undefined>();
  readonly #lentStreams = new Set<bigint>();
  readonly #idleStreams: bigint[] = [];
  /** On host, by stream. */
  readonly #work = new Map<bigint, StreamWork>();
  #isClosed = false;

  /** Whether it asks for huge pages. @internal */
  readonly hasHugePages: boolean;

  /** @internal Use `Driver.open`. */
  constructor(nativeDriver: NativeDriver, hasHugePages = false) {
    if (!native().isDriver(nativeDriver)) throw notConstructible('Driver', 'Driver.open');
    this.#native = nativeDriver;
    this.info = Object.freeze(nativeDriver.info());
    this.hasHugePages = hasHugePages;
  }

  /**
   * Opens a driver. `auto` takes cuda where it can be opened and host otherwise. Throws KV_DRIVER_UNAVAILABLE (with the
   * reason), KV_DRIVER_UNSUPPORTED or KV_DRIVER_TOO_OLD.
   */
  static open(kind: DriverChoice, options: DriverOptions = {}): Driver {
    oneOf(driverChoices)(kind, { owner: 'Driver.open', option: 'kind' });
    const { device, libraryPath, ...host } = readOptions('Driver.open', options, spec);
    const openHost = (): Driver =>
      checkedMappingLimit(new Driver(native().openHostDriver(host), host.hugePages), host.mappingLimit);
    const openCuda = (): Driver => new Driver(native().openCudaDriver(device, libraryPath));
    if (kind === 'host') return openHost();
    if (kind === 'cuda') return openCuda();
    try {
      return openCuda();
    } catch (error) {
      if (isKvError(error) && error.code.startsWith('KV_DRIVER_')) return openHost();
      throw error;
    }
  }

  /** Whether it is an opened Driver: false for an object that only has its prototype. @internal */
  static isInstance(value: unknown): value is Driver {
    return typeof value === 'object' && value !== null && #users in value;
  }

  /** Which driver it is. */
  get kind(): DriverKind {
    return this.info.kind;
  }

  /** Whether its streams are threads of this process. */
  get #isOnCpu(): boolean {
    return this.info.kernels === 'cpu';
  }

  /** Whether the device has failed for good: every later call fails, and only a new process helps. */
  get isLost(): boolean {
    return this.#native.isLost();
  }

  /** Whether `close` was called. Every other call then throws KV_CLOSED. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Queries the device's memory. Throws KV_CLOSED, KV_DRIVER_LOST. */
  memory(): DriverMemory {
    this.#checkOpen('query its memory');
    return this.#native.queryMemory();
  }

  /**
   * A stream for an engine that has none: kernels, device memory and sequences take it as `stream`, and unlike the
   * default stream it can be captured. The default stream does not wait for it (CUDA's non-blocking kind). On host it
   * is a thread that runs what kernels queue while JavaScript goes on. Throws KV_CLOSED, or the driver's error.
   */
  acquireStream(): bigint {
    this.#checkOpen('acquire a stream');
    const stream = this.#idleStreams.pop() ?? this.#native.createStream();
    this.#lentStreams.add(stream);
    if (this.#isOnCpu && !this.#work.has(stream)) this.#work.set(stream, new StreamWork(this.#native, stream));
    return stream;
  }

  /**
   * Resolves when all work that was queued on the stream so far is done; JavaScript goes on meanwhile. The driver
   * cannot be closed before. Rejects with KV_INVALID_OPTION, KV_CLOSED, KV_ABORTED, KV_COMMAND_FAILED (host), or the
   * driver's error.
   */
  async synchronize(stream: bigint, options: SynchronizeOptions = {}): Promise<void> {
    const owner = 'Driver.synchronize';
    streamField(stream, { owner, option: 'stream' });
    const { signal } = readOptions(owner, options, { signal: optional(abortSignal) });
    this.#checkOpen('wait for a stream');
    const membership = this.addUser({ close: () => { /* nothing of its own */ } });
    try {
      if (this.#isOnCpu) await this.workOn(stream, owner)?.wait(signal);
      else await this.#native.synchronizeAsync(stream);
    } finally {
      this.removeUser(membership.memory);
    }
    if (signal?.aborted) {
      throw createError('KV_ABORTED', { operation: 'waiting for a stream' }, { cause: signal.reason });
    }
  }

  /**
   * On host, what is queued on a stream that was acquired; undefined for the default stream, and on devices. @internal
   */
  workOn(stream: bigint, owner: string): StreamWork | undefined {
    if (!this.#isOnCpu || stream === 0n) return undefined;
    const known = this.#work.get(stream);
    if (known !== undefined && this.#lentStreams.has(stream)) return known;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner, option: 'stream',
      expected: 'a stream of the driver\'s `acquireStream` that was not given back, or 0n',
      received: stream,
    });
  }

  /** Whether it is a stream that `acquireStream` gave and that was not given back. @internal */
  hasLent(stream: bigint): boolean {
    return this.#lentStreams.has(stream);
  }

  /**
   * Gives a stream back. It lives on with the driver, for caches that know of work on it, and the next `acquireStream`
   * gets it. Throws KV_INVALID_OPTION unless it was acquired and not given back, KV_CLOSED.
   */
  releaseStream(stream: bigint): void {
    this.#checkOpen('release a stream');
    if (!this.#lentStreams.delete(stream)) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner: 'Driver.releaseStream', option: 'stream',
        expected: 'a stream of `acquireStream` that was not given back',
        received: stream,
      });
    }
    this.#idleStreams.push(stream);
  }

  /**
   * Throws KV_DRIVER_IN_USE while page pools, device memory or dense kernels use it. Idempotent; after a failure of the
   * driver call it again.
   */
  close(): void {
    if (this.#isClosed) return;
    const users = this.#users.count;
    if (users > 0) throw createError('KV_DRIVER_IN_USE', { owner: 'Driver', users });
    while (!this.isLost && this.#idleStreams.length > 0) {
      this.#native.destroyStream(this.#idleStreams.at(-1)!);
      this.#idleStreams.pop();
    }
    this.#native.close();
    this.#isClosed = true;
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** Throws KV_DRIVER_LOST, with the device's result, when the device is lost. @internal */
  checkAlive(): void {
    if (this.isLost) this.memory();
  }

  /** The raw calls, for this package and the contract suite. @internal */
  get native(): NativeDriver {
    this.#checkOpen('use it');
    return this.#native;
  }

  /** Registers a user, which keeps the membership; when the user is collected, its `memory` is closed. @internal */
  addUser(memory: UserMemory): Membership<undefined> {
    this.#checkOpen('use it');
    return this.#users.add(undefined, memory);
  }

  /** @internal */
  removeUser(memory: UserMemory): void {
    this.#users.remove(memory);
  }

  /** Streams that were given back and live on. @internal */
  get idleStreams(): number {
    return this.#idleStreams.length;
  }

  /** @internal */
  get users(): number {
    return this.#users.count;
  }

  #checkOpen(operation: string): void {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation, owner: 'Driver' });
  }
}

/** Closes the driver and throws KV_INVALID_OPTION when it cannot have so many mappings. */
function checkedMappingLimit(driver: Driver, mappingLimit: number): Driver {
  const most = driver.info.mappingLimit;
  if (mappingLimit <= most) return driver;
  driver.close();
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'Driver.open', option: 'mappingLimit',
    expected: `an integer from 1 to ${formatNumber(most)}`,
    received: mappingLimit, hint: 'The rest of `vm.max_map_count` is kept for everything else in the process.',
  });
}

/** A Driver, or the name of one. @internal */
export const driverField: Field<Driver | DriverChoice> = (value, place) => {
  if (value === undefined) return 'auto';
  if (Driver.isInstance(value) || driverChoices.some((choice) => choice === value)) {
    return value as Driver | DriverChoice;
  }
  throw createError('KV_INVALID_OPTION', {
    reason: typeof value === 'string' ? 'range' : 'type', ...place, expected: "a Driver, 'auto', 'cuda' or 'host'",
    received: value, hint: value === 'mock' ? 'Make a MockDevice (virtual-kv/testing) and pass its `driver`.'
      : undefined,
  });
};

/** @internal */
export function openDriver(
  driver: Driver | DriverChoice, options?: DriverOptions,
): { driver: Driver; isOwn: boolean } {
  return typeof driver === 'object' ? { driver, isOwn: false } : { driver: Driver.open(driver, options), isOwn: true };
}
