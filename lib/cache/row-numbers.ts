// RowNumbers: the numbers of groups of rows that can be shared, and what is counted per number: slots that map it, users, rows, and
// the pages of those that no sequence uses. Typed arrays, which grow; a number that has ended is given out again.

import type { Layout } from '../layout/layout.js';

export class RowNumbers {
  readonly #layout: Layout;
  /** By number: slots that map it, and copies that read it. */
  mappers: Int32Array = new Int32Array(64);
  /** By number: where in a slot the group lies. */
  group: Int32Array = new Int32Array(64);
  /** By number: slots that use it, and copies that read it. */
  users: Int32Array = new Int32Array(64);
  /** By number: rows of the group that it has. */
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

  /** Pages of the numbers that no sequence uses. */
  get idlePages(): number {
    return this.#idlePages;
  }

  /** The same, counted anew. */
  countIdlePages(): number {
    let pages = 0;
    for (let id = 0; id < this.#made; id += 1) if (this.#isUsed[id] === 1 && this.users[id] === 0) pages += this.pagesOf(id);
    return pages;
  }

  isUsed(id: number): boolean {
    return this.#isUsed[id] === 1;
  }

  /** Pages of the first `rows` rows of the number's group, or of those that it has. */
  pagesOf(id: number, rows = this.rows[id]!): number {
    const { groupRows, pagesPerRow } = this.#layout;
    if (groupRows === 1) return rows * pagesPerRow;
    const from = this.group[id]! * groupRows;
    return this.#layout.pagesFor(from + rows) - this.#layout.pagesFor(from);
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
