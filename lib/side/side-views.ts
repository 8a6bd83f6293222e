// SideViews: where the rows of one side tensor are seen: as typed arrays over the memory itself, and as addresses.

import type { BackgroundErrors } from '../device/background-errors.js';
import { checkHostAccess, SlotViews, type ViewedTensor } from '../device/slot-views.js';
import type { SideDtype, SideView } from '../base/dtypes.js';
import type { SideMemory } from './side-slots.js';

export class SideViews {
  readonly #open: SideMemory;
  readonly #views: SlotViews;
  readonly #tensor: ViewedTensor<SideDtype>;
  /** Whether it was checked that there can be views. */
  #isVisible = false;

  /** @param owner What views keep alive. */
  constructor(open: SideMemory, owner: object, background: BackgroundErrors) {
    this.#open = open;
    this.#views = new SlotViews(open.native, owner, background, { copies: !open.pool.driver.info.hasStreams });
    this.#tensor =
      { reservation: 0, offsetBytes: 0, dtype: open.dtype, strides: { elementBytes: open.tokenBytes / open.width } };
  }

  /** Address of the slot's first token. */
  address(slot: number): bigint {
    const { native, slotPages, pool } = this.#open;
    return native.address(0) + BigInt(slot) * BigInt(slotPages * pool.pageBytes);
  }

  /**
   * The slot's tokens [from, to), which are mapped. Throws KV_VIEW_TRANSFERRED, KV_VIEW_FORBIDDEN,
   * KV_DRIVER_UNSUPPORTED, KV_OUT_OF_MAPPINGS.
   */
  view(slot: number, from: number, to: number): SideView {
    const { rows, pool: { driver, pageBytes }, width } = this.#open;
    if (!this.#isVisible) checkHostAccess(driver.kind, driver.info.hasHostAccess);
    this.#isVisible = true;
    return this.#views.openPart(slot, this.#tensor, rows[slot]! * pageBytes, from * width, to * width);
  }

  /** Detaches the slot's views. */
  revoke(slot: number): void {
    this.#views.revoke(slot);
  }

  revokeAll(): void {
    this.#views.revokeAll();
  }
}
