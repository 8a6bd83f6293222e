// SlotTable: the cache's numbers per slot, in typed arrays made once. Index everywhere: the slot. It keeps no rule; the rules
// are in kv-cache.ts and its neighbours. `rows` and `isQuarantined` are written by the addon (NativeCache.publish), everything
// else here.

import type { Layout } from '../layout/layout.js';
import type { SlotFences } from './slot-fences.js';

/** Where a slot is in its life. An idle slot in quarantine is out of service. */
export const slotStates = { idle: 0, active: 1, retiring: 2 } as const;

/** How a slot came to share the row that it writes to next. */
export const sharedTails = { none: 0, forked: 1, truncated: 2 } as const;

/** In `foreignRow`: all rows are the slot's. */
export const noForeignRow = 2 ** 31 - 1;

export class SlotTable {
  readonly count: number;
  readonly state: Uint8Array;
  /** Raised at every release: a handle with an older one is stale. */
  readonly generation: Uint32Array;
  /** Valid tokens. */
  readonly length: Int32Array;
  /** Tokens that a prepared batch is computing now. */
  readonly prepared: Int32Array;
  /** Mapped rows, as of the last publish. */
  readonly rows: Int32Array;
  /** 1: the driver refused to undo a failed change there; its rows stay as they are until the cache closes. */
  readonly isQuarantined: Uint8Array;
  /** Tokens that memory was promised for. */
  readonly promisedTokens: Int32Array;
  /** Ticks: when the slot was acquired or released last. */
  readonly lastUsed: Float64Array;
  /** One of `sharedTails`: not 0 when the row that the slot writes to next may have other users. */
  readonly sharedTail: Uint8Array;
  /**
   * First mapped row that is no longer the slot's, or `noForeignRow`: rows that a running sequence gave up, and that others may
   * use, stay mapped there while queued work may use the addresses. They hold nothing of the slot, and must not be written.
   */
  readonly foreignRow: Int32Array;
  readonly #layout: Layout;
  readonly #fences: SlotFences;

  constructor(layout: Layout, fences: SlotFences) {
    const { slots } = layout;
    this.count = slots;
    this.#layout = layout;
    this.#fences = fences;
    this.state = new Uint8Array(slots);
    this.generation = new Uint32Array(slots);
    this.length = new Int32Array(slots);
    this.prepared = new Int32Array(slots);
    this.rows = new Int32Array(slots);
    this.isQuarantined = new Uint8Array(slots);
    this.promisedTokens = new Int32Array(slots);
    this.lastUsed = new Float64Array(slots);
    this.sharedTail = new Uint8Array(slots);
    this.foreignRow = new Int32Array(slots).fill(noForeignRow);
  }

  /** Whether it is a SlotTable, and no object that only has its prototype. */
  static isInstance(value: unknown): value is SlotTable {
    return typeof value === 'object' && value !== null && #layout in value;
  }

  /** Whether a new sequence may have the slot. */
  isFree(slot: number): boolean {
    return this.state[slot] === slotStates.idle && this.isQuarantined[slot] === 0;
  }

  /** Whether a new sequence may have some slot. */
  hasFree(): boolean {
    for (let slot = 0; slot < this.count; slot += 1) if (this.isFree(slot)) return true;
    return false;
  }

  /** Mapped rows that are the slot's. */
  ownRows(slot: number): number {
    return Math.min(this.rows[slot]!, this.foreignRow[slot]!);
  }

  /** Whether the slot has memory for `tokens` tokens. */
  hasRoom(slot: number, tokens: number): boolean {
    return tokens * this.#layout.maxTokenBytes <= this.ownRows(slot) * this.#layout.pageBytes;
  }

  /** Rows of an active slot that must stay: its tokens, those being computed, those promised, and those that queued work may use. */
  neededRows(slot: number): number {
    const tokens = Math.max(this.length[slot]! + this.prepared[slot]!, this.promisedTokens[slot]!, this.#fences.pendingTokens(slot));
    return this.#layout.rowsFor(tokens);
  }

  /** Pages of the promise that are not mapped yet, among the rows up to `rows`. */
  promisedPages(slot: number, rows: number): number {
    const promisedRows = Math.min(rows, this.#layout.rowsFor(this.promisedTokens[slot]!));
    const mapped = this.rows[slot]!;
    return promisedRows > mapped ? this.#layout.pagesFor(promisedRows) - this.#layout.pagesFor(mapped) : 0;
  }

  /** Pages between the mapped rows and `rows`. */
  missingPages(slot: number, rows: number): number {
    const mapped = this.rows[slot]!;
    return rows > mapped ? this.#layout.pagesFor(rows) - this.#layout.pagesFor(mapped) : 0;
  }
}

/** Whether an object comes from a cache, by its table: constructors can be called by anybody, with anything. */
export function holdsTable(parts: unknown): boolean {
  try {
    return SlotTable.isInstance((parts as { readonly table: unknown }).table);
  } catch { // no object, or a proxy that answers with errors
    return false;
  }
}
