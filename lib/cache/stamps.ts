// Stamps: writes a pattern into a sequence's tokens and reads it back, so that a test or a replay can prove whose bytes are
// where. Checks what it is asked; the addon makes the bytes.

import { checkInteger } from '../base/options.js';
import type { Layout } from '../layout/layout.js';
import type { NativeCache } from '../device/native.js';
import type { Room } from './room.js';
import { Sequence } from './sequence.js';
import type { SlotTable } from './slot-table.js';

export class Stamps {
  readonly #native: NativeCache;
  readonly #layout: Layout;
  readonly #table: SlotTable;
  readonly #room: Room;

  constructor(native: NativeCache, layout: Layout, table: SlotTable, room: Room) {
    this.#native = native;
    this.#layout = layout;
    this.#table = table;
    this.#room = room;
  }

  /** Writes tokens [fromToken, fromToken + tokens); returns the bytes written. */
  write(sequence: Sequence, fromToken: number, tokens: number, key: number | bigint): number {
    const slot = this.#checkRange(sequence, fromToken, tokens, 'stamp');
    this.#native.stamp(slot, fromToken, tokens, readKey(key));
    return this.#layout.usedBytes(tokens);
  }

  /** Counts the tokens of which any tensor differs from what `write` wrote. */
  countWrong(sequence: Sequence, fromToken: number, tokens: number, key: number | bigint): number {
    const slot = this.#checkRange(sequence, fromToken, tokens, 'verify');
    return this.#native.check(slot, fromToken, tokens, readKey(key));
  }

  #checkRange(sequence: Sequence, fromToken: number, tokens: number, call: string): number {
    checkInteger('KvCache', 'fromToken', fromToken, 0, this.#layout.maxTokens);
    checkInteger('KvCache', 'tokens', tokens, 0, this.#layout.maxTokens - fromToken);
    const slot = Sequence.slotIn(this.#table, sequence, `KvCache.${call}`);
    this.#room.check(call, slot, fromToken + tokens);
    return slot;
  }
}

function readKey(key: number | bigint): bigint {
  if (typeof key !== 'bigint') checkInteger('KvCache', 'key', key, Number.MIN_SAFE_INTEGER);
  return BigInt.asUintN(64, BigInt(key));
}
