// SideWrites: what was written to the slots of one side tensor: rows from the CPU's memory, which are there at once,
// and rows from the device, which arrive later. Whether they may be written, and whether they have memory, is asked
// elsewhere.
//
// Invariant: by slot, arrived ≤ written; what lies between is on its way, and no copy brings more than is written.

import type { NativeCache } from '../device/native.js';
import type { DeviceBytes } from './device-rows.js';
import type { SideCopies } from './side-copies.js';
import type { SideMemory } from './side-slots.js';

export class SideWrites {
  /** By slot: tokens from the first on that were written, or shared. Read only. */
  readonly written: Int32Array;
  /** By slot: of those, the ones whose bytes are there. Read only. */
  readonly arrived: Int32Array;
  /** The tensor's number among those that copies write to. */
  readonly number: number;
  readonly #memory: SideMemory;
  readonly #native: NativeCache;
  readonly #copies: SideCopies;

  constructor(memory: SideMemory, copies: SideCopies) {
    this.#memory = memory;
    this.#native = memory.native;
    this.#copies = copies;
    this.written = new Int32Array(memory.rows.length);
    this.arrived = new Int32Array(memory.rows.length);
    this.number = copies.follow(this.arrived);
  }

  /** The slot, to which no copy writes, has its first `tokens` tokens. */
  set(slot: number, tokens: number): void {
    this.written[slot] = tokens;
    this.arrived[slot] = tokens;
  }

  /** Only the first `tokens` tokens of the slot count, at most. */
  cut(slot: number, tokens: number): void {
    this.written[slot] = Math.min(this.written[slot]!, tokens);
    this.#copies.cut(this.number, slot, tokens);
  }

  /** Writes packed tokens to slots that have memory for them: `quads` as `NativeCache.put`. They do not count yet. */
  put(quads: Int32Array, count: number, bytes: Uint8Array): void {
    if (!this.#copies.isIdle) for (let at = 0; at < 4 * count; at += 4) this.#copies.wait(quads[at]!);
    this.#native.put(quads, count, bytes);
  }

  /** The same from the device, by copies that are queued on `stream`, or made at once where the driver has none. */
  fetch(quads: Int32Array, count: number, { driver, address, bytes }: DeviceBytes, stream: bigint): void {
    const arena = this.#memory.pool.driver === driver ? undefined : this.#copies.arena;
    this.#native.fetch(quads, count, driver.native, address, bytes, stream, arena);
  }

  /** Counts what was put or fetched. `isThere`: all of it has arrived. */
  count(quads: Int32Array, count: number, isThere: boolean): void {
    for (let at = 0; at < 4 * count; at += 4) {
      const end = quads[at + 1]! + quads[at + 2]!;
      this.written[quads[at]!] = end;
      if (isThere) this.arrived[quads[at]!] = end;
    }
  }
}
