// FoundPages: the pages of one side tensor that a new sequence's text begins with, from the moment they were found
// until a slot has them. All are shared, also the one in which the text ends: the slot that writes there first gets a
// copy. They are not evicted meanwhile.

import { isKvError } from '../base/errors.js';
import type { NativeCache } from '../device/native.js';
import type { SideCover } from './side-cover.js';
import type { SidePages } from './side-pages.js';

export interface FoundPagesParts {
  readonly cover: SideCover;
  readonly pages: SidePages;
  readonly isQuarantined: (slot: number) => boolean;
  /** Throws KV_OUT_OF_PAGES. */
  readonly makeRoom: (pages: number) => void;
}

/** How a slot gets the pages. */
export interface FoundPlan {
  readonly tenant: bigint;
  /** Of the pages, those that the slot maps already (`sharedPages`). */
  readonly shared: number;
  /** Pages that are set aside for the slot, counted from its first. */
  readonly earmarked: number;
  readonly tokens: number;
}

export class FoundPages {
  readonly #native: NativeCache;
  readonly #parts: FoundPagesParts;
  readonly #isReadable: (slot: number) => boolean;
  #ids = new Int32Array(64);
  #count = 0;

  constructor(native: NativeCache, parts: FoundPagesParts) {
    this.#native = native;
    this.#parts = parts;
    this.#isReadable = (slot) => !parts.isQuarantined(slot);
  }

  get count(): number {
    return this.#count;
  }

  /**
   * Finds those of the first `tokens` tokens of the text that ends in `node`, all of which are covered; `count`: how
   * many they touch.
   */
  find(node: number, tokens: number, count: number): void {
    if (this.#ids.length < count) this.#ids = new Int32Array(2 * count);
    this.#parts.cover.find(node, tokens, this.#ids);
    this.#count = count;
    this.#parts.pages.pin(this.#ids, count);
  }

  forget(): void {
    this.#parts.pages.unpin(this.#ids, this.#count);
    this.#count = 0;
  }

  /** How many of them the idle slot maps already, from the first on. */
  sharedPages(slot: number): number {
    return this.#parts.pages.agree(slot, this.#ids, this.#count);
  }

  /**
   * Maps them behind the slot's first `shared`. Where mappings are short it copies them, into pages that map side by
   * side. Throws what the driver says; then the slot has what it had, or pages of its own behind that.
   */
  mapInto(slot: number, { tenant, shared, earmarked, tokens }: FoundPlan): void {
    const { pages, makeRoom } = this.#parts;
    const count = this.#count;
    try {
      this.#native.admit(slot, tenant, this.#ids, shared, count, 0, earmarked, -1, -1, 0, undefined);
      pages.join(slot, this.#ids, count);
    } catch (error) {
      if (!isKvError(error, 'KV_OUT_OF_MAPPINGS') || shared === count) throw error;
      makeRoom(count - shared);
      this.#native.admit(slot, tenant, this.#ids, shared, shared, count, earmarked, -1, -1, 0, undefined);
      pages.nameNew(slot, count);
      for (let index = shared; index < count; index += 1) {
        const page = this.#ids[index]!;
        this.#native.copy(slot, index, pages.mapperOf(page, this.#isReadable), page, tokens);
      }
    }
  }
}
