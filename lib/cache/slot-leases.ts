// SlotLeases: which sequence has which slot. Leases idle slots to new sequences and forks, retires released ones behind their fences,
// keeps one idle slot warm and the idle rows within their bound. A slot changes hands only when it is idle: released, in no prepared
// batch and past its fence. Every call that decides hears first what has happened since: rows that the mapper mapped, fences that
// passed, tokens that were committed, failures that no call reported.

import { createError, isKvError } from '../base/errors.js';
import type { Admission } from './admission.js';
import type { Admitted, AdmissionRequest } from './admission-request.js';
import type { CachedRows } from './cached-rows.js';
import { GivenFence } from './fence.js';
import type { SideTensors } from '../side/side-tensors.js';
import type { RowSharing } from './row-sharing.js';
import type { RowSupply } from './row-supply.js';
import type { SlotFences } from './slot-fences.js';
import type { SlotMemory } from './slot-memory.js';

export interface LeaseRules {
  readonly eagerRows: number;
  readonly idleRowsLimit: number;
}

/** A batch that computes on the slot. */
export interface RunningBatch {
  readonly isPrepared: boolean;
}

export interface LeaseCollaborators {
  readonly admission: Admission;
  readonly supply: RowSupply;
  readonly cached: CachedRows;
  readonly sharing: RowSharing;
  readonly fences: SlotFences;
  readonly side: SideTensors;
}

export class SlotLeases {
  readonly #memory: SlotMemory;
  readonly #admission: Admission;
  readonly #supply: RowSupply;
  readonly #cached: CachedRows;
  readonly #sharing: RowSharing;
  readonly #fences: SlotFences;
  readonly #side: SideTensors;
  readonly #rules: LeaseRules;
  readonly #pair = new Int32Array(2);
  /** Released slots that are not idle yet, each with the batch that it waits for first. */
  readonly #retiring = new Map<number, RunningBatch | undefined>();
  /** The idle slot that rows were requested for last, or -1. */
  #eagerSlot = -1;
  #acquired = 0;
  #released = 0;

  constructor(memory: SlotMemory, { admission, supply, cached, sharing, fences, side }: LeaseCollaborators, rules: LeaseRules) {
    this.#memory = memory;
    this.#admission = admission;
    this.#supply = supply;
    this.#cached = cached;
    this.#sharing = sharing;
    this.#fences = fences;
    this.#side = side;
    this.#rules = rules;
  }

  get acquired(): number {
    return this.#acquired;
  }

  get released(): number {
    return this.#released;
  }

  /** Slots that wait for queued work before they are idle, or before they are rid of rows that they gave up. */
  get waiting(): number {
    return this.#retiring.size + this.#sharing.givenUp.slots.size;
  }

