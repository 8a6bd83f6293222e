// PrefixValues: what callers keep at the exact end of a cached text, last logits for example, so that a prompt that is
// cached as a whole needs no forward pass. A value goes with any token of its text, and the one used longest ago when
// there are too many. It never looks into a value and never copies one.

import type { PrefixTree, TextListener } from './prefix-tree.js';

interface Entry {
  node: number;
  /** Tokens of the text; the end lies in the node. */
  readonly at: number;
  readonly value: unknown;
}

export class PrefixValues implements TextListener {
  readonly #tree: PrefixTree;
  readonly #limit: number;
  /** The one used longest ago is first. */
  readonly #entries = new Set<Entry>();
  /** Those whose end lies in a node; most nodes have none. */
  readonly #byNode = new Map<number, Entry[]>();

  /** @param limit Values at most; 0: none is kept. */
  constructor(tree: PrefixTree, limit: number) {
    this.#tree = tree;
    this.#limit = limit;
  }

  /**
   * Keeps a value at the end of the text of `at` tokens that ends in `node`, in place of the one there. False: none is
   * kept.
   */
  keep(node: number, at: number, value: unknown): boolean {
    if (this.#limit === 0) return false;
    const before = this.#find(node, at);
    if (before !== undefined) this.#drop(before);
    const entry = { node, at, value };
    this.#entries.add(entry);
    this.#place(entry);
    const [oldest] = this.#entries;
    if (this.#entries.size > this.#limit) this.#drop(oldest!);
    return true;
  }

  /** The value there; undefined: none. */
  at(node: number, at: number): unknown {
    return this.#entries.size === 0 ? undefined : this.#find(node, at)?.value;
  }

  /** The value there is the most recently used from now on. */
  use(node: number, at: number): void {
    const entry = this.#find(node, at);
    if (entry === undefined) return;
    this.#entries.delete(entry);
    this.#entries.add(entry);
  }

  cut(node: number, from: number): void {
    for (const entry of this.#byNode.get(node) ?? []) if (entry.at > from) this.#drop(entry);
  }

  split(upper: number, lower: number): void {
    const at = this.#tree.nodes.to[upper]!;
    for (const entry of this.#byNode.get(lower) ?? []) if (entry.at <= at) this.#move(entry, upper);
  }

  joined(upper: number, lower: number): void {
    for (const entry of this.#byNode.get(upper) ?? []) this.#move(entry, lower);
  }

  #find(node: number, at: number): Entry | undefined {
    return this.#byNode.get(node)?.find((entry) => entry.at === at);
  }

  #place(entry: Entry): void {
    this.#byNode.set(entry.node, [...this.#byNode.get(entry.node) ?? [], entry]);
  }

  #remove(entry: Entry): void {
    const rest = this.#byNode.get(entry.node)!.filter((other) => other !== entry);
    if (rest.length > 0) this.#byNode.set(entry.node, rest);
    else this.#byNode.delete(entry.node);
  }

  #move(entry: Entry, node: number): void {
    this.#remove(entry);
    entry.node = node;
    this.#place(entry);
  }

  #drop(entry: Entry): void {
    this.#remove(entry);
    this.#entries.delete(entry);
  }
}
