// SideViews: where the rows of one side tensor are seen: as typed arrays over the memory itself, and as addresses.

import type { BackgroundErrors } from '../device/background-errors.js';
import { SlotViews, type ViewedTensor } from '../device/slot-views.js';
import type { TensorView } from '../layout/dtype-arrays.js';
import type { OpenSideTensor } from './side-tensor.js';

export class SideViews {
  readonly #open: OpenSideTensor;
  readonly #views: SlotViews;
  readonly #tensor: ViewedTensor;

  /** @param owner What views keep alive. */
  constructor(open: OpenSideTensor, owner: object, late: BackgroundErrors) {
    this.#open = open;
    this.#views = new SlotViews(open.native, owner, late);
    this.#tensor = { reservation: 0, offsetBytes: 0, dtype: open.dtype, strides: { elementBytes: open.tokenBytes / open.width } };
  }

  /** Address of the slot's first token. */
  address(slot: number): bigint {
    const { native, slotPages, pool } = this.#open;
    return native.address(0) + BigInt(slot) * BigInt(slotPages * pool.pageBytes);
  }

  /** The slot's mapped tokens. Throws KV_VIEW_TRANSFERRED, KV_OUT_OF_MAPPINGS. */
  view(slot: number): TensorView {
    return this.#views.open(slot, this.#tensor, this.#open.rows[slot]! * this.#open.pool.pageBytes);
  }

  /** Detaches the slot's views. */
  revoke(slot: number): void {
    this.#views.revoke(slot);
  }

  revokeAll(): void {
    this.#views.revokeAll();
  }
}
