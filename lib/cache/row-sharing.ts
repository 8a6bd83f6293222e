// RowSharing: how running sequences come to share rows and to have their own. It forks them, gives a sequence a row of its own before
// it writes to one that must stay as it is, and takes back what a shortened sequence shares behind its end. How rows end is
// CachedRows' and RowRegistry's part; it decides nothing, as the index finds and evicts.
//
// Invariant: no slot writes to a row that another slot maps, or behind whose written tokens another text goes on.

import { isKvError } from '../base/errors.js';
import type { CachedRows } from './cached-rows.js';
import { GivenUpRows } from './given-up-rows.js';
import { RowCopies, type CopyRoom } from './row-copies.js';
import type { SlotMemory } from './slot-memory.js';
import { noForeignRow, sharedTails, slotStates, type Lease } from './slots.js';

export class RowSharing {
  readonly givenUp: GivenUpRows;
  readonly copies: RowCopies;
  readonly #memory: SlotMemory;
  readonly #cached: CachedRows;

  constructor(memory: SlotMemory, cached: CachedRows) {
    const { registry, tokens } = cached;
    this.#memory = memory;
    this.#cached = cached;
    this.givenUp = new GivenUpRows(memory, registry);
    this.copies = new RowCopies(memory, registry, tokens);
  }

  /** Before a slot is written to from its length on: pages that `makeWritable` takes. */
  detachPages(slot: number): number {
    const tail = this.#sharedTail(slot);
    return tail < 0 ? 0 : this.copies.pagesFor(slot, tail);
  }

  /** Before the slots of a batch get memory: see `CachedRows.flushBesideWithheld`. */
  flushBesideWithheld(): void {
    this.#cached.flushBesideWithheld();
  }

  /**
   * The group that must stay as it is for others where the slot is written to next, or -1: other running sequences use it, of which `left`
   * will not, or what is cached behind the slot's tokens is withheld.
   */
  contestedTail(slot: number, left: ReadonlyMap<number, number>): number {
    const tail = this.#sharedTail(slot);
    if (tail < 0) return -1;
    const { registry } = this.#cached;
    const id = registry.idsOf(slot)[tail]!;
    return registry.ownersOf(id) - (left.get(id) ?? 0) > 1 || this.#cached.withheld.has(id) ? id : -1;
  }

