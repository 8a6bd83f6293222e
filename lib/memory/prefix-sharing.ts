// PrefixSharing: what joins the prefix index (tokens and numbers of rows) with the memory (slots and pages). It tells the
// index what sequences commit, lets slots join and leave shared rows, keeps idle slots adoptable, and takes rows that the
// index drops out of memory. It decides nothing: the index finds and evicts, Admission chooses the slot.
//
// Invariants: a row that the index holds is kept by the addon; no slot writes to a row that another slot maps, or behind
// whose written tokens another text goes on; what an idle slot maps is either listed content, or its alone.

import { createError } from '../errors/index.js';
import type { DroppedRows } from '../policy/prefix/dropped-rows.js';
import type { PrefixIndex } from '../policy/prefix/prefix-index.js';
import type { RowArithmetic } from '../policy/prefix/row-arithmetic.js';
import { IdleContents } from './idle-contents.js';
import type { Layout } from './layout.js';
import type { NativeCache } from './native.js';
import type { PagePool } from './page-pool.js';
import type { SequenceText, SequenceTexts } from './sequence-texts.js';
import type { SharedRows } from './shared-rows.js';
import { slotStates, type SlotTable } from './slot-table.js';
import { unmapRows } from './unmap-rows.js';
import type { SlotViews } from './views.js';

export interface SharingParts {
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

/** How a slot came to share the row that it writes to next. */
export const sharedTails = { none: 0, forked: 1, truncated: 2 } as const;

export class PrefixSharing {
  readonly contents: IdleContents;
  readonly #parts: SharingParts;
  readonly #pagesPerGroup: number;
  /** Idle slots that map more than their content, and how many groups that is at most; they are in no list until that is mended. */
  readonly #overfull = new Map<number, number>();
  /** Released slots whose prefixes were reset while work was running on them. */
  readonly #forgotten = new Set<number>();

  constructor(parts: SharingParts) {
    this.#parts = parts;
    this.contents = new IdleContents(parts.shared, parts.table.count);
    this.#pagesPerGroup = parts.layout.pagesFor(parts.layout.groupRows);
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
    for (let slot = 0; groups > 0 && slot < table.count; slot += 1) if (table.sharedTail[slot] === sharedTails.truncated) groups -= 1;
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

  /** Unmaps what idle slots share, longest idle first, until `pages` mappings are gone. The prefixes stay cached. */
  unmapContents(pages: number): number {
    const { table, layout } = this.#parts;
    let unmapped = 0;
    while (unmapped < pages) {
      let oldest = -1;
      for (let slot = 0; slot < table.count; slot += 1) {
        if (!this.contents.has(slot)) continue;
        if (oldest < 0 || table.lastUsed[slot]! < table.lastUsed[oldest]!) oldest = slot;
      }
      if (oldest < 0) break;
      unmapped += layout.pagesFor(table.rows[oldest]!);
      this.vacate(oldest, 0);
    }
    return unmapped;
  }

  /** Tells the index what all sequences have committed since it last heard. */
  tell(): void {
    this.#parts.texts.forWaiting((slot, text) => this.#tellOf(slot, text));
    this.settle();
  }

  /** Takes an idle slot out of the list of contents and unmaps its rows behind the first `groups` groups. */
  vacate(slot: number, groups: number): void {
    const { layout, shared } = this.#parts;
    this.contents.remove(slot);
    this.#overfull.set(slot, groups);
    unmapRows(this.#parts, slot, groups * layout.groupRows);
    shared.leave(slot, groups);
    this.#overfull.delete(slot);
  }

  /** A slot without running work becomes idle: its text stays cached, and what it maps of it stays mapped. */
  retire(slot: number): void {
    const { index, shared, texts, groups } = this.#parts;
    const text = texts.of(slot);
    let whole = 0;
    if (text !== undefined) {
      whole = groups.wholeRows(text.path.length);
      index.release(text.path);
      texts.close(slot);
    }
    const content = this.#reusableGroups(slot, whole);
    if (shared.isAlone(slot, content)) {
      shared.leave(slot, content);
      this.contents.add(slot, content);
    } else {
      this.#overfull.set(slot, content);
    }
    if (this.#forgotten.delete(slot) && this.#forgotten.size === 0) index.clear();
    this.settle();
  }

  /** Whether prefixes that were reset are still used by running work. */
  get isForgetting(): boolean {
    return this.#forgotten.size > 0;
  }

  /** A released slot's prefix goes when the work that uses it is over, and all others with it. */
  forgetLater(slot: number): void {
    this.#forgotten.add(slot);
  }

  /** Before a slot is written to from its length on: whether a row of its own must be made, by `makeWritable`. */
  detachPages(slot: number): number {
    return this.#sharedTail(slot) < 0 ? 0 : this.#pagesPerGroup;
  }

  /** Gives the slot rows of its own from its length on: what it shares there is copied or unmapped. */
  makeWritable(slot: number): void {
    const { native, table, views, shared } = this.#parts;
    const tail = this.#sharedTail(slot);
    this.#leaveBehind(slot);
    if (tail >= 0) {
      native.cancel(slot);
      views.revoke(slot);
      native.detach(slot, tail, table.length[slot]!, 0n);
      shared.leave(slot, tail);
    }
    table.sharedTail[slot] = sharedTails.none;
  }

  /** The slot's text ends with its length again, which has become shorter. */
  truncate(slot: number): void {
    const { index, table, shared, texts, groups } = this.#parts;
    const tokens = table.length[slot]!;
    const text = texts.of(slot);
    if (text !== undefined) {
      text.tokens = Math.min(text.tokens, tokens);
      if (text.path.length > tokens) index.truncate(text.path, tokens);
    }
    if (shared.namedGroups(slot) > groups.wholeRows(tokens)) table.sharedTail[slot] = sharedTails.truncated;
    try {
      this.#leaveBehind(slot);
    } finally {
      this.settle();
    }
  }

  /** `slot`, which is empty, gets all that `from` has computed: rows are shared, also the last one until either writes. */
  fork(from: number, slot: number): SequenceText | undefined {
    const { native, index, table, shared, texts, groups } = this.#parts;
    this.tell();
    const length = table.length[from]!;
    const count = groups.rowsFor(length);
    const ids = shared.idsOf(slot);
    shared.name(from, count);
    ids.set(shared.idsOf(from).subarray(0, count));
    const text = texts.of(from);
    const path = text === undefined ? undefined : index.fork(text.path, ids);
    try {
      native.alias(slot, ids, 0, count);
    } catch (error) {
      if (path !== undefined) index.release(path);
      this.settle();
      throw error;
    }
    native.publish();
    shared.join(slot, count);
    table.length[slot] = length;
    if (groups.wholeRows(length) < count) {
      table.sharedTail[from] = Math.max(table.sharedTail[from]!, sharedTails.forked);
      table.sharedTail[slot] = table.sharedTail[from]!;
    }
    if (text === undefined || path === undefined) return undefined;
    const copy = { ...text, path, buffer: text.buffer.slice(0, text.tokens) };
    texts.open(slot, copy);
    return copy;
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
        if (mustUnmap || !shared.isAlone(slot, groups)) this.vacate(slot, groups);
        else shared.leave(slot, groups);
        this.#overfull.delete(slot);
        this.contents.add(slot, groups);
      } catch (error) {
        failure ??= { error };
      }
    }
    for (let at = 0; at < dropped.count; at += 1) shared.dropIfUnused(dropped.row(at));
    shared.flush();
    dropped.clear();
    if (failure !== undefined) throw failure.error;
  }

  /** Throws KV_INTERNAL unless the index, the numbers of rows and what slots map agree. */
  verify(): void {
    const { native, index, table, shared } = this.#parts;
    index.verify();
    const mappers = new Map<number, number>();
    for (let slot = 0; slot < table.count; slot += 1) {
      const ids = shared.idsOf(slot);
      for (let group = 0; group < shared.namedGroups(slot); group += 1) mappers.set(ids[group]!, (mappers.get(ids[group]!) ?? 0) + 1);
    }
    for (const [id, count] of mappers) {
      if (shared.mappersOf(id) === count) continue;
      throw createError('KV_INTERNAL', { problem: 'the slots that map a shared row are miscounted', what: id, howMany: count });
    }
    const { keptGroups } = native.counters();
    if (keptGroups === shared.count) return;
    throw createError('KV_INTERNAL', { problem: 'the kept rows are miscounted', what: keptGroups, howMany: shared.count });
  }

  /** Idle slots that end with a group that was dropped have too much. */
  #shortenContents(id: number): void {
    for (let slot = this.contents.endingIn(id); slot >= 0; slot = this.contents.endingIn(id)) {
      this.contents.remove(slot);
      this.#overfull.set(slot, this.#parts.shared.groupOf(id));
    }
  }

