// SideCover: how much of each cached text one side tensor has, and in which of its pages. It follows the texts of the
// prefix index: per node the token up to which the tensor was written (its cover), and the pages that these tokens
// touch. A page may end inside a token and inside a node. What no engine wrote cannot be found.
//
// Invariants: cover is closed under prefixes: a node is covered only where all before it is; a node that ends inside a
// page names there the page of a covered child, if it has one; so the nodes that name a page lie on one path.

import { createError } from '../base/errors.js';
import { enlarged } from '../base/typed-arrays.js';
import type { RowArithmetic } from '../base/row-arithmetic.js';
import type { NodeTable, TextListener } from '../prefix/prefix-tree.js';

/** Where the cover of a text ends, and why. */
export type CoverEnd = 'side-evicted' | 'side-never-written';

/** What the eviction policy of K and V keeps: its side rows are kept too. */
export interface WithheldNodes {
  /** Whether it may keep some text. */
  readonly isAny: boolean;
  /** Share of the budget of all side tensors, 0 … 1, up to which their rows are kept. */
  readonly share: number;
  /** Whether it keeps a node's text now. That may end by itself. */
  has(node: number): boolean;
  /** Calls `visit` for every node whose text it keeps now. */
  forNodes(visit: (node: number) => void): void;
}

export class SideCover implements TextListener {
  readonly #nodes: NodeTable;
  readonly #withheld: WithheldNodes;
  readonly #arithmetic: RowArithmetic;
  readonly #dropped: number[];
  // By node.
  /** Tokens up to which its text is covered; no more than `from`: none of it. */
  #to = new Int32Array(0);
  /** The pages that its covered tokens touch, in their order. */
  readonly #pages: (number[] | undefined)[] = [];
  #wasEvicted = new Uint8Array(0);
  // By page.
  /** Nodes that name it. */
  #holders = new Int32Array(64);
  /** The last of them on their path. */
  #holder = new Int32Array(64);

  /** @param dropped Gets every page that no text needs any more; it may have been taken again since. */
  constructor(nodes: NodeTable, withheld: WithheldNodes, arithmetic: RowArithmetic, dropped: number[]) {
    this.#nodes = nodes;
    this.#withheld = withheld;
    this.#arithmetic = arithmetic;
    this.#dropped = dropped;
  }

  /** Whether some text needs the page. */
  isHolding(page: number): boolean {
    return page < this.#holders.length && this.#holders[page]! > 0;
  }

  /** Tokens up to which a text relies on the bytes of a page that it holds, and of those behind it. */
  heldTokens(page: number): number {
    return this.#to[this.#holder[page]!]!;
  }