  /**
   * For want of the pages of a copy: what is cached behind the slot's tokens in its last group, and no running sequence uses, goes.
   * Returns whether the slot can be written to then.
   */
  claimTail(slot: number): boolean {
    const { registry, tokens } = this.#cached;
    const tail = this.#sharedTail(slot);
    if (tail < 0 || tokens.of(slot) === undefined || registry.ownersOf(registry.idsOf(slot)[tail]!) > 1) return tail < 0;
    this.#cached.flushCommits();
    if (this.#cached.withheld.has(registry.idsOf(slot)[tail]!)) return false;
    this.#cached.claim(slot, tail);
    return this.#sharedTail(slot) < 0;
  }

  /**
   * Before `makeWritable`: gives up what the slot shares behind its length, and waits for queued work where that is in the way of
   * tokens up to `end`. Throws KV_WORK_QUEUED when only a step of the engine can make way, and what the driver throws.
   */
  clearWay(slot: number, end: number): void {
    this.#leaveBehind(slot);
    this.givenUp.clear(slot, this.#memory.layout.rowsFor(end));
  }

  /**
   * Throws KV_WORK_QUEUED where a step of the engine is in the way of a copy that `makeWritable` would make for one of these slots, which it is
   * called for in this order. The index first hears what sequences have computed, by which a slot may need none.
   */
  checkSteps(slots: readonly number[]): void {
    try {
      this.#checkSteps(slots);
    } catch (error) {
      if (!isKvError(error, 'KV_WORK_QUEUED')) throw error;
      this.#cached.flushCommits();
      this.#checkSteps(slots);
    }
  }

  #checkSteps(slots: readonly number[]): void {
    const left = new Map<number, number>();
    for (const slot of slots) {
      const tail = this.#sharedTail(slot, left);
      if (tail < 0) continue;
      const id = this.#cached.registry.idsOf(slot)[tail]!;
      this.copies.checkSteps(slot, id);
      left.set(id, (left.get(id) ?? 0) + 1);
    }
  }

  /**
   * Gives the slot rows of its own from its length on: what it shares there is copied. Throws KV_OUT_OF_PAGES, KV_WORK_QUEUED when
   * only a step of the engine can make way, and what the driver throws; the slot then has what it had.
   */
  makeWritable(slot: number, room: CopyRoom): void {
    const { layout, slots } = this.#memory;
    const { registry } = this.#cached;
    const tail = this.#sharedTail(slot);
    const rows = layout.rowsFor(slots.length[slot]!);
    if (tail >= 0 && !this.copies.moveOthers(slot, tail, room)) {
      this.copies.detach(slot, tail, room);
    } else if (registry.rowsOfLast(slot) > rows) { // it has taken tokens back that only it had: rows behind are its own
      registry.trim(slot, rows - (registry.named[slot]! - 1) * layout.groupRows);
    }
    slots.setSharedTail(slot, slots.foreignRow[slot] === noForeignRow ? sharedTails.none : sharedTails.truncated);
  }

  /**
   * Whether the slot's tokens [from, to) are its sequence's alone to write: no other slot maps them, and none of them is, or is going
   * to be, in the prefix cache.
   */
  isWritable(slot: number, from: number, to: number): boolean {
    const { slots, groups } = this.#memory;
    const { registry, tokens, index } = this.#cached;
    if (slots.state[slot] !== slotStates.active) return false;
    const length = slots.length[slot]!;
    const known = tokens.of(slot);
    if (known?.path.isStored === true && from < Math.min(length, known.count)) return false;
    const ids = registry.idsOf(slot);
    const end = Math.min(groups.rowsFor(to), registry.named[slot]!);
    for (let group = groups.wholeRows(from); group < end; group += 1) {
      if (registry.numbers.mappers[ids[group]!]! > 1) return false;
      if (!index.isHolding(ids[group]!)) continue;
      const isOwnTail = from >= length && group === groups.wholeRows(length) && this.#sharedTail(slot) < 0;
      if (!isOwnTail) return false;
    }
    return true;
  }

  /** Drops the slot's tokens from `tokens` on, which no prepared batch computes on. What is left of them is told as it fails. */
  truncate(slot: number, tokens: number): void {
    const { layout, slots, groups } = this.#memory;
    const { registry } = this.#cached;
    slots.truncate(slot, tokens);
    this.#cached.tokens.truncate(slot, tokens);
    if (registry.named[slot]! > groups.wholeRows(tokens) || slots.foreignRow[slot] !== noForeignRow) {
      slots.setSharedTail(slot, sharedTails.truncated);
    }
    try {
      this.#leaveBehind(slot);
      const rows = layout.rowsFor(tokens);
      const last = registry.named[slot]! - 1;
      if (registry.namedRows(slot) > rows && registry.numbers.mappers[registry.idsOf(slot)[last]!]! > 1) {
        this.givenUp.add(slot, rows);
        this.givenUp.unmap(slot);
      }
    } finally {
      this.#cached.endDropped();
    }
  }

  /**
   * `slot`, which is empty, gets all that `from` has computed: rows are shared, also the last one until either writes. Commits have
   * been flushed. Returns the lease that begins with it. Throws what the driver throws; then the slot may have rows.
   */
  fork(from: number, slot: number): Lease {
    const { native, layout, slots, groups } = this.#memory;
    const { index, registry, tokens } = this.#cached;
    const length = slots.length[from]!;
    const count = groups.rowsFor(length);
    const ids = registry.idsOf(slot);
    registry.name(from, layout.rowsFor(length));
    ids.set(registry.idsOf(from).subarray(0, count));
    const known = tokens.of(from);
    const path = known === undefined ? undefined : index.fork(known.path, ids);
    try {
      native.alias(slot, ids, 0, count);
      registry.join(slot, count); // before anything can fail: the slot then is not taken for one that shares nothing
      if (slots.rows[slot]! > layout.rowsFor(length)) this.#memory.unmap(slot, layout.rowsFor(length));
    } catch (error) {
      if (path !== undefined) index.release(path);
      this.#cached.endDropped();
      throw error;
    }
    this.#memory.fences.setStream(slot, this.#memory.fences.streamOf(from));
    if (groups.wholeRows(length) < count) slots.setSharedTail(from, Math.max(slots.sharedTail[from]!, sharedTails.forked));
    if (known !== undefined && path !== undefined) tokens.open(slot, { path, buffer: known.buffer.slice(0, known.count), count: known.count });
    const sharedTail = groups.wholeRows(length) < count ? slots.sharedTail[from]! : sharedTails.none;
    return { tokens: length, earmarkedTokens: 0, tenant: slots.tenantOf(from), sharedTail, isTransfer: false };
  }

  /**
   * The slot shares nothing behind its length any more: rows there that other sequences or cached texts need are not its own from here on, nor what it was
   * earmarked with them. They are unmapped at once, or when no queued work uses the slot.
   */
  #leaveBehind(slot: number): void {
    const { layout, slots, groups } = this.#memory;
    const { registry } = this.#cached;
    const first = groups.rowsFor(slots.length[slot]!);
    if (registry.isAlone(slot, first)) {
      registry.leave(slot, first);
    } else {
      this.givenUp.add(slot, first * layout.groupRows);
      registry.giveUp(slot, first);
    }
    this.givenUp.unmap(slot);
  }

  /** The group that holds the slot's last tokens and room for the next, if it must stay as it is when so many slots have `left` it; or -1. */
  #sharedTail(slot: number, left?: ReadonlyMap<number, number>): number {
    const { slots, groups } = this.#memory;
    const { registry, tokens } = this.#cached;
    const tail = groups.wholeRows(slots.length[slot]!);
    if (tail === groups.rowsFor(slots.length[slot]!) || tail >= registry.named[slot]!) return -1;
    const id = registry.idsOf(slot)[tail]!;
    if (registry.numbers.mappers[id]! - (left?.get(id) ?? 0) > 1) return tail;
    if (slots.sharedTail[slot] !== sharedTails.truncated) return -1;
    return tokens.isTailWritable(slot, tail) ? -1 : tail;
  }
}
