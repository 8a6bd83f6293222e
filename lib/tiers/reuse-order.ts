// ReuseOrder: which block of a tier goes first: the one that is least likely to be used again (TextReuse). Blocks are
// in a list for each class of text, the one used longest ago first; within a class worth may fall or rise with age, so
// the two ends of each list are compared and nothing else, as the eviction policy `adaptive` does.

import { NodeLists } from '../prefix/eviction/node-lists.js';
import { textClasses } from '../prefix/eviction/text-class.js';
import type { BlockOrder } from './level-order.js';
import type { StoredBlock } from './stored-texts.js';
import type { TextReuse } from './text-reuse.js';

export class ReuseOrder implements BlockOrder {
  readonly #reuse: TextReuse;
  readonly #lists = new NodeLists(textClasses);
  readonly #numbers = new Map<StoredBlock, number>();
  readonly #blocks: (StoredBlock | undefined)[] = [];
  readonly #free: number[] = [];

  constructor(reuse: TextReuse) {
    this.#reuse = reuse;
  }

  /** Adds a block as the one used last, or makes it that. Of a text's blocks the last one comes first. */
  set(block: StoredBlock): void {
    let number = this.#numbers.get(block);
    if (number === undefined) {
      number = this.#free.pop() ?? this.#blocks.length;
      this.#numbers.set(block, number);
      this.#blocks[number] = block;
    } else {
      this.#lists.remove(number);
    }
    this.#lists.add(number, this.#reuse.classOf(block));
  }

  delete(block: StoredBlock): void {
    const number = this.#numbers.get(block);
    if (number === undefined) return;
    this.#lists.remove(number);
    this.#numbers.delete(block);
    this.#blocks[number] = undefined;
    this.#free.push(number);
  }

  /**
   * Takes out the block that goes first of those with none behind them here that `skips` does not say so of; undefined:
   * none.
   */
  take(skips: (block: StoredBlock) => boolean): StoredBlock | undefined {
    const skipped: StoredBlock[] = [];
    let found: StoredBlock | undefined;
    for (let block = this.#least(); block !== undefined; block = this.#least()) {
      const end = this.#endOf(block);
      if (!skips(end)) {
        found = end;
        this.delete(end);
        break;
      }
      // what it hangs on stays, too
      for (let at: StoredBlock | undefined = end; at !== undefined && this.#isListed(at); at = at.parent) {
        skipped.push(at);
        this.#lists.remove(this.#numbers.get(at)!);
      }
    }
    for (const block of skipped) this.set(block); // they are read, or what comes goes on behind them: they are used now
    return found;
  }

  /** The block worth least that is in a list. */
  #least(): StoredBlock | undefined {
    let [least, worst] = [Infinity, -1];
    for (let list = 0; list < textClasses; list += 1) {
      const oldest = this.#lists.oldest(list);
      if (oldest < 0) continue;
      for (const number of [oldest, this.#lists.newest(list)]) {
        const value = this.#reuse.valueOf(this.#blocks[number]!, list);
        if (value >= least) continue;
        least = value;
        worst = number;
      }
    }
    return this.#blocks[worst];
  }

  /**
   * A block behind it that is in a list and has none behind it that is: what uses a block uses those before it, so it
   * is worth no more.
   */
  #endOf(block: StoredBlock): StoredBlock {
    for (let end = block; ;) {
      const next = end.children.find((child) => this.#isListed(child));
      if (next === undefined) return end;
      end = next;
    }
  }

  #isListed(block: StoredBlock): boolean {
    const number = this.#numbers.get(block);
    return number !== undefined && this.#lists.listOf(number) >= 0;
  }
}
