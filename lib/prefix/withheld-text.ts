// WithheldText: the nodes that the eviction policy does not give, and so the rows that cannot be evicted though no
// sequence uses them. A node is noted when a sequence that used it is released, and looked at anew when rows are
// counted: what the policy withholds may expire meanwhile. Costs nothing where the policy withholds nothing.

import { enlarged } from '../base/typed-arrays.js';
import type { CheckedPolicy } from './eviction/checked-policy.js';
import { NodeLists } from './eviction/node-lists.js';
import type { NodeTable } from './node-table.js';
import type { RowLedger } from './row-ledger.js';

export class WithheldText {
  readonly #nodes: NodeTable;
  readonly #ledger: RowLedger;
  readonly #policy: CheckedPolicy;
  /** Nodes that were withheld when a sequence was released, in use again or not. */
  readonly #noted = new NodeLists(1);
  /** By node: the last count that came to it. */
  #seenIn = new Float64Array(0);
  #counts = 0;

  constructor(nodes: NodeTable, ledger: RowLedger, policy: CheckedPolicy) {
    this.#nodes = nodes;
    this.#ledger = ledger;
    this.#policy = policy;
  }

  /** Whether some text may be withheld. */
  get isAny(): boolean {
    return this.#policy.canWithhold && this.#noted.oldest(0) >= 0;
  }

  /** Whether some text is withheld that need not be used again for the policy to give it. */
  get isPassing(): boolean {
    let isPassing = false;
    this.forNodes((node) => isPassing ||= !this.#policy.withholdsForGood(node));
    return isPassing;
  }

  /**
   * Whether the policy withholds the node: only of those that were withheld when a sequence was released is it asked.
   */
  has(node: number): boolean {
    return this.#policy.canWithhold && this.#noted.listOf(node) >= 0 && this.#policy.withholds(node);
  }

  /** A sequence that used the node was released, and the policy can withhold text. */
  note(node: number): void {
    if (this.#noted.listOf(node) < 0 && this.#policy.withholds(node)) this.#noted.add(node, 0);
  }

  /** The node is gone. */
  remove(node: number): void {
    this.#noted.remove(node);
  }

  /** `upper` was cut off the front of `lower`. */
  split(upper: number, lower: number): void {
    if (this.#noted.listOf(lower) >= 0) this.#noted.addAfter(upper, lower);
  }

  /** Calls `visit` for every node that the policy withholds. */
  forNodes(visit: (node: number) => void): void {
    if (!this.isAny) return;
    for (let node = this.#noted.oldest(0); node >= 0; node = this.#noted.newerThan(node)) {
      if (this.#policy.withholds(node)) visit(node);
    }
  }

  /**
   * Calls `visit` for every row that hangs on text which the policy withholds, or on what that continues, except those
   * whose tokens open paths have all of: there a running sequence's own row can take the place of the cached one.
   */
  forRows(visit: (row: number) => void): void {
    if (!this.isAny) return;
    const { parent, end } = this.#nodes;
    if (this.#seenIn.length < end) this.#seenIn = enlarged(this.#seenIn, Math.max(end, 2 * this.#seenIn.length));
    this.#counts += 1;
    for (let node = this.#noted.oldest(0); node >= 0; node = this.#noted.newerThan(node)) {
      if (!this.#policy.withholds(node)) continue;
      // What is above a withheld node never becomes a leaf, whatever the policy says of it.
      for (let above = node; parent[above]! >= 0 && this.#seenIn[above] !== this.#counts; above = parent[above]!) {
        this.#seenIn[above] = this.#counts;
        this.#visitRows(above, visit);
      }
    }
  }

  #visitRows(node: number, visit: (row: number) => void): void {
    const covered = this.#coveredRows(node);
    this.#ledger.forOwnRows(node, (row, index) => {
      if (index >= covered) visit(row);
    });
  }

  /** Rows from the start of the text whose tokens up to the node's end some open path has; Infinity: all. */
  #coveredRows(node: number): number {
    const { pins, ending, to } = this.#nodes;
    let ends = 0;
    let tokens = 0;
    for (let path = ending[node]; path !== undefined; path = path.next) {
      ends += 1;
      tokens = Math.max(tokens, path.length);
    }
    const isPassed = pins[node]! > ends;
    return isPassed || tokens === to[node] ? Infinity : this.#ledger.wholeRows(tokens);
  }
}
