// RowNumbers: the numbers of groups of rows that can be shared, and what is counted per number: slots that map it,
// users, rows, and the pages of those that no sequence uses. Typed arrays, which grow; a number that has ended is given
// out again. A RowFollower is told what becomes of each number.

import type { Layout } from '../layout/layout.js';
import type { SlotNumbers } from './slots.js';

/**
 * Last groups of slots in use with rows that these do not need: by number, the rows that are needed, and how many users
 * say so.
 */
export type LongTails = ReadonlyMap<number, { readonly rows: number; readonly users: number }>;

/** What may be read of the numbers. Growing replaces the arrays: read them anew after a call that may make a number. */
export interface CountedRows {
  /** By number: slots that map it, and copies that read it. */
  readonly mappers: SlotNumbers;
  /** By number: where in a slot the group lies. */
  readonly group: SlotNumbers;
  /** By number: slots that use it, and copies that read it. */
  readonly users: SlotNumbers;
  /** By number: rows of the group that it has. */
  readonly rows: SlotNumbers;
  /** Pages of the numbers that no sequence uses. */
  readonly idlePages: number;
  /** Pages of the first `rows` rows of the number's group, or of those that it has. */
  pagesOf(id: number, rows?: number): number;
  /** Pages of ids[0 … count) that sequences need. */
  neededPages(ids: Int32Array, count: number, tails: LongTails): number;
}

export class RowNumbers implements CountedRows {
  readonly #layout: Layout;
  mappers: Int32Array = new Int32Array(64);
  group: Int32Array = new Int32Array(64);
  users: Int32Array = new Int32Array(64);
  rows: Int32Array = new Int32Array(64);
  #isUsed = new Uint8Array(64);
  #idlePages = 0;
  #made = 0;
  readonly #free: number[] = [];

  constructor(layout: Layout) {
    this.#layout = layout;
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
    return this.#idlePages;
  }

  /** `idlePages`, counted anew. */
  countIdlePages(): number {
    let pages = 0;
    for (let id = 0; id < this.#made; id += 1) {
      if (this.#isUsed[id] === 1 && this.users[id] === 0) pages += this.pagesOf(id);
    }
    return pages;
  }

  isUsed(id: number): boolean {
    return this.#isUsed[id] === 1;
  }

  pagesOf(id: number, rows = this.rows[id]!): number {
    const { groupRows, pagesPerRow } = this.#layout;
    if (groupRows === 1) return rows * pagesPerRow;
    const from = this.group[id]! * groupRows;
    return this.#layout.pagesBetween(from, from + rows);
  }

  neededPages(ids: Int32Array, count: number, tails: LongTails): number {
    let pages = 0;
    for (let group = 0; group < count; group += 1) {
      const id = ids[group]!;
      const tail = tails.get(id);
      if (this.users[id]! > 0) pages += this.pagesOf(id, tail?.users === this.users[id] ? tail?.rows : undefined);
    }
    return pages;
  }

  /** A new number for a group that one slot maps. */
  make(group: number, users: number, rows: number): number {
    const id = this.#free.pop() ?? this.#made++;
    if (id >= this.group.length) this.#grow(2 * id);
    this.mappers[id] = 1;
    this.users[id] = users;
    this.group[id] = group;
    this.rows[id] = rows;
    this.#isUsed[id] = 1;
    if (users === 0) this.#idlePages += this.pagesOf(id);
    return id;
  }

  /** The number has one user more or less. */
  use(id: number, count: 1 | -1): void {
    const before = this.users[id]!;
    this.users[id] = before + count;
    if (before === 0) this.#idlePages -= this.pagesOf(id);
    else if (before + count === 0) this.#idlePages += this.pagesOf(id);
  }

  /** The same for ids[from … to). */
  useAll(ids: Int32Array, from: number, to: number, count: 1 | -1): void {
    for (let index = from; index < to; index += 1) this.use(ids[index]!, count);
  }

  setRows(id: number, rows: number): void {
    if (this.users[id] === 0) this.#idlePages += this.pagesOf(id, rows) - this.pagesOf(id);
    this.rows[id] = rows;
  }

  /** The number, which has no user, has ended; `free` gives it out again. */
  retire(id: number): void {
    this.#isUsed[id] = 0;
    this.#idlePages -= this.pagesOf(id);
  }

  /** It may be given out again. */
  free(id: number): void {
    this.#free.push(id);
  }

  #grow(length: number): void {
    const grow = <T extends Int32Array | Uint8Array>(from: T, to: T): T => (to.set(from), to);
    this.mappers = grow(this.mappers, new Int32Array(length));
    this.group = grow(this.group, new Int32Array(length));
    this.users = grow(this.users, new Int32Array(length));
    this.rows = grow(this.rows, new Int32Array(length));
    this.#isUsed = grow(this.#isUsed, new Uint8Array(length));
  }
}

/**
 * Keeps something beside K and V for each row of a cache (a side tensor, a copy in a lower tier), and must follow the
 * rows in lock-step. The registry of rows calls it synchronously, once per change, in the order in which the changes
 * took effect; a change that the driver refused is not told. It must not throw and must not call the cache.
 *
 * Rows are told in groups, the unit of sharing: `group` is the place in the slot (its rows from group · groupRows on),
 * `id` the group's number, unique until `dropped`. A group without a number is its slot's alone.
 */
export interface RowFollower {
  /**
   * The slot's group has the number from now on, with its first `rows` rows; told again when more or fewer of its rows
   * belong to it.
   */
  registered(id: number, slot: number, group: number, rows: number): void;
  /** Another slot maps the number's rows too, at the same place. */
  shared(id: number, slot: number, group: number): void;
  /**
   * The text's tokens up to `tokens` that lie in the number's group were copied to the same place of a slot, into rows
   * of its own.
   */
  copied(id: number, slot: number, group: number, tokens: number): void;
  /** The slot no longer has the number at this place: it has other rows there, rows of its own, or none. */
  detached(id: number, slot: number, group: number): void;
  /** No slot and no cached text has the number any more. It may be given out again. */
  dropped(id: number): void;
}
