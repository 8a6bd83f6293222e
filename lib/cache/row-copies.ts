// RowCopies: a sequence gets a row of its own before it writes to one that must stay as it is for another sequence or a cached text. What is queued on the row is
// copied behind that, and what is copied is in use until it is over. Which sequence needs a copy, RowSharing decides.

import { isKvError } from '../base/errors.js';
import type { RowRegistry } from './row-registry.js';
import type { SequenceTokens } from './sequence-tokens.js';
import type { SlotMemory } from './slot-memory.js';
import { slotStates } from './slots.js';

/** Tokens before `tokens` in the group behind those that a sequence shares, copied from the kept group `id`; 0: nothing is. */
export interface TailCopy {
  /** Slot that they are read in; -1: one that maps the group's first `rows` rows once there is room, or else where the group is kept. */
  readonly source: number;
  readonly id: number;
  readonly rows: number;
  readonly tokens: number;
  /** On which the copy is queued; undefined: it is done when the slot is admitted. */
  readonly stream: bigint | undefined;
}

/** Where the pages of copies come from. */
export interface CopyRoom {
  /** Calls `work`, which needs `pages` pages for the slot that are not set aside for it, with room for them. */
  withRoom(slot: number, pages: number, work: () => void): void;
  /** Sets pages aside until the slot has `rows` rows. */
  earmark(slot: number, rows: number): void;
  /** Whether so many pages more can be had beside all that is asked for. */
  canSpare(pages: number): boolean;
}

export class RowCopies {
  readonly #memory: SlotMemory;
  readonly #registry: RowRegistry;
  readonly #tokens: SequenceTokens;

  constructor(memory: SlotMemory, registry: RowRegistry, tokens: SequenceTokens) {
    this.#memory = memory;
    this.#registry = registry;
    this.#tokens = tokens;
  }

  /** Pages of a copy of the slot's group, which is its last with tokens: of its rows that hold some. */
  pagesFor(slot: number, group: number): number {
    const { layout, slots } = this.#memory;
    return layout.pagesBetween(group * layout.groupRows, layout.rowsFor(slots.length[slot]!));
  }

  /** Throws KV_WORK_QUEUED where a step of the engine keeps the slot from getting a copy of its last group, whose number is `id`. */
  checkSteps(slot: number, id: number): void {
    const { fences } = this.#memory;
    if (fences.pendingStep(slot) >= 0) fences.wait(slot, 'write to');
    if (!fences.isPending(slot)) for (const other of this.writersOf(id)) fences.checkWritten(other, 'copy the last row of');
  }

  /**
   * Gives the slot a copy of its last group, which must stay as it is. What has queued work on it is copied behind that; the slot
   * itself must not have any: else it is waited for. Throws KV_OUT_OF_PAGES, KV_WORK_QUEUED, and what the driver throws.
   */
  detach(slot: number, group: number, room: CopyRoom): void {
    const { native, layout, slots, views } = this.#memory;
    const registry = this.#registry;
    const fences = this.#memory.fences;
    const id = registry.idsOf(slot)[group]!;
    const length = slots.length[slot]!;
    const rows = layout.rowsFor(length);
    fences.wait(slot, 'write to');
    const writers = this.writersOf(id);
    for (const other of writers) fences.checkWritten(other, 'copy the last row of');
    const source = this.sourceOf(id, slot, rows);
    const stream = fences.streamOf(slot);
    const isQueued = writers.length > 0 && source >= 0 && stream !== undefined;
    if (!isQueued) for (const other of writers) fences.waitWritten(other, 'copy the last row of');
    const isTooLong = registry.namedRows(slot) > rows;
    room.withRoom(slot, this.pagesFor(slot, group), () => {
      if (isTooLong) this.#memory.unmap(slot, rows); // nothing queued uses the slot
      views.revoke(slot);
      if (isQueued) {
        fences.ensure(stream);
        for (const other of writers) fences.order(stream, other);
        native.detach(slot, group, length, source, stream);
        this.hasQueuedCopy(slot, [source, ...writers], stream);
      } else { // nothing is queued on it now
        native.detach(slot, group, length, -1, 0n);
      }
      registry.hasCopied(id, slot, length);
      registry.leave(slot, group);
    });
    if (isTooLong && slots.earmarkedTokens[slot]! > length) room.earmark(slot, layout.rowsFor(slots.earmarkedTokens[slot]!));
  }

  /**
   * Where queued work uses the slot but none uses the others that share its last row, those get a copy each and the slot goes on in
   * place, since its addresses cannot be exchanged yet. False: that does not help, or there is no room to spare for it.
   */
  moveOthers(slot: number, group: number, room: CopyRoom): boolean {
    const { slots, groups } = this.#memory;
    const registry = this.#registry;
    const fences = this.#memory.fences;
    if (!fences.isPending(slot) || fences.pendingStep(slot) >= 0) return false;
    const id = registry.idsOf(slot)[group]!;
    const others = registry.slotsOf(id).filter((other) => other !== slot);
    const canMove = (other: number): boolean => slots.state[other] === slotStates.active && slots.isQuarantined[other] === 0 &&
      slots.prepared[other] === 0 && !fences.isPending(other) && fences.streamOf(other) !== undefined &&
      groups.wholeRows(slots.length[other]!) === group && registry.named[other] === group + 1;
    if (!this.#tokens.isTailWritable(slot, group) || !others.every(canMove)) return false;
    const pages = others.reduce((sum, other) => sum + this.pagesFor(other, group), 0);
    if (!room.canSpare(pages - this.pagesFor(slot, group))) return false;
    try {
      for (const other of others) this.detach(other, group, room);
      return true;
    } catch (error) {
      if (!isKvError(error, 'KV_OUT_OF_PAGES')) throw error;
      return false;
    }
  }

  /**
   * A copy from one of `sources` into the slot was queued on `stream`: both ends are in use until it is done, and what is queued for
   * the sources later, which may write there, runs after it.
   */
  hasQueuedCopy(slot: number, sources: readonly number[], stream: bigint): void {
    const { slots, layout, late } = this.#memory;
    const fences = this.#memory.fences;
    const usedTokens = (used: number): number => layout.tokensIn(slots.rows[used]!);
    for (const used of [slot, ...sources]) fences.noteQueued(used, stream, usedTokens(used));
    for (const source of sources) {
      const other = fences.streamOf(source);
      if (other !== undefined && other !== stream) late.attempt(() => fences.order(other, slot));
    }
  }

  /**
   * A slot that maps the group, up to its own row `rows` - 1 at least, from which a copy into `slot` can be queued, or -1: not an idle
   * one, which may change hands at any time.
   */
  sourceOf(id: number, slot: number, rows: number): number {
    const { slots } = this.#memory;
    for (let other = 0; other < slots.count; other += 1) {
      if (other !== slot && this.#registry.isMapping(other, id) && slots.isQuarantined[other] === 0 &&
        slots.state[other] !== slotStates.idle && slots.ownRows(other) >= rows) return other;
    }
    return -1;
  }

  /** Slots whose queued work may still write the group: those that map it, and those that gave up rows in its place. */
  writersOf(id: number): number[] {
    const written = this.#memory.fences.writtenSlots();
    if (written.length === 0) return written;
    const { layout, slots: { foreignRow, rows } } = this.#memory;
    const row = this.#registry.numbers.group[id]! * layout.groupRows;
    return written.filter((slot) => {
      const hasGivenUp = foreignRow[slot]! < row + layout.groupRows && row < rows[slot]!;
      return hasGivenUp || this.#registry.isMapping(slot, id);
    });
  }
}
