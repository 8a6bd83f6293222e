// IdlePrefixes: the cached texts whose rows idle slots still map, and how those rows end. A slot that becomes idle keeps what it
// has of its text, for whoever goes on there; what the index drops (`dropped`) is forgotten everywhere, and evicting until
// pages are free is asked of it. Which rows are dropped is the index's business, who gets an idle slot Admission's.
//
// Invariants: what an idle slot maps is either listed content or its alone, except while it is `overfull`; a row that the
// index holds is kept by the addon.

import type { DroppedRows } from '../prefix/row-ledger.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { PrefixPath } from '../prefix/prefix-path.js';
import { IdleContents } from './idle-contents.js';
import type { Layout } from '../layout/layout.js';
import type { NativeCache } from '../device/native.js';
import type { PagePool } from '../device/page-pool.js';
import type { SequenceTexts } from './sequence-texts.js';
import type { SharedRows } from './shared-rows.js';
import { noForeignRow, slotStates, type SlotTable } from './slot-table.js';
import { unmapRows } from './unmap-rows.js';
import type { SlotViews } from './views.js';

export interface IdlePrefixesParts {
  readonly native: NativeCache;
  readonly pool: PagePool;
  readonly layout: Layout;
  readonly table: SlotTable;
  readonly views: SlotViews;
  readonly index: PrefixIndex;
  readonly shared: SharedRows;
  readonly texts: SequenceTexts;
  /** Hears of the rows that the index has dropped, before they are forgotten. */
  readonly onDropped: (dropped: DroppedRows) => void;
}

export class IdlePrefixes {
  readonly #parts: IdlePrefixesParts;
  readonly #contents: IdleContents;
  readonly #pagesPerGroup: number;
  readonly #isSpare: (id: number) => boolean;
  /** Idle slots that map more than their content, and how many groups that is at most; they are in no list until that is mended. */
  readonly #overfull = new Map<number, number>();

  constructor(parts: IdlePrefixesParts) {
    this.#parts = parts;
    this.#contents = new IdleContents(parts.shared, parts.table.count);
    this.#pagesPerGroup = parts.layout.pagesFor(parts.layout.groupRows);
    this.#isSpare = (id) => parts.shared.usersOf(id) === 0;
  }

  /** An idle slot whose content ends with this group, or -1. */
  endingIn(id: number): number {
    return this.#contents.endingIn(id);
  }

  /** Rows of an idle slot that are not its alone. */
  contentRows(slot: number): number {
    return this.#parts.shared.namedRows(slot);
  }

  /** Pages of cached rows that no running sequence uses: what `evict` could free. */
  evictablePages(): number {
    const { shared } = this.#parts;
    let pages = shared.idlePages;
    for (const [id, { rows, users }] of this.#longTails()) {
      if (users === shared.usersOf(id)) pages += shared.pagesOf(id) - shared.pagesOf(id, rows);
    }
    return pages;
  }

