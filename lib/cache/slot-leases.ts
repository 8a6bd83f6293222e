// SlotLeases: who has which slot. Hands idle slots to new sequences, retires released ones behind their fences, keeps one
// idle slot warm and the idle rows within their bound. A slot changes hands only when it is idle.

import { createError } from '../base/errors.js';
import type { IdleSlots } from './idle-slots.js';
import type { Admission, AdmissionRequest, Admitted } from './admission.js';
import type { GivenFence } from './fence.js';
import type { IdlePrefixes } from './idle-prefixes.js';
import type { LateErrors } from './late-errors.js';
import type { NativeCache } from '../device/native.js';
import type { PagePool } from '../device/page-pool.js';
import type { PrefixSharing } from './prefix-sharing.js';
import type { Retirement, RunningBatch } from './retirement.js';
import type { RowSupply } from './row-supply.js';
import type { SharedRows } from './shared-rows.js';
import type { SlotFences } from './slot-fences.js';
import { slotStates, type SlotTable } from './slot-table.js';
import type { SlotViews } from './views.js';

export interface LeaseRules {
  readonly eagerRows: number;
  readonly idleRowsLimit: number;
}

export interface LeaseParts {
  readonly native: NativeCache;
  readonly pool: PagePool;
  readonly table: SlotTable;
  readonly views: SlotViews;
  readonly supply: RowSupply;
  readonly retirement: Retirement;
  readonly fences: SlotFences;
  readonly late: LateErrors;
  readonly sharing: PrefixSharing;
  readonly shared: SharedRows;
  readonly idlePrefixes: IdlePrefixes;
  readonly admission: Admission;
}

export class SlotLeases {
  readonly #parts: LeaseParts;
  readonly #rules: LeaseRules;
  readonly #pair = new Int32Array(2);
  /** By slot: number of its sequence's tenant. */
  readonly #tenants: BigUint64Array;
  /** The idle slot that rows were wished for last, or -1. */
  #eagerSlot = -1;
  #tick = 0;
  #acquired = 0;
  #released = 0;

  constructor(parts: LeaseParts, rules: LeaseRules) {
    this.#parts = parts;
    this.#rules = rules;
    this.#tenants = new BigUint64Array(parts.table.count);
  }

  get acquired(): number {
    return this.#acquired;
  }

  get released(): number {
    return this.#released;
  }

  /** Leases a slot. On failure nothing has changed. */
  acquire(request: AdmissionRequest): Admitted {
    const { retirement, admission } = this.#parts;
    const admitted = admission.admit(request, retirement.size);
    this.#start(admitted.slot, request.tenant);
    return admitted;
  }

