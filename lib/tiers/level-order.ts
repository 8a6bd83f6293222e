// LevelOrder: which block of a tier goes first: one of the lowest priority level, and within a level what an order of
// its own says. A block counts with the level that it had when it was set last. Levels are few: each in use has an
// order.

import type { StoredBlock } from './stored-texts.js';

/** Which block of one level goes first. */
export interface BlockOrder {
  /** Adds a block as the one used last, or makes it that. */
  set(block: StoredBlock): void;
  delete(block: StoredBlock): void;
  /** Takes out the block that goes first of those that `skips` does not say so of; undefined: none. */
  take(skips: (block: StoredBlock) => boolean): StoredBlock | undefined;
  /** Whether a block is worth more than some block that is there; left out: that is not known. */
  isAboveLowest?(block: StoredBlock): boolean;
  /** Ranks all blocks anew, where what they are worth changes by itself. */
  refresh?(): void;
}

export class LevelOrder {
  readonly #makeOrder: () => BlockOrder;
  readonly #orders = new Map<number, BlockOrder>();
  readonly #levels = new Map<StoredBlock, number>();
  /** Blocks by level, of levels that have some; the lowest first. */
  readonly #counts: { readonly level: number; blocks: number }[] = [];

  constructor(makeOrder: () => BlockOrder) {
    this.#makeOrder = makeOrder;
  }

  has(block: StoredBlock): boolean {
    return this.#levels.has(block);
  }

  /** The lowest level that has a block; undefined: there is none. */
  get lowest(): number | undefined {
    return this.#counts[0]?.level;
  }

  /** Adds a block as the one used last, or makes it that. */
  set(block: StoredBlock): void {
    const { level } = block;
    if (this.#levels.get(block) !== level) {
      this.delete(block);
      this.#levels.set(block, level);
      this.#count(level, 1);
    }
    let order = this.#orders.get(level);
    if (order === undefined) this.#orders.set(level, order = this.#makeOrder());
    order.set(block);
  }

  delete(block: StoredBlock): void {
    const level = this.#levels.get(block);
    if (level === undefined) return;
    this.#orders.get(level)!.delete(block);
    this.#forget(block, level);
  }

  /** Takes out the block that goes first of those up to a level that `skips` does not say so of; undefined: none. */
  take(skips: (block: StoredBlock) => boolean, mostLevel: number): StoredBlock | undefined {
    for (const { level } of this.#counts) {
      if (level > mostLevel) break;
      const block = this.#orders.get(level)!.take(skips);
      if (block === undefined) continue;
      this.#forget(block, level);
      return block;
    }
    return undefined;
  }

  /** Whether a block is worth more than some block that is there. */
  isAboveLowest(block: StoredBlock): boolean {
    const { lowest } = this;
    if (lowest === undefined || block.level !== lowest) return lowest !== undefined && block.level > lowest;
    return this.#orders.get(lowest)!.isAboveLowest?.(block) ?? false;
  }

  /** Ranks all blocks anew, where what they are worth changes by itself. */
  refresh(): void {
    for (const order of this.#orders.values()) order.refresh?.();
  }

  #forget(block: StoredBlock, level: number): void {
    this.#levels.delete(block);
    this.#count(level, -1);
  }

  #count(level: number, added: number): void {
    const place = this.#counts.findIndex((count) => count.level >= level);
    const count = this.#counts[place];
    if (count?.level !== level) {
      this.#counts.splice(place < 0 ? this.#counts.length : place, 0, { level, blocks: added });
      return;
    }
    count.blocks += added;
    if (count.blocks > 0) return;
    this.#counts.splice(place, 1);
    this.#orders.delete(level);
  }
}