  /** Evicts until `pages` pages are free that were not, or nothing is left to evict; returns how many are. */
  evict(pages: number): number {
    const { index, pool } = this.#parts;
    const before = pool.native.available();
    const freed = (): number => pool.native.available() - before;
    this.#settle(true);
    for (let hasReplaced = false; ;) {
      while (freed() < pages && index.evict(Math.ceil((pages - freed()) / this.#pagesPerGroup)) > 0) this.#settle(true);
      this.#trimTails();
      if (freed() >= pages || hasReplaced) return freed();
      hasReplaced = true;
      const longTails = this.#longTails();
      this.#replaceDuplicates((id) => this.#isSpare(id) || longTails.has(id));
      this.#partLongTails();
      this.#settle(true);
    }
  }

  /** Evicts about `pages` pages, which stay where they are mapped: they are rows of idle slots, for whoever gets those. */
  evictInPlace(pages: number): void {
    this.#parts.index.evict(Math.ceil(pages / this.#pagesPerGroup));
    this.#settle(false);
  }

  /** Lets go of cached rows that nobody uses and that running sequences have too, in rows of their own. Throws as `settle`. */
  replaceDuplicates(): void {
    this.#replaceDuplicates(this.#isSpare);
    this.#settle(true);
  }

  /** Evicts what is cached behind the path's tokens in the slot's group `tail`. Throws as `settle`. */
  claim(slot: number, tail: number, path: PrefixPath): void {
    const { index, shared } = this.#parts;
    const id = shared.idsOf(slot)[tail]!;
    this.#replaceDuplicates((other) => other === id || this.#isSpare(other));
    index.claim(path, tail);
    for (const other of shared.slotsOf(id)) if (this.#contents.has(other)) this.#exceed(other, tail);
    this.#settle(true);
    this.#trimTails();
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
    const { layout, table, shared } = this.#parts;
    this.#contents.remove(slot);
    this.#overfull.set(slot, groups);
    unmapRows(this.#parts, slot, groups * layout.groupRows);
    shared.leave(slot, groups);
    if (table.foreignRow[slot] === noForeignRow) shared.unmapped(slot);
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
        shared.start(slot);
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

  /**
   * Lets go of cached rows that `isSpare` says nobody uses and whose tokens running sequences have in rows of their own too: those
   * are cached in their place.
   */
  #replaceDuplicates(isSpare: (id: number) => boolean): void {
    const { index, table, layout, shared, texts } = this.#parts;
    for (let slot = 0; slot < table.count; slot += 1) {
      const path = texts.of(slot)?.path;
      if (path !== undefined && table.hasRoom(slot, path.length)) shared.name(slot, layout.rowsFor(path.length));
    }
    index.replaceDuplicates(isSpare);
    for (let at = 0; at < index.dropped.count; at += 1) {
      for (const slot of shared.slotsOf(index.dropped.row(at))) if (this.#contents.has(slot)) this.#exceed(slot, shared.namedGroups(slot));
    }
  }

  /** Last groups of slots in use with more rows than their tokens and promises need: by number, what the longest needs. */
  #longTails(): ReadonlyMap<number, { rows: number; users: number }> {
    const { table, shared, layout } = this.#parts;
    const tails = new Map<number, { rows: number; users: number }>();
    if (layout.groupRows === 1) return tails;
    for (let slot = 0; slot < table.count; slot += 1) {
      const last = shared.namedGroups(slot) - 1;
      if (table.state[slot] === slotStates.idle || last < 0) continue;
      const id = shared.idsOf(slot)[last]!;
      const isRunning = table.state[slot] === slotStates.active && table.isQuarantined[slot] === 0;
      const rows = Math.max(0, (isRunning ? table.neededRows(slot) : table.rows[slot]!) - last * layout.groupRows);
      if (rows >= shared.rowsOf(id)) continue;
      const tail = tails.get(id);
      tails.set(id, { rows: Math.max(rows, tail?.rows ?? 0), users: (tail?.users ?? 0) + 1 });
    }
    return tails;
  }

  /** What is cached behind the tokens of running sequences in groups with rows that they do not need can be evicted. */
  #partLongTails(): void {
    const { index, shared, texts } = this.#parts;
    for (const id of this.#longTails().keys()) {
      for (const slot of shared.slotsOf(id)) {
        const path = texts.of(slot)?.path;
        if (path !== undefined) index.splitAt(path);
      }
    }
  }

  /** Rows of running sequences' last groups that no text needs any more are theirs alone again. */
  #trimTails(): void {
    const { table, layout, shared } = this.#parts;
    for (const [id, { rows, users }] of this.#longTails()) {
      if (users !== shared.mappersOf(id) || rows === 0) continue;
      const slots = shared.slotsOf(id);
      const first = shared.groupOf(id) * layout.groupRows;
      const longest = slots.find((slot) => table.rows[slot]! >= first + rows);
      if (longest === undefined) continue;
      if (!shared.isHeld(id) || slots.some((slot) => this.#endsIn(slot, id))) shared.trim(longest, rows);
    }
  }

  /** Whether all that is cached in the group are tokens of the slot's sequence. */
  #endsIn(slot: number, id: number): boolean {
    const path = this.#parts.texts.of(slot)?.path;
    return path !== undefined && this.#parts.index.isWritable(path, this.#parts.shared.groupOf(id));
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
    return index.countHeld(shared.idsOf(slot), shared.namedGroups(slot));
  }
}
