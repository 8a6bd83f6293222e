// RowMirror: what a store beside K and V would know of a cache's rows from the events alone. It checks that each comes once and in
// order, and, after every operation, that the slots which map a number map the same physical pages there, from its first to its last
// day.

import type { RowFollower } from '#internal/cache/row-registry.js';
import type { KvCache } from 'virtual-kv';
import type { PhysicalPages } from './physical-pages.js';

interface Mirrored {
  readonly row: number;
  readonly slots: Set<number>;
  /** Its physical pages, as far as a slot mapped them at the end of an operation. */
  pages: readonly (bigint | undefined)[];
}

export class RowMirror implements RowFollower {
  readonly #cache: KvCache;
  readonly #memory: PhysicalPages;
  readonly #numbers = new Map<number, Mirrored>();
  /** Slots that were told of a copy, and from which number. */
  copies = 0;

  constructor(cache: KvCache, memory: PhysicalPages) {
    this.#cache = cache;
    this.#memory = memory;
    (cache as unknown as { followRows(follower: RowFollower): void }).followRows(this);
  }

  get size(): number {
    return this.#numbers.size;
  }

  registered(id: number, slot: number, row: number): void {
    if (this.#numbers.has(id)) throw new Error(`number ${id} is registered for slot ${slot}, and was not dropped`);
    this.#numbers.set(id, { row, slots: new Set([slot]), pages: [] });
  }

  shared(id: number, slot: number, row: number): void {
    const known = this.#get(id, row);
    if (known.slots.has(slot)) throw new Error(`slot ${slot} gets number ${id} twice`);
    known.slots.add(slot);
  }

  copied(id: number, slot: number, row: number, tokens: number): void {
    this.#get(id, row);
    if (this.#cache.layout.rowsFor(tokens) > row + 1) throw new Error(`slot ${slot} gets ${tokens} tokens of number ${id}, which is row ${row}`);
    this.copies += 1;
  }

  detached(id: number, slot: number, row: number): void {
    if (!this.#get(id, row).slots.delete(slot)) throw new Error(`slot ${slot} loses number ${id}, which it does not have`);
  }

  dropped(id: number): void {
    const known = this.#numbers.get(id);
    if (known === undefined || known.slots.size > 0) throw new Error(`number ${id} is dropped, which ${known?.slots.size ?? 'none of the'} slots have`);
    this.#numbers.delete(id);
  }

  /** The slots that map a number, and which row of a slot it is. */
  placeOf(id: number): { readonly slots: ReadonlySet<number>; readonly row: number } {
    const known = this.#numbers.get(id);
    if (known === undefined) throw new Error(`number ${id} is not known`);
    return known;
  }

  /** After an operation, of which the pages have been heard. */
  check(): void {
    for (const [id, known] of this.#numbers) {
      for (const slot of known.slots) {
        const pages: (bigint | undefined)[] = [];
        this.#memory.visit(this.#memory.addressesOfSlot(slot), known.row, known.row + 1, (page) => pages.push(page));
        pages.forEach((page, index) => {
          const before = known.pages[index];
          if (page !== undefined && before !== undefined && page !== before && known.pages.length === pages.length) {
            throw new Error(`slot ${slot} maps page ${page} at place ${index} of number ${id}, which is page ${before}`);
          }
        });
        if (pages.every((page) => page !== undefined)) known.pages = pages;
      }
    }
  }

  #get(id: number, row: number): Mirrored {
    const known = this.#numbers.get(id);
    if (known?.row !== row) throw new Error(`number ${id} is told at row ${row}, and was registered at ${known?.row ?? 'none'}`);
    return known;
  }
}
