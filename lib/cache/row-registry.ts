// RowRegistry: the groups of rows that may have other users than the slot that filled them. Each has a number, the same
// in the addon, which keeps its pages; the registry knows which slots map it, ends it when no slot and no prefix needs
// it any more, and tells followers of every step in a row's life. The one place where a row ends.
//
// Invariants: the named groups of a slot are its first ones; a group that only its slot has, and has no number, is that
// slot's to write; a number is in use while a slot maps or uses it or the prefix index holds it. A number has the rows
// of its group that hold tokens; rows behind them in the same group are the slot's alone. A slot *uses* what it maps
// from `start` to `stop`, and what it has given up until that is unmapped.

import { createError } from '../base/errors.js';
import type { Layout } from '../layout/layout.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import { noForeignRow, type SlotMemory, type SlotNumbers } from './slots.js';

export class RowRegistry {
  /** By slot: its groups that have a number, which are its first ones. */
  readonly named: SlotNumbers;
  /** What is counted of each number. */
  readonly numbers: CountedRows;
  readonly #memory: SlotMemory;
  readonly index: PrefixIndex;
  readonly #maxGroups: number;
  readonly #groupRows: number;
  readonly #isUsing: Uint8Array;
  /** Numbers by group, per slot; made when a slot first needs it. The first `named` of them count. */
  readonly #ids: (Int32Array | undefined)[] = [];
  readonly #named: Int32Array;
  /** By slot: numbers that it has given up and still maps, since queued work may use them there. */
  readonly #givenUp = new Map<number, number[]>();
  readonly #numbers: RowNumbers;
  #quads = new Int32Array(4 * 64);
  #drops = new Int32Array(64);
  #dropCount = 0;
  readonly #followers: RowFollower[] = [];

  constructor(memory: SlotMemory, index: PrefixIndex) {
    const { layout: { maxRows, groupRows }, slots } = memory;
    this.#memory = memory;
    this.index = index;
    this.numbers = this.#numbers = new RowNumbers(memory.layout);
    this.#maxGroups = Math.ceil(maxRows / groupRows);
    this.#groupRows = groupRows;
    this.named = this.#named = new Int32Array(slots.count);
    this.#isUsing = new Uint8Array(slots.count);
  }

  /** `follower` hears of every change from now on. */
  follow(follower: RowFollower): void {
    this.#followers.push(follower);
  }

