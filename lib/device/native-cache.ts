// The addon's pools, arenas and caches as TypeScript sees them: pages, slots and rows.

import type { NativeDriver } from './native-driver.js';

export interface NativePoolCounts {
  readonly budgetPages: number;
  readonly createdPages: number;
  readonly freePages: number;
  readonly mappedPages: number;
  readonly earmarkedPages: number;
  readonly quarantinedPages: number;
}

export interface NativePool {
  /** Writes budget, created, free, mapped, earmarked and quarantined pages. */
  count(into: Float64Array): void;
  /** Below zero when a lowered budget is exceeded. */
  available(): number;
  setBudget(bytes: number): void;
  trim(keepPages: number): void;
  close(): void;
}

const counted = new Float64Array(6);

/** Counts the pages by state: with one crossing, and no object that the addon has to name members of. */
export function countPages(pool: NativePool): NativePoolCounts {
  pool.count(counted);
  return {
    budgetPages: counted[0]!, createdPages: counted[1]!, freePages: counted[2]!, mappedPages: counted[3]!,
    earmarkedPages: counted[4]!,
    quarantinedPages: counted[5]!,
  };
}

export interface NativeCacheOptions {
  readonly pageBytes: number;
  readonly slots: number;
  readonly maxTokens: number;
  /** Bytes of one token in each reservation. */
  readonly tokenBytes: Float64Array;
  /** Per tensor: reservation, offset in that reservation's token, bytes. */
  readonly tensors: Float64Array;
  readonly scrub: boolean;
  /**
   * Whether rows are mapped in the background; or a cache of the same pool, whose thread does it for this one, too: the
   * slots of both take turns, and each can be closed first. Throws KV_INTERNAL where that cache has none, and KV_CLOSED
   * where it is closed.
   */
  readonly mapper: boolean | NativeCache;
  /** Host: numbers of the tensors, and of the layer set, which a write names on stderr where it hits no memory. */
  readonly faultNames?: Float64Array;
  readonly faultSet?: number;
}

export interface NativeCacheCounters {
  readonly foregroundRows: number;
  readonly foregroundMaps: number;
  readonly backgroundRows: number;
  readonly backgroundMaps: number;
  /** Rows mapped from what other slots or the prefix cache have; their pages in `aliasMaps`. */
  readonly aliasedRows: number;
  readonly aliasMaps: number;
  /** Shared rows that a slot got pages of its own for, because it was going to write there. */
  readonly detachedRows: number;
  /** Bytes of K and V copied within the cache. */
  readonly copiedBytes: number;
  /** Of all rows, those that slid among them; their pages in `unmaps`. */
  readonly unmappedRows: number;
  readonly unmaps: number;
  /** Rows unmapped in front of a slot. */
  readonly slidRows: number;
  /** Rows mapped with pages of rows that slid; in no other count of mapped rows. */
  readonly handedRows: number;
  readonly scrubbedPages: number;
  readonly mappedRows: number;
  readonly mappedPages: number;
  /** Rows kept for their content, mapped or not. */
  readonly keptRows: number;
  readonly quarantinedSlots: number;
}

export interface NativeMapperState {
  readonly isIdle: boolean;
  readonly lateErrors: number;
  readonly droppedRequests: number;
  readonly lastError: Error | undefined;
}

/** Places of `NativeCache.news()`. */
export const cacheNews = {
  /**
   * Failures of the driver that the mapper met, since the cache was opened; where it has grown, `mapperState()` has the
   * last one.
   */
  lateErrors: 0,
  /**
   * Requests that the mapper dropped for want of pages, device memory or kernel mappings, since the cache was opened.
   */
  droppedRequests: 1,
  /** 1: the mapper has nothing to do, and all that it mapped is in the bound arrays; 0: it works or is about to. */
  isIdle: 2,
  /**
   * Pages that can be taken from the pool, by any of its caches, beside those set aside; below zero when a lowered
   * budget is exceeded.
   */
  availablePages: 3,
} as const;

/** The pages of a host driver, where a device's driver writes to them by itself. */
export interface NativeArena {
  /** Bytes that are registered with the device now; bytes that were copied to pages which it refused to register. */
  counts(): { readonly registeredBytes: number; readonly pageableBytes: number };
  /** Waits for queued copies. Idempotent; after a failure call it again. */
  close(): void;
}

