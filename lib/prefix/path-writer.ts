// PathWriter: how the text of an open path changes the tree: it goes on along what is there, branches off, or lengthens it, and takes
// tokens back. The only place that adds text, and that splits nodes.

import type { CachePool } from './cache-pool.js';
import type { NodeTable } from './node-table.js';
import type { OpenPaths } from './open-paths.js';
import type { PrefixPath } from './prefix-path.js';
import type { PrefixTree, TextListener } from './prefix-tree.js';
import { reasonNumber, type RowLedger } from './row-ledger.js';

export interface WriterParts {
  readonly tree: PrefixTree;
  readonly ledger: RowLedger;
  readonly pool: CachePool;
  readonly paths: OpenPaths;
  readonly listeners: readonly TextListener[];
}

const truncated = reasonNumber('truncated');

export class PathWriter {
  readonly #parts: WriterParts;
  readonly #nodes: NodeTable;

  constructor(parts: WriterParts) {
    this.#parts = parts;
    this.#nodes = parts.tree.nodes;
  }

  /** The path's text is text[0, length) from now on; what it has committed is not compared again. */
  commit(path: PrefixPath, text: Int32Array, length: number): void {
    const { tree, pool, paths } = this.#parts;
    const nodes = this.#nodes;
    while (path.length < length) {
      const node = path.node;
      const at = path.length;
      if (at < nodes.to[node]!) {
        const agreed = tree.agree(node, at, text, at, length - at);
        if (agreed > 0) paths.move(path, at + agreed);
        else this.#split(node, at);
        continue;
      }
      const child = tree.child(node, text[at]!);
      if (child >= 0) paths.descend(path, child, at + tree.agree(child, at, text, at, length - at));
      else this.#extend(path, text, length);
    }
    const end = path.node;
    if (nodes.firstChild[end]! < 0 && nodes.parent[end]! >= 0) pool.settle(end, truncated);
  }

  /** Takes the tokens from `length` on back: rows of the path's own that no other path uses are not cached any more. */
  truncate(path: PrefixPath, length: number): void {
    const { tree, pool, paths } = this.#parts;
    const nodes = this.#nodes;
    while (path.length > length) {
      const node = path.node;
      const from = nodes.from[node]!;
      const to = nodes.to[node]!;
      const isAtEnd = path.length === to;
      if (length <= from) paths.ascend(path);
      else paths.move(path, length);
      if (nodes.firstChild[node]! >= 0) {
        pool.joinChild(node);
        continue;
      }
      const kept = isAtEnd ? this.#keptTokens(path, node, Math.max(length, from)) : to;
      if (kept < to) pool.cut(node, kept, truncated);
      if (tree.isUsedLeaf(node)) pool.settle(node, truncated);
    }
    this.splitAtRow(path.node, path.length);
    pool.keepWithinBounds(nodes.tenant[path.node]!);
  }

