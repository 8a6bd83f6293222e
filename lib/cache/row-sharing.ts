// RowSharing: how running sequences come to share rows and to have their own. It forks them, gives a sequence a row of
// its own before it writes to one that must stay as it is for another sequence or a cached text, and takes back what a
// shortened sequence shares behind its end. How rows end is CachedRows' and RowRegistry's part; it decides nothing, as
// the index finds and evicts.
//
// Invariant: no slot writes to a row that another slot maps, or behind whose written tokens another text goes on.

import { isKvError } from '../base/errors.js';
import type { PrefixPath } from '../prefix/prefix-tree.js';
import type { CachedRows } from './cached-rows.js';
import { type Lease, noForeignRow, sharedTails, type SlotMemory, slotStates } from './slots.js';

/** Where the pages of copies come from. */
export interface CopyRoom {
  /** Calls `work`, which needs `pages` pages for the slot that are not set aside for it, with room for them. */
  withRoom(slot: number, pages: number, work: () => void): void;
  /** Whether so many pages more can be had beside all that is asked for. */
  canSpare(pages: number): boolean;
}

export class RowSharing {
  readonly #memory: SlotMemory;
  readonly #cached: CachedRows;

  constructor(memory: SlotMemory, cached: CachedRows) {
    this.#memory = memory;
    this.#cached = cached;
  }

  /** Before a slot is written to from its length on: pages that `makeWritable` takes. */
  detachPages(slot: number): number {
    const tail = this.#sharedTail(slot);
    return tail < 0 ? 0 : this.#memory.layout.pagesPerRow;
  }

  /**
   * The row that must stay as it is for others where the slot is written to next, or -1: other running sequences use
   * it, of which `left` will not, or what is cached behind the slot's tokens is withheld.
   */
  contestedTail(slot: number, left: ReadonlyMap<number, number>): number {
    const tail = this.#sharedTail(slot);
    if (tail < 0) return -1;
    const { registry } = this.#cached;
    const id = registry.idsOf(slot)[tail]!;
    return registry.ownersOf(id) - (left.get(id) ?? 0) > 1 || this.#cached.withheld.has(id) ? id : -1;
  }

