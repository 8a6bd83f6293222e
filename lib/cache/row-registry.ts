// RowRegistry: the rows that may have other users than the slot that filled them. Each has a number, the same in the
// addon, which keeps its pages; the registry knows which slots map it, and ends it when no slot and no prefix needs it
// any more. The one place where a row ends.
//
// Invariants: the named rows of a slot are its first ones; a row that only its slot has, and has no number, is that
// slot's to write; a number is in use while a slot maps or uses it or the prefix index holds it. A slot *uses* what it
// maps from `start` to `stop`, and what it has given up until that is unmapped: rows that are not the sequence's any
// more, and whose addresses queued work may use.

import { createError } from '../base/errors.js';
import { enlarged } from '../base/typed-arrays.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import { noForeignRow, type SlotMemory, type SlotNumbers, slotStates } from './slots.js';

export class RowRegistry {
  /** By slot: its rows that have a number, which are its first ones. */
  readonly named: SlotNumbers;
  /** What is counted of each number. */
  readonly numbers: CountedRows;
  readonly #memory: SlotMemory;
  readonly index: PrefixIndex;
  readonly #isUsing: Uint8Array;
  /** Numbers by row, per slot; made when a slot first needs it. The first `named` of them count. */
  readonly #ids: (Int32Array | undefined)[] = [];
  readonly #named: Int32Array;
  /** By slot: numbers that it has given up and still maps, since queued work may use them there. */
  readonly #givenUp = new Map<number, number[]>();
  /** Those of them that sequences have: of idle ones CachedRows unmaps it. */
  readonly #givingUp = new Set<number>();
  readonly #numbers: RowNumbers;
  #triples = new Int32Array(3 * 64);
  #drops = new Int32Array(64);
  #dropCount = 0;

  constructor(memory: SlotMemory, index: PrefixIndex) {
    const { layout, slots } = memory;
    this.#memory = memory;
    this.index = index;
    this.numbers = this.#numbers = new RowNumbers(layout.pagesPerRow);
    this.named = this.#named = new Int32Array(slots.count);
    this.#isUsing = new Uint8Array(slots.count);
  }

