// PrefixIndex: maps cached text to rows, per tenant and domain, until eviction. The facade of this folder. Pure: rows
// are numbers that the owner of the memory gives, and it has no clock of its own. Not for several threads.
//
// Ownership of a row: the owner counts the sequences that map it; the index says whether it holds it. The index takes
// rows in `commit` (those of `path.rows` whose tokens it did not have), and lets go of each exactly once per hold,
// which `dropped` reports. A row is free when no sequence maps it and `isHolding` denies it, and the owner asks both
// when a sequence unmaps the row and when it reads the row from `dropped`. Rows of duplicate text, which the index
// never took, are not in `dropped`.
//
// What the owner can rely on: a row that the index holds does not lose or change a cached token unless the owner writes
// one where `isWritable` denies it; no row that holds text of an open path is evicted; texts lose their ends first.

import { createError } from '../base/errors.js';
import type { RowArithmetic } from '../base/row-arithmetic.js';
import { CachePool, type RowsByAge, type WithheldText } from './cache-pool.js';
import {
  DomainRoots, NodeTable, type PathOptions, type PrefixPath, PrefixTree, type TextListener,
} from './prefix-tree.js';
import type { DroppedText, PrefixDomain, TextScope } from './domain.js';
import { CheckedPolicy } from './eviction/checked-policy.js';
import { makePolicy, type EvictionPolicyFactory, type SelectedOf } from './eviction/eviction-policy.js';
import { lru } from './eviction/lru.js';
import { checkIndex, OpenPaths } from './open-paths.js';
import { EvictionMemory, Explainer, type PrefixExplanation, PrefixHit, PrefixValues } from './prefix-hit.js';
import { DroppedRows, reasonNumber, RowLedger } from './row-ledger.js';

/** Only the arithmetic is required. */
export interface PrefixIndexOptions {
  readonly arithmetic: RowArithmetic;
  /** Rows of the pool at most. Default: no bound; 0: nothing is kept after release. */
  readonly poolRows?: number | undefined;
  /** Rows of the pool that one tenant has at most. Default: no bound. */
  readonly tenantRows?: number | undefined;
  /** Default: `lru()`. */
  readonly policy?: EvictionPolicyFactory | undefined;
  /** For the policy. Default: nothing is known. */
  readonly selected?: SelectedOf | undefined;
  /** Hears why the policy was replaced by `lru`: it threw, or named no victim. */
  readonly onPolicyFailure?: ((error: unknown) => void) | undefined;
  /**
   * Chooses the hashes inside, any safe integer. Nothing but the time that calls take depends on it; a cache that
   * strangers send tokens to needs one that they cannot guess. Default 0.
   */
  readonly hashSeed?: number | undefined;
  /** Bits of hashes that count, 1 … 32 (the default): tests truncate them to force collisions. */
  readonly hashBits?: number | undefined;
  /** Tokens that the pool can hold, for policies that size themselves. Default: what `poolRows` hold. */
  readonly poolTokens?: number | undefined;
  /** Rows that the memory budget holds at the moment, for policies. Default: no bound. */
  readonly budgetRows?: (() => number) | undefined;
  /** Values that are kept at ends of texts at most (`keepValue`). Default 64. */
  readonly endValues?: number | undefined;
  /** Places of which it is remembered when and why text was cut off there (`explain`), at most. Default 4,096. */
  readonly rememberedCuts?: number | undefined;
  /** A clock in milliseconds, for `explain`. Default: always 0. */
  readonly now?: (() => number) | undefined;
}

/** What listeners may read of an index. */
export interface IndexedTexts {
  readonly tree: PrefixTree;
  readonly ledger: RowLedger;
  readonly roots: DomainRoots;
}

const evicted = reasonNumber('evicted');
const dropped = reasonNumber('dropped');

export class PrefixIndex {
  /** Rows that it stopped holding since the caller last cleared this. */
  readonly dropped = new DroppedRows();
  /** @internal */
  readonly texts: IndexedTexts;
  readonly #nodes = new NodeTable();
  readonly #tree: PrefixTree;
  readonly #ledger: RowLedger;
  readonly #roots: DomainRoots;
  readonly #pool: CachePool;
  readonly #policy: CheckedPolicy;
  readonly #paths: OpenPaths;
  readonly #values: PrefixValues;
  readonly #explainer: Explainer;
  readonly #listeners: TextListener[];
  readonly #hit: PrefixHit;
  /** Counts the calls that can change what a hit says. */
  #version = 0;

