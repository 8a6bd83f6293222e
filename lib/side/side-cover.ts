// SideCover: how much of each cached text one side tensor has, and in which of its pages. It follows the texts of the
// prefix index: per node the token up to which the tensor was written (its cover), and in a ledger of its own the pages
// that hold it. A page may end inside a token and inside a node. What no engine wrote cannot be found.
//
// Invariants: cover is closed under prefixes: a node is covered only where all before it is; a node whose cover ends
// inside a page has that page as its tail, unless a covered child has it.

import { createError } from '../base/errors.js';
import { enlarged } from '../base/typed-arrays.js';
import type { RowArithmetic } from '../base/row-arithmetic.js';
import { type DroppedRows, reasonNumber, RowLedger } from '../prefix/row-ledger.js';
import type { NodeTable, TextListener } from '../prefix/prefix-tree.js';
import { CoverNodes } from './cover-nodes.js';
import { CoverOrder } from './cover-order.js';
import { CoverVictims, type WithheldNodes } from './cover-victims.js';

const evicted = reasonNumber('evicted');

/** Where the cover of a text ends, and why. */
export type CoverEnd = 'side-evicted' | 'side-never-written';

export class SideCover implements TextListener {
  readonly #nodes: NodeTable;
  readonly #covered: CoverNodes;
  readonly #arithmetic: RowArithmetic;
  readonly #ledger: RowLedger;
  readonly #chain: number[] = [];
  readonly #order = new CoverOrder();
  readonly #withheld: WithheldNodes;
  readonly #victims: CoverVictims;
  #wasEvicted = new Uint8Array(0);
  /** By page: tokens of the text up to which the ledger relies on its bytes. */
  #heldTokens = new Int32Array(64);

