// SideTensor: the memory of one side tensor: a reservation [slot, token, width] and the pages under it. Slots share the
// pages that a cached text holds and go on in pages of their own; a shared page in which a text ends is copied when it
// is written to. It knows which bytes may be written and what is cached; which slot a sequence gets and what the budget
// allows is asked elsewhere.
//
// Invariant: an idle slot maps only pages that a text holds, but for those that `endDropped` is still to unmap.

import type { SideDtype, SideView } from '../base/dtypes.js';
import { createError, isKvError } from '../base/errors.js';
import type { RowArithmetic } from '../base/row-arithmetic.js';
import type { BackgroundErrors } from '../device/cache-calls.js';
import type { Driver } from '../device/driver.js';
import type { NativeCache } from '../device/native.js';
import { checkHostAccess, SlotViews, type ViewedTensor } from '../device/slot-views.js';
import type { NodeTable } from '../prefix/prefix-tree.js';
import { FoundPages, type SideClock, SidePages } from './side-pages.js';
import type { SideCopies } from './side-copies.js';
import { SideCover, type WithheldNodes } from './side-cover.js';
import type { SideMemory } from './side-slots.js';

/** A packed stretch of a driver's memory. */
export interface DeviceBytes {
  readonly driver: Driver;
  readonly address: bigint;
  readonly bytes: number;
}

// SideViews: where the rows of one side tensor are seen: as typed arrays over the memory itself, and as addresses.

export class SideViews {
  readonly #open: SideMemory;
  readonly #views: SlotViews;
  readonly #tensor: ViewedTensor<SideDtype>;
  /** Whether it was checked that there can be views. */
  #isVisible = false;

  /** @param owner What views keep alive. */
  constructor(open: SideMemory, owner: object, background: BackgroundErrors) {
    this.#open = open;
    this.#views = new SlotViews(open.native, owner, background, { copies: !open.pool.driver.info.hasStreams });
    this.#tensor =
      { reservation: 0, offsetBytes: 0, dtype: open.dtype, strides: { elementBytes: open.tokenBytes / open.width } };
  }

  /** Address of the slot's first token. */
  address(slot: number): bigint {
    const { native, slotPages, pool } = this.#open;
    return native.address(0) + BigInt(slot) * BigInt(slotPages * pool.pageBytes);
  }

  /**
   * The slot's tokens [from, to), which are mapped. Throws KV_VIEW_TRANSFERRED, KV_VIEW_FORBIDDEN,
   * KV_DRIVER_UNSUPPORTED, KV_OUT_OF_MAPPINGS.
   */
  view(slot: number, from: number, to: number): SideView {
    const { rows, pool: { driver, pageBytes }, width } = this.#open;
    if (!this.#isVisible) checkHostAccess(driver.kind, driver.info.hasHostAccess);
    this.#isVisible = true;
    return this.#views.openPart(slot, this.#tensor, rows[slot]! * pageBytes, from * width, to * width);
  }

  /** Detaches the slot's views. */
  revoke(slot: number): void {
    this.#views.revoke(slot);
  }

  revokeAll(): void {
    this.#views.revokeAll();
  }
}

// SideWrites: what was written to the slots of one side tensor: rows from the CPU's memory, which are there at once,
// and rows from the device, which arrive later. Whether they may be written, and whether they have memory, is asked
// elsewhere.
//
// Invariant: by slot, arrived ≤ written; what lies between is on its way, and no copy brings more than is written.

export class SideWrites {
  /** By slot: tokens from the first on that were written, or shared. Read only. */
  readonly written: Int32Array;
  /** By slot: of those, the ones whose bytes are there. Read only. */
  readonly arrived: Int32Array;
  /** The tensor's number among those that copies write to. */
  readonly number: number;
  readonly #memory: SideMemory;
  readonly #native: NativeCache;
  readonly #copies: SideCopies;

  constructor(memory: SideMemory, copies: SideCopies) {
    this.#memory = memory;
    this.#native = memory.native;
    this.#copies = copies;
    this.written = new Int32Array(memory.rows.length);
    this.arrived = new Int32Array(memory.rows.length);
    this.number = copies.follow(this.arrived);
  }

