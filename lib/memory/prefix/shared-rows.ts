// SharedRows: the groups of rows that may have other users than the slot that filled them. Each has a number, the same in the
// addon, which keeps its pages; this file knows which slots map it, and ends it when no slot and no prefix needs it any more.
//
// Invariants: the named groups of a slot are its first ones; a group that only its slot has, and has no number, is that
// slot's to write; a number is in use while a slot maps it or the prefix index holds it.

import type { Layout } from '../layout.js';
import type { NativeCache } from '../native.js';
import type { SlotTable } from '../slot-table.js';

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
  readonly #pagesPerGroup: number;
  /** Numbers by group, per slot; made when a slot first needs it. The first `named` of them count. */
  readonly #ids: (Int32Array | undefined)[] = [];
  readonly #named: Int32Array;
  // By number.
  #mappers = new Int32Array(64);
  #group = new Int32Array(64);
  #isUsed = new Uint8Array(64);
  /** Pages of its rows that were mapped when it was named last. */
  #pages = new Int32Array(64);
  #missingPages = 0;
  #made = 0;
  readonly #free: number[] = [];
  #triples = new Int32Array(3 * 64);
  #drops = new Int32Array(64);
  #dropCount = 0;

  constructor(parts: SharedRowsParts) {
    this.#parts = parts;
    this.#maxGroups = Math.ceil(parts.layout.maxRows / parts.layout.groupRows);
    this.#pagesPerGroup = parts.layout.pagesFor(parts.layout.groupRows);
    this.#named = new Int32Array(parts.table.count);
  }

  /** Numbers in use. */
  get count(): number {
    return this.#made - this.#free.length;
  }

  /** Pages that the numbered groups lack because not all of their rows were there. */
  get missingPages(): number {
    return this.#missingPages;
  }

  /** The slot's numbers by group; those behind `namedGroups` mean nothing. */
  idsOf(slot: number): Int32Array {
    return (this.#ids[slot] ??= new Int32Array(this.#maxGroups).fill(-1));
  }

  /** Groups of the slot that have a number: its first ones. */
  namedGroups(slot: number): number {
    return this.#named[slot]!;
  }

  /** Rows of the slot's named groups, as far as they are mapped. */
  namedRows(slot: number): number {
    return Math.min(this.#named[slot]! * this.#parts.layout.groupRows, this.#parts.table.rows[slot]!);
  }

  /** Where in a slot the group lies. */
  groupOf(id: number): number {
    return this.#group[id]!;
  }

  /** Slots that map it. */
  mappersOf(id: number): number {
    return this.#mappers[id]!;
  }

  /**
   * A slot that maps the group, or -1; none in quarantine, which may have lost it. Looks at one slot after the other: for copies,
   * which cost more.
   */
  slotOf(id: number): number {
    if (this.#mappers[id] === 0) return -1;
    const { count, isQuarantined } = this.#parts.table;
    for (let slot = 0; slot < count; slot += 1) if (isQuarantined[slot] === 0 && this.#isMapping(slot, id)) return slot;
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

  /** Gives numbers to the slot's groups up to `groups` and lets the addon keep them; their rows are mapped. */
  name(slot: number, groups: number): void {
    const from = this.#named[slot]!;
    // A group that was named before all its rows were there has more to keep.
    const first = this.#parts.layout.groupRows > 1 ? Math.max(0, from - 1) : from;
    if (first >= groups) return;
    const ids = this.idsOf(slot);
    if (this.#triples.length < 3 * (groups - first)) this.#triples = new Int32Array(6 * (groups - first));
    for (let group = first; group < groups; group += 1) {
      if (group >= from) ids[group] = this.#make(group);
      this.#countPages(ids[group]!, slot, group);
      this.#triples.set([slot, group, ids[group]!], 3 * (group - first));
    }
    this.#named[slot] = Math.max(from, groups);
    this.#parts.native.keep(this.#triples, groups - first);
  }

  /** The slot's numbers up to `groups` have been written into `idsOf(slot)`, and the groups mapped. */
  join(slot: number, groups: number): void {
    const ids = this.idsOf(slot);
    for (let group = this.#named[slot]!; group < groups; group += 1) this.#mappers[ids[group]!]! += 1;
    this.#named[slot] = groups;
  }

  /** The slot no longer maps its groups from `groups` on, or has them for itself again. */
  leave(slot: number, groups: number): void {
    const ids = this.#ids[slot];
    for (let group = this.#named[slot]! - 1; group >= groups; group -= 1) {
      const id = ids![group]!;
      ids![group] = -1;
      this.#mappers[id]! -= 1;
      this.dropIfUnused(id);
    }
    this.#named[slot] = Math.min(this.#named[slot]!, groups);
    this.flush();
  }

  /** Keeps a number in use, whatever the index drops, while its rows are copied from. */
  borrow(id: number): void {
    this.#mappers[id]! += 1;
  }

  giveBack(id: number): void {
    this.#mappers[id]! -= 1;
    this.dropIfUnused(id);
    this.flush();
  }

  /** Ends a number that nobody uses; `flush` tells the addon. */
  dropIfUnused(id: number): void {
    if (this.#isUsed[id] === 0 || this.#mappers[id] !== 0 || this.#parts.isHeld(id)) return;
    if (this.#dropCount === this.#drops.length) {
      const drops = new Int32Array(2 * this.#dropCount);
      drops.set(this.#drops);
      this.#drops = drops;
    }
    this.#isUsed[id] = 0;
    this.#missingPages -= this.#pagesPerGroup - this.#pages[id]!;
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

  #isMapping(slot: number, id: number): boolean {
    const group = this.#group[id]!;
    return this.#named[slot]! > group && this.#ids[slot]![group] === id;
  }

  #countPages(id: number, slot: number, group: number): void {
    const { layout, table } = this.#parts;
    const from = group * layout.groupRows;
    const pages = layout.pagesFor(Math.min(from + layout.groupRows, table.rows[slot]!)) - layout.pagesFor(from);
    this.#missingPages += this.#pages[id]! - pages;
    this.#pages[id] = pages;
  }

  #make(group: number): number {
    const id = this.#free.pop() ?? this.#made++;
    if (id >= this.#group.length) {
      const length = 2 * this.#group.length;
      const grow = <T extends Int32Array | Uint8Array>(from: T, to: T): T => (to.set(from), to);
      this.#mappers = grow(this.#mappers, new Int32Array(length));
      this.#group = grow(this.#group, new Int32Array(length));
      this.#isUsed = grow(this.#isUsed, new Uint8Array(length));
      this.#pages = grow(this.#pages, new Int32Array(length));
    }
    this.#pages[id] = this.#pagesPerGroup;
    this.#mappers[id] = 1;
    this.#group[id] = group;
    this.#isUsed[id] = 1;
    return id;
  }
}
