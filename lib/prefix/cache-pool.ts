// CachePool: the rows that no sequence uses and that are kept because their text may return. Bounded as a whole and per
// tenant; what goes is the policy's choice. It counts, takes rows off the ends of texts, and keeps what is left closed under
// prefixes: a text loses its end first, and what remains of it lies in rows completely.

import { reasonNumber, type DroppedRows } from './dropped-rows.js';
import type { DomainRoots } from './domain-roots.js';
import type { EvictionPolicy } from './eviction/eviction-policy.js';
import type { OpenPaths, PinListener } from './open-paths.js';
import type { PrefixTree } from './prefix-tree.js';
import type { RowLedger } from './row-ledger.js';
import type { TenantQuota } from './tenant-quota.js';
import type { TextListener } from './text-listener.js';

export interface PoolParts {
  readonly tree: PrefixTree;
  readonly ledger: RowLedger;
  readonly roots: DomainRoots;
  readonly dropped: DroppedRows;
  readonly policy: EvictionPolicy;
  readonly quota: TenantQuota | undefined;
  readonly listeners: readonly TextListener[];
  /** Rows of the pool at most; Infinity: no bound. */
  readonly limitRows: number;
}

const evicted = reasonNumber('evicted');
const bound = reasonNumber('bound');
const cleared = reasonNumber('cleared');
const overQuota = reasonNumber('quota');

export class CachePool implements PinListener {
  readonly #parts: PoolParts;
  #paths: OpenPaths | undefined;
  #rows = 0;

  constructor(parts: PoolParts) {
    this.#parts = parts;
  }

  /** Where open paths are; given once, before any node is made. */
  connect(paths: OpenPaths): void {
    this.#paths = paths;
  }

  /** Rows that can be evicted. */
  get rows(): number {
    return this.#rows;
  }

  enter(node: number): void {
    const { tree, ledger, policy, quota } = this.#parts;
    if (tree.isRoot(node)) return;
    const rows = ledger.ownRows(node);
    this.#rows += rows;
    policy.add(node);
    quota?.add(node, rows);
  }

  leave(node: number): void {
    const { tree, ledger, policy, quota } = this.#parts;
    if (tree.isRoot(node)) return;
    const rows = ledger.ownRows(node);
    this.#rows -= rows;
    policy.remove(node);
    quota?.remove(node, rows);
  }

  /** `upper` was cut off the front of `lower`; both are in the pool. */
  split(upper: number, lower: number): void {
    this.#parts.policy.split(upper, lower);
    this.#parts.quota?.split(upper, lower);
  }

  /** Evicts rows as the policy chooses until `rows` are free or nothing is left; answers how many were freed. */
  evict(rows: number, reason = evicted): number {
    const { policy } = this.#parts;
    let freed = 0;
    while (freed < rows) {
      const victim = policy.victim();
      if (victim < 0) break;
      freed += this.#take(victim, rows - freed, policy.floorTokens?.(victim) ?? 0, reason);
    }
    return freed;
  }

