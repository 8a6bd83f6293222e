// priority: requests have levels, and what only low ones used goes first: the system prompts of agents outlast passing
// texts. First goes what has expired, then the lowest level, and within a level what was used longest ago. Levels from
// `pinnedLevel` on never go before they expire, as long as they take no more than their share of the budget: beyond it
// the pins of the lowest level that were used longest ago end, and their text goes after that of all lower levels. Time
// comes from the caller's clock.
//
// Why a leaf comes first: a parent has at least the level of its child and is added after it, so the oldest node of the
// lowest level is a leaf, and pins end from the leaf up. Lifetimes may break that order: an expired node that still has
// children waits in a list of its own until one of them is gone.
//
// Rows of pinned nodes are counted when they are added, and again after they were split or joined.

import { callable, checkTime, integer, number, optional, readOptions, withDefault } from '../../base/options.js';
import { enlarged } from '../../base/typed-arrays.js';
import type { EvictionContext, EvictionPolicy, EvictionPolicyFactory } from './eviction-policy.js';
import { NodeLists } from './node-lists.js';

/** Options of `priority`. */
export interface PriorityOptions {
  /** Texts of this level and higher are pinned: they leave the pool only when they expire. Default 256: none. */
  readonly pinnedLevel?: number;
  /**
   * Share of the memory budget, 0 … 1, that pinned text which no sequence uses may take; of the budget as it is at the
   * moment, of each cache where several have one pool. Above it the pins that were used longest ago end, those of the
   * lowest level first. The same share of the side budget holds their side rows. Default 0.5.
   */
  readonly pinnedShare?: number;
  /**
   * How long after its last use a text of a level expires, in ms; Infinity: never. Asked once for each level. Needs
   * `now`. Default: nothing expires.
   */
  readonly lifetimeMs?: (level: number) => number;
  /** The clock, in ms; it never goes back. */
  readonly now?: () => number;
}

const levels = 256;

const spec = {
  pinnedLevel: withDefault(integer({ min: 0, max: levels }), levels),
  pinnedShare: withDefault(number(0, 1), 0.5),
  lifetimeMs: optional(callable<(level: number) => number>()),
  now: optional(callable<() => number>()),
};

/**
 * An eviction policy: the lowest `priority` of `acquire` goes first, then what has expired, then the least recently
 * used.
 */
export function priority(options?: PriorityOptions): EvictionPolicyFactory {
  const { pinnedLevel, pinnedShare, lifetimeMs, now } = readOptions('priority', options, spec);
  const pins = { level: pinnedLevel, share: pinnedShare };
  if (lifetimeMs === undefined) return (context) => new Priority(context, pins, undefined, () => 0);
  const clock = callable<() => number>()(now, { owner: 'priority', option: 'now' });
  const isLifetime = number(0);
  const lifetimes = Float64Array.from({ length: levels }, (_, level) => {
    const value = lifetimeMs(level);
    return value === Infinity ? value : isLifetime(value, { owner: 'priority', option: `lifetimeMs(${level})` });
  });
  return (context) => new Priority(context, pins, lifetimes, () => checkTime(clock(), 'priority', 'now'));
}

/**
 * Expired nodes: those that may go, and those that had children when they were looked at. Behind the lists of the
 * levels.
 */
const expired = levels;
const waiting = levels + 1;
/** Nodes whose pins have ended. */
const unpinned = levels + 2;

interface Pins {
  /** The lowest that is pinned. */
  readonly level: number;
  readonly share: number;
}

class Priority implements EvictionPolicy {
  readonly #context: EvictionContext;
  readonly #nodes: EvictionContext['nodes'];
  readonly #pinnedLevel: number;
  readonly #lifetimesMs: Float64Array | undefined;
  readonly #now: () => number;
  readonly #lists = new NodeLists(levels + 3);
  /** Levels that were ever used, lowest first: the few that `victim` looks at. */
  readonly #levels: number[] = [];
  #usedMs = new Float64Array(0);
  /** By node: rows that count as pinned. */
  #rows = new Float64Array(0);
  #pinnedRows = 0;
  /** Pinned nodes that may have got the rows of a node above them. */
  readonly #joined: number[] = [];
  /** Absent where no level is pinned: nothing is withheld then, and nothing looked at. */
  readonly withholds?: (node: number) => boolean;
  readonly withheldShare: number;

  constructor(
    context: EvictionContext, { level, share }: Pins, lifetimesMs: Float64Array | undefined, now: () => number,
  ) {
    const { nodes } = context;
    this.#context = context;
    this.#nodes = nodes;
    this.#pinnedLevel = level;
    this.withheldShare = share;
    this.#lifetimesMs = lifetimesMs;
    this.#now = now;
    if (level < levels) this.withholds = (node) => this.#isPinned(node);
  }

