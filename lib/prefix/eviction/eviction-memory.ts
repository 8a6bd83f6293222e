// EvictionMemory: where text was cut off lately, when and why, so that a miss can be explained. A place is the end of a
// node and the token that came next; what is known of it goes with the node, and the oldest entries go when there are too
// many. It keeps one token of each text that it remembers, and no more.

import { mix32 } from '../../base/random.js';
import type { DomainRoots } from '../domain-roots.js';
import { dropReasons, type DropReason } from '../dropped-rows.js';
import type { PrefixDomain } from '../domain.js';
import type { PrefixTree } from '../prefix-tree.js';
import type { TextListener } from '../text-listener.js';

export interface RememberedCut {
  readonly atMs: number;
  readonly reason: DropReason;
}

interface Entry extends RememberedCut {
  readonly node: number;
  readonly generation: number;
  /** Tokens before the place, and the first that was lost. */
  readonly at: number;
  readonly token: number;
}

export interface EvictionMemoryOptions {
  readonly tree: PrefixTree;
  readonly roots: DomainRoots;
  readonly now: () => number;
  /** Places that are remembered at most. */
  readonly places: number;
  /** Mixed into the numbers by which places are found, so that clients cannot choose those. */
  readonly hashSeed: number;
}

export class EvictionMemory implements TextListener {
  readonly #options: EvictionMemoryOptions;
  /** By node and token. A root goes with its last text, so places at a root are kept by domain. The oldest is first. */
  readonly #entries = new Map<number | string, Entry>();

  constructor(options: EvictionMemoryOptions) {
    this.#options = options;
  }

  /**
   * What was cut off behind the first `at` tokens, which end in `node` (-1: the domain has no text), starting with `token`.
   */
  find(domain: PrefixDomain, node: number, at: number, token: number): RememberedCut | undefined {
    if (at === 0) return this.#entries.get(rootKey(domain, token));
    const entry = this.#entries.get(this.#nodeKey(node, token));
    if (entry === undefined || entry.node !== node || entry.token !== token || entry.at !== at) return undefined;
    return entry.generation === this.#options.tree.nodes.generation[node] ? entry : undefined;
  }

  cut(node: number, from: number, _to: number, reason: number): void {
    const { tree, roots, now, places } = this.#options;
    const { nodes } = tree;
    const isGone = from === nodes.from[node];
    const place = isGone ? nodes.parent[node]! : node;
    const token = isGone ? nodes.firstToken[node]! : tree.tokenAt(node, from);
    const key = from === 0 ? rootKey(roots.domainOf(place), token) : this.#nodeKey(place, token);
    this.#entries.delete(key);
    this.#entries.set(key, {
      node: place, generation: nodes.generation[place]!, at: from, token, atMs: now(), reason: dropReasons[reason]!,
    });
    if (this.#entries.size <= places) return;
    const [oldest] = this.#entries.keys();
    this.#entries.delete(oldest!);
  }

  // What is known of a place stays with the node that ends there; a place that is inside a node from now on is forgotten.
  added(): void { /* it is never asked about a place where its token is cached */ }
  split(): void { /* the lower one keeps its number and its end */ }
  joined(): void { /* the upper one's number gets another generation */ }

  /** Entries compare node and token again: beyond 2²¹ nodes, keys may collide, and one of the two is forgotten. */
  #nodeKey(node: number, token: number): number {
    return node * 2 ** 32 + (mix32(token, this.#options.hashSeed) >>> 0);
  }
}

function rootKey(domain: PrefixDomain, token: number): string {
  return `${token} ${domain.key}`;
}