  /** Tokens of a leaf that stay when the path leaves those from `length` on: what other paths use, or wrote. */
  #keptTokens(path: PrefixPath, leaf: number, length: number): number {
    const { ledger } = this.#parts;
    const { to, tailRow, lastRow, ending } = this.#nodes;
    const end = to[leaf]!;
    let kept = Math.max(length, Math.min(path.sharedTokens, end));
    for (let other = ending[leaf]; other !== undefined; other = other.next) kept = Math.max(kept, other.length);
    const first = ledger.wholeRows(kept);
    let rows = ledger.rowsFor(end);
    for (let row = tailRow[leaf]! >= 0 ? tailRow[leaf]! : lastRow[leaf]!; rows > first && row === path.rows[rows - 1]; rows -= 1) {
      row = ledger.rowAbove(leaf, row);
    }
    return Math.max(kept, Math.min(end, ledger.tokensIn(rows)));
  }

  /**
   * Splits the node where the last row ends that its text's first `length` tokens touch, so that a path that ends there does not pin
   * the rows behind. Returns the node in which those tokens end then.
   */
  splitAtRow(node: number, length: number): number {
    const at = this.#parts.ledger.tokensToRowEnd(length);
    return at < this.#nodes.to[node]! ? this.#split(node, at) : node;
  }

  /** Splits the node behind the first `length` tokens of its text, whatever row follows. */
  splitAt(node: number, length: number): void {
    const { from, to } = this.#nodes;
    if (from[node]! < length && length < to[node]!) this.#split(node, length);
  }

  /**
   * A running sequence may have rows of its own with the same tokens as cached ones: it computed what was there already, or copied the
   * last tokens of what it found. Its path keeps the cached ones from being evicted, and needs neither them nor what lies behind its
   * tokens in the same node. Where memory is short, its own rows are cached in their place, which loses nothing, while evicting loses
   * text. Drops the cached ones that `isSpare` affirms, as `replaced`, or makes them evictable.
   */
  replaceDuplicates(isSpare: (row: number) => boolean): void {
    const { ledger, paths } = this.#parts;
    const instead = new Map<number, number>();
    for (const path of paths.all()) {
      this.splitAtRow(path.node, path.length);
      const last = this.#cachedTail(path);
      if (last >= 0 && last !== this.#ownTail(path) && isSpare(last)) this.splitAt(path.node, path.length);
      const held = new Int32Array(ledger.wholeRows(path.length));
      ledger.fill(path.node, path.length, held);
      held.forEach((row, index) => {
        const own = path.rows[index]!;
        if (own !== row && own >= 0 && !instead.has(row) && !ledger.isHolding(own) && isSpare(row)) instead.set(row, own);
      });
    }
    if (instead.size > 0) ledger.replace(instead);
    for (const path of paths.all()) this.#replaceTail(path, isSpare);
  }

  /** Where the path ends its node: caches the path's row with the last tokens in the place of the node's. */
  #replaceTail(path: PrefixPath, isSpare: (row: number) => boolean): void {
    const { ledger } = this.#parts;
    const tail = this.#nodes.tailRow[path.node]!;
    const own = this.#ownTail(path);
    if (tail < 0 || tail === own || own < 0 || path.length !== this.#nodes.to[path.node] || !isSpare(tail) || ledger.isHolding(own)) return;
    ledger.replaceTail(path.node, own);
  }

  /** The row of the path's node that has its last tokens, if these do not fill it; or -1. */
  #cachedTail({ node, length }: PrefixPath): number {
    const { ledger } = this.#parts;
    const { to, tailRow, parent } = this.#nodes;
    const whole = ledger.wholeRows(length);
    if (parent[node]! < 0 || ledger.rowsFor(length) === whole) return -1;
    return ledger.wholeRows(to[node]!) > whole ? ledger.partialRow(node, length) : tailRow[node]!;
  }

  /** The path's own row behind its whole ones, or -1. */
  #ownTail({ rows, length }: PrefixPath): number {
    return rows[this.#parts.ledger.wholeRows(length)] ?? -1;
  }
  /** Returns the new node, which has the tokens before `at`. */
  #split(lower: number, at: number): number {
    const { tree, ledger, pool, paths, listeners } = this.#parts;
    const nodes = this.#nodes;
    const isPooled = nodes.pins[lower] === 0;
    const upper = tree.split(lower, at, ledger.lastRowAt(lower, at));
    for (const listener of listeners) listener.split?.(upper, lower);
    if (isPooled) pool.split(upper, lower);
    else paths.split(upper, lower);
    if (nodes.pins[lower] !== 0) return upper;
    if (nodes.firstChild[lower]! < 0) pool.settle(lower, truncated);
    else pool.joinChild(lower);
    if (!isPooled) pool.keepWithinBounds(nodes.tenant[upper]!);
    return upper;
  }

  /** Adds text[path.length, length) behind the path's node, at whose end the path is. */
  #extend(path: PrefixPath, text: Int32Array, length: number): void {
    const { tree, ledger, paths, listeners } = this.#parts;
    const nodes = this.#nodes;
    const node = path.node;
    const at = path.length;
    const isLeaf = nodes.firstChild[node]! < 0 && nodes.parent[node]! >= 0;
    const isAlone = path.next === undefined && path.previous === undefined;
    const tail = isLeaf ? nodes.tailRow[node]! : -1;
    ledger.check(at, length, path.rows, tail);
    // Not where the leaf was released, as it keeps its own count of uses, nor where other paths end, which would pin what they lack.
    if (isLeaf && nodes.uses[node] === 0 && isAlone) {
      tree.grow(node, text, at, length - at);
      ledger.attach(node, at, path.rows, tail);
      paths.move(path, length);
    } else {
      const child = tree.addChild(node, text, at, length - at);
      ledger.attach(child, at, path.rows, tail);
      if (isLeaf) nodes.tailRow[node] = -1;
      paths.start(path, child, length);
    }
    for (const listener of listeners) listener.added?.(path.node, at);
  }
}
