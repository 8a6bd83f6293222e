// WindowSets: the layer sets of a cache that keep the last tokens of a sequence alone, windows and chunks. Each set has
// addresses and a native cache of its own over the cache's pool. Of a slot it maps rows [first, rows): those ahead are
// mapped before a pass writes to them, those behind are unmapped once no layer of the set looks back to them, neither
// from the sequence's length, less what may be taken back, nor in a pass that may not be over. No token ever moves.
//
//            first                    length          rows
//   | unmapped |  what the layers see   |  to compute   |  unmapped →
//
// Lengths, fences and states of slots are the cache's. Nothing here is cached for other prompts; a fork maps the rows
// of its parent, and has the last one, into which both write, copied.

import { createError, isKvError } from '../base/errors.js';
import type { NativeCache } from '../device/native.js';
import type { SlotViews } from '../device/slot-views.js';
import type { LayerSetLayout } from '../layout/layout.js';
import type { SlotFences } from './slot-fences.js';

/** What a window set is opened with. */
type WindowSetParts = Pick<WindowSet, 'layout' | 'native' | 'views' | 'first' | 'rows' | 'isQuarantined'> & {
  readonly pageBytes: number;
};

/** One layer set with a window or chunks: what its slots map. */
export class WindowSet {
  readonly layout: LayerSetLayout;
  readonly native: NativeCache;
  readonly views: SlotViews;
  /** By slot, written by the addon: the first mapped row, the row behind the last, and whether the driver ruined it. */
  readonly first: Int32Array;
  readonly rows: Int32Array;
  readonly isQuarantined: Uint8Array;
  /** By slot: rows that it may map at once, its first ones included, whose pages are set aside. */
  readonly earmarkedRows: Int32Array;
  /** By slot: the row before which a fork may map its rows too. */
  readonly sharedRows: Int32Array;
  readonly #tokenBytes: number;
  readonly #pageBytes: number;
  /** Numbers of slots and rows for the addon, three a slot at most, and of how many slots. */
  readonly #numbers: Int32Array;
  #count = 0;

  constructor({ layout, pageBytes, native, views, first, rows, isQuarantined }: WindowSetParts) {
    this.layout = layout;
    this.native = native;
    this.views = views;
    this.first = first;
    this.rows = rows;
    this.isQuarantined = isQuarantined;
    this.earmarkedRows = new Int32Array(rows.length);
    this.sharedRows = new Int32Array(rows.length);
    this.#tokenBytes = layout.commonTokenBytes;
    this.#pageBytes = pageBytes;
    this.#numbers = new Int32Array(3 * rows.length);
  }

