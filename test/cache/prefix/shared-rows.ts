// SharedRows: what a cache says of its numbered rows, held against the pages of a simulated device: slots that map the same number map
// the same physical pages there.

import type { RowRegistry } from '#internal/cache/row-registry.js';
import type { KvCache } from 'virtual-kv';
import type { PhysicalPages } from './physical-pages.js';

export class SharedRows {
  readonly #cache: KvCache;
  readonly #memory: PhysicalPages;
  readonly #registry: RowRegistry;

  constructor(cache: KvCache, memory: PhysicalPages) {
    this.#cache = cache;
    this.#memory = memory;
    this.#registry = (cache as unknown as { readonly rows: RowRegistry }).rows;
  }

  /** The pages of a number, once for each slot that maps it. */
  pagesOf(id: number): (bigint | undefined)[][] {
    const row = this.#registry.numbers.row[id]!;
    return this.#registry.slotsOf(id).map((slot) => this.#pagesIn(slot, row));
  }

  /** After an operation, of which the pages have been heard. */
  check(): void {
    const known = new Map<number, { readonly slot: number; readonly row: number; readonly pages: (bigint | undefined)[] }>();
    for (let slot = 0; slot < this.#cache.layout.slots; slot += 1) {
      for (let row = 0; row < this.#registry.namedRows(slot); row += 1) {
        const id = this.#registry.idsOf(slot)[row]!;
        const pages = this.#pagesIn(slot, row);
        const other = known.get(id) ?? { slot, row, pages };
        known.set(id, other);
        if (other.row !== row) throw new Error(`number ${id} is row ${other.row} of slot ${other.slot} and row ${row} of slot ${slot}`);
        if (pages.includes(undefined) || pages.join() !== other.pages.join()) {
          throw new Error(`slots ${other.slot} and ${slot} map pages [${other.pages}] and [${pages}] for number ${id}`);
        }
      }
    }
  }

  #pagesIn(slot: number, row: number): (bigint | undefined)[] {
    const pages: (bigint | undefined)[] = [];
    this.#memory.visit(this.#memory.addressesOfSlot(slot), row, row + 1, (page) => pages.push(page));
    return pages;
  }
}
