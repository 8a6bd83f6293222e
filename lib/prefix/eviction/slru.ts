// slru: segmented LRU (Karedla, Love and Wherry 1994). What has been used once waits on probation, what has been used
// again is protected; probation goes first. A flood of texts that never return then passes through probation and costs
// the protected nothing. When rows have to go and the protected have more than their share of the pool, their oldest go
// back on probation as its newest.
//
// Why a leaf comes first: a parent has at least the uses of its child and is added after it, so it is in the same list
// and newer, or protected while the child is not; and of the protected the child is sent back before its parent.

import { number, readOptions, withDefault } from '../../base/options.js';
import { enlarged } from '../../base/typed-arrays.js';
import type { EvictionContext, EvictionPolicy, EvictionPolicyFactory } from './eviction-policy.js';
import { NodeLists } from './node-lists.js';

/** Options of `slru`. */
export interface SegmentedLruOptions {
  /**
   * Share of the pool's tokens that may be protected, 0 … 1. Default 0.5: with more, texts on their way to their second
   * use have too little room (docs/eviction-policies.md).
   */
  readonly protectedShare?: number;
}

const spec = { protectedShare: withDefault(number(0, 1), 0.5) };

/** An eviction policy: segmented LRU, in which what was used only once goes first. */
export function slru(options?: SegmentedLruOptions): EvictionPolicyFactory {
  const { protectedShare } = readOptions('slru', options, spec);
  return (context) => new SegmentedLru(context, protectedShare);
}

const probation = 0;
const secured = 1;

class SegmentedLru implements EvictionPolicy {
  readonly #nodes: EvictionContext['nodes'];
  readonly #share: number;
  readonly #lists = new NodeLists(2);
  /** Tokens of a node as they were counted when it came; what is cut off it later counts until it leaves. */
  #tokens = new Int32Array(0);
  readonly #listTokens = new Float64Array(2);

  constructor({ nodes }: EvictionContext, share: number) {
    this.#nodes = nodes;
    this.#share = share;
  }

  add(node: number): void {
    const list = this.#nodes.uses[node]! > 1 ? secured : probation;
    this.#lists.add(node, list);
    this.#count(node, list);
  }

  remove(node: number): void {
    const list = this.#lists.remove(node);
    if (list >= 0) this.#listTokens[list]! -= this.#tokens[node]!;
  }

  split(upper: number, lower: number): void {
    const list = this.#lists.listOf(lower);
    this.#lists.addAfter(upper, lower);
    this.#listTokens[list]! -= this.#tokens[lower]!;
    this.#count(lower, list);
    this.#count(upper, list);
  }

  /** Sends back only now: while nothing has to go, the protected cannot have too much. */
  victim(): number {
    this.#sendBack();
    const first = this.#lists.oldest(probation);
    return first >= 0 ? first : this.#lists.oldest(secured);
  }

  victims(leaves: Int32Array): number {
    return this.#lists.leavesBeside(this.victim(), this.#nodes.firstChild, leaves);
  }

  #count(node: number, list: number): void {
    if (node >= this.#tokens.length) {
      this.#tokens = enlarged(this.#tokens, Math.max(64, node + 1, 2 * this.#tokens.length));
    }
    this.#tokens[node] = this.#nodes.to[node]! - this.#nodes.from[node]!;
    this.#listTokens[list]! += this.#tokens[node]!;
  }

  #sendBack(): void {
    const tokens = this.#listTokens;
    while (tokens[secured]! > this.#share * (tokens[probation]! + tokens[secured]!)) {
      const node = this.#lists.oldest(secured);
      this.#lists.remove(node);
      this.#lists.add(node, probation);
      tokens[secured]! -= this.#tokens[node]!;
      tokens[probation]! += this.#tokens[node]!;
    }
  }
}
