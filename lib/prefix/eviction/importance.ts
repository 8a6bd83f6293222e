// importance: the extent of text that is worth least goes first: the number of its important tokens × the uses of its
// text. Important are those that selections chose, or what a function of the user's says; where neither says anything
// all are, so that what counts is how many tokens a row gives to how many requests. Text of which selections have read
// is ranked by all of its uses, those from tiers too, and comes to the device by the same score (IMPRESS, FAST'25).
// Ranks age as those of lfu do: what was popular once and is not any more is overtaken.
//
// Why a leaf: nodes with children are set aside when they come up, and return to the heap when a child goes.

import { Heap } from '../../base/heap.js';
import { callable, integer, optional, readOptions, withDefault } from '../../base/options.js';
import type {
  CachedExtent, EvictionContext, EvictionPolicy, EvictionPolicyFactory, OfferedText,
} from './eviction-policy.js';

/** Options of `importance`. */
export interface ImportanceEvictionOptions {
  /** Tokens of an extent, what is valued and evicted as one, 1 … 65,536: about the tokens of a row. Default 64. */
  readonly extentTokens?: number | undefined;
  /**
   * How many tokens of an extent are important, 0 or more: asked when the text's last request has ended, and when the
   * text loses its end. A hint. Default: those that requests with a selection have chosen, on average; all of them
   * where none has.
   */
  readonly importantTokens?: ((extent: CachedExtent) => number) | undefined;
}

const spec = {
  extentTokens: withDefault(integer({ min: 1, max: 65_536 }), 64),
  importantTokens: optional(callable<(extent: CachedExtent) => number>()),
};

/**
 * An eviction policy: what has the fewest important tokens × uses goes first. Throws KV_UNKNOWN_OPTION and
 * KV_INVALID_OPTION.
 */
export function importance(options?: ImportanceEvictionOptions): EvictionPolicyFactory {
  const { extentTokens, importantTokens } = readOptions('importance', options, spec);
  return (context) => new Importance(context, extentTokens, importantTokens);
}

/** A node of the heap. */
interface RankedNode {
  readonly node: number;
  readonly score: number;
  /** When its text was used last: of equal scores the earliest goes first. */
  readonly lastUse: number;
  /** Its end when it was ranked. */
  readonly to: number;
  /** In the heap. */
  index: number;
}

class Importance implements EvictionPolicy {
  readonly #context: EvictionContext;
  readonly #extentTokens: number;
  readonly #importantTokens: ((extent: CachedExtent) => number) | undefined;
  /** Left out with a function of the user's, which knows nothing of text in tiers. */
  readonly isWorthRoom: ((text: OfferedText) => boolean) | undefined;
  readonly #heap = new Heap<RankedNode>(
    (a, b) => a.score - b.score || a.lastUse - b.lastUse || a.node - b.node,
    (ranked, index) => { ranked.index = index; });
  readonly #ranked = new Map<number, RankedNode>();
  /** Nodes of the pool that are not in the heap: they had children when they came up. */
  readonly #parents = new Set<number>();
  #age = 0;

  constructor(
    context: EvictionContext, extentTokens: number, importantTokens: ((extent: CachedExtent) => number) | undefined,
  ) {
    this.#context = context;
    this.#extentTokens = extentTokens;
    this.#importantTokens = importantTokens;
    this.isWorthRoom = importantTokens === undefined ? (text) => this.#isAboveLowest(text) : undefined;
  }

  add(node: number): void {
    const { to, lastUse } = this.#context.nodes;
    const end = to[node]!;
    const made = {
      node, score: this.#age + this.#worthOf(node, this.floorTokens(node), end), lastUse: lastUse[node]!, to: end,
      index: 0,
    };
    this.#take(node);
    this.#ranked.set(node, made);
    this.#heap.push(made);
  }

  remove(node: number): void {
    this.#take(node);
    this.#parents.delete(node);
    const above = this.#context.nodes.parent[node]!;
    if (this.#parents.delete(above)) this.add(above);
  }

  split(upper: number, lower: number): void {
    this.#parents.add(upper);
    if (this.#ranked.has(lower)) this.add(lower); // it may be less than an extent now
  }

  victim(): number {
    const node = this.#lowest();
    if (node === undefined) return -1;
    this.#age = this.#ranked.get(node)!.score;
    return node;
  }

  /** Where its last extent begins. */
  floorTokens(node: number): number {
    const { from, to } = this.#context.nodes;
    const tokens = to[node]! - from[node]!;
    return from[node]! + Math.max(0, Math.ceil(tokens / this.#extentTokens) - 1) * this.#extentTokens;
  }

  /**
   * Whether an extent of the text is worth more, on average, than what goes first. Age says nothing here: of equals,
   * and of what is old, none goes for it.
   */
  #isAboveLowest({ tokens, chosenTokens, uses }: OfferedText): boolean {
    const node = this.#lowest();
    const extents = Math.max(1, tokens / this.#extentTokens);
    return node !== undefined
      && chosenTokens / extents * uses > this.#worthOf(node, this.floorTokens(node), this.#context.nodes.to[node]!);
  }

  /** The leaf that scores least. */
  #lowest(): number | undefined {
    const { firstChild, to } = this.#context.nodes;
    for (let first = this.#heap.first; first !== undefined; first = this.#heap.first) {
      const { node } = first;
      if (firstChild[node]! >= 0) {
        this.#take(node);
        this.#parents.add(node);
      } else if (first.to !== to[node]) {
        this.add(node); // its end has gone since
      } else {
        return node;
      }
    }
    return undefined;
  }

  #take(node: number): void {
    const ranked = this.#ranked.get(node);
    if (ranked === undefined) return;
    this.#ranked.delete(node);
    this.#heap.remove(ranked.index);
  }

  /** Important tokens in [from, to) × uses. */
  #worthOf(node: number, from: number, to: number): number {
    const onDevice = this.#context.nodes.uses[node]!;
    if (this.#importantTokens === undefined) {
      const selected = this.#context.selected(node, from, to);
      return selected === undefined ? (to - from) * onDevice
        : selected.chosenTokens * Math.max(selected.uses, onDevice);
    }
    const tokens = this.#importantTokens({ from, to, copyText: () => this.#textOf(node, to) });
    return (tokens >= 0 ? Math.min(tokens, to - from) : 0) * onDevice;
  }

  #textOf(node: number, to: number): Int32Array {
    const text = new Int32Array(to);
    this.#context.copyText(node, 0, to, text, 0);
    return text;
  }
}
