// SideCover: how much of each cached text one side tensor has, and in which of its pages. It follows the texts of the prefix index: per
// node the token up to which the tensor was written (its cover), and in a ledger of its own the pages that hold it. A page may end
// inside a token and inside a node. What nobody wrote cannot be found.
//
// Invariants: cover is closed under prefixes: a node is covered only where all before it is; a node whose cover ends inside a page has
// that page as its tail, unless a covered child has it.

import { createError } from '../base/errors.js';
import { enlarged } from '../base/enlarged.js';
import type { RowArithmetic } from '../layout/row-arithmetic.js';
import { reasonNumber, type DroppedRows } from '../prefix/dropped-rows.js';
import type { NodeTable } from '../prefix/node-table.js';
import type { TextListener } from '../prefix/prefix-tree.js';
import { CoverOrder } from './cover-order.js';
import { RowLedger, type LedgerNodes } from '../prefix/row-ledger.js';

const evicted = reasonNumber('evicted');

/** Where the cover of a text ends, and why. */
export type CoverEnd = 'side-evicted' | 'side-never-written';

export class SideCover implements TextListener, LedgerNodes {
  readonly #nodes: NodeTable;
  readonly #arithmetic: RowArithmetic;
  readonly #ledger: RowLedger;
  readonly #chain: number[] = [];
  readonly #order = new CoverOrder();
  #wasEvicted = new Uint8Array(0);
  /** By page: tokens of the text up to which the ledger relies on its bytes. */
  #heldTokens = new Int32Array(64);
  // As RowLedger needs them; `to` is the cover.
  to: Int32Array = new Int32Array(0);
  lastRow: Int32Array = new Int32Array(0);
  tailRow: Int32Array = new Int32Array(0);

