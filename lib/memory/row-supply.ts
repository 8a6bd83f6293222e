// RowSupply: gets rows for slots and takes idle ones back. It turns "these slots need rows" into room in the pool (reclaiming
// by policy what nobody needs), a transaction of the addon, and errors with all their numbers. It decides nothing about
// sequences. A refusal for want of pages changes nothing: what can be had is counted before anything is taken.

import { createError, isKvError } from '../errors/index.js';
import type { IdleSlots } from '../policy/idle-slots.js';
import type { ReclaimPolicy } from '../policy/reclaim.js';
import type { Layout } from './layout.js';
import type { NativeCache } from './native.js';
import type { PagePool, PageUser } from './page-pool.js';
import { slotStates, type SlotTable } from './slot-table.js';
import type { SlotViews } from './views.js';

export class RowSupply implements PageUser {
  readonly #native: NativeCache;
  readonly #pool: PagePool;
  readonly #layout: Layout;
  readonly #table: SlotTable;
  readonly #views: SlotViews;
  readonly #policy: ReclaimPolicy;
  readonly #idle: IdleSlots;
  #heldSlot = -1;

  constructor(
    native: NativeCache, pool: PagePool, layout: Layout, table: SlotTable, views: SlotViews, policy: ReclaimPolicy,
  ) {
    this.#native = native;
    this.#pool = pool;
    this.#layout = layout;
    this.#table = table;
    this.#views = views;
    this.#policy = policy;
    this.#idle = {
      count: 0, slots: new Int32Array(table.count), rows: table.rows, surplusRows: new Int32Array(table.count),
      isActive: new Uint8Array(table.count), lastUsed: table.lastUsed,
    };
  }

  /** Maps what the `count` pairs [slot, rows] lack, all or nothing. */
  grow(pairs: Int32Array, count: number): void {
    this.#pool.driver.checkAlive();
    for (let attempt = 1; ; attempt += 1) {
      const { rows, pages, promisedPages } = this.#missing(pairs, count);
      try {
        if (!this.#pool.makeRoom(pages - promisedPages, this)) throw this.#outOfPages(pairs, count, rows, pages - promisedPages);
        this.#native.grow(pairs, count);
        this.#native.publish();
        return;
      } catch (error) {
        this.#quiesce();
        if (this.#isWorthAnother(attempt, error, pages)) continue;
        if (isKvError(error, 'KV_OUT_OF_DEVICE_MEMORY')) throw this.#outOfDeviceMemory(error);
        throw error;
      }
    }
  }

  /** Sets pages aside until the slot has `rows` rows; the slot's own rows are not reclaimed for it. */
  promise(slot: number, rows: number): void {
    this.#heldSlot = slot;
    try {
      for (let attempt = 1; ; attempt += 1) {
        const pages = this.#table.missingPages(slot, rows);
        try {
          if (!this.#pool.makeRoom(pages, this)) throw this.#outOfPages([], 0, rows - this.#table.rows[slot]!, pages);
          this.#native.promise(slot, rows);
          return;
        } catch (error) {
          this.#quiesce();
          if (!this.#isWorthAnother(attempt, error, pages)) throw error;
        }
      }
    } finally {
      this.#heldSlot = -1;
    }
  }

  quiesce(): void {
    this.#native.quiesce();
  }

  reclaimablePages(): number {
    this.#collect(true);
    let pages = 0;
    for (let index = 0; index < this.#idle.count; index += 1) pages += this.#pagesOfSurplus(this.#idle.slots[index]!);
    return pages;
  }

  reclaim(pages: number): number {
    this.#collect(true);
    let freed = 0;
    while (freed < pages && this.#idle.count > 0) {
      freed += this.#takeFromOne(Math.ceil((pages - freed) / this.#layout.pagesPerRow));
    }
    return freed;
  }

  /** Takes rows of retired slots back until they have at most `limit` together. */
  limitIdleRows(limit: number): void {
    this.#collect(false);
    let rows = 0;
    for (let index = 0; index < this.#idle.count; index += 1) rows += this.#table.rows[this.#idle.slots[index]!]!;
    while (rows > limit && this.#idle.count > 0) {
      const before = rows;
      const slot = this.#choose(rows - limit);
      rows -= this.#shrink(slot, Math.min(rows - limit, this.#table.rows[slot]!));
      if (rows === before) return;
    }
  }

  /** Candidates for placement: idle slots, mapped or not. */
  collectFree(): IdleSlots {
    const { rows, count } = this.#table;
    this.#idle.count = 0;
    for (let slot = 0; slot < count; slot += 1) {
      if (this.#table.isFree(slot)) this.#add(slot, rows[slot]!, 0);
    }
    return this.#idle;
  }

  /** Candidates for reclaim: slots with rows that nobody needs. */
  #collect(withActive: boolean): void {
    const { state, rows, isQuarantined, count } = this.#table;
    this.#native.publish();
    this.#idle.count = 0;
    for (let slot = 0; slot < count; slot += 1) {
      if (rows[slot] === 0 || isQuarantined[slot] === 1 || slot === this.#heldSlot) continue;
      if (state[slot] === slotStates.idle) {
        this.#add(slot, rows[slot]!, 0);
      } else if (withActive && state[slot] === slotStates.active) {
        const surplus = rows[slot]! - this.#table.neededRows(slot);
        if (surplus > 0) this.#add(slot, surplus, 1);
      }
    }
  }

  #add(slot: number, surplusRows: number, isActive: 0 | 1): void {
    this.#idle.slots[this.#idle.count] = slot;
    this.#idle.surplusRows[slot] = surplusRows;
    this.#idle.isActive[slot] = isActive;
    this.#idle.count += 1;
  }

  #choose(rows: number): number {
    const slot = this.#policy(this.#idle, rows);
    for (let index = 0; index < this.#idle.count; index += 1) if (this.#idle.slots[index] === slot) return slot;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'KvCache', option: 'reclaim', expected: 'a function that returns one of the candidates',
      received: slot,
    });
  }

  /** Frees up to `rows` rows of the slot that the policy names; returns the pages freed. */
  #takeFromOne(rows: number): number {
    const slot = this.#choose(rows);
    const before = this.#layout.pagesFor(this.#table.rows[slot]!);
    this.#shrink(slot, Math.min(rows, this.#idle.surplusRows[slot]!));
    return before - this.#layout.pagesFor(this.#table.rows[slot]!);
  }

  /** Unmaps `rows` rows from the slot's end and drops it from the candidates when it has no surplus left. */
  #shrink(slot: number, rows: number): number {
    this.#native.cancel(slot);
    this.#views.revoke(slot);
    const before = this.#table.rows[slot]!;
    this.#native.shrink(slot, before - rows);
    this.#native.publish();
    const taken = before - this.#table.rows[slot]!;
    const left = this.#idle.surplusRows[slot]! -= taken;
    if (left <= 0) {
      const index = this.#idle.slots.indexOf(slot);
      this.#idle.count -= 1;
      this.#idle.slots[index] = this.#idle.slots[this.#idle.count]!;
    }
    return taken;
  }

  #pagesOfSurplus(slot: number): number {
    const rows = this.#table.rows[slot]!;
    return this.#layout.pagesFor(rows) - this.#layout.pagesFor(rows - this.#idle.surplusRows[slot]!);
  }

  /** Rows and pages the pairs lack, and how many of the pages were promised. */
  #missing(pairs: Int32Array, count: number): { rows: number; pages: number; promisedPages: number } {
    let rows = 0;
    let pages = 0;
    let promisedPages = 0;
    for (let index = 0; index < count; index += 1) {
      const slot = pairs[2 * index]!;
      const target = pairs[2 * index + 1]!;
      rows += Math.max(0, target - this.#table.rows[slot]!);
      pages += this.#table.missingPages(slot, target);
      promisedPages += this.#table.promisedPages(slot, target);
    }
    return { rows, pages, promisedPages };
  }

  /**
   * A mapper may have taken the room in between, or have in its hands what is missing here: stops all of them until the next
   * wish, so that from here on only this thread takes pages.
   */
  #quiesce(): void {
    this.#pool.quiesce();
    this.#native.publish();
  }

  /** Makes room for another attempt, of the kind that `error` says was missing. */
  #isWorthAnother(attempt: number, error: unknown, pages: number): boolean {
    if (isKvError(error, 'KV_OUT_OF_PAGES')) return attempt === 1;
    if (isKvError(error, 'KV_OUT_OF_DEVICE_MEMORY')) return attempt <= 2 && this.#pool.makeRoomInFreePages(pages, this);
    return isKvError(error, 'KV_OUT_OF_MAPPINGS') && this.#pool.makeRoomForMappings(pages, this);
  }

  #outOfPages(pairs: ArrayLike<number>, count: number, needRows: number, needPages: number): Error {
    const { pagesPerRow } = this.#layout;
    const havePages = this.#pool.obtainablePages();
    return createError('KV_OUT_OF_PAGES', {
      needRows, haveRows: Math.floor(havePages / pagesPerRow), needPages, havePages, pagesPerRow,
      budgetBytes: this.#pool.memoryBudgetBytes, pageBytes: this.#layout.pageBytes,
      slots: Array.from({ length: count }, (_, index) => pairs[2 * index]!),
    });
  }

  #outOfDeviceMemory(error: { readonly details: { readonly createdPages: number } } & Error): Error {
    return createError('KV_OUT_OF_DEVICE_MEMORY', {
      pageBytes: this.#layout.pageBytes, createdPages: error.details.createdPages,
      budgetPages: this.#pool.counts().budgetPages, freeBytes: this.#pool.driver.memory().freeBytes,
    }, { cause: error });
  }
}
