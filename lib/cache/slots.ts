// Slots: the numbers that a cache keeps per slot, in typed arrays made once. Index everywhere: the slot. Every change
// of a slot's state is a method here, so that only this file writes them; the addon writes `rows` and `isQuarantined`
// before each of its calls returns. It keeps no rule: SlotLeases decides which slot is leased, and when one becomes
// idle.

import type { TensorView } from '../base/dtypes.js';
import { checkInteger } from '../base/options.js';
import { rowArithmetic, type RowArithmetic } from '../base/row-arithmetic.js';
import type { BackgroundErrors } from '../device/cache-calls.js';
import { cacheNews, type NativeCache } from '../device/native.js';
import type { PagePool } from '../device/page-pool.js';
import { checkHostAccess, type SlotViews } from '../device/slot-views.js';
import type { Layout, TensorPlacement } from '../layout/layout.js';
import type { SlotFences } from './slot-fences.js';
import type { WindowSet, WindowSets } from './window-sets.js';

/** Where a slot is in its life. An idle slot in quarantine is out of service. */
export const slotStates = { idle: 0, active: 1, retiring: 2 } as const;

/** How a slot came to share the row that it writes to next. */
export const sharedTails = { none: 0, forked: 1, truncated: 2 } as const;

/** In `foreignRow`: all rows are the slot's. */
export const noForeignRow = 2 ** 31 - 1;

/** A typed array that its reader must not write. */
export interface SlotNumbers {
  readonly length: number;
  readonly [slot: number]: number;
}

/** What a lease begins with. */
export interface Lease {
  /** Tokens that are valid from the start. */
  readonly tokens: number;
  /** Tokens that memory is set aside for. */
  readonly earmarkedTokens: number;
  /** Number of the tenant, for scrubbing. */
  readonly tenant: bigint;
  readonly sharedTail: number;
  /** Whether no user's sequence has it, but a transfer of the cache's own, which counts apart. */
  readonly isTransfer: boolean;
}

export class Slots {
  readonly count: number;
  /** Sequences of users that can be alive at once: the other slots are there for transfers. */
  readonly sequences: number;
  /** Mapped rows, as of the last call into the addon. */
  readonly rows: Int32Array;
  /** 1: the driver refused to undo a failed change there; its rows stay as they are until the cache closes. */
  readonly isQuarantined: Uint8Array;
  /** The same of each layer set, that of the first with it: a slot that is out of service in one is so in all. */
  readonly quarantines: readonly Uint8Array[];
  /** Ticks: when the slot was acquired or released last. */
  readonly lastUsed: Float64Array;
  /** One of `slotStates`. */
  readonly state: SlotNumbers;
  /** Raised at every release: a handle with an older one is stale. */
  readonly generation: SlotNumbers;
  /** Valid tokens. */
  readonly length: SlotNumbers;
  /** Tokens that a prepared batch is computing now. */
  readonly prepared: SlotNumbers;
  /** Tokens that memory was set aside for. */
  readonly earmarkedTokens: SlotNumbers;
  /** One of `sharedTails`: not 0 when the row that the slot writes to next may have other users. */
  readonly sharedTail: SlotNumbers;
  /**
   * First mapped row that is no longer the slot's, or `noForeignRow`: rows that a running sequence gave up, and that
   * other slots may use, stay mapped there while queued work may use the addresses. They hold nothing of the slot, and
   * must not be written.
   */
  readonly foreignRow: SlotNumbers;
  readonly #layout: Layout;
  readonly #tokenBytes: number;
  readonly #pageBytes: number;
  readonly #fences: SlotFences;
  readonly #state: Uint8Array;
  readonly #generation: Uint32Array;
  readonly #length: Int32Array;
  readonly #prepared: Int32Array;
  /** 1: the sequence was released while a batch computed on the slot, which it still does. */
  readonly #isLeft: Uint8Array;
  readonly #earmarkedTokens: Int32Array;
  readonly #sharedTail: Uint8Array;
  readonly #foreignRow: Int32Array;
  readonly #tenant: BigUint64Array;
  readonly #isTransfer: Uint8Array;
  /** Slots that sequences of users have, retiring ones with them, and those that transfers have. */
  #usedSlots = 0;
  #transferSlots = 0;
  #tick = 0;