  /** The slot shares nothing behind its length any more; what it was promised is gone where that had to be unmapped. */
  #leaveBehind(slot: number): void {
    const { layout, table, shared, groups } = this.#parts;
    const first = groups.rowsFor(table.length[slot]!);
    if (!shared.isAlone(slot, first)) {
      unmapRows(this.#parts, slot, first * layout.groupRows);
      table.promisedTokens[slot] = 0;
    }
    shared.leave(slot, first);
  }

  #tellOf(slot: number, { path, buffer, tokens }: SequenceText): void {
    const { index, table, shared, groups } = this.#parts;
    const valid = Math.min(table.length[slot]!, tokens);
    if (table.state[slot] !== slotStates.active || !path.isStored || valid <= path.length) return;
    shared.name(slot, groups.rowsFor(valid));
    index.commit(path, buffer, valid);
  }

  /** The slot's first groups that the index holds. */
  #heldGroups(slot: number): number {
    const { index, shared } = this.#parts;
    const ids = shared.idsOf(slot);
    let groups = 0;
    while (groups < shared.namedGroups(slot) && index.isHolding(ids[groups]!)) groups += 1;
    return groups;
  }

  /** Those of them that a sequence may adopt: not a row that is not full and that another slot maps too. */
  #reusableGroups(slot: number, wholeGroups: number): number {
    const { shared } = this.#parts;
    const held = this.#heldGroups(slot);
    const isTailShared = held > wholeGroups && shared.mappersOf(shared.idsOf(slot)[held - 1]!) > 1;
    return isTailShared ? wholeGroups : held;
  }

  /** The group that holds the slot's last tokens and room for the next, if others need it as it is; or -1. */
  #sharedTail(slot: number): number {
    const { index, table, shared, texts, groups } = this.#parts;
    const tail = groups.wholeRows(table.length[slot]!);
    if (tail === groups.rowsFor(table.length[slot]!) || tail >= shared.namedGroups(slot)) return -1;
    const id = shared.idsOf(slot)[tail]!;
    if (shared.mappersOf(id) > 1) return tail;
    if (table.sharedTail[slot] !== sharedTails.truncated) return -1;
    const path = texts.of(slot)?.path;
    const isWritable = path === undefined ? !index.isHolding(id) : index.isWritable(path, tail);
    return isWritable ? -1 : tail;
  }
}
