// OpenPaths: where the texts of running sequences end in the tree, what they have announced, and how they change the
// tree: a text goes on along what is there, branches off, or lengthens it, and takes tokens back. The only place that
// adds text and splits nodes. The pool counts which nodes are used.

import { createError } from '../base/errors.js';
import type { CachePool } from './cache-pool.js';
import { type NodeTable, type PathOptions, PrefixPath, type PrefixTree, type TextListener } from './prefix-tree.js';
import { reasonNumber, type RowLedger } from './row-ledger.js';

const truncated = reasonNumber('truncated');

export class OpenPaths {
  /** Open paths. Read only. */
  count = 0;
  /** Open paths that have announced a prompt and not committed all of it. Read only. */
  announcing = 0;
  readonly #tree: PrefixTree;
  readonly #ledger: RowLedger;
  readonly #pool: CachePool;
  readonly #listeners: readonly TextListener[];
  readonly #nodes: NodeTable;
  /** Open paths that committed text which was cached already: they may have rows of their own with the same tokens. */
  readonly #duplicating = new Set<PrefixPath>();

  constructor(tree: PrefixTree, ledger: RowLedger, pool: CachePool, listeners: readonly TextListener[]) {
    this.#tree = tree;
    this.#ledger = ledger;
    this.#pool = pool;
    this.#listeners = listeners;
    this.#nodes = tree.nodes;
  }

  /** Whether one of them may have rows of its own with the same tokens as whole cached ones. */
  get isDuplicating(): boolean {
    return this.#duplicating.size > 0;
  }

  /**
   * Opens a path along the first `tokens` tokens of a text, which end in `node`, and writes the rows that they fill
   * into its table.
   */
  open(options: PathOptions, node: number, tokens: number): PrefixPath {
    return this.#add(options, this.#splitAtRow(node, tokens), tokens);
  }

