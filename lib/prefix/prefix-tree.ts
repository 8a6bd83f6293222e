// PrefixTree: the texts of the index as a path-compressed tree of tokens. A node is a run of tokens; children of a node
// differ in their first token, by which a hash table finds them (ChildTable); every text starts at a root. It keeps
// text and links right together when nodes are added, split, joined and shortened, and knows nothing of sequences,
// pools or time.

import { Random } from '../base/random.js';
import { NodeTable } from './node-table.js';
import { TokenStore } from './token-store.js';

export interface TreePlace {
  /** The deepest node reached: its tokens agree up to `tokens`, which lies in it or at its end. */
  node: number;
  /** Tokens that agree, from the start of the text. */
  tokens: number;
}

/**
 * Hears what text the index gains and loses, to keep something beside it. Called in the middle of a change: it reads
 * the tree and changes nothing.
 */
export interface TextListener {
  /** The node has new tokens from `from` to its end. */
  added?(node: number, from: number, isTransfer: boolean): void;
  /** The node loses its tokens [from, to), which are still there; none is left when `from` is where it starts. */
  cut?(node: number, from: number, to: number, reason: number): void;
  /** `upper` was cut off the front of `lower`. */
  split?(upper: number, lower: number): void;
  /** `lower` now has the tokens of `upper`, its parent until now, in front of its own; `upper` is gone. */
  joined?(upper: number, lower: number): void;
  /** The last tokens of the leaf lie in a row again, after they lay in none: a match finds them. */
  backed?(leaf: number): void;
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

  /** A copy of the first `to` tokens of the text that ends in `node`. */
  textOf(node: number, to: number): Int32Array {
    const text = new Int32Array(to);
    this.copyPath(node, 0, to, text, 0);
    return text;
  }

  /** Calls `visit` with every piece of text: an array that must not be kept, and the places [from, to) in it. */
  forPieces(visit: (tokens: Int32Array, from: number, to: number) => void): void {
    for (let node = 0; node < this.nodes.end; node += 1) {
      if (this.nodes.isUsed(node)) this.#texts.forPieces(node, visit);
    }
  }

  /** A new child with these tokens; there is none yet that starts with the first. It has no row of its own. */
  addChild(parent: number, source: Int32Array, start: number, count: number): number {
    const node = this.nodes.addChild(parent, source[start]!, count);
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

  /**
   * Splits the node before token `at`; returns the new node, which has the front and is the other's parent. `lastRow`
   * is the deepest whole row up to there.
   */
  split(lower: number, at: number, lastRow: number): number {
    const { nodes } = this;
    this.#children.remove(lower);
    const upper = nodes.splitOff(lower, at, lastRow);
    nodes.firstToken[lower] = this.#texts.split(upper, lower, at - nodes.from[upper]!);
    this.#children.add(upper);
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

/**
 * Finds the child of a node that starts with a token. Open addressing over node numbers; the key is the pair (parent,
 * first token), which is compared on every probe, so a collision of hashes costs a step and never a wrong child. The
 * hash has a key of the cache's own: clients choose the tokens, and one table serves all tenants.
 */
export class ChildTable {
  readonly #nodes: NodeTable;
  readonly #hash: KeyedHash;
  readonly #hashMask: number;
  /** Node + 1; 0 is an empty place. At most half are taken. */
  #places = new Int32Array(64);
  #count = 0;

  /**
   * @param hashSeed Chooses the hash.
   * @param hashBits Bits of the hash that count, 1 … 32: tests truncate it to force collisions.
   */
  constructor(nodes: NodeTable, hashSeed: number, hashBits = 32) {
    this.#nodes = nodes;
    this.#hash = new KeyedHash(hashSeed);
    this.#hashMask = hashBits === 32 ? -1 : 2 ** hashBits - 1;
  }

  /** The child, or -1. */
  find(parent: number, token: number): number {
    const places = this.#places;
    const mask = places.length - 1;
    const { parent: parents, firstToken } = this.#nodes;
    for (let place = this.#home(parent, token); ; place = (place + 1) & mask) {
      const node = places[place]! - 1;
      if (node < 0) return -1;
      if (parents[node] === parent && firstToken[node] === token) return node;
    }
  }

  /** Adds a node under its `parent` and `firstToken`; there is none with the same yet. */
  add(node: number): void {
    if (2 * (this.#count + 1) > this.#places.length) this.#grow();
    this.#count += 1;
    this.#put(node);
  }

  /** Takes out a node whose `parent` and `firstToken` are still what they were. */
  remove(node: number): void {
    const places = this.#places;
    const mask = places.length - 1;
    let hole = this.#homeOf(node);
    while (places[hole] !== node + 1) hole = (hole + 1) & mask;
    this.#count -= 1;
    // Moves later ones of the same cluster up, so that no search ends early at the hole.
    for (let place = (hole + 1) & mask; places[place] !== 0; place = (place + 1) & mask) {
      const home = this.#homeOf(places[place]! - 1);
      if (((place - home) & mask) < ((place - hole) & mask)) continue;
      places[hole] = places[place]!;
      hole = place;
    }
    places[hole] = 0;
  }

  #put(node: number): void {
    const mask = this.#places.length - 1;
    let place = this.#homeOf(node);
    while (this.#places[place] !== 0) place = (place + 1) & mask;
    this.#places[place] = node + 1;
  }

  #grow(): void {
    const before = this.#places;
    this.#places = new Int32Array(2 * before.length);
    for (const place of before) if (place !== 0) this.#put(place - 1);
  }

  #homeOf(node: number): number {
    return this.#home(this.#nodes.parent[node]!, this.#nodes.firstToken[node]!);
  }

  #home(parent: number, token: number): number {
    return this.#hash.of(token, parent) & this.#hashMask & (this.#places.length - 1);
  }
}

/**
 * A hash of two 32-bit words that clients cannot foresee, so that no choice of tokens makes a table slow. Simple
 * tabulation (Zobrist 1970): a table of random words for each byte, chosen by a seed. Linear probing with it takes
 * constant expected time for any set of keys chosen without the seed (Pătraşcu and Thorup 2012), whatever their
 * differences: no two keys collide under more seeds than chance has it. Not for secrets, and never part of a key that
 * leaves the process.
 */
export class KeyedHash {
  /** [byte of `a`, then of `b`, lowest first; its value]. */
  readonly #words = new Int32Array(8 * 256);

  /** @param seed Any safe integer. */
  constructor(seed: number) {
    const random = new Random(seed);
    for (let place = 0; place < this.#words.length; place += 1) this.#words[place] = random.integer(2 ** 32);
  }

  /** 32 bits, as a signed integer. */
  of(a: number, b: number): number {
    const words = this.#words;
    return words[a & 255]! ^ words[256 | ((a >>> 8) & 255)]! ^ words[512 | ((a >>> 16) & 255)]!
      ^ words[768 | (a >>> 24)]!
      ^ words[1024 | (b & 255)]! ^ words[1280 | ((b >>> 8) & 255)]! ^ words[1536 | ((b >>> 16) & 255)]!
        ^ words[1792 | (b >>> 24)]!;
  }
}
