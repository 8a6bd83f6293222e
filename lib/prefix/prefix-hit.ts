// PrefixHit: how much of a text is cached, and where. `PrefixIndex.match` descends once and returns one; `open` takes
// it and compares nothing again. An index has one, which the next match writes over, and it is valid until the index
// changes: `open` throws for an older one. Owned by the index: read it. Looking changes nothing, not even the order of
// eviction.

import { createError } from '../base/errors.js';
import { mix32 } from '../base/random.js';
import { domainParts, type PrefixDomain, type PrefixDomainPart, sharedDomain } from './domain.js';
import type { OpenPaths } from './open-paths.js';
import type { DomainRoots, PrefixTree, TextListener, TreePlace } from './prefix-tree.js';
import { type DropReason, dropReasons, type RowLedger } from './row-ledger.js';

export class PrefixHit {
  domain: PrefixDomain = sharedDomain;
  /** Tokens from the start of the text that are cached, at most the limit. */
  tokens = 0;
  /** Rows that these fill to the last byte; they can be shared as they are. */
  wholeRows = 0;
  /** The row that holds the tokens after those, to copy from; it may hold other tokens behind them. -1: none remain. */
  tailRow = -1;
  /**
   * Whether the tail row holds nothing behind the hit: its text ends there, and a sequence that has it may write on in
   * it.
   */
  isTailWhole = false;
  /**
   * Tokens that will be cached once a running sequence has computed what it announced, at most the limit; 0: no more
   * than now.
   */
  pendingTokens = 0;
  /** What was kept at the end of the whole text (`keepValue`), when the hit is all of it; otherwise undefined. */
  value: unknown = undefined;
  /** The node in which it ends: the root when nothing is found, -1 when the domain has no text. @internal */
  node = -1;
  /** The node on which the tail row hangs, or -1. @internal */
  tailNode = -1;
  readonly #tree: PrefixTree;
  readonly #ledger: RowLedger;
  readonly #roots: DomainRoots;
  readonly #paths: OpenPaths;
  readonly #values: PrefixValues;
  #text: Int32Array = new Int32Array(0);
  /** State of the index in which it was found. */
  #version = 0;

  /** @internal */
  constructor(tree: PrefixTree, ledger: RowLedger, roots: DomainRoots, paths: OpenPaths, values: PrefixValues) {
    this.#tree = tree;
    this.#ledger = ledger;
    this.#roots = roots;
    this.#paths = paths;
    this.#values = values;
  }

  /**
   * Finds `text`, `limit` tokens at most; undefined: all but its last token, and that too where a value is kept behind
   * it. @internal
   */
  find(domain: PrefixDomain, text: Int32Array, limit: number | undefined, version: number): void {
    const most = Math.min(limit ?? text.length, text.length);
    this.domain = domain;
    this.#text = text;
    this.#version = version;
    this.node = this.#roots.find(domain);
    this.tokens = 0;
    if (this.node >= 0) this.#tree.descend(this.node, text, most, this);
    this.#goBackToRows();
    this.value = this.tokens === text.length ? this.#values.at(this.node, this.tokens) : undefined;
    if (limit === undefined && this.value === undefined) this.limitTo(Math.max(0, text.length - 1));
    else this.#describe(most);
  }

  /** Shortens it to `tokens` tokens at most, where its user cannot take all of it. Compares nothing again. */
  limitTo(tokens: number): void {
    if (tokens < this.tokens) {
      this.tokens = tokens;
      this.value = undefined;
      this.#goBackToRows();
    }
    this.#describe(tokens);
  }

  /** Writes the ids of the whole rows into `table`. */
  fill(table: Int32Array): void {
    if (this.tokens > 0) this.#ledger.fill(this.node, this.tokens, table);
  }