  /** The row that holds the first byte of a token. */
  rowOf(token: number): number {
    return Math.floor(token * this.#tokenBytes / this.#pageBytes);
  }

  /** The first token that lies in a row or behind it. */
  tokenFrom(row: number): number {
    return Math.ceil(row * this.#pageBytes / this.#tokenBytes);
  }

  /** The first token of which all bytes are mapped. */
  firstMapped(slot: number): number {
    return this.tokenFrom(this.first[slot]!);
  }

  /** The length from which on the layers see nothing before a row. */
  lengthFrom(row: number): number {
    const token = this.tokenFrom(row);
    const { windowTokens, chunkTokens = 1 } = this.layout;
    if (windowTokens === undefined) return Math.ceil(token / chunkTokens) * chunkTokens;
    return token === 0 ? 0 : token + windowTokens - 1;
  }

  /** The longest length that the slot has memory for. */
  roomTokens(slot: number): number {
    return Math.floor(this.rows[slot]! * this.#pageBytes / this.#tokenBytes);
  }

  /** Whether the slot has memory up to token `end`. */
  hasRoom(slot: number, end: number): boolean {
    return end * this.#tokenBytes <= this.rows[slot]! * this.#pageBytes;
  }

  /** Pages that the slot lacks up to row `rows`, and those of them that are set aside for it. */
  missingPages(slot: number, rows: number): number {
    return this.layout.pagesBetween(this.rows[slot]!, rows);
  }

  earmarkedPages(slot: number, rows: number): number {
    return this.missingPages(slot, Math.min(rows, this.first[slot]! + this.earmarkedRows[slot]!));
  }

  /** Sets pages aside until the slot maps so many rows. Throws KV_OUT_OF_PAGES; then nothing has changed. */
  earmark(slot: number, rows: number): void {
    this.native.earmark(slot, rows);
    this.earmarkedRows[slot] = rows;
  }

  /** Unmaps rows at the end until `rows` is the row behind the last. No queued work uses them. */
  shrink(slot: number, rows: number): void {
    this.views.revoke(slot);
    this.native.shrink(slot, rows); // drops the earmark; that of the rows which stay needs no pages
    const earmarkedRows = this.earmarkedRows[slot]!;
    if (earmarkedRows > 0) this.earmark(slot, Math.min(earmarkedRows, rows - this.first[slot]!));
  }

  /** Begins a list of slots for one call of the addon. */
  begin(): void {
    this.#count = 0;
  }

  /** Adds a slot that is to have memory up to token `end`, if it has not. */
  addGrowth(slot: number, end: number): void {
    if (this.hasRoom(slot, end)) return;
    this.#numbers[2 * this.#count] = slot;
    this.#numbers[2 * this.#count + 1] = this.layout.rowsFor(end);
    this.#count += 1;
  }

  /** Adds a slot whose rows before `first` go, to become those that it lacks up to token `end`. */
  addSlide(slot: number, first: number, end: number): void {
    this.views.revoke(slot);
    this.#numbers[3 * this.#count] = slot;
    this.#numbers[3 * this.#count + 1] = first;
    this.#numbers[3 * this.#count + 2] = Math.max(this.rows[slot]!, this.layout.rowsFor(end));
    this.#count += 1;
  }

  /** Sums what the slots of the list lack into `missing`. */
  addMissing(missing: MissingRows): void {
    for (let index = 0; index < this.#count; index += 1) {
      const slot = this.#numbers[2 * index]!;
      const rows = this.#numbers[2 * index + 1]!;
      missing.rows += Math.max(0, rows - this.rows[slot]!);
      missing.pages += this.missingPages(slot, rows);
      missing.earmarkedPages += this.earmarkedPages(slot, rows);
    }
  }

  grow(): void {
    if (this.#count > 0) this.native.grow(this.#numbers, this.#count);
  }

  request(): void {
    if (this.#count > 0) this.native.request(this.#numbers, this.#count);
  }

  /** Where there are no mappings for rows ahead, none are mapped. */
  slide(): void {
    if (this.#count === 0) return;
    try {
      this.native.slide(this.#numbers, this.#count);
    } catch (error) {
      if (!isKvError(error, 'KV_OUT_OF_MAPPINGS')) throw error;
      for (let index = 0; index < this.#count; index += 1) this.#numbers[3 * index + 2] = 0;
      this.native.slide(this.#numbers, this.#count); // what has slid already stays
    }
    // Rows that forks map too give no pages for what is set aside.
    for (let index = 0; index < this.#count; index += 1) {
      const slot = this.#numbers[3 * index]!;
      const earmarkedRows = this.earmarkedRows[slot]!;
      if (earmarkedRows > 0 && this.sharedRows[slot]! > 0) this.#earmarkIfAny(slot, earmarkedRows);
    }
  }

  #earmarkIfAny(slot: number, rows: number): void {
    try {
      this.earmark(slot, rows);
    } catch (error) {
      if (!isKvError(error, 'KV_OUT_OF_PAGES')) throw error;
      this.earmark(slot, 0);
    }
  }
}

/** The first `length` entries of a batch's arrays. */
export interface SlotsOfBatch {
  readonly slots: Int32Array;
  readonly tokens: Int32Array;
  readonly length: number;
}

/** What slots lack: rows, their pages, and those of the pages that are set aside for them. */
export interface MissingRows {
  rows: number;
  pages: number;
  earmarkedPages: number;
}

export const nothingMissing: Readonly<MissingRows> = { rows: 0, pages: 0, earmarkedPages: 0 };

/** Options of a cache that say how far its sequences move at once. */
export interface WindowRules {
  /** Most new tokens of a sequence in a pass; undefined: its whole prompt. */
  readonly passTokens: number | undefined;
  /** How far below its largest length so far `truncate` may always take a sequence back, in tokens. */
  readonly rollbackTokens: number;
  /** Whether pages are zeroed before another tenant gets them. */
  readonly isScrubbed: boolean;
  /** Tokens that a slot has addresses for. */
  readonly maxTokens: number;
}

/** What is read of the cache's slots, by slot. */
interface CacheSlots {
  readonly count: number;
  readonly length: ArrayLike<number>;
  readonly prepared: ArrayLike<number>;
  readonly earmarkedTokens: ArrayLike<number>;
  isActive(slot: number): boolean;
  isRetiring(slot: number): boolean;
}

export class WindowSets {
  /** At least one. */
  readonly all: readonly WindowSet[];
  /** Pages of a row in each. */
  readonly pagesPerRow: number;
  readonly #slots: CacheSlots;
  readonly #fences: SlotFences;
  readonly #rules: WindowRules;
  /** Slots with rows that would go but for a pass that may not be over. */
  readonly #waiting = new Set<number>();
  // What a step asks of each slot, so that in steady decode it reads no set.
  /** By slot: a length for which every set has memory; there may be memory for more. */
  readonly #room: Int32Array;
  /** By slot: the length from which on it writes to no row that a fork may map. */
  readonly #ownFrom: Int32Array;
  /** By slot: the length at which rows go, or pages that are set aside. */
  readonly #workAt: Int32Array;
  /** By slot: tokens ahead of its length that the mapper was last asked to have memory for. */
  readonly #ahead: Int32Array;

  constructor(all: readonly WindowSet[], slots: CacheSlots, fences: SlotFences, rules: WindowRules) {
    this.all = all;
    this.pagesPerRow = all.reduce((sum, { layout }) => sum + layout.pagesPerRow, 0);
    this.#slots = slots;
    this.#fences = fences;
    this.#rules = rules;
    const { count } = slots;
    this.#room = new Int32Array(count);
    this.#ownFrom = new Int32Array(count);
    this.#workAt = new Int32Array(count);
    this.#ahead = new Int32Array(count);
  }

  /** Slots that wait for passes before rows of theirs go. */
  get waiting(): number {
    return this.#waiting.size;
  }

  /** Whether the slot lacks memory in some set for `tokens` tokens. */
  isLacking(slot: number, tokens: number): boolean {
    if (tokens <= this.#room[slot]!) return false;
    this.#room[slot] = this.all.reduce((least, set) => Math.min(least, set.roomTokens(slot)), 2 ** 31 - 1);
    return tokens > this.#room[slot]!;
  }

  /** Whether a fork may map the row of a token in some set. */
  isShared(slot: number, token: number): boolean {
    return token < this.#ownFrom[slot]!;
  }

  /** The same of the row that the slot writes to next. */
  isSharing(slot: number): boolean {
    return this.isShared(slot, this.#slots.length[slot]!);
  }

  /** Whether every set maps the slot's tokens before `end`, as far as layers see from `length` on. */
  isMapped(slot: number, length: number, end: number): boolean {
    return this.all.every((set) => set.hasRoom(slot, end) && set.first[slot]! <= set.layout.firstRow(length));
  }

  /** Whether every set maps tokens [from, to). */
  hasTokens(slot: number, from: number, to: number): boolean {
    return this.all.every((set) => set.hasRoom(slot, to) && set.first[slot]! <= set.rowOf(from));
  }

  // What a pass needs.

  /** Lists, for `missing` and `grow`, the slots of a batch that lack memory. */
  list({ slots, tokens, length }: SlotsOfBatch): void {
    for (const set of this.all) {
      set.begin();
      for (let index = 0; index < length; index += 1) {
        set.addGrowth(slots[index]!, this.#slots.length[slots[index]!]! + tokens[index]!);
      }
    }
  }

  /** What the slots listed lack. */
  missing(): MissingRows {
    const missing = { rows: 0, pages: 0, earmarkedPages: 0 };
    for (const set of this.all) set.addMissing(missing);
    return missing;
  }

  /**
   * Maps it, all or nothing in each set: what one refuses leaves rows ahead in those before it, as the mapper would.
   * Throws what the driver throws.
   */
  grow(): void {
    for (const set of this.all) set.grow();
  }

  /** Throws KV_WORK_QUEUED where a step of the engine is in the way of `makeWritable` for a slot of the batch. */
  checkSteps({ slots, length }: SlotsOfBatch): void {
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      if (this.isSharing(slot) && this.#fences.pendingStep(slot) >= 0) this.#fences.wait(slot, 'write to');
    }
  }

  /**
   * Gives the slot rows of its own from its length on, in pages for which there is room. Waits for work that is queued
   * for it. Throws what the driver throws; what is not its own then stays shared. No step of the engine is in the way.
   */
  makeWritable(slot: number): void {
    this.#fences.wait(slot, 'write to');
    try {
      for (const set of this.all) this.#makeWritableIn(set, slot);
    } finally {
      this.#plan(slot);
    }
  }

  #makeWritableIn(set: WindowSet, slot: number): void {
    const length = this.#slots.length[slot]!;
    const row = set.rowOf(length);
    const sharedRows = set.sharedRows[slot]!;
    if (row >= sharedRows) return;
    const rows = set.layout.rowsFor(length);
    if (rows < sharedRows) set.shrink(slot, rows); // tokens were taken back
    if (rows > row) {
      set.views.revoke(slot);
      set.native.detach(slot, row, length, -1, 0n);
    }
    set.sharedRows[slot] = row;
  }

  // After a pass.

  /**
   * The slots of a batch have new lengths: rows behind go, or wait for passes that may not be over, and what was set
   * aside for prompts that are computed is less. Throws the driver's first refusal, after all sets; rows then stay.
   */
  commit({ slots, length }: SlotsOfBatch): void {
    let isSliding = false;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      if (this.#slots.length[slot]! < this.#workAt[slot]!) continue;
      this.#settleEarmark(slot);
      if (this.#isBehind(slot)) {
        isSliding = true;
        this.#waiting.add(slot);
      }
      this.#plan(slot);
    }
    if (isSliding) this.slide();
  }

  /** Unmaps what waits and need not any more. Throws the driver's first refusal, after all sets; rows then stay. */
  slide(): void {
    let failure: { readonly error: unknown } | undefined;
    for (const set of this.all) {
      set.begin();
      for (const slot of this.#waiting) {
        if (set.isQuarantined[slot] === 1) continue;
        const seen = Math.min(this.#seenFrom(slot), this.#fences.oldestPass(slot));
        const first = set.layout.firstRow(seen);
        const end = Math.min(this.#slots.length[slot]! + this.#ahead[slot]!, this.#rules.maxTokens);
        if (first > set.first[slot]!) set.addSlide(slot, first, end);
      }
      try {
        set.slide();
      } catch (error) {
        failure ??= { error };
      }
    }
    for (const slot of this.#waiting) if (!this.#isBehind(slot)) this.#waiting.delete(slot);
    if (failure !== undefined) throw failure.error;
  }

  /**
   * The length from which layers look back, of a sequence whose last tokens may be taken back. A sequence that is
   * released keeps its rows until no work uses them.
   */
  #seenFrom(slot: number): number {
    if (!this.#slots.isActive(slot)) return 0;
    return Math.max(0, this.#slots.length[slot]! - this.#rules.rollbackTokens);
  }

  /** Whether the slot maps rows that its layers see no more. */
  #isBehind(slot: number): boolean {
    const seen = this.#seenFrom(slot);
    return this.all.some((set) => set.layout.firstRow(seen) > set.first[slot]!);
  }

  /** A prompt that is computed needs no more rows than single tokens do. */
  #settleEarmark(slot: number): void {
    const { rollbackTokens } = this.#rules;
    if (this.#slots.length[slot]! < this.#slots.earmarkedTokens[slot]!) return;
    for (const set of this.all) {
      if (set.isQuarantined[slot] === 1) continue;
      const rows = Math.min(set.earmarkedRows[slot]!, set.layout.mostRows(1, rollbackTokens));
      if (rows < set.earmarkedRows[slot]!) set.earmark(slot, rows);
    }
  }

  /** Its rows or what is set aside for it have changed: when its next are to go, and where it may write. */
  #plan(slot: number): void {
    const { rollbackTokens } = this.#rules;
    let at = 2 ** 31 - 1;
    let ownFrom = 0;
    for (const set of this.all) {
      at = Math.min(at, set.lengthFrom(set.first[slot]! + 1) + rollbackTokens);
      if (set.earmarkedRows[slot]! > set.layout.mostRows(1, rollbackTokens)) {
        at = Math.min(at, this.#slots.earmarkedTokens[slot]!);
      }
      ownFrom = Math.max(ownFrom, set.tokenFrom(set.sharedRows[slot]!));
    }
    this.#workAt[slot] = at;
    this.#ownFrom[slot] = ownFrom;
    this.#room[slot] = 0;
  }

  // Rows ahead.

  /** Begins a list of slots. */
  begin(): void {
    for (const set of this.all) set.begin();
  }

  /**
   * Adds a slot that is to have memory for `tokens` tokens soon, but no further ahead than one pass. Whether some set
   * lacks any.
   */
  addRequest(slot: number, tokens: number): boolean {
    const { passTokens = tokens } = this.#rules;
    const length = this.#slots.length[slot]!;
    const wanted = Math.min(tokens, length + passTokens);
    this.#ahead[slot] = wanted - length;
    if (!this.isLacking(slot, wanted)) return false;
    for (const set of this.all) set.addGrowth(slot, wanted);
    return true;
  }

  /** Asks the mapper for what the slots listed lack. */
  request(): void {
    for (const set of this.all) set.request();
  }

  // Sequences begin, end, and change.

  /** Rows that a set sets aside for a prompt while it is computed. */
  #promptRows({ layout }: WindowSet, promptTokens: number): number {
    const { passTokens = promptTokens, rollbackTokens } = this.#rules;
    return Math.min(layout.rowsFor(promptTokens), layout.mostRows(Math.min(passTokens, promptTokens), rollbackTokens));
  }

  /** Pages that are set aside for a prompt. */
  pagesOfPrompt(promptTokens: number): number {
    let pages = 0;
    for (const set of this.all) pages += set.layout.pagesFor(this.#promptRows(set, promptTokens));
    return pages;
  }

  /**
   * Sets pages aside for the prompt of a new sequence, 0 tokens for none, which belongs to `tenant`. Throws
   * KV_OUT_OF_PAGES and what the driver throws; then call `giveBackEarmark`.
   */
  admit(slot: number, promptTokens: number, tenant: bigint): void {
    this.vacate(slot); // of what the driver has refused to unmap
    for (const set of this.all) {
      if (this.#rules.isScrubbed) set.native.assign(slot, tenant);
      if (promptTokens > 0) set.earmark(slot, this.#promptRows(set, promptTokens));
    }
  }

  /** Nothing is set aside for the slot any more, and nothing is asked of the mapper. */
  giveBackEarmark(slot: number): void {
    for (const set of this.all) {
      set.native.cancel(slot);
      if (set.earmarkedRows[slot]! > 0) set.earmark(slot, 0);
    }
  }

  /**
   * `to`, which maps nothing, gets what `from` maps for its tokens: the rows are shared but for the last one, if
   * tokens end in it, of which it gets a copy in pages for which there is room. Waits for work that may still write
   * them. Throws KV_WORK_QUEUED where that is a step of the engine, and what the driver throws; then `to` may map some.
   */
  fork(from: number, to: number): void {
    this.#fences.waitWritten(from, 'fork');
    this.vacate(to); // of what an attempt before this one has shared
    for (const set of this.all) this.#forkIn(set, from, to);
    this.#plan(from);
    this.#plan(to);
  }

  #forkIn(set: WindowSet, from: number, to: number): void {
    const length = this.#slots.length[from]!;
    const row = set.rowOf(length);
    const rows = set.layout.rowsFor(length);
    set.native.shareRows(from, to, rows);
    set.sharedRows[from] = Math.max(set.sharedRows[from]!, row);
    set.sharedRows[to] = row;
    if (rows > row) set.native.detach(to, row, length, -1, 0n);
  }

  /** Most new tokens of a sequence in a pass; Infinity: no set bounds them. */
  get passTokens(): number {
    return this.#rules.passTokens ?? Infinity;
  }

  /** Whether every sequence can be taken back by so many tokens. */
  canTakeBack(tokens: number): boolean {
    return tokens <= this.#rules.rollbackTokens;
  }

  /** Throws KV_WINDOW_PASSED unless the layers' view from `tokens` tokens is mapped still. */
  checkTruncate(slot: number, tokens: number): void {
    const length = this.#slots.length[slot]!;
    const nearest = this.all.reduce((most, set) => Math.max(most, set.lengthFrom(set.first[slot]!)), 0);
    if (tokens === length || tokens >= nearest) return;
    throw createError('KV_WINDOW_PASSED', {
      slot, length, tokens, nearestTokens: nearest, rollbackTokens: this.#rules.rollbackTokens,
    });
  }

  /** The sequence is released: views are detached, and nothing is set aside or asked for any more. */
  release(slot: number): void {
    for (const { views } of this.all) views.revoke(slot);
    this.giveBackEarmark(slot);
  }

  /** No work uses the slot any more: unmaps all of it. Throws the driver's first refusal, after all sets. */
  vacate(slot: number): void {
    this.#ahead[slot] = 0;
    let failure: { readonly error: unknown } | undefined;
    for (const set of this.all) {
      set.sharedRows[slot] = 0;
      if (set.isQuarantined[slot] === 1 || set.rows[slot] === 0) continue;
      try {
        set.shrink(slot, 0);
      } catch (error) {
        failure ??= { error };
      }
    }
    this.#plan(slot);
    if (failure !== undefined) throw failure.error;
  }

  // Rows ahead of need, which make room for others.

  /** Pages of rows that no sequence needs, and that are not set aside for one. */
  surplusPages(): number {
    let pages = 0;
    this.#forSurplus((set, slot, rows) => {
      pages += set.layout.pagesBetween(rows, set.rows[slot]!);
      return true;
    });
    return pages;
  }

  /** Unmaps such rows until `pages` pages are free, or all; returns how many are. Throws what the driver throws. */
  reclaim(pages: number): number {
    let freed = 0;
    this.#forSurplus((set, slot, rows) => {
      if (freed >= pages) return false;
      const before = set.rows[slot]!;
      this.#room[slot] = 0;
      set.shrink(slot, rows);
      freed += set.layout.pagesBetween(set.rows[slot]!, before);
      return true;
    });
    return freed;
  }

  /** Visits slots with such rows, from row `rows` on, until told that it is enough. */
  #forSurplus(visit: (set: WindowSet, slot: number, rows: number) => boolean): void {
    const { count, length, prepared } = this.#slots;
    for (const set of this.all) {
      for (let slot = 0; slot < count; slot += 1) {
        if (set.rows[slot] === 0 || set.isQuarantined[slot] === 1 || this.#slots.isRetiring(slot)) continue;
        const tokens = Math.max(length[slot]! + prepared[slot]!, this.#fences.pendingTokens(slot));
        const needed = this.#slots.isActive(slot)
          ? Math.max(set.layout.rowsFor(tokens), set.first[slot]! + set.earmarkedRows[slot]!) : 0;
        if (set.rows[slot]! > needed && !visit(set, slot, needed)) return;
      }
    }
  }

  /** Pages of slots that the driver has ruined and no sequence has. */
  quarantinedPages(): number {
    const { count } = this.#slots;
    let pages = 0;
    for (const { layout, first, rows, isQuarantined } of this.all) {
      for (let slot = 0; slot < count; slot += 1) {
        if (isQuarantined[slot] === 1 && !this.#slots.isActive(slot) && !this.#slots.isRetiring(slot)) {
          pages += layout.pagesBetween(first[slot]!, rows[slot]!);
        }
      }
    }
    return pages;
  }

  /** Stops the mapper until its next request. */
  quiesce(): void {
    for (const { native } of this.all) native.quiesce();
  }

  /** Throws KV_INTERNAL unless every running sequence maps what its layers see. */
  verify(): void {
    const { count, length } = this.#slots;
    for (const set of this.all) {
      for (let slot = 0; slot < count; slot += 1) {
        if (!this.#slots.isActive(slot) || set.isQuarantined[slot] === 1) continue;
        if (set.hasRoom(slot, length[slot]!) && set.first[slot]! <= set.layout.firstRow(length[slot]!)) continue;
        throw createError('KV_INTERNAL', { problem: 'a window is not mapped', what: slot, howMany: set.rows[slot]! });
      }
    }
  }
}
