// CoverModel: of which texts SideWorld's cache can have K and V ('') and rows of each side tensor, because some sequence committed them;
// and whether what `lookup` and `explain` say of a text can be.

import type { KvCache, PromptOptions } from 'virtual-kv';

export class CoverModel {
  readonly #cache: KvCache;
  /** Whether nothing is ever evicted: then what is found is known to the token. */
  readonly #isLossless: boolean;
  /** By tensor: hashes of the prefixes that were cached. */
  readonly #covered = new Map<string, Set<number>>();

  constructor(cache: KvCache, isLossless: boolean) {
    this.#cache = cache;
    this.#isLossless = isLossless;
  }

  /** Prefixes with these hashes are cached with all their rows of a tensor. */
  note(tensor: string, hashes: readonly number[]): void {
    let covered = this.#covered.get(tensor);
    if (covered === undefined) this.#covered.set(tensor, covered = new Set());
    for (const hash of hashes) covered.add(hash);
  }

  /** Throws unless of a text, whose prefixes have these hashes, so much is found for each choice of tensors as can be, and `explain` agrees. */
  check(text: readonly number[], hashes: readonly number[], domain: PromptOptions): void {
    const { prefixes } = this.#cache;
    const names = this.#cache.sideTensors.map(({ name }) => name);
    for (const needs of [[], ...names.map((name) => [name]), names]) {
      const asked = { tokens: text, needs, ...domain };
      const { cachedTokens } = prefixes.lookup(asked);
      const most = Math.min(text.length - 1, ...['', ...needs].map((name) => prefixesIn(this.#covered.get(name), hashes)));
      const found = `${cachedTokens} tokens are found with [${needs.join()}]`;
      if (cachedTokens > most) throw new Error(`${found}, and ${most} were ever there`);
      if (this.#isLossless && cachedTokens < most) throw new Error(`${found} of ${most} that are there`);
      const explained = prefixes.explain(asked);
      if (Math.min(explained.tokens, text.length - 1) !== cachedTokens) throw new Error(`${found}, and ${explained.tokens} explained`);
      if (explained.reason !== 'side-evicted' && explained.reason !== 'side-never-written') continue;
      const { sideTensor, keyValueTokens } = explained;
      const ofIt = prefixes.lookup({ ...asked, needs: [sideTensor] }).cachedTokens;
      if (!needs.includes(sideTensor) || ofIt !== cachedTokens) throw new Error(`${found}, and ${sideTensor} is said to have no more, which has ${ofIt}`);
      if (keyValueTokens <= explained.tokens) throw new Error(`${found}, and ${sideTensor} is said to lack what K and V lack too`);
      if (this.#isLossless && explained.reason === 'side-evicted') throw new Error(`${found}, and rows of ${sideTensor} are said to be evicted`);
    }
  }
}

/** How many of a text's first prefixes are in the set. */
function prefixesIn(covered: ReadonlySet<number> | undefined, hashes: readonly number[]): number {
  const missing = hashes.findIndex((hash) => covered?.has(hash) !== true);
  return missing < 0 ? hashes.length : missing;
}
