// Explainer: says why a text is cached no further than it is. For an operator's questions and for logs, not for every
// request; and not for strangers: within one tenant it tells of texts under other salts.

import type { DomainRoots } from './domain-roots.js';
import { domainParts, type PrefixDomain, type PrefixDomainPart } from './domain.js';
import type { DropReason } from './dropped-rows.js';
import type { EvictionMemory } from './eviction/eviction-memory.js';
import type { PrefixHit } from './prefix-hit.js';
import type { PrefixTree, TreePlace } from './prefix-tree.js';

/**
 * Where the cached part of a text ends, after `tokens` tokens, and why. `complete`: all of it is cached · `evicted`: it
 * went on, and lost this at `atMs` (of the `now` given to the index) for `reason` · `other-domain`: more of it,
 * `otherTokens`, is cached in a domain of the same tenant that differs in `parts` · `differs`: cached texts go on
 * otherwise; one of them with `cachedToken` · `ends`: nothing that was cached went on from there.
 */
export type PrefixExplanation = { readonly tokens: number } & (
  | { readonly end: 'complete' }
  | { readonly end: 'evicted'; readonly atMs: number; readonly reason: DropReason }
  | { readonly end: 'other-domain'; readonly otherTokens: number; readonly parts: readonly PrefixDomainPart[] }
  | { readonly end: 'differs'; readonly askedToken: number; readonly cachedToken: number }
  | { readonly end: 'ends' }
);

/** Other domains that are searched at most. */
const searchedDomains = 64;

export interface ExplainerParts {
  readonly tree: PrefixTree;
  readonly roots: DomainRoots;
  readonly memory: EvictionMemory;
}

export class Explainer {
  readonly #parts: ExplainerParts;

  constructor(parts: ExplainerParts) {
    this.#parts = parts;
  }

  /** @param hit What is cached of the text. */
  explain(hit: PrefixHit, text: Int32Array): PrefixExplanation {
    const { tree, memory } = this.#parts;
    const { domain, node, tokens } = hit;
    if (tokens === text.length) return { tokens, end: 'complete' };
    const askedToken = text[tokens]!;
    const lost = memory.find(domain, node, tokens, askedToken);
    if (lost !== undefined) return { tokens, end: 'evicted', atMs: lost.atMs, reason: lost.reason };
    const other = this.#longestElsewhere(domain, text, tokens);
    if (other !== undefined) return { tokens, end: 'other-domain', ...other };
    const { to, firstChild, firstToken } = tree.nodes;
    if (node < 0) return { tokens, end: 'ends' };
    const isInside = tokens < to[node]!;
    if (!isInside && firstChild[node]! < 0) return { tokens, end: 'ends' };
    const cachedToken = isInside ? tree.tokenAt(node, tokens) : firstToken[firstChild[node]!]!;
    // Equal: a running sequence has the token, in no row that could be shared yet.
    return cachedToken === askedToken ? { tokens, end: 'ends' } : { tokens, end: 'differs', askedToken, cachedToken };
  }

  #longestElsewhere(domain: PrefixDomain, text: Int32Array, tokens: number):
    { otherTokens: number; parts: readonly PrefixDomainPart[] } | undefined {
    const { tree, roots } = this.#parts;
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