  /** Leases a slot to a copy of the sequence in `from`. On failure nothing has changed. */
  fork(from: number): number {
    const { native, table, sharing, shared, idlePrefixes, supply, retirement, late } = this.#parts;
    const slot = this.#emptiest(supply.collectFree());
    if (slot < 0) throw createError('KV_NO_FREE_SLOT', { slots: table.count, retiringSlots: retirement.size });
    idlePrefixes.vacate(slot, 0);
    native.assign(slot, this.#tenants[from]!);
    shared.start(slot);
    try {
      sharing.fork(from, slot);
    } catch (error) {
      shared.stop(slot);
      late.attempt(() => idlePrefixes.vacate(slot, 0));
      throw error;
    }
    table.promisedTokens[slot] = 0;
    this.#start(slot, this.#tenants[from]!);
    return slot;
  }

  /** Retires a slot. When recording the fence fails, nothing has changed. */
  release(slot: number, fence: GivenFence, batch: RunningBatch | undefined): void {
    const { native, pool, table, views, retirement, sharing, late } = this.#parts;
    const isWaiting = retirement.enter(slot, fence, batch);
    late.attempt(() => sharing.tell());
    views.revoke(slot);
    native.cancel(slot);
    native.promise(slot, 0);
    table.generation[slot]! += 1;
    table.prepared[slot] = 0;
    table.promisedTokens[slot] = 0;
    table.state[slot] = slotStates.retiring;
    this.#released += 1;
    if (!isWaiting) this.#becomeIdle(slot);
    else {
      if (fence.isNone) late.attempt(() => this.pollRetirement()); // what its commits named may be over
      pool.capacity.raise(); // what was set aside for it, and fences to ask for
    }
  }

  /** Slots whose fence has passed become idle, and rows given up behind one are unmapped. Throws what asking and unmapping throw. */
  pollRetirement(): void {
    const { retirement, sharing } = this.#parts;
    if (retirement.size === 0 && sharing.givenUp.size === 0) return;
    try {
      retirement.poll((slot) => this.#becomeIdle(slot));
    } finally {
      sharing.givenUp.settleAll();
    }
  }

  /** For want of pages: asks every fence. True when one has passed that pages were behind. */
  hearAllFences(): boolean {
    const { fences, retirement, sharing, late } = this.#parts;
    const { passes } = fences;
    const waiting = retirement.size + sharing.givenUp.size;
    late.attempt(() => fences.poll());
    late.attempt(() => this.pollRetirement());
    return fences.passes > passes || retirement.size + sharing.givenUp.size < waiting;
  }

  /** Wishes rows for the idle slot that has most, if none has enough for the next prompt; no more than idle slots may have together. */
  keepEagerRows(): void {
    const { eagerRows, idleRowsLimit } = this.#rules;
    if (eagerRows === 0) return;
    const { native, supply, idlePrefixes, table } = this.#parts;
    native.publish();
    const idle = supply.collectFree();
    let best = -1;
    let idleRows = 0;
    for (let index = 0; index < idle.count; index += 1) {
      const slot = idle.slots[index]!;
      const contentRows = idlePrefixes.contentRows(slot);
      idleRows += table.rows[slot]! - contentRows;
      if (contentRows === 0 && (best < 0 || table.rows[slot]! > table.rows[best]!)) best = slot;
    }
    if (best < 0) return;
    const rows = Math.min(eagerRows, table.rows[best]! + idleRowsLimit - idleRows);
    if (table.rows[best]! >= rows) return;
    this.#eagerSlot = best;
    this.#pair[0] = best;
    this.#pair[1] = rows;
    native.request(this.#pair, 1);
  }

  #start(slot: number, tenant: bigint): void {
    const { native, table } = this.#parts;
    native.publish();
    table.state[slot] = slotStates.active;
    table.lastUsed[slot] = this.#tick += 1;
    this.#tenants[slot] = tenant;
    this.#acquired += 1;
  }

  /** The idle slot with the fewest rows, one without content if there is one; or -1. */
  #emptiest(idle: IdleSlots): number {
    const { idlePrefixes } = this.#parts;
    let best = -1;
    for (let index = 0; index < idle.count; index += 1) {
      const slot = idle.slots[index]!;
      const order = best < 0 ? -1 : idlePrefixes.contentRows(slot) - idlePrefixes.contentRows(best) || idle.rows[slot]! - idle.rows[best]!;
      if (order < 0) best = slot;
    }
    return best;
  }

  #becomeIdle(slot: number): void {
    const { native, pool, table, supply, sharing, late } = this.#parts;
    const { idleRowsLimit } = this.#rules;
    native.publish();
    table.lastUsed[slot] = this.#tick += 1;
    table.state[slot] = slotStates.idle;
    table.sharedTail[slot] = 0; // until now it may have mapped a row that it took back
    late.attempt(() => sharing.retire(slot));
    late.attempt(() => {
      if (idleRowsLimit < Number.MAX_SAFE_INTEGER) {
        if (this.#eagerSlot >= 0 && table.isFree(this.#eagerSlot)) native.cancel(this.#eagerSlot); // until `keepEagerRows`
        supply.limitIdleRows(idleRowsLimit);
      }
      pool.keepToBudget();
    });
    pool.capacity.raise();
  }
}
