// SlotChoice: which idle slot a sequence gets: every choice of one is here. It lists the idle slots that still hold the
// start of some text, each by its last row, since a slot that holds a text's last row holds all of it; a
// request that goes on where such a slot ends adopts it, and nothing is mapped or copied.

import { enlarged } from '../base/typed-arrays.js';
import type { RowRegistry } from './row-registry.js';
import type { SlotMemory, Slots } from './slots.js';

/** Slots that one is chosen from. */
export interface IdleSlots {
  /** How many there are. */
  count: number;
  /** The first `count` entries. */
  readonly slots: Int32Array;
  /** By slot: rows mapped in it. */
  readonly rows: Int32Array;
  /** By slot: when it was released or acquired last; larger is later. */
  readonly lastUsed: Float64Array;
}

/**
 * The slot whose mapped rows fit best: the fewest of those with enough, else the most of those with too few; so that
 * the least is mapped now and the least left unused. Among equals the one released longest ago. At least one is given.
 */
export function bestFit({ count, slots, rows, lastUsed }: IdleSlots, neededRows: number): number {
  let best = slots[0]!;
  for (let index = 1; index < count; index += 1) {
    const slot = slots[index]!;
    const order = compareFit(rows[slot]!, rows[best]!, neededRows);
    if (order < 0 || (order === 0 && lastUsed[slot]! < lastUsed[best]!)) best = slot;
  }
  return best;
}

/** Negative when `rows` fits better than `other`. */
export function compareFit(rows: number, other: number, neededRows: number): number {
  const isEnough = rows >= neededRows;
  if (isEnough !== other >= neededRows) return isEnough ? -1 : 1;
  return isEnough ? rows - other : other - rows;
}

export class SlotChoice {
  readonly #slots: Slots;
  readonly #registry: RowRegistry;
  /** By number of a row: slot + 1 of the one that was added last; 0: none. */
  #first = new Int32Array(64);
  // By slot.
  readonly #next: Int32Array;
  readonly #previous: Int32Array;
  /** The row it is listed under, or -1. */
  readonly #under: Int32Array;
  /** The candidates of a choice. */
  readonly #idle: IdleSlots;

  constructor({ slots }: SlotMemory, registry: RowRegistry) {
    this.#slots = slots;
    this.#registry = registry;
    this.#next = new Int32Array(slots.count).fill(-1);
    this.#previous = new Int32Array(slots.count).fill(-1);
    this.#under = new Int32Array(slots.count).fill(-1);
    this.#idle = { count: 0, slots: new Int32Array(slots.count), rows: slots.rows, lastUsed: slots.lastUsed };
  }

