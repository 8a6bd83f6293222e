// SideSlots: which sequence's rows lie in which slot of the side tensors. As a rule a sequence has the side slot of its
// own slot's number; one whose rows are handed over keeps it under a lease after the sequence is released, and the next
// sequence gets another.

import type { NativeCache } from '../device/native.js';
import type { PagePool } from '../device/page-pool.js';
import type { SideDtype } from '../base/dtypes.js';
import type { RowArithmetic } from '../base/row-arithmetic.js';

export class SideSlots {
  /** Slots of the side tensors: as many as the cache has, and those that leases may keep. */
  readonly count: number;
  /** By slot of the cache: its side slot, or -1. Read only. */
  readonly of: Int32Array;
  /** By slot of the cache: the tensors that its sequence carries, as bits. Read only. */
  readonly carried: Int32Array;
  /** By side slot: tokens that its sequence had when it was released, or -1 while that runs. Read only. */
  readonly finalTokens: Int32Array;
  readonly #isTaken: Uint8Array;
  /** 1: its last sequence has gone, and all work that was queued for it. */
  readonly #hasLeft: Uint8Array;
  readonly #bits: Int32Array;
  /** By side slot: the tensors that each lease reads, as bits. */
  readonly #leases: number[][];
  readonly #lastUsed: Float64Array;
  #tick = 0;
  #leased = 0;

  constructor(slots: number, leasedSlots: number) {
    this.count = slots + leasedSlots;
    this.of = new Int32Array(slots).fill(-1);
    this.carried = new Int32Array(slots);
    this.finalTokens = new Int32Array(this.count).fill(-1);
    this.#isTaken = new Uint8Array(this.count);
    this.#hasLeft = new Uint8Array(this.count);
    this.#bits = new Int32Array(this.count);
    this.#leases = Array.from({ length: this.count }, () => []);
    this.#lastUsed = new Float64Array(this.count);
  }

  /** Side slots that only leases keep. */
  get leased(): number {
    return this.#leased;
  }

  isIdle(side: number): boolean {
    return this.#isTaken[side] === 0;
  }

  /** Tensors whose rows lie in a side slot that is taken. */
  tensorsIn(side: number): number {
    return this.#bits[side]!;
  }

  /**
   * The idle side slot with the highest `worth`, of equal ones that of the cache's slot, then the one used longest ago;
   * -1: none is idle.
   */
  choose(slot: number, worth: (side: number) => number): number {
    let best = -1;
    let most = -Infinity;
    for (let side = 0; side < this.count; side += 1) {
      if (this.#isTaken[side] === 1) continue;
      const value = worth(side);
      if (value < most) continue;
      if (value === most && (best === slot || (side !== slot && this.#lastUsed[best]! <= this.#lastUsed[side]!))) {
        continue;
      }
      best = side;
      most = value;
    }
    return best;
  }

  take(slot: number, side: number, tensors: number): void {
    this.of[slot] = side;
    this.carried[slot] = tensors;
    this.finalTokens[side] = -1;
    this.#hasLeft[side] = 0;
    this.#isTaken[side] = 1;
    this.#bits[side] = tensors;
    this.#tick += 1;
    this.#lastUsed[side] = this.#tick;
  }

  /** The sequence is released with `tokens` tokens: no more come, though work on the slot may still be queued. */
  finish(slot: number, tokens: number): void {
    if (this.of[slot]! >= 0) this.finalTokens[this.of[slot]!] = tokens;
  }

  /** The sequence has gone. Returns its side slot if that is idle now; -1: it had none, or a lease keeps it. */
  leave(slot: number): number {
    const side = this.of[slot]!;
    this.of[slot] = -1;
    this.carried[slot] = 0;
    if (side < 0) return -1;
    this.#hasLeft[side] = 1;
    if (this.#leases[side]!.length === 0) return this.#giveBack(side);
    this.#leased += 1;
    return -1;
  }

  /**
   * The tensors that each lease keeps in the side slot; undefined while a sequence has the slot, and while it is free.
   */
  leasesOf(side: number): readonly number[] | undefined {
    const leases = this.#leases[side]!;
    return this.#hasLeft[side] === 1 && leases.length > 0 ? leases : undefined;
  }

  lease(side: number, tensors: number): void {
    this.#leases[side]!.push(tensors);
  }

  /** A lease has ended. Returns whether the side slot is idle now. */
  endLease(side: number, tensors: number): boolean {
    const leases = this.#leases[side]!;
    leases.splice(leases.indexOf(tensors), 1);
    if (leases.length > 0 || this.#hasLeft[side] === 0) return false;
    this.#leased -= 1;
    this.#giveBack(side);
    return true;
  }

  #giveBack(side: number): number {
    this.#isTaken[side] = 0;
    return side;
  }
}

/**
 * The memory of one side tensor, as it was opened: its shape, where its pages come from, and its slots in the addon.
 */
export interface SideMemory {
  readonly name: string;
  readonly width: number;
  readonly dtype: SideDtype;
  /** Bytes of one token. */
  readonly tokenBytes: number;
  /** How tokens fall into pages, which its names call rows. */
  readonly arithmetic: RowArithmetic;
  /** Pages of a slot's addresses. */
  readonly slotPages: number;
  readonly pool: PagePool;
  readonly native: NativeCache;
  /** Mapped pages by slot, and whether the driver has ruined the slot: the addon writes both. */
  readonly rows: Int32Array;
  readonly isQuarantined: Uint8Array;
}
