// KvCache: one long stretch of addresses per tensor, and memory under it only where sequences are. The house's front door:
// it checks calls and joins the rooms behind it: leases (who has which slot), steps (the hot path), supply (rows), accounts.
// For one Node thread; workers open their own.
//
// Invariants: the `length + prepared` tokens of a sequence always have memory; a slot changes hands only when idle, that is
// released and past its fence; no public method leaves half a change behind.

import { createError, isKvError } from '../errors/index.js';
import { checkInteger } from '../options.js';
import type { CacheCounts, CacheMetrics } from './accounts.js';
import { checkAppended, readAcquireOptions, type AcquireOptions } from './acquire-options.js';
import type { AdmissionRequest, Admitted } from './admission.js';
import { Batch } from './batch.js';
import { openRooms, type CacheRooms, type Tensor } from './cache-rooms.js';
import type { Driver } from './driver.js';
import { GivenFence, readFence, type CommitOptions } from './fence.js';
import { readKvCacheOptions, type KvCacheOptions } from './kv-cache-options.js';
import type { Layout } from './layout.js';
import type { NativeCache } from './native.js';
import type { PagePool } from './page-pool.js';
import type { Prefixes } from './prefix/prefixes.js';
import type { Room } from './room.js';
import { Sequence, type SequenceOwner } from './sequence.js';
import { unclosed, type Unclosed } from './unclosed.js';
import { checkHostAccess } from './views.js';
import { readWaitOptions, waitUntil, type WaitOptions } from './wait.js';

