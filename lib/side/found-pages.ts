// FoundPages: the pages of one side tensor that a new sequence's text begins with, from the moment they were found until a slot has them:
// whole ones to share, and the page in which the text ends, to copy or to go on in. They are not evicted meanwhile.

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
  readonly promised: number;
  readonly tokens: number;
}

export class FoundPages {
  readonly #native: NativeCache;
  readonly #parts: FoundPagesParts;
  readonly #isReadable: (slot: number) => boolean;
  readonly #found = { wholePages: 0, tailPage: -1 };
  #ids = new Int32Array(64);

  constructor(native: NativeCache, parts: FoundPagesParts) {
    this.#native = native;
    this.#parts = parts;
    this.#isReadable = (slot) => !parts.isQuarantined(slot);
  }

  /** Pages that the tokens fill to the last byte. */
  get wholePages(): number {
    return this.#found.wholePages;
  }

  /** Finds those of the first `tokens` tokens of the text that ends in `node`, all of which are covered; `pages`: how many they touch. */
  find(node: number, tokens: number, pages: number): void {
    if (this.#ids.length < pages) this.#ids = new Int32Array(2 * pages);
    this.#parts.cover.find(node, tokens, this.#ids, this.#found);
    this.#forAll((page) => {
      this.#parts.pages.pin(page);
    });
  }

  forget(): void {
    this.#forAll((page) => {
      this.#parts.pages.unpin(page);
    });
    this.#found.wholePages = 0;
    this.#found.tailPage = -1;
  }

  /** How many of them the idle slot maps already, from the first on; the page in which the text ends also, where the slot may go on in it. */
  sharedPages(slot: number): number {
    const { pages } = this.#parts;
    const { wholePages, tailPage } = this.#found;
    const shared = pages.agree(slot, this.#ids, wholePages);
    if (shared < wholePages || tailPage < 0 || !pages.isMapping(slot, tailPage)) return shared;
    return pages.usersOf(tailPage) === 1 ? shared + 1 : shared; // only `find` pins it
  }

  /**
   * Maps them behind the slot's first `shared`, and copies the end of the tokens. Where mappings are short it copies all, into pages that
   * map side by side. Throws what the driver says; then the slot has what it had, or pages of its own behind that.
   */
  mapInto(slot: number, { tenant, shared, promised, tokens }: FoundPlan): void {
    const { pages, makeRoom } = this.#parts;
    const { wholePages, tailPage } = this.#found;
    const isCopied = tailPage >= 0 && shared <= wholePages;
    const end = Math.max(shared, wholePages);
    const rows = isCopied ? wholePages + 1 : end;
    const source = isCopied ? pages.mapperOf(tailPage, this.#isReadable) : -1;
    const [id, copied] = isCopied ? [tailPage, tokens] : [-1, 0];
    try {
      this.#native.admit(slot, tenant, this.#ids, shared, end, rows, promised, source, id, copied, undefined);
      pages.join(slot, this.#ids, end);
    } catch (error) {
      if (!isKvError(error, 'KV_OUT_OF_MAPPINGS') || shared >= wholePages) throw error;
      makeRoom(rows - shared);
      this.#native.admit(slot, tenant, this.#ids, shared, shared, rows, promised, -1, -1, 0, undefined);
      pages.nameNew(slot, rows);
      for (let index = shared; index < rows; index += 1) {
        const page = index < wholePages ? this.#ids[index]! : tailPage;
        this.#native.copy(slot, index, pages.mapperOf(page, this.#isReadable), page, tokens);
      }
    }
  }

  #forAll(visit: (page: number) => void): void {
    const { wholePages, tailPage } = this.#found;
    for (let index = 0; index < wholePages; index += 1) visit(this.#ids[index]!);
    if (tailPage >= 0) visit(tailPage);
  }
}
