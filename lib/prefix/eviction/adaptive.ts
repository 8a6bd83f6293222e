// adaptive: goes by what is likely to be used again, learnt from the workload as it runs (ReuseHistory, ReuseRates). Nodes are
// in a list for each class of text, oldest first; the one that goes is worth least. Within a class worth may fall or rise with
// age, so the two ends of each list are compared and nothing else. Before anything is learnt it is LRU.
//
// Why a leaf: what uses a child uses its parent, so a parent is never worth less than its child in truth; where the estimates
// disagree, the end of a text below the node found goes instead.

import { enlarged } from '../../base/enlarged.js';
import type { EvictionContext, EvictionPolicy, EvictionPolicyFactory } from './eviction-policy.js';
import { NodeLists } from './node-lists.js';
import { ReuseHistory, ReuseRates, textClass, textClasses } from './reuse-history.js';

/** An eviction policy that learns which texts return, by their age, their uses and the length of their prompts. The default. */
export function adaptive(): EvictionPolicyFactory {
  return (context) => new Adaptive(context);
}

class Adaptive implements EvictionPolicy {
  readonly #context: EvictionContext;
  readonly #rates = new ReuseRates();
  readonly #history: ReuseHistory;
  /** One for each class. */
  readonly #lists = new NodeLists(textClasses);
  // By node.
  /** Uses of its text before the node was made, as far as the history remembers: it was evicted, and came back. */
  #earlierUses = new Float64Array(0);
  /** Tokens of the prompt that brought it. */
  #tokens = new Int32Array(0);
  /** Tick of the latest release. */
  #now = 0;
  #victim = -1;
  #text = new Int32Array(0);

  constructor(context: EvictionContext) {
    this.#context = context;
    this.#history = new ReuseHistory(this.#rates, context.hashSeed);
  }

  add(node: number): void {
    const { uses, lastUse, parent, to } = this.#context.nodes;
    const above = parent[node]!;
    this.#reserve(Math.max(node, above));
    if (uses[node]! <= 1) {
      this.#earlierUses[node] = 0;
      this.#tokens[node] = to[node]!;
    }
    this.#now = Math.max(this.#now, lastUse[node]!);
    const isFirst = parent[above]! < 0; // above is a root
    const usesBefore = isFirst ? 0 : Math.max(0, uses[above]! - 1 + this.#earlierUses[above]!);
    const ofClass = textClass({ uses: uses[node]! + this.#earlierUses[node]!, usesBefore, tokens: this.#tokens[node]! });
    this.#lists.add(node, ofClass);
  }

  remove(node: number): void {
    this.#lists.remove(node);
    if (node === this.#victim) this.#earlierUses[node] = 0; // its number may come back as another text
  }

  split(upper: number, lower: number): void {
    this.#reserve(upper);
    this.#inherit(upper, lower);
    this.#lists.addAfter(upper, lower);
  }

  observe(node: number, tokens: number): void {
    if (this.#text.length < tokens) this.#text = new Int32Array(2 * tokens);
    this.#context.copyText(node, 0, tokens, this.#text, 0);
    const { from, uses, parent } = this.#context.nodes;
    let root = node;
    while (parent[root]! >= 0) root = parent[root]!;
    const end = this.#history.note(root, this.#text, tokens);
    if (end.tokens <= from[node]! || this.#lists.remove(node) < 0) return;
    this.#earlierUses[node] = Math.max(0, end.uses - uses[node]!);
    this.#lists.add(node, end.ofClass);
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
    this.#victim = worst;
    return worst;
  }

  #value(list: number, node: number): number {
    return this.#rates.value(list, this.#now + 1 - this.#context.nodes.lastUse[node]!);
  }

  #inherit(upper: number, lower: number): void {
    this.#earlierUses[upper] = this.#earlierUses[lower]!;
    this.#tokens[upper] = this.#tokens[lower]!;
  }

  #reserve(node: number): void {
    if (node < this.#tokens.length) return;
    const length = Math.max(64, node + 1, 2 * this.#tokens.length);
    this.#earlierUses = enlarged(this.#earlierUses, length);
    this.#tokens = enlarged(this.#tokens, length);
  }
}