  add(node: number): void {
    const level = this.#nodes.level[node]!;
    if (!this.#levels.includes(level)) {
      this.#levels.splice(this.#levels.filter((lower) => lower < level).length, 0, level);
    }
    this.#lists.add(node, level);
    this.#stamp(node, this.#now());
    if (level >= this.#pinnedLevel) this.#count(node);
  }

  remove(node: number): void {
    if (this.#lists.remove(node) < 0) return;
    this.#uncount(node);
    const child = this.#nodes.firstChild[node]!;
    if (child >= 0 && this.#isCounted(child)) this.#joined.push(child);
    const parent = this.#nodes.parent[node]!;
    if (this.#lists.listOf(parent) !== waiting) return;
    this.#lists.remove(parent);
    this.#lists.add(parent, expired);
  }

  split(upper: number, lower: number): void {
    this.#lists.addAfter(upper, lower);
    this.#stamp(upper, this.#usedMs[lower]!);
    if (!this.#isCounted(lower)) return;
    this.#count(lower);
    this.#count(upper);
  }

  /** Looks at the oldest of each level in use, and once at each node that has expired or lost a child since. */
  victim(): number {
    if (this.#lifetimesMs !== undefined) this.#expire(this.#lifetimesMs);
    for (let node = this.#lists.oldest(expired); node >= 0; node = this.#lists.oldest(expired)) {
      if (this.#nodes.firstChild[node]! < 0) return node;
      this.#lists.remove(node);
      this.#lists.add(node, waiting);
    }
    for (const level of this.#levels) {
      if (level >= this.#pinnedLevel) break;
      const node = this.#lists.oldest(level);
      if (node >= 0) return node;
    }
    this.#keepShare();
    return this.#lists.oldest(unpinned);
  }

  /** All of one level, or all expired. */
  victims(leaves: Int32Array): number {
    return this.#lists.leavesBeside(this.victim(), this.#nodes.firstChild, leaves);
  }

  /** Text of a level that expires is kept as that of the next lower one that does not. */
  lastingLevel(level: number): number {
    const lifetimesMs = this.#lifetimesMs;
    if (lifetimesMs === undefined) return level;
    return Math.max(0, lifetimesMs.subarray(0, level + 1).lastIndexOf(Infinity));
  }

  /** Whether a pinned text has no lifetime. */
  withholdsForGood(node: number): boolean {
    return this.#lifetimesMs === undefined || this.#lifetimesMs[this.#nodes.level[node]!] === Infinity;
  }

  #isPinned(node: number): boolean {
    const level = this.#nodes.level[node]!;
    if (level < this.#pinnedLevel) return false;
    this.#keepShare();
    const list = this.#lists.listOf(node);
    // in use: its lifetime begins when it is added
    if (list < 0) return this.#lifetimesMs === undefined || this.#lifetimesMs[level]! > 0;
    return list === level
      && (this.#lifetimesMs === undefined || this.#usedMs[node]! > this.#now() - this.#lifetimesMs[level]!);
  }

  /**
   * Ends pins, those of the lowest level first, of these the oldest, until the others take no more than their share.
   */
  #keepShare(): void {
    for (let node = this.#joined.pop(); node !== undefined; node = this.#joined.pop()) {
      if (this.#isCounted(node)) this.#count(node);
    }
    if (this.withheldShare === 1) return;
    const mostRows = this.withheldShare * this.#context.budgetRows();
    for (const level of this.#levels) {
      if (level < this.#pinnedLevel) continue;
      for (let node = this.#lists.oldest(level); node >= 0 && this.#pinnedRows > mostRows;
          node = this.#lists.oldest(level)) {
        this.#lists.remove(node);
        this.#lists.add(node, unpinned);
        this.#uncount(node);
      }
    }
  }

  #isCounted(node: number): boolean {
    const list = this.#lists.listOf(node);
    return list >= this.#pinnedLevel && list < levels;
  }

  #count(node: number): void {
    if (node >= this.#rows.length) this.#rows = enlarged(this.#rows, Math.max(64, node + 1, 2 * this.#rows.length));
    this.#uncount(node);
    this.#rows[node] = this.#context.rowsOf(node);
    this.#pinnedRows += this.#rows[node]!;
  }

  #uncount(node: number): void {
    this.#pinnedRows -= this.#rows[node] ?? 0;
    if (node < this.#rows.length) this.#rows[node] = 0;
  }

  #expire(lifetimesMs: Float64Array): void {
    const nowMs = this.#now();
    for (const level of this.#levels) {
      const limitMs = nowMs - lifetimesMs[level]!;
      for (let node = this.#lists.oldest(level); node >= 0 && this.#usedMs[node]! <= limitMs;
          node = this.#lists.oldest(level)) {
        this.#lists.remove(node);
        this.#lists.add(node, expired);
        this.#uncount(node);
      }
    }
  }

  #stamp(node: number, ms: number): void {
    if (node >= this.#usedMs.length) {
      this.#usedMs = enlarged(this.#usedMs, Math.max(64, node + 1, 2 * this.#usedMs.length));
    }
    this.#usedMs[node] = ms;
  }
}
