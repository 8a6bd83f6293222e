// RowCopies: a sequence gets a row of its own before it writes to one that others need as it is. What is queued on the row is
// copied behind that, and what is copied is in use until it is over. Who needs a copy is PrefixSharing's business.

import { isKvError } from '../base/errors.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { RowArithmetic } from '../layout/row-arithmetic.js';
import type { LateErrors } from './late-errors.js';
import type { Layout } from '../layout/layout.js';
import type { SlotFences } from './slot-fences.js';
import { slotStates } from './slot-table.js';
import { unmapRows, type SlotMemory } from './unmap-rows.js';
import type { SequenceTexts } from './sequence-texts.js';
import type { SharedRows } from './shared-rows.js';

export interface RowCopiesParts extends SlotMemory {
  readonly layout: Layout;
  readonly index: PrefixIndex;
  readonly shared: SharedRows;
  readonly texts: SequenceTexts;
  readonly groups: RowArithmetic;
  readonly fences: SlotFences;
  readonly late: LateErrors;
}

/** Where the pages of copies come from. */
export interface CopyRoom {
  /** Calls `work`, which needs `pages` pages for the slot that nobody promised, with room for them. */
  withRoom(slot: number, pages: number, work: () => void): void;
  /** Sets pages aside until the slot has `rows` rows. */
  promise(slot: number, rows: number): void;
  /** Whether so many pages more can be had beside all that is asked for. */
  canSpare(pages: number): boolean;
}

export class RowCopies {
  readonly #parts: RowCopiesParts;

  constructor(parts: RowCopiesParts) {
    this.#parts = parts;
  }

  /** Pages of a copy of the slot's group, which is its last with tokens: of its rows that hold some. */
  pagesFor(slot: number, group: number): number {
    const { layout, table } = this.#parts;
    return layout.pagesFor(layout.rowsFor(table.length[slot]!)) - layout.pagesFor(group * layout.groupRows);
  }

  /**
   * Gives the slot a copy of its last group, which others need as it is. What has queued work on it is copied behind that; the slot
   * itself must not have any: else it is waited for. Throws KV_OUT_OF_PAGES, KV_WORK_QUEUED, and what the driver throws.
   */
  detach(slot: number, group: number, room: CopyRoom): void {
    const { native, layout, table, views, shared, fences } = this.#parts;
    const id = shared.idsOf(slot)[group]!;
    const length = table.length[slot]!;
    const rows = layout.rowsFor(length);
    fences.wait(slot, 'write to');
    const writers = this.writersOf(id);
    for (const other of writers) fences.checkWritten(other, 'copy the last row of');
    const source = this.sourceOf(id, slot, rows);
    const stream = fences.streamOf(slot);
    const isQueued = writers.length > 0 && source >= 0 && stream !== undefined;
    if (!isQueued) for (const other of writers) fences.waitWritten(other, 'copy the last row of');
    const isTooLong = shared.namedRows(slot) > rows;
    room.withRoom(slot, this.pagesFor(slot, group), () => {
      if (isTooLong) unmapRows(this.#parts, slot, rows); // nothing queued uses the slot
      native.cancel(slot);
      views.revoke(slot);
      if (isQueued) {
        fences.ensure(stream);
        for (const other of writers) fences.order(stream, other);
        native.detach(slot, group, length, source, stream);
        this.hasQueuedCopy(slot, [source, ...writers], stream);
      } else { // nothing is queued on it now
        native.detach(slot, group, length, -1, 0n);
      }
      shared.leave(slot, group);
    });
    if (isTooLong && table.promisedTokens[slot]! > length) room.promise(slot, layout.rowsFor(table.promisedTokens[slot]!));
  }

  /**
   * Where queued work uses the slot but none uses the others that share its last row, those get a copy each and the slot goes on in
   * place, since its addresses cannot be exchanged yet. False: that does not help, or there is no room to spare for it.
   */
  moveOthers(slot: number, group: number, room: CopyRoom): boolean {
    const { index, table, shared, texts, groups, fences } = this.#parts;
    if (!fences.isPending(slot) || fences.pendingStep(slot) >= 0) return false;
    const id = shared.idsOf(slot)[group]!;
    const path = texts.of(slot)?.path;
    const isIndexFine = path === undefined ? !index.isHolding(id) : index.isWritable(path, group);
    const others = shared.slotsOf(id).filter((other) => other !== slot);
    const canMove = (other: number): boolean => table.state[other] === slotStates.active && table.isQuarantined[other] === 0 &&
      table.prepared[other] === 0 && !fences.isPending(other) && fences.streamOf(other) !== undefined &&
      groups.wholeRows(table.length[other]!) === group && shared.namedGroups(other) === group + 1;
    if (!isIndexFine || !others.every(canMove)) return false;
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
    const { table, layout, fences, late } = this.#parts;
    const usedTokens = (used: number): number => layout.tokensIn(table.rows[used]!);
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
    const { table, shared } = this.#parts;
    return shared.slotsOf(id).find((other) => other !== slot && table.isQuarantined[other] === 0 &&
      table.state[other] !== slotStates.idle && table.ownRows(other) >= rows) ?? -1;
  }

  /** Slots whose queued work may still write the group: those that map it, and those that gave up rows in its place. */
  writersOf(id: number): number[] {
    const { layout, table, shared, fences } = this.#parts;
    const row = shared.groupOf(id) * layout.groupRows;
    const slots = shared.slotsOf(id);
    for (let slot = 0; slot < table.count; slot += 1) {
      if (table.foreignRow[slot]! < row + layout.groupRows && row < table.rows[slot]! && !slots.includes(slot)) slots.push(slot);
    }
    return slots.filter((slot) => fences.isWritten(slot));
  }
}
