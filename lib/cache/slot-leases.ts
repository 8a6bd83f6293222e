// SlotLeases: which sequence has which slot. Leases idle slots to new sequences and forks, and retires released ones
// behind their fences. A slot changes hands only when it is idle: released, in no prepared batch and past its fence.
// Every call that decides hears first what has happened since: rows that the mapper mapped, fences that passed, tokens
// that were committed, failures that no call reported.

import { createError, isKvError } from '../base/errors.js';
import type { Admission } from './admission.js';
import type { Admitted, AdmissionRequest } from './admission-request.js';
import type { CachedRows } from './cached-rows.js';
import { GivenFence } from './fence.js';
import type { IdleRows } from './idle-rows.js';
import type { RowSharing } from './row-sharing.js';
import type { SlotMemory } from './slot-memory.js';

export class SlotLeases {
  readonly #memory: SlotMemory;
  readonly #admission: Admission;
  readonly #idleRows: IdleRows;
  readonly #cached: CachedRows;
  readonly #sharing: RowSharing;
  /** Released slots that are not idle yet. */
  readonly #retiring = new Set<number>();
  #acquired = 0;
  #released = 0;

  constructor(memory: SlotMemory, admission: Admission, idleRows: IdleRows, cached: CachedRows, sharing: RowSharing) {
    this.#memory = memory;
    this.#admission = admission;
    this.#idleRows = idleRows;
    this.#cached = cached;
    this.#sharing = sharing;
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
    this.#cached.tokens.endDropped();
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

  /**
   * Leases a slot to a copy of the sequence in `from`, which no prepared batch computes on. On failure nothing has
   * changed.
   */
  fork(from: number): Admitted {
    this.#memory.pool.driver.checkAlive();
    this.synchronize();
    const admitted = this.#admission.fork(from, this.#retiring.size);
    this.#acquired += 1;
    return admitted;
  }

  /**
   * Retires a slot behind the batch that computes on it, the fences of its commits, and `fence`. When recording the
   * fence fails, nothing has changed.
   */
  release(slot: number, fence = new GivenFence()): void {
    const { native, pool, slots, views, late } = this.#memory;
    this.synchronize();
    this.#memory.fences.release(slot, fence);
    views.revoke(slot);
    native.cancel(slot);
    native.earmark(slot, 0);
    slots.retire(slot);
    this.#cached.tokens.finish(slot);
    this.#released += 1;
    if (!this.#isBusy(slot)) {
      this.#becomeIdle(slot);
    } else {
      this.#retiring.add(slot);
      if (fence.isNone) late.attempt(() => this.pollRetirement()); // what its commits named may be over
      pool.capacity.raise(); // what was set aside for it, and fences to ask for
    }
    this.#idleRows.keepEager();
  }

  /**
   * Drops the last tokens of the sequence in a slot, which no prepared batch computes on: `tokens` stay. Never throws.
   */
  truncate(slot: number, tokens: number): void {
    const { pool, late } = this.#memory;
    late.attempt(() => this.#sharing.truncate(slot, tokens));
    pool.capacity.raise();
  }

  /**
   * Slots whose fence has passed become idle, and rows given up behind one are unmapped. Throws the first failure of
   * polling or unmapping, after all were tried; what failed stays behind its fence.
   */
  pollRetirement(): void {
    if (this.waiting === 0) return;
    this.#cached.tokens.hear();
    try {
      this.#memory.fences.poll();
    } finally {
      for (const slot of this.#retiring) {
        if (this.#isBusy(slot)) continue;
        this.#retiring.delete(slot);
        this.#becomeIdle(slot);
      }
      this.#sharing.givenUp.unmapAll();
    }
  }

  /**
   * Before a refusal for want of pages stands, all caches of the pool ask their fences. Throws `error` unless one has
   * passed that pages were behind.
   */
  checkRetry(error: unknown): void {
    if (!isKvError(error, 'KV_OUT_OF_PAGES') || !this.#memory.pool.hearFences()) throw error;
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
    const { passes } = this.#memory.fences;
    const waiting = this.waiting;
    late.attempt(() => this.#memory.fences.poll());
    late.attempt(() => this.pollRetirement());
    return this.#memory.fences.passes > passes || this.waiting < waiting;
  }

  #checkFree(isTransfer: boolean): void {
    if (!this.#memory.slots.canLease(isTransfer)) throw this.#noFreeSlot();
  }

  #noFreeSlot(): Error {
    return createError('KV_NO_FREE_SLOT', { slots: this.#memory.slots.sequences, retiringSlots: this.#retiring.size });
  }

  /** Whether a prepared batch or queued work may still use the slot, or rows of its side tensors are on their way. */
  #isBusy(slot: number): boolean {
    return this.#memory.slots.isComputing(slot) || this.#memory.fences.isPending(slot)
      || this.#cached.tokens.isArriving(slot);
  }

  #becomeIdle(slot: number): void {
    const { pool, slots, late } = this.#memory;
    slots.becomeIdle(slot);
    late.attempt(() => this.#cached.retire(slot));
    this.#cached.tokens.retire(slot);
    late.attempt(() => {
      this.#idleRows.keepToLimit();
      pool.keepToBudget();
    });
    pool.capacity.raise();
  }
}
