// PrefixSharing: what joins the prefix index (tokens and numbers of rows) with the memory (slots and pages). It tells the
// index what sequences commit, forks them, and gives a sequence a row of its own before it writes to one that others need.
// What idle slots hold, and how rows end, is IdlePrefixes' part; it decides nothing, as the index finds and evicts.
//
// Invariant: no slot writes to a row that another slot maps, or behind whose written tokens another text goes on.

import { createError } from '../base/errors.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { RowArithmetic } from '../layout/row-arithmetic.js';
import { GivenUpRows } from './given-up-rows.js';
import type { IdlePrefixes } from './idle-prefixes.js';
import type { Layout } from '../layout/layout.js';
import type { NativeCache } from '../device/native.js';
import type { PagePool } from '../device/page-pool.js';
import { RowCopies, type CopyRoom } from './row-copies.js';
import type { SequenceText, SequenceTexts } from './sequence-texts.js';
import type { SharedRows } from './shared-rows.js';
import type { LateErrors } from './late-errors.js';
import type { SlotFences } from './slot-fences.js';
import { noForeignRow, sharedTails, slotStates, type SlotTable } from './slot-table.js';
import { unmapRows } from './unmap-rows.js';
import type { SlotViews } from './views.js';

export interface SharingParts {
  readonly pool: PagePool;
  readonly native: NativeCache;
  readonly layout: Layout;
  readonly table: SlotTable;
  readonly views: SlotViews;
  readonly index: PrefixIndex;
  readonly shared: SharedRows;
  readonly texts: SequenceTexts;
  readonly idlePrefixes: IdlePrefixes;
  readonly fences: SlotFences;
  readonly late: LateErrors;
  /** How tokens fall into groups of rows, the rows of the index. */
  readonly groups: RowArithmetic;
}

export class PrefixSharing {
  readonly givenUp: GivenUpRows;
  readonly copies: RowCopies;
  readonly #parts: SharingParts;
  /** Released slots whose prefixes were reset while work was running on them. */
  readonly #forgotten = new Set<number>();

  constructor(parts: SharingParts) {
    this.#parts = parts;
    this.givenUp = new GivenUpRows(parts);
    this.copies = new RowCopies(parts);
  }

  /** Tells the index what all sequences have committed since it last heard. */
  tell(): void {
    this.#parts.texts.forWaiting((slot, text) => this.#tellOf(slot, text));
    this.#parts.idlePrefixes.settle();
  }

