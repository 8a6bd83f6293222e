// PrefixTree: the texts of the index as a path-compressed tree of tokens. A node is a run of tokens; children of a node
// differ in their first token; every text starts at a root. It keeps text, links and the rows' places right together when
// nodes are added, cut in two, joined and shortened, and knows nothing of sequences, pools or time.

import { ChildTable } from './child-table.js';
import { NodeTable } from './node-table.js';
import type { RowLedger } from './row-ledger.js';
import { TokenStore } from './token-store.js';

export interface TreePlace {
  /** The deepest node reached: its tokens agree up to `tokens`, which lies in it or at its end. */
  node: number;
  /** Tokens that agree, from the start of the text. */
  tokens: number;
}

export class PrefixTree {
  readonly nodes: NodeTable;
  readonly #texts = new TokenStore();
  readonly #children: ChildTable;
  #tokens = 0;

  constructor(nodes: NodeTable, hashSeed: number, hashBits?: number) {
    this.nodes = nodes;
    this.#children = new ChildTable(nodes, hashSeed, hashBits);
  }

  /** Tokens of all nodes. */
  get textTokens(): number {
    return this.#tokens;
  }

  makeRoot(tenant: number): number {
    const root = this.nodes.make();
    this.nodes.from[root] = 0;
    this.nodes.to[root] = 0;
    this.nodes.tenant[root] = tenant;
    this.#texts.open(root);
    return root;
  }

  isRoot(node: number): boolean {
    return this.nodes.parent[node] === -1;
  }

  isLeaf(node: number): boolean {
    return this.nodes.firstChild[node] === -1;
  }

  /** Whether the number is that of a node, and of one without children. */
  isUsedLeaf(node: number): boolean {
    return this.nodes.isUsed(node) && this.isLeaf(node);
  }

  /** Follows `text` down from `root` as far as the tree has it, at most `limit` tokens. */
  descend(root: number, text: Int32Array, limit: number, place: TreePlace): void {
    const { to } = this.nodes;
    let node = root;
    let tokens = 0;
    while (tokens < limit) {
      const child = this.#children.find(node, text[tokens]!);
      if (child < 0) break;
      node = child;
      tokens += this.#texts.agree(child, 0, text, tokens, limit - tokens);
      if (tokens < to[child]!) break;
    }
    place.node = node;
    place.tokens = tokens;
  }

  /** The child of `node` that starts with `token`, or -1. */
  child(node: number, token: number): number {
    return this.#children.find(node, token);
  }

  /** How many of `count` tokens of `source` from `start` on the node's text has from token `at` on. */
  agree(node: number, at: number, source: Int32Array, start: number, count: number): number {
    return this.#texts.agree(node, at - this.nodes.from[node]!, source, start, count);
  }

  /** Token `at` of the text, which lies in `node`. */
  tokenAt(node: number, at: number): number {
    return this.#texts.tokenAt(node, at - this.nodes.from[node]!);
  }

  /** Copies the node's tokens [from, to), counted from the start of the text. */
  copy(node: number, from: number, to: number, target: Int32Array, start: number): void {
    const first = this.nodes.from[node]!;
    this.#texts.copy(node, from - first, to - first, target, start);
  }

  /** Copies tokens [from, to) of the text that ends in `node`, from any of the nodes above it too. */
  copyPath(node: number, from: number, to: number, target: Int32Array, start: number): void {
    for (let above = node; above >= 0 && this.nodes.to[above]! > from; above = this.nodes.parent[above]!) {
      const first = Math.max(from, this.nodes.from[above]!);
      const last = Math.min(to, this.nodes.to[above]!);
      if (first < last) this.copy(above, first, last, target, start + first - from);
    }
  }

  /** Calls `visit` with every piece of text: an array that must not be kept, and the places [from, to) in it. */
  forPieces(visit: (tokens: Int32Array, from: number, to: number) => void): void {
    for (let node = 0; node < this.nodes.end; node += 1) if (this.nodes.isUsed(node)) this.#texts.forPieces(node, visit);
  }

  /** A new child with these tokens; there is none yet that starts with the first. It has no row of its own. */
  addChild(parent: number, source: Int32Array, start: number, count: number): number {
    const { nodes } = this;
    const node = nodes.make();
    nodes.firstToken[node] = source[start]!;
    nodes.from[node] = nodes.to[parent]!;
    nodes.to[node] = nodes.to[parent]! + count;
    nodes.lastRow[node] = nodes.lastRow[parent]!;
    nodes.tenant[node] = nodes.tenant[parent]!;
    nodes.link(node, parent);
    this.#children.add(node);
    this.#texts.open(node);
    this.#texts.append(node, source, start, count);
    this.#tokens += count;
    return node;
  }

  /** Lengthens a leaf. */
  grow(leaf: number, source: Int32Array, start: number, count: number): void {
    this.nodes.to[leaf]! += count;
    this.#tokens += count;
    this.#texts.append(leaf, source, start, count);
  }

  /** Cuts the node in two before token `at`; answers the new node, which has the front and is the other's parent. */
  split(lower: number, at: number, ledger: RowLedger): number {
    const { nodes } = this;
    const upper = nodes.make();
    const parent = nodes.parent[lower]!;
    nodes.from[upper] = nodes.from[lower]!;
    nodes.to[upper] = at;
    nodes.firstToken[upper] = nodes.firstToken[lower]!;
    nodes.pins[upper] = nodes.pins[lower]!;
    nodes.uses[upper] = nodes.uses[lower]!;
    nodes.lastUse[upper] = nodes.lastUse[lower]!;
    nodes.level[upper] = nodes.level[lower]!;
    nodes.tenant[upper] = nodes.tenant[lower]!;
    nodes.lastRow[upper] = ledger.lastRowAt(lower, at);

    this.#children.remove(lower);
    nodes.unlink(lower);
    nodes.link(upper, parent);
    this.#children.add(upper);
    this.#texts.split(upper, lower, at - nodes.from[upper]!);
    nodes.from[lower] = at;
    nodes.firstToken[lower] = this.#texts.tokenAt(lower, 0);
    nodes.link(lower, upper);
    this.#children.add(lower);
    return upper;
  }

  /** Makes one node of `lower` and its parent, whose only child it is; the parent is gone. */
  join(lower: number): void {
    const { nodes } = this;
    const upper = nodes.parent[lower]!;
    const parent = nodes.parent[upper]!;
    this.#children.remove(lower);
    this.#children.remove(upper);
    nodes.unlink(upper);
    this.#texts.join(upper, lower);
    nodes.from[lower] = nodes.from[upper]!;
    nodes.firstToken[lower] = nodes.firstToken[upper]!;
    nodes.link(lower, parent);
    this.#children.add(lower);
    nodes.drop(upper);
  }

  /** Shortens a leaf to its tokens before `to`; at least one stays. */
  trim(leaf: number, to: number): void {
    this.#tokens -= this.nodes.to[leaf]! - to;
    this.nodes.to[leaf] = to;
    this.#texts.trim(leaf, to - this.nodes.from[leaf]!);
  }

  /** Takes out a leaf, or a root without children. */
  remove(leaf: number): void {
    if (!this.isRoot(leaf)) {
      this.#children.remove(leaf);
      this.nodes.unlink(leaf);
    }
    this.#tokens -= this.nodes.to[leaf]! - this.nodes.from[leaf]!;
    this.#texts.close(leaf);
    this.nodes.drop(leaf);
  }
}