  /** The slot, to which no copy writes, has its first `tokens` tokens. */
  set(slot: number, tokens: number): void {
    this.written[slot] = tokens;
    this.arrived[slot] = tokens;
  }

  /** Only the first `tokens` tokens of the slot count, at most. */
  cut(slot: number, tokens: number): void {
    this.written[slot] = Math.min(this.written[slot]!, tokens);
    this.#copies.cut(this.number, slot, tokens);
  }

  /** Writes packed tokens to slots that have memory for them: `quads` as `NativeCache.put`. They do not count yet. */
  put(quads: Int32Array, count: number, bytes: Uint8Array): void {
    if (!this.#copies.isIdle) for (let at = 0; at < 4 * count; at += 4) this.#copies.wait(quads[at]!);
    this.#native.put(quads, count, bytes);
  }

  /** The same from the device, by copies that are queued on `stream`, or made at once where the driver has none. */
  fetch(quads: Int32Array, count: number, { driver, address, bytes }: DeviceBytes, stream: bigint): void {
    const arena = this.#memory.pool.driver === driver ? undefined : this.#copies.arena;
    this.#native.fetch(quads, count, driver.native, address, bytes, stream, arena);
  }

  /** Counts what was put or fetched. `isThere`: all of it has arrived. */
  count(quads: Int32Array, count: number, isThere: boolean): void {
    for (let at = 0; at < 4 * count; at += 4) {
      const end = quads[at + 1]! + quads[at + 2]!;
      this.written[quads[at]!] = end;
      if (isThere) this.arrived[quads[at]!] = end;
    }
  }
}

/** Text that may lose its end: what the eviction policy gives, or all, also what it withholds. */
export type EvictedText = 'given' | 'all';

/** The end of a cached text, which a tensor may lose. */
export interface SideVictim {
  readonly lastUse: number;
  /** Tokens of the text, from its start, that the tensor has. */
  readonly tokens: number;
  readonly tokenBytes: number;
}

export interface SideTensorParts {
  readonly nodes: NodeTable;
  readonly withheld: WithheldNodes;
  readonly clock: SideClock;
  readonly background: BackgroundErrors;
  /** What views keep alive. */
  readonly owner: object;
  /** Copies from the device to this cache's side tensors. */
  readonly copies: SideCopies;
  /** Sees that so many pages can be taken. Throws KV_OUT_OF_PAGES, or what the driver says. */
  readonly makeRoom: (tensor: SideTensor, pages: number) => void;
}

/** What a slot gets for a new sequence, beside the pages that were found. */
export interface SideAdmission {
  readonly tenant: bigint;
  /** Tokens that were found. */
  readonly tokens: number;
  /** Tokens that pages are set aside for. */
  readonly earmarkedTokens: number;
}

export class SideTensor {
  readonly open: SideMemory;
  readonly cover: SideCover;
  readonly views: SideViews;
  /** What `admit` gives a slot. */
  readonly found: FoundPages;
  /** What of its slots was written. */
  readonly writes: SideWrites;
  readonly #copies: SideCopies;
  readonly #native: NativeCache;
  readonly #rows: Int32Array;
  readonly #arithmetic: RowArithmetic;
  readonly #makeRoom: (tensor: SideTensor, pages: number) => void;
  readonly #pages: SidePages;
  /** Pages that no text needs any more, until `endDropped`. */
  readonly #dropped: number[] = [];
  readonly #earmarked: Int32Array;
  /**
   * Slots in use that map pages behind those written, which may be others': a truncation was refused, or copies were on
   * their way there.
   */
  readonly #overlong = new Set<number>();
  /** Idle slots that map more than texts hold. */
  readonly #mustShrink = new Set<number>();
  readonly #pair = new Int32Array(2);

