// CachedRows: the rows of the prefix cache: those that idle slots still map, for the next request with that text, and
// those that no slot maps. What the index drops is forgotten here everywhere, and evicting until pages are free is
// asked of it. Which rows are dropped is the index's business, which idle slot a sequence gets SlotChoice's.
//
// Invariants: what an idle slot maps is listed content or its alone, except while it is one that must shrink; the addon
// keeps what the index holds.

import type { Layout } from '../layout/layout.js';
import type { DroppedRows } from '../prefix/row-ledger.js';
import type { PrefixHit } from '../prefix/prefix-hit.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { TextScope } from '../prefix/domain.js';
import type { CountedRows, LongTails, RowRegistry } from './row-registry.js';
import type { KnownTokens, SequenceTokens } from './sequence-tokens.js';
import type { SlotChoice } from './slot-choice.js';
import { noForeignRow, type SlotMemory, slotStates } from './slots.js';

/** Keeps the texts of sequences that are over, for what lies below the device. */
export interface TextKeeper {
  /** A sequence is over; `known`: what is known of its text. */
  note(known: KnownTokens | undefined, index: PrefixIndex): void;
  /** Forgets all of them. */
  clear(): void;
}

export class CachedRows {
  readonly index: PrefixIndex;
  readonly registry: RowRegistry;
  readonly tokens: SequenceTokens;
  readonly choice: SlotChoice;
  /** Those that the eviction policy does not let go. */
  readonly withheld: WithheldRows;
  readonly #memory: SlotMemory;
  readonly #finished: TextKeeper | undefined;
  /** Hears of the rows that the index has dropped, before they are forgotten. */
  readonly #onDropped: (dropped: DroppedRows) => void;
  readonly #pagesPerGroup: number;
  readonly #isSpare: (id: number) => boolean;
  /**
   * Idle slots that map more than their content, and how many groups that is at most; they are in no list until that is
   * mended.
   */
  readonly #mustShrink = new Map<number, number>();
  /** Released slots whose prefixes were reset while work was running on them. */
  readonly #forgotten = new Set<number>();