  /** The slot's numbers by group; those behind its `named` mean nothing. */
  idsOf(slot: number): Int32Array {
    return (this.#ids[slot] ??= new Int32Array(this.#maxGroups).fill(-1));
  }

  /** Rows of the slot that its numbers have, as far as they are mapped. */
  namedRows(slot: number): number {
    return Math.min(this.rowsOfLast(slot), this.#memory.slots.rows[slot]!);
  }

  /** Rows of the slot, up to the last that one of its numbers has, mapped or not. */
  rowsOfLast(slot: number): number {
    const last = this.#named[slot]! - 1;
    return last < 0 ? 0 : last * this.#groupRows + this.#numbers.rows[this.#ids[slot]![last]!]!;
  }

  /**
   * A sequence has the slot from now on, and uses what it maps; with the numbers up to `groups`, which have been
   * written into `idsOf(slot)`. Idempotent.
   */
  start(slot: number, groups = 0): void {
    if (this.#isUsing[slot] === 0) {
      this.#isUsing[slot] = 1;
      if (this.#named[slot]! > 0) this.#numbers.useAll(this.#ids[slot]!, 0, this.#named[slot]!, 1);
    }
    this.join(slot, groups);
  }

  /** No sequence has the slot any more; what it maps is cached, or free to take. In quarantine it stays in use. */
  stop(slot: number): void {
    if (this.#isUsing[slot] === 0 || this.#memory.slots.isQuarantined[slot] === 1) return;
    this.#isUsing[slot] = 0;
    if (this.#named[slot]! > 0) this.#numbers.useAll(this.#ids[slot]!, 0, this.#named[slot]!, -1);
  }

  /**
   * The same, and the slot, which is idle now, keeps its first groups that the index holds, for the next request with
   * that text; returns how many. Of them `wholeGroups` are full: a last one that is not, and that another slot maps
   * too, cannot be gone on in. The groups behind are the slot's alone from here on, or must be unmapped: then `named`
   * still counts them.
   */
  retire(slot: number, wholeGroups: number): number {
    this.stop(slot);
    const held = this.heldGroups(slot);
    const isTailShared = held > wholeGroups && this.#numbers.mappers[this.#ids[slot]![held - 1]!]! > 1;
    const groups = isTailShared ? wholeGroups : held;
    if (this.#memory.slots.foreignRow[slot] === noForeignRow && this.isAlone(slot, groups)) this.leave(slot, groups);
    return groups;
  }

  /**
   * A slot that maps the group, up to its own row `rows` - 1 at least, or -1; none in quarantine, which may have lost
   * it. Looks at one slot after the other: for copies, which cost more.
   */
  slotOf(id: number, rows: number): number {
    if (this.#numbers.mappers[id] === 0) return -1;
    const { slots } = this.#memory;
    for (let slot = 0; slot < slots.count; slot += 1) {
      if (slots.isQuarantined[slot] === 0 && this.isMapping(slot, id) && slots.ownRows(slot) >= rows) return slot;
    }
    return -1;
  }

  /** All slots that map the group. */
  slotsOf(id: number): number[] {
    if (this.#numbers.mappers[id] === 0) return [];
    const slots: number[] = [];
    for (let slot = 0; slot < this.#memory.slots.count; slot += 1) if (this.isMapping(slot, id)) slots.push(slot);
    return slots;
  }

  isMapping(slot: number, id: number): boolean {
    const group = this.#numbers.group[id]!;
    return this.#named[slot]! > group && this.#ids[slot]![group] === id;
  }

  /** Whether the slot maps one of the groups ids[0 … groups). */
  isSharing(slot: number, ids: Int32Array, groups: number): boolean {
    const own = this.#ids[slot];
    for (let group = 0; group < Math.min(groups, this.#named[slot]!); group += 1) {
      if (own![group] === ids[group]) return true;
    }
    return false;
  }

  /**
   * Gives numbers to the slot's groups up to the one that its row `rows` - 1 is in, and lets the addon keep its rows up
   * to there, which are mapped. Of the last group only those of its rows.
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
      if (group >= from) ids[group] = this.#numbers.make(group, this.#isUsing[slot]!, groupRows);
      else if (groupRows > this.#numbers.rows[ids[group]!]!) this.#numbers.setRows(ids[group]!, groupRows);
      else continue;
      this.#put(count, slot, group, groupRows);
      count += 1;
    }
    this.#named[slot] = Math.max(from, groups);
    if (count > 0) this.#keep(count);
  }

  /**
   * The last number of the slot has only `rows` rows of its group from now on; those behind are the slot's alone, or
   * gone.
   */
  trim(slot: number, rows: number): void {
    const group = this.#named[slot]! - 1;
    this.#numbers.setRows(this.#ids[slot]![group]!, rows);
    this.#put(0, slot, group, rows);
    this.#keep(1);
  }

  /** The slot's numbers up to `groups` have been written into `idsOf(slot)`, and the groups mapped. */
  join(slot: number, groups: number): void {
    const from = this.#named[slot]!;
    if (groups <= from) return;
    const ids = this.idsOf(slot);
    if (this.#isUsing[slot] === 1) this.#numbers.useAll(ids, from, groups, 1);
    for (let group = from; group < groups; group += 1) {
      this.#numbers.mappers[ids[group]!]! += 1;
      for (const follower of this.#followers) follower.shared(ids[group]!, slot, group);
    }
    this.#named[slot] = groups;
  }

  /** The slot no longer maps its groups from `groups` on, or has them for itself again. */
  leave(slot: number, groups: number): void {
    this.#leave(slot, groups, false);
  }

  /**
   * The slot's groups from `groups` on are not its own any more, but it still maps them, and uses them until
   * `unmapped`.
   */
  giveUp(slot: number, groups: number): void {
    this.#leave(slot, groups, true);
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

  #leave(slot: number, groups: number, isStillMapped: boolean): void {
    const ids = this.#ids[slot];
    for (let group = this.#named[slot]! - 1; group >= groups; group -= 1) {
      const id = ids![group]!;
      ids![group] = -1;
      this.#named[slot] = group;
      this.#numbers.mappers[id]! -= 1;
      for (const follower of this.#followers) follower.detached(id, slot, group);
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
    if (this.#dropCount === this.#drops.length) {
      const drops = new Int32Array(2 * this.#dropCount);
      drops.set(this.#drops);
      this.#drops = drops;
    }
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
    for (const follower of this.#followers) {
      for (let index = 0; index < count; index += 1) follower.dropped(this.#drops[index]!);
    }
  }

  /**
   * The slot's first groups that the index holds, and all of whose rows it maps: a shortened sequence may have given
   * some up.
   */
  heldGroups(slot: number): number {
    const ids = this.#ids[slot]!;
    const ownRows = this.#memory.slots.ownRows(slot);
    const held = this.index.countHeld(ids, this.#named[slot]!);
    let groups = 0;
    while (groups < held && groups * this.#groupRows + this.#numbers.rows[ids[groups]!]! <= ownRows) groups += 1;
    return groups;
  }

  /** Whether every group of the slot from `groups` on is its alone: not while a slot that gave one up still maps it. */
  isAlone(slot: number, groups: number): boolean {
    const ids = this.#ids[slot];
    for (let group = groups; group < this.#named[slot]!; group += 1) {
      const id = ids![group]!;
      if (this.#numbers.mappers[id]! > 1 || this.#numbers.users[id]! > this.#isUsing[slot]!
        || this.index.isHolding(id)) return false;
    }
    return true;
  }

  /**
   * The number's tokens up to `tokens` of a text have been copied to the same place of a slot, or will be by what is
   * queued.
   */
  hasCopied(id: number, slot: number, tokens: number): void {
    for (const follower of this.#followers) follower.copied(id, slot, this.#numbers.group[id]!, tokens);
  }

  /** Throws KV_INTERNAL unless its counts agree with each other and with the addon's. */
  verify(): void {
    const { native, slots } = this.#memory;
    const mappers = new Int32Array(this.#numbers.end);
    for (let slot = 0; slot < slots.count; slot += 1) {
      for (let group = 0; group < this.#named[slot]!; group += 1) mappers[this.#ids[slot]![group]!]! += 1;
    }
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
    const { keptGroups } = native.counters();
    if (keptGroups === this.#numbers.count) return;
    throw createError('KV_INTERNAL', {
      problem: 'the kept rows are miscounted', what: keptGroups, howMany: this.#numbers.count,
    });
  }

  /** Lets the addon keep the rows of the first `count` quads, and tells followers. */
  #keep(count: number): void {
    this.#memory.native.keep(this.#quads, count);
    for (const follower of this.#followers) {
      for (let at = 0; at < 4 * count; at += 4) {
        follower.registered(this.#quads[at + 2]!, this.#quads[at]!, this.#quads[at + 1]!, this.#quads[at + 3]!);
      }
    }
  }

  #noteGivenUp(slot: number, id: number): void {
    const ids = this.#givenUp.get(slot);
    if (ids === undefined) this.#givenUp.set(slot, [id]);
    else ids.push(id);
  }

  #put(index: number, slot: number, group: number, rows: number): void {
    const at = 4 * index;
    this.#quads[at] = slot;
    this.#quads[at + 1] = group;
    this.#quads[at + 2] = this.#ids[slot]![group]!;
    this.#quads[at + 3] = rows;
  }
}

// RowNumbers: the numbers of groups of rows that can be shared, and what is counted per number: slots that map it,
// users, rows, and the pages of those that no sequence uses. Typed arrays, which grow; a number that has ended is given
// out again. A RowFollower is told what becomes of each number.

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
