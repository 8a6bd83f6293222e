// PrefixMatch: how much of a text is cached, and where. The matcher looks and changes nothing, not even the order of
// eviction; its one result object is reused.

import type { DomainRoots } from './domain-roots.js';
import type { PrefixDomain } from './domain.js';
import type { OpenPaths } from './open-paths.js';
import type { PrefixTree } from './prefix-tree.js';
import type { RowLedger } from './row-ledger.js';

export interface PrefixMatch {
  /** Tokens from the start of the text that are cached, at most the limit. */
  readonly tokens: number;
  /** Rows that these fill to the last byte; they can be shared as they are. */
  readonly wholeRows: number;
  /** The row that holds the tokens after those, to copy from; it may hold other tokens behind them. -1: none remain. */
  readonly tailRow: number;
  /** Of the whole rows, how many are in the pool: they can be evicted until the text is acquired. */
  readonly pooledRows: number;
  /**
   * Whether the tail row holds nothing behind the match: its text ends there, and a sequence that has it may write on in
   * it.
   */
  readonly isTailWhole: boolean;
  /** Whether the tail row is in the pool. */
  readonly isTailPooled: boolean;
  /**
   * Tokens that will be cached once a running sequence has computed what it announced, at most the limit; 0: no more than
   * now.
   */
  readonly pendingTokens: number;
}

export interface MatcherParts {
  readonly tree: PrefixTree;
  readonly ledger: RowLedger;
  readonly paths: OpenPaths;
  readonly roots: DomainRoots;
}

export class Matcher {
  readonly #parts: MatcherParts;
  readonly #place = { node: -1, tokens: 0 };
  readonly #result = {
    tokens: 0, wholeRows: 0, tailRow: -1, pooledRows: 0, isTailWhole: false, isTailPooled: false, pendingTokens: 0,
  };

  constructor(parts: MatcherParts) {
    this.#parts = parts;
  }

  /** The node where the last match ended, or -1. */
  get node(): number {
    return this.#place.node;
  }

  /** The match of the last call, or of none. */
  get result(): PrefixMatch {
    return this.#result;
  }

  match(domain: PrefixDomain, text: Int32Array, limit: number): PrefixMatch {
    const { ledger, paths } = this.#parts;
    const { arithmetic } = ledger;
    const result = this.#result;
    this.find(domain, text, limit);
    const { node, tokens } = this.#place;
    result.tokens = tokens;
    result.wholeRows = arithmetic.wholeRows(tokens);
    result.pooledRows = node < 0 ? 0 : this.#pooledRows(node, result.wholeRows);
    const isPartial = arithmetic.rowsFor(tokens) > result.wholeRows;
    const holder = isPartial ? ledger.partialNode(node, tokens) : -1;
    result.tailRow = holder < 0 ? -1 : ledger.partialRow(holder, tokens);
    result.isTailWhole = holder === node && holder >= 0 && this.#parts.tree.nodes.to[node] === tokens;
    result.isTailPooled = holder >= 0 && this.#parts.tree.nodes.pins[holder] === 0;
    const canWait = node >= 0 && paths.announcing > 0;
    result.pendingTokens = canWait ? this.#pendingTokens(node, text, Math.min(limit, text.length)) : 0;
    return result;
  }

  /** Only the place: `node` and `tokens`. */
  find(domain: PrefixDomain, text: Int32Array, limit: number): { readonly node: number; readonly tokens: number } {
    const { tree, ledger, roots } = this.#parts;
    const place = this.#place;
    const root = roots.find(domain);
    place.node = root;
    place.tokens = 0;
    if (root < 0) return place;
    tree.descend(root, text, Math.min(limit, text.length), place);
    const { arithmetic } = ledger;
    const { from, parent } = tree.nodes;
    // The last tokens of a running sequence's text may lie in no row the index holds.
    for (let whole = arithmetic.wholeRows(place.tokens); arithmetic.rowsFor(place.tokens) > whole;) {
      if (ledger.partialNode(place.node, place.tokens) >= 0) break;
      // Others may go on from where this node starts, in rows that the index holds.
      place.tokens = Math.max(arithmetic.tokensIn(whole), from[place.node]!);
      while (place.tokens <= from[place.node]! && place.node !== root) place.node = parent[place.node]!;
      whole = arithmetic.wholeRows(place.tokens);
    }
    return place;
  }

  /** Of the text's first `wholeRows` rows, which end in `node`, those of nodes that nobody uses. */
  #pooledRows(node: number, wholeRows: number): number {
    const { pins, parent, from } = this.#parts.tree.nodes;
    let start = -1;
    for (let above = node; above >= 0 && pins[above] === 0; above = parent[above]!) start = from[above]!;
    return start < 0 ? 0 : wholeRows - this.#parts.ledger.arithmetic.wholeRows(start);
  }

  #pendingTokens(node: number, text: Int32Array, limit: number): number {
    const { tree, paths } = this.#parts;
    const { tokens } = this.#place;
    let most = tokens;
    for (let above = node; above >= 0; above = tree.nodes.parent[above]!) {
      for (let path = paths.endingIn(above); path !== undefined; path = path.next) {
        const { announced } = path;
        const end = Math.min(limit, path.announcedTokens);
        if (announced === undefined || path.length > tokens || end <= most) continue;
        if (announced[most] !== text[most]) continue; // the cheapest proof that it is no longer than the best
        let at = path.length;
        while (at < end && announced[at] === text[at]) at += 1;
        most = Math.max(most, at);
      }
    }
    return most > tokens ? most : 0;
  }
}
