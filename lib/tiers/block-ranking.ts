// BlockRanking: which block of a tier goes first by score: what a use of it is worth × how often its text was used, the
// least first. Only blocks with none behind them in the tier are in it.

import { ScoreHeap } from '../base/score-heap.js';
import type { BlockOrder } from './level-order.js';
import type { StoredBlock } from './stored-texts.js';

export class BlockRanking implements BlockOrder {
  readonly #worthOf: (block: StoredBlock) => number;
  readonly #heap = new ScoreHeap();
  readonly #numbers = new Map<StoredBlock, number>();
  readonly #blocks = new Map<number, StoredBlock>();
  #nextNumber = 0;

  /** @param worthOf What a use of the block is worth, 0 or more. */
  constructor(worthOf: (block: StoredBlock) => number) {
    this.#worthOf = worthOf;
  }

  has(block: StoredBlock): boolean {
    return this.#numbers.has(block);
  }

  /** Adds a block, or ranks it anew. */
  set(block: StoredBlock): void {
    let number = this.#numbers.get(block);
    if (number === undefined) {
      number = this.#nextNumber++;
      this.#numbers.set(block, number);
      this.#blocks.set(number, block);
    }
    this.#heap.set(number, this.#scoreOf(block));
  }

  delete(block: StoredBlock): void {
    const number = this.#numbers.get(block);
    if (number === undefined) return;
    this.#heap.delete(number);
    this.#numbers.delete(block);
    this.#blocks.delete(number);
  }

  /** Takes out the block that goes first of those that `skips` does not say so of; undefined: none. */
  take(skips: (block: StoredBlock) => boolean): StoredBlock | undefined {
    const skipped: (readonly [number: number, score: number])[] = [];
    let found: StoredBlock | undefined;
    for (let top = this.#heap.top; top !== undefined && found === undefined; top = this.#heap.top) {
      const score = this.#heap.scoreOf(top)!;
      const block = this.#blocks.get(top)!;
      if (skips(block)) {
        skipped.push([top, score]);
        this.#heap.delete(top);
      } else {
        found = block;
        this.delete(block);
      }
    }
    for (const [number, score] of skipped) this.#heap.set(number, score);
    return found;
  }

  /** Whether a block scores more than some block that is there. */
  isAboveLowest(block: StoredBlock): boolean {
    const { top } = this.#heap;
    return top !== undefined && this.#heap.scoreOf(top)! < this.#scoreOf(block);
  }

  /** Ranks all blocks anew: their uses have changed. */
  refresh(): void {
    for (const [block, number] of this.#numbers) this.#heap.set(number, this.#scoreOf(block));
  }

  #scoreOf(block: StoredBlock): number {
    return this.#worthOf(block) * block.uses;
  }
}
