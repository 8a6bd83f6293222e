// RowSupply: gets rows for slots and takes idle ones back. It turns "these slots need rows" into room in the pool
// (reclaiming what no sequence needs), a transaction of the addon, and errors with all their numbers. It
// decides nothing about sequences. A refusal for want of pages changes nothing: what can be had is counted before
// anything is taken.

import { createError, isKvError } from '../base/errors.js';
import { cacheNews, type NativeCache } from '../device/native.js';
import type { PagePool, PageUser } from '../device/page-pool.js';
import type { Layout } from '../layout/layout.js';
import type { CachedRows } from './cached-rows.js';
import type { IdleSlots } from './slot-choice.js';
import { noForeignRow, type SlotMemory, type Slots, slotStates } from './slots.js';

/** Tokens before `tokens` in the row behind those that a sequence shares, copied from the row `id`; 0: nothing is. */
export interface TailCopy {
  /** Slot that they are read in; -1: one that maps the row once there is room, or else where the row is kept. */
  readonly source: number;
  readonly id: number;
  readonly tokens: number;
  /** On which the copy is queued; undefined: it is done when the slot is admitted. */
  readonly stream: bigint | undefined;
}

/** Rows that idle slots map without text in them. */
export interface IdleRowsRules {
  /** Rows that the idle slot with most of them is to have. */
  readonly eagerRows: number;
  readonly idleRowsLimit: number;
}

/** What an admitted sequence gets: see `RowSupply.admit`. */
export interface Admittance {
  readonly ids: Int32Array;
  readonly from: number;
  readonly to: number;
  readonly rows: number;
  readonly earmarkedRows: number;
  /** Tokens of the prompt, if pages are set aside for them. */
  readonly earmarkedTokens: number;
  readonly copy: TailCopy;
}

/**
 * What work lacks: rows, the pages that it maps or sets aside, those of them that are not set aside for it, and
 * mappings.
 */
interface Missing {
  readonly rows: number;
  readonly pages: number;
  readonly unearmarkedPages: number;
  /** Default: as many as pages. */
  readonly mappings?: number;
}

/** Slots with rows that no sequence needs. */
export interface SurplusSlots extends IdleSlots {
  /** By slot: rows that hold nothing that is needed: all of a retired slot, the unused tail of an active one. */
  readonly surplusRows: Int32Array;
  /** By slot: 1 where a sequence uses it, so that only its tail is surplus. */
  readonly isActive: Uint8Array;
}

/**
 * The slot that rows are taken from first. Rows that no new sequence can be given in place go before others: the unused
 * tails of active slots, then those behind the text of retired ones, the longest first. Then retired slots that hold
 * nothing, the one with fewest rows first, so that a long prompt finds many in one slot; among equals the one released
 * longest ago. On a trace whose memory is full this maps a sixth less than taking retired slots in the order of their
 * release. At least one is given.
 */
export function tailsFirst({ count, slots, rows, surplusRows, isActive, lastUsed }: SurplusSlots): number {
  const rank = (slot: number): number => (isActive[slot] === 1 ? 0 : surplusRows[slot]! < rows[slot]! ? 1 : 2);
  let best = slots[0]!;
  for (let index = 1; index < count; index += 1) {
    const slot = slots[index]!;
    const moreRows = surplusRows[best]! - surplusRows[slot]!;
    const order = rank(slot) - rank(best) || (rank(slot) < 2 ? moreRows : -moreRows)
      || lastUsed[slot]! - lastUsed[best]!;
    if (order < 0) best = slot;
  }
  return best;
}

const noSlots: readonly number[] = [];

export class RowSupply implements PageUser {
  readonly #native: NativeCache;
  readonly #pool: PagePool;
  readonly #layout: Layout;
  readonly #slots: Slots;
  readonly #cached: CachedRows;
  readonly #memory: SlotMemory;
  readonly #idle: SurplusSlots;
  readonly #idleRules: IdleRowsRules;
  readonly #pair = new Int32Array(2);
  #heldSlot = -1;
  /** The idle slot that rows were requested for last, or -1. */
  #eagerSlot = -1;

