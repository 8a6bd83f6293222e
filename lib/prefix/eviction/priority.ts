// priority: requests have levels, and what only low ones used goes first: the system prompts of agents outlast passing texts.
// First goes what has expired, then the lowest level, and within a level what was used longest ago. Levels from `pinnedLevel`
// on never go before they expire. Time comes from the caller's clock.
//
// Why a leaf comes first: a parent has at least the level of its child and is added after it, so the oldest node of the lowest
// level is a leaf. Lifetimes may break that order: an expired node that still has children waits in a list of its own until
// one of them is gone.

import { callable, checkTime, integer, number, optional, readOptions, withDefault } from '../../base/options.js';
import { enlarged } from '../../base/typed-arrays.js';
import type { EvictionContext, EvictionPolicy, EvictionPolicyFactory } from './eviction-policy.js';
import { NodeLists } from './node-lists.js';

/** Options of `priority`. */
export interface PriorityOptions {
  /** Texts of this level and higher are pinned: they leave the pool only when they expire. Default 256: none. */
  readonly pinnedLevel?: number;
  /**
   * How long after its last use a text of a level expires, in ms; Infinity: never. Asked once for each level. Needs `now`.
   * Default: nothing expires.
   */
  readonly lifetimeMs?: (level: number) => number;
  /** The clock, in ms; it never goes back. */
  readonly now?: () => number;
}

const levels = 256;

const spec = {
  pinnedLevel: withDefault(integer({ min: 0, max: levels }), levels),
  lifetimeMs: optional(callable<(level: number) => number>()),
  now: optional(callable<() => number>()),
};

/** An eviction policy: the lowest `priority` of `acquire` goes first, then what has expired, then the least recently used. */
export function priority(options?: PriorityOptions): EvictionPolicyFactory {
  const { pinnedLevel, lifetimeMs, now } = readOptions('priority', options, spec);
  if (lifetimeMs === undefined) return (context) => new Priority(context, pinnedLevel, undefined, () => 0);
  const clock = callable<() => number>()(now, { owner: 'priority', option: 'now' });
  const isLifetime = number(0);
  const lifetimes = Float64Array.from({ length: levels }, (_, level) => {
    const value = lifetimeMs(level);
    return value === Infinity ? value : isLifetime(value, { owner: 'priority', option: `lifetimeMs(${level})` });
  });
  return (context) => new Priority(context, pinnedLevel, lifetimes, () => checkTime(clock(), 'priority', 'now'));
}

/** Expired nodes: those that may go, and those that had children when they were looked at. Behind the lists of the levels. */
const expired = levels;
const waiting = levels + 1;

class Priority implements EvictionPolicy {
  readonly #nodes: EvictionContext['nodes'];
  readonly #pinnedLevel: number;
  readonly #lifetimesMs: Float64Array | undefined;
  readonly #now: () => number;
  readonly #lists = new NodeLists(levels + 2);
  /** Levels that were ever used, lowest first: the few that `victim` looks at. */
  readonly #levels: number[] = [];
  #usedMs = new Float64Array(0);
  /** Absent where no level is pinned: nothing is withheld then, and nothing looked at. */
  readonly withholds?: (node: number) => boolean;

  constructor({ nodes }: EvictionContext, pinnedLevel: number, lifetimesMs: Float64Array | undefined, now: () => number) {
    this.#nodes = nodes;
    this.#pinnedLevel = pinnedLevel;
    this.#lifetimesMs = lifetimesMs;
    this.#now = now;
    if (pinnedLevel < levels) this.withholds = (node) => this.#isPinned(node);
  }

  add(node: number): void {
    const level = this.#nodes.level[node]!;
    if (!this.#levels.includes(level)) this.#levels.splice(this.#levels.filter((lower) => lower < level).length, 0, level);
    this.#lists.add(node, level);
    this.#stamp(node, this.#now());
  }

  remove(node: number): void {
    if (this.#lists.remove(node) < 0) return;
    const parent = this.#nodes.parent[node]!;
    if (this.#lists.listOf(parent) !== waiting) return;
    this.#lists.remove(parent);
    this.#lists.add(parent, expired);
  }

  split(upper: number, lower: number): void {
    this.#lists.addAfter(upper, lower);
    this.#stamp(upper, this.#usedMs[lower]!);
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
    return -1;
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

  #isPinned(node: number): boolean {
    const level = this.#nodes.level[node]!;
    if (level < this.#pinnedLevel) return false;
    if (this.#lifetimesMs === undefined) return true;
    const list = this.#lists.listOf(node);
    if (list < 0) return this.#lifetimesMs[level]! > 0; // in use: its lifetime begins when it is added
    return list === level && this.#usedMs[node]! > this.#now() - this.#lifetimesMs[level]!;
  }

  #expire(lifetimesMs: Float64Array): void {
    const nowMs = this.#now();
    for (const level of this.#levels) {
      const limitMs = nowMs - lifetimesMs[level]!;
      for (let node = this.#lists.oldest(level); node >= 0 && this.#usedMs[node]! <= limitMs; node = this.#lists.oldest(level)) {
        this.#lists.remove(node);
        this.#lists.add(node, expired);
      }
    }
  }

  #stamp(node: number, ms: number): void {
    if (node >= this.#usedMs.length) this.#usedMs = enlarged(this.#usedMs, Math.max(64, node + 1, 2 * this.#usedMs.length));
    this.#usedMs[node] = ms;
  }
}