  /** A slot without running work becomes idle: its text stays cached, and what it maps of it stays mapped. */
  retire(slot: number): void {
    const { index, shared, texts, groups, idlePrefixes } = this.#parts;
    const text = texts.of(slot);
    let whole = 0;
    shared.stop(slot);
    if (text !== undefined) {
      whole = groups.wholeRows(text.path.length);
      index.release(text.path);
      texts.close(slot);
    }
    idlePrefixes.add(slot, whole);
    if (this.#forgotten.delete(slot) && this.#forgotten.size === 0) index.clear();
    idlePrefixes.settle();
  }

  /** Whether prefixes that were reset are still used by running work. */
  get isForgetting(): boolean {
    return this.#forgotten.size > 0;
  }

  /** A released slot's prefix goes when the work that uses it is over, and all others with it. */
  forgetLater(slot: number): void {
    this.#forgotten.add(slot);
  }

  /** Before a slot is written to from its length on: pages that `makeWritable` takes. */
  detachPages(slot: number): number {
    const tail = this.#sharedTail(slot);
    return tail < 0 ? 0 : this.copies.pagesFor(slot, tail);
  }

  /** The group that other running sequences use where the slot is written to next, or -1; `left`: how many of them will not. */
  contestedTail(slot: number, left: ReadonlyMap<number, number>): number {
    const tail = this.#sharedTail(slot);
    const id = tail < 0 ? -1 : this.#parts.shared.idsOf(slot)[tail]!;
    return id >= 0 && this.#parts.shared.ownersOf(id) - (left.get(id) ?? 0) > 1 ? id : -1;
  }

  /**
   * For want of the pages of a copy: what is cached behind the slot's tokens in its last group, and no running sequence uses, goes.
   * Answers whether the slot can be written to then.
   */
  claimTail(slot: number): boolean {
    const { shared, texts, idlePrefixes } = this.#parts;
    const tail = this.#sharedTail(slot);
    const path = texts.of(slot)?.path;
    if (tail < 0 || path === undefined || shared.ownersOf(shared.idsOf(slot)[tail]!) > 1) return tail < 0;
    this.tell();
    idlePrefixes.claim(slot, tail, path);
    return this.#sharedTail(slot) < 0;
  }

  /**
   * Before `makeWritable`: gives up what the slot shares behind its length, and waits for queued work where that is in the way of
   * tokens up to `end`. Throws KV_WORK_QUEUED when only a step of the engine can make way, and what the driver throws.
   */
  clearWay(slot: number, end: number): void {
    this.#leaveBehind(slot);
    this.givenUp.clear(slot, this.#parts.layout.rowsFor(end));
  }

  /**
   * Gives the slot rows of its own from its length on: what it shares there is copied. Throws KV_OUT_OF_PAGES, KV_WORK_QUEUED when
   * only a step of the engine can make way, and what the driver throws; the slot then has what it had.
   */
  makeWritable(slot: number, room: CopyRoom): void {
    const { layout, table, shared } = this.#parts;
    const tail = this.#sharedTail(slot);
    const rows = layout.rowsFor(table.length[slot]!);
    if (tail >= 0 && !this.copies.moveOthers(slot, tail, room)) {
      this.copies.detach(slot, tail, room);
    } else if (shared.rowsOfLast(slot) > rows) { // it has taken tokens back that only it had: rows behind are its own
      shared.trim(slot, rows - (shared.namedGroups(slot) - 1) * layout.groupRows);
    }
    table.sharedTail[slot] = table.foreignRow[slot] === noForeignRow ? sharedTails.none : sharedTails.truncated;
  }

  /**
   * Whether the slot's tokens [from, to) are its sequence's alone to write: no other slot maps them, and none of them is, or is going
   * to be, in the prefix cache.
   */
  isWritable(slot: number, from: number, to: number): boolean {
    const { index, table, shared, texts, groups } = this.#parts;
    if (table.state[slot] !== slotStates.active) return false;
    const length = table.length[slot]!;
    const text = texts.of(slot);
    if (text?.path.isStored === true && from < Math.min(length, text.tokens)) return false;
    const ids = shared.idsOf(slot);
    const end = Math.min(groups.rowsFor(to), shared.namedGroups(slot));
    for (let group = groups.wholeRows(from); group < end; group += 1) {
      if (shared.mappersOf(ids[group]!) > 1) return false;
      if (!index.isHolding(ids[group]!)) continue;
      const isOwnTail = from >= length && group === groups.wholeRows(length) && this.#sharedTail(slot) < 0;
      if (!isOwnTail) return false;
    }
    return true;
  }

  /** The slot's text ends with its length again, which has become shorter. */
  truncate(slot: number): void {
    const { index, layout, table, shared, texts, groups } = this.#parts;
    const tokens = table.length[slot]!;
    const text = texts.of(slot);
    if (text !== undefined) {
      text.tokens = Math.min(text.tokens, tokens);
      if (text.path.length > tokens) index.truncate(text.path, tokens);
    }
    if (shared.namedGroups(slot) > groups.wholeRows(tokens) || table.foreignRow[slot] !== noForeignRow) table.sharedTail[slot] = sharedTails.truncated;
    try {
      this.#leaveBehind(slot);
      const rows = layout.rowsFor(tokens);
      const last = shared.namedGroups(slot) - 1;
      if (shared.namedRows(slot) > rows && shared.mappersOf(shared.idsOf(slot)[last]!) > 1) {
        this.givenUp.add(slot, rows);
        this.givenUp.settle(slot);
      }
    } finally {
      this.#parts.idlePrefixes.settle();
    }
  }

  /** `slot`, which is empty, gets all that `from` has computed: rows are shared, also the last one until either writes. */
  fork(from: number, slot: number): SequenceText | undefined {
    const { native, layout, index, table, shared, texts, groups, fences } = this.#parts;
    this.tell();
    const length = table.length[from]!;
    const count = groups.rowsFor(length);
    const ids = shared.idsOf(slot);
    shared.name(from, layout.rowsFor(length));
    ids.set(shared.idsOf(from).subarray(0, count));
    const text = texts.of(from);
    const path = text === undefined ? undefined : index.fork(text.path, ids);
    try {
      native.alias(slot, ids, 0, count);
      native.publish();
      if (table.rows[slot]! > layout.rowsFor(length)) unmapRows(this.#parts, slot, layout.rowsFor(length));
    } catch (error) {
      if (path !== undefined) index.release(path);
      this.#parts.idlePrefixes.settle();
      throw error;
    }
    shared.join(slot, count);
    table.length[slot] = length;
    fences.setStream(slot, fences.streamOf(from));
    if (groups.wholeRows(length) < count) {
      table.sharedTail[from] = Math.max(table.sharedTail[from]!, sharedTails.forked);
      table.sharedTail[slot] = table.sharedTail[from]!;
    }
    if (text === undefined || path === undefined) return undefined;
    const copy = { ...text, path, buffer: text.buffer.slice(0, text.tokens) };
    texts.open(slot, copy);
    return copy;
  }

  /** Throws KV_INTERNAL unless the index, the numbers of rows and what slots map agree. */
  verify(): void {
    const { native, index, table, shared } = this.#parts;
    index.verify();
    const mappers = new Map<number, number>();
    for (let slot = 0; slot < table.count; slot += 1) {
      const ids = shared.idsOf(slot);
      for (let group = 0; group < shared.namedGroups(slot); group += 1) mappers.set(ids[group]!, (mappers.get(ids[group]!) ?? 0) + 1);
    }
    for (const [id, count] of mappers) {
      if (shared.mappersOf(id) === count) continue;
      throw createError('KV_INTERNAL', { problem: 'the slots that map a shared row are miscounted', what: id, howMany: count });
    }
    if (shared.idlePages !== shared.countIdlePages()) {
      throw createError('KV_INTERNAL', { problem: 'the pages that nobody uses are miscounted', what: shared.idlePages, howMany: shared.countIdlePages() });
    }
    const { keptGroups } = native.counters();
    if (keptGroups === shared.count) return;
    throw createError('KV_INTERNAL', { problem: 'the kept rows are miscounted', what: keptGroups, howMany: shared.count });
  }

  /**
   * The slot shares nothing behind its length any more: rows there that others need are not its own from here on, nor what it was
   * promised with them. They are unmapped at once, or when no queued work uses the slot.
   */
  #leaveBehind(slot: number): void {
    const { layout, table, shared, groups } = this.#parts;
    const first = groups.rowsFor(table.length[slot]!);
    if (shared.isAlone(slot, first)) {
      shared.leave(slot, first);
    } else {
      this.givenUp.add(slot, first * layout.groupRows);
      shared.giveUp(slot, first);
    }
    this.givenUp.settle(slot);
  }

  #tellOf(slot: number, { path, buffer, tokens }: SequenceText): void {
    const { index, layout, table, shared } = this.#parts;
    const valid = Math.min(table.length[slot]!, tokens);
    if (table.state[slot] !== slotStates.active || !path.isStored || valid <= path.length) return;
    if (!table.hasRoom(slot, valid)) return; // in quarantine: rows of it are lost
    shared.name(slot, layout.rowsFor(valid));
    index.commit(path, buffer, valid);
  }

  /** The group that holds the slot's last tokens and room for the next, if others need it as it is; or -1. */
  #sharedTail(slot: number): number {
    const { index, table, shared, texts, groups } = this.#parts;
    const tail = groups.wholeRows(table.length[slot]!);
    if (tail === groups.rowsFor(table.length[slot]!) || tail >= shared.namedGroups(slot)) return -1;
    const id = shared.idsOf(slot)[tail]!;
    if (shared.mappersOf(id) > 1) return tail;
    if (table.sharedTail[slot] !== sharedTails.truncated) return -1;
    const path = texts.of(slot)?.path;
    const isWritable = path === undefined ? !index.isHolding(id) : index.isWritable(path, tail);
    return isWritable ? -1 : tail;
  }
}