/**
 * Slots and rows. `pairs` is [slot, rows] × count. A slot maps the rows from its first one, which is 0 until it slides,
 * to `rows`, where they end; an empty one begins where it ends.
 *
 * The addon writes the arrays that the cache was opened with, on the JavaScript thread and only inside a call: what
 * `grow`, `shrink`, `slide`, `admit`, `assign`, `alias`, `shareRows`, `detach`, `cancel`, `quiesce` and `close` changed
 * stands there when they return or throw, and with it what the mapper has changed by then; no other call changes a
 * slot. `synchronize` is for the mapper's news alone. Where the memory of an array was given away, these calls do what
 * they do and then throw KV_INTERNAL, all but `close`.
 *
 * `shrink`, `admit`, `assign`, `alias`, `shareRows` and `detach` cancel what the mapper was asked for the slot before
 * they look at it.
 */
export interface NativeCache {
  grow(pairs: Int32Array, count: number): void;
  request(pairs: Int32Array, count: number): void;
  /** Drops what the mapper was asked for the slot, and waits for the row at hand if it is the slot's. */
  cancel(slot: number): void;
  /** Drops all requests of this cache and waits for its row at hand, and for a page that is being created. */
  quiesce(): void;
  /** Unmaps from the end until the slot ends at row `rows`; before its first row, it is empty and begins there. */
  shrink(slot: number, rows: number): void;
  /**
   * Unmaps the rows before `first` of each slot; `triples` is [slot, first, rows] × count. Their pages become the rows
   * that the slot lacks of those before `rows`, as far as they reach; the others go to the pool. Where no row is left
   * the slot is empty and begins at `first`; an empty one moves there, so that `grow` maps from there on. What is set
   * aside moves along; it loses rows only where pages do not come free, since others map them too, and the pool has
   * none.
   *
   * The first refusal of the driver ends the call: slots before that one have slid, those behind are as before. Where
   * it refused to unmap, the slot is as before; where it refused to map, the slot has slid, and the pages went to the
   * pool. Where it refused the undo too, the slot is in quarantine.
   */
  slide(triples: Int32Array, count: number): void;
  /**
   * Sets pages aside until the slot has `rows` rows, counted from its first one; with fewer than it has, none are any
   * more.
   */
  earmark(slot: number, rows: number): void;
  assign(slot: number, tenant: bigint): void;
  /** Keeps rows as `id`: `triples` is [slot, row, id] × count. */
  keep(triples: Int32Array, count: number): void;
  drop(ids: Int32Array, count: number): void;
  /**
   * What an idle slot gets for a new sequence, all of it or nothing: it is `tenant`'s; the kept rows ids[from … to)
   * are mapped behind its rows, which end at row `from` if there are any; rows of its own behind those, until it has
   * `rows`; pages are set aside until it has `earmarkedRows` (0: none are); and with `copyTokens` > 0 the slot's tokens
   * before that which lie in row `to` are copied there, from the slot `copySource`, or where it is -1 from what is
   * kept as `copyId`; done when it returns, or with `stream` (and `copySource`) queued there.
   *
   * Needs as many pages as lie between the rows behind those and the larger of `rows` and `earmarkedRows`, and mappings
   * for the kept rows as well. Throws KV_OUT_OF_PAGES, KV_OUT_OF_MAPPINGS, KV_OUT_OF_DEVICE_MEMORY or what else the
   * driver says; the slot then has the rows it had and no more pages set aside, so that the same call can follow
   * once there is room. Where the driver refused the undo too, it is in quarantine.
   */
  admit(
    slot: number, tenant: bigint, ids: Int32Array, from: number, to: number, rows: number, earmarkedRows: number,
    copySource: number, copyId: number, copyTokens: number, stream: bigint | undefined,
  ): void;
  /** Maps the kept rows ids[from … to) behind the slot's rows; an empty slot begins at row `from` then. */
  alias(slot: number, ids: Int32Array, from: number, to: number): void;
  /**
   * Maps what `fromSlot` maps before row `rows` in a slot that is empty, at the same place, for the same tenant: all or
   * nothing, as `admit`. What is set aside for the slot keeps its number of rows: pages that this saves are free again.
   */
  shareRows(fromSlot: number, slot: number, rows: number): void;
  /**
   * Gives the slot pages of its own for a row, of which the tokens before `tokens` are copied: from `fromSlot`, which
   * maps it too, by a copy that is queued on `stream`; where it is -1, the copy is done when the call returns.
   * Does nothing where the slot alone refers to the pages of that row.
   */
  detach(slot: number, row: number, tokens: number, fromSlot: number, stream: bigint): void;
  /**
   * Copies the slot's tokens before `tokens` that lie in `row` into a row of its own, as `admit` does; done when the
   * call returns.
   */
  copy(slot: number, row: number, fromSlot: number, id: number, tokens: number): void;
  /**
   * Writes tokens of a cache with one reservation: `quads` is [slot, first token, tokens, token of `bytes`] × count.
   * The slots have rows for them, and no queued work uses them.
   */
  put(quads: Int32Array, count: number, bytes: Uint8Array): void;
  /**
   * Copies bytes of a slot, from byte `from` of its part of the reservation on: few, or such as were never touched.
   * Throws KV_COPY_OUT_OF_RANGE where one is not mapped.
   */
  read(slot: number, reservation: number, from: number, bytes: Uint8Array): void;
  /**
   * The same from memory of `driver`, from an address on, of `bytes` bytes: queued on `stream` where it is the cache's
   * own driver, or copies through `arena`, and has streams; else done when the call returns. After a failure some of it
   * may be queued.
   */
  fetch(
    quads: Int32Array, count: number, driver: NativeDriver, from: bigint, bytes: number, stream: bigint,
    arena: NativeArena | undefined,
  ): void;
  /** Writes the slots that the mapper changed into the bound arrays, and `news()`. Throws KV_CLOSED once closed. */
  synchronize(): void;
  /**
   * The array of `cacheNews` that `synchronize` writes, and no other call: always the same one, made with the cache, of
   * zeros at first.
   */
  news(): Float64Array;
  mapperState(): NativeMapperState;
  counters(): NativeCacheCounters;
  address(reservation: number): bigint;
  /**
   * Bytes [from, to) of a slot in a reservation, which are mapped, as are all from its first row to there; valid until
   * `revoke`. V8 counts all that windows show as memory that it could free; one of up to 64 MiB takes the place of
   * those that were revoked. Throws KV_COPY_OUT_OF_RANGE where `from` lies before the slot's first row.
   */
  window(slot: number, reservation: number, from: number, to: number): ArrayBuffer;
  /** To be called before a slot's windows are detached: for V8, the next ones take their place. */
  beforeRevoke(slot: number): void;
  /**
   * The windows of a slot show nothing of it any more: reads give zeros. Where one `isEscaped`, writes reach private
   * memory; else the caller must not touch them.
   */
  revoke(slot: number, isEscaped: boolean): void;
  stamp(slot: number, from: number, tokens: number, key: bigint): void;
  check(slot: number, from: number, tokens: number, key: bigint): number;
  /** Throws KV_INTERNAL; returns the pages in use here, each counted once. */
  verify(): number;
  /**
   * Starts threads that copy blocks; once. `done` hears of each copy: the first tensor whose sum is another (-1: none),
   * or what failed. `probes`: [tensor, bytes] of each stripe behind those of the tensors, which a store makes of the
   * first bytes of each token of that tensor.
   */
  openCopier(
    threads: number, done: (id: number, damagedTensor: number, error: Error | undefined) => void, probes: Float64Array,
  ): void;
  /**
   * Copies tokens [from, from + tokens) of the slot to or from a block of `blockTokens` tokens, `skipped` tokens behind
   * its start; `isOrdered`: behind what the gate waits for. `sums`: a CRC-32C per stripe. Until it is told, nothing
   * takes the slot's rows, and both arrays stay. Throws KV_INTERNAL without rows for the tokens, or with too short a
   * payload, and what the driver refuses.
   */
  copyBlock(
    id: number, isLoad: boolean, slot: number, from: number, tokens: number, skipped: number, blockTokens: number,
    payload: Uint8Array,
    sums: Uint32Array, isOrdered: boolean,
  ): void;
  copierGate(): bigint; // a stream: ordered copies that are begun later come after what it was made to wait for
  /** Pinned and pageable bytes of the memory that copies go through; undefined: the CPU copies by itself. */
  copierStaging(): readonly [pinned: number, pageable: number] | undefined;
  /** Waits for the copies at hand; the others are dropped, and not told any more. */
  cancelCopies(): void;
  close(): void;
}