  /** @param dropped Gets every page that no text needs any more. */
  constructor(nodes: NodeTable, withheld: WithheldNodes, arithmetic: RowArithmetic, dropped: DroppedRows) {
    this.#nodes = nodes;
    this.#withheld = withheld;
    this.#victims = new CoverVictims(this.#order, withheld);
    this.#arithmetic = arithmetic;
    this.#covered = new CoverNodes(nodes);
    this.#ledger = new RowLedger(this.#covered, arithmetic, dropped);
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

  /**
   * Of the first `tokens` tokens of the text, which end in `node` (-1: the domain has no text), how many are covered.
   */
  tokensOf(node: number, tokens: number): number {
    if (node < 0) return 0;
    return Math.min(tokens, this.#covered.coverEnd(this.#covered.deepestCovered(node)));
  }

  /** Why no more of the text is covered, where its first `tokens` tokens end in `node`. */
  reasonAt(node: number, tokens: number): CoverEnd {
    let last = node;
    for (let at = node; at >= 0 && !this.#covered.isRoot(at) && !this.#covered.isCovered(at);
        at = this.#nodes.parent[at]!) last = at;
    const covered = node < 0 ? node : this.#covered.deepestCovered(node);
    const ends = covered >= 0 && !this.#covered.isRoot(covered)
      && this.#covered.to[covered]! < Math.min(tokens, this.#nodes.to[covered]!) ? covered : last;
    return ends >= 0 && ends < this.#wasEvicted.length && this.#wasEvicted[ends] === 1 ? 'side-evicted'
      : 'side-never-written';
  }

  /** Writes the pages of the text's first `tokens` tokens, which are covered and end in `node`, into `table`. */
  find(node: number, tokens: number, table: Int32Array): void {
    if (tokens === 0) return;
    let at = node;
    while (tokens <= this.#nodes.from[at]!) at = this.#nodes.parent[at]!;
    this.#ledger.fill(at, tokens, table);
    const whole = this.#arithmetic.wholeRows(tokens);
    if (this.#arithmetic.rowsFor(tokens) > whole) {
      table[whole] = this.#ledger.partialRow(this.#holder(at, tokens), tokens);
    }
  }

  /** The text that ends in `node` was used: what of it is covered goes last. `time` grows. */
  use(node: number, time: number): void {
    if (node < 0) return;
    for (let at = this.#covered.deepestCovered(node); !this.#covered.isRoot(at); at = this.#nodes.parent[at]!) {
      this.#order.use(at, time);
      this.#victims.used(at);
    }
  }

  /**
   * The first `tokens` tokens of a text, which end in `node`, lie in the pages of `table`: what was not covered is from
   * now on. Returns the tokens that were covered before. The pages that it takes are held by no other text.
   */
  extend(node: number, tokens: number, table: Int32Array): number {
    this.#fit();
    const chain = this.#chain;
    chain.length = 0;
    let at = node;
    for (; !this.#covered.isRoot(at) && !this.#covered.isCovered(at); at = this.#nodes.parent[at]!) chain.push(at);
    const before = this.#covered.coverEnd(at);
    if (before >= tokens) return before;
    this.#victims.restart();
    const first = this.#arithmetic.wholeRows(before);
    const tail = this.#covered.isRoot(at) ? -1 : this.#covered.tailRow[at]!;
    this.#ledger.check(before, tokens, table, tail);
    for (let covered = before; covered < tokens;) {
      if (this.#covered.isRoot(at) || covered === this.#nodes.to[at]) {
        const above = at;
        at = chain.pop()!;
        covered = Math.min(tokens, this.#nodes.to[at]!);
        this.#begin(at, above, covered, table);
      } else {
        covered = Math.min(tokens, this.#nodes.to[at]!);
        const from = this.#covered.to[at]!;
        this.#covered.to[at] = covered;
        this.#ledger.attach(at, from, table, this.#covered.tailRow[at]!);
      }
      this.#wasEvicted[at] = 0;
    }
    for (let index = first; index < this.#arithmetic.rowsFor(tokens); index += 1) {
      this.#setHeldTokens(table[index]!, tokens);
    }
    return before;
  }

  /**
   * The covered text that was used longest ago and of which `isSpare` affirms the pages that `evictPage` would take, by
   * its last node; -1: none. Its ends go before its start; what the eviction policy withholds does not go. `spareEpoch`
   * is another number once a page has become spare: until then it goes on where it was, and passes over the texts in
   * use once.
   */
  victim(isSpare: (page: number) => boolean, spareEpoch: number): number {
    return this.#victims.next(
      (node) => !this.#covered.hasCoveredChild(node) && this.#isEndSpare(node, isSpare), spareEpoch);
  }

  /**
   * Calls `visit` for the pages of covered text that the eviction policy withholds, and of what that continues, each
   * once.
   */
  forWithheldPages(visit: (page: number) => void): void {
    for (const node of this.#withheldPaths()) this.#ledger.forOwnRows(node, visit);
  }

  /**
   * The covered text that was used longest ago whose end is in use, and of which `isSpare` affirms a page before it
   * that can go once the end is cut off, by its last node; -1: none.
   */
  blockingVictim(isSpare: (page: number) => boolean): number {
    const kept = this.#withheldPaths();
    for (const node of this.#order) {
      if (kept.has(node) || this.#covered.hasCoveredChild(node)) continue;
      let isWaiting = false;
      for (let at = node; !isWaiting && !this.#covered.isRoot(at) && !kept.has(at); at = this.#nodes.parent[at]!) {
        this.#ledger.forOwnRows(at, (page) => { isWaiting ||= isSpare(page); });
      }
      if (isWaiting) return node;
    }
    return -1;
  }

  lastUse(node: number): number {
    return this.#order.lastUse(node);
  }

  /** The last page of a text that `victim` named goes, and the tokens that end in it. */
  evictPage(node: number): void {
    this.#cutTo(node, this.#endWithoutPage(node), evicted);
    // else it is the next victim too, or the end that it has now is in use
    if (!this.#covered.isCovered(node)) this.#victims.restart();
    this.#wasEvicted[node] = 1;
  }

  /**
   * No text relies on the bytes of the page behind its first `tokens` tokens any more: the text that ends there loses
   * what it has behind them. False: more than the end of a text lies there, or the eviction policy withholds it.
   */
  release(page: number, tokens: number): boolean {
    const node = this.#releasable(page, tokens);
    if (node < 0) return false;
    this.#victims.restart();
    this.#cutTo(node, Math.max(this.#nodes.from[node]!, tokens), evicted);
    this.#wasEvicted[node] = 1;
    return !this.isHolding(page) || this.heldTokens(page) <= tokens;
  }

  /** Whether `release` would. */
  canRelease(page: number, tokens: number): boolean {
    return this.#releasable(page, tokens) >= 0;
  }

  // As TextListener.

  added(node: number, from: number, isTransfer: boolean): void {
    this.#fit();
    if (from > this.#nodes.from[node]!) return; // it has become longer
    this.#covered.to[node] = from;
    this.#covered.tailRow[node] = -1;
    this.#wasEvicted[node] = isTransfer ? 1 : 0; // what comes from tiers has lost its rows, if it had any
  }

  cut(node: number, from: number, _to: number, reason: number): void {
    this.#fit();
    if (from >= this.#covered.coverEnd(node)) return;
    this.#victims.restart();
    this.#cutTo(node, from, reason);
  }

  split(upper: number, lower: number): void {
    this.#fit();
    this.#victims.restart();
    const at = this.#nodes.from[lower]!;
    const covered = this.#covered.to[lower]!;
    this.#wasEvicted[upper] = this.#wasEvicted[lower]!;
    this.#covered.to[upper] = Math.min(at, covered);
    this.#covered.lastRow[upper] = this.#covered.lastRow[lower]!;
    this.#covered.tailRow[upper] = -1;
    if (covered > at) {
      this.#covered.lastRow[upper] = this.#ledger.lastRowAt(lower, at);
    } else {
      this.#covered.tailRow[upper] = this.#covered.tailRow[lower]!;
      this.#covered.tailRow[lower] = -1;
      this.#covered.to[lower] = at;
      this.#order.remove(lower);
    }
    if (this.#covered.isCovered(upper)) this.#order.use(upper, this.#order.lastUse(lower));
  }

  joined(upper: number, lower: number): void {
    this.#victims.restart();
    const at = this.#nodes.to[upper]!;
    if (this.#covered.to[lower]! <= at) {
      this.#covered.to[lower] = this.#covered.to[upper]!;
      this.#covered.lastRow[lower] = this.#covered.lastRow[upper]!;
      this.#covered.tailRow[lower] = this.#covered.tailRow[upper]!;
      if (this.#covered.to[upper]! < at) this.#wasEvicted[lower] = this.#wasEvicted[upper]!;
    }
    this.#order.remove(upper);
    if (this.#covered.isCovered(lower)) {
      this.#order.use(lower, Math.max(this.#order.lastUse(lower), this.#order.lastUse(upper)));
    }
  }

  /**
   * Throws KV_INTERNAL unless the invariants hold; `visit` gets every page that is held, and how many tokens rely on
   * it.
   */
  verify(visit: (page: number, index: number) => void): void {
    this.#fit();
    let covered = 0;
    let held = 0;
    let table = new Int32Array(64);
    for (let node = 0; node < this.#nodes.end; node += 1) {
      if (!this.#nodes.isUsed(node) || this.#covered.isRoot(node) || !this.#covered.isCovered(node)) continue;
      covered += 1;
      const above = this.#nodes.parent[node]!;
      if (this.#covered.coverEnd(above) !== this.#nodes.from[node]) {
        throw broken('text is covered behind text that is not', node, this.#nodes.from[node]!);
      }
      if (this.#covered.to[node]! > this.#nodes.to[node]!) {
        throw broken('more text is covered than there is', node, this.#covered.to[node]!);
      }
      const whole = this.#arithmetic.wholeRows(this.#covered.to[node]!);
      const isInside = this.#arithmetic.rowsFor(this.#covered.to[node]!) > whole;
      if (this.#covered.tailRow[node]! >= 0 && (!isInside || this.#covered.hasCoveredChild(node))) {
        throw broken('a text has a tail that it does not need', node, whole);
      }
      if (isInside && this.#holder(node, this.#covered.to[node]!) < 0) {
        throw broken('the last tokens of a covered text lie in no page', node, whole);
      }
      this.#ledger.forOwnRows(node, (page, index) => {
        if (!this.isHolding(page)) throw broken('a page of a covered text is not held', node, page);
        held += 1;
        visit(page, index);
      });
      this.find(
        node, this.#covered.to[node]!, table = table.length < whole + 1 ? new Int32Array(2 * (whole + 1)) : table);
      table.subarray(0, this.#arithmetic.rowsFor(this.#covered.to[node]!)).forEach((page, index) => {
        if (!this.isHolding(page)) throw broken('a page on the way to a covered text is not held', node, page);
        visit(page, index);
      });
      if (!this.#order.has(node)) throw broken('a covered text is in no order', node, this.#covered.to[node]!);
    }
    if (covered !== this.#order.count) throw broken('covered texts are miscounted', covered, this.#order.count);
    if (held !== this.heldPages) throw broken('held pages are miscounted', held, this.heldPages);
  }

  /** Covered nodes that the eviction policy withholds, and those that they continue. */
  #withheldPaths(): ReadonlySet<number> {
    const nodes = new Set<number>();
    this.#withheld.forNodes((node) => {
      if (!this.#order.has(node)) return;
      for (let at = node; !this.#covered.isRoot(at) && !nodes.has(at); at = this.#nodes.parent[at]!) nodes.add(at);
    });
    return nodes;
  }

  /**
   * The text that ends in the page and can lose what it has there behind its first `tokens` tokens; -1: there is none.
   */
  #releasable(page: number, tokens: number): number {
    for (const node of this.#order) {
      if (this.#lastPage(node) !== page || this.#covered.hasCoveredChild(node)) continue;
      return this.#withheld.has(node) || this.#nodes.from[node]! > tokens ? -1 : node;
    }
    return -1;
  }

  #lastPage(node: number): number {
    return this.#covered.tailRow[node]! >= 0 ? this.#covered.tailRow[node]! : this.#covered.lastRow[node]!;
  }

  /** Where the node's cover ends without its last page. */
  #endWithoutPage(node: number): number {
    return Math.max(
      this.#nodes.from[node]!, this.#arithmetic.tokensIn(this.#arithmetic.rowsFor(this.#covered.to[node]!) - 1));
  }

  /** A token that has more than a page, or lies in two, takes all its pages with it. */
  #isEndSpare(node: number, isSpare: (page: number) => boolean): boolean {
    const end = this.#endWithoutPage(node);
    const first = end > this.#nodes.from[node]! ? this.#arithmetic.rowsFor(end) : this.#arithmetic.wholeRows(end);
    let page = this.#lastPage(node);
    for (let index = this.#arithmetic.rowsFor(this.#covered.to[node]!) - 1; index >= first; index -= 1) {
      if (!isSpare(page)) return false;
      page = this.#ledger.rowAbove(node, page);
    }
    return true;
  }

  #begin(node: number, above: number, tokens: number, table: Int32Array): void {
    const isFirst = this.#covered.isRoot(above);
    const tail = isFirst ? -1 : this.#covered.tailRow[above]!;
    const from = this.#nodes.from[node]!;
    this.#covered.lastRow[node] = isFirst ? -1 : this.#covered.lastRow[above]!;
    this.#covered.tailRow[node] = -1;
    this.#covered.to[node] = tokens;
    this.#ledger.attach(node, from, table, tail);
    if (tail >= 0) this.#covered.tailRow[above] = -1;
    const lastUse = isFirst ? 0 : this.#order.lastUse(above);
    for (let at = node; !this.#covered.isRoot(at); at = this.#nodes.parent[at]!) this.#order.use(at, lastUse);
  }

  /** The node, which has no covered child unless all of it goes, keeps its cover up to `tokens`. */
  #cutTo(node: number, tokens: number, reason: number): void {
    const start = this.#nodes.from[node]!;
    const straddling = tokens <= start ? this.#straddlingPage(node) : -1;
    this.#covered.to[node] = this.#ledger.cut(node, tokens, reason);
    if (tokens > start) {
      if (this.#covered.tailRow[node]! >= 0) this.#setHeldTokens(this.#covered.tailRow[node]!, tokens);
      return;
    }
    this.#order.remove(node);
    const above = this.#nodes.parent[node]!;
    if (straddling < 0 || this.#holder(above, start) >= 0) return;
    this.#ledger.attachTail(above, straddling);
    this.#setHeldTokens(straddling, start);
  }

  /**
   * The covered node, `node` or one below it, on which the page hangs that the text's first `tokens` tokens end in; -1:
   * there is none.
   */
  #holder(node: number, tokens: number): number {
    if (this.#covered.tailRow[node]! >= 0
      || this.#arithmetic.wholeRows(this.#covered.to[node]!) > this.#arithmetic.wholeRows(tokens)) return node;
    for (let child = this.#nodes.firstChild[node]!; child >= 0; child = this.#nodes.nextSibling[child]!) {
      const holder = this.#covered.isCovered(child) ? this.#holder(child, tokens) : -1;
      if (holder >= 0) return holder;
    }
    return -1;
  }

  /** The page in which the node starts, if the end of the text before it lies there too; else -1. */
  #straddlingPage(node: number): number {
    const first = this.#arithmetic.wholeRows(this.#nodes.from[node]!);
    if (this.#arithmetic.rowsFor(this.#nodes.from[node]!) === first) return -1;
    let found = -1;
    this.#ledger.forOwnRows(node, (page, index) => {
      if (index === first) found = page;
    });
    return found;
  }

  #setHeldTokens(page: number, tokens: number): void {
    if (page >= this.#heldTokens.length) {
      this.#heldTokens = enlarged(this.#heldTokens, Math.max(page + 1, 2 * this.#heldTokens.length));
    }
    this.#heldTokens[page] = tokens;
  }

  /** Has room for every node of the tree. */
  #fit(): void {
    const { length } = this.#nodes.parent;
    this.#covered.fit(length);
    this.#order.fit(length);
    if (this.#wasEvicted.length < length) this.#wasEvicted = enlarged(this.#wasEvicted, length);
  }
}

function broken(problem: string, what: number, howMany: number): Error {
  return createError('KV_INTERNAL', { problem: `side tensors: ${problem}`, what, howMany });
}
