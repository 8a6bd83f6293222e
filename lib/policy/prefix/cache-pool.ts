// CachePool: the rows that no sequence uses and that are kept because their text may return. Bounded as a whole and per
// tenant; what goes is the policy's choice. It counts, takes rows off the ends of texts, and keeps what is left closed under
// prefixes: a text loses its end first, and what remains of it lies in rows completely.

import { reasonNumber } from './dropped-rows.js';
import type { DomainRoots } from './domain-roots.js';
import type { EvictionPolicy } from './eviction-policy.js';
import type { OpenPaths, PinListener } from './open-paths.js';
import type { PrefixTree } from './prefix-tree.js';
import type { RowLedger } from './row-ledger.js';
import type { TenantQuota } from './tenant-quota.js';
import type { TextListener } from './text-listener.js';

export interface PoolParts {
  readonly tree: PrefixTree;
  readonly ledger: RowLedger;
  readonly roots: DomainRoots;
  readonly policy: EvictionPolicy;
  readonly quota: TenantQuota | undefined;
  readonly listeners: readonly TextListener[];
  /** Rows of the pool at most; Infinity: no bound. */
  readonly limitRows: number;
}

const evicted = reasonNumber('evicted');
const bound = reasonNumber('bound');
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

  /** `lower` will be joined with its parent; both are in the pool. */
  beforeJoin(lower: number): void {
    const { tree, ledger, policy, quota } = this.#parts;
    const upper = tree.nodes.parent[lower]!;
    policy.remove(upper);
    if (quota === undefined) return;
    const tenant = tree.nodes.tenant[upper]!;
    const rows = ledger.ownRows(upper);
    quota.remove(upper, rows);
    quota.shrink(tenant, -rows); // they count for `lower` from now on
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

  /** Evicts what is above the bounds, first of the tenant of `node`. */
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

  /** Cuts a leaf until its path has `rows` rows, and what above it is no longer backed. Also for leaves in use. */
  cut(leaf: number, rows: number, reason: number): void {
    const { tree, ledger, roots, listeners } = this.#parts;
    const { nodes } = tree;
    const isPooled = nodes.pins[leaf] === 0;
    const before = ledger.ownRows(leaf);
    const to = nodes.to[leaf]!;
    const tokens = ledger.cut(leaf, rows, reason);
    for (const listener of listeners) listener.cut(leaf, tokens, to, reason);
    const isGone = tokens === nodes.from[leaf];
    if (isPooled && isGone) this.#forget(leaf, before);
    if (!isGone) {
      if (tokens < to) tree.trim(leaf, tokens);
      if (isPooled) this.#shrink(leaf, before - ledger.ownRows(leaf));
      return;
    }
    const parent = nodes.parent[leaf]!;
    tree.remove(leaf);
    if (tree.isRoot(parent)) roots.closeIfEmpty(parent);
    else if (tree.isLeaf(parent)) this.settle(parent, reason);
  }

  /**
   * Sees that the last tokens of a leaf lie in a row: in that of a sequence that ends there, or else, when nobody uses the
   * leaf, by cutting those tokens off.
   */
  settle(leaf: number, reason: number): void {
    const { tree, ledger } = this.#parts;
    const to = tree.nodes.to[leaf]!;
    if (ledger.backedTokens(leaf) === to) return;
    if (tree.nodes.pins[leaf] === 0) {
      this.cut(leaf, ledger.arithmetic.wholeRows(to), reason);
      return;
    }
    const index = ledger.arithmetic.wholeRows(to);
    for (let path = this.#paths?.endingIn(leaf); path !== undefined; path = path.next) {
      const row = path.rows[index];
      if (path.length !== to || row === undefined || row < 0 || ledger.isHolding(row)) continue;
      ledger.attachTail(leaf, row);
      return;
    }
  }

  #take(leaf: number, rows: number, floorTokens: number, reason: number): number {
    const { tree, ledger } = this.#parts;
    const before = ledger.heldRows;
    const whole = ledger.arithmetic.wholeRows(tree.nodes.to[leaf]!);
    const total = tree.nodes.tailRow[leaf]! >= 0 ? whole + 1 : whole;
    const floor = floorTokens > 0 ? ledger.arithmetic.rowsFor(floorTokens) : 0;
    this.cut(leaf, Math.min(total - 1, Math.max(total - rows, floor)), reason);
    return before - ledger.heldRows;
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
