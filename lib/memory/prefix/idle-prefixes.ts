// IdlePrefixes: the cached texts whose rows idle slots still map, and how those rows end. A slot that becomes idle keeps what it
// has of its text, for whoever goes on there; what the index drops (`dropped`) is forgotten everywhere, and evicting until
// pages are free is asked of it. Which rows are dropped is the index's business, who gets an idle slot Admission's.
//
// Invariants: what an idle slot maps is either listed content or its alone, except while it is `overfull`; a row that the
// index holds is kept by the addon.

import type { DroppedRows } from '../../policy/prefix/dropped-rows.js';
import type { PrefixIndex } from '../../policy/prefix/prefix-index.js';
import type { RowArithmetic } from '../../policy/prefix/row-arithmetic.js';
import { IdleContents } from './idle-contents.js';
import type { Layout } from '../layout.js';
import type { NativeCache } from '../native.js';
import type { PagePool } from '../page-pool.js';
import type { SequenceTexts } from './sequence-texts.js';
import type { SharedRows } from './shared-rows.js';
import { noForeignRow, sharedTails, type SlotTable } from '../slot-table.js';
import { unmapRows } from '../unmap-rows.js';
import type { SlotViews } from '../views.js';

export interface IdlePrefixesParts {
  readonly native: NativeCache;
  readonly pool: PagePool;
  readonly layout: Layout;
  readonly table: SlotTable;
  readonly views: SlotViews;
  readonly index: PrefixIndex;
  readonly shared: SharedRows;
  readonly texts: SequenceTexts;
  /** How tokens fall into groups of rows, the rows of the index. */
  readonly groups: RowArithmetic;
  /** Hears of the rows that the index has dropped, before they are forgotten. */
  readonly onDropped: (dropped: DroppedRows) => void;
}

export class IdlePrefixes {
  readonly #parts: IdlePrefixesParts;
  readonly #contents: IdleContents;
  readonly #pagesPerGroup: number;
  /** Idle slots that map more than their content, and how many groups that is at most; they are in no list until that is mended. */
  readonly #overfull = new Map<number, number>();

  constructor(parts: IdlePrefixesParts) {
    this.#parts = parts;
    this.#contents = new IdleContents(parts.shared, parts.table.count);
    this.#pagesPerGroup = parts.layout.pagesFor(parts.layout.groupRows);
  }

  /** An idle slot whose content ends with this group, or -1. */
  endingIn(id: number): number {
    return this.#contents.endingIn(id);
  }

  /** Rows of an idle slot that are not its alone. */
  contentRows(slot: number): number {
    return this.#parts.shared.namedRows(slot);
  }