  constructor(options: PrefixIndexOptions) {
    const { arithmetic, poolRows = Infinity, tenantRows = Infinity, hashBits, hashSeed = 0 } = options;
    const { now = () => 0, endValues = 64, rememberedCuts = 4096, selected = () => undefined } = options;
    const nodes = this.#nodes;
    const tree = this.#tree = new PrefixTree(nodes, hashSeed, hashBits);
    const ledger = this.#ledger = new RowLedger(nodes, arithmetic, this.dropped);
    const roots = this.#roots = new DomainRoots(tree);
    this.texts = { tree, ledger, roots };
    const values = this.#values = new PrefixValues(tree, endValues);
    const memory = new EvictionMemory({ tree, roots, now, places: rememberedCuts, hashSeed });
    const listeners = this.#listeners = [memory, values];
    const given = makePolicy(options.policy ?? lru(), {
      nodes,
      copyText: tree.copyPath.bind(tree),
      selected: (node, from, to) => selected(roots.domainOf(node), { from, to, copyText: () => tree.textOf(node, to) }),
      rowsOf: ledger.ownRows.bind(ledger),
      budgetRows: options.budgetRows ?? (() => Infinity),
      hashSeed,
      poolTokens: options.poolTokens ?? (poolRows === Infinity ? Infinity : arithmetic.tokensIn(poolRows)),
    });
    const policy = this.#policy = new CheckedPolicy(
      given, nodes, options.onPolicyFailure ?? (() => { /* the index goes on with lru */ }));
    const pool = this.#pool = new CachePool({
      tree, ledger, roots, dropped: this.dropped, policy, listeners, poolRows, tenantRows,
    });
    const paths = this.#paths = new OpenPaths(tree, ledger, pool, listeners);
    this.#hit = new PrefixHit(tree, ledger, roots, paths, values);
    this.#explainer = new Explainer(tree, roots, memory);
  }

  /**
   * Calls the listener from now on for every change of what is cached. Throws KV_INTERNAL when text is cached already.
   * @internal
   */
  listen(listener: TextListener): void {
    if (this.nodes > 0) throw createError('KV_INTERNAL', {
      problem: 'a listener comes to a prefix index that has text', what: this.nodes,
    });
    this.#listeners.push(listener);
  }

  /** Rows that it holds: those of open paths, and the pool. */
  get heldRows(): number {
    return this.#ledger.heldRows;
  }

  /** Rows that `evict` could free, and those that the policy withholds. */
  get pooledRows(): number {
    return this.#pool.rows;
  }

  /** Counts the pool's rows by age. Looks at `maxNodes` nodes at most. */
  rowsByAge(bounds: readonly number[], maxNodes: number): RowsByAge {
    return this.#pool.rowsByAge(bounds, maxNodes);
  }

  /** The text that neither `evict` nor `replaceDuplicates` lets go, since the policy withholds it. */
  get withheld(): Pick<WithheldText, 'isAny' | 'share' | 'isPassing' | 'has' | 'forNodes' | 'forRows'> {
    return this.#pool.withheld;
  }

  /** With which level tiers keep text of requests of a priority level. */
  lastingLevel(level: number): number {
    return this.#policy.lastingLevel(level);
  }

  /** Whether text in tiers may come to the device for what it scores, and whether there is room for it. */
  get room(): Pick<CachePool, 'takesOffers' | 'isWorthRoom' | 'hasRoom'> {
    return this.#pool;
  }

  get openPaths(): number {
    return this.#paths.count;
  }

  /** Tokens that are cached, each once for all texts that share it. */
  get textTokens(): number {
    return this.#tree.textTokens;
  }

  get nodes(): number {
    return this.#nodes.count;
  }

  isHolding(row: number): boolean {
    return this.#ledger.isHolding(row);
  }

  /** How many of rows[0, count) the index holds, up to the first that it does not. */
  countHeld(rows: Int32Array, count: number): number {
    return this.#ledger.countHeld(rows, count);
  }

  /**
   * How much of `text` is cached, `limit` tokens at most. Default: what a request may take, which is all but its last
   * token, or all of it where a value is kept at its end. Changes nothing. There is one hit: it is valid until the next
   * match, or until the index changes.
   */
  match(domain: PrefixDomain, text: Int32Array, limit?: number): PrefixHit {
    this.#hit.find(domain, text, limit, this.#version);
    return this.#hit;
  }

  /**
   * Opens a path along what `match` found: `path.length` tokens. The rows they fill are written into `rows`, which is
   * `path.rows` from now on; the owner gives the rows behind, and copies into the first of them what `hit.tailRow`
   * holds. From here on until release none of this text is evicted. Throws KV_INTERNAL when the index has changed since
   * the match, unless that found nothing.
   */
  open(hit: PrefixHit, options: PathOptions): PrefixPath {
    const { domain, node, tokens, value } = hit;
    hit.check(this.#version);
    this.#version += 1;
    if (value !== undefined) this.#values.use(node, tokens);
    return this.#paths.open(options, tokens === 0 ? this.#roots.open(domain) : node, tokens);
  }

  /**
   * The K and V of text[0, length) are valid and lie in `path.rows`. Tokens before `path.length` are not looked at.
   * Rows of tokens that were not cached yet are held from now on. Nothing happens when the path is not stored.
   */
  commit(path: PrefixPath, text: Int32Array, length: number): void {
    this.#change(path);
    if (!path.isStored) return;
    if (length > text.length) {
      throw createError('KV_INTERNAL', { problem: 'a sequence commits more tokens than its text has', what: length });
    }
    this.#paths.commit(path, text, length);
  }

  /**
   * The path takes back its tokens from `length` on, and those that it has only announced. What no other sequence uses
   * of them is not cached any more, except what was cached before the path came. Ask `isWritable` before tokens are
   * written behind `length` in the same rows.
   */
  truncate(path: PrefixPath, length: number): void {
    this.#change(path);
    this.#paths.truncate(path, length);
  }

  /**
   * Whether, for all that is cached, tokens from `path.length` on can be written into path.rows[index]. False: cached
   * tokens lie there, and the path needs another row in its place, with a copy of its tokens before `path.length`. The
   * owner must also see that no other sequence maps the row.
   */
  isWritable(path: PrefixPath, index: number): boolean {
    const row = path.rows[index];
    if (row === undefined || !this.#ledger.isHolding(row)) return true;
    return row === this.#nodes.tailRow[path.node] && path.length === this.#nodes.to[path.node];
  }

  /**
   * Another open path at the same place. The rows it can share are written into `rows`; the last, partial one it
   * cannot.
   */
  fork(path: PrefixPath, rows: Int32Array): PrefixPath {
    this.#change(path);
    return this.#paths.fork(path, rows);
  }

  /** The domain of the path's text, of which there must be some. */
  domainOf(path: PrefixPath): PrefixDomain {
    return this.#roots.domainOf(path.node);
  }

  /** Ends the path. Its text stays cached as the pool's bounds allow. */
  release(path: PrefixPath): void {
    this.#change(path);
    this.#paths.close(path);
  }

  /** Frees up to `rows` rows of the pool as the policy chooses; returns how many. They are in `dropped`. */
  evict(rows: number): number {
    this.#version += 1;
    return this.#pool.evict(rows);
  }

  /**
   * Writes leaves of which the policy lets any go now as a whole, in its order; returns how many. Valid until the index
   * changes.
   */
  victims(leaves: Int32Array): number {
    return this.#pool.victims(leaves);
  }

  /** The last row of a leaf's text, if the leaf has all its rows for itself; otherwise -1. */
  lastRowOfWhole(leaf: number): number {
    const { from, tailRow, lastRow } = this.#nodes;
    if (this.#ledger.wholeRows(from[leaf]!) > 0) return -1;
    return tailRow[leaf]! >= 0 ? tailRow[leaf]! : lastRow[leaf]!;
  }

  /** Evicts one of `victims`, with all the rows that it has for itself. They are in `dropped`. */
  evictLeaf(leaf: number): void {
    this.#version += 1;
    this.#pool.cut(leaf, 0, evicted);
  }

  /**
   * Where an open path committed text in rows of its own that was cached already, in whole rows that `isSpare` says no
   * running sequence uses any more: its own are cached in their place, and those dropped. The owner calls it once a
   * sequence is over.
   */
  settleDuplicates(isSpare: (row: number) => boolean): void {
    if (!this.#paths.isDuplicating) return;
    this.#version += 1;
    this.#paths.settleDuplicates(isSpare);
  }

  /**
   * For want of memory: the same, of last rows too that are not whole; and paths pin no more rows than they need. What
   * `isSpare` affirms can be evicted afterwards, or is dropped.
   */
  replaceDuplicates(isSpare: (row: number) => boolean): void {
    this.#version += 1;
    this.#paths.replaceDuplicates(isSpare);
  }

  /** For want of memory: the path keeps no text from being evicted behind its own tokens, also not in its last row. */
  splitAt(path: PrefixPath): void {
    this.#change(path);
    this.#paths.splitAt(path.node, path.length);
  }

  /**
   * For want of memory: evicts the text that goes on in path.rows[index] behind `path.length`, so that the path can go
   * on there. Returns whether it can; not where a running sequence needs that text. After `replaceDuplicates`, for
   * which the row was spare.
   */
  claim(path: PrefixPath, index: number): boolean {
    this.splitAt(path);
    const { pins, firstChild } = this.#nodes;
    while (!this.isWritable(path, index)) {
      let node = this.#ledger.holderBelow(path.node, path.rows[index]!);
      if (node < 0 || pins[node] !== 0) return false;
      while (firstChild[node]! >= 0) node = firstChild[node]!;
      this.#pool.cut(node, 0, evicted);
    }
    return true;
  }

  /** Drops all that no sequence uses, of one domain or of all; returns how many rows. */
  clear(domain?: PrefixDomain): number {
    this.#version += 1;
    const before = this.dropped.count;
    const roots = domain === undefined ? [...this.#roots.entries()].map(([root]) => root) : [this.#roots.find(domain)];
    for (const root of roots) if (root >= 0) this.#pool.clear(root);
    return this.dropped.count - before;
  }

  /** Nothing that the path commits from here on is cached; what it has committed stays. */
  stopStoring(path: PrefixPath): void {
    this.#change(path);
    path.isStored = false;
    this.#paths.withdraw(path);
  }

  /** Ends a path of text that is to be dropped, which it kept from that: for it this is no use of the text. */
  leave(path: PrefixPath): void {
    this.#change(path);
    this.#paths.leave(path);
  }

  /**
   * Drops what the scope says, as far as no open path has it: see `leave`. Text of other paths, and what other texts
   * share, stays.
   */
  drop(scope: TextScope): void {
    this.#version += 1;
    if (scope.text !== undefined) this.#dropText(scope.text);
    else for (const [root, domain] of [
      ...this.#roots.entries(),
    ]) if (scope.has(domain)) this.#pool.clear(root, dropped);
  }

  /** Says why no more of `text` is cached than is. Changes nothing. */
  explain(domain: PrefixDomain, text: Int32Array): PrefixExplanation {
    this.#hit.find(domain, text, text.length, this.#version);
    return this.#explainer.explain(this.#hit, text);
  }

  /**
   * Keeps a value (last logits, say) at the end of what the path has committed, in place of the one there. It goes with
   * any token of the text, or when there are too many. Returns whether it was kept: not when the path is not stored, or
   * has no token.
   */
  keepValue(path: PrefixPath, value: unknown): boolean {
    this.#change(path);
    if (!path.isStored || path.length === 0) return false;
    return this.#values.keep(path.node, path.length, value);
  }

  /**
   * Calls `visit` with every piece of cached or announced text: an array that must not be kept, and the places [from,
   * to) in it.
   */
  forTexts(visit: (tokens: Int32Array, from: number, to: number) => void): void {
    this.#tree.forPieces(visit);
    this.#paths.forAnnounced(visit);
  }

  /** Throws KV_INTERNAL when something inside does not hold. For tests: looks at everything. */
  verify(): void {
    checkIndex({ tree: this.#tree, ledger: this.#ledger, pool: this.#pool, paths: this.#paths });
  }

  /** Each cut may join nodes: the place is looked up anew behind it. */
  #dropText({ domain, text, from, through }: DroppedText): void {
    const { to, firstChild } = this.#nodes;
    const place = { node: -1, tokens: 0 };
    const find = (limit: number): boolean => {
      const root = this.#roots.find(domain);
      if (root >= 0) this.#tree.descend(root, text, limit, place);
      return root >= 0 && place.tokens > from;
    };
    while (find(through) && place.tokens === through) { // what begins with it, ends first
      let leaf = place.node;
      while (firstChild[leaf]! >= 0) leaf = firstChild[leaf]!;
      if (!this.#cutBehind(leaf, from)) break;
    }
    while (find(text.length) && place.tokens === to[place.node] && firstChild[place.node]! < 0) { // what ends inside it
      if (!this.#cutBehind(place.node, from)) break;
    }
    const root = this.#roots.find(domain);
    if (root >= 0) this.#pool.keepWithinBounds(this.#nodes.tenant[root]!);
  }

  /**
   * Drops a leaf's tokens behind `from`, counted from the start of its text, and behind those of open paths. False:
   * there are none.
   */
  #cutBehind(leaf: number, from: number): boolean {
    const kept = Math.max(from, this.#paths.longestIn(leaf));
    if (kept >= this.#nodes.to[leaf]!) return false;
    this.#pool.cut(leaf, kept, dropped);
    return true;
  }

  /** Something is about to change by this path: hits found before are not valid any more. */
  #change(path: PrefixPath): void {
    if (!path.isOpen) {
      throw createError('KV_INTERNAL', { problem: 'a path of the prefix index is used after its release' });
    }
    this.#version += 1;
  }
}