  /** @param sequences Of users, at once; all slots of the layout, but for those of transfers. */
  constructor(layout: Layout, fences: SlotFences, sequences: number) {
    const { slots } = layout;
    this.count = slots;
    this.sequences = sequences;
    this.#layout = layout;
    this.#tokenBytes = layout.commonTokenBytes;
    this.#pageBytes = layout.pageBytes;
    this.#fences = fences;
    this.rows = new Int32Array(slots);
    this.quarantines = layout.sets.map(() => new Uint8Array(slots));
    this.isQuarantined = this.quarantines[0]!;
    this.lastUsed = new Float64Array(slots);
    this.state = this.#state = new Uint8Array(slots);
    this.generation = this.#generation = new Uint32Array(slots);
    this.length = this.#length = new Int32Array(slots);
    this.prepared = this.#prepared = new Int32Array(slots);
    this.#isLeft = new Uint8Array(slots);
    this.earmarkedTokens = this.#earmarkedTokens = new Int32Array(slots);
    this.sharedTail = this.#sharedTail = new Uint8Array(slots);
    this.foreignRow = this.#foreignRow = new Int32Array(slots).fill(noForeignRow);
    this.#tenant = new BigUint64Array(slots);
    this.#isTransfer = new Uint8Array(slots);
  }

  /** Whether it is the slots of a cache, and no object that only has their prototype. */
  static isInstance(value: unknown): value is Slots {
    return typeof value === 'object' && value !== null && #layout in value;
  }

  tenantOf(slot: number): bigint {
    return this.#tenant[slot]!;
  }

  isActive(slot: number): boolean {
    return this.#state[slot] === slotStates.active;
  }

  isRetiring(slot: number): boolean {
    return this.#state[slot] === slotStates.retiring;
  }

