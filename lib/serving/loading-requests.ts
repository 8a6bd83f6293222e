// LoadingRequests: requests that wait for text of their prompts to come from tiers below the device, while others
// compute. Each begins to wait for a slot when what was worth loading is there, which is held for it until it has one,
// and stops loading when it ends before. Loads wait for room, so that what came for one request does not go for what
// comes for another. Without tiers there are none.

import type { KvCache } from '../kv-cache/kv-cache.js';
import type { Generation } from './generation.js';

/** Requests whose text comes, or is held, at most: those that are admitted next. */
const mostAhead = 3;

interface Loading {
  readonly abort: AbortController;
  readonly onOver: () => void;
  /** Pages that its text takes on the device; 0: it has not begun. */
  pages: number;
}

export class LoadingRequests {
  readonly #cache: KvCache;
  /** Those that came first are first. */
  readonly #loading = new Map<Generation, Loading>();
  /** Of these, those that wait for room. */
  readonly #waiting = new Set<Generation>();
  /** Those that wait for a slot, whose text is held. */
  readonly #held = new Set<Generation>();

  constructor(cache: KvCache) {
    this.#cache = cache;
  }

  get count(): number {
    return this.#loading.size;
  }

  /**
   * Loads what tiers have of a request's prompt, if they have some that it can use; calls `onOver` when that is over,
   * whatever came of it, unless the request was dropped. Returns whether there is anything to wait for.
   */
  start(generation: Generation, onOver: () => void): boolean {
    const { caching } = generation.request;
    const { tiers } = this.#cache.prefixes;
    if (tiers === undefined || (caching !== 'read-write' && caching !== 'read') || !this.#canUse(generation)) {
      return false;
    }
    if (!tiers.mayHaveMore && this.#cache.prefixes.lookup({ ...promptOf(generation), needs: [] }).demotedTokens === 0) {
      return false;
    }
    this.#loading.set(generation, { abort: new AbortController(), onOver, pages: 0 });
    this.#waiting.add(generation);
    this.beginNext();
    return true;
  }

  /** Begins to load for those that there is room for, and for one where none loads or is held. */
  beginNext(): void {
    for (const generation of this.#waiting) {
      for (const held of this.#held) {
        if (held.hasEnded) held.held?.end();
        if (held.hasEnded || held.held === undefined) this.#held.delete(held);
      }
      if (!this.#hasRoom(generation)) return;
      this.#waiting.delete(generation);
      this.#begin(generation);
    }
  }

  /** The request has ended. */
  drop(generation: Generation): void {
    const loading = this.#loading.get(generation);
    this.#loading.delete(generation);
    this.#waiting.delete(generation);
    this.#held.delete(generation);
    generation.held?.end();
    generation.held = undefined;
    loading?.abort.abort();
  }

  /** What tiers brought for waiting requests may be evicted, as the memory is lent: it comes again, or is computed. */
  letGo(): void {
    for (const generation of this.#held) {
      generation.held?.end();
      generation.held = undefined;
    }
    this.#held.clear();
  }

  /** All have ended. */
  dropAll(): void {
    for (const generation of [...this.#loading.keys(), ...this.#held]) this.drop(generation);
  }

  /** Tiers have K and V alone: a request that needs side tensors computes what the device has no rows of. */
  #canUse({ request: { needs, selection } }: Generation): boolean {
    return selection !== undefined || (needs ?? this.#cache.sideTensors).length === 0;
  }

  #hasRoom(generation: Generation): boolean {
    const under = this.#loading.size - this.#waiting.size;
    if (under + this.#held.size === 0 || generation.request.selection !== undefined) return true;
    if (under + this.#held.size >= mostAhead) return false;
    let pages = this.#pagesOf(generation);
    for (const loading of this.#loading.values()) pages += loading.pages;
    return pages <= this.#cache.pool.obtainablePages();
  }

  #pagesOf({ textTokens }: Generation): number {
    const { layout } = this.#cache;
    return layout.pagesFor(layout.rowsFor(textTokens));
  }

  #begin(generation: Generation): void {
    const { priority, selection } = generation.request;
    const { prefixes } = this.#cache;
    const loading = this.#loading.get(generation)!;
    loading.pages = this.#pagesOf(generation);
    const prompt = promptOf(generation);
    const end = (): void => {
      if (!this.#loading.delete(generation)) return;
      this.beginNext();
      loading.onOver();
    };
    prefixes.promote({ ...prompt, priority, selection, signal: loading.abort.signal }).then((promotion) => {
      generation.promotion = promotion;
      generation.selected = promotion.selected;
      if (promotion.promotedTokens > 0 && this.#loading.has(generation)) {
        generation.held = prefixes.hold(prompt);
        this.#held.add(generation);
      }
    }).then(end, end); // a failure costs the hit, and admission meets its cause
  }
}

function promptOf({ prompt: { tokens, items, tenant, salt, adapter } }: Generation) {
  return { tokens, items, tenant, salt, adapter };
}
