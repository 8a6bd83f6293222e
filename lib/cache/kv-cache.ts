// KvCache: one long stretch of addresses per tensor, and memory under it only where sequences are. The house's front door:
// it checks calls and joins the rooms behind it: leases (who has which slot), steps (the hot path), supply (rows), accounts.
// For one Node thread; workers open their own.
//
// Invariants: the `length + prepared` tokens of a sequence always have memory; a slot changes hands only when idle, that is
// released and past its fence; no public method leaves half a change behind.

import { createError } from '../base/errors.js';
import { checkInteger } from '../base/options.js';
import type { CacheCounts, CacheMetrics } from './accounts.js';
import { readAcquireOptions, type AcquireOptions } from './acquire-options.js';
import type { AdmissionRequest, Admitted } from './admission.js';
import { Batch } from './batch.js';
import { openRooms, unclosedCache, type CacheRooms, type Tensor } from './cache-rooms.js';
import { deviceLost } from '../device/change-signal.js';
import type { Driver } from '../device/driver.js';
import { checkFence, GivenFence, readFence, type CommitOptions } from './fence.js';
import { readKvCacheOptions, type KvCacheOptions } from './kv-cache-options.js';
import type { Layout } from '../layout/layout.js';
import type { PagePool } from '../device/page-pool.js';
import type { PageUser } from '../device/page-user.js';
import type { Prefixes } from './prefixes.js';
import type { Room } from './room.js';
import { RunningPasses } from './running-passes.js';
import { Sequence, type SequenceOwner } from './sequence.js';
import { unclosed } from '../device/unclosed.js';
import { checkHostAccess } from './views.js';
import type { Membership } from '../device/weak-users.js';
import { byAsking, readWaitOptions, waitUntil, type Noticing, type WaitOptions } from './wait.js';

/** The KV cache of one model on one device: slots of contiguous addresses, and pages where sequences are. For one Node thread. */
export class KvCache {
  /** Where tensors, slots and rows lie. */
  readonly layout: Layout;
  /** Where its pages come from: its own pool, or the one it was given. */
  readonly pool: PagePool;
  /** What is cached of prompts, and what it was worth. */
  readonly prefixes: Prefixes;
  /** Every tensor on this worker, in layer order, K before V. */
  readonly tensors: readonly Tensor[];
  /** @internal */
  readonly room: Room;
  /** @internal */
  readonly passes = new RunningPasses();
  readonly #rooms: CacheRooms;
  readonly #owner: SequenceOwner;
  readonly #membership: Membership<PageUser>;
  #state: 'open' | 'closing' | 'closed' = 'open';

  /** Reserves the addresses; maps nothing yet. Throws on bad options, KV_OUT_OF_ADDRESS_SPACE, and what the driver throws. */
  constructor(options: KvCacheOptions) {
    const rooms = openRooms(readKvCacheOptions(options), {
      cache: this,
      checkOpen: (operation) => this.#checkOpen(operation),
      release: (slot) => this.#release(slot, new GivenFence()),
    });
    this.pool = rooms.pool;
    this.layout = rooms.layout;
    this.prefixes = rooms.prefixes;
    this.tensors = rooms.tensors;
    this.room = rooms.room;
    this.#rooms = rooms;
    this.#owner = this.#sequenceOwner();
    this.#membership = this.pool.addUser(rooms.supply, rooms.native);
    unclosed.register(this, unclosedCache(rooms), this);
    rooms.leases.keepEagerRows();
  }

  /** Whether it is a KvCache that was opened, and no object that only has its prototype. @internal */
  static isInstance(value: unknown): value is KvCache {
    return typeof value === 'object' && value !== null && #state in value;
  }

  /** The driver of its pool. */
  get driver(): Driver {
    return this.pool.driver;
  }

  /** Whether `close` has ended. Every other call then throws KV_CLOSED. */
  get isClosed(): boolean {
    return this.#state === 'closed';
  }