export class KvCache {
  readonly layout: Layout;
  readonly pool: PagePool;
  /** What is cached of prompts, and what it was worth. */
  readonly prefixes: Prefixes;
  /** Every tensor on this worker, in layer order, K before V. */
  readonly tensors: readonly Tensor[];
  /** @internal */
  readonly room: Room;
  readonly #rooms: CacheRooms;
  readonly #owner: SequenceOwner;
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
    this.pool.addUser(rooms.supply, rooms.native);
    unclosed.register(this, unclosedCache(rooms.native, rooms.pool), this);
    rooms.leases.keepEagerRows();
  }

  get driver(): Driver {
    return this.pool.driver;
  }

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
    this.#hearNews();
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
   */
  prepare(batch: Batch): void {
    this.#checkOpen('prepare a batch');
    try {
      this.#rooms.steps.prepare(batch);
    } catch (error) {
      this.#hearOfPages(error);
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
    this.#rooms.steps.commit(batch, fence);
    this.#hearFences();
    this.#rooms.late.attempt(() => this.prefixes.tellRouters());
  }

  /** The pass failed or was not run: its tokens do not count, their memory stays mapped. `fence` as `commit`'s. Throws as that. */
  discard(batch: Batch, options?: CommitOptions): void {
    const fence = readFence('KvCache.discard', options, this.#rooms.fences.given);
    this.#checkOpen('discard a batch');
    this.#rooms.steps.discard(batch, fence);
    this.#hearFences();
  }

  /** The engine's work up to and including its step `step` is over: fences of steps up to it pass. */
  completeStep(step: number): void {
    checkInteger('KvCache.completeStep', 'step', step);
    this.#checkOpen('complete a step');
    this.#rooms.fences.completeStep(step);
    this.#hearFences();
  }

  /** Resolves when a slot is free. Rejects with KV_TIMEOUT, KV_ABORTED, KV_CLOSED or the driver's error; state is as before. */
  async slotFree(options: WaitOptions = {}): Promise<void> {
    await waitUntil('a free slot', readWaitOptions('KvCache.slotFree', options), () => {
      this.#checkOpen('wait for a slot');
      this.#rooms.leases.pollRetirement();
      return this.#rooms.table.hasFree();
    });
  }

  /** Resolves when the mapper has nothing left to do. Rejects with KV_TIMEOUT, KV_ABORTED or KV_CLOSED; state is as before. */
  async settled(options: WaitOptions = {}): Promise<void> {
    await waitUntil('the mapper', readWaitOptions('KvCache.settled', options), () => {
      this.#checkOpen('wait for the mapper');
      const { isIdle } = this.#rooms.native.mapperState();
      this.#hearNews();
      return isIdle;
    });
  }

  /** The moment's counts. */
  counts(): CacheCounts {
    this.#checkOpen('count its slots');
    this.#hearNews();
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
   * It is the caller's word that no more work on this memory will be launched; streams named in fences are waited for.
   * Sequences are stale from here on. Idempotent; after a failure of the driver call it again, it goes on where it was.
   */
  close(): void {
    if (this.#state === 'closed') return;
    this.pool.guard.check('close the cache');
    if (this.#state === 'open') {
      this.#state = 'closing';
      for (let slot = 0; slot < this.#rooms.table.count; slot += 1) this.#rooms.table.generation[slot]! += 1;
      this.#rooms.views.revokeAll();
      this.prefixes.close();
    }
    this.#rooms.fences.finish();
    this.#rooms.native.close();
    this.pool.removeUser(this.#rooms.native);
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
      release: (slot, fence) => {
        this.#release(slot, fence);
      },
      truncate: (slot, tokens) => {
        checkInteger('Sequence.truncate', 'tokens', tokens, 0, this.#rooms.table.length[slot]!);
        this.#checkIdle(slot, 'truncate');
        this.#rooms.table.length[slot] = tokens;
        this.#rooms.late.attempt(() => this.prefixes.sharing.truncate(slot));
      },
      fork: (slot) => {
        this.#checkIdle(slot, 'fork');
        this.driver.checkAlive();
        this.#hearNews();
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
        this.#hearNews();
        const path = this.prefixes.texts.of(slot)?.path;
        return path?.length === this.#rooms.table.length[slot] && path !== undefined && this.prefixes.index.keepValue(path, value);
      },
      append: (slot, tokens) => {
        this.#checkOpen('append tokens');
        checkAppended(tokens);
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
    this.#hearNews();
    this.#rooms.leases.release(slot, fence, this.#rooms.steps.batchOf(slot));
    this.#rooms.leases.keepEagerRows();
  }

  #checkIdle(slot: number, operation: string): void {
    this.#checkOpen(`${operation} a sequence`);
    if (this.#rooms.steps.batchOf(slot) === undefined) return;
    throw createError('KV_SLOT_BUSY', { slot, operation, holder: 'a prepared batch' });
  }

  #tensor(index: number, owner: string): Tensor {
    checkInteger(owner, 'tensor', index, 0, this.tensors.length - 1);
    return this.tensors[index]!;
  }

  #lease(request: AdmissionRequest): Admitted {
    try {
      return this.#rooms.leases.acquire(request);
    } catch (error) {
      this.#hearOfPages(error);
      return this.#rooms.leases.acquire(request);
    }
  }

  /** Before a refusal for want of pages stands, fences are asked. Throws it if none has passed that pages were behind. */
  #hearOfPages(error: unknown): void {
    if (!isKvError(error, 'KV_OUT_OF_PAGES') || !this.#rooms.leases.hearAllFences()) throw error;
  }

  /** What happened meanwhile: rows the mapper mapped, fences passed, texts that went on, failures nobody waited for. */
  #hearNews(): void {
    this.#rooms.native.publish();
    this.#hearFences();
    this.#rooms.late.attempt(() => this.prefixes.sharing.tell());
    this.#rooms.late.hear(this.#rooms.native.mapperState());
  }

  #hearFences(): void {
    this.#rooms.late.attempt(() => this.#rooms.leases.pollRetirement());
  }

  #checkOpen(operation: string): void {
    if (this.#state !== 'open') throw createError('KV_CLOSED', { operation, owner: 'KvCache' });
    this.pool.guard.check(operation);
  }
}

/** Must not refer to the cache: the addon's part of it, and the pool that knows it. */
function unclosedCache(memory: NativeCache, pool: PagePool): Unclosed {
  return {
    what: 'A KvCache',
    giveBack: () => {
      memory.close();
      pool.removeUser(memory);
    },
  };
}
