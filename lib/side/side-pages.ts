// SidePages: which pages of one side tensor each slot maps, and who has each page: slots, those among them that are in
// use, the addon, which keeps the pages that a text holds or slots share. Pages have numbers; a slot's table names its
// pages, from the first on.
//
// Invariants: a number is in use while a slot maps the page or a text holds it; then the addon knows it too, if it
// keeps it.

import { createError, isKvError } from '../base/errors.js';
import { enlarged } from '../base/typed-arrays.js';
import type { NativeCache } from '../device/native.js';
import { NodeLists } from '../prefix/eviction/node-lists.js';
import type { SideCover } from './side-cover.js';

/** Time in calls: one time for all that a call does to all side tensors. */
export interface SideClock {
  now: number;
}

export class SidePages {
  readonly #native: NativeCache;
  /** Whether a text holds the page. */
  readonly #isHeld: (page: number) => boolean;
  readonly #slotPages: number;
  readonly #tables: (Int32Array | undefined)[] = [];
  readonly #counts: Int32Array;
  readonly #isInUse: Uint8Array;
  // By page.
  #mappers = new Int32Array(64);
  #users = new Int32Array(64);
  #index = new Int32Array(64);
  #isKept = new Uint8Array(64);
  #isUsed = new Uint8Array(64);
  #made = 0;
  readonly #free: number[] = [];
  #triples = new Int32Array(3 * 64);
  readonly #one = new Int32Array(1);
  readonly #clock: SideClock;
  /** Pages without a user, the one that has been so for longest first. Of one slot's pages the last ones come first. */
  readonly #idle = new NodeLists(1);
  #idlePages = 0;
  /** By page: when it lost its last user. */
  #idleSince = new Float64Array(64);

  constructor(native: NativeCache, { slots, slotPages, clock, isHeld }: {
    readonly slots: number; readonly slotPages: number; readonly clock: SideClock;
    readonly isHeld: (page: number) => boolean;
  }) {
    this.#native = native;
    this.#clock = clock;
    this.#isHeld = isHeld;
    this.#slotPages = slotPages;
    this.#counts = new Int32Array(slots);
    this.#isInUse = new Uint8Array(slots);
  }

  /** Pages that no slot in use maps. */
  get idlePages(): number {
    return this.#idlePages;
  }

  /** Of these, the one that was used longest ago and that `canGo` affirms; -1: none. */
  oldestIdle(canGo: (page: number) => boolean): number {
    let page = this.#idle.oldest(0);
    while (page >= 0 && !canGo(page)) page = this.#idle.newerThan(page);
    return page;
  }

  /** When the page, which is idle, was used last. */
  idleSince(page: number): number {
    return this.#idleSince[page]!;
  }

