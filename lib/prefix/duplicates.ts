// Duplicates: cached rows of a running sequence's text that the sequence has in rows of its own as well: it computed what was
// there already, or copied the last tokens of what it found. Its path keeps the cached ones from being evicted and needs neither
// them nor what lies behind its tokens in the same node. Where memory is short, its own rows are cached in their place: nothing
// is lost by that, while evicting would lose some text.

import type { OpenPaths } from './open-paths.js';
import type { PathWriter } from './path-writer.js';
import type { PrefixPath } from './prefix-path.js';
import type { PrefixTree } from './prefix-tree.js';
import type { RowLedger } from './row-ledger.js';

export interface DuplicatesParts {
  readonly tree: PrefixTree;
  readonly ledger: RowLedger;
  readonly paths: OpenPaths;
  readonly writer: PathWriter;
}

/** Drops, as `replaced`, the rows that `isSpare` says no running sequence uses and some open path has too, or makes them evictable. */
export function replaceDuplicates(parts: DuplicatesParts, isSpare: (row: number) => boolean): void {
  const { ledger, paths, writer } = parts;
  const instead = new Map<number, number>();
  for (const path of paths.all()) {
    writer.narrow(path.node, path.length);
    const last = lastRow(parts, path);
    if (last >= 0 && last !== ownRow(parts, path) && isSpare(last)) writer.part(path.node, path.length);
    const held = new Int32Array(ledger.arithmetic.wholeRows(path.length));
    ledger.fill(path.node, path.length, held);
    held.forEach((row, index) => {
      const own = path.rows[index]!;
      if (own !== row && own >= 0 && !instead.has(row) && !ledger.isHolding(own) && isSpare(row)) instead.set(row, own);
    });
  }
  if (instead.size > 0) ledger.replace(instead);
  for (const path of paths.all()) replaceTail(parts, path, isSpare);
}

/** The last tokens of a text lie in a row that only they are in. */
function replaceTail(parts: DuplicatesParts, path: PrefixPath, isSpare: (row: number) => boolean): void {
  const { tree, ledger } = parts;
  const tail = tree.nodes.tailRow[path.node]!;
  const own = ownRow(parts, path);
  if (tail < 0 || tail === own || own < 0 || path.length !== tree.nodes.to[path.node] || !isSpare(tail) || ledger.isHolding(own)) return;
  ledger.replaceTail(path.node, own);
}

/** The row of the path's node that has its last tokens, if these do not fill it; or -1. */
function lastRow({ tree, ledger }: DuplicatesParts, { node, length }: PrefixPath): number {
  const { to, tailRow } = tree.nodes;
  const whole = ledger.arithmetic.wholeRows(length);
  if (tree.isRoot(node) || ledger.arithmetic.rowsFor(length) === whole) return -1;
  return ledger.arithmetic.wholeRows(to[node]!) > whole ? ledger.partialRow(node, length) : tailRow[node]!;
}

function ownRow({ ledger }: DuplicatesParts, { rows, length }: PrefixPath): number {
  return rows[ledger.arithmetic.wholeRows(length)] ?? -1;
}
