// PrefixSharing: what joins the prefix index (tokens and numbers of rows) with the memory (slots and pages). It tells the
// index what sequences commit, forks them, and gives a sequence a row of its own before it writes to one that others need.
// What idle slots hold, and how rows end, is IdlePrefixes' part; it decides nothing, as the index finds and evicts.
//
// Invariant: no slot writes to a row that another slot maps, or behind whose written tokens another text goes on.

import { createError, isKvError } from '../../errors/index.js';
import type { PrefixIndex } from '../../policy/prefix/prefix-index.js';
import type { RowArithmetic } from '../../policy/prefix/row-arithmetic.js';
import type { IdlePrefixes } from './idle-prefixes.js';
import type { Layout } from '../layout.js';
import type { NativeCache } from '../native.js';
import type { SequenceText, SequenceTexts } from './sequence-texts.js';
import type { SharedRows } from './shared-rows.js';
import type { LateErrors } from '../late-errors.js';
import type { SlotFences } from '../slot-fences.js';
import { noForeignRow, sharedTails, slotStates, type SlotTable } from '../slot-table.js';
import { unmapRows } from '../unmap-rows.js';
import type { SlotViews } from '../views.js';

export interface SharingParts {
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

/** Calls `work`, which needs `pages` pages that nobody promised, with room for them; `slot`'s own rows are not taken for it. */
export type WithRoom = (slot: number, pages: number, work: () => void) => void;

export class PrefixSharing {
  readonly #parts: SharingParts;
  /** Released slots whose prefixes were reset while work was running on them. */
  readonly #forgotten = new Set<number>();

  constructor(parts: SharingParts) {
    this.#parts = parts;
  }

  /** Tells the index what all sequences have committed since it last heard. */
  tell(): void {
    this.#parts.texts.forWaiting((slot, text) => this.#tellOf(slot, text));
    this.#parts.idlePrefixes.settle();
  }

