// Room: whether what is about to be touched has memory, and may be written: asked by stamps and kernels before they do. It reads the
// slot table, after hearing of the mapper when that says no, and hears what kernels queue; it maps nothing.

import { createError } from '../base/errors.js';
import type { Batch } from './batch.js';
import type { Layout } from '../layout/layout.js';
import type { NativeCache } from '../device/native.js';
import type { PrefixSharing } from './prefix-sharing.js';
import type { SlotFences } from './slot-fences.js';
import type { SlotTable } from './slot-table.js';

export interface RoomParts {
  readonly native: NativeCache;
  readonly layout: Layout;
  readonly table: SlotTable;
  readonly sharing: PrefixSharing;
  readonly fences: SlotFences;
}

export class Room {
  readonly #native: NativeCache;
  readonly #layout: Layout;
  readonly #table: SlotTable;
  readonly #sharing: PrefixSharing;
  readonly #fences: SlotFences;
  /** Of the first tensor, for the error. */
  readonly #address: bigint;

  constructor({ native, layout, table, sharing, fences }: RoomParts, address: bigint) {
    this.#sharing = sharing;
    this.#fences = fences;
    this.#native = native;
    this.#layout = layout;
    this.#table = table;
    this.#address = address;
  }

  /** Whether a batch is one of this cache. */
  owns(batch: Batch): boolean {
    return batch.belongsTo(this.#table);
  }

  /** Throws KV_COPY_OUT_OF_RANGE unless the slot has memory for its first `tokens` tokens. `call` follows "Cannot". */
  check(call: string, slot: number, tokens: number): void {
    if (this.#table.hasRoom(slot, tokens)) return;
    this.#native.publish();
    if (this.#table.hasRoom(slot, tokens)) return;
    throw createError('KV_COPY_OUT_OF_RANGE', {
      call, address: Number(this.#address) + slot * this.#layout.reservations[0]!.slotStrideBytes,
      bytes: this.#layout.usedBytes(tokens),
    });
  }
  /** Throws KV_ROW_SHARED unless the slot's tokens [from, to) are its sequence's alone to write. `call` follows "Cannot". */
  checkWritable(call: string, slot: number, from: number, to: number): void {
    if (to <= from || this.#sharing.isWritable(slot, from, to)) return;
    throw createError('KV_ROW_SHARED', { call, slot, fromToken: from, tokens: to - from });
  }

  /** Kernels are about to queue work on the stream that touches the slot's first `tokens` tokens. Throws what the driver throws. */
  hasQueued(stream: bigint, slot: number, tokens: number): void {
    this.#fences.noteWork(slot, stream, tokens);
  }
}