  /**
   * Throws KV_INTERNAL when the index has changed since: the node may be another by now. A hit of no tokens needs none.
   * @internal
   */
  check(version: number): void {
    if (this.tokens === 0 || this.#version === version) return;
    const problem = 'a match of the prefix index is used after the index changed';
    throw createError('KV_INTERNAL', { problem, what: this.#version, howMany: version });
  }

  /**
   * Goes back from `tokens`, up to which the text agrees, to where a sequence can go on: the one place where a hit
   * becomes shorter than the text that is cached. Today it ends where the last of its tokens lie in a row that the
   * index holds; those of a running sequence need not. A model whose sequences can go on only from some points has its
   * rule here too.
   */
  #goBackToRows(): void {
    const ledger = this.#ledger;
    const { from, parent } = this.#tree.nodes;
    for (;;) {
      while (this.tokens <= from[this.node]! && parent[this.node]! >= 0) this.node = parent[this.node]!;
      if (ledger.locate(this.node, this.tokens, this)) return;
      // Other texts may go on from where this node starts, in rows that the index holds.
      this.tokens = Math.max(ledger.tokensIn(this.wholeRows), from[this.node]!);
    }
  }

  /** What else there is to say of the hit, where no more than `limit` tokens were asked for. */
  #describe(limit: number): void {
    this.isTailWhole = this.tailNode >= 0 && this.tailNode === this.node
      && this.#tree.nodes.to[this.node] === this.tokens;
    this.pendingTokens = this.node >= 0 && this.#paths.announcing > 0 ? this.#announcedTokens(limit) : 0;
  }

  #announcedTokens(limit: number): number {
    const { parent, ending } = this.#tree.nodes;
    const text = this.#text;
    let most = this.tokens;
    for (let above = this.node; above >= 0; above = parent[above]!) {
      for (let path = ending[above]; path !== undefined; path = path.next) {
        const { announced } = path;
        if (announced === undefined || path.length > this.tokens) continue;
        const end = Math.min(limit, announced.length);
        if (end <= most) continue;
        if (announced[most] !== text[most]) continue; // the cheapest proof that it is no longer than the best
        let at = path.length;
        while (at < end && announced[at] === text[at]) at += 1;
        most = Math.max(most, at);
      }
    }
    return most > this.tokens ? most : 0;
  }
}

// PrefixValues: what callers keep at the exact end of a cached text, last logits for example, so that a prompt that is
// cached as a whole needs no forward pass. A value goes with any token of its text, and the one used longest ago when
// there are too many. It never looks into a value and never copies one.

interface KeptValue {
  node: number;
  /** Tokens of the text; the end lies in the node. */
  readonly at: number;
  readonly value: unknown;
}

export class PrefixValues implements TextListener {
  readonly #tree: PrefixTree;
  readonly #limit: number;
  /** The one used longest ago is first. */
  readonly #entries = new Set<KeptValue>();
  /** Those whose end lies in a node; most nodes have none. */
  readonly #byNode = new Map<number, KeptValue[]>();

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

  #find(node: number, at: number): KeptValue | undefined {
    return this.#byNode.get(node)?.find((entry) => entry.at === at);
  }

  #place(entry: KeptValue): void {
    this.#byNode.set(entry.node, [...this.#byNode.get(entry.node) ?? [], entry]);
  }

  #remove(entry: KeptValue): void {
    const rest = this.#byNode.get(entry.node)!.filter((other) => other !== entry);
    if (rest.length > 0) this.#byNode.set(entry.node, rest);
    else this.#byNode.delete(entry.node);
  }

  #move(entry: KeptValue, node: number): void {
    this.#remove(entry);
    entry.node = node;
    this.#place(entry);
  }

  #drop(entry: KeptValue): void {
    this.#remove(entry);
    this.#entries.delete(entry);
  }
}

// PrefixExplanation: why a text is cached no further than it is, and the memory of evictions that this needs. For an
// operator's questions and for logs, not for every request, nor for clients: within one tenant it tells of texts under
// other salts.

/**
 * Where the cached part of a text ends, after `tokens` tokens, and why. `complete`: all of it is cached · `evicted`: it
 * went on, and lost this at `atMs` (of the `now` given to the index) for `dropReason` · `other-domain`: more of it,
 * `otherTokens`, is cached in a domain of the same tenant that differs in `parts` · `differs`: cached texts go on
 * otherwise; one of them with `cachedToken` · `never-cached`: no text that was cached went on from there.
 */
export type PrefixExplanation = { readonly tokens: number } & (
  | { readonly reason: 'complete' }
  | { readonly reason: 'evicted'; readonly atMs: number; readonly dropReason: DropReason }
  | { readonly reason: 'other-domain'; readonly otherTokens: number; readonly parts: readonly PrefixDomainPart[] }
  | { readonly reason: 'differs'; readonly askedToken: number; readonly cachedToken: number }
  | { readonly reason: 'never-cached' }
);