  /** Pages that evicting the whole pool would free. What a sequence took back may still be mapped in its slot. */
  evictablePages(): number {
    const { index, table, layout, shared } = this.#parts;
    let groups = index.pooledRows;
    let overfullPages = 0;
    for (const [slot, content] of this.#overfull) {
      overfullPages += Math.max(0, layout.pagesFor(table.rows[slot]!) - this.pagesOfGroups(content));
    }
    for (let slot = 0; slot < table.count; slot += 1) {
      if (this.#isTailPooled(slot)) groups -= 1;
      // What a running sequence gave up is mapped there until no queued work uses it.
      if (table.foreignRow[slot] !== noForeignRow) {
        groups -= Math.ceil(Math.max(0, table.rows[slot]! - table.foreignRow[slot]!) / layout.groupRows);
      }
    }
    return Math.max(0, overfullPages + groups * this.#pagesPerGroup - shared.missingPages);
  }

  /** Pages of so many groups of the pool. */
  pagesOfGroups(groups: number): number {
    return groups * this.#pagesPerGroup;
  }

  /** Evicts until `pages` pages are free that were not, or nothing is left to evict; returns how many are. */
  evict(pages: number): number {
    const { index, pool } = this.#parts;
    const before = pool.native.available();
    this.#settle(true);
    let freed = pool.native.available() - before;
    while (freed < pages && index.evict(Math.ceil((pages - freed) / this.#pagesPerGroup)) > 0) {
      this.#settle(true);
      freed = pool.native.available() - before;
    }
    return freed;
  }

  /** Evicts about `pages` pages, which stay where they are mapped: they are rows of idle slots, for whoever gets those. */
  evictInPlace(pages: number): void {
    this.#parts.index.evict(Math.ceil(pages / this.#pagesPerGroup));
    this.#settle(false);
  }

  /**
   * Lets go of cached rows whose tokens running sequences have in rows of their own too: those are cached in their place. Answers
   * whether pages have become free, or more can be evicted. Throws as `settle`.
   */
  replaceDuplicates(): boolean {
    const { index, pool, table, shared } = this.#parts;
    const { pooledRows } = index;
    const available = pool.native.available();
    this.settle();
    index.replaceDuplicates((id) => shared.slotsOf(id).every((slot) => table.isFree(slot)));
    for (let at = 0; at < index.dropped.count; at += 1) {
      for (const slot of shared.slotsOf(index.dropped.row(at))) if (this.#contents.has(slot)) this.#exceed(slot, shared.namedGroups(slot));
    }
    this.#settle(true);
    return pool.native.available() > available || index.pooledRows > pooledRows;
  }

  /** Unmaps what idle slots share, longest idle first, until `pages` mappings are gone. The prefixes stay cached. */
  unmapContents(pages: number): number {
    const { table, layout } = this.#parts;
    let unmapped = 0;
    while (unmapped < pages) {
      let oldest = -1;
      for (let slot = 0; slot < table.count; slot += 1) {
        if (!this.#contents.has(slot)) continue;
        if (oldest < 0 || table.lastUsed[slot]! < table.lastUsed[oldest]!) oldest = slot;
      }
      if (oldest < 0) break;
      unmapped += layout.pagesFor(table.rows[oldest]!);
      this.vacate(oldest, 0);
    }
    return unmapped;
  }

  /**
   * A slot that became idle keeps the first groups that the index holds, for whoever goes on there. `wholeGroups` of them are
   * full; a last one that is not, and that another slot maps too, cannot be gone on in.
   */
  add(slot: number, wholeGroups: number): void {
    const { table, shared } = this.#parts;
    const held = this.#heldGroups(slot);
    const isTailShared = held > wholeGroups && shared.mappersOf(shared.idsOf(slot)[held - 1]!) > 1;
    const groups = isTailShared ? wholeGroups : held;
    if (table.foreignRow[slot] === noForeignRow && shared.isAlone(slot, groups)) {
      shared.leave(slot, groups);
      this.#contents.add(slot, groups);
    } else {
      this.#overfull.set(slot, groups);
    }
  }

  /** The slot, which holds so many groups of a text, is idle again: whoever took it did not keep it. */
  putBack(slot: number, groups: number): void {
    this.#contents.add(slot, groups);
  }

  /** The slot is taken as it is, its content with it. */
  take(slot: number): void {
    this.#contents.remove(slot);
  }

  /** Takes an idle slot out of the list of contents and unmaps its rows behind the first `groups` groups. */
  vacate(slot: number, groups: number): void {
    const { layout, shared } = this.#parts;
    this.#contents.remove(slot);
    this.#overfull.set(slot, groups);
    unmapRows(this.#parts, slot, groups * layout.groupRows);
    shared.leave(slot, groups);
    this.#overfull.delete(slot);
  }

  /**
   * Forgets what the index has dropped, as far as nobody else uses it. Where idle slots alone map it, it is theirs, for whoever
   * gets them; other rows are unmapped or free. Throws the driver's first refusal, at the end; what could not be unmapped is
   * tried again next time.
   */
  settle(): void {
    this.#settle(false);
  }

  #settle(mustUnmap: boolean): void {
    const { index, table, shared, onDropped } = this.#parts;
    const { dropped } = index;
    if (dropped.count === 0 && this.#overfull.size === 0) return;
    if (dropped.count > 0) onDropped(dropped);
    for (let at = 0; at < dropped.count; at += 1) this.#shortenContents(dropped.row(at));
    let failure: { readonly error: unknown } | undefined;
    for (const [slot, content] of this.#overfull) {
      if (table.isQuarantined[slot] === 1) { // nobody gets it, and `close` unmaps it
        this.#overfull.delete(slot);
        continue;
      }
      try {
        const groups = Math.min(content, this.#heldGroups(slot));
        const isAlone = table.foreignRow[slot] === noForeignRow && shared.isAlone(slot, groups);
        if (mustUnmap || !isAlone) this.vacate(slot, groups);
        else shared.leave(slot, groups);
        this.#overfull.delete(slot);
        this.#contents.add(slot, groups);
      } catch (error) {
        failure ??= { error };
      }
    }
    for (let at = 0; at < dropped.count; at += 1) shared.dropIfUnused(dropped.row(at));
    shared.flush();
    dropped.clear();
    if (failure !== undefined) throw failure.error;
  }

  /** Whether a sequence has taken back tokens of a row that it still maps, and that others' text keeps in the pool. */
  #isTailPooled(slot: number): boolean {
    const { index, table, shared, texts, groups } = this.#parts;
    if (table.sharedTail[slot] !== sharedTails.truncated) return false;
    const tail = groups.wholeRows(table.length[slot]!);
    if (tail >= shared.namedGroups(slot) || !index.isHolding(shared.idsOf(slot)[tail]!)) return false;
    const path = texts.of(slot)?.path;
    return path === undefined || !index.isWritable(path, tail);
  }

  /** Idle slots that end with a group that was dropped have too much. */
  #shortenContents(id: number): void {
    for (let slot = this.#contents.endingIn(id); slot >= 0; slot = this.#contents.endingIn(id)) {
      this.#exceed(slot, this.#parts.shared.groupOf(id));
    }
  }

  /** The idle slot maps more than its content, which is its first `groups` groups at most. */
  #exceed(slot: number, groups: number): void {
    this.#contents.remove(slot);
    this.#overfull.set(slot, groups);
  }

  /** The slot's first groups that the index holds. */
  #heldGroups(slot: number): number {
    const { index, shared } = this.#parts;
    const ids = shared.idsOf(slot);
    let groups = 0;
    while (groups < shared.namedGroups(slot) && index.isHolding(ids[groups]!)) groups += 1;
    return groups;
  }
}
