// EncoderRoom: the bytes of an EncoderCache. It counts items within the budget, and evicts those without a hold, the
// least recently used first, when room is needed and never before.
//
// Invariants: pinned bytes (held, or being computed) + unheld bytes = used bytes. Used bytes exceed the budget only by
// pinned ones, after the budget was lowered.

import type { EncoderItem } from './encoder-item.js';

export class EncoderRoom {
  /** Items with more bytes than the whole budget are counted here instead. */
  outsideBytes = 0;
  evictions = 0;
  evictedBytes = 0;
  #budgetBytes: number;
  #usedBytes = 0;
  #unheldBytes = 0;
  /** In the order of their last use. */
  readonly #unheld = new Set<EncoderItem>();
  readonly #evicted: (item: EncoderItem) => void;

  /** `evicted` is told of each item that is evicted; it must only forget it. */
  constructor(budgetBytes: number, evicted: (item: EncoderItem) => void) {
    this.#budgetBytes = budgetBytes;
    this.#evicted = evicted;
  }

  get budgetBytes(): number {
    return this.#budgetBytes;
  }

  get usedBytes(): number {
    return this.#usedBytes;
  }

  /** Bytes that cannot be had now. */
  get pinnedBytes(): number {
    return this.#usedBytes - this.#unheldBytes;
  }

  /** Whether so many bytes can be had now. */
  hasRoomFor(bytes: number): boolean {
    return this.pinnedBytes + bytes <= this.#budgetBytes;
  }

  /** Counts an item's bytes, pinned; evicts for them. The room must be there. */
  take(item: EncoderItem, bytes: number): void {
    this.#evictTo(this.#budgetBytes - bytes);
    item.countedBytes = bytes;
    this.#usedBytes += bytes;
  }

  /** Counts an item's bytes outside the budget, for as long as it is held. */
  takeOutside(item: EncoderItem): void {
    item.isOutside = true;
    this.outsideBytes += item.bytes!;
  }

  /** The item is held: it is not evicted from now on. */
  pin(item: EncoderItem): void {
    if (this.#unheld.delete(item)) this.#unheldBytes -= item.countedBytes;
  }

  /** The last hold was released: the item may be evicted from now on. */
  unpin(item: EncoderItem): void {
    this.#unheld.add(item);
    this.#unheldBytes += item.countedBytes;
    this.#evictTo(this.#budgetBytes);
  }

  /** The item's rows are gone, or will be with the last hold of them: its bytes are free. */
  giveBack(item: EncoderItem): void {
    this.pin(item);
    this.#usedBytes -= item.countedBytes;
    item.countedBytes = 0;
    if (item.isOutside) this.outsideBytes -= item.bytes!;
    item.isOutside = false;
  }

  setBudget(budgetBytes: number): void {
    this.#budgetBytes = budgetBytes;
    this.#evictTo(budgetBytes);
  }

  clear(): void {
    this.#unheld.clear();
    this.#unheldBytes = 0;
    this.#usedBytes = 0;
    this.outsideBytes = 0;
  }

  #evictTo(bytes: number): void {
    for (const item of this.#unheld) {
      if (this.#usedBytes <= bytes) return;
      this.evictions += 1;
      this.evictedBytes += item.countedBytes;
      this.giveBack(item);
      this.#evicted(item);
    }
  }
}
