// CachedRows: the rows of the prefix cache: those that idle slots still map, for the next request with that text, and
// those that no slot maps. What the index drops is forgotten here everywhere, and evicting until pages are free is
// asked of it. Which rows are dropped is the index's business, which idle slot a sequence gets SlotChoice's.
//
// Invariants: what an idle slot maps is listed content or its alone, except while it is one that must shrink; the addon
// keeps what the index holds.

import type { DroppedRows } from '../prefix/row-ledger.js';
import type { PrefixHit } from '../prefix/prefix-hit.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { TextScope } from '../prefix/domain.js';
import type { CountedRows, RowRegistry } from './row-registry.js';
import type { KnownTokens, SequenceTokens } from './sequence-tokens.js';
import type { SlotChoice } from './slot-choice.js';
import { noForeignRow, type SlotMemory } from './slots.js';

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
  readonly #isSpare: (id: number) => boolean;
  /**
   * Idle slots that map more than their content, and how many rows that is at most; they are in no list until that is
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
    this.withheld = new WithheldRows(index, registry.numbers, memory.layout.pagesPerRow);
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
    return this.registry.numbers.idlePages - this.withheld.idlePages();
  }

  /** Evicts until `pages` pages are free that were not, or nothing is left to evict; returns how many are. */
  evict(pages: number): number {
    const { index } = this;
    const { pool } = this.#memory;
    const before = pool.native.available();
    const freed = (): number => pool.native.available() - before;
    this.endDropped(true);
    for (let hasReplaced = false; ;) {
      while (freed() < pages && index.evict(Math.ceil((pages - freed()) / this.#memory.layout.pagesPerRow)) > 0) {
        this.endDropped(true);
      }
      if (freed() >= pages || hasReplaced) return freed();
      hasReplaced = true;
      this.replaceDuplicates();
    }
  }

  /** Evicts about `pages` pages, which stay mapped: the sequences that get those idle slots get their rows. */
  evictInPlace(pages: number): void {
    this.index.evict(Math.ceil(pages / this.#memory.layout.pagesPerRow));
    this.endDropped();
  }

  /**
   * Drops cached rows that no sequence uses and whose tokens running sequences have in rows of their own. Throws as
   * `endDropped`.
   */
  replaceDuplicates(): void {
    this.#replaceDuplicates(this.#isSpare);
    this.endDropped(true);
  }

  /** Evicts what is cached behind the sequence's tokens in the slot's row `tail`. Throws as `endDropped`. */
  claim(slot: number, tail: number): void {
    const { index, registry } = this;
    const path = this.tokens.pathOf(slot);
    if (path === undefined) return;
    const id = registry.idsOf(slot)[tail]!;
    this.#replaceDuplicates((other) => other === id || this.#isSpare(other));
    index.claim(path, tail);
    for (const other of registry.slotsOf(id)) if (this.choice.has(other)) this.#markForShrinking(other, tail);
    this.endDropped(true);
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
    const rows = this.registry.retire(slot, this.#memory.arithmetic.wholeRows(this.tokens.close(slot)));
    const isMore = this.registry.named[slot]! > rows || this.#memory.slots.foreignRow[slot] !== noForeignRow;
    if (isMore) this.#mustShrink.set(slot, rows);
    else this.list(slot, rows);
    if (this.#forgotten.delete(slot) && this.#forgotten.size === 0) this.index.clear();
    this.index.settleDuplicates(this.#isSpare); // what it held may be in rows of a sequence that computed it beside it
    this.#shortenReplaced();
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
   * rows the index let go of. Throws as `endDropped`.
   */
  clear(): number {
    this.#finished?.clear();
    const rows = this.index.clear();
    this.endDropped();
    return rows;
  }

  /**
   * Drops what the scope says, which no path has any more (`SequenceTokens.leave`); returns how many rows. Throws as
   * `endDropped`.
   */
  drop(scope: TextScope): number {
    const before = this.index.dropped.count;
    this.index.drop(scope);
    const rows = this.index.dropped.count - before;
    this.endDropped();
    return rows;
  }

  /**
   * Lists an idle slot that holds so many rows of a text; not one in quarantine, which is not leased again, and
   * `close` unmaps it.
   */
  list(slot: number, rows: number): void {
    if (this.#memory.slots.isQuarantined[slot] === 0) this.choice.add(slot, rows);
  }

  /**
   * Takes an idle slot out of the list of contents and unmaps what lies behind its first `rows` rows, and those that it
   * gave up.
   */
  vacate(slot: number, rows: number): void {
    const { registry } = this;
    const { slots } = this.#memory;
    this.choice.remove(slot);
    this.#mustShrink.set(slot, rows);
    this.#memory.unmap(slot, Math.min(rows, slots.foreignRow[slot]!));
    registry.leave(slot, rows);
    if (slots.foreignRow[slot] === noForeignRow) registry.unmapped(slot);
    this.#mustShrink.delete(slot);
  }

  /** Whether `endDropped` has something to do. */
  get hasDropped(): boolean {
    return this.index.dropped.count > 0 || this.#mustShrink.size > 0;
  }

  /**
   * Ends the rows that the index has dropped and no sequence uses: they are unmapped or free, but those that idle slots
   * alone map stay mapped there, as rows without text, unless `mustUnmap`. Throws the driver's first refusal, at the
   * end; what could not be unmapped is tried again next time.
   */
  endDropped(mustUnmap = false): void {
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
        const rows = Math.min(content, registry.heldRows(slot));
        const isAlone = slots.foreignRow[slot] === noForeignRow && registry.isAlone(slot, rows);
        if (mustUnmap || !isAlone) this.vacate(slot, rows);
        else registry.leave(slot, rows);
        this.#mustShrink.delete(slot);
        this.choice.add(slot, rows);
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
    this.#shortenReplaced();
  }

  /** Idle slots that map a row in whose place another is cached have too much, also where they go on behind it. */
  #shortenReplaced(): void {
    const { index: { dropped }, registry } = this;
    for (let at = 0; at < dropped.count; at += 1) {
      if (dropped.reason(at) !== 'replaced') continue;
      for (const slot of registry.slotsOf(dropped.row(at))) {
        if (this.choice.has(slot)) this.#markForShrinking(slot, registry.named[slot]!);
      }
    }
  }

  /** Idle slots that end with a row that was dropped have too much. */
  #shortenContents(id: number): void {
    for (let slot = this.choice.endingIn(id); slot >= 0; slot = this.choice.endingIn(id)) {
      this.#markForShrinking(slot, this.registry.numbers.row[id]!);
    }
  }

  /** The idle slot maps more than its content, which is its first `rows` rows at most. */
  #markForShrinking(slot: number, rows: number): void {
    this.choice.remove(slot);
    this.#mustShrink.set(slot, rows);
  }
}

// WithheldRows: the rows that no running sequence needs and that cannot be evicted all the same, as the eviction policy
// withholds their text; in pages. Owns nothing: the index knows which those are. Costs nothing where it knows of none.

export class WithheldRows {
  readonly #index: PrefixIndex;
  readonly #numbers: CountedRows;
  readonly #pagesPerRow: number;

  constructor(index: PrefixIndex, numbers: CountedRows, pagesPerRow: number) {
    this.#index = index;
    this.#numbers = numbers;
    this.#pagesPerRow = pagesPerRow;
  }

  /** Whether there may be some. */
  get isAny(): boolean {
    return this.#index.withheld.isAny;
  }

  /** Whether the policy may give some of it by itself. */
  get isPassing(): boolean {
    return this.#index.withheld.isPassing;
  }

  /** Whether the row is one of them, in use or not. */
  has(id: number): boolean {
    let isWithheld = false;
    this.#index.withheld.forRows((row) => isWithheld ||= row === id);
    return isWithheld;
  }

  /** All their pages that no running sequence needs. */
  idlePages(): number {
    if (!this.isAny) return 0;
    let rows = 0;
    this.#index.withheld.forRows((id) => { if (this.#numbers.users[id] === 0) rows += 1; });
    return rows * this.#pagesPerRow;
  }

  /**
   * Those of the rows `ids` of a hit and of the one behind them: a sequence that shares them, or copies from them,
   * takes no page from anything else for them.
   */
  idlePagesIn(ids: Int32Array, { wholeRows, tailRow }: PrefixHit): number {
    const { users } = this.#numbers;
    const withheld = new Set<number>();
    this.#index.withheld.forRows((id) => withheld.add(id));
    let rows = 0;
    for (let row = 0; row < wholeRows; row += 1) if (withheld.has(ids[row]!) && users[ids[row]!] === 0) rows += 1;
    if (withheld.has(tailRow) && users[tailRow] === 0) rows += 1;
    return rows * this.#pagesPerRow;
  }
}