  /** Lists an idle slot that holds a text's first `rows` rows, which have numbers; not if it holds none. */
  add(slot: number, rows: number): void {
    if (rows === 0) return;
    const id = this.#registry.idsOf(slot)[rows - 1]!;
    if (id >= this.#first.length) this.#first = enlarged(this.#first, Math.max(id + 1, 2 * this.#first.length));
    const next = this.#first[id]! - 1;
    this.#under[slot] = id;
    this.#next[slot] = next;
    this.#previous[slot] = -1;
    if (next >= 0) this.#previous[next] = slot;
    this.#first[id] = slot + 1;
  }

  /** Takes a slot out of the list, if it is there. */
  remove(slot: number): void {
    const id = this.#under[slot]!;
    if (id < 0) return;
    const next = this.#next[slot]!;
    const previous = this.#previous[slot]!;
    if (next >= 0) this.#previous[next] = previous;
    if (previous >= 0) this.#next[previous] = next;
    else this.#first[id] = next + 1;
    this.#under[slot] = -1;
  }

  /** Whether the slot is listed: it holds the start of a text. */
  has(slot: number): boolean {
    return this.#under[slot]! >= 0;
  }

  /** A listed slot whose text ends with this row, or -1. */
  endingIn(id: number): number {
    return id < this.#first.length ? this.#first[id]! - 1 : -1;
  }

  /** The same that a new sequence may have. */
  freeEndingIn(id: number): number {
    const slot = this.endingIn(id);
    return slot >= 0 && this.#slots.isFree(slot) ? slot : -1;
  }

  /**
   * For a text of its own: of the slots without content the one whose rows fit best, or else the one used longest ago;
   * -1: none is idle. `promptRows` is 0 where the prompt's length is not known.
   */
  forText(promptRows: number): number {
    const oldest = this.#collectBlanks();
    return this.#idle.count === 0 ? oldest : bestFit(this.#idle, promptRows);
  }

  /**
   * For a sequence that begins with the rows ids[0 … count): the slot that has most of them, from the first on, and
   * how many; -1 and 0: none has any. A slot that goes on with another text, which stays cached, is taken where
   * unmapping that is less work than mapping what the next best slot lacks.
   */
  forRows(ids: Int32Array, count: number): { readonly slot: number; readonly rows: number } {
    let rows = count;
    let slot = -1;
    while (rows > 0 && (slot = this.freeEndingIn(ids[rows - 1]!)) < 0) rows -= 1;
    if (rows === count) return { slot, rows };
    let longer = -1;
    let fewestRows = 2 * count - rows;
    for (const other of this.#registry.slotsOf(ids[count - 1]!)) {
      if (!this.has(other) || !this.#slots.isFree(other) || this.#slots.rows[other]! >= fewestRows) continue;
      longer = other;
      fewestRows = this.#slots.rows[other]!;
    }
    return longer < 0 ? { slot, rows } : { slot: longer, rows: count };
  }

  /**
   * For rows of other slots: the slot without content that has fewest rows, or else the one used longest ago; -1: none
   * is idle.
   */
  forSharedRows(): number {
    const oldest = this.#collectBlanks();
    const { slots, rows, count } = this.#idle;
    let emptiest = count === 0 ? oldest : slots[0]!;
    for (let at = 1; at < count; at += 1) if (rows[slots[at]!]! < rows[emptiest]!) emptiest = slots[at]!;
    return emptiest;
  }

  /** The idle slot without content that has most rows, or -1. */
  fullestBlank(): number {
    this.#collectBlanks();
    const { slots, rows, count } = this.#idle;
    let fullest = count === 0 ? -1 : slots[0]!;
    for (let at = 1; at < count; at += 1) if (rows[slots[at]!]! > rows[fullest]!) fullest = slots[at]!;
    return fullest;
  }

  /** Rows of idle slots that hold no text. */
  blankRows(): number {
    let rows = 0;
    for (let slot = 0; slot < this.#slots.count; slot += 1) {
      if (this.#slots.isFree(slot)) rows += this.#slots.rows[slot]! - this.#registry.namedRows(slot);
    }
    return rows;
  }

  /** The listed slot that was used longest ago, or -1. */
  oldestWithContent(): number {
    const { count, lastUsed } = this.#slots;
    let oldest = -1;
    for (let slot = 0; slot < count; slot += 1) {
      if (this.#under[slot]! >= 0 && (oldest < 0 || lastUsed[slot]! < lastUsed[oldest]!)) oldest = slot;
    }
    return oldest;
  }

  /** Makes the idle slots without content the candidates; returns the idle slot used longest ago, or -1. */
  #collectBlanks(): number {
    const { count, rows, lastUsed } = this.#slots;
    const { named } = this.#registry;
    const idle = this.#idle;
    let oldest = -1;
    idle.count = 0;
    for (let slot = 0; slot < count; slot += 1) {
      if (!this.#slots.isFree(slot)) continue;
      if (oldest < 0 || lastUsed[slot]! < lastUsed[oldest]!) oldest = slot;
      if (named[slot]! > 0 && rows[slot]! > 0) continue;
      idle.slots[idle.count] = slot;
      idle.count += 1;
    }
    return oldest;
  }
}
