// CachePool: the nodes that no running sequence uses, which are kept because their text may return; and so also which
// nodes are used. Bounded as a whole and per tenant; the policy chooses what goes. It counts, takes rows off the ends
// of texts, and keeps what is left closed under prefixes: a text loses its end first, and what remains of it lies in
// rows completely.
//
// Invariants: pins[node] = open paths whose end is the node or lies below it; a pinned node's parent is pinned; a node
// is in the pool when it is neither pinned nor a root.

import { enlarged } from '../base/typed-arrays.js';
import type { CheckedPolicy } from './eviction/checked-policy.js';
import type { OfferedText } from './eviction/eviction-policy.js';
import { NodeLists } from './eviction/node-lists.js';
import type { DomainRoots, NodeTable, PrefixPath, PrefixTree, TextListener } from './prefix-tree.js';
import { type DroppedRows, reasonNumber, type RowLedger } from './row-ledger.js';

export interface PoolOptions {
  readonly tree: PrefixTree;
  readonly ledger: RowLedger;
  readonly roots: DomainRoots;
  readonly dropped: DroppedRows;
  readonly policy: CheckedPolicy;
  readonly listeners: readonly TextListener[];
  /** Rows of the pool at most; Infinity: no bound. */
  readonly poolRows: number;
  /** Rows of the pool that one tenant has at most; Infinity: no bound. */
  readonly tenantRows: number;
}

/** Rows of the pool, by how many requests ended since their text was used last. */
export interface RowsByAge {
  /** [bound]: up to it and above the one before; the last entry: more than all bounds. */
  readonly rows: readonly number[];
  /** Requests that have ended. */
  readonly requests: number;
}

/**
 * Of texts that may make way as a whole, what the policy would let go before the last of them: rows at most, as a share
 * of the pool.
 */
const skippedShare = 1 / 16;

const evicted = reasonNumber('evicted');
const bound = reasonNumber('bound');
const cleared = reasonNumber('cleared');
const overQuota = reasonNumber('quota');

/** Requests by whose ends ages are counted; bounds of ages are at most this. */
const endsKept = 1_024;

export class CachePool {
  readonly #options: PoolOptions;
  readonly #nodes: NodeTable;
  readonly #quota: TenantQuota | undefined;
  /** What of it, and of the nodes in use, the policy does not give. */
  readonly withheld: WithheldText;
  /** Rows of its nodes. Read only. */
  rows = 0;
  #releases = 0;
  /** Of these, those of requests: transfers of the cache's own are none. */
  #requests = 0;
  /** [request % endsKept]: releases when it ended. */
  readonly #requestEnds = new Float64Array(endsKept);
  /** The request of the path that was released last. */
  readonly #request = { promptTokens: 0, newTokens: 0, answerTokens: 0 };