/** Other domains that are searched at most. */
const searchedDomains = 64;

export class Explainer {
  readonly #tree: PrefixTree;
  readonly #roots: DomainRoots;
  readonly #memory: EvictionMemory;

  constructor(tree: PrefixTree, roots: DomainRoots, memory: EvictionMemory) {
    this.#tree = tree;
    this.#roots = roots;
    this.#memory = memory;
  }

  /** @param hit What is cached of the text. */
  explain(hit: PrefixHit, text: Int32Array): PrefixExplanation {
    const tree = this.#tree;
    const { domain, node, tokens } = hit;
    if (tokens === text.length) return { tokens, reason: 'complete' };
    const askedToken = text[tokens]!;
    const lost = this.#memory.find(domain, node, tokens, askedToken);
    if (lost !== undefined) return { tokens, reason: 'evicted', atMs: lost.atMs, dropReason: lost.dropReason };
    const other = this.#longestElsewhere(domain, text, tokens);
    if (other !== undefined) return { tokens, reason: 'other-domain', ...other };
    const { to, firstChild, firstToken } = tree.nodes;
    if (node < 0) return { tokens, reason: 'never-cached' };
    const isInside = tokens < to[node]!;
    if (!isInside && firstChild[node]! < 0) return { tokens, reason: 'never-cached' };
    const cachedToken = isInside ? tree.tokenAt(node, tokens) : firstToken[firstChild[node]!]!;
    // Equal: a running sequence has the token, in no row that could be shared yet.
    return cachedToken === askedToken ? { tokens, reason: 'never-cached' }
      : { tokens, reason: 'differs', askedToken, cachedToken };
  }

  #longestElsewhere(domain: PrefixDomain, text: Int32Array, tokens: number):
    { otherTokens: number; parts: readonly PrefixDomainPart[] } | undefined {
    const tree = this.#tree;
    const roots = this.#roots;
    const place: TreePlace = { node: -1, tokens: 0 };
    let otherTokens = tokens;
    let found: PrefixDomain | undefined;
    let searched = 0;
    for (const [root, other] of roots.entries()) {
      if (other.tenant !== domain.tenant || other.key === domain.key) continue;
      searched += 1;
      if (searched > searchedDomains) break;
      tree.descend(root, text, text.length, place);
      if (place.tokens <= otherTokens) continue;
      otherTokens = place.tokens;
      found = other;
    }
    if (found === undefined) return undefined;
    const nearest = found;
    return { otherTokens, parts: domainParts.filter((part) => nearest[part] !== domain[part]) };
  }
}

interface RememberedCut {
  readonly atMs: number;
  readonly dropReason: DropReason;
}

interface LostPlace extends RememberedCut {
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

/**
 * Where text was cut off lately, when and why. A place is the end of a node and the token that came next; what is known
 * of it goes with the node, and the oldest entries go when there are too many. It keeps one token of each text that it
 * remembers, and no more.
 */
export class EvictionMemory implements TextListener {
  readonly #options: EvictionMemoryOptions;
  /** By node and token. A root goes with its last text, so places at a root are kept by domain. The oldest is first. */
  readonly #entries = new Map<number | string, LostPlace>();

  constructor(options: EvictionMemoryOptions) {
    this.#options = options;
  }

  /**
   * What was cut off behind the first `at` tokens, which end in `node` (-1: the domain has no text), starting with
   * `token`.
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
      node: place, generation: nodes.generation[place]!, at: from, token, atMs: now(), dropReason: dropReasons[reason]!,
    });
    if (this.#entries.size <= places) return;
    const [oldest] = this.#entries.keys();
    this.#entries.delete(oldest!);
  }

  /** Entries compare node and token again: beyond 2²¹ nodes, keys may collide, and one of the two is forgotten. */
  #nodeKey(node: number, token: number): number {
    return node * 2 ** 32 + (mix32(token, this.#options.hashSeed) >>> 0);
  }
}

function rootKey(domain: PrefixDomain, token: number): string {
  return `${token} ${domain.key}`;
}
