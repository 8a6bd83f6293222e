// SharedRows: the groups of rows that may have other users than the slot that filled them. Each has a number, the same in the
// addon, which keeps its pages; this file knows which slots map it, and ends it when no slot and no prefix needs it any more.
//
// Invariants: the named groups of a slot are its first ones; a group that only its slot has, and has no number, is that
// slot's to write; a number is in use while a slot maps or uses it or the prefix index holds it. A number has the rows of its group that
// hold tokens; rows behind them in the same group are the slot's alone. A slot *uses* what it maps from `start` to `stop`, and what it has given up
// until that is unmapped.

import type { Layout } from '../layout/layout.js';
import type { NativeCache } from '../device/native.js';
import type { SlotTable } from './slot-table.js';

export interface SharedRowsParts {
  readonly native: NativeCache;
  readonly layout: Layout;
  readonly table: SlotTable;
  /** Whether the prefix index holds a group. */
  readonly isHeld: (id: number) => boolean;
}

export class SharedRows {
  readonly #parts: SharedRowsParts;
  readonly #maxGroups: number;
  readonly #groupRows: number;
  readonly #isUsing: Uint8Array;
  /** Numbers by group, per slot; made when a slot first needs it. The first `named` of them count. */
  readonly #ids: (Int32Array | undefined)[] = [];
  readonly #named: Int32Array;
  /** By slot: numbers that it has given up and still maps, since queued work may use them there. */
  readonly #givenUp = new Map<number, number[]>();
  // By number.
  #mappers = new Int32Array(64);
  #group = new Int32Array(64);
  #isUsed = new Uint8Array(64);
  /** Slots that use it, and copies that read it. */
  #users = new Int32Array(64);
  /** Rows of the group that it has. */
  #rows = new Int32Array(64);
  #idlePages = 0;
  #made = 0;
  readonly #free: number[] = [];
  #quads = new Int32Array(4 * 64);
  #drops = new Int32Array(64);
  #dropCount = 0;

  constructor(parts: SharedRowsParts) {
    this.#parts = parts;
    this.#maxGroups = Math.ceil(parts.layout.maxRows / parts.layout.groupRows);
    this.#groupRows = parts.layout.groupRows;
    this.#named = new Int32Array(parts.table.count);
    this.#isUsing = new Uint8Array(parts.table.count);
  }

  /** Numbers in use. */
  get count(): number {
    return this.#made - this.#free.length;
  }

  /** Pages of the numbers that nobody uses. */
  get idlePages(): number {
    return this.#idlePages;
  }

