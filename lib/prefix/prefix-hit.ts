// PrefixHit: how much of a text is cached, and where. `PrefixIndex.match` descends once and returns one; `open` takes
// it and compares nothing again. An index has one, which the next match writes over, and it is valid until the index
// changes: `open` throws for an older one. Owned by the index: read it. Looking changes nothing, not even the order of
// eviction.

import { createError } from '../base/errors.js';
import type { DomainRoots } from './domain-roots.js';
import { sharedDomain, type PrefixDomain } from './domain.js';
import type { OpenPaths } from './open-paths.js';
import type { PrefixTree } from './prefix-tree.js';
import type { PrefixValues } from './prefix-values.js';
import type { RowLedger } from './row-ledger.js';

export class PrefixHit {
  domain: PrefixDomain = sharedDomain;
  /** Tokens from the start of the text that are cached, at most the limit. */
  tokens = 0;
  /** Rows that these fill to the last byte; they can be shared as they are. */
  wholeRows = 0;
  /** The row that holds the tokens after those, to copy from; it may hold other tokens behind them. -1: none remain. */
  tailRow = -1;
  /**
   * Whether the tail row holds nothing behind the hit: its text ends there, and a sequence that has it may write on in
   * it.
   */
  isTailWhole = false;
  /**
   * Tokens that will be cached once a running sequence has computed what it announced, at most the limit; 0: no more
   * than now.
   */
  pendingTokens = 0;
  /** What was kept at the end of the whole text (`keepValue`), when the hit is all of it; otherwise undefined. */
  value: unknown = undefined;
  /** The node in which it ends: the root when nothing is found, -1 when the domain has no text. @internal */
  node = -1;
  /** The node on which the tail row hangs, or -1. @internal */
  tailNode = -1;
  readonly #tree: PrefixTree;
  readonly #ledger: RowLedger;
  readonly #roots: DomainRoots;
  readonly #paths: OpenPaths;
  readonly #values: PrefixValues;
  #text: Int32Array = new Int32Array(0);
  /** State of the index in which it was found. */
  #version = 0;

  /** @internal */
  constructor(tree: PrefixTree, ledger: RowLedger, roots: DomainRoots, paths: OpenPaths, values: PrefixValues) {
    this.#tree = tree;
    this.#ledger = ledger;
    this.#roots = roots;
    this.#paths = paths;
    this.#values = values;
  }

  /**
   * Finds `text`, `limit` tokens at most; undefined: all but its last token, and that too where a value is kept behind
   * it. @internal
   */
  find(domain: PrefixDomain, text: Int32Array, limit: number | undefined, version: number): void {
    const most = Math.min(limit ?? text.length, text.length);
    this.domain = domain;
    this.#text = text;
    this.#version = version;
    this.node = this.#roots.find(domain);
    this.tokens = 0;
    if (this.node >= 0) this.#tree.descend(this.node, text, most, this);
    this.#goBackToRows();
    this.value = this.tokens === text.length ? this.#values.at(this.node, this.tokens) : undefined;
    if (limit === undefined && this.value === undefined) this.limitTo(Math.max(0, text.length - 1));
    else this.#describe(most);
  }

  /** Shortens it to `tokens` tokens at most, where its user cannot take all of it. Compares nothing again. */
  limitTo(tokens: number): void {
    if (tokens < this.tokens) {
      this.tokens = tokens;
      this.value = undefined;
      this.#goBackToRows();
    }
    this.#describe(tokens);
  }

  /** Writes the ids of the whole rows into `table`. */
  fill(table: Int32Array): void {
    if (this.tokens > 0) this.#ledger.fill(this.node, this.tokens, table);
  }

  /**
   * Throws KV_INTERNAL when the index has changed since: the node may be another by now. A hit of no tokens needs none.
   * @internal
   */
  check(version: number): void {
    if (this.tokens === 0 || this.#version === version) return;
    const problem = 'a match of the prefix index is used after the index changed';
    throw createError('KV_INTERNAL', { problem, what: this.#version, howMany: version });
  }

  /**
   * Goes back from `tokens`, up to which the text agrees, to where a sequence can go on: the one place where a hit
   * becomes shorter than the text that is cached. Today it ends where the last of its tokens lie in a row that the
   * index holds; those of a running sequence need not. A model whose sequences can go on only from some points has its
   * rule here too.
   */
  #goBackToRows(): void {
    const ledger = this.#ledger;
    const { from, parent } = this.#tree.nodes;
    for (;;) {
      while (this.tokens <= from[this.node]! && parent[this.node]! >= 0) this.node = parent[this.node]!;
      if (ledger.locate(this.node, this.tokens, this)) return;
      // Other texts may go on from where this node starts, in rows that the index holds.
      this.tokens = Math.max(ledger.tokensIn(this.wholeRows), from[this.node]!);
    }
  }

  /** What else there is to say of the hit, where no more than `limit` tokens were asked for. */
  #describe(limit: number): void {
    this.isTailWhole = this.tailNode >= 0 && this.tailNode === this.node
      && this.#tree.nodes.to[this.node] === this.tokens;
    this.pendingTokens = this.node >= 0 && this.#paths.announcing > 0 ? this.#announcedTokens(limit) : 0;
  }

  #announcedTokens(limit: number): number {
    const { parent, ending } = this.#tree.nodes;
    const text = this.#text;
    let most = this.tokens;
    for (let above = this.node; above >= 0; above = parent[above]!) {
      for (let path = ending[above]; path !== undefined; path = path.next) {
        const { announced } = path;
        if (announced === undefined || path.length > this.tokens) continue;
        const end = Math.min(limit, announced.length);
        if (end <= most) continue;
        if (announced[most] !== text[most]) continue; // the cheapest proof that it is no longer than the best
        let at = path.length;
        while (at < end && announced[at] === text[at]) at += 1;
        most = Math.max(most, at);
      }
    }
    return most > this.tokens ? most : 0;
  }
}
