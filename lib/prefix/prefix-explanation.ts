// PrefixExplanation: why a text is cached no further than it is, and the memory of evictions that this needs. For an
// operator's questions and for logs, not for every request, nor for clients: within one tenant it tells of texts under
// other salts.

import { mix32 } from '../base/random.js';
import type { DomainRoots } from './domain-roots.js';
import { domainParts, type PrefixDomain, type PrefixDomainPart } from './domain.js';
import type { PrefixHit } from './prefix-hit.js';
import type { PrefixTree, TextListener, TreePlace } from './prefix-tree.js';
import { dropReasons, type DropReason } from './dropped-rows.js';

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

/**
 * Where text was cut off lately, when and why. A place is the end of a node and the token that came next; what is known
 * of it goes with the node, and the oldest entries go when there are too many. It keeps one token of each text that it
 * remembers, and no more.
 */
export class EvictionMemory implements TextListener {
  readonly #options: EvictionMemoryOptions;
  /** By node and token. A root goes with its last text, so places at a root are kept by domain. The oldest is first. */
  readonly #entries = new Map<number | string, Entry>();

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
