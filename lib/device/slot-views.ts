// SlotViews: the ArrayBuffers through which JavaScript sees a cache's memory (host only), by slot. Before a page leaves
// a slot, and when its sequence ends, its views are detached and the addresses they had show nothing of the slot any
// more: a buffer that its holder has transferred elsewhere cannot be detached, but sees zeros. Each buffer keeps its
// cache alive.

import { markAsUntransferable } from 'node:worker_threads';

import { createError } from '../base/errors.js';
import type { BackgroundErrors } from './cache-calls.js';
import { arrayOver, type Dtype, type SideDtype, type SideView, type TensorView } from '../base/dtypes.js';
import { native, type NativeCache } from './native.js';

/** Where a tensor lies in a reservation. */
export interface ViewedTensor<D extends SideDtype = Dtype> {
  readonly reservation: number;
  readonly offsetBytes: number;
  readonly dtype: D;
  readonly strides: { readonly elementBytes: number };
}

/** What JavaScript sees of a slot: the memory itself, or a copy of it. */
interface Window {
  readonly reservation: number;
  /** From the slot's start. */
  readonly from: number;
  readonly to: number;
  readonly buffer: ArrayBuffer;
}

const maxWindowBytes = 2 ** 32;
/**
 * Buffers of a part begin and end at multiples of this, so that the next part is often in the same one. V8 counts all
 * bytes of a buffer as memory that it could free: a few rows must not look like the whole slot.
 */
const partBytes = 2 ** 20;
/**
 * The first look at a slot is answered by a copy where it is as short as this: a window costs two system calls, and a
 * page fault at its first touch, which takes tens of microseconds on a virtual machine. The next look makes a window.
 */
const copiedBytes = 2 ** 15;
const keepAlive = new WeakMap<ArrayBuffer, object>();

/** Node 22 and later. */
const transfer = (ArrayBuffer.prototype as { transfer?: (this: ArrayBuffer, bytes: number) => ArrayBuffer }).transfer;
/** Not to be hidden by a property of the buffer. */
const lengthOf =
  Object.getOwnPropertyDescriptor(ArrayBuffer.prototype, 'byteLength')!.get as (this: ArrayBuffer) => number;

export class SlotViews {
  readonly #cache: NativeCache;
  readonly #owner: object;
  readonly #background: BackgroundErrors;
  readonly #copies: boolean;
  readonly #windows = new Map<number, Window[]>();

  /** `copies`: whether a short first look may be a copy. */
  constructor(
    cache: NativeCache, owner: object, background: BackgroundErrors,
    { copies = false }: { readonly copies?: boolean } = {},
  ) {
    this.#copies = copies;
    this.#cache = cache;
    this.#owner = owner;
    this.#background = background;
  }

  /**
   * Elements of `tensor` from the slot's first token on, as far as `mappedBytes` bytes of its stripe reach, at most 4
   * GiB. Element [token, head, i] is at token · strides.tokenBytes / elementBytes + head · dim + i. Where only the
   * bytes from `fromBytes` on are mapped, the array begins with the token at `skippedBytes`, the first whole one.
   */
  open(
    slot: number, { reservation, offsetBytes, dtype, strides: { elementBytes } }: ViewedTensor, mappedBytes: number,
    fromBytes = 0, skippedBytes = 0,
  ): TensorView {
    const bytes = Math.min(mappedBytes, fromBytes + maxWindowBytes);
    const start = offsetBytes + skippedBytes;
    const length = Math.floor((bytes - start) / elementBytes);
    if (length <= 0) return arrayOver(dtype, new ArrayBuffer(0), 0, 0);
    const window = this.#known(slot, reservation, fromBytes, bytes) ?? this.#made(slot, reservation, fromBytes, bytes);
    return arrayOver(dtype, window.buffer, start - window.from, length);
  }

  /**
   * Elements [from, to) of these only, of which all before `to` are mapped, over a buffer that may have no more. What
   * is there does not change before it is revoked: it may be a copy.
   */
  openPart(
    slot: number, { reservation, offsetBytes, dtype, strides: { elementBytes } }: ViewedTensor<SideDtype>,
    mappedBytes: number, from: number, to: number,
  ): SideView {
    const bytes = Math.min(mappedBytes, maxWindowBytes);
    const start = offsetBytes + from * elementBytes;
    const end = Math.min(bytes, offsetBytes + to * elementBytes);
    if (end <= start) return arrayOver(dtype, new ArrayBuffer(0), 0, 0);
    const window = this.#known(slot, reservation, start, end)
      ?? (end - start <= copiedBytes && this.#copies && !this.#windows.has(slot)
      ? this.#copied(slot, reservation, start, end)
      : undefined)
      ?? this.#made(
        slot, reservation, start - start % partBytes, Math.min(bytes, Math.ceil(end / partBytes) * partBytes));
    return arrayOver(dtype, window.buffer, start - window.from, (end - start) / elementBytes);
  }

  /**
   * Detaches every view of a slot. Never throws: a buffer that cannot be detached, because it was transferred, is a
   * late error, and its holder sees zeros from here on.
   */
  revoke(slot: number): void {
    const windows = this.#windows.get(slot);
    if (windows === undefined) return;
    this.#windows.delete(slot);
    this.#cache.beforeRevoke(slot);
    let buffers = 0;
    for (const { buffer } of windows) if (!detach(buffer)) buffers += 1;
    this.#cache.revoke(slot, buffers > 0);
    if (buffers > 0) this.#background.report(createError('KV_VIEW_TRANSFERRED', { slot, buffers }));
  }

  /** Detaches everything. */
  revokeAll(): void {
    for (const slot of [...this.#windows.keys()]) this.revoke(slot);
  }

  #copied(slot: number, reservation: number, from: number, to: number): Window {
    const bytes = new Uint8Array(to - from);
    this.#cache.read(slot, reservation, from, bytes);
    return this.#added(slot, { reservation, from, to, buffer: bytes.buffer });
  }

  #made(slot: number, reservation: number, from: number, to: number): Window {
    let buffer: ArrayBuffer;
    try {
      buffer = this.#cache.window(slot, reservation, from, to);
    } catch (error) {
      if (!this.#windows.has(slot)) this.#cache.revoke(slot, false); // a part may be shown, which `revoke` would miss
      throw error;
    }
    keepAlive.set(buffer, this.#owner);
    return this.#added(slot, { reservation, from, to, buffer });
  }

  #added(slot: number, window: Window): Window {
    // What Node 22 and later refuse by themselves. There the mark would be one more thing that keeps a buffer from
    // being detached.
    if (transfer === undefined) markAsUntransferable(window.buffer);
    const windows = this.#windows.get(slot);
    if (windows === undefined) this.#windows.set(slot, [window]);
    else windows.push(window);
    return window;
  }

  /**
   * The latest one that shows the bytes [from, to). Throws KV_VIEW_TRANSFERRED where one that was looked at is gone.
   */
  #known(slot: number, reservation: number, from: number, to: number): Window | undefined {
    const windows = this.#windows.get(slot);
    if (windows === undefined) return undefined;
    for (let index = windows.length - 1; index >= 0; index -= 1) {
      const window = windows[index]!;
      if (window.reservation !== reservation) continue;
      if (lengthOf.call(window.buffer) === 0) throw createError('KV_VIEW_TRANSFERRED', { slot, buffers: 1 });
      if (window.from <= from && window.to >= to) return window;
    }
    return undefined;
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
    call: 'view', status: 0, statusName: '', device: 0,
    feature: `views from JavaScript (${kind} memory is not the CPU's)`,
  });
}
