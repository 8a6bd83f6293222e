// CachedRows: the rows of the prefix cache: those that idle slots still map, for the next request with that text, and those that no slot maps.
// What the index drops is forgotten here everywhere, and evicting until pages are free is asked of it. Which rows are dropped is the
// index's business, which idle slot a sequence gets SlotChoice's.
//
// Invariants: what an idle slot maps is listed content or its alone, except while it is `overfull`; the addon keeps what the index holds.

import type { DroppedRows } from '../prefix/dropped-rows.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { FinishedTexts } from './finished-texts.js';
import type { RowRegistry } from './row-registry.js';
import type { SequenceTokens } from './sequence-tokens.js';
import type { SlotChoice } from './slot-choice.js';
import type { SlotMemory } from './slot-memory.js';
import { noForeignRow, slotStates } from './slots.js';
import { WithheldRows, type LongTails } from './withheld-rows.js';

export class CachedRows {
  readonly index: PrefixIndex;
  readonly registry: RowRegistry;
  readonly tokens: SequenceTokens;
  readonly choice: SlotChoice;
  /** Those that the eviction policy does not let go. */
  readonly withheld: WithheldRows;
  readonly #memory: SlotMemory;
  readonly #finished: FinishedTexts;
  /** Hears of the rows that the index has dropped, before they are forgotten. */
  readonly #onDropped: (dropped: DroppedRows) => void;
  readonly #pagesPerGroup: number;
  readonly #isSpare: (id: number) => boolean;
  /** Idle slots that map more than their content, and how many groups that is at most; they are in no list until that is mended. */
  readonly #overfull = new Map<number, number>();
  /** Released slots whose prefixes were reset while work was running on them. */
  readonly #forgotten = new Set<number>();

