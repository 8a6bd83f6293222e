// adaptive: goes by what is likely to be used again, learnt from the workload as it runs (ReuseHistory, ReuseRates).
// Nodes are in a list for each class of text, oldest first; the one that goes is worth least. Within a class worth may
// fall or rise with age, so the two ends of each list are compared and nothing else. Before anything is learnt it is
// LRU.
//
// Why a leaf: what uses a child uses its parent, so a parent is never worth less than its child in truth; where the
// estimates disagree, the end of a text below the node found goes instead.

import { enlarged } from '../../base/typed-arrays.js';
import type { EvictionContext, EvictionPolicy, EvictionPolicyFactory, ReleasedRequest } from './eviction-policy.js';
import { NodeLists } from './node-lists.js';
import { ReuseHistory } from './reuse-history.js';
import { ReuseRates, textClass, textClasses, turns, type Turn } from './reuse-rates.js';

/**
 * An eviction policy that learns which texts return, by their age, their uses and the latest requests that used them.
 * The default.
 */
export function adaptive(): EvictionPolicyFactory {
  return (context) => new Adaptive(context);
}

class Adaptive implements EvictionPolicy {
  readonly #context: EvictionContext;
  readonly #rates = new ReuseRates();
  /** Made when the first text is released, as it takes a MiB and more. */
  #history: ReuseHistory | undefined;
  /** One for each class. */
  readonly #lists = new NodeLists(textClasses);
  // By node.
  /** Uses of its text before the node was made, as far as the history remembers: it was evicted, and came back. */
  #earlierUses = new Float64Array(0);
  /** Turn of the request that brought it. */
  #turn = new Uint8Array(0);
  /** Class of the latest request that used it. */
  #request = new Uint8Array(0);
  /** By list, while `victims` looks: the two ends of what it has not looked at, and what the cheaper one is worth. */
  readonly #ends = {
    older: new Int32Array(textClasses), newer: new Int32Array(textClasses), value: new Float64Array(textClasses),
    isNewer: new Uint8Array(textClasses),
  };
  /** Tick of the latest release. */
  #now = 0;
  /** What `victim` or `victims` named last. */
  readonly #named = new Set<number>();
  #text = new Int32Array(0);

  constructor(context: EvictionContext) {
    this.#context = context;
  }

  /** In the middle of a release it ranks by what was known before: `observe` comes next. */
  add(node: number): void {
    const { uses, lastUse } = this.#context.nodes;
    this.#reserve(node);
    if (uses[node]! <= 1) this.#forget(node);
    this.#now = Math.max(this.#now, lastUse[node]!);
    this.#list(node);
  }

  remove(node: number): void {
    this.#lists.remove(node);
    if (this.#named.delete(node)) this.#forget(node); // its number may come back as another text
  }

  split(upper: number, lower: number): void {
    this.#reserve(upper);
    this.#inherit(upper, lower);
    this.#lists.addAfter(upper, lower);
  }

  observe(node: number, tokens: number, request: ReleasedRequest): void {
    if (this.#text.length < tokens) this.#text = new Int32Array(2 * tokens);
    this.#context.copyText(node, 0, tokens, this.#text, 0);
    const { from, uses, parent } = this.#context.nodes;
    let root = node;
    while (parent[root]! >= 0) root = parent[root]!;
    this.#history ??= new ReuseHistory(this.#rates, this.#context.hashSeed);
    const known = this.#history.note(root, this.#text, tokens, request);
    // the leaf first, so that it stays the oldest of them
    for (let above = node; above !== root; above = parent[above]!) {
      this.#reserve(above);
      if (uses[above]! <= 1) this.#turn[above] = known.turn;
      this.#request[above] = known.ofRequest;
      if (above === node && known.tokens > from[node]!) this.#earlierUses[node] = Math.max(0, known.uses - uses[node]!);
      if (this.#lists.remove(above) >= 0) this.#list(above);
    }
  }

  /** Looks at the two ends of the list of each class, however many nodes there are. */
  victim(): number {
    let worst = -1;
    let least = Infinity;
    for (let list = 0; list < this.#lists.lists; list += 1) {
      const oldest = this.#lists.oldest(list);
      if (oldest < 0) continue;
      const newest = this.#lists.newest(list);
      const oldestValue = this.#value(list, oldest);
      const newestValue = oldest === newest ? oldestValue : this.#value(list, newest);
      const value = Math.min(oldestValue, newestValue);
      if (value >= least) continue;
      least = value;
      worst = value === oldestValue ? oldest : newest;
    }
    const { firstChild } = this.#context.nodes;
    while (worst >= 0 && firstChild[worst]! >= 0) worst = firstChild[worst]!;
    this.#named.clear();
    this.#named.add(worst);
    return worst;
  }

  /**
   * Goes on from both ends of each list, as `victim` would if what it names were gone; looks at each list once, and
   * then at one a time.
   */
  victims(leaves: Int32Array): number {
    const first = this.victim();
    if (first < 0) return 0;
    leaves[0] = first;
    const ends = this.#ends;
    for (let list = 0; list < this.#lists.lists; list += 1) {
      ends.older[list] = this.#lists.oldest(list);
      ends.newer[list] = this.#lists.newest(list);
      this.#weigh(list);
    }
    let count = 1;
    const { firstChild } = this.#context.nodes;
    for (let looked = 0; count < leaves.length && looked < 4 * leaves.length; looked += 1) {
      let list = -1;
      let least = Infinity;
      for (let other = 0; other < this.#lists.lists; other += 1) {
        if (ends.value[other]! >= least) continue;
        least = ends.value[other]!;
        list = other;
      }
      if (list < 0) break;
      const node = this.#takeEnd(list);
      if (node === first || firstChild[node]! >= 0) continue;
      leaves[count] = node;
      this.#named.add(node);
      count += 1;
    }
    return count;
  }

  /** Notes what the cheaper end of what is left of a list is worth; Infinity: nothing is left. */
  #weigh(list: number): void {
    const ends = this.#ends;
    const older = ends.older[list]!;
    const newer = ends.newer[list]!;
    if (older < 0) {
      ends.value[list] = Infinity;
      return;
    }
    const olderValue = this.#value(list, older);
    const newerValue = older === newer ? olderValue : this.#value(list, newer);
    ends.isNewer[list] = newerValue < olderValue ? 1 : 0;
    ends.value[list] = Math.min(olderValue, newerValue);
  }

  #takeEnd(list: number): number {
    const ends = this.#ends;
    const older = ends.older[list]!;
    const newer = ends.newer[list]!;
    const isNewer = ends.isNewer[list] === 1;
    if (older === newer) ends.older[list] = -1;
    else if (isNewer) ends.newer[list] = this.#lists.olderThan(newer);
    else ends.older[list] = this.#lists.newerThan(older);
    this.#weigh(list);
    return isNewer ? newer : older;
  }

  #value(list: number, node: number): number {
    return this.#rates.value(list, this.#now + 1 - this.#context.nodes.lastUse[node]!);
  }

  #list(node: number): void {
    const uses = this.#context.nodes.uses[node]! + this.#earlierUses[node]!;
    this.#lists.add(node, textClass(uses, this.#turn[node] as Turn, this.#request[node]!));
  }

  #inherit(upper: number, lower: number): void {
    this.#earlierUses[upper] = this.#earlierUses[lower]!;
    this.#turn[upper] = this.#turn[lower]!;
    this.#request[upper] = this.#request[lower]!;
  }

  #forget(node: number): void {
    this.#earlierUses[node] = 0;
    this.#turn[node] = turns.first;
    this.#request[node] = 0;
  }

  #reserve(node: number): void {
    if (node < this.#turn.length) return;
    const length = Math.max(64, node + 1, 2 * this.#turn.length);
    this.#earlierUses = enlarged(this.#earlierUses, length);
    this.#turn = enlarged(this.#turn, length);
    this.#request = enlarged(this.#request, length);
  }
}