  constructor(open: SideMemory, { nodes, withheld, clock, background, owner, copies, makeRoom }: SideTensorParts) {
    const { native, rows, arithmetic, slotPages } = open;
    this.open = open;
    this.#native = native;
    this.#rows = rows;
    this.#arithmetic = arithmetic;
    this.#makeRoom = makeRoom;
    this.cover = new SideCover(nodes, withheld, arithmetic, this.#dropped);
    this.#pages = new SidePages(native, {
      slots: rows.length, slotPages, clock, isHeld: (page) => this.cover.isHolding(page),
    });
    this.found = new FoundPages(native, {
      cover: this.cover, pages: this.#pages, isQuarantined: (slot) => this.isQuarantined(slot),
      makeRoom: (pages) => makeRoom(this, pages),
    });
    this.views = new SideViews(open, owner, background);
    this.writes = new SideWrites(open, copies);
    this.#copies = copies;
    this.#earmarked = new Int32Array(rows.length);
  }

  isQuarantined(slot: number): boolean {
    return this.open.isQuarantined[slot] === 1;
  }

  /** Pages that the slot maps. */
  mappedPages(slot: number): number {
    return this.#rows[slot]!;
  }

  /**
   * Gives an idle slot what was found, and sets pages aside. It is in use from then on. Throws KV_OUT_OF_PAGES, or what
   * the driver says; then the slot is idle, with some of what it had.
   */
  admit(slot: number, { tenant, tokens, earmarkedTokens }: SideAdmission): void {
    const shared = this.found.sharedPages(slot);
    if (shared < this.#pages.countOf(slot)) this.#shrink(slot, shared);
    this.#mustShrink.delete(slot);
    this.#pages.use(slot);
    try {
      const earmarked = this.#arithmetic.rowsFor(earmarkedTokens);
      this.#withRoom(earmarked - this.found.count, () => {
        this.found.mapInto(slot, { tenant, shared, earmarked, tokens });
      });
      this.#pages.nameNew(slot, this.#rows[slot]!);
      this.#earmarked[slot] = earmarked;
      this.writes.set(slot, tokens);
    } catch (error) {
      this.release(slot);
      throw error;
    }
  }

  /**
   * The slot is idle from now on. What of its pages texts hold stays mapped, for the next sequence with that text.
   * Never throws.
   */
  release(slot: number): void {
    this.views.revoke(slot);
    this.#native.earmark(slot, 0);
    this.#earmarked[slot] = 0;
    this.writes.set(slot, 0);
    this.#overlong.delete(slot);
    this.#pages.idle(slot);
    this.#mustShrink.add(slot);
  }