  /** Opens another path at the same place. */
  fork(path: PrefixPath, rows: Int32Array): PrefixPath {
    return this.#add(
      { rows, isStored: path.isStored, level: path.level, promptTokens: path.promptTokens }, path.node, path.length);
  }

  /** Closes the path. Its text stays cached as the pool's bounds allow. */
  close(path: PrefixPath): void {
    this.#end(path);
    this.#pool.release(path);
  }

  /** Closes the path: its text is about to be dropped. */
  leave(path: PrefixPath): void {
    this.#end(path);
    this.#pool.leave(path.node);
  }

  /** What the path has not committed is not announced any more. */
  withdraw(path: PrefixPath): void {
    if (path.announced === undefined) return;
    path.announced = undefined;
    this.announcing -= 1;
  }

  /** The longest path that ends in the node; 0: none does. */
  longestIn(node: number): number {
    let longest = 0;
    for (let path = this.#nodes.ending[node]; path !== undefined; path = path.next) {
      longest = Math.max(longest, path.length);
    }
    return longest;
  }

  /** The path's text is text[0, length) from now on; what it has committed is not compared again. */
  commit(path: PrefixPath, text: Int32Array, length: number): void {
    const nodes = this.#nodes;
    while (path.length < length) {
      const node = path.node;
      const at = path.length;
      if (at < nodes.to[node]!) {
        const agreed = this.#tree.agree(node, at, text, at, length - at);
        if (agreed > 0) {
          this.#duplicating.add(path);
          this.#move(path, at + agreed);
        } else this.#split(node, at);
        continue;
      }
      const child = this.#tree.child(node, text[at]!);
      if (child >= 0) {
        this.#duplicating.add(path);
        this.#pool.pin(child);
        this.#go(path, child, at + this.#tree.agree(child, at, text, at, length - at));
      } else this.#extend(path, text, length);
    }
    const end = path.node;
    if (nodes.firstChild[end]! < 0 && nodes.parent[end]! >= 0) this.#pool.backLeaf(end, truncated);
  }

  /**
   * Takes the tokens from `length` on back: rows of the path's own that no other path uses are not cached any more, and
   * nothing is announced.
   */
  truncate(path: PrefixPath, length: number): void {
    const nodes = this.#nodes;
    this.withdraw(path);
    while (path.length > length) {
      const node = path.node;
      const from = nodes.from[node]!;
      const to = nodes.to[node]!;
      const isAtEnd = path.length === to;
      if (length > from) {
        this.#move(path, length);
      } else {
        this.#go(path, nodes.parent[node]!, from);
        this.#pool.unpin(node, 1);
      }
      if (nodes.firstChild[node]! >= 0) {
        this.#pool.joinChild(node);
        continue;
      }
      const kept = isAtEnd ? this.#keptTokens(path, node, Math.max(length, from)) : to;
      if (kept < to) this.#pool.cut(node, kept, truncated);
      if (nodes.isUsedLeaf(node)) this.#pool.backLeaf(node, truncated);
    }
    this.#splitAtRow(path.node, path.length);
    this.#pool.keepWithinBounds(nodes.tenant[path.node]!);
  }

  /** Splits the node behind the first `length` tokens of its text, whatever row follows. */
  splitAt(node: number, length: number): void {
    const { from, to } = this.#nodes;
    if (from[node]! < length && length < to[node]!) this.#split(node, length);
  }

  /**
   * Two sequences may compute the same text side by side. The rows of the first are cached; the second has rows of its
   * own, and its path keeps those of the first from being evicted. Once no running sequence uses them, which `isSpare`
   * says, the second's are cached in their place, and they are dropped as `replaced`.
   */
  settleDuplicates(isSpare: (row: number) => boolean): void {
    for (const path of this.#duplicating) {
      if (!this.#replaceWhole(path, isSpare)) this.#duplicating.delete(path);
    }
  }

  /**
   * For want of memory, the same of every path, and of last rows too, which sequences copy from cached ones; and what
   * lies behind a path's tokens in the same node is no longer kept for it.
   */
  replaceDuplicates(isSpare: (row: number) => boolean): void {
    for (const path of this.#all()) {
      this.#splitAtRow(path.node, path.length);
      const last = this.#cachedTail(path);
      const isOther = last >= 0 && last !== this.#ownTail(path) && isSpare(last);
      if (isOther || this.#isTailBehind(path, isSpare)) this.splitAt(path.node, path.length);
      this.#replaceWhole(path, isSpare);
    }
    for (const path of this.#all()) this.#replaceTail(path, isSpare);
  }

  /** Calls `visit` with every announced text and the part [from, to) that is to come. */
  forAnnounced(visit: (tokens: Int32Array, from: number, to: number) => void): void {
    if (this.announcing === 0) return;
    for (const { announced, length } of this.#all()) {
      if (announced !== undefined) visit(announced, length, announced.length);
    }
  }

  #end(path: PrefixPath): void {
    this.withdraw(path);
    this.#detach(path);
    this.count -= 1;
    if (this.isDuplicating) this.#duplicating.delete(path);
    path.isOpen = false;
  }

  /** A path whose text ends in `node`. */
  #add(options: PathOptions, node: number, tokens: number): PrefixPath {
    const path = new PrefixPath(options, tokens);
    this.#pool.pinPath(node);
    this.count += 1;
    if (path.announced !== undefined) this.announcing += 1;
    this.#attach(path, node);
    if (tokens > 0) this.#ledger.fill(node, tokens, path.rows);
    return path;
  }

  /** Adds text[path.length, length) behind the path's node, at whose end the path is. */
  #extend(path: PrefixPath, text: Int32Array, length: number): void {
    const nodes = this.#nodes;
    const node = path.node;
    const at = path.length;
    const isLeaf = nodes.firstChild[node]! < 0 && nodes.parent[node]! >= 0;
    const isAlone = path.next === undefined && path.previous === undefined;
    const tail = isLeaf ? nodes.tailRow[node]! : -1;
    this.#ledger.check(at, length, path.rows, tail);
    // Not where the leaf was released, as it keeps its own count of uses, nor where other paths end, which would pin
    // what they lack.
    if (isLeaf && nodes.uses[node] === 0 && isAlone) {
      this.#tree.grow(node, text, at, length - at);
      this.#ledger.attach(node, at, path.rows, tail);
      this.#move(path, length);
    } else {
      const child = this.#tree.addChild(node, text, at, length - at);
      this.#ledger.attach(child, at, path.rows, tail);
      if (isLeaf) nodes.tailRow[node] = -1;
      nodes.pins[child] = 1;
      this.#go(path, child, length);
    }
    for (const listener of this.#listeners) listener.added?.(path.node, at, path.isTransfer);
  }

  /** Tokens of a leaf that stay when the path leaves those from `length` on: what other paths use, or wrote. */
  #keptTokens(path: PrefixPath, leaf: number, length: number): number {
    const { to, tailRow, lastRow, ending } = this.#nodes;
    const end = to[leaf]!;
    let kept = Math.max(length, Math.min(path.sharedTokens, end));
    for (let other = ending[leaf]; other !== undefined; other = other.next) kept = Math.max(kept, other.length);
    const first = this.#ledger.wholeRows(kept);
    let rows = this.#ledger.rowsFor(end);
    for (let row = tailRow[leaf]! >= 0 ? tailRow[leaf]! : lastRow[leaf]!;
        rows > first && row === path.rows[rows - 1]; rows -= 1) {
      row = this.#ledger.rowAbove(leaf, row);
    }
    return Math.max(kept, Math.min(end, this.#ledger.tokensIn(rows)));
  }

  /**
   * Splits the node where the last row ends that its text's first `length` tokens touch, so that a path that ends there
   * does not pin the rows behind. Returns the node in which those tokens end then.
   */
  #splitAtRow(node: number, length: number): number {
    const at = this.#ledger.tokensToRowEnd(length);
    return at < this.#nodes.to[node]! ? this.#split(node, at) : node;
  }

  /** Returns the new node, which has the tokens before `at`. */
  #split(lower: number, at: number): number {
    const nodes = this.#nodes;
    const isPooled = nodes.pins[lower] === 0;
    const upper = this.#tree.split(lower, at, this.#ledger.lastRowAt(lower, at));
    for (const listener of this.#listeners) listener.split?.(upper, lower);
    this.#pool.withheld.split(upper, lower);
    if (isPooled) this.#pool.split(upper, lower);
    else this.#moveEnds(upper, lower);
    if (nodes.pins[lower] !== 0) return upper;
    if (nodes.firstChild[lower]! < 0) this.#pool.backLeaf(lower, truncated);
    else this.#pool.joinChild(lower);
    if (!isPooled) this.#pool.keepWithinBounds(nodes.tenant[upper]!);
    return upper;
  }

  /**
   * `upper` was cut off the front of `lower`: paths that end before the cut move, and no longer pin what is below it.
   */
  #moveEnds(upper: number, lower: number): void {
    const { to, ending } = this.#nodes;
    let moved = 0;
    for (let path = ending[lower]; path !== undefined;) {
      const next = path.next;
      if (path.length <= to[upper]!) {
        this.#go(path, upper, path.length);
        moved += 1;
      }
      path = next;
    }
    if (moved > 0) this.#pool.unpin(lower, moved);
  }

  /** The path ends in another node, which is pinned for it. */
  #go(path: PrefixPath, node: number, length: number): void {
    this.#detach(path);
    this.#attach(path, node);
    this.#move(path, length);
  }

  /** The path's length changes within its node. */
  #move(path: PrefixPath, length: number): void {
    path.length = length;
    if (path.announced !== undefined && length >= path.announced.length) this.withdraw(path);
  }

  /**
   * Caches whole rows of the path in the place of those with the same tokens that are spare. Returns whether others
   * stay, which may become spare.
   */
  #replaceWhole(path: PrefixPath, isSpare: (row: number) => boolean): boolean {
    const held = new Int32Array(this.#ledger.wholeRows(path.length));
    this.#ledger.fill(path.node, path.length, held);
    const instead = new Map<number, number>();
    let isMore = false;
    held.forEach((row, index) => {
      const own = path.rows[index]!;
      if (own === row || own < 0 || this.#ledger.isHolding(own)) return;
      if (isSpare(row)) instead.set(row, own);
      else isMore = true;
    });
    if (instead.size > 0) this.#ledger.replace(instead, path.node);
    return isMore;
  }

  /** Where the path ends its node: caches the path's row with the last tokens in the place of the node's. */
  #replaceTail(path: PrefixPath, isSpare: (row: number) => boolean): void {
    const tail = this.#nodes.tailRow[path.node]!;
    const own = this.#ownTail(path);
    if (tail < 0 || tail === own || own < 0 || path.length !== this.#nodes.to[path.node] || !isSpare(tail)
      || this.#ledger.isHolding(own)) return;
    this.#ledger.replaceTail(path.node, own);
  }

  /** The row of the path's node that has its last tokens, if these do not fill it; or -1. */
  #cachedTail({ node, length }: PrefixPath): number {
    const { to, tailRow, parent } = this.#nodes;
    const whole = this.#ledger.wholeRows(length);
    if (parent[node]! < 0 || this.#ledger.rowsFor(length) === whole) return -1;
    return this.#ledger.wholeRows(to[node]!) > whole ? this.#ledger.partialRow(node, length) : tailRow[node]!;
  }

  /** Whether a row ends inside a token behind the path's, of which the rest is in a row that is spare. */
  #isTailBehind({ node, length }: PrefixPath, isSpare: (row: number) => boolean): boolean {
    const { to, tailRow } = this.#nodes;
    return tailRow[node]! >= 0 && this.#ledger.wholeRows(to[node]!) >= this.#ledger.rowsFor(length)
      && isSpare(tailRow[node]!);
  }

  /** The path's own row behind its whole ones, or -1. */
  #ownTail({ rows, length }: PrefixPath): number {
    return rows[this.#ledger.wholeRows(length)] ?? -1;
  }

  #all(): PrefixPath[] {
    const paths: PrefixPath[] = [];
    for (const first of this.#nodes.ending) {
      for (let path = first; path !== undefined; path = path.next) paths.push(path);
    }
    return paths;
  }

  #attach(path: PrefixPath, node: number): void {
    const first = this.#nodes.ending[node];
    path.node = node;
    path.next = first;
    path.previous = undefined;
    if (first !== undefined) first.previous = path;
    this.#nodes.ending[node] = path;
  }

  #detach(path: PrefixPath): void {
    const { next, previous, node } = path;
    if (next !== undefined) next.previous = previous;
    if (previous !== undefined) previous.next = next;
    else this.#nodes.ending[node] = next;
    path.next = undefined;
    path.previous = undefined;
  }
}

