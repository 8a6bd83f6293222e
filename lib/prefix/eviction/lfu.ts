// lfu: what was used least often goes first, with dynamic ageing (LFU-DA: Arlitt, Cherkasova, Dilley, Friedrich and Jin
// 1999; GreedyDual-Size-Frequency with rows of equal size and cost). A node ranks by its uses plus the age of the pool,
// which is the rank of what was evicted last: what was popular once and is not any more is overtaken. One list per
// rank, each oldest first, in a ring, because ranks lie in [age, age + highest count].
//
// Why a leaf comes first: a parent has at least the uses of its child and was added after it, at the same age or a
// later one, so its rank is not lower; and at the same rank it is newer.

import { integer, readOptions, withDefault } from '../../base/options.js';
import type { EvictionContext, EvictionPolicy, EvictionPolicyFactory } from './eviction-policy.js';
import { NodeLists } from './node-lists.js';

/** Options of `lfu`. */
export interface LeastFrequentlyUsedOptions {
  /**
   * Uses beyond this many count no more, 1 … 255. It bounds the time to find a victim, and how long a text that was
   * popular once can outlive its last use. Default 15, what the four-bit counters of TinyLFU hold.
   */
  readonly countedUses?: number;
}

const spec = { countedUses: withDefault(integer({ min: 1, max: 255 }), 15) };

/** An eviction policy: the least frequently used goes first, with counts that age. */
export function lfu(options?: LeastFrequentlyUsedOptions): EvictionPolicyFactory {
  const { countedUses } = readOptions('lfu', options, spec);
  return (context) => new LeastFrequentlyUsed(context, countedUses);
}

class LeastFrequentlyUsed implements EvictionPolicy {
  readonly #nodes: EvictionContext['nodes'];
  readonly #countedUses: number;
  /** The list of a rank is the rank modulo their number. */
  readonly #lists: NodeLists;
  #age = 0;

  constructor({ nodes }: EvictionContext, countedUses: number) {
    this.#nodes = nodes;
    this.#countedUses = countedUses;
    this.#lists = new NodeLists(countedUses + 1);
  }

  add(node: number): void {
    const rank = this.#age + Math.min(this.#nodes.uses[node]!, this.#countedUses);
    this.#lists.add(node, rank % this.#lists.lists);
  }

  remove(node: number): void {
    this.#lists.remove(node);
  }

  split(upper: number, lower: number): void {
    this.#lists.addAfter(upper, lower);
  }

  /** Looks at one list more than uses are counted, at most. */
  victim(): number {
    const { lists } = this.#lists;
    for (let rank = this.#age; rank < this.#age + lists; rank += 1) {
      const node = this.#lists.oldest(rank % lists);
      if (node < 0) continue;
      this.#age = rank;
      return node;
    }
    return -1;
  }

  victims(leaves: Int32Array): number {
    return this.#lists.leavesBeside(this.victim(), this.#nodes.firstChild, leaves);
  }
}
