// DeviceMemory: plain memory of a driver outside any cache, for an engine's weights and activations. Allocated whole
// when it is made, outside every budget. Kernels use its address; `write` and `read` copy bytes.

import { createError, isKvError } from '../base/errors.js';
import { checkInteger, instanceOf, integer, readOptions, streamField } from '../base/options.js';
import { bytesOf } from '../base/typed-arrays.js';
import { Driver } from './driver.js';
import { native, type NativeMemory } from './native.js';
import { giveBackTo, unclosed, type Membership } from './weak-users.js';

/** Options of `DeviceMemory`. */
export interface DeviceMemoryOptions {
  /** The driver whose memory it is; it cannot be closed before this. */
  readonly driver: Driver;
  /** Bytes wanted, at least 1. The driver allocates whole pages. */
  readonly bytes: number;
}

const spec = { driver: instanceOf(Driver), bytes: integer({ min: 1 }) };

/** Memory of a driver that is mapped whole from the start: weights, activations, workspaces. For one Node thread. */
export class DeviceMemory {
  /** The driver whose memory it is. */
  readonly driver: Driver;
  /** Bytes, as asked for. */
  readonly bytes: number;
  /** Address of the first byte, aligned to a page. */
  readonly address: bigint;
  readonly #native: NativeMemory;
  readonly #membership: Membership<undefined>;
  #isClosed = false;

  /**
   * Allocates the memory; its content is undefined. Throws KV_INVALID_OPTION, KV_OUT_OF_DEVICE_MEMORY,
   * KV_OUT_OF_ADDRESS_SPACE, or the driver's error, and then keeps nothing.
   */
  constructor(options: DeviceMemoryOptions) {
    const { driver, bytes } = readOptions('DeviceMemory', options, spec);
    this.driver = driver;
    this.bytes = bytes;
    try {
      this.#native = new (native().NativeMemory)(driver.native, bytes);
    } catch (error) {
      throw explained(error, driver, bytes);
    }
    this.address = this.#native.address();
    this.#membership = driver.addUser(this.#native);
    unclosed.register(this, giveBackTo(driver, 'A DeviceMemory', this.#native), this);
  }

  /** Whether it is an allocated DeviceMemory: false for an object that only has its prototype. @internal */
  static isInstance(value: unknown): value is DeviceMemory {
    return typeof value === 'object' && value !== null && #membership in value;
  }

  /** Whether `close` was called. Every other call then throws KV_CLOSED. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /**
   * Copies bytes here, behind earlier work on `stream`; done when it returns. Without `stream`, only behind this
   * package's own work on the default stream: name the stream of any other work.
   * Throws KV_INVALID_OPTION when they do not fit, KV_CLOSED, or the driver's error.
   */
  write(from: ArrayBufferView, atByte = 0, stream?: bigint): void {
    const bytes = this.#check('write to', 'DeviceMemory.write', from, atByte, stream);
    this.#native.write(atByte, bytes, stream);
  }

  /** Copies bytes from here, behind the same work as `write`. Throws as `write`. */
  read(into: ArrayBufferView, atByte = 0, stream?: bigint): void {
    const bytes = this.#check('read', 'DeviceMemory.read', into, atByte, stream);
    this.#native.read(bytes, atByte, stream);
  }

  /** Frees the memory; no queued work may use it any more. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    this.#native.close();
    this.#isClosed = true;
    this.driver.removeUser(this.#membership.memory);
    unclosed.unregister(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #check(
    operation: string, owner: string, view: ArrayBufferView, atByte: number, stream: bigint | undefined,
  ): Uint8Array {
    const bytes = bytesOf(view);
    if (bytes === undefined) {
      const option = operation === 'read' ? 'into' : 'from';
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner, option, expected: 'a typed array or a DataView that is not detached', received: view,
      });
    }
    checkInteger(owner, 'atByte', atByte);
    const end = atByte + bytes.byteLength;
    if (end > this.bytes) checkInteger(owner, 'atByte + byteLength', end, 0, this.bytes);
    if (stream !== undefined) streamField(stream, { owner, option: 'stream' });
    if (this.#isClosed) throw createError('KV_CLOSED', { operation, owner: 'DeviceMemory' });
    return bytes;
  }
}

/** Adds to an out-of-memory error how much was asked for and how much is free; returns any other error as it is. */
function explained(error: unknown, driver: Driver, bytes: number): unknown {
  if (!isKvError(error, 'KV_OUT_OF_DEVICE_MEMORY')) return error;
  const { livePages, freeBytes } = driver.memory(); // everything was given back
  const pageBytes = driver.info.defaultPageBytes;
  return createError('KV_OUT_OF_DEVICE_MEMORY', {
    pageBytes, createdPages: error.details.createdPages - livePages, budgetPages: Math.ceil(bytes / pageBytes),
    freeBytes,
    memoryBytes: bytes,
  }, { cause: error });
}