  /** A slot without running work becomes idle: its text stays cached, and what it maps of it stays mapped. */
  retire(slot: number): void {
    const { index, texts, groups, idlePrefixes } = this.#parts;
    const text = texts.of(slot);
    let whole = 0;
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

  /**
   * Gives the slot rows of its own from its length on, as far as it is going to write, up to `end` tokens: what it shares there is
   * copied or unmapped. Throws KV_OUT_OF_PAGES, KV_WORK_QUEUED when only a step of the engine can make way, and what the driver
   * throws; the slot then has what it had.
   */
  makeWritable(slot: number, end: number, withRoom: WithRoom): void {
    const { layout, table, fences } = this.#parts;
    const tail = this.#sharedTail(slot);
    this.#leaveBehind(slot);
    if (tail >= 0 && !this.#moveOthers(slot, tail, withRoom)) this.#detach(slot, tail, withRoom);
    if (table.foreignRow[slot]! < layout.rowsFor(end)) {
      fences.wait(slot, 'write to');
      this.dropForeign(slot);
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

  /** Unmaps what running sequences gave up and no queued work uses any more. Throws the driver's first refusal, at the end. */
  settleForeign(): void {
    const { table } = this.#parts;
    let failure: { readonly error: unknown } | undefined;
    for (let slot = 0; slot < table.count; slot += 1) {
      if (table.state[slot] !== slotStates.active || table.isQuarantined[slot] === 1) continue;
      try {
        this.dropForeign(slot);
      } catch (error) {
        failure ??= { error };
      }
    }
    if (failure !== undefined) throw failure.error;
  }

  /** Unmaps the rows of an active slot that are no longer its own, unless queued work may use them. */
  dropForeign(slot: number): void {
    const { table, fences } = this.#parts;
    if (table.foreignRow[slot] === noForeignRow || fences.isPending(slot)) return;
    unmapRows(this.#parts, slot, table.foreignRow[slot]!);
    table.promisedTokens[slot] = 0;
  }

  /** The slot's text ends with its length again, which has become shorter. */
  truncate(slot: number): void {
    const { index, table, shared, texts, groups } = this.#parts;
    const tokens = table.length[slot]!;
    const text = texts.of(slot);
    if (text !== undefined) {
      text.tokens = Math.min(text.tokens, tokens);
      if (text.path.length > tokens) index.truncate(text.path, tokens);
    }
    if (shared.namedGroups(slot) > groups.wholeRows(tokens) || table.foreignRow[slot] !== noForeignRow) table.sharedTail[slot] = sharedTails.truncated;
    try {
      this.#leaveBehind(slot);
    } finally {
      this.#parts.idlePrefixes.settle();
    }
  }

  /** `slot`, which is empty, gets all that `from` has computed: rows are shared, also the last one until either writes. */
  fork(from: number, slot: number): SequenceText | undefined {
    const { native, index, table, shared, texts, groups, fences } = this.#parts;
    this.tell();
    const length = table.length[from]!;
    const count = groups.rowsFor(length);
    const ids = shared.idsOf(slot);
    shared.name(from, count);
    ids.set(shared.idsOf(from).subarray(0, count));
    const text = texts.of(from);
    const path = text === undefined ? undefined : index.fork(text.path, ids);
    try {
      native.alias(slot, ids, 0, count);
    } catch (error) {
      if (path !== undefined) index.release(path);
      this.#parts.idlePrefixes.settle();
      throw error;
    }
    native.publish();
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
    const { keptGroups } = native.counters();
    if (keptGroups === shared.count) return;
    throw createError('KV_INTERNAL', { problem: 'the kept rows are miscounted', what: keptGroups, howMany: shared.count });
  }

  /**
   * The slot shares nothing behind its length any more: rows there that others need are not its own from here on. They are
   * unmapped at once, and what it was promised with them, or once no queued work uses the slot.
   */
  #leaveBehind(slot: number): void {
    const { native, layout, table, views, shared, groups } = this.#parts;
    const first = groups.rowsFor(table.length[slot]!);
    if (!shared.isAlone(slot, first)) {
      table.foreignRow[slot] = Math.min(table.foreignRow[slot]!, first * layout.groupRows);
      native.cancel(slot);
      views.revoke(slot);
    }
    shared.leave(slot, first);
    this.dropForeign(slot);
  }

  /**
   * Gives the slot a copy of a group that others need as it is. What has queued work on it is copied behind that; the slot itself
   * must not have any: else it is waited for.
   */
  #detach(slot: number, group: number, withRoom: WithRoom): void {
    const { native, table, views, shared, fences } = this.#parts;
    const id = shared.idsOf(slot)[group]!;
    fences.wait(slot, 'write to');
    const writers = this.writersOf(id);
    for (const other of writers) fences.checkWritten(other, 'copy the last row of');
    const source = this.sourceOf(id, slot);
    const stream = fences.streamOf(slot);
    const isQueued = writers.length > 0 && source >= 0 && stream !== undefined;
    if (!isQueued) for (const other of writers) fences.waitWritten(other, 'copy the last row of');
    withRoom(slot, this.#groupPages(), () => {
      native.cancel(slot);
      views.revoke(slot);
      if (isQueued) {
        fences.ensure(stream);
        for (const other of writers) fences.order(stream, other);
        native.detach(slot, group, table.length[slot]!, source, stream);
        this.hasQueuedCopy(slot, [source, ...writers], stream);
      } else { // nothing is queued on it now
        native.detach(slot, group, table.length[slot]!, -1, 0n);
      }
      shared.leave(slot, group);
    });
  }

  /**
   * Where queued work uses the slot but none uses the others that share its last row, those get a copy each and the slot goes on in
   * place, since its addresses cannot be exchanged yet. False: that does not help, or there is no room for it.
   */
  #moveOthers(slot: number, group: number, withRoom: WithRoom): boolean {
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
    try {
      for (const other of others) this.#detach(other, group, withRoom);
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
   * A slot that maps the group, from which a copy into `slot` can be queued, or -1: not an idle one, which may change hands at any
   * time.
   */
  sourceOf(id: number, slot: number): number {
    const { table, shared } = this.#parts;
    return shared.slotsOf(id).find((other) =>
      other !== slot && table.isQuarantined[other] === 0 && table.state[other] !== slotStates.idle) ?? -1;
  }

  /** Slots whose queued work may still write the group: those that map it, and those that gave up rows in its place. */
  writersOf(id: number): number[] {
    const { layout, table, shared, fences } = this.#parts;
    const row = shared.groupOf(id) * layout.groupRows;
    const slots = shared.slotsOf(id);
    for (let slot = 0; slot < table.count; slot += 1) {
      if (table.foreignRow[slot]! <= row && row < table.rows[slot]!) slots.push(slot);
    }
    return slots.filter((slot) => fences.isWritten(slot));
  }

  #groupPages(): number {
    const { layout } = this.#parts;
    return layout.pagesFor(Math.min(layout.groupRows, layout.maxRows));
  }

  #tellOf(slot: number, { path, buffer, tokens }: SequenceText): void {
    const { index, table, shared, groups } = this.#parts;
    const valid = Math.min(table.length[slot]!, tokens);
    if (table.state[slot] !== slotStates.active || !path.isStored || valid <= path.length) return;
    if (!table.hasRoom(slot, valid)) return; // in quarantine: rows of it are lost
    shared.name(slot, groups.rowsFor(valid));
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
