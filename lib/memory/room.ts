// Room: whether what somebody is about to touch has memory: asked by stamps and kernels before they do. It reads the slot
// table, after hearing of the mapper when that says no; it maps nothing.

import { createError } from '../errors/index.js';
import type { Batch } from './batch.js';
import type { Layout } from './layout.js';
import type { NativeCache } from './native.js';
import type { SlotTable } from './slot-table.js';

export class Room {
  readonly #native: NativeCache;
  readonly #layout: Layout;
  readonly #table: SlotTable;
  /** Of the first tensor, for the error. */
  readonly #address: bigint;

  constructor(native: NativeCache, layout: Layout, table: SlotTable, address: bigint) {
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
}
