// WithheldRows: the groups of rows that no running sequence needs and that cannot be evicted all the same, as the eviction policy
// withholds their text; in pages. Owns nothing: the index knows which those are. Costs nothing where it knows of none.

import type { Layout } from '../layout/layout.js';
import type { PrefixHit } from '../prefix/prefix-hit.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { RowRegistry } from './row-registry.js';

/** Last groups of slots in use with rows that these do not need: by number, the rows that are needed, and how many users say so. */
export type LongTails = ReadonlyMap<number, { readonly rows: number; readonly users: number }>;

export class WithheldRows {
  readonly #index: PrefixIndex;
  readonly #registry: RowRegistry;
  readonly #layout: Layout;
  readonly #longTails: () => LongTails;

  constructor(index: PrefixIndex, registry: RowRegistry, layout: Layout, longTails: () => LongTails) {
    this.#index = index;
    this.#registry = registry;
    this.#layout = layout;
    this.#longTails = longTails;
  }

  /** Whether there may be some. */
  get isAny(): boolean {
    return this.#index.hasWithheldRows;
  }

  /** Whether the group is one of them, in use or not. */
  has(id: number): boolean {
    let isWithheld = false;
    this.#index.forWithheldRows((row) => isWithheld ||= row === id);
    return isWithheld;
  }

  /** All their pages that no running sequence needs. */
  idlePages(tails?: LongTails): number {
    if (!this.isAny) return 0;
    const known = tails ?? this.#longTails();
    let pages = 0;
    this.#index.forWithheldRows((id) => pages += idlePagesOf(this.#registry, id, known));
    return pages;
  }

  /**
   * Those of the groups `ids` of a hit and of the one behind them, within the first `rows` rows of a slot: a sequence that shares them, or
   * copies from them, takes no page from anything else for them.
   */
  idlePagesIn(ids: Int32Array, { wholeRows, tailRow }: PrefixHit, rows: number): number {
    const registry = this.#registry;
    const withheld = new Set<number>();
    this.#index.forWithheldRows((id) => withheld.add(id));
    const tails = this.#longTails();
    let pages = 0;
    for (let group = 0; group < wholeRows; group += 1) {
      if (withheld.has(ids[group]!)) pages += idlePagesOf(registry, ids[group]!, tails);
    }
    if (!withheld.has(tailRow) || registry.usersOf(tailRow) > 0) return pages;
    const rowsBefore = registry.groupOf(tailRow) * this.#layout.groupRows;
    return pages + registry.pagesOf(tailRow, Math.min(registry.rowsOf(tailRow), rows - rowsBefore));
  }
}

/** Pages of a group that no running sequence needs. */
function idlePagesOf(registry: RowRegistry, id: number, tails: LongTails): number {
  const users = registry.usersOf(id);
  if (users === 0) return registry.pagesOf(id);
  const tail = tails.get(id);
  return tail?.users === users ? registry.pagesOf(id) - registry.pagesOf(id, tail.rows) : 0;
}