  /**
   * For want of the pages of a copy: what is cached behind the slot's tokens in its last row, and no running sequence
   * uses, goes. Returns whether the slot can be written to then.
   */
  claimTail(slot: number): boolean {
    const { registry, tokens } = this.#cached;
    const tail = this.#sharedTail(slot);
    if (tail < 0 || tokens.of(slot) === undefined || registry.ownersOf(registry.idsOf(slot)[tail]!) > 1) {
      return tail < 0;
    }
    this.#cached.flushCommits();
    if (this.#cached.withheld.has(registry.idsOf(slot)[tail]!)) return false;
    this.#cached.claim(slot, tail);
    return this.#sharedTail(slot) < 0;
  }

  /**
   * Before `makeWritable`: gives up what the slot shares behind its length, and waits for queued work where that is in
   * the way of tokens up to `end`. Throws KV_WORK_QUEUED when only a step of the engine can make way, and what the
   * driver throws.
   */
  clearWay(slot: number, end: number): void {
    const { layout, slots, arithmetic, fences } = this.#memory;
    const { registry } = this.#cached;
    registry.leaveBehind(slot, arithmetic.rowsFor(slots.length[slot]!));
    if (slots.foreignRow[slot]! >= layout.rowsFor(end)) return;
    fences.wait(slot, 'write to');
    registry.unmapGivenUpBy(slot);
  }

  /**
   * Throws KV_WORK_QUEUED where a step of the engine is in the way of a copy that `makeWritable` would make for one of
   * these slots, which it is called for in this order. The index first hears what sequences have computed, by which a
   * slot may need none.
   */
  checkSteps(order: readonly number[]): void {
    if (!this.#memory.fences.hasSteps) return;
    try {
      this.#checkSteps(order);
    } catch (error) {
      if (!isKvError(error, 'KV_WORK_QUEUED')) throw error;
      this.#cached.flushCommits();
      this.#checkSteps(order);
    }
  }

  /**
   * Gives the slot rows of its own from its length on: what it shares there is copied. Throws KV_OUT_OF_PAGES,
   * KV_WORK_QUEUED when only a step of the engine can make way, and what the driver throws; the slot then has what it
   * had.
   */
  makeWritable(slot: number, room: CopyRoom): void {
    const { slots } = this.#memory;
    const tail = this.#sharedTail(slot);
    if (tail >= 0 && !this.#moveOthers(slot, tail, room)) this.#detach(slot, tail, room);
    slots.setSharedTail(slot, slots.foreignRow[slot] === noForeignRow ? sharedTails.none : sharedTails.truncated);
  }

  /**
   * Whether the slot's tokens [from, to) are its sequence's alone to write: no other slot maps them, and none of them
   * is, or is going to be, in the prefix cache.
   */
  isWritable(slot: number, from: number, to: number): boolean {
    const { slots, arithmetic } = this.#memory;
    const { registry, tokens, index } = this.#cached;
    if (slots.state[slot] !== slotStates.active) return false;
    const length = slots.length[slot]!;
    const known = tokens.of(slot);
    if (known?.path.isStored === true && from < Math.min(length, known.count)) return false;
    const ids = registry.idsOf(slot);
    const end = Math.min(arithmetic.rowsFor(to), registry.named[slot]!);
    for (let row = arithmetic.wholeRows(from); row < end; row += 1) {
      if (registry.numbers.mappers[ids[row]!]! > 1) return false;
      if (!index.isHolding(ids[row]!)) continue;
      const isOwnTail = from >= length && row === arithmetic.wholeRows(length) && this.#sharedTail(slot) < 0;
      if (!isOwnTail) return false;
    }
    return true;
  }

  /**
   * Drops the slot's tokens from `tokens` on, which no prepared batch computes on. What is left of them is told as it
   * fails.
   */
  truncate(slot: number, tokens: number): void {
    const { slots, arithmetic } = this.#memory;
    const { registry } = this.#cached;
    slots.truncate(slot, tokens);
    this.#cached.tokens.truncate(slot, tokens);
    if (registry.named[slot]! > arithmetic.wholeRows(tokens) || slots.foreignRow[slot] !== noForeignRow) {
      slots.setSharedTail(slot, sharedTails.truncated);
    }
    try {
      registry.leaveBehind(slot, arithmetic.rowsFor(tokens));
    } finally {
      this.#cached.endDropped();
    }
  }

  /**
   * `slot`, which is empty, gets all that `from` has computed: rows are shared, also the last one until either writes.
   * Commits have been flushed. Returns the lease that begins with it. Throws what the driver throws; then the slot may
   * have rows.
   */
  fork(from: number, slot: number): Lease {
    const { native, slots, arithmetic } = this.#memory;
    const { index, registry, tokens } = this.#cached;
    const length = slots.length[from]!;
    const count = arithmetic.rowsFor(length);
    const ids = registry.idsOf(slot);
    registry.name(from, count);
    const known = tokens.of(from);
    const buffer = known?.buffer.slice(0, known.count); // first: memory may be refused
    let path: PrefixPath | undefined;
    try {
      ids.set(registry.idsOf(from).subarray(0, count));
      if (known !== undefined) path = index.fork(known.path, ids);
      // Another sequence may have computed the same beside it: then the fork shares those rows.
      this.orderBehindWriters(slot, this.#memory.fences.streamOf(from), ids, count);
      native.alias(slot, ids, 0, count);
      registry.join(slot, count); // before anything can fail: the slot then is not taken for one that shares nothing
      if (slots.rows[slot]! > count) this.#memory.unmap(slot, count);
    } catch (error) {
      registry.unwrite(slot);
      if (path !== undefined) index.release(path);
      this.#cached.endDropped();
      throw error;
    }
    this.#memory.fences.setStream(slot, this.#memory.fences.streamOf(from));
    if (arithmetic.wholeRows(length) < count) {
      slots.setSharedTail(from, Math.max(slots.sharedTail[from]!, sharedTails.forked));
    }
    if (buffer !== undefined && path !== undefined) tokens.open(slot, { path, buffer, count: buffer.length });
    const sharedTail = arithmetic.wholeRows(length) < count ? slots.sharedTail[from]! : sharedTails.none;
    return { tokens: length, earmarkedTokens: 0, tenant: slots.tenantOf(from), sharedTail, isTransfer: false };
  }

  /**
   * What will be queued for the slot on `stream` runs after work on other streams that may still write the first `rows`
   * of the rows `ids`, which it shares. Throws what the driver throws.
   */
  orderBehindWriters(slot: number, stream: bigint | undefined, ids: Int32Array, rows: number): void {
    const { slots, fences } = this.#memory;
    if (stream === undefined) return;
    for (let other = 0; other < slots.count; other += 1) {
      if (other === slot || !fences.isPendingBeside(other, stream)) continue;
      if (slots.foreignRow[other]! < rows || this.#cached.registry.isSharing(other, ids, rows)) {
        fences.order(stream, other);
      }
    }
  }

  #checkSteps(order: readonly number[]): void {
    const { fences } = this.#memory;
    const left = new Map<number, number>();
    for (const slot of order) {
      const tail = this.#sharedTail(slot, left);
      if (tail < 0) continue;
      const id = this.#cached.registry.idsOf(slot)[tail]!;
      if (fences.pendingStep(slot) >= 0) fences.wait(slot, 'write to');
      for (const other of this.writersOf(id)) fences.checkWritten(other, 'copy the last row of');
      left.set(id, (left.get(id) ?? 0) + 1);
    }
  }

  /**
   * The row that holds the slot's last tokens and room for the next, if it must stay as it is when so many slots have
   * `left` it; or -1.
   */
  #sharedTail(slot: number, left?: ReadonlyMap<number, number>): number {
    const { slots, arithmetic } = this.#memory;
    const { registry, tokens } = this.#cached;
    const tail = arithmetic.wholeRows(slots.length[slot]!);
    if (tail === arithmetic.rowsFor(slots.length[slot]!) || tail >= registry.named[slot]!) return -1;
    const id = registry.idsOf(slot)[tail]!;
    if (registry.numbers.mappers[id]! - (left?.get(id) ?? 0) > 1) return tail;
    if (slots.sharedTail[slot] !== sharedTails.truncated) return -1;
    return tokens.isTailWritable(slot, tail) ? -1 : tail;
  }

  // Copies: what is queued on a row is copied behind that, and what is copied is in use until it is over.

  /**
   * Gives the slot a copy of its last row, which must stay as it is. What has queued work on it is copied behind
   * that; the slot itself must not have any: else it is waited for. Throws KV_OUT_OF_PAGES, KV_WORK_QUEUED, and what
   * the driver throws.
   */
  #detach(slot: number, row: number, room: CopyRoom): void {
    const { native, layout, slots, views } = this.#memory;
    const { registry } = this.#cached;
    const fences = this.#memory.fences;
    const id = registry.idsOf(slot)[row]!;
    const length = slots.length[slot]!;
    fences.wait(slot, 'write to');
    const writers = this.writersOf(id);
    for (const other of writers) fences.checkWritten(other, 'copy the last row of');
    const source = this.sourceOf(id, slot);
    const stream = fences.streamOf(slot);
    const isQueued = writers.length > 0 && source >= 0 && stream !== undefined;
    if (!isQueued) for (const other of writers) fences.waitWritten(other, 'copy the last row of');
    room.withRoom(slot, layout.pagesPerRow, () => {
      views.revoke(slot);
      if (isQueued) {
        fences.ensure(stream);
        for (const other of writers) fences.order(stream, other);
        native.detach(slot, row, length, source, stream);
        this.hasQueuedCopy(slot, [source, ...writers], stream);
      } else { // nothing is queued on it now
        native.detach(slot, row, length, -1, 0n);
      }
      registry.leave(slot, row);
    });
  }

  /**
   * Where queued work uses the slot but none uses the others that share its last row, those get a copy each and the
   * slot goes on in place, since its addresses cannot be exchanged yet. False: that does not help, or there is no room
   * to spare for it.
   */
  #moveOthers(slot: number, row: number, room: CopyRoom): boolean {
    const { slots, arithmetic, layout } = this.#memory;
    const { registry } = this.#cached;
    const fences = this.#memory.fences;
    if (!fences.isPending(slot) || fences.pendingStep(slot) >= 0) return false;
    const id = registry.idsOf(slot)[row]!;
    const others = registry.slotsOf(id).filter((other) => other !== slot);
    const canMove =
      (other: number): boolean => slots.state[other] === slotStates.active && slots.isQuarantined[other] === 0 &&
      slots.prepared[other] === 0 && !fences.isPending(other) && fences.streamOf(other) !== undefined &&
      arithmetic.wholeRows(slots.length[other]!) === row && registry.named[other] === row + 1;
    if (!this.#cached.tokens.isTailWritable(slot, row) || !others.every(canMove)) return false;
    if (!room.canSpare((others.length - 1) * layout.pagesPerRow)) return false;
    try {
      for (const other of others) this.#detach(other, row, room);
      return true;
    } catch (error) {
      if (!isKvError(error, 'KV_OUT_OF_PAGES')) throw error;
      return false;
    }
  }

  /**
   * A copy from one of `sources` into the slot was queued on `stream`: both ends are in use until it is done, and what
   * is queued for the sources later, which may write there, runs after it.
   */
  hasQueuedCopy(slot: number, sources: readonly number[], stream: bigint): void {
    const { slots, layout, background } = this.#memory;
    const fences = this.#memory.fences;
    for (const used of new Set([slot, ...sources])) {
      fences.noteQueued(used, stream, layout.tokensIn(slots.rows[used]!));
    }
    for (const source of new Set(sources)) {
      // Once a sequence is released its stream may be destroyed, and nothing more is written to what is copied.
      if (slots.state[source] !== slotStates.active) continue;
      const other = fences.streamOf(source);
      if (other !== undefined && other !== stream) background.attempt(() => fences.order(other, slot));
    }
  }

  /**
   * A slot that maps the row, from which a copy into `slot` can be queued, or -1: not an idle one, which may change
   * hands at any time.
   */
  sourceOf(id: number, slot: number): number {
    const { slots } = this.#memory;
    for (let other = 0; other < slots.count; other += 1) {
      if (other !== slot && this.#cached.registry.isMapping(other, id) && slots.isQuarantined[other] === 0 &&
        slots.state[other] !== slotStates.idle) return other;
    }
    return -1;
  }

  /** Slots whose queued work may still write the row: those that map it, and those that gave up rows in its place. */
  writersOf(id: number): number[] {
    const written = this.#memory.fences.writtenSlots();
    if (written.length === 0) return written;
    const { slots: { foreignRow, rows } } = this.#memory;
    const row = this.#cached.registry.numbers.row[id]!;
    return written.filter((slot) =>
      (foreignRow[slot]! <= row && row < rows[slot]!) || this.#cached.registry.isMapping(slot, id));
  }
}
