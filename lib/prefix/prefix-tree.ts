// PrefixTree: the texts of the index as a path-compressed tree of tokens. A node is a run of tokens; children of a node
// differ in their first token, by which a hash table finds them (ChildTable); every text starts at a root. It keeps
// text and links right together when nodes are added, split, joined and shortened, and knows nothing of sequences,
// pools or time. Where memory is refused, a call has changed nothing.

import { Random } from '../base/random.js';
import { enlarged } from '../base/typed-arrays.js';
import type { PrefixDomain } from './domain.js';
import type { NodeView } from './eviction/eviction-policy.js';
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
    const root = this.#make();
    this.nodes.from[root] = 0;
    this.nodes.to[root] = 0;
    this.nodes.tenant[root] = tenant;
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
    const node = this.#make();
    try {
      this.#texts.append(node, source, start, count);
    } catch (error) {
      this.nodes.drop(node);
      throw error;
    }
    this.nodes.addChild(node, parent, source[start]!, count);
    this.#children.add(node);
    this.#tokens += count;
    return node;
  }

  /** Lengthens a leaf. */
  grow(leaf: number, source: Int32Array, start: number, count: number): void {
    this.#texts.append(leaf, source, start, count);
    this.nodes.to[leaf]! += count;
    this.#tokens += count;
  }

  /**
   * Splits the node before token `at`; returns the new node, which has the front and is the other's parent. `lastRow`
   * is the deepest whole row up to there.
   */
  split(lower: number, at: number, lastRow: number): number {
    const { nodes } = this;
    const upper = this.#make();
    this.#children.remove(lower);
    nodes.splitOff(upper, lower, at, lastRow);
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
    this.#texts.join(upper, lower);
    this.#children.remove(lower);
    this.#children.remove(upper);
    nodes.unlink(upper);
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

  /** A new node without links and tokens; to link it asks for no memory. */
  #make(): number {
    this.#children.fitOneMore();
    const node = this.nodes.make();
    try {
      this.#texts.open(node);
    } catch (error) {
      this.nodes.drop(node);
      throw error;
    }
    return node;
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
    this.fitOneMore();
    this.#count += 1;
    this.#put(node);
  }

  /** Has room for one node more. */
  fitOneMore(): void {
    if (2 * (this.#count + 1) > this.#places.length) this.#grow();
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

// NodeTable: the nodes of the prefix tree as numbers in typed arrays, all indexed by node. A node is a run of tokens
// [from, to) of some path from a root. It keeps no rule: the tree, the ledger of rows, the pool and the open paths do.
// Growing replaces the arrays, so read them anew after a call that may make a node.

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

  /** Makes a new node the first child of `parent`: the next `count` tokens of its text, `firstToken` before others. */
  addChild(node: number, parent: number, firstToken: number, count: number): void {
    this.firstToken[node] = firstToken;
    this.from[node] = this.to[parent]!;
    this.to[node] = this.to[parent]! + count;
    this.lastRow[node] = this.lastRow[parent]!;
    this.tenant[node] = this.tenant[parent]!;
    this.link(node, parent);
  }

  /**
   * Puts `upper`, a new node, in the place of `lower`, with the tokens of `lower` before `at` and all that is said of
   * it, and `lower` below it. The caller says what `lower` starts with from then on. `lastRow` is the deepest whole row
   * up to `at`.
   */
  splitOff(upper: number, lower: number, at: number, lastRow: number): void {
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
    this.parent = enlarged(this.parent, length); // last: where memory is refused before, this is done again
  }
}

// DomainRoots: where the text of each domain begins in the prefix tree, and which numbers tenants have there.

/**
 * The root of each domain that has text, and the number of each tenant that has a domain. Domains and tenants come and
 * go with the requests; one without text leaves nothing behind.
 */
export class DomainRoots {
  readonly #tree: PrefixTree;
  readonly #roots = new Map<string, number>();
  readonly #domains = new Map<number, PrefixDomain>();
  readonly #tenants = new Map<string | undefined, { readonly number: number; domains: number }>();
  readonly #freeTenants: number[] = [];

  constructor(tree: PrefixTree) {
    this.#tree = tree;
  }

  /** The root of a domain, or -1 when it has no text. */
  find(domain: PrefixDomain): number {
    return this.#roots.get(domain.key) ?? -1;
  }

  /** The root of a domain, made when there is none. */
  open(domain: PrefixDomain): number {
    const found = this.#roots.get(domain.key);
    if (found !== undefined) return found;
    const tenant = this.#joinTenant(domain.tenant);
    try {
      const root = this.#tree.makeRoot(tenant);
      this.#roots.set(domain.key, root);
      this.#domains.set(root, domain);
      return root;
    } catch (error) {
      this.#leaveTenant(domain.tenant);
      throw error;
    }
  }

  /** Removes a root that nothing hangs on. */
  closeIfEmpty(root: number): void {
    const domain = this.#domains.get(root);
    if (domain === undefined || !this.#tree.isLeaf(root) || this.#tree.nodes.pins[root] !== 0) return;
    this.#roots.delete(domain.key);
    this.#domains.delete(root);
    this.#tree.remove(root);
    this.#leaveTenant(domain.tenant);
  }

  /** The domain of a node's text. */
  domainOf(node: number): PrefixDomain {
    const { parent } = this.#tree.nodes;
    let root = node;
    while (parent[root]! >= 0) root = parent[root]!;
    return this.#domains.get(root)!;
  }

  /** All domains that have text, with their roots. */
  entries(): IterableIterator<[number, PrefixDomain]> {
    return this.#domains.entries();
  }

  #joinTenant(name: string | undefined): number {
    let tenant = this.#tenants.get(name);
    if (tenant === undefined) {
      tenant = { number: this.#freeTenants.pop() ?? this.#tenants.size, domains: 0 };
      this.#tenants.set(name, tenant);
    }
    tenant.domains += 1;
    return tenant.number;
  }

  #leaveTenant(name: string | undefined): void {
    const tenant = this.#tenants.get(name)!;
    tenant.domains -= 1;
    if (tenant.domains > 0) return;
    this.#tenants.delete(name);
    this.#freeTenants.push(tenant.number);
  }
}

// PrefixPath: one sequence's place in the prefix index: the text it has committed, and its table of rows. A handle made
// by `open` or `fork` and ended by `release`. While it is open, no row of its text is evicted. Owned by the index: read
// it, and write only into `rows`.

export interface PathOptions {
  /**
   * Row ids by their number on the path. The index fills in those it shares; the owner all the rest, before it commits
   * tokens in them. May be longer than needed, and is read until release.
   */
  readonly rows: Int32Array;
  /** Whether what it commits is cached (`write` of the request). */
  readonly isStored: boolean;
  /** Priority level of its request, 0 … 255. */
  readonly level: number;
  /** Whether the owner only moves K and V: no use of the text. Default false. */
  readonly isTransfer?: boolean | undefined;
  /** Tokens of its prompt, for eviction policies. Default: all that it has when it is released. */
  readonly promptTokens?: number | undefined;
  /**
   * The text that it is going to commit: a match says that it is pending (`PrefixHit.pendingTokens`) until then. Kept,
   * and must not change until then. Only of a path that is stored. Default: nothing is announced.
   */
  readonly announced?: Int32Array | undefined;
}

export class PrefixPath {
  readonly rows: Int32Array;
  /** As asked for, until the index stops storing it. Written by the index. */
  isStored: boolean;
  readonly level: number;
  readonly isTransfer: boolean;
  readonly promptTokens: number | undefined;
  /** Tokens matched and committed. */
  length: number;
  /** False after release. */
  isOpen = true;
  /** Tokens that it found cached when it was opened: not its own to take back. @internal */
  readonly sharedTokens: number;
  /** Deepest node of the text. @internal */
  node = -1;
  /** Other paths that end in the same node. @internal */
  next: PrefixPath | undefined = undefined;
  /** @internal */
  previous: PrefixPath | undefined = undefined;
  /** What is being computed of its prompt: tokens from `length` on; undefined: nothing. @internal */
  announced: Int32Array | undefined;

  /** @internal */
  constructor({ rows, isStored, level, isTransfer = false, promptTokens, announced }: PathOptions, tokens: number) {
    this.rows = rows;
    this.isStored = isStored;
    this.level = level;
    this.isTransfer = isTransfer;
    this.promptTokens = promptTokens;
    this.length = tokens;
    this.sharedTokens = tokens;
    this.announced = isStored && announced !== undefined && announced.length > tokens ? announced : undefined;
  }
}