  constructor(
    memory: SlotMemory, { registry, tokens, choice, finished, onDropped }: {
      readonly registry: RowRegistry; readonly tokens: SequenceTokens; readonly choice: SlotChoice;
      /** Undefined without tiers. */
      readonly finished: TextKeeper | undefined; readonly onDropped: (dropped: DroppedRows) => void;
    },
  ) {
    this.#memory = memory;
    const index = this.index = registry.index;
    this.registry = registry;
    this.tokens = tokens;
    this.choice = choice;
    this.#finished = finished;
    this.#onDropped = onDropped;
    this.withheld = new WithheldRows(index, registry.numbers, memory.layout, () => this.#longTails());
    this.#pagesPerGroup = memory.layout.pagesFor(memory.layout.groupRows);
    this.#isSpare = (id) => registry.numbers.users[id] === 0;
  }

  /** Whether `flushCommits` has something to do. */
  get hasNews(): boolean {
    return this.tokens.hasNews || this.hasDropped;
  }

  /**
   * Tells the index what all sequences have committed, and forgets what it drops for that. Once per public call. Throws
   * as `endDropped`.
   */
  flushCommits(): void {
    this.tokens.flush();
    this.endDropped();
  }

  /** Rows of an idle slot that are not its alone. */
  contentRows(slot: number): number {
    return this.registry.namedRows(slot);
  }

  /**
   * Before withheld text is counted, where there may be some: what running sequences have computed of it need not be
   * kept. Throws as `endDropped`.
   */
  flushBesideWithheld(): void {
    if (this.withheld.isAny) this.flushCommits();
  }

  /**
   * Pages of cached rows that no running sequence uses and the eviction policy does not withhold: what `evict` could
   * free.
   */
  evictablePages(): number {
    const { numbers } = this.registry;
    const tails = this.#longTails();
    let pages = numbers.idlePages;
    for (const [id, { rows, users }] of tails) {
      if (users === numbers.users[id]) pages += numbers.pagesOf(id) - numbers.pagesOf(id, rows);
    }
    return pages - this.withheld.idlePages(tails);
  }

  /** Pages of the groups ids[0 … count) that running sequences need. */
  pagesInUse(ids: Int32Array, count: number): number {
    return this.registry.numbers.neededPages(ids, count, this.#longTails());
  }

  /** Evicts until `pages` pages are free that were not, or nothing is left to evict; returns how many are. */
  evict(pages: number): number {
    const { index } = this;
    const { pool } = this.#memory;
    const before = pool.native.available();
    const freed = (): number => pool.native.available() - before;
    this.#endDropped(true);
    for (let hasReplaced = false; ;) {
      while (freed() < pages && index.evict(Math.ceil((pages - freed()) / this.#pagesPerGroup)) > 0) {
        this.#endDropped(true);
      }
      this.#trimTails();
      if (freed() >= pages || hasReplaced) return freed();
      hasReplaced = true;
      this.replaceDuplicates();
    }
  }

  /** Evicts about `pages` pages, which stay mapped: the sequences that get those idle slots get their rows. */
  evictInPlace(pages: number): void {
    this.index.evict(Math.ceil(pages / this.#pagesPerGroup));
    this.#endDropped(false);
  }

  /**
   * Drops cached rows that no sequence uses and whose tokens running sequences have in rows of their own. Throws as
   * `endDropped`.
   */
  replaceDuplicates(): void {
    const longTails = this.#longTails();
    this.#replaceDuplicates((id) => this.#isSpare(id) || longTails.has(id));
    this.#partLongTails();
    this.#endDropped(true);
    this.#trimTails();
  }

  /** Evicts what is cached behind the sequence's tokens in the slot's group `tail`. Throws as `endDropped`. */
  claim(slot: number, tail: number): void {
    const { index, registry } = this;
    const path = this.tokens.pathOf(slot);
    if (path === undefined) return;
    const id = registry.idsOf(slot)[tail]!;
    this.#replaceDuplicates((other) => other === id || this.#isSpare(other));
    index.claim(path, tail);
    for (const other of registry.slotsOf(id)) if (this.choice.has(other)) this.#markForShrinking(other, tail);
    this.#endDropped(true);
    this.#trimTails();
  }

  /** Unmaps what idle slots share, longest idle first, until `pages` mappings are gone. The prefixes stay cached. */
  unmapContents(pages: number): number {
    const { slots, layout } = this.#memory;
    let unmapped = 0;
    for (let oldest = this.choice.oldestWithContent(); oldest >= 0 && unmapped < pages;
        oldest = this.choice.oldestWithContent()) {
      unmapped += layout.pagesFor(slots.rows[oldest]!);
      this.vacate(oldest, 0);
    }
    return unmapped;
  }

  /**
   * A slot without running work becomes idle: its text stays cached, and what it maps of it stays mapped. Throws as
   * `endDropped`.
   */
  retire(slot: number): void {
    if (this.#forgotten.size === 0) this.#finished?.note(this.tokens.of(slot), this.index);
    const groups = this.registry.retire(slot, this.#memory.groups.wholeRows(this.tokens.close(slot)));
    const isMore = this.registry.named[slot]! > groups || this.#memory.slots.foreignRow[slot] !== noForeignRow;
    if (isMore) this.#mustShrink.set(slot, groups);
    else this.list(slot, groups);
    if (this.#forgotten.delete(slot) && this.#forgotten.size === 0) this.index.clear();
    this.endDropped();
  }

  /** Whether prefixes that were reset are still used by running work. */
  get isForgetting(): boolean {
    return this.#forgotten.size > 0;
  }

  /** A released slot's prefix is dropped when the work that uses it is over, and all other prefixes with it. */
  forgetLater(slot: number): void {
    this.#forgotten.add(slot);
  }

  /**
   * Drops every cached prefix that no running work uses, and finished text that waits to be stored; returns how many
   * groups the index let go of. Throws as `endDropped`.
   */
  clear(): number {
    this.#finished?.clear();
    const groups = this.index.clear();
    this.endDropped();
    return groups;
  }

  /**
   * Drops what the scope says, which no path has any more (`SequenceTokens.leave`); returns how many groups. Throws as
   * `endDropped`.
   */
  drop(scope: TextScope): number {
    const before = this.index.dropped.count;
    this.index.drop(scope);
    const groups = this.index.dropped.count - before;
    this.endDropped();
    return groups;
  }

  /**
   * Lists an idle slot that holds so many groups of a text; not one in quarantine, which is not leased again, and
   * `close` unmaps it.
   */
  list(slot: number, groups: number): void {
    if (this.#memory.slots.isQuarantined[slot] === 0) this.choice.add(slot, groups);
  }

  /**
   * Takes an idle slot out of the list of contents and unmaps its rows behind the first `groups` groups, and those that
   * it gave up.
   */
  vacate(slot: number, groups: number): void {
    const { registry } = this;
    const { layout, slots } = this.#memory;
    this.choice.remove(slot);
    this.#mustShrink.set(slot, groups);
    this.#memory.unmap(slot, Math.min(groups * layout.groupRows, slots.foreignRow[slot]!));
    registry.leave(slot, groups);
    if (slots.foreignRow[slot] === noForeignRow) registry.unmapped(slot);
    this.#mustShrink.delete(slot);
  }

  /**
   * Ends the rows that the index has dropped and no sequence uses. Rows that idle slots alone map stay mapped there, as
   * rows without text; all others are unmapped or free. Throws the driver's first refusal, at the end; what could not
   * be unmapped is tried again next time.
   */
  endDropped(): void {
    this.#endDropped(false);
  }

  /** Whether `endDropped` has something to do. */
  get hasDropped(): boolean {
    return this.index.dropped.count > 0 || this.#mustShrink.size > 0;
  }

  #endDropped(mustUnmap: boolean): void {
    const { index, registry } = this;
    const { slots } = this.#memory;
    const { dropped } = index;
    if (!this.hasDropped) return;
    if (dropped.count > 0) this.#onDropped(dropped);
    for (let at = 0; at < dropped.count; at += 1) this.#shortenContents(dropped.row(at));
    let failure: { readonly error: unknown } | undefined;
    for (const [slot, content] of this.#mustShrink) {
      if (slots.isQuarantined[slot] === 1) { // it is not leased again, and `close` unmaps it
        registry.start(slot);
        this.#mustShrink.delete(slot);
        continue;
      }
      try {
        const groups = Math.min(content, registry.heldGroups(slot));
        const isAlone = slots.foreignRow[slot] === noForeignRow && registry.isAlone(slot, groups);
        if (mustUnmap || !isAlone) this.vacate(slot, groups);
        else registry.leave(slot, groups);
        this.#mustShrink.delete(slot);
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
   * Drops cached rows for which `isSpare` returns true and whose tokens running sequences have in rows of their own:
   * these are cached in their place.
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
      for (const slot of registry.slotsOf(index.dropped.row(at))) {
        if (this.choice.has(slot)) this.#markForShrinking(slot, registry.named[slot]!);
      }
    }
  }

  /**
   * Last groups of slots in use with more rows than their tokens and earmarks need: by number, what the longest needs.
   */
  #longTails(): LongTails {
    const { registry } = this;
    const { slots, layout } = this.#memory;
    const tails = new Map<number, { rows: number; users: number }>();
    if (layout.groupRows === 1) return tails;
    for (let slot = 0; slot < slots.count; slot += 1) {
      const last = registry.named[slot]! - 1;
      if (slots.state[slot] === slotStates.idle || last < 0) continue;
      const id = registry.idsOf(slot)[last]!;
      const isRunning = slots.state[slot] === slotStates.active && slots.isQuarantined[slot] === 0;
      const rows = Math.max(0, (isRunning ? slots.neededRows(slot) : slots.rows[slot]!) - last * layout.groupRows);
      if (rows >= registry.numbers.rows[id]!) continue;
      const tail = tails.get(id);
      tails.set(id, { rows: Math.max(rows, tail?.rows ?? 0), users: (tail?.users ?? 0) + 1 });
    }
    return tails;
  }

  /**
   * What is cached behind the tokens of running sequences in groups with rows that they do not need can be evicted, and
   * idle slots give those groups up.
   */
  #partLongTails(): void {
    const { index, registry, tokens } = this;
    for (const id of this.#longTails().keys()) {
      for (const slot of registry.slotsOf(id)) {
        const path = tokens.pathOf(slot);
        if (path !== undefined) index.splitAt(path);
        if (this.choice.has(slot)) this.#markForShrinking(slot, registry.numbers.group[id]!);
      }
    }
  }

  /** Rows of running sequences' last groups that no text needs any more are theirs alone again. */
  #trimTails(): void {
    const { registry } = this;
    const { slots, layout } = this.#memory;
    for (const [id, { rows, users }] of this.#longTails()) {
      if (users !== registry.numbers.mappers[id] || rows === 0) continue;
      const mappers = registry.slotsOf(id);
      const first = registry.numbers.group[id]! * layout.groupRows;
      const longest = mappers.find((slot) => slots.rows[slot]! >= first + rows);
      if (longest === undefined) continue;
      if (!this.index.isHolding(id) || mappers.some((slot) => this.#endsIn(slot, id))) registry.trim(longest, rows);
    }
  }

  /** Whether all that is cached in the group are tokens of the slot's sequence. */
  #endsIn(slot: number, id: number): boolean {
    const path = this.tokens.pathOf(slot);
    return path !== undefined && this.index.isWritable(path, this.registry.numbers.group[id]!);
  }

  /** Idle slots that end with a group that was dropped have too much. */
  #shortenContents(id: number): void {
    for (let slot = this.choice.endingIn(id); slot >= 0; slot = this.choice.endingIn(id)) {
      this.#markForShrinking(slot, this.registry.numbers.group[id]!);
    }
  }

  /** The idle slot maps more than its content, which is its first `groups` groups at most. */
  #markForShrinking(slot: number, groups: number): void {
    this.choice.remove(slot);
    this.#mustShrink.set(slot, groups);
  }
}

// WithheldRows: the groups of rows that no running sequence needs and that cannot be evicted all the same, as the
// eviction policy withholds their text; in pages. Owns nothing: the index knows which those are. Costs nothing where it
// knows of none.

export class WithheldRows {
  readonly #index: PrefixIndex;
  readonly #numbers: CountedRows;
  readonly #layout: Layout;
  readonly #longTails: () => LongTails;

  constructor(index: PrefixIndex, numbers: CountedRows, layout: Layout, longTails: () => LongTails) {
    this.#index = index;
    this.#numbers = numbers;
    this.#layout = layout;
    this.#longTails = longTails;
  }

  /** Whether there may be some. */
  get isAny(): boolean {
    return this.#index.withheld.isAny;
  }

  /** Whether the policy may give some of it by itself. */
  get isPassing(): boolean {
    return this.#index.withheld.isPassing;
  }

  /** Whether the group is one of them, in use or not. */
  has(id: number): boolean {
    let isWithheld = false;
    this.#index.withheld.forRows((row) => isWithheld ||= row === id);
    return isWithheld;
  }

  /** All their pages that no running sequence needs. */
  idlePages(tails?: LongTails): number {
    if (!this.isAny) return 0;
    const known = tails ?? this.#longTails();
    let pages = 0;
    this.#index.withheld.forRows((id) => pages += idlePagesOf(this.#numbers, id, known));
    return pages;
  }

  /**
   * Those of the groups `ids` of a hit and of the one behind them, within the first `rows` rows of a slot: a sequence
   * that shares them, or copies from them, takes no page from anything else for them.
   */
  idlePagesIn(ids: Int32Array, { wholeRows, tailRow }: PrefixHit, rows: number): number {
    const numbers = this.#numbers;
    const withheld = new Set<number>();
    this.#index.withheld.forRows((id) => withheld.add(id));
    const tails = this.#longTails();
    let pages = 0;
    for (let group = 0; group < wholeRows; group += 1) {
      if (withheld.has(ids[group]!)) pages += idlePagesOf(numbers, ids[group]!, tails);
    }
    if (!withheld.has(tailRow) || numbers.users[tailRow]! > 0) return pages;
    const rowsBefore = numbers.group[tailRow]! * this.#layout.groupRows;
    return pages + numbers.pagesOf(tailRow, Math.min(numbers.rows[tailRow]!, rows - rowsBefore));
  }
}

/** Pages of a group that no running sequence needs. */
function idlePagesOf(numbers: CountedRows, id: number, tails: LongTails): number {
  const users = numbers.users[id]!;
  if (users === 0) return numbers.pagesOf(id);
  const tail = tails.get(id);
  return tail?.users === users ? numbers.pagesOf(id) - numbers.pagesOf(id, tail.rows) : 0;
}
