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

  /**
   * Throws KV_COPY_OUT_OF_RANGE unless the slot has memory for a pass that computes tokens [from, to): all of them, in
   * every layer, and what it looks back to from there. `call` follows "Cannot".
   */
  requirePass(call: string, slot: number, from: number, to: number): void {
    const { slots, windows } = this.#memory;
    this.#require(call, slot, to, () => slots.hasRoom(slot, to) && windows?.isMapped(slot, from, to) !== false);
  }

  /** The same of tokens [from, to) alone. */
  requireTokens(call: string, slot: number, from: number, to: number): void {
    const { slots, windows } = this.#memory;
    this.#require(call, slot, to, () => slots.hasRoom(slot, to) && windows?.hasTokens(slot, from, to) !== false);
  }

  /**
   * Throws KV_ROW_SHARED unless the slot's tokens [from, to) are its sequence's alone to write. `call` follows
   * "Cannot".
   */
  requireWritable(call: string, slot: number, from: number, to: number): void {
    const { windows } = this.#memory;
    if (to <= from || (this.#sharing.isWritable(slot, from, to) && windows?.isShared(slot, from) !== true)) return;
    throw createError('KV_ROW_SHARED', { call, slot, fromToken: from, tokens: to - from });
  }

  /**
   * Kernels are about to queue work on the stream that touches the slot's first `tokens` tokens, those before token
   * `from` only as far as layers look back from there. Throws what the driver throws.
   */
  hasQueued(stream: bigint, slot: number, from: number, tokens: number): void {
    this.#memory.fences.noteWork(slot, stream, tokens, from);
  }

  /**
   * Writes the pattern of `key` into tokens [fromToken, fromToken + tokens), in layers with windows into those that are
   * mapped; returns the bytes written.
   */
  stamp(sequence: Sequence, fromToken: number, tokens: number, key: number | bigint): number {
    const slot = this.#slotOf(sequence, fromToken, tokens, 'stamp');
    const pattern = readKey(key);
    const end = fromToken + tokens;
    this.#memory.native.stamp(slot, fromToken, tokens, pattern);
    let bytes = this.#memory.layout.usedBytes(tokens);
    for (const set of this.#memory.windows?.all ?? []) {
      const from = Math.min(end, Math.max(fromToken, set.firstMapped(slot)));
      set.native.stamp(slot, from, end - from, pattern);
      bytes += set.layout.usedBytes(end - from);
    }
    return bytes;
  }

  /** Counts the tokens of which any tensor, where they are mapped, differs from what `stamp` wrote. */
  countWrong(sequence: Sequence, fromToken: number, tokens: number, key: number | bigint): number {
    const slot = this.#slotOf(sequence, fromToken, tokens, 'verify');
    const pattern = readKey(key);
    const end = fromToken + tokens;
    const { all = [] } = this.#memory.windows ?? {};
    const wrongIn = (from: number, to: number): number => all.reduce((wrong, set) => {
      const first = Math.min(to, Math.max(from, set.firstMapped(slot)));
      return wrong + set.native.check(slot, first, to - first, pattern);
    }, this.#memory.native.check(slot, from, to - from, pattern));
    const wrong = wrongIn(fromToken, end);
    if (wrong === 0 || all.length === 0) return wrong;
    let wrongTokens = 0; // each once, in however many layer sets
    for (let token = fromToken; token < end; token += 1) if (wrongIn(token, token + 1) > 0) wrongTokens += 1;
    return wrongTokens;
  }

  #slotOf(sequence: Sequence, fromToken: number, tokens: number, call: string): number {
    const { layout: { maxTokens }, slots, windows } = this.#memory;
    checkInteger('KvCache', 'fromToken', fromToken, 0, maxTokens);
    checkInteger('KvCache', 'tokens', tokens, 0, maxTokens - fromToken);
    const slot = Sequence.slotIn(slots, sequence, `KvCache.${call}`);
    const end = fromToken + tokens;
    this.#require(call, slot, end, () => slots.hasRoom(slot, end) && windows?.isLacking(slot, end) !== true);
    return slot;
  }

  /** Throws unless `isMapped`, also once the mapper was heard. */
  #require(call: string, slot: number, tokens: number, isMapped: () => boolean): void {
    if (isMapped()) return;
    this.#memory.synchronize();
    if (isMapped()) return;
    const { layout, tensors } = this.#memory;
    throw createError('KV_COPY_OUT_OF_RANGE', {
      call, address: Number(tensors[0]!.address) + slot * layout.reservations[0]!.slotStrideBytes,
      bytes: layout.usedBytes(tokens),
    });
  }
}

function readKey(key: number | bigint): bigint {
  if (typeof key !== 'bigint') checkInteger('KvCache', 'key', key, Number.MIN_SAFE_INTEGER);
  return BigInt.asUintN(64, BigInt(key));
}
