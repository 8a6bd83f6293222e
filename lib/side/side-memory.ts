// SideMemory: the memory of one side tensor, as it was opened: its shape, where its pages come from, and its slots in the addon.

import type { NativeCache } from '../device/native.js';
import type { PagePool } from '../device/page-pool.js';
import type { SideDtype } from '../layout/dtype-arrays.js';
import type { RowArithmetic } from '../layout/row-arithmetic.js';

export interface SideMemory {
  readonly name: string;
  readonly width: number;
  readonly dtype: SideDtype;
  /** Bytes of one token. */
  readonly tokenBytes: number;
  /** How tokens fall into pages, which its names call rows. */
  readonly arithmetic: RowArithmetic;
  /** Pages of a slot's addresses. */
  readonly slotPages: number;
  readonly pool: PagePool;
  readonly native: NativeCache;
  /** Mapped pages by slot, and whether the driver has ruined the slot: the addon writes both. */
  readonly rows: Int32Array;
  readonly isQuarantined: Uint8Array;
}