  /**
   * Leases a slot to a sequence. Throws KV_NO_FREE_SLOT, KV_OUT_OF_PAGES (the prompt's pages cannot be set aside),
   * KV_LENGTH_OUT_OF_RANGE or KV_DRIVER_LOST; then nothing has changed.
   */
  acquire(options: AcquireOptions = {}): Sequence {
    const read = readAcquireOptions(options);
    this.#checkOpen('acquire a slot');
    this.driver.checkAlive();
    this.#rooms.news.hear();
    const { promptTokens, reserve, tenant, stream } = read;
    const prompt = this.prefixes.promptOf(read);
    const isPromised = reserve === 'prompt' && promptTokens > 0;
    const admitted = this.#lease({ promptTokens, isPromised, tenant: this.#rooms.tenantNumber(tenant), prompt, stream });
    const { slot } = admitted;
    try {
      this.#rooms.steps.wishFor(slot);
    } catch (error) { // a growth policy's
      this.#rooms.leases.release(slot, new GivenFence(), undefined);
      throw error;
    }
    this.prefixes.admitted(prompt, admitted.cachedBy);
    this.#rooms.leases.keepEagerRows();
    return new Sequence(this.#owner, admitted);
  }

  /** A batch with room for `capacity` sequences (default: all slots); it grows by itself. Reuse it: clear, add, prepare, commit. */
  createBatch(capacity = this.layout.slots): Batch {
    checkInteger('KvCache.createBatch', 'capacity', capacity);
    this.#checkOpen('create a batch');
    return new Batch(this.#rooms.table, this.layout.maxTokens, Math.min(capacity, this.layout.slots));
  }

  /**
   * Before a forward pass: gives every sequence of the batch memory for its tokens, or changes nothing. Throws
   * KV_OUT_OF_PAGES with the rows needed and had (release or preempt somebody, try again), KV_SLOT_BUSY when a sequence is
   * in another prepared batch, KV_WORK_QUEUED when rows can change hands only after a step of the engine, KV_SLOT_RELEASED,
   * KV_BATCH_STATE, or the driver's error. In steady decode it maps nothing.
   *
   * A batch keeps what was added until `clear`: prepared again after `commit`, it asks for as many tokens once more behind the new
   * lengths; after `discard`, for the same ones.
   */
  prepare(batch: Batch): void {
    this.#checkOpen('prepare a batch');
    try {
      this.#rooms.steps.prepare(batch);
    } catch (error) {
      this.#rooms.news.hearOfPages(error);
      this.#rooms.steps.prepare(batch);
    }
  }

  /**
   * After the pass, or once it is queued: the batch's tokens are valid for what is queued behind it. With `fence` its work may go on:
   * no memory that it uses changes hands before. Rows that will be needed soon go to the mapper. A sequence released since
   * `prepare` is passed over. Throws KV_BATCH_STATE, KV_INVALID_OPTION, and what the driver throws the first time that a stream is
   * named; then nothing has changed.
   */
  commit(batch: Batch, options?: CommitOptions): void {
    const fence = readFence('KvCache.commit', options, this.#rooms.fences.given);
    this.#checkOpen('commit a batch');
    checkFence('KvCache.commit', fence, this.driver.kind);
    this.#rooms.steps.commit(batch, fence);
    this.#rooms.news.hearFences();
    this.#rooms.late.attempt(() => this.prefixes.tellRouters());
  }

  /** The pass failed or was not run: its tokens do not count, their memory stays mapped. `fence` as `commit`'s. Throws as that. */
  discard(batch: Batch, options?: CommitOptions): void {
    const fence = readFence('KvCache.discard', options, this.#rooms.fences.given);
    this.#checkOpen('discard a batch');
    checkFence('KvCache.discard', fence, this.driver.kind);
    this.#rooms.steps.discard(batch, fence);
    this.#rooms.news.hearFences();
  }

  /** The engine's work up to and including its step `step` is over: fences of steps up to it pass. */
  completeStep(step: number): void {
    checkInteger('KvCache.completeStep', 'step', step);
    this.#checkOpen('complete a step');
    this.#rooms.fences.completeStep(step);
    this.#rooms.news.hearFences();
  }

  /** Resolves when a slot is free. Rejects with KV_TIMEOUT, KV_ABORTED, KV_CLOSED or the driver's error; state is as before. */
  async slotFree(options: WaitOptions = {}): Promise<void> {
    await waitUntil('a free slot', readWaitOptions('KvCache.slotFree', options), () => {
      this.#checkOpen('wait for a slot');
      this.#rooms.leases.pollRetirement();
      return this.#rooms.table.hasFree();
    }, this.capacityChange(), 'Release sequences, raise `timeoutMs`, or open the cache with more `slots`.');
  }

  /** How those notice who wait for slots or pages that there may be more. Fences on streams can only be asked for. @internal */
  capacityChange(): Noticing {
    return { signals: [this.pool.capacity, deviceLost], mustAsk: () => this.#rooms.fences.hasEvents };
  }

  /** Resolves when the mapper has nothing left to do. Rejects with KV_TIMEOUT, KV_ABORTED or KV_CLOSED; state is as before. */
  async settled(options: WaitOptions = {}): Promise<void> {
    await waitUntil('the mapper', readWaitOptions('KvCache.settled', options), () => {
      this.#checkOpen('wait for the mapper');
      const { isIdle } = this.#rooms.native.mapperState();
      this.#rooms.news.hear();
      return isIdle;
    }, byAsking, 'Raise `timeoutMs`, or map earlier with `growth: ahead(…)`.');
  }

  /** The moment's counts. */
  counts(): CacheCounts {
    this.#checkOpen('count its slots');
    this.#rooms.news.hear();
    return this.#rooms.accounts.counts();
  }

  /** Sums since the cache was opened. */
  get metrics(): CacheMetrics {
    this.#checkOpen('read its metrics');
    return this.#rooms.accounts.metrics();
  }

  /** Checks that pages and rows add up everywhere. Throws KV_INTERNAL. */
  verify(): void {
    this.#checkOpen('verify it');
    this.#rooms.accounts.verify();
  }

  /** All there is to know, as plain objects, for a bug report. */
  inspect(): Readonly<Record<string, unknown>> {
    this.#checkOpen('inspect it');
    return this.#rooms.accounts.inspect();
  }

  /**
   * Writes a pattern made of `key`, tensor and token into tokens [fromToken, fromToken + tokens) of every tensor, so that a
   * test can prove whose bytes are where. The tokens must have memory. Returns the bytes written.
   */
  stamp(sequence: Sequence, fromToken: number, tokens: number, key: number | bigint): number {
    this.#checkOpen('stamp');
    return this.#rooms.stamps.write(sequence, fromToken, tokens, key);
  }

  /** Counts the tokens of which any tensor differs from what `stamp` wrote under `key`. */
  verifyStamp(sequence: Sequence, fromToken: number, tokens: number, key: number | bigint): number {
    this.#checkOpen('verify');
    return this.#rooms.stamps.countWrong(sequence, fromToken, tokens, key);
  }

  /**
   * Detaches views, stops the mapper, unmaps everything, frees the addresses, and closes the pool if it is the cache's own.
   * Throws KV_DRIVER_IN_USE while a scheduler's engine computes on it; that no other work on it will be launched is the caller's
   * word. Streams named in fences are waited for. Idempotent; after a failure of the driver call it again, it goes on.
   */
  close(): void {
    if (this.#state === 'closed') return;
    this.pool.guard.check('close the cache');
    this.passes.checkNone();
    if (this.#state === 'open') {
      this.#state = 'closing';
      for (let slot = 0; slot < this.#rooms.table.count; slot += 1) this.#rooms.table.generation[slot]! += 1;
      this.#rooms.views.revokeAll();
      this.prefixes.close();
    }
    this.#rooms.fences.finish();
    this.#rooms.native.close();
    this.pool.removeUser(this.#membership.memory);
    if (this.#rooms.ownsPool) this.pool.close();
    else this.#rooms.late.attempt(() => this.pool.keepToBudget());
    this.#state = 'closed';
    unclosed.unregister(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #sequenceOwner(): SequenceOwner {
    return {
      table: this.#rooms.table,
      checkOpen: (operation) => this.#checkOpen(operation),
      release: (slot, fence) => {
        this.#release(slot, fence);
      },
      truncate: (slot, tokens) => {
        checkInteger('Sequence.truncate', 'tokens', tokens, 0, this.#rooms.table.length[slot]!, 'It can only become shorter.');
        this.#checkIdle(slot, 'truncate');
        this.#rooms.table.length[slot] = tokens;
        this.#rooms.late.attempt(() => this.prefixes.sharing.truncate(slot));
        this.pool.capacity.raise();
      },
      fork: (slot) => {
        this.#checkIdle(slot, 'fork');
        this.driver.checkAlive();
        this.#rooms.news.hear();
        if (!this.#rooms.table.hasRoom(slot, this.#rooms.table.length[slot]!)) { // it has lost rows
          throw createError('KV_SLOT_BUSY', { slot, operation: 'fork', holder: 'the quarantine' });
        }
        const fork = this.#rooms.leases.fork(slot);
        const cachedTokens = this.#rooms.table.length[fork]!;
        const cachedBy = { adoptedTokens: 0, aliasedTokens: cachedTokens, copiedTokens: 0 };
        return { slot: fork, cachedTokens, cachedBy, pendingTokens: 0, keptValue: undefined };
      },
      keepValue: (slot, value) => {
        this.#checkOpen('keep a value');
        this.#rooms.news.hear();
        const path = this.prefixes.texts.of(slot)?.path;
        return path?.length === this.#rooms.table.length[slot] && path !== undefined && this.prefixes.index.keepValue(path, value);
      },
      append: (slot, tokens) => {
        this.#checkOpen('append tokens');
        const text = this.prefixes.texts.of(slot);
        if (text !== undefined) this.prefixes.texts.append(text, tokens, this.#rooms.table.length[slot]!);
      },
      address: (tensor, slot) => {
        const { address, strides } = this.#tensor(tensor, 'Sequence.address');
        return address + BigInt(slot * strides.slotBytes);
      },
      view: (tensor, slot) => {
        const placement = this.#tensor(tensor, 'Sequence.view');
        checkHostAccess(this.driver.kind, this.driver.info.hasHostAccess);
        this.#rooms.native.publish();
        const pages = this.layout.pagesIn(placement.reservation, this.#rooms.table.ownRows(slot));
        return this.#rooms.views.open(slot, placement, pages * this.layout.pageBytes);
      },
    };
  }

  #release(slot: number, fence: GivenFence): void {
    this.#checkOpen('release a sequence');
    checkFence('Sequence.release', fence, this.driver.kind);
    this.#rooms.news.hear();
    this.#rooms.leases.release(slot, fence, this.#rooms.steps.batchOf(slot));
    this.#rooms.leases.keepEagerRows();
  }

  #checkIdle(slot: number, operation: string): void {
    this.#checkOpen(`${operation} a sequence`);
    if (this.#rooms.steps.batchOf(slot) === undefined) return;
    throw createError('KV_SLOT_BUSY', { slot, operation, holder: 'a prepared batch' });
  }

  #tensor(index: number, owner: string): Tensor {
    const hint = typeof index === 'number' ? undefined : "Give the tensor's `index`.";
    checkInteger(owner, 'tensor', index, 0, this.tensors.length - 1, hint);
    return this.tensors[index]!;
  }

  #lease(request: AdmissionRequest): Admitted {
    try {
      return this.#rooms.leases.acquire(request);
    } catch (error) {
      this.#rooms.news.hearOfPages(error);
      return this.#rooms.leases.acquire(request);
    }
  }

  #checkOpen(operation: string): void {
    if (this.#state !== 'open') throw createError('KV_CLOSED', { operation, owner: 'KvCache' });
    this.pool.guard.check(operation);
  }
}
