// RowLedger: which rows the index holds, and which tokens are in them. The whole rows of a path are a chain from its
// deepest row upwards, so that a node needs to know only its last one; a row that is not full hangs on a leaf, as its
// tail. It decides nothing.
//
// Invariants: row r of a path is chained at the node that contains its last token; a row that straddles a branching
// point exists once below each branch; only leaves have a tail; the tokens of a leaf that no path uses lie in its rows
// completely. Memory is asked for before rows are taken, and for what may be dropped too: nothing ends in its middle.

import { createError } from '../base/errors.js';
import type { RowArithmetic } from '../base/row-arithmetic.js';
import { enlarged } from '../base/typed-arrays.js';
import type { NodeTable } from './prefix-tree.js';

// DroppedRows: the rows that a ledger stopped holding, each with its reason, until its caller has heard of them.

/**
 * `evicted`: room was asked for · `bound`: the pool had more than `poolRows` · `quota`: the tenant had more than its
 * share · `replaced`: a row of the same tokens, a fuller one or a running sequence's, took its place · `truncated`: its
 * sequence took the tokens back · `cleared`: by `clear` · `dropped`: by `drop`.
 */
export type DropReason = 'evicted' | 'bound' | 'quota' | 'replaced' | 'truncated' | 'cleared' | 'dropped';

export const dropReasons: readonly DropReason[] =
  ['evicted', 'bound', 'quota', 'replaced', 'truncated', 'cleared', 'dropped'];

/**
 * The rows that the index stopped holding since the caller last cleared this, once per hold, each with its reason.
 * Every call of the index that can drop rows fills it. A row may have been taken again since it was dropped: it is free
 * when no sequence maps it and `isHolding` denies it.
 */
export class DroppedRows {
  #rows = new Int32Array(64);
  #reasons = new Uint8Array(64);
  /** How many there are. Read only. */
  count = 0;

  row(index: number): number {
    return this.#rows[index]!;
  }