// checkIndex: looks through the whole prefix index for what must always hold, and throws KV_INTERNAL at the first thing
// that does not. For tests: it takes time in proportion to everything that is cached.

export interface CheckedParts {
  readonly tree: PrefixTree;
  readonly ledger: RowLedger;
  readonly pool: CachePool;
  readonly paths: OpenPaths;
}

export function checkIndex(parts: CheckedParts): void {
  const { nodes } = parts.tree;
  const seen = new Set<number>();
  let pooled = 0;
  let paths = 0;
  for (let node = 0; node < nodes.end; node += 1) {
    if (!nodes.isUsed(node)) continue;
    paths += checkPins(parts, node);
    if (parts.tree.isRoot(node)) continue;
    checkText(parts, node);
    parts.ledger.forOwnRows(node, (row) => {
      expect(parts.ledger.isHolding(row) && !seen.has(row), 'a row hangs on two nodes, or is not held', row);
      seen.add(row);
    });
    if (nodes.pins[node] === 0) pooled += parts.ledger.ownRows(node);
  }
  expect(seen.size === parts.ledger.heldRows, 'the count of held rows is wrong', parts.ledger.heldRows, seen.size);
  expect(pooled === parts.pool.rows, 'the count of pooled rows is wrong', parts.pool.rows, pooled);
  expect(paths === parts.paths.count, 'the count of open paths is wrong', parts.paths.count, paths);
}

