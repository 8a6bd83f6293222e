// PathWriter: how the text of an open path changes the tree: it goes on along what is there, branches off, or lengthens it,
// and takes tokens back. The only place that adds text.

import type { CachePool } from './cache-pool.js';
import { reasonNumber } from './dropped-rows.js';
import type { OpenPaths } from './open-paths.js';
import type { PrefixPath } from './prefix-path.js';
import type { PrefixTree } from './prefix-tree.js';
import type { RowLedger } from './row-ledger.js';
import type { TextListener } from './text-listener.js';

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

  constructor(parts: WriterParts) {
    this.#parts = parts;
  }

  /** The path's text is text[0, length) from now on; what it has committed is not compared again. */
  commit(path: PrefixPath, text: Int32Array, length: number): void {
    const { tree, pool, paths } = this.#parts;
    const { nodes } = tree;
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
    if (tree.isLeaf(end) && !tree.isRoot(end)) pool.settle(end, truncated);
  }

  /** Takes the tokens from `length` on back: rows of its own that nobody else uses are not cached any more. */
  truncate(path: PrefixPath, length: number): void {
    const { tree, pool, paths } = this.#parts;
    const { nodes } = tree;
    while (path.length > length) {
      const node = path.node;
      const from = nodes.from[node]!;
      const to = nodes.to[node]!;
      const isAtEnd = path.length === to;
      if (length <= from) paths.ascend(path);
      else paths.move(path, length);
      if (!tree.isLeaf(node)) {
        pool.joinChild(node);
        continue;
      }
      const kept = isAtEnd ? this.#keptTokens(path, node, Math.max(length, from)) : to;
      if (kept < to) pool.cut(node, kept, truncated);
      if (tree.isUsedLeaf(node)) pool.settle(node, truncated);
    }
    this.narrow(path.node, path.length);
    pool.keepWithinBounds(nodes.tenant[path.node]!);
  }

  /** Tokens of a leaf that stay when the path leaves those from `length` on: what others use, or wrote. */
  #keptTokens(path: PrefixPath, leaf: number, length: number): number {
    const { tree, ledger, paths } = this.#parts;
    let kept = Math.max(length, Math.min(path.sharedTokens, tree.nodes.to[leaf]!));
    for (let other = paths.endingIn(leaf); other !== undefined; other = other.next) kept = Math.max(kept, other.length);
    const { arithmetic } = ledger;
    const first = arithmetic.wholeRows(kept);
    let rows = arithmetic.rowsFor(tree.nodes.to[leaf]!);
    for (let row = ledger.deepestRow(leaf); rows > first && row === path.rows[rows - 1]; rows -= 1) {
      row = ledger.rowAbove(leaf, row);
    }
    return Math.max(kept, Math.min(tree.nodes.to[leaf]!, arithmetic.tokensIn(rows)));
  }

  /**
   * Cuts off the rows of the node that lie behind `length` completely, so that a path that ends there does not pin them.
   * Answers the node in which the first `length` tokens end then.
   */
  narrow(node: number, length: number): number {
    const { tree, ledger } = this.#parts;
    const { arithmetic } = ledger;
    const to = tree.nodes.to[node]!;
    const rows = arithmetic.rowsFor(length);
    if (arithmetic.rowsFor(to) <= rows) return node;
    let at = arithmetic.tokensIn(rows);
    if (arithmetic.wholeRows(at) < rows) at += 1; // the row's last token, which ends in the next one
    return at < to ? this.#split(node, at) : node;
  }

  /** The same for all tokens of the node behind `length`, whatever row they lie in. */
  part(node: number, length: number): void {
    const { from, to } = this.#parts.tree.nodes;
    if (from[node]! < length && length < to[node]!) this.#split(node, length);
  }

  /** Answers the new node, which has the tokens before `at`. */
  #split(lower: number, at: number): number {
    const { tree, ledger, pool, paths, listeners } = this.#parts;
    const isPooled = tree.nodes.pins[lower] === 0;
    const upper = tree.split(lower, at, ledger);
    for (const listener of listeners) listener.split(upper, lower);
    if (isPooled) pool.split(upper, lower);
    else paths.split(upper, lower);
    if (tree.nodes.pins[lower] !== 0) return upper;
    if (tree.isLeaf(lower)) pool.settle(lower, truncated);
    else pool.joinChild(lower);
    if (!isPooled) pool.keepWithinBounds(tree.nodes.tenant[upper]!);
    return upper;
  }

  /** Adds text[path.length, length) behind the path's node, at whose end the path is. */
  #extend(path: PrefixPath, text: Int32Array, length: number): void {
    const { tree, ledger, paths, listeners } = this.#parts;
    const { nodes } = tree;
    const node = path.node;
    const at = path.length;
    const isLeaf = tree.isLeaf(node) && !tree.isRoot(node);
    const tail = isLeaf ? nodes.tailRow[node]! : -1;
    ledger.check(at, length, path.rows, tail);
    // Not what was released, which keeps its own count of uses, nor what others end in, who would pin what they do not have.
    if (isLeaf && nodes.uses[node] === 0 && path.isAlone) {
      tree.grow(node, text, at, length - at);
      ledger.attach(node, at, path.rows, tail);
      paths.move(path, length);
    } else {
      const child = tree.addChild(node, text, at, length - at);
      ledger.attach(child, at, path.rows, tail);
      if (isLeaf) nodes.tailRow[node] = -1;
      paths.start(path, child, length);
    }
    for (const listener of listeners) listener.added(path.node, at);
  }
}
