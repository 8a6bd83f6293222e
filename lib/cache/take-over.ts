// TakeOver: which cached text makes way for a new one as a whole, so that the new one gets its slot with the rows
// mapped there: nothing is mapped or unmapped then. The eviction policy names the texts that may go, and of those the
// one is chosen whose rows fit the prompt.
//
// Owns no state.

import { cacheNews } from '../device/native.js';
import type { CachedRows } from './cached-rows.js';
import type { RowSupply } from './row-supply.js';
import { compareFit } from './memory-policies.js';
import type { SlotMemory } from './slot-memory.js';

/** Texts that the policy is asked for. More save more mappings, and stray further from its order. */
const candidates = 8;
/** Rows that are evicted beyond need, at most: as a share of those that need not be mapped for it. */
const excessShare = 1 / 4;

export class TakeOver {
  readonly #memory: SlotMemory;
  readonly #supply: RowSupply;
  readonly #cached: CachedRows;
  readonly #leaves = new Int32Array(candidates);

  constructor(memory: SlotMemory, supply: RowSupply, cached: CachedRows) {
    this.#memory = memory;
    this.#supply = supply;
    this.#cached = cached;
  }

  /**
   * Where a text of its own must displace cached ones, those go first that idle slots hold: it then gets one with their
   * rows.
   */
  makeWay(promptRows: number): void {
    if (!this.#memory.slots.hasFree()) return;
    const missing = this.#missing(promptRows);
    if (missing <= 0) return;
    const leaf = this.#bestLeaf(promptRows, missing);
    if (leaf < 0) {
      this.#cached.evictInPlace(missing);
      return;
    }
    this.#cached.index.evictLeaf(leaf);
    this.#cached.endDropped();
    const left = this.#missing(promptRows);
    if (left > 0) this.#cached.evictInPlace(left);
  }

  /**
   * Pages that the prompt lacks beside the fullest slot without content, and that only eviction gives; 0 or less: none,
   * or not even so.
   */
  #missing(promptRows: number): number {
    const { layout, slots, news } = this.#memory;
    const fullest = this.#cached.choice.fullestBlank();
    const lackingPages = (): number => layout.pagesBetween(fullest < 0 ? 0 : slots.rows[fullest]!, promptRows);
    if (lackingPages() <= news[cacheNews.availablePages]!) return 0;
    return this.#supply.missingWithoutEviction(lackingPages, fullest);
  }

  /** The leaf whose slot has the fewest rows that are enough, or else the most; -1: none is worth it. */
  #bestLeaf(promptRows: number, missingPages: number): number {
    const { index, choice } = this.#cached;
    const { slots, layout } = this.#memory;
    const missingRows = Math.ceil(missingPages / layout.pagesPerRow);
    const fullest = choice.fullestBlank();
    const blankRows = fullest < 0 ? 0 : slots.rows[fullest]!;
    const count = index.victims(this.#leaves);
    let best = -1;
    let bestRows = 0;
    for (let at = 0; at < count; at += 1) {
      const leaf = this.#leaves[at]!;
      const rows = this.#rowsOf(leaf);
      const gained = Math.min(rows, promptRows) - blankRows;
      if (gained <= 0 || rows - missingRows > excessShare * gained) continue;
      if (best >= 0 && compareFit(rows, bestRows, promptRows) >= 0) continue;
      best = leaf;
      bestRows = rows;
    }
    return best;
  }

  /**
   * Rows of an idle slot that hold this text and no other, from the first on; 0: there is none, or other slots map some
   * of them.
   */
  #rowsOf(leaf: number): number {
    const { index, choice, registry } = this.#cached;
    const lastRow = index.lastRowOfWhole(leaf);
    const slot = lastRow < 0 ? -1 : choice.freeEndingIn(lastRow);
    if (slot < 0 || registry.numbers.mappers[registry.idsOf(slot)[0]!]! > 1) return 0;
    return this.#memory.slots.rows[slot]!;
  }
}