  /** The slot's pages; the first `countOf` of them count. Read only. */
  tableOf(slot: number): Int32Array {
    return (this.#tables[slot] ??= new Int32Array(this.#slotPages));
  }

  /** Pages in the slot's table. */
  countOf(slot: number): number {
    return this.#counts[slot]!;
  }

  isInUse(slot: number): boolean {
    return this.#isInUse[slot] === 1;
  }

  isUsed(page: number): boolean {
    return page < this.#made && this.#isUsed[page] === 1;
  }

  /** Slots in use that map the page, and those that pinned it. */
  usersOf(page: number): number {
    return this.#users[page]!;
  }

  /** How many of the slot's first pages are those of `ids`, of which there are `count`. */
  agree(slot: number, ids: Int32Array, count: number): number {
    const table = this.#tables[slot];
    const most = Math.min(this.#counts[slot]!, count);
    let agreed = 0;
    while (agreed < most && table![agreed] === ids[agreed]) agreed += 1;
    return agreed;
  }

  /** Whether the slot has the page. */
  isMapping(slot: number, page: number): boolean {
    const index = this.#index[page]!;
    return this.#counts[slot]! > index && this.#tables[slot]![index] === page;
  }

  /** A slot that maps the page, for which `isRight` is true, or -1. */
  mapperOf(page: number, isRight: (slot: number) => boolean): number {
    if (this.#mappers[page] === 0) return -1;
    for (let slot = 0; slot < this.#counts.length; slot += 1) {
      if (this.isMapping(slot, page) && isRight(slot)) return slot;
    }
    return -1;
  }

  /** Where the page lies in a text, and in every slot that maps it. */
  indexOf(page: number): number {
    return this.#index[page]!;
  }

  /** Keeps the first `count` pages of `ids` from being evicted. */
  pin(ids: Int32Array, count: number): void {
    this.#addUsersOf(ids, 0, count, 1);
  }

  unpin(ids: Int32Array, count: number): void {
    this.#addUsersOf(ids, 0, count, -1);
    for (let index = 0; index < count; index += 1) this.endIfUnused(ids[index]!); // its text may have gone meanwhile
  }

  /** A sequence or a lease has the slot from now on. */
  use(slot: number): void {
    if (this.#isInUse[slot] === 1) return;
    this.#isInUse[slot] = 1;
    this.#addUsersOf(this.tableOf(slot), 0, this.#counts[slot]!, 1);
  }

  /** The slot is idle from now on. */
  idle(slot: number): void {
    if (this.#isInUse[slot] === 0) return;
    this.#addUsersOf(this.tableOf(slot), 0, this.#counts[slot]!, -1);
    this.#isInUse[slot] = 0;
  }

  /** The slot maps ids[its count … end) too, which are kept. */
  join(slot: number, ids: Int32Array, end: number): void {
    const table = this.tableOf(slot);
    const mappers = this.#mappers;
    const from = this.#counts[slot]!;
    if (end <= from) return;
    for (let index = from; index < end; index += 1) {
      table[index] = ids[index]!;
      mappers[ids[index]!]! += 1;
    }
    this.#addUsersOf(ids, from, end, this.#isInUse[slot]!);
    this.#counts[slot] = end;
  }

  /** The slot maps pages of its own behind what it had, `end` pages in all. */
  nameNew(slot: number, end: number): void {
    const table = this.tableOf(slot);
    for (let index = this.#counts[slot]!; index < end; index += 1) {
      table[index] = this.#make(index, this.#isInUse[slot]!);
      this.#counts[slot] = index + 1;
    }
  }

  /** The slot, which is in use, has a page of its own in the place of one that it shared. */
  exchange(slot: number, index: number): void {
    const table = this.tableOf(slot);
    const before = table[index]!;
    table[index] = this.#make(index, 1);
    this.#mappers[before]! -= 1;
    this.#addUsers(before, -1);
    this.endIfUnused(before);
  }

  /** The slot maps only its first `count` pages. */
  leave(slot: number, count: number): void {
    for (let index = this.#counts[slot]! - 1; index >= count; index -= 1) {
      const page = this.#tables[slot]![index]!;
      this.#counts[slot] = index;
      this.#mappers[page]! -= 1;
      this.#addUsers(page, -this.#isInUse[slot]!);
      this.endIfUnused(page);
    }
  }

  /** Lets the addon keep the slot's pages [from, to), whatever the slot does later. */
  keep(slot: number, from: number, to: number): void {
    if (this.#triples.length < 3 * (to - from)) this.#triples = new Int32Array(6 * (to - from));
    const table = this.tableOf(slot);
    let count = 0;
    for (let index = from; index < to; index += 1) {
      const page = table[index]!;
      if (this.#isKept[page] === 1) continue;
      this.#triples[3 * count] = slot;
      this.#triples[3 * count + 1] = index;
      this.#triples[3 * count + 2] = page;
      count += 1;
    }
    if (count === 0) return;
    this.#native.keep(this.#triples, count);
    for (let at = 0; at < count; at += 1) this.#isKept[this.#triples[3 * at + 2]!] = 1;
  }

  /** Ends a page that no slot maps and no text holds. */
  endIfUnused(page: number): void {
    if (this.#isUsed[page] === 0 || this.#mappers[page] !== 0 || this.#users[page] !== 0 || this.#isHeld(page)) return;
    if (this.#isKept[page] === 1) {
      this.#one[0] = page;
      this.#native.drop(this.#one, 1);
    }
    this.#isUsed[page] = 0;
    this.#idle.remove(page); // it has no user
    this.#idlePages -= 1;
    this.#free.push(page);
  }

  /**
   * Throws KV_INTERNAL unless the counts agree with each other and with what texts hold. Returns how many pages there
   * are.
   */
  verify(rows: Int32Array): number {
    const mappers = new Int32Array(this.#made);
    const users = new Int32Array(this.#made);
    for (let slot = 0; slot < this.#counts.length; slot += 1) {
      if (this.#counts[slot] !== rows[slot]) {
        throw broken('a slot maps other pages than its table names', slot, rows[slot]!);
      }
      for (let index = 0; index < this.#counts[slot]!; index += 1) {
        const page = this.#tables[slot]![index]!;
        mappers[page]! += 1;
        users[page]! += this.#isInUse[slot]!;
        if (this.#index[page] !== index) throw broken('a page is in the wrong place of a slot', slot, page);
        if (this.#isInUse[slot] === 0 && !this.#isHeld(page)) {
          throw broken('an idle slot maps a page that no text holds', slot, page);
        }
      }
    }
    for (let page = 0; page < this.#made; page += 1) {
      if (this.#isUsed[page] === 0) continue;
      if (this.#mappers[page] !== mappers[page]) {
        throw broken('the slots that map a page are miscounted', page, mappers[page]!);
      }
      if (this.#users[page] !== users[page]) {
        throw broken('the slots in use that map a page are miscounted', page, users[page]!);
      }
      const isHeld = this.#isHeld(page);
      if (mappers[page] === 0 && !isHeld) {
        throw broken('a page that no slot maps and no text holds is counted', page, 0);
      }
      if (isHeld && this.#isKept[page] === 0) throw broken('a page that a text holds is not kept', page, 0);
    }
    const idlePages =
      users.reduce((idle, count, page) => (this.#isUsed[page] === 1 && count === 0 ? idle + 1 : idle), 0);
    if (this.#idlePages !== idlePages) throw broken('idle pages are miscounted', this.#idlePages, idlePages);
    return this.#made - this.#free.length;
  }

  #addUsersOf(ids: Int32Array, from: number, to: number, users: number): void {
    for (let index = to - 1; index >= from; index -= 1) this.#addUsers(ids[index]!, users);
  }

  #addUsers(page: number, users: number): void {
    const before = this.#users[page]!;
    if (users === 0) return;
    this.#users[page] = before + users;
    if (before === 0) {
      this.#idle.remove(page);
      this.#idlePages -= 1;
    } else if (before + users === 0) {
      this.#beIdle(page);
    }
  }

  #beIdle(page: number): void {
    this.#idle.add(page, 0);
    this.#idlePages += 1;
    this.#idleSince[page] = this.#clock.now;
  }

  #make(index: number, users: number): number {
    if (this.#free.length === 0 && this.#made === this.#mappers.length) this.#grow(2 * this.#made);
    const page = this.#free.pop() ?? this.#made++;
    this.#mappers[page] = 1;
    this.#users[page] = users;
    if (users === 0) this.#beIdle(page);
    this.#index[page] = index;
    this.#isKept[page] = 0;
    this.#isUsed[page] = 1;
    return page;
  }

  #grow(pages: number): void {
    this.#users = enlarged(this.#users, pages);
    this.#index = enlarged(this.#index, pages);
    this.#isKept = enlarged(this.#isKept, pages);
    this.#isUsed = enlarged(this.#isUsed, pages);
    this.#idleSince = enlarged(this.#idleSince, pages);
    this.#mappers = enlarged(this.#mappers, pages); // last: its length is asked for
  }
}

function broken(problem: string, what: number, howMany: number): Error {
  return createError('KV_INTERNAL', { problem: `side tensors: ${problem}`, what, howMany });
}

// FoundPages: the pages of one side tensor that a new sequence's text begins with, from the moment they were found
// until a slot has them. All are shared, also the one in which the text ends: the slot that writes there first gets a
// copy. They are not evicted meanwhile.

export interface FoundPagesParts {
  readonly cover: SideCover;
  readonly pages: SidePages;
  readonly isQuarantined: (slot: number) => boolean;
  /** Throws KV_OUT_OF_PAGES. */
  readonly makeRoom: (pages: number) => void;
}

/** How a slot gets the pages. */
export interface FoundPlan {
  readonly tenant: bigint;
  /** Of the pages, those that the slot maps already (`sharedPages`). */
  readonly shared: number;
  /** Pages that are set aside for the slot, counted from its first. */
  readonly earmarked: number;
  readonly tokens: number;
}

export class FoundPages {
  readonly #native: NativeCache;
  readonly #parts: FoundPagesParts;
  readonly #isReadable: (slot: number) => boolean;
  #ids = new Int32Array(64);
  #count = 0;

  constructor(native: NativeCache, parts: FoundPagesParts) {
    this.#native = native;
    this.#parts = parts;
    this.#isReadable = (slot) => !parts.isQuarantined(slot);
  }

  get count(): number {
    return this.#count;
  }

  /**
   * Finds those of the first `tokens` tokens of the text that ends in `node`, all of which are covered; `count`: how
   * many they touch.
   */
  find(node: number, tokens: number, count: number): void {
    if (this.#ids.length < count) this.#ids = new Int32Array(2 * count);
    this.#parts.cover.find(node, tokens, this.#ids);
    this.#count = count;
    this.#parts.pages.pin(this.#ids, count);
  }

  forget(): void {
    this.#parts.pages.unpin(this.#ids, this.#count);
    this.#count = 0;
  }

  /** How many of them the idle slot maps already, from the first on. */
  sharedPages(slot: number): number {
    return this.#parts.pages.agree(slot, this.#ids, this.#count);
  }

  /**
   * Maps them behind the slot's first `shared`. Where mappings are short it copies them, into pages that map side by
   * side. Throws what the driver says; then the slot has what it had, or pages of its own behind that.
   */
  mapInto(slot: number, { tenant, shared, earmarked, tokens }: FoundPlan): void {
    const { pages, makeRoom } = this.#parts;
    const count = this.#count;
    try {
      this.#native.admit(slot, tenant, this.#ids, shared, count, 0, earmarked, -1, -1, 0, undefined);
      pages.join(slot, this.#ids, count);
    } catch (error) {
      if (!isKvError(error, 'KV_OUT_OF_MAPPINGS') || shared === count) throw error;
      makeRoom(count - shared);
      this.#native.admit(slot, tenant, this.#ids, shared, shared, count, earmarked, -1, -1, 0, undefined);
      pages.nameNew(slot, count);
      for (let index = shared; index < count; index += 1) {
        const page = this.#ids[index]!;
        this.#native.copy(slot, index, pages.mapperOf(page, this.#isReadable), page, tokens);
      }
    }
  }
}
