// BatchRows: the rows that a batch is about to write to. Maps what its sequences lack, and gives each that shares the row which it writes to
// next a row of its own. Nothing is copied or mapped unless all of it has room.

import { isKvError } from '../base/errors.js';
import type { Batch } from './batch.js';
import type { CopyRoom } from './row-copies.js';
import type { RowSharing } from './row-sharing.js';
import type { RowSupply } from './row-supply.js';
import type { SlotMemory } from './slot-memory.js';

export class BatchRows {
  readonly #memory: SlotMemory;
  readonly #supply: RowSupply;
  readonly #sharing: RowSharing;
  /** Slots and the rows that each is to have, for the addon. */
  readonly #pairs: Int32Array;

  constructor(memory: SlotMemory, supply: RowSupply, sharing: RowSharing) {
    this.#memory = memory;
    this.#supply = supply;
    this.#sharing = sharing;
    this.#pairs = new Int32Array(2 * memory.slots.count);
  }

  /** Before anything else is asked for: see `CachedRows.flushBesideWithheld`. */
  flushBesideWithheld(): void {
    this.#memory.late.attempt(() => { this.#sharing.flushBesideWithheld(); });
  }

  /** Maps what the batch lacks in the foreground, once the mapper's news are in. */
  grow(batch: Batch): void {
    this.#memory.synchronize();
    const { slots, tokens, length } = batch;
    const numbers = this.#memory.slots;
    let count = 0;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      const lengthTokens = numbers.length[slot]! + tokens[index]!;
      if (numbers.hasRoom(slot, lengthTokens)) continue;
      this.#pairs[2 * count] = slot;
      this.#pairs[2 * count + 1] = this.#memory.layout.rowsFor(lengthTokens);
      count += 1;
    }
    if (count > 0) this.#supply.grow(this.#pairs, count);
  }

  /**
   * Gives every sequence of the batch rows of its own where it is going to write: first those that no queued work uses, so that the
   * last user of a shared row is left alone with it. Nothing is copied unless all of it has room, behind what is waited for, and no step is in the way.
   */
  makeWritable(batch: Batch): void {
    const { slots, tokens, length } = batch;
    const numbers = this.#memory.slots;
    this.#memory.late.attempt(() => this.#memory.fences.poll());
    this.#memory.late.attempt(() => this.#sharing.givenUp.unmapAll());
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      if (numbers.sharedTail[slot] !== 0) this.#sharing.clearWay(slot, numbers.length[slot]! + tokens[index]!);
    }
    const room = this.#checkRoom(batch);
    const sharing: number[] = [];
    for (let index = 0; index < length; index += 1) if (numbers.sharedTail[slots[index]!] !== 0) sharing.push(slots[index]!);
    const { fences } = this.#memory;
    // Waiting for one ends other slots' queued work too; a step is not waited for.
    const waits = (slot: number): number => (fences.pendingStep(slot) >= 0 ? 2 : fences.isPending(slot) ? 1 : 0);
    const order = [0, 1, 2].flatMap((wait) => sharing.filter((slot) => waits(slot) === wait));
    this.#sharing.checkSteps(order);
    for (const slot of order) this.#makeSlotWritable(slot, room);
  }

  #makeSlotWritable(slot: number, room: CopyRoom): void {
    this.#orderBehindOthers(slot);
    try {
      this.#sharing.makeWritable(slot, room);
    } catch (error) {
      if (!isKvError(error, 'KV_OUT_OF_PAGES') || !this.#sharing.claimTail(slot)) throw error;
      this.#sharing.makeWritable(slot, room);
    }
  }

  /**
   * What will be queued for the slot runs after the work that is queued on other streams: it may read a row that the slot is left
   * alone with, and goes on writing in place. Throws what the driver throws.
   */
  #orderBehindOthers(slot: number): void {
    const stream = this.#memory.fences.streamOf(slot);
    if (stream === undefined) return;
    for (let other = 0; other < this.#memory.slots.count; other += 1) {
      if (other !== slot && this.#memory.fences.isPendingBeside(other, stream)) this.#memory.fences.order(stream, other);
    }
  }

  /** Where the batch's copies go. Throws KV_OUT_OF_PAGES unless its copies and growth have room together. */
  #checkRoom({ slots, tokens, length }: Batch): CopyRoom {
    const numbers = this.#memory.slots;
    const supply = this.#supply;
    this.#memory.synchronize(); // pages are counted by its news
    const copied = new Map<number, number>();
    let pages = 0;
    let rows = 0;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      const target = this.#memory.layout.rowsFor(numbers.length[slot]! + tokens[index]!);
      const needed = numbers.neededRows(slot);
      if (target > needed) {
        pages += this.#memory.layout.pagesBetween(needed, target);
        rows += target - needed;
      }
      if (numbers.sharedTail[slot] === 0) continue;
      const id = this.#sharing.contestedTail(slot, copied);
      if (id < 0) continue;
      copied.set(id, (copied.get(id) ?? 0) + 1);
      pages += this.#sharing.detachPages(slot);
      rows += 1;
    }
    supply.checkObtainable(pages, rows, Array.from(slots.subarray(0, length)));
    return {
      withRoom: (slot, copyPages, work) => {
        supply.withRoom(slot, copyPages, work);
      },
      earmark: (slot, earmarkedRows) => {
        supply.earmark(slot, earmarkedRows);
      },
      canSpare: (more) => {
        if (more <= 0) return true;
        this.#memory.synchronize(); // copies have been made since
        return supply.canObtain(pages + more);
      },
    };
  }
}