  /** @param dropped Gets every page that no text needs any more. */
  constructor(nodes: NodeTable, arithmetic: RowArithmetic, dropped: DroppedRows) {
    this.#nodes = nodes;
    this.#arithmetic = arithmetic;
    this.#ledger = new RowLedger(this, arithmetic, dropped);
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

  /** Pages that some text needs. */
  get heldPages(): number {
    return this.#ledger.heldRows;
  }

  isHolding(page: number): boolean {
    return this.#ledger.isHolding(page);
  }

  /** Tokens up to which a text relies on the bytes of a page that it holds. */
  heldTokens(page: number): number {
    return this.#heldTokens[page]!;
  }

  /** Of the first `tokens` tokens of the text, which end in `node` (-1: the domain has no text), how many are covered. */
  tokensOf(node: number, tokens: number): number {
    if (node < 0) return 0;
    return Math.min(tokens, this.#coverEnd(this.#deepestCovered(node)));
  }

  /** Why no more of the text is covered, where its first `tokens` tokens end in `node`. */
  reasonAt(node: number, tokens: number): CoverEnd {
    let last = node;
    for (let at = node; at >= 0 && !this.#isCovered(at); at = this.parent[at]!) last = at;
    const covered = node < 0 ? node : this.#deepestCovered(node);
    const ends = covered >= 0 && !this.#isRoot(covered) && this.to[covered]! < Math.min(tokens, this.#nodes.to[covered]!) ? covered : last;
    return ends >= 0 && ends < this.to.length && this.#wasEvicted[ends] === 1 ? 'side-evicted' : 'side-never-written';
  }

  /** Writes the pages of the text's first `tokens` tokens, which are covered and end in `node`, into `table`. */
  find(node: number, tokens: number, table: Int32Array): void {
    if (tokens === 0) return;
    let at = node;
    while (tokens <= this.from[at]!) at = this.parent[at]!;
    this.#ledger.fill(at, tokens, table);
    const whole = this.#arithmetic.wholeRows(tokens);
    if (this.#arithmetic.rowsFor(tokens) > whole) table[whole] = this.#ledger.partialRow(this.#holder(at, tokens), tokens);
  }

  /** The text that ends in `node` was used: what of it is covered goes last. `time` grows. */
  use(node: number, time: number): void {
    if (node < 0) return;
    for (let at = this.#deepestCovered(node); !this.#isRoot(at); at = this.parent[at]!) this.#order.use(at, time);
  }

  /**
   * The first `tokens` tokens of a text, which end in `node`, lie in the pages of `table`: what was not covered is from now on.
   * Returns the tokens that were covered before. The pages that it takes are held by no other text.
   */
  extend(node: number, tokens: number, table: Int32Array): number {
    this.#fit();
    const chain = this.#chain;
    chain.length = 0;
    let at = node;
    for (; !this.#isRoot(at) && !this.#isCovered(at); at = this.parent[at]!) chain.push(at);
    const before = this.#coverEnd(at);
    if (before >= tokens) return before;
    const first = this.#arithmetic.wholeRows(before);
    const tail = this.#isRoot(at) ? -1 : this.tailRow[at]!;
    this.#ledger.check(before, tokens, table, tail);
    for (let covered = before; covered < tokens;) {
      if (this.#isRoot(at) || covered === this.#nodes.to[at]) {
        const above = at;
        at = chain.pop()!;
        covered = Math.min(tokens, this.#nodes.to[at]!);
        this.#begin(at, above, covered, table);
      } else {
        covered = Math.min(tokens, this.#nodes.to[at]!);
        const from = this.to[at]!;
        this.to[at] = covered;
        this.#ledger.attach(at, from, table, this.tailRow[at]!);
      }
      this.#wasEvicted[at] = 0;
    }
    for (let index = first; index < this.#arithmetic.rowsFor(tokens); index += 1) this.#setHeldTokens(table[index]!, tokens);
    return before;
  }

  /**
   * The covered text that was used longest ago and whose last page `isSpare` affirms, by its last node; -1: none. Its ends go before
   * its start.
   */
  victim(isSpare: (page: number) => boolean): number {
    for (const node of this.#order) {
      if (this.#hasCoveredChild(node)) continue;
      if (isSpare(this.tailRow[node]! >= 0 ? this.tailRow[node]! : this.lastRow[node]!)) return node;
    }
    return -1;
  }

  lastUse(node: number): number {
    return this.#order.lastUse(node);
  }

  /** The last page of a text that `victim` named goes, and the tokens that end in it. */
  evictPage(node: number): void {
    const pages = this.#arithmetic.rowsFor(this.to[node]!);
    this.#cutTo(node, Math.max(this.from[node]!, this.#arithmetic.tokensIn(pages - 1)), evicted);
    this.#wasEvicted[node] = 1;
  }

  /**
   * No text relies on the bytes of the page behind its first `tokens` tokens any more: the text that ends there loses what it has behind
   * them. False: more than the end of a text lies there.
   */
  release(page: number, tokens: number): boolean {
    for (const node of this.#order) {
      if ((this.tailRow[node]! >= 0 ? this.tailRow[node] : this.lastRow[node]) !== page || this.#hasCoveredChild(node)) continue;
      this.#cutTo(node, Math.max(this.from[node]!, tokens), evicted);
      this.#wasEvicted[node] = 1;
      return !this.isHolding(page) || this.heldTokens(page) <= tokens;
    }
    return false;
  }

  // As TextListener.

  added(node: number, from: number): void {
    this.#fit();
    if (from > this.from[node]!) return; // it has become longer
    this.to[node] = from;
    this.tailRow[node] = -1;
    this.#wasEvicted[node] = 0;
  }

  cut(node: number, from: number, _to: number, reason: number): void {
    this.#fit();
    if (from < this.#coverEnd(node)) this.#cutTo(node, from, reason);
  }

  split(upper: number, lower: number): void {
    this.#fit();
    const at = this.from[lower]!;
    const covered = this.to[lower]!;
    this.#wasEvicted[upper] = this.#wasEvicted[lower]!;
    this.to[upper] = Math.min(at, covered);
    this.lastRow[upper] = this.lastRow[lower]!;
    this.tailRow[upper] = -1;
    if (covered > at) {
      this.lastRow[upper] = this.#ledger.lastRowAt(lower, at);
    } else {
      this.tailRow[upper] = this.tailRow[lower]!;
      this.tailRow[lower] = -1;
      this.to[lower] = at;
      this.#order.remove(lower);
    }
    if (this.#isCovered(upper)) this.#order.use(upper, this.#order.lastUse(lower));
  }

  joined(upper: number, lower: number): void {
    const at = this.#nodes.to[upper]!;
    if (this.to[lower]! <= at) {
      this.to[lower] = this.to[upper]!;
      this.lastRow[lower] = this.lastRow[upper]!;
      this.tailRow[lower] = this.tailRow[upper]!;
      if (this.to[upper]! < at) this.#wasEvicted[lower] = this.#wasEvicted[upper]!;
    }
    this.#order.remove(upper);
    if (this.#isCovered(lower)) this.#order.use(lower, Math.max(this.#order.lastUse(lower), this.#order.lastUse(upper)));
  }

  /** Throws KV_INTERNAL unless the invariants hold; `visit` gets every page that is held, and how many tokens rely on it. */
  verify(visit: (page: number, index: number) => void): void {
    this.#fit();
    let covered = 0;
    let held = 0;
    for (let node = 0; node < this.end; node += 1) {
      if (!this.isUsed(node) || this.#isRoot(node) || !this.#isCovered(node)) continue;
      covered += 1;
      const above = this.parent[node]!;
      if (this.#coverEnd(above) !== this.from[node]) throw broken('text is covered behind text that is not', node, this.from[node]!);
      if (this.to[node]! > this.#nodes.to[node]!) throw broken('more text is covered than there is', node, this.to[node]!);
      const whole = this.#arithmetic.wholeRows(this.to[node]!);
      const isInside = this.#arithmetic.rowsFor(this.to[node]!) > whole;
      if (this.tailRow[node]! >= 0 && (!isInside || this.#hasCoveredChild(node))) throw broken('a text has a tail that it does not need', node, whole);
      if (isInside && this.#holder(node, this.to[node]!) < 0) throw broken('the last tokens of a covered text lie in no page', node, whole);
      this.#ledger.forOwnRows(node, (page, index) => {
        if (!this.isHolding(page)) throw broken('a page of a covered text is not held', node, page);
        held += 1;
        visit(page, index);
      });
      if (!this.#order.has(node)) throw broken('a covered text is in no order', node, this.to[node]!);
    }
    if (covered !== this.#order.count) throw broken('covered texts are miscounted', covered, this.#order.count);
    if (held !== this.heldPages) throw broken('held pages are miscounted', held, this.heldPages);
  }

  #begin(node: number, above: number, tokens: number, table: Int32Array): void {
    const isFirst = this.#isRoot(above);
    const tail = isFirst ? -1 : this.tailRow[above]!;
    const from = this.from[node]!;
    this.lastRow[node] = isFirst ? -1 : this.lastRow[above]!;
    this.tailRow[node] = -1;
    this.to[node] = tokens;
    this.#ledger.attach(node, from, table, tail);
    if (tail >= 0) this.tailRow[above] = -1;
    const lastUse = isFirst ? 0 : this.#order.lastUse(above);
    for (let at = node; !this.#isRoot(at); at = this.parent[at]!) this.#order.use(at, lastUse);
  }

  /** The node, which has no covered child unless all of it goes, keeps its cover up to `tokens`. */
  #cutTo(node: number, tokens: number, reason: number): void {
    const start = this.from[node]!;
    const straddling = tokens <= start ? this.#straddlingPage(node) : -1;
    this.to[node] = this.#ledger.cut(node, tokens, reason);
    if (tokens > start) {
      if (this.tailRow[node]! >= 0) this.#setHeldTokens(this.tailRow[node]!, tokens);
      return;
    }
    this.#order.remove(node);
    const above = this.parent[node]!;
    if (straddling < 0 || this.#holder(above, start) >= 0) return;
    this.#ledger.attachTail(above, straddling);
    this.#setHeldTokens(straddling, start);
  }

  /** The covered node, `node` or one below it, on which the page hangs that the text's first `tokens` tokens end in; -1: there is none. */
  #holder(node: number, tokens: number): number {
    if (this.tailRow[node]! >= 0 || this.#arithmetic.wholeRows(this.to[node]!) > this.#arithmetic.wholeRows(tokens)) return node;
    for (let child = this.firstChild[node]!; child >= 0; child = this.nextSibling[child]!) {
      const holder = this.#isCovered(child) ? this.#holder(child, tokens) : -1;
      if (holder >= 0) return holder;
    }
    return -1;
  }

  /** The page in which the node starts, if the end of the text before it lies there too; else -1. */
  #straddlingPage(node: number): number {
    const first = this.#arithmetic.wholeRows(this.from[node]!);
    if (this.#arithmetic.rowsFor(this.from[node]!) === first) return -1;
    let found = -1;
    this.#ledger.forOwnRows(node, (page, index) => {
      if (index === first) found = page;
    });
    return found;
  }

  #deepestCovered(node: number): number {
    let at = node;
    while (!this.#isRoot(at) && !this.#isCovered(at)) at = this.parent[at]!;
    return at;
  }

  #isRoot(node: number): boolean {
    return this.parent[node]! < 0;
  }

  #isCovered(node: number): boolean {
    return node < this.to.length && this.to[node]! > this.from[node]!;
  }

  #coverEnd(node: number): number {
    return this.#isRoot(node) ? 0 : Math.max(this.from[node]!, this.to[node]!);
  }

  #hasCoveredChild(node: number): boolean {
    for (let child = this.firstChild[node]!; child >= 0; child = this.nextSibling[child]!) if (this.#isCovered(child)) return true;
    return false;
  }

  #setHeldTokens(page: number, tokens: number): void {
    if (page >= this.#heldTokens.length) this.#heldTokens = enlarged(this.#heldTokens, Math.max(page + 1, 2 * this.#heldTokens.length));
    this.#heldTokens[page] = tokens;
  }

  /** Has room for every node of the tree. */
  #fit(): void {
    const { length } = this.parent;
    if (this.to.length >= length) return;
    this.to = enlarged(this.to, length);
    this.lastRow = enlarged(this.lastRow, length);
    this.tailRow = enlarged(this.tailRow, length, -1);
    this.#wasEvicted = enlarged(this.#wasEvicted, length);
    this.#order.fit(length);
  }
}

function broken(problem: string, what: number, howMany: number): Error {
  return createError('KV_INTERNAL', { problem: `side tensors: ${problem}`, what, howMany });
}