  constructor(memory: SlotMemory, cached: CachedRows, idleRules: IdleRowsRules) {
    const { native, pool, layout, slots } = memory;
    this.#native = native;
    this.#pool = pool;
    this.#layout = layout;
    this.#slots = slots;
    this.#cached = cached;
    this.#memory = memory;
    this.#idleRules = idleRules;
    this.#idle = {
      count: 0, slots: new Int32Array(slots.count), rows: slots.rows, surplusRows: new Int32Array(slots.count),
      isActive: new Uint8Array(slots.count), lastUsed: slots.lastUsed,
    };
  }

  /**
   * Maps what the `count` pairs [slot, rows] lack, and what the layer sets with windows have listed, all or nothing.
   * Where the driver refuses, some may have rows ahead of need.
   */
  grow(pairs: Int32Array, count: number): void {
    const { windows } = this.#memory;
    this.#pool.driver.checkAlive();
    this.#attempt(pairs, count, () => {
      const beside = windows.missing();
      const { rows, pages, earmarkedPages } = this.#missing(pairs, count);
      return {
        rows: rows + beside.rows, pages: pages + beside.pages,
        unearmarkedPages: pages - earmarkedPages + beside.pages - beside.earmarkedPages,
      };
    }, () => {
      if (count > 0) this.#native.grow(pairs, count);
      windows.grow();
    });
  }

  /**
   * Gives an idle slot what a new sequence needs, all or nothing: the rows ids[from … to) mapped behind its own,
   * rows of its own up to `rows`, pages set aside up to `earmarkedRows`, and a copy (see NativeCache.admit); and pages
   * for a prompt in layer sets with windows. Its own rows are not reclaimed for it.
   */
  admit(
    slot: number, tenant: bigint, { ids, from, to, rows, earmarkedRows, earmarkedTokens, copy }: Admittance,
  ): void {
    const layout = this.#layout;
    const { windows } = this.#memory;
    const windowPages = windows.pagesOfPrompt(earmarkedTokens);
    const missing = (): Missing => {
      const mapped = this.#slots.rows[slot]!;
      const before = Math.max(mapped, to);
      const after = Math.max(before, rows, earmarkedRows);
      const grown = Math.max(before, rows);
      return {
        rows: after - before, pages: layout.pagesBetween(before, grown),
        unearmarkedPages: layout.pagesBetween(before, after) + windowPages,
        mappings: layout.pagesBetween(mapped, grown),
      };
    };
    this.#hold(slot, () => {
      this.#attempt(noSlots, 0, missing, () => {
        const source = copy.source >= 0 || copy.id < 0 ? copy.source : this.#cached.registry.slotOf(copy.id);
        try {
          windows.admit(slot, earmarkedTokens, tenant);
          this.#native.admit(
            slot, tenant, ids, from, to, rows, earmarkedRows, source, copy.id, copy.tokens, copy.stream);
        } catch (error) {
          windows.giveBackEarmark(slot);
          throw error;
        }
      });
    });
  }

  /**
   * Calls `work`, which needs `pages` pages for the slot that are not set aside for it, with room for them; also from
   * its own unused tail.
   */
  withRoom(slot: number, pages: number, work: () => void): void {
    this.#attempt([slot], 1, () => ({ rows: 1, pages, unearmarkedPages: pages }), work);
  }

  /**
   * Throws KV_OUT_OF_PAGES unless running sequences can need `pages` pages more than now, which are for `rows` rows.
   * Takes nothing. Unless there are plenty, the mappers stop until the next request, so that no page is counted while
   * it is being mapped.
   */
  checkObtainable(pages: number, rows: number, slots: readonly number[] = []): void {
    if (pages > 0 && !this.canObtain(pages)) throw this.#outOfPages(slots, rows, pages);
  }

  /**
   * Whether running sequences can need so many pages more than now, as far as the last `synchronize` knows. Takes
   * nothing.
   */
  canObtain(pages: number): boolean {
    // what is short all the same, the growth says
    if (this.#memory.news[cacheNews.availablePages]! >= 2 * pages) return true;
    this.#pool.quiesce();
    return this.#pool.obtainablePages() >= pages;
  }

  /**
   * How many of the pages that `lack` counts could be had only by evicting prefixes; -1: not even so. Takes nothing.
   */
  missingWithoutEviction(lack: () => number, heldSlot: number): number {
    if (lack() <= this.#memory.news[cacheNews.availablePages]!) return 0;
    let missing = -1;
    this.#hold(heldSlot, () => {
      this.#pool.quiesce();
      const pages = lack();
      const obtainable = this.#pool.obtainablePages();
      if (obtainable >= pages) missing = Math.max(0, pages - (obtainable - this.#cached.evictablePages()));
    });
    return missing;
  }

  /**
   * Takes rows of retired slots that hold no prefix, then evicts prefixes, so that the mapper finds so many free pages,
   * as far as that goes: it reclaims none itself. Tails of running sequences stay, which would ask for them again.
   */
  makeFree(pages: number): void {
    let missing = pages - this.#pool.native.available();
    if (missing > 0) missing -= this.#reclaimSurplus(missing, false);
    const evictable = missing > 0 ? this.#cached.evictablePages() : 0;
    if (evictable > 0) this.#cached.evict(Math.min(missing, evictable));
  }

  quiesce(): void {
    this.#native.quiesce();
    this.#memory.windows.quiesce();
  }

  reclaimablePages(): number {
    this.#collect(true);
    let pages = this.#cached.evictablePages() + this.#memory.windows.surplusPages();
    for (let index = 0; index < this.#idle.count; index += 1) pages += this.#pagesOfSurplus(this.#idle.slots[index]!);
    return pages;
  }

  withheldPages(): number {
    return this.#cached.withheld.idlePages() + this.#quarantinedPages();
  }

  withholdsForNow(): boolean {
    return this.#cached.withheld.isPassing;
  }

  reclaim(pages: number): number {
    let freed = this.#reclaimSurplus(pages);
    if (freed < pages) freed += this.#memory.windows.reclaim(pages - freed);
    if (freed < pages) freed += this.#cached.evict(pages - freed);
    return freed;
  }

  unmapIdle(pages: number): number {
    const unmapped = this.#cached.unmapContents(pages);
    return unmapped < pages ? unmapped + this.reclaim(pages - unmapped) : unmapped;
  }

  /**
   * Requests rows for the idle slot that has most, if none has enough for the next prompt; no more than idle slots may
   * have together.
   */
  keepEager(): void {
    const { eagerRows, idleRowsLimit } = this.#idleRules;
    if (eagerRows === 0) return;
    const { native, slots } = this.#memory;
    const best = this.#cached.choice.fullestBlank();
    if (best < 0) return;
    const rows = Math.min(eagerRows, slots.rows[best]! + idleRowsLimit - this.#cached.choice.blankRows());
    if (slots.rows[best]! >= rows) return;
    this.#eagerSlot = best;
    this.#pair[0] = best;
    this.#pair[1] = rows;
    native.request(this.#pair, 1);
  }

  /** Unmaps what idle slots have beyond the limit. Throws what the driver throws. */
  keepToLimit(): void {
    const { idleRowsLimit } = this.#idleRules;
    if (idleRowsLimit === Number.MAX_SAFE_INTEGER) return;
    // until `keepEager`
    if (this.#eagerSlot >= 0 && this.#slots.isFree(this.#eagerSlot)) this.#native.cancel(this.#eagerSlot);
    this.#limitIdleRows(idleRowsLimit);
  }

  /** Takes rows of retired slots that hold no prefix back until they have at most `limit` together. */
  #limitIdleRows(limit: number): void {
    this.#collect(false);
    let rows = 0;
    for (let index = 0; index < this.#idle.count; index += 1) rows += this.#idle.surplusRows[this.#idle.slots[index]!]!;
    while (rows > limit && this.#idle.count > 0) {
      const before = rows;
      const slot = tailsFirst(this.#idle);
      rows -= this.#shrink(slot, Math.min(rows - limit, this.#idle.surplusRows[slot]!));
      if (rows === before) return;
    }
  }

  /** Pages that idle slots map which the driver has ruined: text in them cannot be evicted either. */
  #quarantinedPages(): number {
    const { state, rows, isQuarantined, count } = this.#slots;
    let pages = this.#memory.windows.quarantinedPages();
    for (let slot = 0; slot < count; slot += 1) {
      if (isQuarantined[slot] === 1 && state[slot] === slotStates.idle) pages += this.#layout.pagesFor(rows[slot]!);
    }
    return pages;
  }

  #reclaimSurplus(pages: number, withActive = true): number {
    this.#collect(withActive);
    let freed = 0;
    while (freed < pages && this.#idle.count > 0) {
      freed += this.#takeFromOne(Math.ceil((pages - freed) / this.#layout.pagesPerRow));
    }
    return freed;
  }

  /** Candidates for reclaim: slots with rows that no sequence needs. */
  #collect(withActive: boolean): void {
    const { state, rows, isQuarantined, count } = this.#slots;
    this.#memory.synchronize();
    this.#idle.count = 0;
    for (let slot = 0; slot < count; slot += 1) {
      if (rows[slot] === 0 || isQuarantined[slot] === 1 || slot === this.#heldSlot) continue;
      if (this.#slots.foreignRow[slot] !== noForeignRow) continue; // they go another way
      const isActive = state[slot] === slotStates.active;
      if (isActive ? !withActive : state[slot] !== slotStates.idle) continue;
      const needed = isActive ? this.#slots.neededRows(slot) : 0;
      const surplus = rows[slot]! - Math.max(needed, this.#cached.registry.namedRows(slot));
      if (surplus > 0) this.#add(slot, surplus, isActive ? 1 : 0);
    }
  }

  #add(slot: number, surplusRows: number, isActive: 0 | 1): void {
    this.#idle.slots[this.#idle.count] = slot;
    this.#idle.surplusRows[slot] = surplusRows;
    this.#idle.isActive[slot] = isActive;
    this.#idle.count += 1;
  }

  /** Frees up to `rows` rows of one slot; returns the pages freed. */
  #takeFromOne(rows: number): number {
    const slot = tailsFirst(this.#idle);
    const before = this.#layout.pagesFor(this.#slots.rows[slot]!);
    this.#shrink(slot, Math.min(rows, this.#idle.surplusRows[slot]!));
    return before - this.#layout.pagesFor(this.#slots.rows[slot]!);
  }

  /** Unmaps `rows` rows from the slot's end and drops it from the candidates when it has no surplus left. */
  #shrink(slot: number, rows: number): number {
    const taken = this.#memory.unmap(slot, this.#slots.rows[slot]! - rows);
    const left = this.#idle.surplusRows[slot]! -= taken;
    if (left <= 0) {
      const index = this.#idle.slots.indexOf(slot);
      this.#idle.count -= 1;
      this.#idle.slots[index] = this.#idle.slots[this.#idle.count]!;
    }
    return taken;
  }

  /** Work for a slot whose own rows are not to be reclaimed meanwhile. */
  #hold(slot: number, work: () => void): void {
    this.#heldSlot = slot;
    try {
      work();
    } finally {
      this.#heldSlot = -1;
    }
  }

  /**
   * Calls `work` with room for what is missing, and again after making more of what the driver says is short. A mapper
   * may have taken the room in between, or have in its hands what is missing: before that, all mappers of the pool stop
   * until the next request.
   */
  #attempt(
    pairs: ArrayLike<number>, count: number,
    missing: () => Missing, work: () => void,
  ): void {
    for (let attempt = 1; ; attempt += 1) {
      const { rows, pages, unearmarkedPages, mappings = pages } = missing();
      try {
        if (unearmarkedPages > 0 && !this.#pool.makeRoom(unearmarkedPages, this)) {
          throw this.#outOfPages(slotsIn(pairs, count), rows, unearmarkedPages);
        }
        work();
        return;
      } catch (error) {
        this.#pool.quiesce();
        if (this.#isWorthAnother(attempt, error, pages, mappings)) continue;
        if (isKvError(error, 'KV_OUT_OF_DEVICE_MEMORY')) throw this.#outOfDeviceMemory(error);
        if (isKvError(error, 'KV_OUT_OF_PAGES')) throw this.#outOfPages(slotsIn(pairs, count), rows, unearmarkedPages);
        throw error;
      }
    }
  }

  #pagesOfSurplus(slot: number): number {
    const rows = this.#slots.rows[slot]!;
    return this.#layout.pagesBetween(rows - this.#idle.surplusRows[slot]!, rows);
  }

  /** Rows and pages the pairs lack, and how many of the pages were earmarked. */
  #missing(pairs: Int32Array, count: number): { rows: number; pages: number; earmarkedPages: number } {
    let rows = 0;
    let pages = 0;
    let earmarkedPages = 0;
    for (let index = 0; index < count; index += 1) {
      const slot = pairs[2 * index]!;
      const target = pairs[2 * index + 1]!;
      rows += Math.max(0, target - this.#slots.rows[slot]!);
      pages += this.#slots.missingPages(slot, target);
      earmarkedPages += this.#slots.earmarkedPages(slot, target);
    }
    return { rows, pages, earmarkedPages };
  }

  /** Makes room for another attempt, of the kind that `error` says was missing. */
  #isWorthAnother(attempt: number, error: unknown, pages: number, mappings: number): boolean {
    if (isKvError(error, 'KV_OUT_OF_PAGES')) return attempt === 1;
    if (isKvError(error, 'KV_OUT_OF_DEVICE_MEMORY')) return attempt <= 2 && this.#pool.makeRoomInFreePages(pages, this);
    return isKvError(error, 'KV_OUT_OF_MAPPINGS') && this.#pool.makeRoomForMappings(mappings, this);
  }

  #outOfPages(slots: readonly number[], needRows: number, needPages: number): Error {
    const pagesPerRow = this.#layout.pagesPerRow + this.#memory.windows.pagesPerRow;
    const havePages = this.#pool.obtainablePages();
    return createError('KV_OUT_OF_PAGES', {
      needRows, haveRows: Math.floor(havePages / pagesPerRow), needPages, havePages, pagesPerRow,
      budgetBytes: this.#pool.memoryBudgetBytes, pageBytes: this.#layout.pageBytes,
      slots,
    });
  }

  #outOfDeviceMemory(error: { readonly details: { readonly createdPages: number } } & Error): Error {
    return createError('KV_OUT_OF_DEVICE_MEMORY', {
      pageBytes: this.#layout.pageBytes, createdPages: error.details.createdPages,
      budgetPages: this.#pool.counts().budgetPages, freeBytes: this.#pool.driver.memory().freeBytes,
      headroomBytes: this.#pool.headroomBytes || undefined,
    }, { cause: error });
  }
}

function slotsIn(pairs: ArrayLike<number>, count: number): number[] {
  return Array.from({ length: count }, (_, index) => pairs[2 * index]!);
}