  /** The same, counted anew. */
  countIdlePages(): number {
    let pages = 0;
    for (let id = 0; id < this.#made; id += 1) if (this.#isUsed[id] === 1 && this.#users[id] === 0) pages += this.pagesOf(id);
    return pages;
  }

  /** The slot's numbers by group; those behind `namedGroups` mean nothing. */
  idsOf(slot: number): Int32Array {
    return (this.#ids[slot] ??= new Int32Array(this.#maxGroups).fill(-1));
  }

  /** Groups of the slot that have a number: its first ones. */
  namedGroups(slot: number): number {
    return this.#named[slot]!;
  }

  /** Rows of the slot that its numbers have, as far as they are mapped. */
  namedRows(slot: number): number {
    return Math.min(this.rowsOfLast(slot), this.#parts.table.rows[slot]!);
  }

  /** Rows of the slot, up to the last that one of its numbers has, mapped or not. */
  rowsOfLast(slot: number): number {
    const last = this.#named[slot]! - 1;
    return last < 0 ? 0 : last * this.#groupRows + this.#rows[this.#ids[slot]![last]!]!;
  }

  /** Rows of its group that a number has. */
  rowsOf(id: number): number {
    return this.#rows[id]!;
  }

  /** Pages of the first `rows` rows of the number's group, or of those that it has. */
  pagesOf(id: number, rows = this.#rows[id]!): number {
    const { layout } = this.#parts;
    if (this.#groupRows === 1) return rows * layout.pagesPerRow;
    const from = this.#group[id]! * this.#groupRows;
    return layout.pagesFor(from + rows) - layout.pagesFor(from);
  }

  /** Slots that use it, and copies that read it. */
  usersOf(id: number): number {
    return this.#users[id]!;
  }

  /** A sequence has the slot from now on, and uses what it maps. Idempotent. */
  start(slot: number): void {
    if (this.#isUsing[slot] === 1) return;
    this.#isUsing[slot] = 1;
    for (let group = 0; group < this.#named[slot]!; group += 1) this.#use(this.#ids[slot]![group]!, 1);
  }

  /** No sequence has the slot any more; what it maps is cached, or nobody's. In quarantine it stays in use. */
  stop(slot: number): void {
    if (this.#isUsing[slot] === 0 || this.#parts.table.isQuarantined[slot] === 1) return;
    this.#isUsing[slot] = 0;
    for (let group = 0; group < this.#named[slot]!; group += 1) this.#use(this.#ids[slot]![group]!, -1);
  }

  /** Where in a slot the group lies. */
  groupOf(id: number): number {
    return this.#group[id]!;
  }

  isHeld(id: number): boolean {
    return this.#parts.isHeld(id);
  }

  /** Slots that map it. */
  mappersOf(id: number): number {
    return this.#mappers[id]!;
  }

  /**
   * A slot that maps the group, up to its own row `rows` - 1 at least, or -1; none in quarantine, which may have lost it. Looks at one
   * slot after the other: for copies, which cost more.
   */
  slotOf(id: number, rows: number): number {
    if (this.#mappers[id] === 0) return -1;
    const { table } = this.#parts;
    for (let slot = 0; slot < table.count; slot += 1) {
      if (table.isQuarantined[slot] === 0 && this.#isMapping(slot, id) && table.ownRows(slot) >= rows) return slot;
    }
    return -1;
  }

  /** All slots that map the group. */
  slotsOf(id: number): number[] {
    if (this.#mappers[id] === 0) return [];
    return Array.from({ length: this.#parts.table.count }, (_, slot) => slot).filter((slot) => this.#isMapping(slot, id));
  }

  /** Whether the slot maps one of the groups ids[0 … groups). */
  isSharing(slot: number, ids: Int32Array, groups: number): boolean {
    const own = this.#ids[slot];
    for (let group = 0; group < Math.min(groups, this.#named[slot]!); group += 1) if (own![group] === ids[group]) return true;
    return false;
  }

  /**
   * Gives numbers to the slot's groups up to the one that its row `rows` - 1 is in, and lets the addon keep its rows up to there,
   * which are mapped. The last group has those of its rows, no others.
   */
  name(slot: number, rows: number): void {
    const groups = Math.ceil(rows / this.#groupRows);
    const from = this.#named[slot]!;
    // A group that was named before all its rows were there has more to keep.
    const first = this.#groupRows > 1 ? Math.max(0, from - 1) : from;
    if (first >= groups) return;
    const ids = this.idsOf(slot);
    if (this.#quads.length < 4 * (groups - first)) this.#quads = new Int32Array(8 * (groups - first));
    let count = 0;
    for (let group = first; group < groups; group += 1) {
      const groupRows = Math.min(this.#groupRows, rows - group * this.#groupRows);
      if (group >= from) ids[group] = this.#make(group, this.#isUsing[slot]!, groupRows);
      else if (groupRows > this.#rows[ids[group]!]!) this.#setRows(ids[group]!, groupRows);
      else continue;
      this.#put(count, slot, group, groupRows);
      count += 1;
    }
    this.#named[slot] = Math.max(from, groups);
    if (count > 0) this.#parts.native.keep(this.#quads, count);
  }

  /** The last number of the slot has only `rows` rows of its group from now on; those behind are the slot's alone, or gone. */
  trim(slot: number, rows: number): void {
    const group = this.#named[slot]! - 1;
    this.#setRows(this.#ids[slot]![group]!, rows);
    this.#put(0, slot, group, rows);
    this.#parts.native.keep(this.#quads, 1);
  }

  /** The slot's numbers up to `groups` have been written into `idsOf(slot)`, and the groups mapped. */
  join(slot: number, groups: number): void {
    const ids = this.idsOf(slot);
    for (let group = this.#named[slot]!; group < groups; group += 1) {
      this.#mappers[ids[group]!]! += 1;
      if (this.#isUsing[slot] === 1) this.#use(ids[group]!, 1);
    }
    this.#named[slot] = groups;
  }

  /** The slot no longer maps its groups from `groups` on, or has them for itself again. */
  leave(slot: number, groups: number): void {
    this.#leave(slot, groups, false);
  }

  /** The slot's groups from `groups` on are not its own any more, but it still maps them, and uses them until `unmapped`. */
  giveUp(slot: number, groups: number): void {
    this.#leave(slot, groups, true);
  }

  /** What the slot gave up is unmapped. */
  unmapped(slot: number): void {
    const ids = this.#givenUp.get(slot);
    if (ids === undefined) return;
    this.#givenUp.delete(slot);
    for (const id of ids) {
      this.#use(id, -1);
      this.dropIfUnused(id);
    }
    this.flush();
  }

  /** Slots that use it and have not given it up. */
  ownersOf(id: number): number {
    let owners = this.usersOf(id);
    for (const ids of this.#givenUp.values()) if (ids.includes(id)) owners -= 1;
    return owners;
  }

  #leave(slot: number, groups: number, isStillMapped: boolean): void {
    const ids = this.#ids[slot];
    for (let group = this.#named[slot]! - 1; group >= groups; group -= 1) {
      const id = ids![group]!;
      ids![group] = -1;
      this.#mappers[id]! -= 1;
      if (this.#isUsing[slot] === 1) {
        if (isStillMapped) this.#noteGivenUp(slot, id);
        else this.#use(id, -1);
      }
      this.dropIfUnused(id);
    }
    this.#named[slot] = Math.min(this.#named[slot]!, groups);
    this.flush();
  }

  /** Keeps a number in use, whatever the index drops, while its rows are copied from. */
  borrow(id: number): void {
    this.#mappers[id]! += 1;
    this.#use(id, 1);
  }

  giveBack(id: number): void {
    this.#mappers[id]! -= 1;
    this.#use(id, -1);
    this.dropIfUnused(id);
    this.flush();
  }

  /** Ends a number that nobody uses; `flush` tells the addon. */
  dropIfUnused(id: number): void {
    if (this.#isUsed[id] === 0 || this.#mappers[id] !== 0 || this.#users[id] !== 0 || this.#parts.isHeld(id)) return;
    if (this.#dropCount === this.#drops.length) {
      const drops = new Int32Array(2 * this.#dropCount);
      drops.set(this.#drops);
      this.#drops = drops;
    }
    this.#isUsed[id] = 0;
    this.#idlePages -= this.pagesOf(id);
    this.#drops[this.#dropCount] = id;
    this.#dropCount += 1;
  }

  /** Lets the addon drop what has ended. Their numbers may be used again from here on. */
  flush(): void {
    if (this.#dropCount === 0) return;
    this.#parts.native.drop(this.#drops, this.#dropCount);
    for (let index = 0; index < this.#dropCount; index += 1) this.#free.push(this.#drops[index]!);
    this.#dropCount = 0;
  }

  /** Whether every group of the slot from `groups` on is its alone. */
  isAlone(slot: number, groups: number): boolean {
    const ids = this.#ids[slot];
    for (let group = groups; group < this.#named[slot]!; group += 1) {
      if (this.#mappers[ids![group]!]! > 1 || this.#parts.isHeld(ids![group]!)) return false;
    }
    return true;
  }

  #noteGivenUp(slot: number, id: number): void {
    const ids = this.#givenUp.get(slot);
    if (ids === undefined) this.#givenUp.set(slot, [id]);
    else ids.push(id);
  }

  #isMapping(slot: number, id: number): boolean {
    const group = this.#group[id]!;
    return this.#named[slot]! > group && this.#ids[slot]![group] === id;
  }

  #use(id: number, count: 1 | -1): void {
    const before = this.#users[id]!;
    this.#users[id] = before + count;
    if (before === 0) this.#idlePages -= this.pagesOf(id);
    else if (before + count === 0) this.#idlePages += this.pagesOf(id);
  }

  #setRows(id: number, rows: number): void {
    if (this.#users[id] === 0) this.#idlePages += this.pagesOf(id, rows) - this.pagesOf(id);
    this.#rows[id] = rows;
  }

  #put(index: number, slot: number, group: number, rows: number): void {
    const at = 4 * index;
    this.#quads[at] = slot;
    this.#quads[at + 1] = group;
    this.#quads[at + 2] = this.#ids[slot]![group]!;
    this.#quads[at + 3] = rows;
  }

  #make(group: number, users: number, rows: number): number {
    const id = this.#free.pop() ?? this.#made++;
    if (id >= this.#group.length) {
      const length = 2 * this.#group.length;
      const grow = <T extends Int32Array | Uint8Array>(from: T, to: T): T => (to.set(from), to);
      this.#mappers = grow(this.#mappers, new Int32Array(length));
      this.#group = grow(this.#group, new Int32Array(length));
      this.#isUsed = grow(this.#isUsed, new Uint8Array(length));
      this.#users = grow(this.#users, new Int32Array(length));
      this.#rows = grow(this.#rows, new Int32Array(length));
    }
    this.#mappers[id] = 1;
    this.#users[id] = users;
    this.#group[id] = group;
    this.#rows[id] = rows;
    this.#isUsed[id] = 1;
    if (users === 0) this.#idlePages += this.pagesOf(id);
    return id;
  }
}
