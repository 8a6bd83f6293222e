// LoadingRequests: requests that wait for text of their prompts to come from tiers below the device, while others compute. Each begins to
// wait for a slot when what was worth loading is there, and stops loading when it ends before. Without tiers there are none.

import type { KvCache } from '../cache/kv-cache.js';
import type { Generation } from './generation.js';

export class LoadingRequests {
  readonly #cache: KvCache;
  readonly #loading = new Map<Generation, AbortController>();

  constructor(cache: KvCache) {
    this.#cache = cache;
  }

  get count(): number {
    return this.#loading.size;
  }

  /**
   * Loads what tiers have of a request's prompt, if they have some; calls `onOver` when that is over, whatever came of it, unless the
   * request was dropped. Returns whether there is anything to wait for.
   */
  start(generation: Generation, onOver: () => void): boolean {
    const { caching, priority, selection } = generation.request;
    const { tiers } = this.#cache.prefixes;
    if (tiers === undefined || (caching !== 'read-write' && caching !== 'read')) return false;
    const { tokens, items, tenant, salt, adapter } = generation.prompt;
    const prompt = { tokens, items, tenant, salt, adapter };
    if (!tiers.mayHaveMore && this.#cache.prefixes.lookup(prompt).demotedTokens === 0) return false;
    const abort = new AbortController();
    this.#loading.set(generation, abort);
    const end = (): void => {
      if (this.#loading.delete(generation)) onOver();
    };
    this.#cache.prefixes.promote({ ...prompt, priority, selection, signal: abort.signal }).then((promotion) => {
      generation.promotion = promotion;
      generation.selected = promotion.selected;
      end();
    }, end); // a failure costs the hit, and admission meets its cause
    return true;
  }

  /** The request has ended. */
  drop(generation: Generation): void {
    const abort = this.#loading.get(generation);
    this.#loading.delete(generation);
    abort?.abort();
  }

  /** All have ended. */
  dropAll(): void {
    for (const generation of [...this.#loading.keys()]) this.drop(generation);
  }
}
