// NodeLists: nodes in doubly linked lists, oldest first, without an object per node. A node is in one list at most.
// Adding, removing and asking for the oldest take the same time whatever the length. Eviction policies are made of
// these.

import { enlarged } from '../../base/typed-arrays.js';

export class NodeLists {
  // By list; -1: empty.
  #oldest: Int32Array;
  #newest: Int32Array;
  // By node.
  #older = new Int32Array(0);
  #newer = new Int32Array(0);
  /** List + 1; 0: in none. */
  #list = new Int32Array(0);

  constructor(lists: number) {
    this.#oldest = new Int32Array(lists).fill(-1);
    this.#newest = new Int32Array(lists).fill(-1);
  }

  get lists(): number {
    return this.#oldest.length;
  }

  /** The list that a node is in, or -1. */
  listOf(node: number): number {
    return node < this.#list.length ? this.#list[node]! - 1 : -1;
  }

  oldest(list: number): number {
    return this.#oldest[list]!;
  }

  newest(list: number): number {
    return this.#newest[list]!;
  }

  /** The next older one in the list of a node that is in one, or -1. */
  olderThan(node: number): number {
    return this.#older[node]!;
  }

  /** The next newer one in the list of a node that is in one, or -1. */
  newerThan(node: number): number {
    return this.#newer[node]!;
  }

  /**
   * Writes a leaf that is the oldest of its list, and the leaves that are the next newer there; returns how many: 0 for
   * no leaf (-1). Looks at four times as many nodes as `leaves` has room for, at most.
   */
  leavesBeside(leaf: number, firstChild: Int32Array, leaves: Int32Array): number {
    let count = 0;
    let node = leaf;
    for (let looked = 0; node >= 0 && count < leaves.length && looked < 4 * leaves.length; looked += 1) {
      if (firstChild[node]! < 0) {
        leaves[count] = node;
        count += 1;
      }
      node = this.#newer[node]!;
    }
    return count;
  }

  /** Adds a node that is in no list as the newest. */
  add(node: number, list: number): void {
    if (node >= this.#list.length) this.#growNodes(node + 1);
    if (list >= this.#oldest.length) this.#growLists(list + 1);
    const before = this.#newest[list]!;
    this.#list[node] = list + 1;
    this.#older[node] = before;
    this.#newer[node] = -1;
    if (before >= 0) this.#newer[before] = node;
    else this.#oldest[list] = node;
    this.#newest[list] = node;
  }

  /** Adds `node` to the list of `other`, as the next newer one. */
  addAfter(node: number, other: number): void {
    if (node >= this.#list.length) this.#growNodes(node + 1);
    const list = this.#list[other]! - 1;
    const after = this.#newer[other]!;
    this.#list[node] = list + 1;
    this.#older[node] = other;
    this.#newer[node] = after;
    this.#newer[other] = node;
    if (after >= 0) this.#older[after] = node;
    else this.#newest[list] = node;
  }

  /** Takes the node out of its list, if it is in one; returns the list, or -1. */
  remove(node: number): number {
    const list = this.listOf(node);
    if (list < 0) return -1;
    const older = this.#older[node]!;
    const newer = this.#newer[node]!;
    if (older >= 0) this.#newer[older] = newer;
    else this.#oldest[list] = newer;
    if (newer >= 0) this.#older[newer] = older;
    else this.#newest[list] = older;
    this.#list[node] = 0;
    return list;
  }

  #growNodes(nodes: number): void {
    const length = Math.max(64, nodes, 2 * this.#list.length);
    this.#older = enlarged(this.#older, length);
    this.#newer = enlarged(this.#newer, length);
    this.#list = enlarged(this.#list, length);
  }

  #growLists(lists: number): void {
    const length = Math.max(lists, 2 * this.#oldest.length);
    this.#newest = enlarged(this.#newest, length, -1);
    this.#oldest = enlarged(this.#oldest, length, -1);
  }
}
