// SlotViews: the ArrayBuffers through which JavaScript sees a cache's memory (host only), by slot. A window covers the mapped
// bytes of one slot in one reservation and is detached before any of them is unmapped: a touch of unmapped memory would end
// the process, a touch of a detached view reads nothing. Each window keeps its cache alive.

import { markAsUntransferable } from 'node:worker_threads';

import { createError } from '../errors/index.js';
import type { Dtype } from './model-shape.js';
import type { TensorPlacement } from './layout.js';
import { native, type NativeCache } from './native.js';

/** Elements as JavaScript can hold them: 16-bit floats come as their bits. */
export type TensorView = Float32Array | Uint16Array | Uint8Array | Int8Array;

interface Window {
  readonly reservation: number;
  readonly buffer: ArrayBuffer;
}

const maxWindowBytes = 2 ** 32;
const keepAlive = new WeakMap<ArrayBuffer, object>();

export class SlotViews {
  readonly #cache: NativeCache;
  readonly #owner: object;
  readonly #windows = new Map<number, Window[]>();

  constructor(cache: NativeCache, owner: object) {
    this.#cache = cache;
    this.#owner = owner;
  }

  /**
   * Elements of `tensor` from the slot's first token on, as far as `mappedBytes` bytes of its stripe reach, at most 4 GiB.
   * Element [token, head, i] is at token · strides.tokenBytes / elementBytes + head · dim + i.
   */
  open(slot: number, tensor: TensorPlacement, mappedBytes: number): TensorView {
    const bytes = Math.min(mappedBytes, maxWindowBytes);
    const { elementBytes } = tensor.strides;
    const length = Math.max(0, Math.floor((bytes - tensor.offsetBytes) / elementBytes));
    if (length === 0) return typedArray(tensor.dtype, new ArrayBuffer(0), 0, 0);
    const buffer = this.#windowOf(slot, tensor, bytes);
    return typedArray(tensor.dtype, buffer, tensor.offsetBytes, length);
  }

  /** Detaches every view of a slot. */
  revoke(slot: number): void {
    const windows = this.#windows.get(slot);
    if (windows === undefined) return;
    this.#windows.delete(slot);
    for (const { buffer } of windows) native().detach(buffer);
  }

  /** Detaches everything. */
  revokeAll(): void {
    for (const slot of [...this.#windows.keys()]) this.revoke(slot);
  }

  #windowOf(slot: number, tensor: TensorPlacement, bytes: number): ArrayBuffer {
    let windows = this.#windows.get(slot);
    if (windows === undefined) this.#windows.set(slot, windows = []);
    const { reservation } = tensor;
    const known = windows.find((window) => window.reservation === reservation && window.buffer.byteLength === bytes);
    if (known !== undefined) return known.buffer;
    const buffer = this.#cache.window(reservation, slot * tensor.strides.slotBytes, bytes);
    markAsUntransferable(buffer); // who had it then could not be made to let go
    keepAlive.set(buffer, this.#owner);
    windows.push({ reservation, buffer });
    return buffer;
  }
}

function typedArray(dtype: Dtype, buffer: ArrayBuffer, offset: number, length: number): TensorView {
  switch (dtype) {
    case 'float32': return new Float32Array(buffer, offset, length);
    case 'float16': case 'bfloat16': return new Uint16Array(buffer, offset, length);
    case 'float8': return new Uint8Array(buffer, offset, length);
    case 'int8': return new Int8Array(buffer, offset, length);
  }
}

/** Throws unless JavaScript can touch this driver's memory. */
export function checkHostAccess(kind: string, hasHostAccess: boolean): void {
  if (hasHostAccess) return;
  throw createError('KV_DRIVER_UNSUPPORTED', {
    call: 'view', status: 0, statusName: '', device: 0, feature: `views from JavaScript (${kind} memory is not the CPU's)`,
  });
}
