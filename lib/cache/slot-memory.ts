// SlotMemory: the memory under a cache's slots: the layout, the numbers per slot, the fences of work that uses them,
// the addon's cache that maps rows under them, the pool that pages come from, and the views on them. Handed to every
// part that maps or reads; decides nothing.

import { checkInteger } from '../base/options.js';
import { cacheNews, type NativeCache } from '../device/native.js';
import type { PagePool } from '../device/page-pool.js';
import type { Layout, TensorPlacement } from '../layout/layout.js';
import { rowArithmetic, type RowArithmetic } from '../base/row-arithmetic.js';
import type { BackgroundErrors } from '../device/background-errors.js';
import type { SlotFences } from './slot-fences.js';
import type { Slots } from './slots.js';
import { checkHostAccess, type SlotViews } from '../device/slot-views.js';
import type { TensorView } from '../base/dtypes.js';

/** A tensor of the cache as a kernel needs it: address of element [0, 0, 0, 0], shape, strides, dtype. */
export interface Tensor extends TensorPlacement {
  /** Address of element [0, 0, 0, 0]; the same as long as the cache is open. */
  readonly address: bigint;
}

export interface SlotMemoryParts {
  readonly native: NativeCache;
  readonly pool: PagePool;
  readonly layout: Layout;
  readonly slots: Slots;
  readonly fences: SlotFences;
  readonly views: SlotViews;
  readonly late: BackgroundErrors;
  /** Whether pages are zeroed before another tenant gets them. */
  readonly isScrubbed: boolean;
}

export class SlotMemory {
  /**
   * The addon's part. After each of its calls `slots.rows` is right; what its mapper maps is heard by `synchronize`.
   */
  readonly native: NativeCache;
  /** By `cacheNews`: what the last `synchronize` heard. */
  readonly news: Float64Array;
  readonly pool: PagePool;
  readonly layout: Layout;
  readonly slots: Slots;
  /** The queued work that may still use each slot. */
  readonly fences: SlotFences;
  readonly views: SlotViews;
  /** Failures that no call can report. */
  readonly late: BackgroundErrors;
  /** How tokens fall into groups of rows, the rows of the prefix index. */
  readonly groups: RowArithmetic;
  /** Every tensor on this worker, in layer order, K before V. */
  readonly tensors: readonly Tensor[];

  readonly #isScrubbed: boolean;

  constructor({ native, pool, layout, slots, fences, views, late, isScrubbed }: SlotMemoryParts) {
    this.native = native;
    this.news = native.news();
    this.pool = pool;
    this.layout = layout;
    this.slots = slots;
    this.fences = fences;
    this.views = views;
    this.late = late;
    this.#isScrubbed = isScrubbed;
    this.groups = rowArithmetic({ tokenBytes: layout.maxTokenBytes, pageBytes: layout.pageBytes * layout.groupRows });
    this.tensors = Object.freeze(layout.tensors.map((tensor) => Object.freeze({
      ...tensor, address: native.address(tensor.reservation) + BigInt(tensor.offsetBytes),
    })));
  }

  /** Number of a tenant for the addon; one for all where nothing is scrubbed. */
  tenantNumber(tenant: string | undefined): bigint {
    return this.#isScrubbed ? this.pool.tenantNumber(tenant) : 1n;
  }

  /**
   * Hears of the mapper: rows that it mapped, and failures that it met. All other calls leave `slots.rows` right
   * themselves.
   */
  synchronize(): void {
    this.native.synchronize();
    if (this.news[cacheNews.lateErrors] !== this.late.mapperErrors) this.late.hear(this.native.mapperState());
  }

  /**
   * Unmaps the slot's rows from `rows` on; returns how many. The one way in which mapped memory goes away while a cache
   * is open, but for a shared row that is exchanged. No queued work may use the rows. The mapper's request is dropped,
   * what was set aside for the slot too, and views are detached first. Throws what the driver throws; then the rows are
   * still there.
   */
  unmap(slot: number, rows: number): number {
    this.views.revoke(slot);
    const before = this.slots.rows[slot]!;
    this.native.shrink(slot, rows);
    this.slots.haveShrunk(slot);
    return before - this.slots.rows[slot]!;
  }

  /** Address of the slot's first token in a tensor. Throws KV_INVALID_OPTION. */
  address(slot: number, tensor: number): bigint {
    const { address, strides } = this.#tensor(tensor, 'Sequence.address');
    return address + BigInt(slot * strides.slotBytes);
  }

  /**
   * The slot's mapped tokens of a tensor as a typed array. Throws KV_INVALID_OPTION, and KV_VIEW_FORBIDDEN or
   * KV_DRIVER_UNSUPPORTED.
   */
  view(slot: number, tensor: number): TensorView {
    const placement = this.#tensor(tensor, 'Sequence.view');
    const { kind, info: { hasHostAccess } } = this.pool.driver;
    checkHostAccess(kind, hasHostAccess);
    this.synchronize();
    const pages = this.layout.pagesIn(placement.reservation, this.slots.ownRows(slot));
    return this.views.open(slot, placement, pages * this.layout.pageBytes);
  }

  #tensor(index: number, owner: string): Tensor {
    const hint = typeof index === 'number' ? undefined : "Give the tensor's `index`.";
    checkInteger(owner, 'tensor', index, 0, this.tensors.length - 1, hint);
    return this.tensors[index]!;
  }
}
