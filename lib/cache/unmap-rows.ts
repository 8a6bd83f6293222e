// Takes rows off the end of a slot: the one way in which mapped memory goes away while a cache is open, but for a shared row that is
// exchanged. No queued work may use them. The mapper's wish is dropped and views are detached first. Throws what the driver throws; then the rows are still there.

import type { NativeCache } from '../device/native.js';
import { noForeignRow, type SlotTable } from './slot-table.js';
import type { SlotViews } from './views.js';

export interface SlotMemory {
  readonly native: NativeCache;
  readonly table: SlotTable;
  readonly views: SlotViews;
}

/** Unmaps the slot's rows from `rows` on, and drops what it was promised; returns how many were unmapped. */
export function unmapRows({ native, table, views }: SlotMemory, slot: number, rows: number): number {
  native.cancel(slot);
  views.revoke(slot);
  native.publish();
  const before = table.rows[slot]!;
  native.shrink(slot, rows);
  native.publish();
  if (table.rows[slot]! <= table.foreignRow[slot]!) table.foreignRow[slot] = noForeignRow;
  return before - table.rows[slot]!;
}
