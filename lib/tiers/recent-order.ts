// RecentOrder: which block of a tier goes first: the one used longest ago.

import type { BlockOrder } from './level-order.js';
import type { StoredBlock } from './stored-texts.js';

export class RecentOrder implements BlockOrder {
  /** The one used longest ago first. */
  readonly #blocks = new Set<StoredBlock>();

  set(block: StoredBlock): void {
    this.#blocks.delete(block);
    this.#blocks.add(block);
  }

  delete(block: StoredBlock): void {
    this.#blocks.delete(block);
  }

  take(skips: (block: StoredBlock) => boolean): StoredBlock | undefined {
    for (const block of this.#blocks) {
      if (skips(block)) continue;
      this.#blocks.delete(block);
      return block;
    }
    return undefined;
  }
}