  reason(index: number): DropReason {
    return dropReasons[this.#reasons[index]!]!;
  }

  clear(): void {
    this.count = 0;
  }

  /** Has room for so many more: to drop a row asks for no memory. @internal */
  fit(rows: number): void {
    const length = this.count + rows;
    if (length <= this.#rows.length) return;
    this.#reasons = enlarged(this.#reasons, Math.max(length, 2 * this.#rows.length));
    this.#rows = enlarged(this.#rows, this.#reasons.length);
  }

  /** @internal */
  add(row: number, reason: number): void {
    this.#rows[this.count] = row;
    this.#reasons[this.count] = reason;
    this.count += 1;
  }
}

/** Number of a reason, for the hot path. @internal */
export function reasonNumber(reason: DropReason): number {
  return dropReasons.indexOf(reason);
}

const replaced = reasonNumber('replaced');

/** Where the tokens of a text lie. */
export interface TextRows {
  /** Rows that the tokens fill to the last byte. */
  wholeRows: number;
  /** The row that holds the tokens after those; -1: none remain. */
  tailRow: number;
  /** The node on which the tail row hangs, or -1. */
  tailNode: number;
}

export class RowLedger {
  readonly #tokenUnits: number;
  readonly #rowUnits: number;
  readonly #nodes: NodeTable;
  readonly #dropped: DroppedRows;
  // By row.
  /** The row before it on its path, or -1. */
  #above = new Int32Array(0);
  #isHeld = new Uint8Array(0);
  #heldRows = 0;

  constructor(nodes: NodeTable, arithmetic: RowArithmetic, dropped: DroppedRows) {
    this.#nodes = nodes;
    this.#tokenUnits = arithmetic.tokenUnits;
    this.#rowUnits = arithmetic.rowUnits;
    this.#dropped = dropped;
  }

  // As in RowArithmetic.
  rowsFor(tokens: number): number {
    return Math.ceil((tokens * this.#tokenUnits) / this.#rowUnits);
  }

  wholeRows(tokens: number): number {
    return Math.floor((tokens * this.#tokenUnits) / this.#rowUnits);
  }

  tokensIn(rows: number): number {
    return Math.floor((rows * this.#rowUnits) / this.#tokenUnits);
  }

  /**
   * Tokens up to the end of the last row that the first `tokens` tokens touch, with the one that ends in the next row.
   */
  tokensToRowEnd(tokens: number): number {
    return Math.ceil((this.rowsFor(tokens) * this.#rowUnits) / this.#tokenUnits);
  }

  get heldRows(): number {
    return this.#heldRows;
  }

  isHolding(row: number): boolean {
    return row >= 0 && row < this.#isHeld.length && this.#isHeld[row] === 1;
  }

  /** How many of rows[0, count) it holds, up to the first that it does not. */
  countHeld(rows: Int32Array, count: number): number {
    let held = 0;
    while (held < count && this.isHolding(rows[held]!)) held += 1;
    return held;
  }

  /** Rows that hang on the node itself. */
  ownRows(node: number): number {
    const { from, to, tailRow } = this.#nodes;
    const whole = this.wholeRows(to[node]!) - this.wholeRows(from[node]!);
    return tailRow[node]! >= 0 ? whole + 1 : whole;
  }

  /** The deepest whole row of the path's first `tokens` tokens, which end in `node`; -1: none. */
  lastRowAt(node: number, tokens: number): number {
    let hops = this.wholeRows(this.#nodes.to[node]!) - this.wholeRows(tokens);
    let row = this.#nodes.lastRow[node]!;
    for (; hops > 0; hops -= 1) row = this.#above[row]!;
    return row;
  }

  /**
   * Writes the whole rows of the path's first `tokens` tokens, which end in `node`, into `table` by their number on the
   * path.
   */
  fill(node: number, tokens: number, table: Int32Array): void {
    let row = this.lastRowAt(node, tokens);
    for (let index = this.wholeRows(tokens) - 1; index >= 0; index -= 1) {
      table[index] = row;
      row = this.#above[row]!;
    }
  }

  /**
   * Writes where the path's first `tokens` tokens lie, which end in `node`. Returns false when the last of them lie in
   * no row that the index holds; then only `wholeRows` is right.
   */
  locate(node: number, tokens: number, place: TextRows): boolean {
    place.wholeRows = this.wholeRows(tokens);
    place.tailNode = -1;
    place.tailRow = -1;
    if (this.rowsFor(tokens) === place.wholeRows) return true;
    place.tailNode = this.partialNode(node, tokens);
    if (place.tailNode < 0) return false;
    place.tailRow = this.partialRow(place.tailNode, tokens);
    return true;
  }

  /**
   * A node at or below `node` whose rows have the last of the path's first `tokens` tokens, which end in `node` and
   * fill their last row only partly: of any text that goes on from there. -1: those tokens lie in no row the index
   * holds.
   */
  partialNode(node: number, tokens: number): number {
    const { parent, firstChild, nextSibling, tailRow, to } = this.#nodes;
    const wanted = this.wholeRows(tokens);
    for (let below = node; ;) { // nearly always the node itself or its first child has it
      if (tailRow[below]! >= 0 || this.wholeRows(to[below]!) > wanted) return below;
      if (firstChild[below]! >= 0) {
        below = firstChild[below]!;
        continue;
      }
      while (below !== node && nextSibling[below]! < 0) below = parent[below]!;
      if (below === node) return -1;
      below = nextSibling[below]!;
    }
  }

  /** The row with the last of `tokens` tokens, of a node that `partialNode` returned. */
  partialRow(node: number, tokens: number): number {
    const wanted = this.wholeRows(tokens);
    let hops = this.wholeRows(this.#nodes.to[node]!) - 1 - wanted;
    if (hops < 0) return this.#nodes.tailRow[node]!;
    let row = this.#nodes.lastRow[node]!;
    for (; hops > 0; hops -= 1) row = this.#above[row]!;
    return row;
  }

  /** The node below `node` on which the row hangs, or -1. */
  holderBelow(node: number, row: number): number {
    const { firstChild, nextSibling } = this.#nodes;
    const below = [node];
    for (let at = 0; at < below.length; at += 1) {
      for (let child = firstChild[below[at]!]!; child >= 0; child = nextSibling[child]!) {
        let isHere = false;
        this.forOwnRows(child, (own) => isHere ||= own === row);
        if (isHere) return child;
        below.push(child);
      }
    }
    return -1;
  }

  /** The row before a whole or tail row of `node`'s path, given that row and whether it is the tail. */
  rowAbove(node: number, row: number): number {
    return row === this.#nodes.tailRow[node] ? this.#nodes.lastRow[node]! : this.#above[row]!;
  }

  /**
   * Throws KV_INTERNAL unless `table` has rows that can be attached for the tokens [from, to): known numbers, none held
   * but `tail`. Then `attach` asks for no memory.
   */
  check(from: number, to: number, table: Int32Array, tail: number): void {
    const end = this.rowsFor(to);
    const first = this.wholeRows(from);
    for (let index = first; index < end; index += 1) {
      const row = table[index];
      if (row === undefined || row < 0) {
        throw createError('KV_INTERNAL', {
          problem: 'a sequence commits tokens without a row for them', what: row, howMany: end,
        });
      }
      if (row !== tail && this.isHolding(row)) {
        throw createError('KV_INTERNAL', {
          problem: 'a sequence commits tokens in a row that the prefix index holds', what: row,
        });
      }
      if (row !== tail) this.#fit(row, end - first);
    }
  }

  /**
   * Attaches the rows of `table` for the node's tokens from `from` on, which it has just got; `tail` is the row that
   * held the last of those before until now (its own, or its parent's), or -1.
   */
  attach(node: number, from: number, table: Int32Array, tail: number): void {
    const { to, lastRow, tailRow } = this.#nodes;
    const first = this.wholeRows(from);
    const end = this.wholeRows(to[node]!);
    const last = this.rowsFor(to[node]!);
    if (tail >= 0) {
      this.#release(tail);
      if (table[first] !== tail) this.#dropped.add(tail, replaced);
    }
    let above = lastRow[node]!;
    for (let index = first; index < end; index += 1) {
      const row = table[index]!;
      this.#hold(row);
      this.#above[row] = above;
      above = row;
    }
    lastRow[node] = above;
    tailRow[node] = last > end ? table[end]! : -1;
    if (last > end) this.#hold(table[end]!);
  }

  /** Hangs a row that is not full on a leaf. */
  attachTail(node: number, row: number): void {
    this.#fit(row, 1);
    this.#hold(row);
    this.#nodes.tailRow[node] = row;
  }

  /** Hangs another row with the same tokens on a leaf in the place of its tail. */
  replaceTail(leaf: number, row: number): void {
    this.#fit(row, 1);
    this.#drop(this.#nodes.tailRow[leaf]!, replaced);
    this.attachTail(leaf, row);
  }

  /**
   * Holds other rows with the same tokens in the place of whole ones, `instead` by row, of a text that ends in `node`.
   * Looks at the rows of that text, and at what branches off from it up to the next whole row.
   */
  replace(instead: ReadonlyMap<number, number>, node: number): void {
    const { parent, firstChild, nextSibling } = this.#nodes;
    for (const other of instead.values()) this.#fit(other, instead.size);
    for (const [row, other] of instead) {
      this.#hold(other);
      this.#above[other] = this.#above[row]!;
      this.#drop(row, replaced);
    }
    for (let on = node, done = -1; on >= 0; done = on, on = parent[on]!) {
      this.#rename(on, instead);
      for (let child = firstChild[on]!; child >= 0; child = nextSibling[child]!) {
        if (child !== done) this.#renameBelow(child, instead);
      }
    }
  }

  /** Tokens of the leaf that lie in rows of the index; all of them when it has its tail. */
  backedTokens(leaf: number): number {
    const to = this.#nodes.to[leaf]!;
    return this.#nodes.tailRow[leaf]! >= 0 ? to : Math.min(to, this.tokensIn(this.wholeRows(to)));
  }

  /**
   * Keeps the leaf's tokens before `tokens`, counted from the start of the text, with the rows they lie in, and drops
   * its other rows. Returns where the leaf ends then; `from` of the leaf when nothing of it is left. The caller then
   * shortens the node, or removes it.
   */
  cut(leaf: number, tokens: number, reason: number): number {
    const { from, to, lastRow, tailRow } = this.#nodes;
    const kept = Math.max(from[leaf]!, Math.min(to[leaf]!, tokens));
    const wholeKept = this.wholeRows(kept);
    const hasTail = kept > from[leaf]! && this.rowsFor(kept) > wholeKept;
    let whole = this.wholeRows(to[leaf]!);
    if (tailRow[leaf]! >= 0 && !(hasTail && whole === wholeKept)) {
      this.#drop(tailRow[leaf]!, reason);
      tailRow[leaf] = -1;
    }
    let row = lastRow[leaf]!;
    for (; whole > (hasTail ? wholeKept + 1 : wholeKept); whole -= 1) {
      const above = this.#above[row]!;
      this.#drop(row, reason);
      row = above;
    }
    if (whole > wholeKept) { // a row that was whole and has lost its last tokens
      tailRow[leaf] = row;
      row = this.#above[row]!;
    }
    lastRow[leaf] = row;
    return kept;
  }

  /** Calls `visit` for the node's own rows, the last first. For checks. */
  forOwnRows(node: number, visit: (row: number, index: number) => void): void {
    const { from, to, lastRow, tailRow } = this.#nodes;
    let index = this.wholeRows(to[node]!);
    if (tailRow[node]! >= 0) visit(tailRow[node]!, index);
    let row = lastRow[node]!;
    for (index -= 1; index >= this.wholeRows(from[node]!); index -= 1) {
      visit(row, index);
      row = this.#above[row]!;
    }
  }

  /** The node's whole rows, and the one above them, where others took their place. */
  #rename(node: number, instead: ReadonlyMap<number, number>): void {
    const { from, to, lastRow } = this.#nodes;
    const nameOf = (row: number): number => instead.get(row) ?? row;
    let row = lastRow[node] = nameOf(lastRow[node]!);
    for (let whole = this.wholeRows(to[node]!) - this.wholeRows(from[node]!); whole > 0; whole -= 1) {
      row = this.#above[row] = nameOf(this.#above[row]!);
    }
  }

  /** The same, and of the nodes below as long as they have no whole rows between. */
  #renameBelow(top: number, instead: ReadonlyMap<number, number>): void {
    const { from, to, firstChild, nextSibling } = this.#nodes;
    const below = [top];
    for (let at = 0; at < below.length; at += 1) {
      const node = below[at]!;
      this.#rename(node, instead);
      if (this.wholeRows(to[node]!) > this.wholeRows(from[node]!)) continue;
      for (let child = firstChild[node]!; child >= 0; child = nextSibling[child]!) below.push(child);
    }
  }

  /** Has room for the row's numbers, and for dropping so many rows more than are held. */
  #fit(row: number, rows: number): void {
    this.#dropped.fit(this.#heldRows + rows);
    if (row < this.#isHeld.length) return;
    const length = Math.max(64, row + 1, 2 * this.#isHeld.length);
    this.#above = enlarged(this.#above, length);
    this.#isHeld = enlarged(this.#isHeld, length);
  }

  #hold(row: number): void {
    this.#isHeld[row] = 1;
    this.#heldRows += 1;
  }

  #release(row: number): void {
    this.#isHeld[row] = 0;
    this.#heldRows -= 1;
  }

  #drop(row: number, reason: number): void {
    this.#release(row);
    this.#dropped.add(row, reason);
  }
}
