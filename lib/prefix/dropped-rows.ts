// DroppedRows: the rows that a ledger stopped holding, each with its reason, until its caller has heard of them.

import { enlarged } from '../base/typed-arrays.js';

/**
 * `evicted`: room was asked for · `bound`: the pool had more than `poolRows` · `quota`: the tenant had more than its
 * share · `replaced`: a row of the same tokens, a fuller one or a running sequence's, took its place · `truncated`: its
 * sequence took the tokens back · `cleared`: by `clear` · `dropped`: by `drop`.
 */
export type DropReason = 'evicted' | 'bound' | 'quota' | 'replaced' | 'truncated' | 'cleared' | 'dropped';

export const dropReasons: readonly DropReason[] =
  ['evicted', 'bound', 'quota', 'replaced', 'truncated', 'cleared', 'dropped'];

/**
 * The rows that the index stopped holding since the caller last cleared this, once per hold, each with its reason.
 * Every call of the index that can drop rows fills it. A row may have been taken again since it was dropped: it is free
 * when no sequence maps it and `isHolding` denies it.
 */
export class DroppedRows {
  #rows = new Int32Array(64);
  #reasons = new Uint8Array(64);
  /** How many there are. Read only. */
  count = 0;

  row(index: number): number {
    return this.#rows[index]!;
  }

  reason(index: number): DropReason {
    return dropReasons[this.#reasons[index]!]!;
  }

  clear(): void {
    this.count = 0;
  }

  /** @internal */
  add(row: number, reason: number): void {
    if (this.count === this.#rows.length) {
      this.#rows = enlarged(this.#rows, 2 * this.count);
      this.#reasons = enlarged(this.#reasons, 2 * this.count);
    }
    this.#rows[this.count] = row;
    this.#reasons[this.count] = reason;
    this.count += 1;
  }
}

/** Number of a reason, for the hot path. @internal */
export function reasonNumber(reason: DropReason): number {
  return dropReasons.indexOf(reason);
}