  /** Whether a new sequence may have the slot. */
  isFree(slot: number): boolean {
    if (this.#state[slot] !== slotStates.idle) return false;
    for (const isQuarantined of this.quarantines) if (isQuarantined[slot] === 1) return false;
    return true;
  }

  /** Sequences of users that could be alive beside those that are. */
  get freeSequences(): number {
    return this.sequences - this.#usedSlots;
  }

  /** Whether a transfer has the slot. */
  isTransfer(slot: number): boolean {
    return this.#isTransfer[slot] === 1;
  }

  /** Whether one more sequence of a user, or one more transfer, may be alive. */
  canLease(isTransfer: boolean): boolean {
    return isTransfer ? this.#transferSlots < this.count - this.sequences : this.#usedSlots < this.sequences;
  }

  /** Whether a new sequence of a user may have some slot. */
  hasFree(): boolean {
    if (!this.canLease(false)) return false;
    for (let slot = 0; slot < this.count; slot += 1) if (this.isFree(slot)) return true;
    return false;
  }

  /** Mapped rows that are the slot's. */
  ownRows(slot: number): number {
    return Math.min(this.rows[slot]!, this.#foreignRow[slot]!);
  }

  /** Whether the slot has memory for `tokens` tokens. */
  hasRoom(slot: number, tokens: number): boolean {
    return tokens * this.#tokenBytes <= Math.min(this.rows[slot]!, this.#foreignRow[slot]!) * this.#pageBytes;
  }

  /**
   * Rows of an active slot that must stay: its tokens, those being computed, those earmarked, and those that queued
   * work may use.
   */
  neededRows(slot: number): number {
    const tokens = Math.max(
      this.#length[slot]! + this.#prepared[slot]!, this.#earmarkedTokens[slot]!, this.#fences.pendingTokens(slot));
    return this.#layout.rowsFor(tokens);
  }

  /** Pages of the earmark that are not mapped yet, among the rows up to `rows`. */
  earmarkedPages(slot: number, rows: number): number {
    const earmarkedRows = Math.min(rows, this.#layout.rowsFor(this.#earmarkedTokens[slot]!));
    return this.missingPages(slot, earmarkedRows);
  }

  /** Pages between the mapped rows and `rows`. */
  missingPages(slot: number, rows: number): number {
    return this.#layout.pagesBetween(this.rows[slot]!, rows);
  }

  /** A sequence has the slot from now on. */
  lease(slot: number, { tokens, earmarkedTokens, tenant, sharedTail, isTransfer }: Lease): void {
    this.#isTransfer[slot] = isTransfer ? 1 : 0;
    if (isTransfer) this.#transferSlots += 1;
    else this.#usedSlots += 1;
    this.#length[slot] = tokens;
    this.#earmarkedTokens[slot] = earmarkedTokens;
    this.#sharedTail[slot] = sharedTail;
    this.#tenant[slot] = tenant;
    this.#state[slot] = slotStates.active;
    this.#touch(slot);
  }

  /** The sequence is released; a batch that computes on the slot still does, and queued work may use it. */
  retire(slot: number): void {
    this.#generation[slot]! += 1;
    if (this.#prepared[slot] !== 0) this.#isLeft[slot] = 1;
    this.#prepared[slot] = 0;
    this.#earmarkedTokens[slot] = 0;
    this.#state[slot] = slotStates.retiring;
  }

  /** A new sequence may have the slot. */
  becomeIdle(slot: number): void {
    if (this.#isTransfer[slot] === 1) this.#transferSlots -= 1;
    else this.#usedSlots -= 1;
    this.#isTransfer[slot] = 0;
    this.#sharedTail[slot] = sharedTails.none; // until now it may have mapped a row that it took back
    this.#state[slot] = slotStates.idle;
    this.#touch(slot);
  }

  /**
   * Whether a prepared batch computes on the slot, also once its sequence is released: until it is committed or
   * discarded.
   */
  isComputing(slot: number): boolean {
    return this.#prepared[slot] !== 0 || this.#isLeft[slot] === 1;
  }

  /** A batch is about to compute `tokens` tokens more. */
  prepare(slot: number, tokens: number): void {
    this.#prepared[slot] = tokens;
  }

  /** The same for the first `count` of `slots`. */
  prepareAll(slots: Int32Array, tokens: Int32Array, count: number): void {
    const prepared = this.#prepared;
    for (let index = 0; index < count; index += 1) prepared[slots[index]!] = tokens[index]!;
  }

  /** No batch computes on the slot any more, and what one was to compute does not count. */
  discard(slot: number): void {
    this.#prepared[slot] = 0;
    this.#isLeft[slot] = 0;
  }

  /** `tokens` tokens more are valid, and no batch computes. */
  commit(slot: number, tokens: number): void {
    this.#prepared[slot] = 0;
    this.#length[slot]! += tokens;
  }

  /** Only the first `tokens` tokens are valid. */
  truncate(slot: number, tokens: number): void {
    this.#length[slot] = tokens;
  }

  setSharedTail(slot: number, sharedTail: number): void {
    this.#sharedTail[slot] = sharedTail;
  }

  /** Rows from `row` on are not the slot's any more, nor what was earmarked for it. */
  giveUpRows(slot: number, row: number): void {
    this.#foreignRow[slot] = Math.min(this.#foreignRow[slot]!, row);
    this.#earmarkedTokens[slot] = 0;
  }

  /** Rows at the slot's end were unmapped: what was given up may be gone. */
  haveShrunk(slot: number): void {
    if (this.rows[slot]! <= this.#foreignRow[slot]!) this.#foreignRow[slot] = noForeignRow;
  }

  /** No handle of a sequence is valid any more: the cache closes. */
  endAll(): void {
    for (let slot = 0; slot < this.count; slot += 1) this.#generation[slot]! += 1;
  }

  #touch(slot: number): void {
    this.lastUsed[slot] = this.#tick += 1;
  }
}

/** Whether an object comes from a cache, by its memory's slots: a caller can call constructors, with any argument. */
export function holdsSlots(parts: unknown): boolean {
  try {
    return Slots.isInstance((parts as { readonly memory: { readonly slots: unknown } }).memory.slots);
  } catch { // no object, or a proxy that answers with errors
    return false;
  }
}

// SlotMemory: the memory under a cache's slots: the layout, the numbers per slot, the fences of work that uses them,
// the addon's cache that maps rows under them, the pool that pages come from, and the views on them. Handed to every
// part that maps or reads; decides nothing.

/** A tensor of the cache as a kernel needs it: address of element [0, 0, 0, 0], shape, strides, dtype. */
export interface Tensor extends TensorPlacement {
  /** Address of element [0, 0, 0, 0]; the same as long as the cache is open. */
  readonly address: bigint;
}

/** What the memory is made of. */
type SlotMemoryParts =
  Pick<SlotMemory, 'native' | 'pool' | 'layout' | 'slots' | 'fences' | 'windows' | 'views' | 'background'> & {
    /** Whether pages are zeroed before another tenant gets them. */
    readonly isScrubbed: boolean;
  };

export class SlotMemory {
  /**
   * The addon's part. After each of its calls `slots.rows` is right; what its mapper maps is heard by `synchronize`.
   */
  readonly native: NativeCache;
  /** By `cacheNews`: what the last `synchronize` heard. */
  readonly news: Float64Array;
  /** The same, and of the layer sets with windows, in the order of `layout.sets`. */
  readonly natives: readonly NativeCache[];
  readonly pool: PagePool;
  readonly layout: Layout;
  readonly slots: Slots;
  /** The queued work that may still use each slot. */
  readonly fences: SlotFences;
  /** The layer sets that keep the last tokens alone; undefined where all layers keep all tokens. */
  readonly windows: WindowSets | undefined;
  readonly views: SlotViews;
  /** Failures that no call can report. */
  readonly background: BackgroundErrors;
  /** How tokens fall into rows. */
  readonly arithmetic: RowArithmetic;
  /** Every tensor on this worker, in layer order, K before V. */
  readonly tensors: readonly Tensor[];

  readonly #isScrubbed: boolean;
  readonly #newsOfAll: readonly Float64Array[];
  /** Failures of each set's mapping in the background that were heard of. */
  readonly #lateErrors: Float64Array;

  constructor({ native, pool, layout, slots, fences, windows, views, background, isScrubbed }: SlotMemoryParts) {
    this.native = native;
    this.news = native.news();
    this.natives = [native, ...windows?.all.map((set) => set.native) ?? []];
    this.#newsOfAll = this.natives.map((of) => of.news());
    this.#lateErrors = new Float64Array(this.natives.length);
    this.pool = pool;
    this.layout = layout;
    this.slots = slots;
    this.fences = fences;
    this.windows = windows;
    this.views = views;
    this.background = background;
    this.#isScrubbed = isScrubbed;
    this.arithmetic = rowArithmetic({ tokenBytes: layout.commonTokenBytes, pageBytes: layout.pageBytes });
    const addresses = this.natives.flatMap((of, index) =>
      Array.from({ length: layout.sets[index]!.reservations.count }, (_, reservation) => of.address(reservation)));
    this.tensors = Object.freeze(layout.tensors.map((tensor) => Object.freeze({
      ...tensor, address: addresses[tensor.reservation]! + BigInt(tensor.offsetBytes),
    })));
  }

  /** Number of a tenant for the addon; one for all where nothing is scrubbed. */
  tenantNumber(tenant: string | undefined): bigint {
    return this.#isScrubbed ? this.pool.tenantNumber(tenant) : 1n;
  }

  /**
   * Hears of the mapper: rows that it mapped, and failures that it met. All other calls leave `slots.rows` right
   * themselves.
   */
  synchronize(): void {
    for (let set = 0; set < this.natives.length; set += 1) {
      const native = this.natives[set]!;
      native.synchronize();
      if (this.#newsOfAll[set]![cacheNews.lateErrors] === this.#lateErrors[set]) continue;
      const state = native.mapperState(); // may have met more since
      this.background.addOfMapper(state, this.#lateErrors[set]!);
      this.#lateErrors[set] = state.lateErrors;
    }
  }

  /** Whether the mapper had nothing to do when `synchronize` heard of it. */
  get isMapperIdle(): boolean {
    return this.#newsOfAll.every((news) => news[cacheNews.isIdle] === 1);
  }

  /** Requests that the mapper has dropped, as far as `synchronize` heard. */
  get droppedRequests(): number {
    return this.#newsOfAll.reduce((sum, news) => sum + news[cacheNews.droppedRequests]!, 0);
  }

  /**
   * Unmaps the slot's rows from `rows` on; returns how many. The one way in which memory of the first layer set goes
   * away while a cache is open, but for a shared row that is exchanged. No queued work may use the rows. The mapper's
   * request is dropped, what was set aside for the slot too, and views are detached first. Throws what the driver
   * throws; then the rows are still there.
   */
  unmap(slot: number, rows: number): number {
    this.views.revoke(slot);
    const before = this.slots.rows[slot]!;
    this.native.shrink(slot, rows);
    this.slots.haveShrunk(slot);
    return before - this.slots.rows[slot]!;
  }

  /** Address of the slot's first token in a tensor. Throws KV_INVALID_OPTION. */
  address(slot: number, tensor: number): bigint {
    const { address, strides } = this.#tensor(tensor, 'Sequence.address');
    return address + BigInt(slot * strides.slotBytes);
  }

  /**
   * The slot's mapped tokens of a tensor as a typed array. Throws KV_INVALID_OPTION, and KV_VIEW_FORBIDDEN or
   * KV_DRIVER_UNSUPPORTED.
   */
  view(slot: number, tensor: number): TensorView {
    const placement = this.#tensor(tensor, 'Sequence.view');
    const { kind, info: { hasHostAccess } } = this.pool.driver;
    checkHostAccess(kind, hasHostAccess);
    this.synchronize();
    const { reservation } = placement;
    const set = this.#windowOf(reservation);
    if (set !== undefined) {
      const local = { ...placement, reservation: reservation - set.layout.reservations.first };
      const { pageBytes } = this.layout;
      const skippedBytes = set.firstMapped(slot) * placement.strides.tokenBytes;
      return set.views.open(slot, local, set.rows[slot]! * pageBytes, set.first[slot]! * pageBytes, skippedBytes);
    }
    const pages = this.layout.pagesIn(reservation, this.slots.ownRows(slot));
    return this.views.open(slot, placement, pages * this.layout.pageBytes);
  }

  /** The first token that `view` of a tensor shows. Throws KV_INVALID_OPTION. */
  firstToken(slot: number, tensor: number): number {
    const { reservation } = this.#tensor(tensor, 'Sequence.firstToken');
    this.synchronize();
    return this.#windowOf(reservation)?.firstMapped(slot) ?? 0;
  }

  /** The set with a window that a reservation is of. */
  #windowOf(reservation: number): WindowSet | undefined {
    return this.windows?.all.find(({ layout: { reservations: { first, count } } }) =>
      reservation >= first && reservation < first + count);
  }

  #tensor(index: number, owner: string): Tensor {
    const hint = typeof index === 'number' ? undefined : "Give the tensor's `index`.";
    checkInteger(owner, 'tensor', index, 0, this.tensors.length - 1, hint);
    return this.tensors[index]!;
  }
}
