// SlotLeases: who has which slot. Hands idle slots to new sequences, retires released ones behind their fences, keeps one
// idle slot warm and the idle rows within their bound. A slot changes hands only when it is idle.

import { createError } from '../errors/index.js';
import type { PlacementPolicy } from '../policy/placement.js';
import type { Fence } from './fence.js';
import type { LateErrors } from './late-errors.js';
import type { Layout } from './layout.js';
import type { NativeCache } from './native.js';
import type { PagePool } from './page-pool.js';
import type { Retirement, RunningBatch } from './retirement.js';
import type { RowSupply } from './row-supply.js';
import { slotStates, type SlotTable } from './slot-table.js';
import type { SlotViews } from './views.js';

export interface LeaseRules {
  readonly placement: PlacementPolicy;
  readonly eagerRows: number;
  readonly idleRowsLimit: number;
}

export interface LeaseParts {
  readonly native: NativeCache;
  readonly pool: PagePool;
  readonly layout: Layout;
  readonly table: SlotTable;
  readonly views: SlotViews;
  readonly supply: RowSupply;
  readonly retirement: Retirement;
  readonly late: LateErrors;
}

export class SlotLeases {
  readonly #parts: LeaseParts;
  readonly #rules: LeaseRules;
  readonly #pair = new Int32Array(2);
  #tick = 0;
  #acquired = 0;
  #released = 0;

  constructor(parts: LeaseParts, rules: LeaseRules) {
    this.#parts = parts;
    this.#rules = rules;
  }

  get acquired(): number {
    return this.#acquired;
  }

  get released(): number {
    return this.#released;
  }

  /** Leases a slot with `promptTokens` expected, and promised if `isPromised`. On failure nothing has changed. */
  acquire(promptTokens: number, isPromised: boolean, tenant: string): number {
    const { native, pool, layout, table, supply, retirement } = this.#parts;
    const neededRows = layout.rowsFor(promptTokens);
    const idle = supply.collectFree();
    if (idle.count === 0) throw createError('KV_NO_FREE_SLOT', { slots: table.count, retiringSlots: retirement.size });
    const slot = this.#rules.placement(idle, neededRows);
    if (!table.isFree(slot)) throw wrongChoice(slot);

    native.cancel(slot);
    if (isPromised) supply.promise(slot, neededRows);
    try {
      native.assign(slot, pool.tenantNumber(tenant));
    } catch (error) {
      native.promise(slot, 0);
      throw error;
    }
    native.publish();
    table.state[slot] = slotStates.active;
    table.length[slot] = 0;
    table.promisedTokens[slot] = isPromised ? promptTokens : 0;
    table.lastUsed[slot] = this.#tick += 1;
    this.#acquired += 1;
    return slot;
  }

  /** Retires a slot. When recording the fence fails, nothing has changed. */
  release(slot: number, fence: Fence | undefined, batch: RunningBatch | undefined): void {
    const { native, table, views, retirement } = this.#parts;
    const isWaiting = retirement.enter(slot, fence, batch);
    views.revoke(slot);
    native.cancel(slot);
    native.promise(slot, 0);
    table.generation[slot]! += 1;
    table.prepared[slot] = 0;
    table.promisedTokens[slot] = 0;
    table.state[slot] = slotStates.retiring;
    this.#released += 1;
    if (!isWaiting) this.#becomeIdle(slot);
  }

  /** Slots whose fence has passed become idle. Throws what asking for an event throws. */
  pollRetirement(): void {
    if (this.#parts.retirement.size > 0) this.#parts.retirement.poll((slot) => this.#becomeIdle(slot));
  }

  /** Wishes rows for the idle slot that has most, if none has enough for the next prompt. */
  keepEagerRows(): void {
    const { eagerRows } = this.#rules;
    if (eagerRows === 0) return;
    const { native, supply, table } = this.#parts;
    native.publish();
    const idle = supply.collectFree();
    if (idle.count === 0) return;
    let best = idle.slots[0]!;
    for (let index = 1; index < idle.count; index += 1) {
      const slot = idle.slots[index]!;
      if (table.rows[slot]! > table.rows[best]!) best = slot;
    }
    if (table.rows[best]! >= eagerRows) return;
    this.#pair[0] = best;
    this.#pair[1] = eagerRows;
    native.request(this.#pair, 1);
  }

  #becomeIdle(slot: number): void {
    const { native, pool, table, supply, late } = this.#parts;
    const { idleRowsLimit } = this.#rules;
    native.publish();
    table.lastUsed[slot] = this.#tick += 1;
    table.state[slot] = slotStates.idle;
    late.attempt(() => {
      if (idleRowsLimit < Number.MAX_SAFE_INTEGER) supply.limitIdleRows(idleRowsLimit);
      pool.keepToBudget();
    });
  }
}

function wrongChoice(slot: number): Error {
  return createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'KvCache', option: 'placement', expected: 'a function that returns one of the candidates',
    received: slot,
  });
}