  /**
   * Of the first `tokens` tokens of the text, which end in `node` (-1: the domain has no text), how many are covered.
   */
  tokensOf(node: number, tokens: number): number {
    return node < 0 ? 0 : Math.min(tokens, this.#coverEnd(this.#deepestCovered(node)));
  }

  /** Why no more of the text is covered, where its first `tokens` tokens end in `node`. */
  reasonAt(node: number, tokens: number): CoverEnd {
    let last = node;
    let covered = node;
    for (; covered >= 0 && !this.#isRoot(covered) && !this.#isCovered(covered);
        covered = this.#nodes.parent[covered]!) last = covered;
    const ends = covered >= 0 && !this.#isRoot(covered)
      && this.#to[covered]! < Math.min(tokens, this.#nodes.to[covered]!) ? covered : last;
    return ends >= 0 && ends < this.#wasEvicted.length && this.#wasEvicted[ends] === 1 ? 'side-evicted'
      : 'side-never-written';
  }

  /** Writes the pages of the text's first `tokens` tokens, which are covered and end in `node`, into `table`. */
  find(node: number, tokens: number, table: Int32Array): void {
    let end = this.#arithmetic.rowsFor(tokens);
    let at = node;
    while (end > 0 && tokens <= this.#nodes.from[at]!) at = this.#nodes.parent[at]!;
    for (; end > 0; at = this.#nodes.parent[at]!) {
      const pages = this.#pages[at]!;
      const first = this.#firstPage(at);
      for (let index = first; index < end; index += 1) table[index] = pages[index - first]!;
      end = Math.min(end, first);
    }
  }

  /**
   * The first `tokens` tokens of a text, which end in `node`, lie in the pages of `table`: what was not covered is from
   * now on. Returns the tokens that were covered before. The pages that it takes are held by no other text.
   */
  extend(node: number, tokens: number, table: Int32Array): number {
    this.#fit();
    const chain: number[] = [];
    let at = node;
    for (; !this.#isRoot(at) && !this.#isCovered(at); at = this.#nodes.parent[at]!) chain.push(at);
    const before = this.#coverEnd(at);
    if (before >= tokens) return before;
    const { wholeRows, rowsFor } = this.#arithmetic;
    const first = wholeRows(before);
    const tail = rowsFor(before) > first ? this.#lastPage(at) : -1;
    for (let index = first; index < rowsFor(tokens); index += 1) {
      const page = table[index] ?? -1;
      if (page < 0) throw broken('a sequence commits tokens without a page for them', page, index);
      if (page !== tail && this.isHolding(page)) throw broken('tokens are committed in a cached page', page, index);
    }
    if (tail >= 0) this.#exchange(at, tail, table[first]!);
    for (let covered = before; covered < tokens;) {
      if (this.#isRoot(at) || covered === this.#nodes.to[at]) at = chain.pop()!;
      covered = Math.min(tokens, this.#nodes.to[at]!);
      const pages = this.#isCovered(at) ? this.#pages[at]! : (this.#pages[at] = []);
      for (let index = this.#firstPage(at) + pages.length; index < rowsFor(covered); index += 1) {
        pages.push(table[index]!);
        this.#hold(table[index]!, at);
      }
      this.#to[at] = covered;
      this.#wasEvicted[at] = 0;
    }
    return before;
  }

  /** Whether the page is the end of a text, which does not go on. */
  isEnd(page: number): boolean {
    if (!this.isHolding(page)) return false;
    const node = this.#holder[page]!;
    return this.#lastPage(node) === page && !this.#hasCoveredChild(node);
  }

  /** Whether the eviction policy withholds the last text that has the page. */
  isWithheld(page: number): boolean {
    return this.#withheld.isAny && this.#withheld.has(this.#holder[page]!);
  }

  /** Tokens up to the end of a text that has the page. */
  endTokens(page: number): number {
    return this.#to[this.#endBehind(page)]!;
  }

  /** A text that has the page loses its end: its last page, and the tokens that end there. */
  evictEnd(page: number): void {
    const { rowsFor, tokensIn } = this.#arithmetic;
    const node = this.#endBehind(page);
    // A token that has more than a page, or lies in two, takes all its pages with it.
    this.#cutTo(node, tokensIn(rowsFor(this.#to[node]!) - 1));
    this.#wasEvicted[node] = 1;
  }

  /**
   * No text relies on the bytes of the page behind its first `tokens` tokens any more: the text that ends there loses
   * what it has behind them. False: more than the end of a text lies there, or the eviction policy withholds it.
   */
  release(page: number, tokens: number): boolean {
    if (!this.canRelease(page, tokens)) return false;
    const node = this.#holder[page]!;
    this.#cutTo(node, tokens);
    this.#wasEvicted[node] = 1;
    return !this.isHolding(page) || this.heldTokens(page) <= tokens;
  }

  /** Whether `release` would. */
  canRelease(page: number, tokens: number): boolean {
    return this.isEnd(page) && !this.isWithheld(page) && this.#nodes.from[this.#holder[page]!]! <= tokens;
  }

  /** Covered nodes that the eviction policy withholds, and those that they continue. */
  withheldNodes(): ReadonlySet<number> {
    const nodes = new Set<number>();
    this.#withheld.forNodes((node) => {
      if (!this.#isCovered(node)) return;
      for (let at = node; !this.#isRoot(at) && !nodes.has(at); at = this.#nodes.parent[at]!) nodes.add(at);
    });
    return nodes;
  }

  /** The pages of these. */
  withheldPages(): ReadonlySet<number> {
    return new Set([...this.withheldNodes()].flatMap((node) => this.#pages[node]!));
  }

  /** The last node that has the page. */
  holderOf(page: number): number {
    return this.#holder[page]!;
  }

  // As TextListener.

  added(node: number, from: number, isTransfer: boolean): void {
    this.#fit();
    if (from > this.#nodes.from[node]!) return; // it has become longer
    this.#to[node] = from;
    this.#pages[node] = undefined;
    this.#wasEvicted[node] = isTransfer ? 1 : 0; // what comes from tiers has lost its rows, if it had any
  }

  cut(node: number, from: number): void {
    this.#fit();
    if (from < this.#coverEnd(node)) this.#cutTo(node, from);
  }

  split(upper: number, lower: number): void {
    this.#fit();
    const at = this.#nodes.from[lower]!;
    const covered = this.#to[lower]!;
    const pages = this.#pages[lower] ?? [];
    const first = this.#firstPage(upper);
    this.#wasEvicted[upper] = this.#wasEvicted[lower]!;
    this.#to[upper] = Math.min(at, covered);
    this.#to[lower] = Math.max(at, covered);
    this.#pages[upper] = undefined;
    this.#pages[lower] = undefined;
    if (!this.#isCovered(upper)) return;
    this.#pages[upper] = pages.slice(0, this.#arithmetic.rowsFor(this.#to[upper]!) - first);
    const own = covered > at ? this.#arithmetic.wholeRows(at) - first : pages.length;
    for (let index = 0; index < own; index += 1) this.#holder[pages[index]!] = upper;
    if (covered <= at) return;
    this.#pages[lower] = pages.slice(own);
    if (this.#straddles(at)) this.#hold(pages[own]!);
  }

  joined(upper: number, lower: number): void {
    const at = this.#nodes.to[upper]!;
    const above = this.#pages[upper] ?? [];
    if (this.#to[lower]! <= at) {
      this.#to[lower] = this.#to[upper]!;
      this.#pages[lower] = above;
      if (this.#to[upper]! < at) this.#wasEvicted[lower] = this.#wasEvicted[upper]!;
    } else {
      if (this.#straddles(at)) this.#drop(above.pop()!);
      this.#pages[lower] = above.concat(this.#pages[lower]!);
    }
    for (const page of above) this.#holder[page] = lower;
    this.#pages[upper] = undefined;
  }

  /** Throws KV_INTERNAL unless the invariants hold; `visit` gets every page of a node, and its place in the text. */
  verify(visit: (page: number, index: number) => void): void {
    this.#fit();
    const holders = new Int32Array(this.#holders.length);
    for (let node = 0; node < this.#nodes.end; node += 1) {
      if (!this.#nodes.isUsed(node) || this.#isRoot(node) || !this.#isCovered(node)) continue;
      const to = this.#to[node]!;
      const pages = this.#pages[node]!;
      const first = this.#firstPage(node);
      if (this.#coverEnd(this.#nodes.parent[node]!) !== this.#nodes.from[node]) {
        throw broken('text is covered behind text that is not', node, this.#nodes.from[node]!);
      }
      if (to > this.#nodes.to[node]!) throw broken('more text is covered than there is', node, to);
      if (pages.length !== this.#arithmetic.rowsFor(to) - first) {
        throw broken('a covered text has other pages than its tokens touch', node, pages.length);
      }
      pages.forEach((page, index) => {
        holders[page]! += 1;
        visit(page, first + index);
        let below = this.#holder[page]!;
        while (below !== node && !this.#isRoot(below)) below = this.#nodes.parent[below]!;
        if (below !== node) throw broken('a page is held elsewhere than on its path', node, page);
      });
      const children = this.#coveredChildren(node);
      if (this.#straddles(to) && children.length > 0
        && !children.some((child) => this.#pages[child]![0] === this.#lastPage(node))) {
        throw broken('a text ends in a page that none behind it has', node, this.#lastPage(node));
      }
    }
    const wrong = holders.findIndex((count, page) => count !== this.#holders[page]);
    if (wrong >= 0) throw broken('the texts that hold a page are miscounted', wrong, this.#holders[wrong]!);
  }

  #isRoot(node: number): boolean {
    return this.#nodes.parent[node]! < 0;
  }

  /** Whether any token of the node itself is covered. */
  #isCovered(node: number): boolean {
    return node < this.#to.length && this.#to[node]! > this.#nodes.from[node]!;
  }

  #coverEnd(node: number): number {
    return this.#isRoot(node) ? 0 : Math.max(this.#nodes.from[node]!, this.#to[node]!);
  }

  #coveredChildren(node: number): number[] {
    const children: number[] = [];
    for (let child = this.#nodes.firstChild[node]!; child >= 0; child = this.#nodes.nextSibling[child]!) {
      if (this.#isCovered(child)) children.push(child);
    }
    return children;
  }

  #hasCoveredChild(node: number): boolean {
    return this.#coveredChild(node) >= 0;
  }

  /** The first child that is covered; -1: none. */
  #coveredChild(node: number): number {
    let child = this.#nodes.firstChild[node]!;
    while (child >= 0 && !this.#isCovered(child)) child = this.#nodes.nextSibling[child]!;
    return child;
  }

  /** The node itself, or the nearest before it, that is covered; else the root. */
  #deepestCovered(node: number): number {
    let at = node;
    while (!this.#isRoot(at) && !this.#isCovered(at)) at = this.#nodes.parent[at]!;
    return at;
  }

  /** The last node of a text that has the page. */
  #endBehind(page: number): number {
    let node = this.#holder[page]!;
    for (let child = this.#coveredChild(node); child >= 0; child = this.#coveredChild(node)) node = child;
    return node;
  }

  #firstPage(node: number): number {
    return this.#arithmetic.wholeRows(this.#nodes.from[node]!);
  }

  #lastPage(node: number): number {
    return this.#pages[node]!.at(-1)!;
  }

  /** Whether a page goes on behind the text's first `tokens` tokens. */
  #straddles(tokens: number): boolean {
    return this.#arithmetic.rowsFor(tokens) > this.#arithmetic.wholeRows(tokens);
  }

  /** The node, which has no covered child, keeps its cover up to `tokens`. */
  #cutTo(node: number, tokens: number): void {
    const from = this.#nodes.from[node]!;
    const above = this.#nodes.parent[node]!;
    const pages = this.#pages[node]!;
    const start = pages[0]!;
    const kept = tokens > from ? this.#arithmetic.rowsFor(tokens) - this.#firstPage(node) : 0;
    this.#to[node] = Math.max(from, tokens);
    while (pages.length > kept) this.#drop(pages.pop()!, above);
    if (kept > 0 || !this.#straddles(from) || this.#isRoot(above) || this.#lastPage(above) !== start) return;
    const other = this.#coveredChild(above);
    if (other >= 0) this.#exchange(above, start, this.#pages[other]![0]!);
  }

  /** Nodes that end in `page`, from `node` up, name another one with the same tokens instead. */
  #exchange(node: number, page: number, other: number): void {
    if (page === other) return;
    const holder = this.isHolding(other) ? undefined : node;
    for (let at = node; !this.#isRoot(at) && this.#lastPage(at) === page; at = this.#nodes.parent[at]!) {
      this.#pages[at]![this.#pages[at]!.length - 1] = other;
      this.#hold(other, holder);
      this.#drop(page);
    }
  }

  /** One more node names the page; `holder`: the last one that does. */
  #hold(page: number, holder?: number): void {
    if (page >= this.#holders.length) {
      this.#holder = enlarged(this.#holder, 2 * page);
      this.#holders = enlarged(this.#holders, 2 * page); // last: its length is asked for
    }
    this.#holders[page]! += 1;
    if (holder !== undefined) this.#holder[page] = holder;
  }

  /** A node no longer names the page; `holder`: the last one that does, if any. */
  #drop(page: number, holder?: number): void {
    this.#holders[page]! -= 1;
    if (holder !== undefined) this.#holder[page] = holder;
    if (this.#holders[page] === 0) this.#dropped.push(page);
  }

  /** Has room for every node of the tree. */
  #fit(): void {
    const { length } = this.#nodes.parent;
    if (this.#to.length >= length) return;
    this.#wasEvicted = enlarged(this.#wasEvicted, length);
    this.#to = enlarged(this.#to, length); // last: its length is asked for
  }
}

function broken(problem: string, what: number, howMany: number): Error {
  return createError('KV_INTERNAL', { problem: `side tensors: ${problem}`, what, howMany });
}
