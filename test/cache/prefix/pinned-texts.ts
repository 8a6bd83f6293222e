// PinnedTexts: what a cache must keep of texts that its eviction policy pins: that they are there, and in which physical pages, counted
// from the tree of all that is cached without asking the policy.

import type { IndexedTexts } from '#internal/prefix/prefix-index.js';
import type { KvCache } from 'virtual-kv';
import { ExactRows } from './exact-rows.js';
import type { SharedRows } from './shared-rows.js';

/** Texts of this priority are pinned. */
export const pinnedLevel = 9;

interface PinnedRow {
  readonly id: number;
  readonly domain: string;
  /** The text up to the last token that begins in the group. */
  readonly text: Int32Array;
}

interface LinkedPath {
  readonly length: number;
  readonly next: LinkedPath | undefined;
}

export class PinnedTexts {
  readonly #cache: KvCache;
  readonly #rowsOfSlots: SharedRows;
  #texts: { readonly text: readonly number[]; readonly domain: string }[] = [];

  constructor(cache: KvCache, rowsOfSlots: SharedRows) {
    this.#cache = cache;
    this.#rowsOfSlots = rowsOfSlots;
  }

  /** A sequence with this text was released. */
  add(text: readonly number[], domain: string): void {
    this.#texts.push({ text, domain });
  }

  /** A sequence takes back its text from `tokens` on: what it wrote it may take, also where a fork with the same text was released since. */
  truncate(text: readonly number[], tokens: number, domain: string): void {
    const taken = text.slice(0, tokens + 1);
    this.#texts = this.#texts.filter((other) => other.domain !== domain || taken.some((token, at) => other.text[at] !== token));
  }

  clear(): void {
    this.#texts = [];
  }

  /**
   * Throws unless all of them are there up to the last group that ends with one of their tokens; what is behind may lie in a group with
   * text that continues it, and goes with that.
   */
  check(): void {
    const arithmetic = new ExactRows(this.#cache.layout);
    for (const { text, domain } of this.#texts) {
      const { cachedTokens } = this.#cache.prefixes.lookup({ tokens: [...text, 0], ...(domain === '' ? {} : { tenant: domain }) });
      if (cachedTokens >= arithmetic.exactTokens(text.length)) continue;
      throw new Error(`${cachedTokens} tokens are left of ${text.length} pinned ones`);
    }
  }

  /**
   * Pages of the rows that are kept for pinned text: by handle where some slot maps them, otherwise by a name. `prompt`: only of rows
   * that lie in its tokens [from, to).
   */
  pages(prompt?: { readonly tokens: readonly number[]; readonly domain: string; readonly from: number; readonly to: number }): Set<bigint | string> {
    const { layout } = this.#cache;
    const pages = new Set<bigint | string>();
    for (const { id, domain, text } of this.#rows()) {
      if (prompt !== undefined) {
        const { tokens, from, to } = prompt;
        if (domain !== prompt.domain || text.length <= from || text.length > to || text.some((token, at) => token !== tokens[at])) continue;
      }
      const mapped = this.#rowsOfSlots.pagesOf(id);
      for (let page = 0; page < layout.pagesPerRow; page += 1) {
        pages.add(mapped.find((of) => of[page] !== undefined)?.[page] ?? `${id}: ${page}`);
      }
    }
    return pages;
  }

  /** Rows in which text of the pinned level lies that no open path has all of. */
  #rows(): PinnedRow[] {
    const { pageBytes, commonTokenBytes } = this.#cache.layout;
    const { tree, ledger, roots } = (this.#cache.prefixes as unknown as { readonly index: { readonly texts: IndexedTexts } }).index.texts;
    const { nodes } = tree;
    /** By node: the token up to which some open path has its text. */
    const had = new Map<number, number>();
    for (let node = 0; node < nodes.end; node += 1) {
      if (!nodes.isUsed(node)) continue;
      for (let path = nodes.ending[node] as LinkedPath | undefined; path !== undefined; path = path.next) {
        for (let above = node; above >= 0; above = nodes.parent[above]!) had.set(above, Math.max(had.get(above) ?? 0, path.length));
      }
    }
    const rows: PinnedRow[] = [];
    for (let node = 0; node < nodes.end; node += 1) {
      if (!nodes.isUsed(node) || tree.isRoot(node) || nodes.level[node]! < pinnedLevel) continue;
      let root = node;
      while (!tree.isRoot(root)) root = nodes.parent[root]!;
      ledger.forOwnRows(node, (id, index) => {
        const tokens = Math.min(nodes.to[node]!, Math.ceil(((index + 1) * pageBytes) / commonTokenBytes));
        if (tokens <= (had.get(node) ?? 0)) return;
        const text = new Int32Array(tokens);
        tree.copyPath(node, 0, tokens, text, 0);
        rows.push({ id, domain: roots.domainOf(root).tenant ?? '', text });
      });
    }
    return rows;
  }
}
