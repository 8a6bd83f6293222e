// WithheldRows: the groups of rows that no running sequence needs and that cannot be evicted all the same, as the
// eviction policy withholds their text; in pages. Owns nothing: the index knows which those are. Costs nothing where it
// knows of none.

import type { Layout } from '../layout/layout.js';
import type { PrefixHit } from '../prefix/prefix-hit.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { CountedRows, LongTails } from './row-numbers.js';

export class WithheldRows {
  readonly #index: PrefixIndex;
  readonly #numbers: CountedRows;
  readonly #layout: Layout;
  readonly #longTails: () => LongTails;

  constructor(index: PrefixIndex, numbers: CountedRows, layout: Layout, longTails: () => LongTails) {
    this.#index = index;
    this.#numbers = numbers;
    this.#layout = layout;
    this.#longTails = longTails;
  }

  /** Whether there may be some. */
  get isAny(): boolean {
    return this.#index.withheld.isAny;
  }

  /** Whether the policy may give some of it by itself. */
  get isPassing(): boolean {
    return this.#index.withheld.isPassing;
  }

  /** Whether the group is one of them, in use or not. */
  has(id: number): boolean {
    let isWithheld = false;
    this.#index.withheld.forRows((row) => isWithheld ||= row === id);
    return isWithheld;
  }

  /** All their pages that no running sequence needs. */
  idlePages(tails?: LongTails): number {
    if (!this.isAny) return 0;
    const known = tails ?? this.#longTails();
    let pages = 0;
    this.#index.withheld.forRows((id) => pages += idlePagesOf(this.#numbers, id, known));
    return pages;
  }

  /**
   * Those of the groups `ids` of a hit and of the one behind them, within the first `rows` rows of a slot: a sequence
   * that shares them, or copies from them, takes no page from anything else for them.
   */
  idlePagesIn(ids: Int32Array, { wholeRows, tailRow }: PrefixHit, rows: number): number {
    const numbers = this.#numbers;
    const withheld = new Set<number>();
    this.#index.withheld.forRows((id) => withheld.add(id));
    const tails = this.#longTails();
    let pages = 0;
    for (let group = 0; group < wholeRows; group += 1) {
      if (withheld.has(ids[group]!)) pages += idlePagesOf(numbers, ids[group]!, tails);
    }
    if (!withheld.has(tailRow) || numbers.users[tailRow]! > 0) return pages;
    const rowsBefore = numbers.group[tailRow]! * this.#layout.groupRows;
    return pages + numbers.pagesOf(tailRow, Math.min(numbers.rows[tailRow]!, rows - rowsBefore));
  }
}

/** Pages of a group that no running sequence needs. */
function idlePagesOf(numbers: CountedRows, id: number, tails: LongTails): number {
  const users = numbers.users[id]!;
  if (users === 0) return numbers.pagesOf(id);
  const tail = tails.get(id);
  return tail?.users === users ? numbers.pagesOf(id) - numbers.pagesOf(id, tail.rows) : 0;
}
