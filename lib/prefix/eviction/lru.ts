// lru: what was used longest ago goes first, and of one text the end first. One list of nodes; since a path is added
// from its leaf up, the oldest node is always a leaf.

import type { EvictionPolicy, EvictionPolicyFactory, NodeView } from './eviction-policy.js';
import { NodeLists } from './node-lists.js';

/** An eviction policy: the least recently used goes first. */
export function lru(): EvictionPolicyFactory {
  return ({ nodes }) => new LeastRecentlyUsed(nodes);
}

export class LeastRecentlyUsed implements EvictionPolicy {
  readonly #nodes: Pick<NodeView, 'firstChild'>;
  readonly #list = new NodeLists(1);

  constructor(nodes: Pick<NodeView, 'firstChild'>) {
    this.#nodes = nodes;
  }

  add(node: number): void {
    this.#list.add(node, 0);
  }

  remove(node: number): void {
    this.#list.remove(node);
  }

  split(upper: number, lower: number): void {
    this.#list.addAfter(upper, lower);
  }

  victim(): number {
    return this.#list.oldest(0);
  }

  victims(leaves: Int32Array): number {
    return this.#list.leavesBeside(this.victim(), this.#nodes.firstChild, leaves);
  }
}