  /**
   * The slot's numbers by row. Those behind its `named` are -1, but while they are written for a sequence that is to
   * get the slot: `join` takes them, or `unwrite` clears them.
   */
  idsOf(slot: number): Int32Array {
    return (this.#ids[slot] ??= new Int32Array(this.#memory.layout.maxRows).fill(-1));
  }

  /** Rows of the slot that its numbers have, as far as they are mapped. */
  namedRows(slot: number): number {
    return Math.min(this.#named[slot]!, this.#memory.slots.rows[slot]!);
  }

  /**
   * A sequence has the slot from now on, and uses what it maps; with the numbers up to `rows`, which have been
   * written into `idsOf(slot)`. Idempotent.
   */
  start(slot: number, rows = 0): void {
    if (this.#isUsing[slot] === 0) {
      this.#isUsing[slot] = 1;
      if (this.#named[slot]! > 0) this.#numbers.useAll(this.#ids[slot]!, 0, this.#named[slot]!, 1);
    }
    this.join(slot, rows);
  }

  /** No sequence has the slot any more; what it maps is cached, or free to take. In quarantine it stays in use. */
  stop(slot: number): void {
    if (this.#isUsing[slot] === 0 || this.#memory.slots.isQuarantined[slot] === 1) return;
    this.#isUsing[slot] = 0;
    if (this.#named[slot]! > 0) this.#numbers.useAll(this.#ids[slot]!, 0, this.#named[slot]!, -1);
  }

  /**
   * The same, and the slot, which is idle now, keeps its first rows that the index holds, for the next request with
   * that text; returns how many. Of them `wholeRows` are full: a last one that is not, and that another slot maps too,
   * cannot be gone on in. The rows behind are the slot's alone from here on, or must be unmapped: then `named` still
   * counts them.
   */
  retire(slot: number, wholeRows: number): number {
    this.stop(slot);
    const held = this.heldRows(slot);
    const isTailShared = held > wholeRows && this.#numbers.mappers[this.#ids[slot]![held - 1]!]! > 1;
    const rows = isTailShared ? wholeRows : held;
    if (this.#memory.slots.foreignRow[slot] === noForeignRow && this.isAlone(slot, rows)) this.leave(slot, rows);
    return rows;
  }

  /**
   * A slot that maps the row, or -1; none in quarantine, which may have lost it. Looks at one slot after the other: for
   * copies, which cost more.
   */
  slotOf(id: number): number {
    if (this.#numbers.mappers[id] === 0) return -1;
    const { slots } = this.#memory;
    for (let slot = 0; slot < slots.count; slot += 1) {
      if (slots.isQuarantined[slot] === 0 && this.isMapping(slot, id)) return slot;
    }
    return -1;
  }

  /** All slots that map the row. */
  slotsOf(id: number): number[] {
    if (this.#numbers.mappers[id] === 0) return [];
    const slots: number[] = [];
    for (let slot = 0; slot < this.#memory.slots.count; slot += 1) if (this.isMapping(slot, id)) slots.push(slot);
    return slots;
  }

  isMapping(slot: number, id: number): boolean {
    const row = this.#numbers.row[id]!;
    return this.#named[slot]! > row && this.#ids[slot]![row] === id;
  }

  /** Whether the slot maps one of the rows ids[0 … rows). */
  isSharing(slot: number, ids: Int32Array, rows: number): boolean {
    const own = this.#ids[slot];
    for (let row = 0; row < Math.min(rows, this.#named[slot]!); row += 1) {
      if (own![row] === ids[row]) return true;
    }
    return false;
  }

  /** Gives numbers to the slot's first `rows` rows, which are mapped, and lets the addon keep them. */
  name(slot: number, rows: number): void {
    const from = this.#named[slot]!;
    if (from >= rows) return;
    const ids = this.idsOf(slot);
    if (this.#triples.length < 3 * (rows - from)) this.#triples = new Int32Array(6 * (rows - from));
    this.#numbers.fit(rows - from); // before any is made: memory may be refused
    for (let row = from, at = 0; row < rows; row += 1, at += 3) {
      ids[row] = this.#numbers.make(row, this.#isUsing[slot]!);
      this.#triples[at] = slot;
      this.#triples[at + 1] = row;
      this.#triples[at + 2] = ids[row]!;
    }
    this.#named[slot] = rows;
    this.#memory.native.keep(this.#triples, rows - from);
  }

  /** The slot's numbers up to `rows` have been written into `idsOf(slot)`, and the rows mapped. */
  join(slot: number, rows: number): void {
    const from = this.#named[slot]!;
    if (rows <= from) return;
    const ids = this.idsOf(slot);
    if (this.#isUsing[slot] === 1) this.#numbers.useAll(ids, from, rows, 1);
    for (let row = from; row < rows; row += 1) this.#numbers.mappers[ids[row]!]! += 1;
    this.#named[slot] = rows;
  }

  /** The sequence does not get the slot. */
  unwrite(slot: number): void {
    this.#ids[slot]?.fill(-1, this.#named[slot]!);
  }

  /** The slot no longer maps its rows from `rows` on, or has them for itself again. */
  leave(slot: number, rows: number): void {
    this.#leave(slot, rows, false);
  }

  /**
   * The sequence's slot shares no row from `rows` on any more. Those that other sequences or cached texts need are not
   * its own from here on, nor what it was earmarked with them: they are unmapped at once, or once no queued work uses
   * the slot. Throws what the driver throws; they then stay mapped.
   */
  leaveBehind(slot: number, rows: number): void {
    if (this.isAlone(slot, rows)) {
      this.leave(slot, rows);
    } else {
      const { native, slots, views } = this.#memory;
      this.#givingUp.add(slot);
      slots.giveUpRows(slot, rows);
      native.cancel(slot);
      views.revoke(slot);
      native.earmark(slot, 0);
      this.#leave(slot, rows, true);
    }
    this.unmapGivenUpBy(slot);
  }

  /** Slots of sequences that wait for queued work before rows that they gave up are unmapped there. */
  get waiting(): number {
    return this.#givingUp.size;
  }

  /** Unmaps what a sequence gave up, unless queued work may use it. Throws what the driver throws; it then stays. */
  unmapGivenUpBy(slot: number): void {
    const { pool, slots, fences } = this.#memory;
    if (!this.#givingUp.has(slot) || fences.isPending(slot)) return;
    if (slots.foreignRow[slot] !== noForeignRow) this.#memory.unmap(slot, slots.foreignRow[slot]!);
    this.unmapped(slot);
    this.#givingUp.delete(slot);
    pool.capacity.raise();
  }

  /** The same for all slots. Throws the driver's first refusal, at the end. */
  unmapGivenUp(): void {
    const { slots } = this.#memory;
    let failure: { readonly error: unknown } | undefined;
    for (const slot of this.#givingUp) {
      if (slots.state[slot] === slotStates.idle || slots.isQuarantined[slot] === 1) this.#givingUp.delete(slot);
      try {
        if (slots.state[slot] === slotStates.active) this.unmapGivenUpBy(slot);
      } catch (error) {
        failure ??= { error };
      }
    }
    if (failure !== undefined) throw failure.error;
  }

  /** What the slot gave up is unmapped. */
  unmapped(slot: number): void {
    const ids = this.#givenUp.get(slot);
    if (ids === undefined) return;
    this.#givenUp.delete(slot);
    for (const id of ids) {
      this.#numbers.use(id, -1);
      this.dropIfUnused(id);
    }
    this.flush();
  }

  /** Slots that use it and have not given it up. */
  ownersOf(id: number): number {
    let owners = this.#numbers.users[id]!;
    for (const ids of this.#givenUp.values()) if (ids.includes(id)) owners -= 1;
    return owners;
  }

  #leave(slot: number, rows: number, isStillMapped: boolean): void {
    const ids = this.#ids[slot];
    for (let row = this.#named[slot]! - 1; row >= rows; row -= 1) {
      const id = ids![row]!;
      ids![row] = -1;
      this.#named[slot] = row;
      this.#numbers.mappers[id]! -= 1;
      if (this.#isUsing[slot] === 1) {
        if (isStillMapped) this.#noteGivenUp(slot, id);
        else this.#numbers.use(id, -1);
      }
      this.dropIfUnused(id);
    }
    this.flush();
  }

  /** Keeps a number in use, whatever the index drops, while its rows are copied from. */
  hold(id: number): void {
    this.#numbers.mappers[id]! += 1;
    this.#numbers.use(id, 1);
  }

  letGo(id: number): void {
    this.#numbers.mappers[id]! -= 1;
    this.#numbers.use(id, -1);
    this.dropIfUnused(id);
    this.flush();
  }

  /** Ends a number without users; `flush` tells the addon. */
  dropIfUnused(id: number): void {
    if (this.#numbers.mappers[id] !== 0 || this.#numbers.users[id] !== 0 || !this.#numbers.isUsed(id)
      || this.index.isHolding(id)) return;
    if (this.#dropCount === this.#drops.length) this.#drops = enlarged(this.#drops, 2 * this.#dropCount);
    this.#numbers.retire(id);
    this.#drops[this.#dropCount] = id;
    this.#dropCount += 1;
  }

  /** Lets the addon drop what has ended. Their numbers may be used again from here on. */
  flush(): void {
    if (this.#dropCount === 0) return;
    const count = this.#dropCount;
    this.#memory.native.drop(this.#drops, count);
    this.#dropCount = 0;
    for (let index = 0; index < count; index += 1) this.#numbers.free(this.#drops[index]!);
  }

  /** The slot's first rows that the index holds. */
  heldRows(slot: number): number {
    return Math.min(this.index.countHeld(this.#ids[slot]!, this.#named[slot]!), this.#memory.slots.ownRows(slot));
  }

  /** Whether every row of the slot from `rows` on is its alone: not while a slot that gave one up still maps it. */
  isAlone(slot: number, rows: number): boolean {
    const ids = this.#ids[slot];
    for (let row = rows; row < this.#named[slot]!; row += 1) {
      const id = ids![row]!;
      if (this.#numbers.mappers[id]! > 1 || this.#numbers.users[id]! > this.#isUsing[slot]!
        || this.index.isHolding(id)) return false;
    }
    return true;
  }

  /** Throws KV_INTERNAL unless its counts agree with each other and with the addon's. */
  verify(): void {
    const { native, slots } = this.#memory;
    const mappers = new Int32Array(this.#numbers.end);
    for (let slot = 0; slot < slots.count; slot += 1) {
      for (let row = 0; row < this.#named[slot]!; row += 1) mappers[this.#ids[slot]![row]!]! += 1;
      if (this.#ids[slot]?.some((id, row) => row >= this.#named[slot]! && id !== -1) === true) {
        throw createError('KV_INTERNAL', {
          problem: 'a slot has numbers of rows that it does not map', what: slot, howMany: this.#named[slot]!,
        });
      }
    }
    const ended = mappers.findIndex((_, id) => this.index.isHolding(id) && !this.#numbers.isUsed(id));
    if (ended >= 0) throw createError('KV_INTERNAL', { problem: 'text is cached in a row that has ended', what: ended });
    const miscounted =
      mappers.findIndex((count, id) => this.#numbers.isUsed(id) && this.#numbers.mappers[id] !== count);
    if (miscounted >= 0) {
      throw createError('KV_INTERNAL', {
        problem: 'the slots that map a shared row are miscounted', what: miscounted, howMany: mappers[miscounted]!,
      });
    }
    const idlePages = this.#numbers.countIdlePages();
    if (this.#numbers.idlePages !== idlePages) {
      throw createError('KV_INTERNAL', {
        problem: 'the pages that no sequence uses are miscounted', what: this.#numbers.idlePages, howMany: idlePages,
      });
    }
    const { keptRows } = native.counters();
    if (keptRows === this.#numbers.count) return;
    throw createError('KV_INTERNAL', {
      problem: 'the kept rows are miscounted', what: keptRows, howMany: this.#numbers.count,
    });
  }

  #noteGivenUp(slot: number, id: number): void {
    const ids = this.#givenUp.get(slot);
    if (ids === undefined) this.#givenUp.set(slot, [id]);
    else ids.push(id);
  }
}

// RowNumbers: the numbers of rows that can be shared, and what is counted per number: slots that map it, users, and the
// pages of those that no sequence uses. Typed arrays, which grow; a number that has ended is given out again.

/** What may be read of the numbers. Growing replaces the arrays: read them anew after a call that may make a number. */
export interface CountedRows {
  /** By number: slots that map it, and copies that read it. */
  readonly mappers: SlotNumbers;
  /** By number: which row of a slot it is. */
  readonly row: SlotNumbers;
  /** By number: slots that use it, and copies that read it. */
  readonly users: SlotNumbers;
  /** Pages of the numbers that no sequence uses. */
  readonly idlePages: number;
}

export class RowNumbers implements CountedRows {
  readonly #pagesPerRow: number;
  mappers: Int32Array = new Int32Array(64);
  row: Int32Array = new Int32Array(64);
  users: Int32Array = new Int32Array(64);
  #isUsed = new Uint8Array(64);
  #idleRows = 0;
  #made = 0;
  readonly #free: number[] = [];

  constructor(pagesPerRow: number) {
    this.#pagesPerRow = pagesPerRow;
  }

  /** Numbers in use. */
  get count(): number {
    return this.#made - this.#free.length;
  }

  /** Numbers from here on were never given out. */
  get end(): number {
    return this.#made;
  }

  get idlePages(): number {
    return this.#idleRows * this.#pagesPerRow;
  }

  /** `idlePages`, counted anew. */
  countIdlePages(): number {
    let rows = 0;
    for (let id = 0; id < this.#made; id += 1) if (this.#isUsed[id] === 1 && this.users[id] === 0) rows += 1;
    return rows * this.#pagesPerRow;
  }

  isUsed(id: number): boolean {
    return this.#isUsed[id] === 1;
  }

  /** Has room for so many numbers more. */
  fit(count: number): void {
    const length = this.#made + Math.max(0, count - this.#free.length);
    if (length > this.#isUsed.length) this.#grow(Math.max(length, 2 * this.#isUsed.length));
  }

  /** A new number for a row that one slot maps. */
  make(row: number, users: number): number {
    this.fit(1);
    const id = this.#free.pop() ?? this.#made++;
    this.mappers[id] = 1;
    this.users[id] = users;
    this.row[id] = row;
    this.#isUsed[id] = 1;
    if (users === 0) this.#idleRows += 1;
    return id;
  }

  /** The number has one user more or less. */
  use(id: number, count: 1 | -1): void {
    const before = this.users[id]!;
    this.users[id] = before + count;
    if (before === 0) this.#idleRows -= 1;
    else if (before + count === 0) this.#idleRows += 1;
  }

  /** The same for ids[from … to). */
  useAll(ids: Int32Array, from: number, to: number, count: 1 | -1): void {
    for (let index = from; index < to; index += 1) this.use(ids[index]!, count);
  }

  /** The number, which has no user, has ended; `free` gives it out again. */
  retire(id: number): void {
    this.#isUsed[id] = 0;
    this.#idleRows -= 1;
  }

  /** It may be given out again. */
  free(id: number): void {
    this.#free.push(id);
  }

  #grow(length: number): void {
    this.mappers = enlarged(this.mappers, length);
    this.row = enlarged(this.row, length);
    this.users = enlarged(this.users, length);
    this.#isUsed = enlarged(this.#isUsed, length); // last: its length is asked for
  }
}