  /** Hears what has happened since the last call. Never throws: what fails is reported in the background. */
  synchronize(): void {
    const { late } = this.#memory;
    this.#memory.synchronize();
    if (this.waiting > 0) late.attempt(() => { this.pollRetirement(); });
    if (this.#cached.hasNews) late.attempt(() => { this.#cached.flushCommits(); });
    if (this.#side.everything > 0) late.attempt(() => { this.#side.endDropped(); });
  }

  /** Leases a slot. On failure nothing has changed. Throws as `Admission.admit`. */
  acquire(request: AdmissionRequest): Admitted {
    this.#memory.pool.driver.checkAlive();
    this.synchronize();
    this.#checkFree(request.isTransfer);
    const admitted = this.#admit(request);
    this.#acquired += 1;
    return admitted;
  }

  /** Leases a slot to a copy of the sequence in `from`, which no prepared batch computes on. On failure nothing has changed. */
  fork(from: number): Admitted {
    const { native, pool, slots, late } = this.#memory;
    const { registry, choice } = this.#cached;
    pool.driver.checkAlive();
    this.synchronize();
    if (!slots.hasRoom(from, slots.length[from]!)) { // it has lost rows
      throw createError('KV_SLOT_BUSY', { slot: from, operation: 'fork', holder: 'the quarantine' });
    }
    this.#checkFree(false);
    const slot = choice.forSharedRows();
    if (slot < 0) throw this.#noFreeSlot();
    this.#cached.vacate(slot, 0);
    native.assign(slot, slots.tenantOf(from));
    registry.start(slot);
    try {
      if (this.#side.everything > 0) this.#side.fork(from, slot, slots.tenantOf(from));
      slots.lease(slot, this.#sharing.fork(from, slot));
    } catch (error) {
      this.#side.retire(slot, 0);
      registry.stop(slot);
      late.attempt(() => this.#cached.vacate(slot, 0));
      throw error;
    }
    this.#acquired += 1;
    const cachedTokens = slots.length[slot]!;
    return { slot, cachedTokens, cachedBy: { adoptedTokens: 0, aliasedTokens: cachedTokens, copiedTokens: 0 }, pendingTokens: 0, keptValue: undefined };
  }

  /**
   * Retires a slot behind the fences of its commits and `fence`; `batch` computes on it, if any does. When recording the fence
   * fails, nothing has changed.
   */
  release(slot: number, fence: GivenFence, batch: RunningBatch | undefined): void {
    const { native, pool, slots, views, late } = this.#memory;
    this.synchronize();
    this.#fences.release(slot, fence);
    const isWaiting = batch !== undefined || this.#isBusy(slot);
    views.revoke(slot);
    native.cancel(slot);
    native.earmark(slot, 0);
    slots.retire(slot);
    this.#released += 1;
    if (!isWaiting) {
      this.#becomeIdle(slot);
    } else {
      this.#retiring.set(slot, batch);
      if (fence.isNone) late.attempt(() => this.pollRetirement()); // what its commits named may be over
      pool.capacity.raise(); // what was set aside for it, and fences to ask for
    }
    this.keepEagerRows();
  }

  /**
   * Slots whose fence has passed become idle, and rows given up behind one are unmapped. Throws the first failure of
   * polling or unmapping, after all were tried; what failed stays behind its fence.
   */
  pollRetirement(): void {
    if (this.waiting === 0) return;
    if (this.#side.everything > 0) this.#side.hear();
    try {
      this.#fences.poll();
    } finally {
      for (const [slot, batch] of this.#retiring) {
        if (batch?.isPrepared === true || this.#isBusy(slot)) continue;
        this.#retiring.delete(slot);
        this.#becomeIdle(slot);
      }
      this.#sharing.givenUp.unmapAll();
    }
  }

  /**
   * Before a refusal for want of pages stands, all caches of the pool ask their fences. Throws `error` unless one has passed that pages
   * were behind.
   */
  checkRetry(error: unknown): void {
    if (!isKvError(error, 'KV_OUT_OF_PAGES') || !this.#memory.pool.hearFences()) throw error;
  }

  /** Requests rows for the idle slot that has most, if none has enough for the next prompt; no more than idle slots may have together. */
  keepEagerRows(): void {
    const { eagerRows, idleRowsLimit } = this.#rules;
    if (eagerRows === 0) return;
    const { native, slots } = this.#memory;
    const best = this.#cached.choice.fullestBlank();
    if (best < 0) return;
    const rows = Math.min(eagerRows, slots.rows[best]! + idleRowsLimit - this.#cached.choice.blankRows());
    if (slots.rows[best]! >= rows) return;
    this.#eagerSlot = best;
    this.#pair[0] = best;
    this.#pair[1] = rows;
    native.request(this.#pair, 1);
  }

  #admit(request: AdmissionRequest): Admitted {
    try {
      return this.#admission.admit(request, this.#retiring.size);
    } catch (error) {
      this.checkRetry(error);
      return this.#admission.admit(request, this.#retiring.size);
    }
  }

  /** Asks every fence. True when pages may be free that were not. */
  hearFences(): boolean {
    const { late } = this.#memory;
    const { passes } = this.#fences;
    const waiting = this.waiting;
    late.attempt(() => this.#fences.poll());
    late.attempt(() => this.pollRetirement());
    return this.#fences.passes > passes || this.waiting < waiting;
  }

  #checkFree(isTransfer: boolean): void {
    if (!this.#memory.slots.canLease(isTransfer)) throw this.#noFreeSlot();
  }

  #noFreeSlot(): Error {
    return createError('KV_NO_FREE_SLOT', { slots: this.#memory.slots.sequences, retiringSlots: this.#retiring.size });
  }

  /** Whether queued work may still use the slot, or rows of its side tensors are on their way. */
  #isBusy(slot: number): boolean {
    return this.#fences.isPending(slot) || (this.#side.everything > 0 && this.#side.isCopying(slot));
  }

  #becomeIdle(slot: number): void {
    const { native, pool, slots, late } = this.#memory;
    const { idleRowsLimit } = this.#rules;
    slots.becomeIdle(slot);
    late.attempt(() => this.#cached.retire(slot));
    if (this.#side.everything > 0) this.#side.retire(slot, slots.length[slot]!);
    late.attempt(() => {
      if (idleRowsLimit < Number.MAX_SAFE_INTEGER) {
        if (this.#eagerSlot >= 0 && slots.isFree(this.#eagerSlot)) native.cancel(this.#eagerSlot); // until `keepEagerRows`
        this.#supply.limitIdleRows(idleRowsLimit);
      }
      pool.keepToBudget();
    });
    pool.capacity.raise();
  }
}
