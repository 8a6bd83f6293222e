// SlotAccess: what may touch a slot's tokens. Kernels ask before they read or write, and say what they queue; tests and
// replays write a pattern into a sequence's tokens and read it back, to prove whose bytes are where. It reads the
// numbers per slot, after hearing of the mapper when they say no; it maps nothing.

import { createError } from '../base/errors.js';
import { checkInteger } from '../base/options.js';
import type { Batch } from './batch.js';
import type { RowSharing } from './row-sharing.js';
import { Sequence } from './sequence.js';
import type { SlotMemory } from './slots.js';

export class SlotAccess {
  readonly #memory: SlotMemory;
  readonly #sharing: RowSharing;

  constructor(memory: SlotMemory, sharing: RowSharing) {
    this.#memory = memory;
    this.#sharing = sharing;
  }

  /** Whether a batch is one of this cache. */
  owns(batch: Batch): boolean {
    return batch.belongsTo(this.#memory.slots);
  }

  /** Throws KV_COPY_OUT_OF_RANGE unless the slot has memory for its first `tokens` tokens. `call` follows "Cannot". */
  requireMapped(call: string, slot: number, tokens: number): void {
    const { layout, slots, tensors } = this.#memory;
    if (slots.hasRoom(slot, tokens)) return;
    this.#memory.synchronize();
    if (slots.hasRoom(slot, tokens)) return;
    throw createError('KV_COPY_OUT_OF_RANGE', {
      call, address: Number(tensors[0]!.address) + slot * layout.reservations[0]!.slotStrideBytes,
      bytes: layout.usedBytes(tokens),
    });
  }

  /**
   * Throws KV_ROW_SHARED unless the slot's tokens [from, to) are its sequence's alone to write. `call` follows
   * "Cannot".
   */
  requireWritable(call: string, slot: number, from: number, to: number): void {
    if (to <= from || this.#sharing.isWritable(slot, from, to)) return;
    throw createError('KV_ROW_SHARED', { call, slot, fromToken: from, tokens: to - from });
  }

  /**
   * Kernels are about to queue work on the stream that touches the slot's first `tokens` tokens. Throws what the driver
   * throws.
   */
  hasQueued(stream: bigint, slot: number, tokens: number): void {
    this.#memory.fences.noteWork(slot, stream, tokens);
  }

  /** Writes the pattern of `key` into tokens [fromToken, fromToken + tokens); returns the bytes written. */
  stamp(sequence: Sequence, fromToken: number, tokens: number, key: number | bigint): number {
    const slot = this.#slotOf(sequence, fromToken, tokens, 'stamp');
    this.#memory.native.stamp(slot, fromToken, tokens, readKey(key));
    return this.#memory.layout.usedBytes(tokens);
  }

  /** Counts the tokens of which any tensor differs from what `stamp` wrote. */
  countWrong(sequence: Sequence, fromToken: number, tokens: number, key: number | bigint): number {
    const slot = this.#slotOf(sequence, fromToken, tokens, 'verify');
    return this.#memory.native.check(slot, fromToken, tokens, readKey(key));
  }

  #slotOf(sequence: Sequence, fromToken: number, tokens: number, call: string): number {
    const { layout: { maxTokens }, slots } = this.#memory;
    checkInteger('KvCache', 'fromToken', fromToken, 0, maxTokens);
    checkInteger('KvCache', 'tokens', tokens, 0, maxTokens - fromToken);
    const slot = Sequence.slotIn(slots, sequence, `KvCache.${call}`);
    this.requireMapped(call, slot, fromToken + tokens);
    return slot;
  }
}

function readKey(key: number | bigint): bigint {
  if (typeof key !== 'bigint') checkInteger('KvCache', 'key', key, Number.MIN_SAFE_INTEGER);
  return BigInt.asUintN(64, BigInt(key));
}