  /** Evicts what is above the bounds: the tenant's, then that of all. */
  keepWithinBounds(tenant: number): void {
    const { quota, limitRows } = this.#parts;
    if (quota !== undefined) {
      while (quota.rowsOf(tenant) > quota.limitRows) {
        const victim = quota.oldest(tenant);
        if (victim < 0) break;
        this.#take(victim, quota.rowsOf(tenant) - quota.limitRows, 0, overQuota);
      }
    }
    if (this.#rows > limitRows) this.evict(this.#rows - limitRows, bound);
  }

  /** Drops all text below a root that no sequence uses. */
  clear(root: number): void {
    const { firstChild, nextSibling, pins } = this.#parts.tree.nodes;
    const below = [root];
    for (let index = 0; index < below.length; index += 1) {
      for (let child = firstChild[below[index]!]!; child >= 0; child = nextSibling[child]!) below.push(child);
    }
    for (let index = below.length - 1; index > 0; index -= 1) { // children before their parents
      const node = below[index]!;
      if (pins[node] === 0 && this.#parts.tree.isUsedLeaf(node)) this.cut(node, 0, cleared);
    }
  }

  /**
   * Takes the leaf's tokens from `tokens` on, counted from the start of the text, and the rows that only they need; then
   * what above it is no longer backed. Also for leaves in use, of which some token must stay.
   */
  cut(leaf: number, tokens: number, reason: number): void {
    const { tree, ledger, roots, listeners } = this.#parts;
    const { nodes } = tree;
    const isPooled = nodes.pins[leaf] === 0;
    const before = ledger.ownRows(leaf);
    const to = nodes.to[leaf]!;
    const kept = ledger.cut(leaf, tokens, reason);
    for (const listener of listeners) listener.cut(leaf, kept, to, reason);
    if (kept > nodes.from[leaf]!) {
      if (kept < to) tree.trim(leaf, kept);
      if (isPooled) this.#shrink(leaf, before - ledger.ownRows(leaf));
      return;
    }
    this.#forget(leaf, before);
    const parent = nodes.parent[leaf]!;
    tree.remove(leaf);
    if (tree.isRoot(parent)) roots.closeIfEmpty(parent);
    else if (tree.isLeaf(parent)) this.settle(parent, reason);
    else this.joinChild(parent);
  }

  /**
   * Sees that the last tokens of a leaf lie in a row: in that of a sequence that ends there, or else by cutting those off
   * that no sequence has. (The row of a sequence that is not stored will do: only tokens that were cached before are found
   * in it.)
   */
  settle(leaf: number, reason: number): void {
    const { tree, ledger, listeners } = this.#parts;
    const to = tree.nodes.to[leaf]!;
    const backed = ledger.backedTokens(leaf);
    if (backed === to) return;
    let kept = backed;
    for (let path = this.#paths?.endingIn(leaf); path !== undefined; path = path.next) kept = Math.max(kept, path.length);
    if (kept < to) this.cut(leaf, kept, reason);
    if (kept === backed) return;
    const index = ledger.arithmetic.wholeRows(kept);
    for (let path = this.#paths?.endingIn(leaf); path !== undefined; path = path.next) {
      const row = path.rows[index];
      if (path.length !== kept || row === undefined || row < 0 || ledger.isHolding(row)) continue;
      ledger.attachTail(leaf, row);
      for (const listener of listeners) listener.backed?.(leaf);
      return;
    }
  }

  /**
   * Makes one node of a pooled node and its only child where nobody can tell them apart: all releases so far used both, or
   * the upper one has no row of its own. Answers whether it did; the child remains.
   */
  joinChild(upper: number): boolean {
    const { tree, ledger, listeners } = this.#parts;
    const { nodes } = tree;
    const lower = nodes.firstChild[upper]!;
    if (lower < 0 || nodes.pins[upper] !== 0 || tree.isRoot(upper) || !nodes.isOnlyChild(lower)) return false;
    // What used the child used its parent too: as many uses are the same uses.
    if (nodes.uses[upper] !== nodes.uses[lower] && ledger.ownRows(upper) > 0) return false;
    this.#beforeJoin(upper, ledger.ownRows(upper));
    tree.join(lower);
    for (const listener of listeners) listener.joined(upper, lower);
    return true;
  }

  /** The rows of `upper` count for its child from now on. */
  #beforeJoin(upper: number, rows: number): void {
    const { tree, policy, quota } = this.#parts;
    policy.remove(upper);
    quota?.remove(upper, rows);
    quota?.shrink(tree.nodes.tenant[upper]!, -rows);
  }

  #take(leaf: number, rows: number, floorTokens: number, reason: number): number {
    const { tree, ledger } = this.#parts;
    const before = this.#parts.dropped.count;
    const total = ledger.arithmetic.rowsFor(tree.nodes.to[leaf]!);
    const floor = floorTokens > 0 ? ledger.arithmetic.rowsFor(floorTokens) : 0;
    const kept = Math.min(total - 1, Math.max(total - rows, floor));
    this.cut(leaf, ledger.arithmetic.tokensIn(kept), reason);
    return this.#parts.dropped.count - before;
  }

  #forget(node: number, rows: number): void {
    this.#rows -= rows;
    this.#parts.policy.remove(node);
    this.#parts.quota?.remove(node, rows);
  }

  #shrink(node: number, rows: number): void {
    this.#rows -= rows;
    this.#parts.quota?.shrink(this.#parts.tree.nodes.tenant[node]!, rows);
  }
}