  constructor(options: PoolOptions) {
    this.#options = options;
    this.#nodes = options.tree.nodes;
    this.withheld = new WithheldText(this.#nodes, options.ledger, options.policy);
    this.#quota = options.tenantRows === Infinity ? undefined : new TenantQuota(this.#nodes, options.tenantRows);
  }

  /**
   * Whether text in tiers may come for what it scores: the policy says so, and no bound for tenants, by which other
   * text goes.
   */
  get takesOffers(): boolean {
    return this.#quota === undefined && this.#options.policy.canOffer;
  }

  /** Whether text in tiers is worth the room of what the policy would let go. */
  isWorthRoom(text: OfferedText): boolean {
    return this.#options.policy.isWorthRoom(text);
  }

  /** Whether it may have so many rows more. */
  hasRoom(rows: number): boolean {
    return this.rows + rows <= this.#options.poolRows;
  }

  /** One more path ends in the node: takes it and all above it out of the pool. */
  pinPath(node: number): void {
    const { parent } = this.#nodes;
    for (let above = node; above >= 0; above = parent[above]!) this.pin(above);
  }

  /** One more path goes through the node. */
  pin(node: number): void {
    const { pins, parent } = this.#nodes;
    if (pins[node] === 0 && parent[node]! >= 0) this.#forget(node, this.#options.ledger.ownRows(node));
    pins[node]! += 1;
  }

  /**
   * `paths` paths no longer go through the node. The nodes below it come first, so that it is more recent than they
   * are.
   */
  unpin(node: number, paths: number): void {
    const { pins, parent } = this.#nodes;
    pins[node]! -= paths;
    if (pins[node] !== 0 || parent[node]! < 0) return;
    const rows = this.#options.ledger.ownRows(node);
    this.rows += rows;
    this.#options.policy.add(node);
    this.#quota?.add(node, rows);
  }

  /**
   * Counts its rows by age, in requests that ended since, up to bounds of at most 1,024. Where there are more than
   * `maxNodes` nodes, looks at every second, third, …, which count for the others too.
   */
  rowsByAge(bounds: readonly number[], maxNodes: number): RowsByAge {
    const nodes = this.#nodes;
    const rows = new Array<number>(bounds.length + 1).fill(0);
    const step = Math.max(1, Math.ceil(nodes.end / maxNodes));
    const since = bounds.map((requests) =>
      (requests > this.#requests ? 0 : this.#requestEnds[(this.#requests - requests) % endsKept]!));
    for (let node = 0; node < nodes.end; node += step) {
      if (!nodes.isUsed(node) || nodes.pins[node] !== 0 || nodes.parent[node]! < 0) continue;
      let at = 0;
      while (at < bounds.length && nodes.lastUse[node]! < since[at]!) at += 1;
      rows[at]! += step * this.#options.ledger.ownRows(node);
    }
    return { rows, requests: this.#requests };
  }

  /** The path is over. What no other path uses goes into the pool as the most recent, as the bounds allow. */
  release(path: PrefixPath): void {
    const { node, length, level: pathLevel, isTransfer, sharedTokens, promptTokens = length } = path;
    const { uses, lastUse, level, parent, tenant } = this.#nodes;
    const owner = tenant[node]!;
    this.#releases += 1;
    if (!isTransfer) this.#requestEnds[this.#requests++ % endsKept] = this.#releases;
    for (let above = node; above >= 0; above = parent[above]!) {
      if (!isTransfer) uses[above]! += 1;
      lastUse[above] = this.#releases;
      level[above] = Math.max(level[above]!, pathLevel);
    }
    this.#unpinPath(node);
    if (!isTransfer) {
      const request = this.#request;
      request.promptTokens = promptTokens;
      request.newTokens = Math.max(0, promptTokens - sharedTokens);
      request.answerTokens = Math.max(0, length - promptTokens);
      this.#options.policy.observe(node, length, request);
    }
    this.#tidy(node);
    this.keepWithinBounds(owner);
  }

  /**
   * A path that ended in the node is over, and what it had is about to be dropped: that is no use of it, and nothing
   * makes way for it.
   */
  leave(node: number): void {
    this.#unpinPath(node);
    this.#tidy(node);
  }

  /** `upper` was cut off the front of `lower`; both are in the pool. */
  split(upper: number, lower: number): void {
    this.#options.policy.split(upper, lower);
    this.#quota?.split(upper, lower);
  }

  /** Evicts rows as the policy chooses until `rows` rows are free or nothing is left; returns how many were freed. */
  evict(rows: number, reason = evicted): number {
    const { policy } = this.#options;
    let freed = 0;
    while (freed < rows) {
      const victim = policy.victim();
      if (victim < 0) break;
      freed += this.#take(victim, rows - freed, policy.floorTokens(victim), reason);
    }
    return freed;
  }

  /**
   * Leaves of which any may go now as a whole, in the policy's order; returns how many. Few where the pool is small, so
   * that its order stays about what the policy says.
   */
  victims(leaves: Int32Array): number {
    const { policy, ledger } = this.#options;
    const count = policy.victims(leaves);
    let whole = 0;
    let skippedRows = 0;
    for (let at = 0; at < count && skippedRows <= skippedShare * this.rows; at += 1) {
      const leaf = leaves[at]!;
      skippedRows += ledger.ownRows(leaf);
      if (policy.floorTokens(leaf) > 0) continue;
      leaves[whole] = leaf;
      whole += 1;
    }
    return whole;
  }

  /** Evicts what is above the bounds: the tenant's, then that of all. */
  keepWithinBounds(tenant: number): void {
    const { poolRows } = this.#options;
    const quota = this.#quota;
    if (quota !== undefined) {
      while (quota.rowsOf(tenant) > quota.limitRows) {
        const victim = quota.oldest(tenant);
        if (victim < 0) break;
        this.#take(victim, quota.rowsOf(tenant) - quota.limitRows, 0, overQuota);
      }
    }
    if (this.rows > poolRows) this.evict(this.rows - poolRows, bound);
  }

  /** Drops all text below a root that no sequence uses. */
  clear(root: number, reason = cleared): void {
    const { firstChild, nextSibling, pins } = this.#nodes;
    const below = [root];
    for (let index = 0; index < below.length; index += 1) {
      for (let child = firstChild[below[index]!]!; child >= 0; child = nextSibling[child]!) below.push(child);
    }
    for (let index = below.length - 1; index > 0; index -= 1) { // children before their parents
      const node = below[index]!;
      if (pins[node] === 0 && this.#nodes.isUsedLeaf(node)) this.cut(node, 0, reason);
    }
  }

  /**
   * Takes the leaf's tokens from `tokens` on, counted from the start of the text, and the rows that only they need;
   * then what above it is no longer backed. Also for leaves in use, of which some token must stay.
   */
  cut(leaf: number, tokens: number, reason: number): void {
    const { tree, ledger, roots, listeners } = this.#options;
    const nodes = this.#nodes;
    const isPooled = nodes.pins[leaf] === 0;
    const before = ledger.ownRows(leaf);
    const to = nodes.to[leaf]!;
    const kept = ledger.cut(leaf, tokens, reason);
    if (kept < to) nodes.generation[leaf]! += 1;
    for (const listener of listeners) listener.cut?.(leaf, kept, to, reason);
    if (kept > nodes.from[leaf]!) {
      if (kept < to) tree.trim(leaf, kept);
      if (isPooled) this.#shrink(leaf, before - ledger.ownRows(leaf));
      return;
    }
    this.#forget(leaf, before);
    this.withheld.remove(leaf);
    const parent = nodes.parent[leaf]!;
    tree.remove(leaf);
    if (nodes.parent[parent]! < 0) roots.closeIfEmpty(parent);
    else if (nodes.firstChild[parent]! < 0) this.backLeaf(parent, reason);
    else this.joinChild(parent);
  }

  /**
   * Sees that the last tokens of a leaf lie in a row: in that of a sequence that ends there, or else by cutting those
   * off that no sequence has. (The row of a sequence that is not stored will do: only tokens that were cached before
   * are found in it.)
   */
  backLeaf(leaf: number, reason: number): void {
    const { ledger, listeners } = this.#options;
    const { ending } = this.#nodes;
    const to = this.#nodes.to[leaf]!;
    const backed = ledger.backedTokens(leaf);
    if (backed === to) return;
    let kept = backed;
    for (let path = ending[leaf]; path !== undefined; path = path.next) kept = Math.max(kept, path.length);
    if (kept < to) this.cut(leaf, kept, reason);
    if (kept === backed) return;
    const index = ledger.wholeRows(kept);
    for (let path = ending[leaf]; path !== undefined; path = path.next) {
      const row = path.rows[index];
      if (path.length !== kept || row === undefined || row < 0 || ledger.isHolding(row)) continue;
      ledger.attachTail(leaf, row);
      for (const listener of listeners) listener.backed?.(leaf);
      return;
    }
  }

  /**
   * Makes one node of a node of the pool and its only child where nothing tells them apart: all requests so far used
   * both, and no transfer raised the level of one alone; or the upper one has no row of its own. Returns whether it
   * did; the child remains.
   */
  joinChild(upper: number): boolean {
    const { tree, ledger, policy, listeners } = this.#options;
    const nodes = this.#nodes;
    const lower = nodes.firstChild[upper]!;
    if (lower < 0 || nodes.pins[upper] !== 0 || nodes.parent[upper]! < 0 || !nodes.isOnlyChild(lower)) return false;
    const rows = ledger.ownRows(upper);
    // What used the child used its parent too: as many uses are the same uses.
    const isAlike = nodes.uses[upper] === nodes.uses[lower] && nodes.level[upper] === nodes.level[lower];
    if (!isAlike && rows > 0) return false;
    policy.remove(upper);
    this.withheld.remove(upper);
    this.#quota?.remove(upper, rows);
    this.#quota?.shrink(nodes.tenant[upper]!, -rows); // they count for the child from now on
    tree.join(lower);
    for (const listener of listeners) listener.joined?.(upper, lower);
    return true;
  }

  #unpinPath(node: number): void {
    const { parent } = this.#nodes;
    const { canWithhold } = this.#options.policy;
    for (let above = node; above >= 0; above = parent[above]!) {
      this.unpin(above, 1);
      if (canWithhold && parent[above]! >= 0) this.withheld.note(above);
    }
  }

  /** Once no path ends in `node` any more: cuts off what lies in no row, joins what is one text again. */
  #tidy(node: number): void {
    const { parent, firstChild } = this.#nodes;
    if (parent[node]! < 0) {
      this.#options.roots.closeIfEmpty(node);
      return;
    }
    const child = firstChild[node]!;
    let below = this.joinChild(node) ? child : node;
    while (parent[below]! >= 0) if (!this.joinChild(parent[below]!)) below = parent[below]!;
    if (this.#nodes.isUsedLeaf(node)) this.backLeaf(node, bound);
  }

  #take(leaf: number, rows: number, floorTokens: number, reason: number): number {
    const { ledger, dropped } = this.#options;
    const before = dropped.count;
    const total = ledger.rowsFor(this.#nodes.to[leaf]!);
    const floor = floorTokens > 0 ? ledger.rowsFor(floorTokens) : 0;
    const kept = Math.min(total - 1, Math.max(total - rows, floor));
    this.cut(leaf, ledger.tokensIn(kept), reason);
    return dropped.count - before;
  }

  /** The node leaves the pool with all its rows. */
  #forget(node: number, rows: number): void {
    this.rows -= rows;
    this.#options.policy.remove(node);
    this.#quota?.remove(node, rows);
  }

  #shrink(node: number, rows: number): void {
    this.rows -= rows;
    this.#quota?.shrink(this.#nodes.tenant[node]!, rows);
  }
}

// TenantQuota: how many rows of the pool each tenant has, and which of its texts goes first when that is too many: what
// it used longest ago, whatever the eviction policy prefers. Costs nothing when there is no quota.

export class TenantQuota {
  readonly limitRows: number;
  readonly #nodes: NodeTable;
  readonly #lists = new NodeLists(1);
  #rows = new Int32Array(1);

  constructor(nodes: NodeTable, limitRows: number) {
    this.#nodes = nodes;
    this.limitRows = limitRows;
  }

  rowsOf(tenant: number): number {
    return this.#rows[tenant] ?? 0;
  }

  add(node: number, rows: number): void {
    const tenant = this.#nodes.tenant[node]!;
    if (tenant >= this.#rows.length) this.#rows = enlarged(this.#rows, Math.max(tenant + 1, 2 * this.#rows.length));
    this.#rows[tenant]! += rows;
    this.#lists.add(node, tenant);
  }

  remove(node: number, rows: number): void {
    this.#rows[this.#nodes.tenant[node]!]! -= rows;
    this.#lists.remove(node);
  }

  /** A node of the pool lost rows, or got some (`rows` below 0), and stays. */
  shrink(tenant: number, rows: number): void {
    this.#rows[tenant]! -= rows;
  }

  split(upper: number, lower: number): void {
    this.#lists.addAfter(upper, lower);
  }

  /** The leaf that the tenant used longest ago, or -1. */
  oldest(tenant: number): number {
    return tenant < this.#lists.lists ? this.#lists.oldest(tenant) : -1;
  }
}

// WithheldText: the nodes that the eviction policy does not give, and so the rows that cannot be evicted though no
// sequence uses them. A node is noted when a sequence that used it is released, and looked at anew when rows are
// counted: what the policy withholds may expire meanwhile. Costs nothing where the policy withholds nothing.

export class WithheldText {
  readonly #nodes: NodeTable;
  readonly #ledger: RowLedger;
  readonly #policy: CheckedPolicy;
  /** Nodes that were withheld when a sequence was released, in use again or not. */
  readonly #noted = new NodeLists(1);
  /** By node: the last count that came to it. */
  #seenIn = new Float64Array(0);
  #counts = 0;

  constructor(nodes: NodeTable, ledger: RowLedger, policy: CheckedPolicy) {
    this.#nodes = nodes;
    this.#ledger = ledger;
    this.#policy = policy;
  }

  /** Whether some text may be withheld. */
  get isAny(): boolean {
    return this.#policy.canWithhold && this.#noted.oldest(0) >= 0;
  }

  /** Share of the budget of side tensors that rows of withheld text keep. */
  get share(): number {
    return this.#policy.withheldShare;
  }

  /** Whether some text is withheld that need not be used again for the policy to give it. */
  get isPassing(): boolean {
    let isPassing = false;
    this.forNodes((node) => isPassing ||= !this.#policy.withholdsForGood(node));
    return isPassing;
  }

  /**
   * Whether the policy withholds the node: only of those that were withheld when a sequence was released is it asked.
   */
  has(node: number): boolean {
    return this.#policy.canWithhold && this.#noted.listOf(node) >= 0 && this.#policy.withholds(node);
  }

  /** A sequence that used the node was released, and the policy can withhold text. */
  note(node: number): void {
    if (this.#noted.listOf(node) < 0 && this.#policy.withholds(node)) this.#noted.add(node, 0);
  }

  /** The node is gone. */
  remove(node: number): void {
    this.#noted.remove(node);
  }

  /** `upper` was cut off the front of `lower`. */
  split(upper: number, lower: number): void {
    if (this.#noted.listOf(lower) >= 0) this.#noted.addAfter(upper, lower);
  }

  /** Calls `visit` for every node that the policy withholds. */
  forNodes(visit: (node: number) => void): void {
    if (!this.isAny) return;
    for (let node = this.#noted.oldest(0); node >= 0; node = this.#noted.newerThan(node)) {
      if (this.#policy.withholds(node)) visit(node);
    }
  }

  /**
   * Calls `visit` for every row that hangs on text which the policy withholds, or on what that continues, except those
   * whose tokens open paths have all of: there a running sequence's own row can take the place of the cached one.
   */
  forRows(visit: (row: number) => void): void {
    if (!this.isAny) return;
    const { parent, end } = this.#nodes;
    if (this.#seenIn.length < end) this.#seenIn = enlarged(this.#seenIn, Math.max(end, 2 * this.#seenIn.length));
    this.#counts += 1;
    for (let node = this.#noted.oldest(0); node >= 0; node = this.#noted.newerThan(node)) {
      if (!this.#policy.withholds(node)) continue;
      // What is above a withheld node never becomes a leaf, whatever the policy says of it.
      for (let above = node; parent[above]! >= 0 && this.#seenIn[above] !== this.#counts; above = parent[above]!) {
        this.#seenIn[above] = this.#counts;
        this.#visitRows(above, visit);
      }
    }
  }

  #visitRows(node: number, visit: (row: number) => void): void {
    const covered = this.#coveredRows(node);
    this.#ledger.forOwnRows(node, (row, index) => {
      if (index >= covered) visit(row);
    });
  }

  /** Rows from the start of the text whose tokens up to the node's end some open path has; Infinity: all. */
  #coveredRows(node: number): number {
    const { pins, ending, to } = this.#nodes;
    let ends = 0;
    let tokens = 0;
    for (let path = ending[node]; path !== undefined; path = path.next) {
      ends += 1;
      tokens = Math.max(tokens, path.length);
    }
    const isPassed = pins[node]! > ends;
    return isPassed || tokens === to[node] ? Infinity : this.#ledger.wholeRows(tokens);
  }
}
