// CoverNodes: the nodes of the prefix index as one side tensor sees them: the same texts and links, and per node up to
// where its text is covered, and in which pages. It has no rule: SideCover writes it.

import { enlarged } from '../base/typed-arrays.js';
import type { NodeTable } from '../prefix/prefix-tree.js';
import type { LedgerNodes } from '../prefix/row-ledger.js';

export class CoverNodes implements LedgerNodes {
  readonly #nodes: NodeTable;
  /** Tokens up to which the node's text is covered; no more than `from`: none of it. */
  to: Int32Array = new Int32Array(0);
  lastRow: Int32Array = new Int32Array(0);
  tailRow: Int32Array = new Int32Array(0);

  constructor(nodes: NodeTable) {
    this.#nodes = nodes;
  }

  get parent(): Int32Array {
    return this.#nodes.parent;
  }

  get firstChild(): Int32Array {
    return this.#nodes.firstChild;
  }

  get nextSibling(): Int32Array {
    return this.#nodes.nextSibling;
  }

  get from(): Int32Array {
    return this.#nodes.from;
  }

  get end(): number {
    return this.#nodes.end;
  }

  isUsed(node: number): boolean {
    return this.#nodes.isUsed(node);
  }

  isRoot(node: number): boolean {
    return this.parent[node]! < 0;
  }

  /** Whether any token of the node itself is covered. */
  isCovered(node: number): boolean {
    return node < this.to.length && this.to[node]! > this.from[node]!;
  }

  coverEnd(node: number): number {
    return this.isRoot(node) ? 0 : Math.max(this.from[node]!, this.to[node]!);
  }

  hasCoveredChild(node: number): boolean {
    for (let child = this.firstChild[node]!; child >= 0; child = this.nextSibling[child]!) {
      if (this.isCovered(child)) return true;
    }
    return false;
  }

  /** The node itself, or the nearest before it, that is covered; else the root. */
  deepestCovered(node: number): number {
    let at = node;
    while (!this.isRoot(at) && !this.isCovered(at)) at = this.parent[at]!;
    return at;
  }

  /** Has room for nodes below `length`. */
  fit(length: number): void {
    if (this.to.length >= length) return;
    this.to = enlarged(this.to, length);
    this.lastRow = enlarged(this.lastRow, length);
    this.tailRow = enlarged(this.tailRow, length, -1);
  }
}
