// Duplicates: cached rows whose tokens a running sequence has in rows of its own as well, because it computed what was there
// already: it did not read, or found its own answer cached. Its path keeps the cached ones from being evicted and needs neither
// them nor what lies behind its tokens in the same node. Where memory is short, its own rows are cached in their place: nothing
// is lost by that, while evicting would lose some text.

import type { OpenPaths } from './open-paths.js';
import type { PathWriter } from './path-writer.js';
import type { RowLedger } from './row-ledger.js';

export interface DuplicatesParts {
  readonly ledger: RowLedger;
  readonly paths: OpenPaths;
  readonly writer: PathWriter;
}

/** Drops, as `replaced`, the rows that `isSpare` says no running sequence uses and some open path has too. */
export function replaceDuplicates({ ledger, paths, writer }: DuplicatesParts, isSpare: (row: number) => boolean): void {
  const doubled = paths.doubled();
  for (const path of doubled) writer.part(path.node, path.length);
  const instead = new Map<number, number>();
  for (const path of doubled) {
    const held = new Int32Array(ledger.arithmetic.wholeRows(path.length));
    ledger.fill(path.node, path.length, held);
    path.isDoubled = path.length > ledger.arithmetic.tokensIn(held.length); // its last tokens may double what goes on there
    held.forEach((row, index) => {
      const own = path.rows[index]!;
      if (own === row) return;
      if (own >= 0 && !instead.has(row) && !ledger.isHolding(own) && isSpare(row)) instead.set(row, own);
      else path.isDoubled = true;
    });
  }
  if (instead.size > 0) ledger.replace(instead);
}