  constructor(
    memory: SlotMemory, { index, registry, tokens, choice, finished, onDropped }: {
      readonly index: PrefixIndex; readonly registry: RowRegistry; readonly tokens: SequenceTokens; readonly choice: SlotChoice;
      readonly finished: FinishedTexts; readonly onDropped: (dropped: DroppedRows) => void;
    },
  ) {
    this.#memory = memory;
    this.index = index;
    this.registry = registry;
    this.tokens = tokens;
    this.choice = choice;
    this.#finished = finished;
    this.#onDropped = onDropped;
    this.withheld = new WithheldRows(index, registry, memory.layout, () => this.#longTails());
    this.#pagesPerGroup = memory.layout.pagesFor(memory.layout.groupRows);
    this.#isSpare = (id) => registry.usersOf(id) === 0;
  }

  /** Tells the index what all sequences have committed, and forgets what it drops for that. Once per public call. Throws as `settle`. */
  flushCommits(): void {
    this.tokens.flush();
    this.settle();
  }

  /** Rows of an idle slot that are not its alone. */
  contentRows(slot: number): number {
    return this.registry.namedRows(slot);
  }

  /** Before withheld text is counted, where there may be some: what running sequences have computed of it need not be kept. Throws as `settle`. */
  flushBesideWithheld(): void {
    if (this.withheld.isAny) this.flushCommits();
  }

  /** Pages of cached rows that no running sequence uses and the eviction policy does not withhold: what `evict` could free. */
  evictablePages(): number {
    const { registry } = this;
    const tails = this.#longTails();
    let pages = registry.idlePages;
    for (const [id, { rows, users }] of tails) {
      if (users === registry.usersOf(id)) pages += registry.pagesOf(id) - registry.pagesOf(id, rows);
    }
    return pages - this.withheld.idlePages(tails);
  }

  /** Pages of the groups ids[0 … count) that running sequences need. */
  pagesInUse(ids: Int32Array, count: number): number {
    const { registry } = this;
    const tails = this.#longTails();
    let pages = 0;
    for (let group = 0; group < count; group += 1) {
      const id = ids[group]!;
      const tail = tails.get(id);
      if (registry.usersOf(id) > 0) pages += registry.pagesOf(id, tail?.users === registry.usersOf(id) ? tail.rows : undefined);
    }
    return pages;
  }

  /** Evicts until `pages` pages are free that were not, or nothing is left to evict; returns how many are. */
  evict(pages: number): number {
    const { index } = this;
    const { pool } = this.#memory;
    const before = pool.native.available();
    const freed = (): number => pool.native.available() - before;
    this.#settle(true);
    for (let hasReplaced = false; ;) {
      while (freed() < pages && index.evict(Math.ceil((pages - freed()) / this.#pagesPerGroup)) > 0) this.#settle(true);
      this.#trimTails();
      if (freed() >= pages || hasReplaced) return freed();
      hasReplaced = true;
      this.replaceDuplicates();
    }
  }

  /** Evicts about `pages` pages, which stay mapped: the sequences that get those idle slots get their rows. */
  evictInPlace(pages: number): void {
    this.index.evict(Math.ceil(pages / this.#pagesPerGroup));
    this.#settle(false);
  }

  /** Drops cached rows that no sequence uses and whose tokens running sequences have in rows of their own. Throws as `settle`. */
  replaceDuplicates(): void {
    const longTails = this.#longTails();
    this.#replaceDuplicates((id) => this.#isSpare(id) || longTails.has(id));
    this.#partLongTails();
    this.#settle(true);
    this.#trimTails();
  }

  /** Evicts what is cached behind the sequence's tokens in the slot's group `tail`. Throws as `settle`. */
  claim(slot: number, tail: number): void {
    const { index, registry } = this;
    const path = this.tokens.pathOf(slot);
    if (path === undefined) return;
    const id = registry.idsOf(slot)[tail]!;
    this.#replaceDuplicates((other) => other === id || this.#isSpare(other));
    index.claim(path, tail);
    for (const other of registry.slotsOf(id)) if (this.choice.has(other)) this.#exceed(other, tail);
    this.#settle(true);
    this.#trimTails();
  }

  /** Unmaps what idle slots share, longest idle first, until `pages` mappings are gone. The prefixes stay cached. */
  unmapContents(pages: number): number {
    const { slots, layout } = this.#memory;
    let unmapped = 0;
    for (let oldest = this.choice.oldestWithContent(); oldest >= 0 && unmapped < pages; oldest = this.choice.oldestWithContent()) {
      unmapped += layout.pagesFor(slots.rows[oldest]!);
      this.vacate(oldest, 0);
    }
    return unmapped;
  }

  /** A slot without running work becomes idle: its text stays cached, and what it maps of it stays mapped. Throws as `settle`. */
  retire(slot: number): void {
    this.registry.stop(slot);
    if (!this.isForgetting) this.#finished.note(this.tokens.of(slot), this.index);
    this.#add(slot, this.#memory.groups.wholeRows(this.tokens.close(slot)));
    if (this.#forgotten.delete(slot) && this.#forgotten.size === 0) this.index.clear();
    this.settle();
  }

  /** Whether prefixes that were reset are still used by running work. */
  get isForgetting(): boolean {
    return this.#forgotten.size > 0;
  }

  /** A released slot's prefix is dropped when the work that uses it is over, and all other prefixes with it. */
  forgetLater(slot: number): void {
    this.#forgotten.add(slot);
  }

  /** Drops every cached prefix that no running work uses; returns how many groups the index let go of. Throws as `settle`. */
  clear(): number {
    const groups = this.index.clear();
    this.settle();
    return groups;
  }

  /**
   * A slot that became idle keeps the first groups that the index holds, for the next request with that text. `wholeGroups` of them are
   * full; a last one that is not, and that another slot maps too, cannot be gone on in.
   */
  #add(slot: number, wholeGroups: number): void {
    const { registry } = this;
    const { slots } = this.#memory;
    const held = this.#heldGroups(slot);
    const isTailShared = held > wholeGroups && registry.mappersOf(registry.idsOf(slot)[held - 1]!) > 1;
    const groups = isTailShared ? wholeGroups : held;
    if (slots.foreignRow[slot] === noForeignRow && registry.isAlone(slot, groups)) {
      registry.leave(slot, groups);
      this.list(slot, groups);
    } else {
      this.#overfull.set(slot, groups);
    }
  }

  /** Lists an idle slot that holds so many groups of a text; not one in quarantine, which is not leased again, and `close` unmaps it. */
  list(slot: number, groups: number): void {
    if (this.#memory.slots.isQuarantined[slot] === 0) this.choice.add(slot, groups);
  }

  /** The slot is taken as it is, its content with it. */
  take(slot: number): void {
    this.choice.remove(slot);
  }

  /** Takes an idle slot out of the list of contents and unmaps its rows behind the first `groups` groups, and those that it gave up. */
  vacate(slot: number, groups: number): void {
    const { registry } = this;
    const { layout, slots } = this.#memory;
    this.choice.remove(slot);
    this.#overfull.set(slot, groups);
    this.#memory.unmap(slot, Math.min(groups * layout.groupRows, slots.foreignRow[slot]!));
    registry.leave(slot, groups);
    if (slots.foreignRow[slot] === noForeignRow) registry.unmapped(slot);
    this.#overfull.delete(slot);
  }

  /**
   * Ends the rows that the index has dropped and no sequence uses. Rows that idle slots alone map stay mapped there, as rows without
   * text; all others are unmapped or free. Throws the driver's first refusal, at the end; what could not be unmapped is
   * tried again next time.
   */
  settle(): void {
    this.#settle(false);
  }

  #settle(mustUnmap: boolean): void {
    const { index, registry } = this;
    const { slots } = this.#memory;
    const { dropped } = index;
    if (dropped.count === 0 && this.#overfull.size === 0) return;
    if (dropped.count > 0) this.#onDropped(dropped);
    for (let at = 0; at < dropped.count; at += 1) this.#shortenContents(dropped.row(at));
    let failure: { readonly error: unknown } | undefined;
    for (const [slot, content] of this.#overfull) {
      if (slots.isQuarantined[slot] === 1) { // it is not leased again, and `close` unmaps it
        registry.start(slot);
        this.#overfull.delete(slot);
        continue;
      }
      try {
        const groups = Math.min(content, this.#heldGroups(slot));
        const isAlone = slots.foreignRow[slot] === noForeignRow && registry.isAlone(slot, groups);
        if (mustUnmap || !isAlone) this.vacate(slot, groups);
        else registry.leave(slot, groups);
        this.#overfull.delete(slot);
        this.choice.add(slot, groups);
      } catch (error) {
        failure ??= { error };
      }
    }
    for (let at = 0; at < dropped.count; at += 1) registry.dropIfUnused(dropped.row(at));
    registry.flush();
    dropped.clear();
    if (failure !== undefined) throw failure.error;
  }

  /**
   * Drops cached rows for which `isSpare` returns true and whose tokens running sequences have in rows of their own: these are cached
   * in their place.
   */
  #replaceDuplicates(isSpare: (id: number) => boolean): void {
    const { index, registry, tokens } = this;
    const { slots, layout } = this.#memory;
    for (let slot = 0; slot < slots.count; slot += 1) {
      const path = tokens.pathOf(slot);
      if (path !== undefined && slots.hasRoom(slot, path.length)) registry.name(slot, layout.rowsFor(path.length));
    }
    index.replaceDuplicates(isSpare);
    for (let at = 0; at < index.dropped.count; at += 1) {
      for (const slot of registry.slotsOf(index.dropped.row(at))) if (this.choice.has(slot)) this.#exceed(slot, registry.namedGroups(slot));
    }
  }

  /** Last groups of slots in use with more rows than their tokens and promises need: by number, what the longest needs. */
  #longTails(): LongTails {
    const { registry } = this;
    const { slots, layout } = this.#memory;
    const tails = new Map<number, { rows: number; users: number }>();
    if (layout.groupRows === 1) return tails;
    for (let slot = 0; slot < slots.count; slot += 1) {
      const last = registry.namedGroups(slot) - 1;
      if (slots.state[slot] === slotStates.idle || last < 0) continue;
      const id = registry.idsOf(slot)[last]!;
      const isRunning = slots.state[slot] === slotStates.active && slots.isQuarantined[slot] === 0;
      const rows = Math.max(0, (isRunning ? slots.neededRows(slot) : slots.rows[slot]!) - last * layout.groupRows);
      if (rows >= registry.rowsOf(id)) continue;
      const tail = tails.get(id);
      tails.set(id, { rows: Math.max(rows, tail?.rows ?? 0), users: (tail?.users ?? 0) + 1 });
    }
    return tails;
  }

  /**
   * What is cached behind the tokens of running sequences in groups with rows that they do not need can be evicted, and idle slots give
   * those groups up.
   */
  #partLongTails(): void {
    const { index, registry, tokens } = this;
    for (const id of this.#longTails().keys()) {
      for (const slot of registry.slotsOf(id)) {
        const path = tokens.pathOf(slot);
        if (path !== undefined) index.splitAt(path);
        if (this.choice.has(slot)) this.#exceed(slot, registry.groupOf(id));
      }
    }
  }

  /** Rows of running sequences' last groups that no text needs any more are theirs alone again. */
  #trimTails(): void {
    const { registry } = this;
    const { slots, layout } = this.#memory;
    for (const [id, { rows, users }] of this.#longTails()) {
      if (users !== registry.mappersOf(id) || rows === 0) continue;
      const mappers = registry.slotsOf(id);
      const first = registry.groupOf(id) * layout.groupRows;
      const longest = mappers.find((slot) => slots.rows[slot]! >= first + rows);
      if (longest === undefined) continue;
      if (!registry.isHeld(id) || mappers.some((slot) => this.#endsIn(slot, id))) registry.trim(longest, rows);
    }
  }

  /** Whether all that is cached in the group are tokens of the slot's sequence. */
  #endsIn(slot: number, id: number): boolean {
    const path = this.tokens.pathOf(slot);
    return path !== undefined && this.index.isWritable(path, this.registry.groupOf(id));
  }

  /** Idle slots that end with a group that was dropped have too much. */
  #shortenContents(id: number): void {
    for (let slot = this.choice.endingIn(id); slot >= 0; slot = this.choice.endingIn(id)) {
      this.#exceed(slot, this.registry.groupOf(id));
    }
  }

  /** The idle slot maps more than its content, which is its first `groups` groups at most. */
  #exceed(slot: number, groups: number): void {
    this.choice.remove(slot);
    this.#overfull.set(slot, groups);
  }

  /** The slot's first groups that the index holds, and all of whose rows it maps: a shortened sequence may have given some up. */
  #heldGroups(slot: number): number {
    const { index, registry } = this;
    const { slots, layout } = this.#memory;
    const ids = registry.idsOf(slot);
    let groups = 0;
    while (groups < registry.namedGroups(slot) && index.isHolding(ids[groups]!)) {
      if (groups * layout.groupRows + registry.rowsOf(ids[groups]!) > slots.ownRows(slot)) break;
      groups += 1;
    }
    return groups;
  }
}
