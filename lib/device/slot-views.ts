// SlotViews: the ArrayBuffers through which JavaScript sees a cache's memory (host only), by slot. Before a page leaves a
// slot, and when its sequence ends, its views are detached and the addresses they had show nothing of the slot any more: a
// buffer that its holder has transferred elsewhere cannot be detached, but sees zeros. Each buffer keeps its cache alive.

import { markAsUntransferable } from 'node:worker_threads';

import { createError } from '../base/errors.js';
import type { BackgroundErrors } from './background-errors.js';
import { arrayOver, type TensorView } from '../layout/dtype-arrays.js';
import type { Dtype } from '../layout/model-shape.js';
import { native, type NativeCache } from './native.js';

/** Where a tensor lies in a reservation. */
export interface ViewedTensor {
  readonly reservation: number;
  readonly offsetBytes: number;
  readonly dtype: Dtype;
  readonly strides: { readonly elementBytes: number };
}

interface Window {
  readonly reservation: number;
  readonly bytes: number;
  readonly buffer: ArrayBuffer;
}

const maxWindowBytes = 2 ** 32;
const keepAlive = new WeakMap<ArrayBuffer, object>();

/** Node 22 and later. */
const transfer = (ArrayBuffer.prototype as { transfer?: (this: ArrayBuffer, bytes: number) => ArrayBuffer }).transfer;
/** Not to be hidden by a property of the buffer. */
const lengthOf = Object.getOwnPropertyDescriptor(ArrayBuffer.prototype, 'byteLength')!.get as (this: ArrayBuffer) => number;

export class SlotViews {
  readonly #cache: NativeCache;
  readonly #owner: object;
  readonly #late: BackgroundErrors;
  readonly #windows = new Map<number, Window[]>();

  constructor(cache: NativeCache, owner: object, late: BackgroundErrors) {
    this.#cache = cache;
    this.#owner = owner;
    this.#late = late;
  }

  /**
   * Elements of `tensor` from the slot's first token on, as far as `mappedBytes` bytes of its stripe reach, at most 4 GiB.
   * Element [token, head, i] is at token · strides.tokenBytes / elementBytes + head · dim + i.
   */
  open(slot: number, tensor: ViewedTensor, mappedBytes: number): TensorView {
    const bytes = Math.min(mappedBytes, maxWindowBytes);
    const { elementBytes } = tensor.strides;
    const length = Math.max(0, Math.floor((bytes - tensor.offsetBytes) / elementBytes));
    if (length === 0) return arrayOver(tensor.dtype, new ArrayBuffer(0), 0, 0);
    const buffer = this.#windowOf(slot, tensor, bytes);
    return arrayOver(tensor.dtype, buffer, tensor.offsetBytes, length);
  }

  /**
   * Detaches every view of a slot. Never throws: a buffer that cannot be detached, because it was transferred, is a late error,
   * and its holder sees zeros from here on.
   */
  revoke(slot: number): void {
    const windows = this.#windows.get(slot);
    if (windows === undefined) return;
    this.#windows.delete(slot);
    let buffers = 0;
    for (const { buffer } of windows) if (!detach(buffer)) buffers += 1;
    this.#cache.revoke(slot, buffers > 0);
    if (buffers > 0) this.#late.report(createError('KV_VIEW_TRANSFERRED', { slot, buffers }));
  }

  /** Detaches everything. */
  revokeAll(): void {
    for (const slot of [...this.#windows.keys()]) this.revoke(slot);
  }

  #windowOf(slot: number, tensor: ViewedTensor, bytes: number): ArrayBuffer {
    let windows = this.#windows.get(slot);
    if (windows === undefined) this.#windows.set(slot, windows = []);
    const { reservation } = tensor;
    for (const window of windows) {
      if (window.reservation !== reservation) continue;
      if (lengthOf.call(window.buffer) === 0) throw createError('KV_VIEW_TRANSFERRED', { slot, buffers: 1 });
      if (window.bytes === bytes) return window.buffer;
    }
    const buffer = this.#cache.window(slot, reservation, bytes);
    // What Node 22 and later refuse by themselves. There the mark would be one more thing that keeps a buffer from being detached.
    if (transfer === undefined) markAsUntransferable(buffer);
    keepAlive.set(buffer, this.#owner);
    windows.push({ reservation, bytes, buffer });
    return buffer;
  }
}

/** False when it was transferred, or marked untransferable. */
function detach(buffer: ArrayBuffer): boolean {
  if (lengthOf.call(buffer) === 0) return false;
  if (transfer === undefined) {
    native().detach(buffer);
    return true;
  }
  try {
    transfer.call(buffer, 0); // Node-API's way ends the process where the buffer's holder has made it untransferable
    return true;
  } catch {
    return false;
  }
}

/** Throws unless there can be views of this driver's memory. */
export function checkHostAccess(kind: string, hasHostAccess: boolean): void {
  const { externalBufferStatus } = native();
  if (externalBufferStatus !== 0) throw createError('KV_VIEW_FORBIDDEN', { status: externalBufferStatus });
  if (hasHostAccess) return;
  throw createError('KV_DRIVER_UNSUPPORTED', {
    call: 'view', status: 0, statusName: '', device: 0, feature: `views from JavaScript (${kind} memory is not the CPU's)`,
  });
}