/** Returns how many paths end in the node. */
function checkPins({ tree }: CheckedParts, node: number): number {
  const { nodes } = tree;
  let ending = 0;
  for (let path = nodes.ending[node]; path !== undefined; path = path.next) {
    const isInside = path.length <= nodes.to[node]! && (path.length > nodes.from[node]! || tree.isRoot(node));
    expect(path.node === node && path.isOpen && isInside, 'a path ends outside its node', node, path.length);
    ending += 1;
  }
  let below = 0;
  for (let child = nodes.firstChild[node]!; child >= 0; child = nodes.nextSibling[child]!) below += nodes.pins[child]!;
  expect(nodes.pins[node] === ending + below, 'the pins of a node are miscounted', node, nodes.pins[node]);
  return ending;
}

function checkText({ tree, ledger }: CheckedParts, node: number): void {
  const { nodes } = tree;
  const parent = nodes.parent[node]!;
  const to = nodes.to[node]!;
  expect(
    nodes.isUsed(parent) && nodes.from[node] === nodes.to[parent], 'a node does not go on where its parent ends', node);
  expect(to > nodes.from[node]!, 'a node is empty', node);
  expect(
    tree.tokenAt(node, nodes.from[node]!) === nodes.firstToken[node], 'a node does not start with its first token',
    node);
  expect(tree.child(parent, nodes.firstToken[node]!) === node, 'a node is not found below its parent', node);
  expect(nodes.uses[node]! <= nodes.uses[parent]!, 'a node is used more than its parent', node);
  let rows = 0;
  let last = -1;
  ledger.forOwnRows(node, (row) => { last = row; rows += 1; });
  expect(rows === ledger.ownRows(node), 'the rows of a node are miscounted', node, rows);
  if (rows > 0 && nodes.tailRow[node]! < 0 || rows > 1) {
    const above = ledger.rowAbove(node, last);
    expect(above === nodes.lastRow[parent], 'the rows of a node do not go on where its parent\'s end', node, above);
  } else expect(nodes.lastRow[node] === nodes.lastRow[parent], 'a node without whole rows has some', node);
  if (!tree.isLeaf(node)) expect(nodes.tailRow[node] === -1, 'a node has a tail and children', node);
  if (nodes.pins[node] === 0) checkPooled(ledger, nodes, node, rows);
  if (nodes.tailRow[node]! >= 0) {
    expect(ledger.rowsFor(to) === ledger.wholeRows(to) + 1, 'a leaf has a tail and no token in it', node, to);
  }
}

function checkPooled(ledger: RowLedger, nodes: NodeTable, node: number, rows: number): void {
  const child = nodes.firstChild[node]!;
  if (child < 0) {
    const isBacked = ledger.backedTokens(node) === nodes.to[node];
    expect(isBacked && rows > 0, 'tokens of a leaf that no path uses lie in no row', node, nodes.to[node]);
  } else if (nodes.isOnlyChild(child)) {
    const isAlike = nodes.uses[node] === nodes.uses[child] && nodes.level[node] === nodes.level[child];
    expect(!isAlike && rows > 0, 'a node and its only child could be one', node, child);
  }
}

function expect(holds: boolean, problem: string, what?: number, howMany?: number): void {
  if (!holds) throw createError('KV_INTERNAL', { problem, what, howMany });
}
