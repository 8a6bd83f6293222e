// CoverOrder: which covered texts were used longest ago, by node. A node was used no earlier than what lies behind it,
// so the ends of a text come before its start.

import { enlarged } from '../base/typed-arrays.js';

export class CoverOrder {
  /** The one used longest ago first. */
  readonly #nodes = new Set<number>();
  #lastUse = new Float64Array(0);

  /** Covered nodes. */
  get count(): number {
    return this.#nodes.size;
  }

  has(node: number): boolean {
    return this.#nodes.has(node);
  }

  /** The one used longest ago first. */
  [Symbol.iterator](): IterableIterator<number> {
    return this.#nodes[Symbol.iterator]();
  }

  lastUse(node: number): number {
    return this.#lastUse[node]!;
  }

  /** The node was used at `time`, or is new and was used with another: it comes last. */
  use(node: number, time: number): void {
    this.#lastUse[node] = time;
    this.#nodes.delete(node);
    this.#nodes.add(node);
  }

  remove(node: number): void {
    this.#nodes.delete(node);
  }

  /** Has room for nodes below `length`. */
  fit(length: number): void {
    if (this.#lastUse.length < length) this.#lastUse = enlarged(this.#lastUse, length);
  }
}