  /**
   * Pages that `ensure` takes for the slot, and of these a copy that it can do without, since a cached text can lose
   * its end instead. `copied`: of pages that slots share, how many get copies of them before; it is added to. Throws
   * KV_SLOT_BUSY, or what the driver says.
   */
  pagesFor(
    slot: number, tokens: number, copied: Map<number, number>,
  ): { readonly pages: number; readonly spared: number } {
    this.#settle(slot);
    const rows = this.#arithmetic.rowsFor(tokens);
    const pages = Math.max(0, rows - Math.max(this.#rows[slot]!, Math.min(rows, this.#earmarked[slot]!)));
    const written = this.writes.written[slot]!;
    const tail = this.#arithmetic.wholeRows(written);
    if (this.#arithmetic.rowsFor(written) === tail) return { pages, spared: 0 };
    const page = this.#pages.tableOf(slot)[tail]!;
    const before = copied.get(page) ?? 0;
    const isShared = this.#pages.usersOf(page) - before > 1;
    if (!isShared && this.#isFreeBehind(page, written)) return { pages, spared: 0 };
    if (isShared) copied.set(page, before + 1);
    return { pages: pages + 1, spared: !isShared && this.cover.canRelease(page, written) ? 1 : 0 };
  }

  /**
   * Gives the slot memory of its own from its last written token up to `tokens`. Returns the tokens for which it has
   * that then. `isShort`: copies that can be done without are. Throws KV_OUT_OF_PAGES, KV_SLOT_BUSY, or what the driver
   * says; what it has then counts.
   */
  ensure(slot: number, tokens: number, isShort: boolean): number {
    this.#settle(slot);
    const written = this.writes.written[slot]!;
    const tail = this.#arithmetic.wholeRows(written);
    if (this.#arithmetic.rowsFor(written) > tail && !this.#isWritable(slot, tail, written)) {
      this.#copies.wait(slot); // its bytes are copied
      this.#makeWritable(slot, tail, written, isShort);
    }
    const rows = this.#arithmetic.rowsFor(tokens);
    const mapped = this.#rows[slot]!;
    if (rows > mapped) {
      this.#withRoom(rows - Math.max(mapped, Math.min(rows, this.#earmarked[slot]!)), () => {
        this.#pair[0] = slot;
        this.#pair[1] = rows;
        this.#native.grow(this.#pair, 1);
      });
      this.#pages.nameNew(slot, this.#rows[slot]!);
    }
    return this.#arithmetic.tokensIn(this.#rows[slot]!);
  }

  /**
   * Takes back what `ensure` mapped behind the slot's first `pages` pages, which are set aside again if they were.
   * Throws what the driver says.
   */
  undo(slot: number, pages: number): void {
    if (this.#rows[slot]! <= pages || this.isQuarantined(slot)) return;
    const earmarked = this.#earmarked[slot]!;
    this.#shrink(slot, pages);
    if (earmarked <= pages) return;
    this.#native.earmark(slot, earmarked);
    this.#earmarked[slot] = earmarked;
  }

  /**
   * The slot's sequence has gone, and a lease reads its first `tokens` tokens: it keeps the memory of no more, and
   * nothing is set aside. `hasViews`: its memory is seen, and stays as it is. Throws what the driver says; then it
   * stays mapped.
   */
  keepFirst(slot: number, tokens: number, hasViews: boolean): void {
    this.#native.earmark(slot, 0);
    this.#earmarked[slot] = 0;
    this.writes.cut(slot, tokens);
    if (!hasViews && !this.isQuarantined(slot)) this.#shrink(slot, this.#arithmetic.rowsFor(tokens));
  }

  /**
   * Only the first `tokens` tokens of the slot are written. Throws what the driver says; then they are not, but stay
   * mapped.
   */
  truncate(slot: number, tokens: number): void {
    if (this.writes.written[slot]! <= tokens) return;
    this.writes.cut(slot, tokens);
    if (this.#arithmetic.rowsFor(tokens) === this.#pages.countOf(slot)) return;
    this.#overlong.add(slot);
    if (!this.#copies.isCopying(slot)) this.#unmapRest(slot); // else before it is written to
  }

  /** An idle slot shares all that another has written; which of them writes first gets a copy of the last page. */
  fork(from: number, to: number, tenant: bigint): void {
    this.#copies.wait(from); // only what is there can be shared
    const count = this.#arithmetic.rowsFor(this.writes.written[from]!);
    const table = this.#pages.tableOf(from);
    this.#shrink(to, 0);
    this.#mustShrink.delete(to);
    this.#pages.keep(from, 0, count);
    this.#pages.use(to);
    try {
      this.#withRoom(0, () => {
        this.#native.admit(to, tenant, table, 0, count, 0, 0, -1, -1, 0, undefined);
      });
      this.#pages.join(to, table, count);
      this.writes.set(to, this.writes.arrived[from]!);
    } catch (error) {
      this.release(to);
      throw error;
    }
  }

  /** What the slot has of the first `tokens` tokens of a text, which end in `node`, is cached from now on. */
  publish(slot: number, node: number, tokens: number): void {
    const covered = Math.min(tokens, this.writes.arrived[slot]!);
    const before = this.cover.tokensOf(node, covered);
    if (before >= covered || this.isQuarantined(slot)) return;
    this.#pages.keep(slot, this.#arithmetic.wholeRows(before), this.#arithmetic.rowsFor(covered));
    this.cover.extend(node, covered, this.#pages.tableOf(slot));
  }

  /**
   * Unmaps and ends what no text needs any more and no sequence has. Throws the driver's first refusal, at the end;
   * goes on next time.
   */
  endDropped(): void {
    const dropped = this.#dropped;
    for (const page of dropped) {
      if (!this.#pages.isUsed(page) || this.cover.isHolding(page)) continue;
      const isIdle = (slot: number): boolean => !this.#pages.isInUse(slot) && !this.#mustShrink.has(slot);
      for (let slot = this.#pages.mapperOf(page, isIdle); slot >= 0; slot = this.#pages.mapperOf(page, isIdle)) {
        this.#mustShrink.add(slot);
      }
      this.#pages.endIfUnused(page);
    }
    dropped.length = 0;
    let failure: { readonly error: unknown } | undefined;
    for (const slot of this.#overlong) {
      try {
        if (!this.#copies.isCopying(slot) && !this.isQuarantined(slot)) this.#unmapRest(slot);
      } catch (error) {
        failure ??= { error };
      }
    }
    for (const slot of this.#mustShrink) {
      try {
        if (!this.isQuarantined(slot)) this.#shrink(slot, this.#heldPages(slot));
        this.#mustShrink.delete(slot);
      } catch (error) {
        failure ??= { error };
      }
    }
    if (failure !== undefined) throw failure.error;
  }

  /** What `evict` would take next; undefined: nothing can go. */
  nextVictim(text: EvictedText): SideVictim | undefined {
    const page = this.#victim(text);
    return page < 0 ? undefined : {
      lastUse: this.#pages.idleSince(page), tokens: this.cover.endTokens(page), tokenBytes: this.open.tokenBytes,
    };
  }

  /**
   * Evicts the page that was used longest ago of those that end a text, or where all ends are in use, the end of one
   * whose start is not. False: no such text has a page that no sequence has.
   */
  evict(text: EvictedText): boolean {
    const page = this.#victim(text);
    if (page < 0) return false;
    this.cover.evictEnd(page);
    this.endDropped();
    return true;
  }

  #victim(text: EvictedText): number {
    const { cover } = this;
    const end = this.#pages.oldestIdle((page) => cover.isEnd(page) && (text === 'all' || !cover.isWithheld(page)));
    if (end >= 0 || this.#pages.idlePages === 0) return end;
    const kept = text === 'all' ? undefined : cover.withheldNodes();
    return this.#pages.oldestIdle((page) => cover.isHolding(page) && kept?.has(cover.holderOf(page)) !== true);
  }

  /** Bytes that are mapped, kept or set aside. */
  get usedBytes(): number {
    const { pool } = this.open;
    return (Math.floor(pool.memoryBudgetBytes / pool.pageBytes) - pool.native.available()) * pool.pageBytes;
  }

  /** Bytes of cached pages that no sequence and no lease has. */
  get idleBytes(): number {
    return this.#pages.idlePages * this.open.pool.pageBytes;
  }

  /**
   * Of these, bytes of text that the eviction policy withholds. Takes time for each such text.
   */
  get withheldBytes(): number {
    let pages = 0;
    for (const page of this.cover.withheldPages()) if (this.#pages.usersOf(page) === 0) pages += 1;
    return pages * this.open.pool.pageBytes;
  }

  /** Throws KV_INTERNAL unless pages, slots and texts agree. */
  verify(): void {
    this.endDropped();
    const counted = this.#pages.verify(this.#rows);
    const inUse = this.#native.verify();
    const { mappedPages, quarantinedPages } = this.open.pool.counts();
    // A page that a slot or a text has may be in quarantine too: where the driver would not unmap it after it was read.
    if (inUse !== mappedPages || inUse > counted || inUse + quarantinedPages < counted) {
      throw createError('KV_INTERNAL', {
        problem: 'side tensors: pages are not conserved', what: inUse, howMany: counted,
      });
    }
    this.cover.verify((page, index) => {
      if (this.#pages.isUsed(page) && this.#pages.indexOf(page) === index) return;
      throw createError('KV_INTERNAL', {
        problem: 'side tensors: a text has a page that is not there', what: page, howMany: index,
      });
    });
  }

  /**
   * Whether the slot may write behind its token `written` in its page `index`: no other slot and no text relies on what
   * is there.
   */
  #isWritable(slot: number, index: number, written: number): boolean {
    const page = this.#pages.tableOf(slot)[index]!;
    return this.#pages.usersOf(page) <= 1 && this.#isFreeBehind(page, written);
  }

  /** Whether no text relies on what is behind the page's token `written`. */
  #isFreeBehind(page: number, written: number): boolean {
    return !this.cover.isHolding(page) || this.cover.heldTokens(page) <= written;
  }

  /** Before the slot is written to: it maps nothing behind what is written that may be others'. */
  #settle(slot: number): void {
    if (this.isQuarantined(slot)) {
      throw createError('KV_SLOT_BUSY', { slot, operation: 'write side tensors of', holder: 'the quarantine' });
    }
    if (!this.#overlong.has(slot)) return;
    this.#copies.wait(slot);
    this.#unmapRest(slot);
  }

  /**
   * Gives the slot a copy of its page; where there is no room for one and only a cached text needs what is behind
   * `written`, that goes.
   */
  #makeWritable(slot: number, index: number, written: number, isShort: boolean): void {
    const page = this.#pages.tableOf(slot)[index]!;
    if (isShort && this.#pages.usersOf(page) === 1 && this.cover.release(page, written)) return;
    try {
      this.#detach(slot, index, written);
    } catch (error) {
      const isLastUser = isKvError(error, 'KV_OUT_OF_PAGES') && this.#pages.usersOf(page) === 1;
      if (!isLastUser || !this.cover.release(page, written)) throw error;
    }
  }

  #detach(slot: number, index: number, tokens: number): void {
    try {
      this.#withRoom(1, () => {
        this.views.revoke(slot);
        this.#native.detach(slot, index, tokens, -1, 0n);
      });
    } finally {
      this.#pages.leave(slot, this.#rows[slot]!); // where the driver has ruined the slot, what was there is lost
      this.writes.cut(slot, this.#arithmetic.tokensIn(this.#rows[slot]!));
    }
    this.#pages.exchange(slot, index);
  }

  /** The slot's first pages that a text holds. */
  #heldPages(slot: number): number {
    const table = this.#pages.tableOf(slot);
    let held = 0;
    while (held < this.#pages.countOf(slot) && this.cover.isHolding(table[held]!)) held += 1;
    return held;
  }

  #unmapRest(slot: number): void {
    this.#shrink(slot, this.#arithmetic.rowsFor(this.writes.written[slot]!));
    this.#overlong.delete(slot);
  }

  #shrink(slot: number, pages: number): void {
    if (pages >= this.#rows[slot]!) return;
    this.views.revoke(slot);
    try {
      this.#native.shrink(slot, pages);
      this.#earmarked[slot] = 0; // the addon sets nothing aside any more
    } finally {
      this.#pages.leave(slot, this.#rows[slot]!);
    }
  }

  /** Does `work`, which takes `pages` pages; again while what the driver refuses can be made room for. */
  #withRoom(pages: number, work: () => void): void {
    this.#makeRoom(this, pages);
    for (;;) {
      try {
        work();
        return;
      } catch (error) {
        const isMemory = isKvError(error, 'KV_OUT_OF_DEVICE_MEMORY');
        if (!isMemory && !isKvError(error, 'KV_OUT_OF_MAPPINGS')) throw error;
        if (!(isMemory ? this.evict('given') : this.#unmapOneIdle())) throw error;
      }
    }
  }

  /** Unmaps what an idle slot shares. False: none does. */
  #unmapOneIdle(): boolean {
    for (let slot = 0; slot < this.#rows.length; slot += 1) {
      if (this.#pages.isInUse(slot) || this.#rows[slot] === 0 || this.isQuarantined(slot)) continue;
      this.#shrink(slot, 0);
      return true;
    }
    return false;
  }
}
