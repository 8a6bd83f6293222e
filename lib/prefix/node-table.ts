// NodeTable: the nodes of the prefix tree as numbers in typed arrays, all indexed by node. A node is a run of tokens
// [from, to) of some path from a root. It keeps no rule: the tree, the ledger of rows, the pool and the open paths do.
// Growing replaces the arrays, so read them anew after a call that may make a node.

import { enlarged } from '../base/typed-arrays.js';
import type { NodeView } from './eviction/eviction-policy.js';
import type { PrefixPath } from './prefix-path.js';

export class NodeTable implements NodeView {
  parent: Int32Array = new Int32Array(0);
  from: Int32Array = new Int32Array(0);
  to: Int32Array = new Int32Array(0);
  /** Copy of the run's first token, the key among its siblings. */
  firstToken: Int32Array = new Int32Array(0);
  firstChild: Int32Array = new Int32Array(0);
  nextSibling: Int32Array = new Int32Array(0);
  previousSibling: Int32Array = new Int32Array(0);
  /** Deepest whole row of the path up to `to`, its own or of a node above; -1: none. */
  lastRow: Int32Array = new Int32Array(0);
  /** Row that holds a leaf's last tokens and is not full; -1: none. */
  tailRow: Int32Array = new Int32Array(0);
  /** Open paths that go through the node or end in it. */
  pins: Int32Array = new Int32Array(0);
  /** First of the open paths that end in the node, a list by `next`. */
  readonly ending: (PrefixPath | undefined)[] = [];
  uses: Float64Array = new Float64Array(0);
  lastUse: Float64Array = new Float64Array(0);
  level: Uint8Array = new Uint8Array(0);
  /** Number of the tenant whose text it is. */
  tenant: Int32Array = new Int32Array(0);
  /**
   * How often the number has been given back, or its text shortened: tells a text from a later one in the same place.
   */
  generation: Int32Array = new Int32Array(0);
  #free: number[] = [];
  #made = 0;

  /** Nodes in use. */
  get count(): number {
    return this.#made - this.#free.length;
  }

  /** Numbers from here on were never given out. */
  get end(): number {
    return this.#made;
  }

  /** A new node without links, its other numbers undefined. */
  make(): number {
    const free = this.#free.pop();
    if (free !== undefined) return this.#clear(free);
    if (this.#made === this.parent.length) this.#grow();
    this.#made += 1;
    return this.#clear(this.#made - 1);
  }

  drop(node: number): void {
    this.parent[node] = -2;
    this.generation[node]! += 1;
    this.#free.push(node);
  }

  isUsed(node: number): boolean {
    return node < this.#made && this.parent[node] !== -2;
  }

  isUsedLeaf(node: number): boolean {
    return this.isUsed(node) && this.firstChild[node] === -1;
  }

  /** A new first child of `parent`: the next `count` tokens of its text, of which `firstToken` is the first. */
  addChild(parent: number, firstToken: number, count: number): number {
    const node = this.make();
    this.firstToken[node] = firstToken;
    this.from[node] = this.to[parent]!;
    this.to[node] = this.to[parent]! + count;
    this.lastRow[node] = this.lastRow[parent]!;
    this.tenant[node] = this.tenant[parent]!;
    this.link(node, parent);
    return node;
  }

  /**
   * Puts a new node in the place of `lower`, with the tokens of `lower` before `at` and all that is said of it, and
   * `lower` below it. The caller says what `lower` starts with from then on. `lastRow` is the deepest whole row up to
   * `at`.
   */
  splitOff(lower: number, at: number, lastRow: number): number {
    const upper = this.make();
    const parent = this.parent[lower]!;
    this.from[upper] = this.from[lower]!;
    this.to[upper] = at;
    this.firstToken[upper] = this.firstToken[lower]!;
    this.pins[upper] = this.pins[lower]!;
    this.uses[upper] = this.uses[lower]!;
    this.lastUse[upper] = this.lastUse[lower]!;
    this.level[upper] = this.level[lower]!;
    this.tenant[upper] = this.tenant[lower]!;
    this.lastRow[upper] = lastRow;
    this.unlink(lower);
    this.link(upper, parent);
    this.from[lower] = at;
    this.link(lower, upper);
    return upper;
  }

  /** Makes `node` the first child of `parent`. */
  link(node: number, parent: number): void {
    const first = this.firstChild[parent]!;
    this.parent[node] = parent;
    this.nextSibling[node] = first;
    this.previousSibling[node] = -1;
    if (first >= 0) this.previousSibling[first] = node;
    this.firstChild[parent] = node;
  }

  /** Takes `node` from among its siblings. */
  unlink(node: number): void {
    const next = this.nextSibling[node]!;
    const previous = this.previousSibling[node]!;
    if (next >= 0) this.previousSibling[next] = previous;
    if (previous >= 0) this.nextSibling[previous] = next;
    else this.firstChild[this.parent[node]!] = next;
  }

  isOnlyChild(node: number): boolean {
    return this.nextSibling[node] === -1 && this.previousSibling[node] === -1;
  }

  #clear(node: number): number {
    this.parent[node] = -1;
    this.firstChild[node] = -1;
    this.nextSibling[node] = -1;
    this.previousSibling[node] = -1;
    this.lastRow[node] = -1;
    this.tailRow[node] = -1;
    this.pins[node] = 0;
    this.uses[node] = 0;
    this.lastUse[node] = 0;
    this.level[node] = 0;
    return node;
  }

  #grow(): void {
    const length = Math.max(64, 2 * this.parent.length);
    this.parent = enlarged(this.parent, length);
    this.from = enlarged(this.from, length);
    this.to = enlarged(this.to, length);
    this.firstToken = enlarged(this.firstToken, length);
    this.firstChild = enlarged(this.firstChild, length);
    this.nextSibling = enlarged(this.nextSibling, length);
    this.previousSibling = enlarged(this.previousSibling, length);
    this.lastRow = enlarged(this.lastRow, length);
    this.tailRow = enlarged(this.tailRow, length);
    this.pins = enlarged(this.pins, length);
    this.uses = enlarged(this.uses, length);
    this.lastUse = enlarged(this.lastUse, length);
    this.level = enlarged(this.level, length);
    this.tenant = enlarged(this.tenant, length);
    this.generation = enlarged(this.generation, length);
  }
}
