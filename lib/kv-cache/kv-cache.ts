// KvCache: one long stretch of addresses per tensor, and memory under it only where sequences are. The public face: it
// checks what callers give and passes it on to the parts that `openCache` builds: leases (which sequence has which
// slot), steps (the hot path), prefixes, statistics. For one Node thread; workers open their own.
//
// Invariants: the `length + prepared` tokens of a sequence always have memory; a slot changes hands only when idle,
// that is released and past its fence; no public method leaves half a change behind.

import { callable, checkInteger, readArray } from '../base/options.js';
import { checkStack, type Lifetime } from '../device/cache-calls.js';
import type { Driver } from '../device/driver.js';
import type { PagePool, PoolMember } from '../device/page-pool.js';
import { unclosed, type Membership } from '../device/weak-users.js';
import { leaseCheck, Sequence, type TokenSelection } from '../cache/sequence.js';
import type { Layout } from '../layout/layout.js';
import { readAcquireOptions, type AcquireOptions } from './acquire-options.js';
import { Batch } from '../cache/batch.js';
import { layersOf, type CacheLayer } from './cache-layers.js';
import { pictureOf, type CachePicture } from './cache-picture.js';
import { checkFence, readFence, type CommitOptions } from '../cache/slot-fences.js';
import { readKvCacheOptions, type KvCacheOptions } from './kv-cache-options.js';
import { openCache, unclosedCache, type CacheParts } from './open-cache.js';
import { writeSequences, writeTensors, type PassArrays } from './native-structs.js';
import type { Prefixes } from './prefixes.js';
import type { RowRegistry } from '../cache/row-registry.js';
import { readSideRows, type RowPlaces, type SideRowsByName } from '../side/side-rows.js';
import type { SideCounts } from '../side/side-budget.js';
import type { SideTensorInfo } from '../side/side-tensors.js';
import type { SlotAccess } from '../cache/slot-access.js';
import type { Tensor } from '../cache/slots.js';
import type { CacheCounts, CacheMetrics } from './statistics.js';
import { byAsking, deviceLost, readWaitOptions, waitUntil, type Noticing, type WaitOptions } from '../device/wait.js';

/**
 * The KV cache of one model on one device: slots of contiguous addresses, and pages where sequences are. For one Node
 * thread.
 */
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
  readonly access: SlotAccess;
  /** @internal */
  readonly lifetime: Lifetime;
  readonly #layers: ReadonlyMap<number, CacheLayer>;
  readonly #parts: CacheParts;
  readonly #membership: Membership<PoolMember>;
  /** Of `step`, in no step now. */
  readonly #batches: Batch[] = [];

  /**
   * Reserves the addresses; maps nothing yet. Throws on bad options, KV_OUT_OF_ADDRESS_SPACE, and what the driver
   * throws.
   */
  constructor(options: KvCacheOptions) {
    const parts = openCache(readKvCacheOptions(options), this);
    const { memory, supply, leases, tiers } = parts;
    this.layout = parts.layout;
    this.pool = memory.pool;
    this.prefixes = parts.prefixes;
    this.tensors = memory.tensors;
    this.access = parts.access;
    this.lifetime = parts.lifetime;
    this.#layers = layersOf(memory);
    this.#parts = parts;
    this.#membership = this.pool.addUser({ supply, leases, tiers }, memory.native);
    unclosed.register(this, unclosedCache(parts), this);
    supply.keepEager();
  }

  /** Whether it is a KvCache that was opened, and no object that only has its prototype. @internal */
  static isInstance(value: unknown): value is KvCache {
    return typeof value === 'object' && value !== null && #parts in value;
  }

  /** The driver of its pool. */
  get driver(): Driver {
    return this.pool.driver;
  }

  /** Sequences that can be alive at once: the option `slots`. The layout has a few slots more where there are tiers. */
  get maxSequences(): number {
    return this.#parts.memory.slots.sequences;
  }

  /**
   * Most pages that a sequence of `tokens` tokens has, of which `promptTokens` are its prompt: in layers that keep the
   * last tokens alone, those of a pass over its prompt. @internal
   */
  pagesFor(tokens: number, promptTokens = tokens): number {
    const { layout, windows } = this.#parts.memory;
    return layout.pagesFor(layout.rowsFor(tokens)) + (windows?.pagesOfPrompt(promptTokens) ?? 0);
  }

  /** Tokens of a prompt that layers with a window hold at once; Infinity: all. @internal */
  get passTokens(): number {
    return this.#parts.memory.windows?.passTokens ?? Infinity;
  }

  /** Whether `truncate` always takes so many tokens back. @internal */
  canTakeBack(tokens: number): boolean {
    return this.#parts.memory.windows?.canTakeBack(tokens) ?? true;
  }

  /** Whether `close` has ended. Every other call then throws KV_CLOSED. */
  get isClosed(): boolean {
    return this.lifetime.isClosed;
  }

  /**
   * The tensors of a layer, by its number in the whole model, for an engine's kernels: addresses, strides in elements,
   * views. The same object each time. Throws KV_INVALID_OPTION for a layer that this worker does not hold.
   */
  layer(layer: number): CacheLayer {
    this.lifetime.check('find a layer');
    const known = this.#layers.get(layer);
    if (known === undefined) {
      const numbers = [...this.#layers.keys()];
      checkInteger('KvCache.layer', 'layer', layer, Math.min(...numbers), Math.max(...numbers));
    }
    return known!; // a worker's layers follow each other
  }

  /**
   * For a native engine: writes every tensor as a `vkv_tensor` of include/virtual_kv.h, 8 elements each, in the order
   * of `tensors`; returns how many. They hold until the cache is closed. Throws KV_INVALID_OPTION.
   */
  writeTensors(into: BigInt64Array): number {
    this.lifetime.check('write its tensors');
    return writeTensors(this.#parts.memory, into);
  }

  /**
   * For a native engine, between `prepare` and `commit`: writes each sequence of the batch, or of a scheduler's pass,
   * as a `vkv_sequence` of include/virtual_kv.h, 4 elements each; returns how many. Throws KV_INVALID_OPTION and
   * KV_BATCH_STATE.
   */
  writeSequences(pass: Batch | PassArrays, into: Int32Array): number {
    this.lifetime.check('write the sequences of a pass');
    return writeSequences(this.#parts.memory, pass, into);
  }

  /**
   * Leases a slot to a sequence. Throws KV_NO_FREE_SLOT, KV_OUT_OF_PAGES (the prompt's pages cannot be set aside),
   * KV_LENGTH_OUT_OF_RANGE or KV_DRIVER_LOST; then nothing has changed.
   */
  acquire(options: AcquireOptions = {}): Sequence {
    const read = readAcquireOptions(options);
    this.lifetime.checkBeginning('acquire a slot');
    const { leases, supply, ahead, memory } = this.#parts;
    const { promptTokens, reserve, tenant, stream } = read;
    const { side } = this.#parts;
    const needs =
      read.needs === undefined ? side.everything : side.names.bitsOf('KvCache.acquire', 'needs', read.needs);
    const prompt = this.prefixes.promptOf(read);
    const selected = prompt === undefined ? undefined : read.selected;
    if (selected !== undefined) this.#parts.tiers!.selections.check(selected, prompt!);
    const admitted = leases.acquire({
      promptTokens, isEarmarked: reserve === 'prompt' && promptTokens > 0, tenant: memory.tenantNumber(tenant), prompt,
      needs, stream,
      isTransfer: false,
    });
    let selection: TokenSelection | undefined;
    try {
      selection = selected && this.#parts.tiers!.selections.begin(
        selected, admitted, prompt!.domain, leaseCheck(this.#parts, admitted.slot));
      ahead.requestFor(admitted.slot);
      supply.keepEager();
      const demotedTokens = this.prefixes.admitted(prompt, admitted, needs);
      return new Sequence(this.#parts, admitted, { demotedTokens, selection });
    } catch (error) { // a growth policy's, or there is no memory for what is selected
      leases.release(admitted.slot);
      selection?.end();
      throw error;
    }
  }

  /**
   * A batch with room for `capacity` sequences (default: all slots); it grows by itself. Reuse it: clear, add, prepare,
   * commit.
   */
  createBatch(capacity = this.maxSequences): Batch {
    checkInteger('KvCache.createBatch', 'capacity', capacity);
    this.lifetime.check('create a batch');
    return new Batch(this.#parts.memory.slots, this.layout.maxTokens, Math.min(capacity, this.layout.slots));
  }

  /**
   * Before a forward pass: gives every sequence of the batch memory for its tokens, or changes nothing. Throws
   * KV_OUT_OF_PAGES with the needed and the available rows (release or preempt a sequence, then try again),
   * KV_SLOT_BUSY when a sequence is in another prepared batch, KV_WORK_QUEUED when a row must first be copied or
   * unmapped behind a step of the engine, KV_SLOT_RELEASED, KV_BATCH_STATE, or the driver's error. In steady decode it
   * maps nothing.
   *
   * A batch keeps what was added until `clear`: prepared again after `commit`, it asks for as many tokens once more
   * behind the new lengths; after `discard`, for the same ones.
   */
  prepare(batch: Batch): void {
    this.lifetime.check('prepare a batch');
    const { leases, steps } = this.#parts;
    try {
      steps.prepare(batch);
    } catch (error) {
      leases.checkRetry(error);
      steps.prepare(batch);
    }
  }

  /**
   * Between `prepare` and `commit`: writes what the pass computed for side tensors, by name, each [tokens of the batch,
   * width] packed in the batch's order, as a typed array of its dtype (`HandOver.rows` says which). From `commit` on
   * the rows are handed over and cached. Sequences that do not carry a tensor are passed over. Throws KV_INVALID_OPTION
   * (another dtype, another number of elements, no such tensor), KV_SIDE_STATE, KV_BATCH_STATE, or the driver's error;
   * then nothing counts as written.
   */
  writeSide(batch: Batch, rows: SideRowsByName): void {
    const read = readSideRows('KvCache.writeSide', rows);
    this.lifetime.enter('write side tensors');
    Batch.check(batch, this.#parts.memory.slots, 'writeSide', true);
    this.#parts.sideRows.writeBatch('KvCache.writeSide', batch, read);
  }

  /** As `writeSide`, for some sequences of a prepared batch. @internal */
  writeSideRows(places: RowPlaces, rows: SideRowsByName): void {
    const read = readSideRows('EngineOutput.side', rows);
    this.lifetime.enter('write side tensors');
    this.#parts.sideRows.writeBatch('EngineOutput.side', places, read);
  }

  /**
   * After the pass, or once it is queued: the batch's tokens are valid for work queued behind it. `fence` names queued
   * work of the pass: the memory that it uses goes to no other sequence before it is over. The mapper is asked for the
   * rows that come next. A sequence released since `prepare` is passed over. Throws KV_BATCH_STATE, KV_INVALID_OPTION,
   * and the driver's error when a stream is first named; then nothing has changed. An error of the growth policy is
   * thrown when the commit is done.
   */
  commit(batch: Batch, options?: CommitOptions): void {
    const fence = readFence('KvCache.commit', options, this.#parts.memory.fences.given);
    this.lifetime.check('commit a batch');
    this.#checkStack();
    checkFence('KvCache.commit', fence, this.driver);
    this.#parts.steps.commit(batch, fence);
    this.#pollFences();
    if (this.prefixes.hasBlockEvents) this.#parts.memory.background.attempt(() => this.prefixes.publishBlockEvents());
  }

  /**
   * The pass failed or was not run: its tokens do not count, their memory stays mapped. `fence` as `commit`'s. Throws
   * as that.
   */
  discard(batch: Batch, options?: CommitOptions): void {
    const fence = readFence('KvCache.discard', options, this.#parts.memory.fences.given);
    this.lifetime.enter('discard a batch');
    checkFence('KvCache.discard', fence, this.driver);
    this.#parts.steps.discard(batch, fence);
    this.#pollFences();
  }

  /**
   * A step as a whole: gives each sequence memory for its number of new tokens, or none of them; lets `compute` run the
   * pass over the batch, in the order of `entries`; and makes the tokens valid, or discards them where `compute` throws
   * or rejects. Steps may overlap where their sequences differ. The batch is used again once the step is over. Resolves
   * with the result of `compute`; rejects with its error, and as `prepare` and `commit` throw. `options` as
   * `commit`'s; they hold for a pass that failed, too.
   */
  async step<T>(
    entries: readonly (readonly [sequence: Sequence, tokens: number])[], compute: (batch: Batch) => T | PromiseLike<T>,
    options?: CommitOptions,
  ): Promise<T> {
    const owner = 'KvCache.step';
    const list = readStepEntries(entries);
    callable<typeof compute>()(compute, { owner, option: 'compute' });
    checkFence(owner, readFence(owner, options, this.#parts.memory.fences.given), this.driver);
    this.lifetime.check('begin a step');
    const batch = this.#batches.pop() ?? this.createBatch();
    try {
      batch.clear();
      for (const [sequence, tokens] of list) batch.add(sequence, tokens);
      this.prepare(batch);
      const answer = await compute(batch);
      this.commit(batch, options);
      return answer;
    } catch (error) {
      if (batch.isPrepared && !this.isClosed) {
        this.#parts.memory.background.attempt(() => { this.discard(batch, options); });
      }
      throw error;
    } finally {
      if (!batch.isPrepared) this.#batches.push(batch);
    }
  }

  /** The engine's work up to and including its step `step` is over: fences of steps up to it pass. */
  completeStep(step: number): void {
    checkInteger('KvCache.completeStep', 'step', step);
    this.lifetime.enter('complete a step');
    this.#parts.memory.fences.completeStep(step);
    this.#pollFences();
  }

  /**
   * Resolves when a slot is free. Rejects with KV_TIMEOUT, KV_ABORTED, KV_CLOSED or the driver's error; state is as
   * before.
   */
  async slotFree(options: WaitOptions = {}): Promise<void> {
    await waitUntil('a free slot', readWaitOptions('KvCache.slotFree', options), () => {
      this.lifetime.enter('wait for a slot');
      this.#parts.leases.pollRetirement();
      return this.#parts.memory.slots.hasFree();
    }, this.capacityChange(), 'Release sequences, raise `timeoutMs`, or open the cache with more `slots`.');
  }

  /** For tests: the rows that can be shared, and which slots map them. @internal */
  get rows(): RowRegistry {
    return this.#parts.cached.registry;
  }

  /**
   * Signals that a caller which waits for slots or pages listens to. Fences on streams give no signal and must be
   * polled. @internal
   */
  capacityChange(): Noticing {
    return {
      signals: [this.pool.capacity, deviceLost],
      mustAsk: () => this.#parts.memory.fences.hasEvents || !this.#parts.side.copies.isIdle,
    };
  }

  /**
   * Resolves when the mapper has nothing left to do. Rejects with KV_TIMEOUT, KV_ABORTED or KV_CLOSED; state is as
   * before.
   */
  async settled(options: WaitOptions = {}): Promise<void> {
    await waitUntil('the mapper', readWaitOptions('KvCache.settled', options), () => {
      this.lifetime.enter('wait for the mapper');
      this.#parts.leases.synchronize();
      return this.#parts.memory.isMapperIdle;
    }, byAsking, 'Raise `timeoutMs`, or map earlier with `growth: ahead(…)`.');
  }

  /** The moment's counts. */
  counts(): CacheCounts {
    this.lifetime.enter('count its slots');
    this.#parts.leases.synchronize();
    return this.#parts.statistics.counts();
  }

  /** Side tensors, in the order of their names in the options. */
  get sideTensors(): readonly SideTensorInfo[] {
    return this.#parts.side.infos;
  }

  /** Memory of the side tensors at this moment. */
  sideCounts(): SideCounts {
    this.lifetime.enter('count its side tensors');
    this.#parts.leases.synchronize();
    return this.#parts.side.counts();
  }

  /**
   * Raises or lowers `sideBudgetBytes`. Lowering evicts cached rows at once; sequences and hand-overs keep what they
   * have. Throws KV_INVALID_OPTION, and what the driver throws.
   */
  setSideBudget(bytes: number): void {
    checkInteger('KvCache.setSideBudget', 'bytes', bytes, 1);
    this.lifetime.enter('set its side budget');
    this.#parts.leases.synchronize();
    this.#parts.side.budget.set(bytes);
    this.pool.capacity.raise();
  }

  /** Sums since the cache was opened. */
  get metrics(): CacheMetrics {
    this.lifetime.enter('read its metrics');
    return this.#parts.statistics.metrics();
  }

  /** Checks that pages and rows add up everywhere. Throws KV_INTERNAL. */
  verify(): void {
    this.lifetime.check('verify it');
    this.#parts.statistics.verify();
    this.#parts.tiers?.verify();
  }

  /** What it looks like, for those that watch it: bounded in size and in time, by one crossing. @internal */
  picture(): CachePicture {
    this.lifetime.check('draw it');
    return pictureOf(this.#parts.memory, this.#parts.cached);
  }

  /** All there is to know, as plain objects, for a bug report. */
  inspect(): Readonly<Record<string, unknown>> {
    this.lifetime.check('inspect it');
    return this.#parts.statistics.inspect();
  }

  /**
   * Writes a pattern made of `key`, tensor and token into tokens [fromToken, fromToken + tokens) of every tensor, so
   * that a test can prove whose bytes are where. The tokens must have memory. Returns the bytes written.
   */
  stamp(sequence: Sequence, fromToken: number, tokens: number, key: number | bigint): number {
    this.lifetime.enter('stamp');
    return this.#parts.access.stamp(sequence, fromToken, tokens, key);
  }

  /** Counts the tokens of which any tensor differs from what `stamp` wrote under `key`. */
  verifyStamp(sequence: Sequence, fromToken: number, tokens: number, key: number | bigint): number {
    this.lifetime.enter('verify');
    return this.#parts.access.countWrong(sequence, fromToken, tokens, key);
  }

  /**
   * Ends all in order: no request and no sequence begins any more; the schedulers end theirs and wait for the engine's
   * pass; queued work of released sequences ends; the tiers store finished text and close; the cache closes.
   * Rejects with KV_TIMEOUT or KV_ABORTED while an engine does not answer, and with KV_TIER_STALLED or the error of a
   * tier's `close` once all else is closed. May be called again.
   */
  async shutdown(options: WaitOptions = {}): Promise<void> {
    if (this.isClosed) return;
    readWaitOptions('KvCache.shutdown', options);
    this.lifetime.beginShutdown();
    await Promise.all(this.lifetime.schedulers.map((scheduler) => scheduler.close(options)));
    const { memory, leases } = this.#parts;
    if (!this.isClosed) {
      memory.background.attempt(() => {
        memory.fences.finish();
        leases.pollRetirement();
      });
    }
    try {
      await this.prefixes.tiers?.close();
    } finally {
      this.close();
    }
  }

  /**
   * Detaches views, stops the mapper, unmaps everything, frees the addresses, and closes the pool if it is the cache's
   * own. Throws KV_DRIVER_IN_USE, and changes nothing, while a scheduler's engine computes on it, another cache uses
   * its own pool, or kernels or memory the driver that it opened; that no other work on it will be launched is the
   * caller's word. Streams named in fences are waited for. Finished text that tiers were not offered yet is lost, and a
   * warning says so once: `shutdown` stores it. Idempotent; after a failure of the driver call it again, it goes on.
   */
  close(): void {
    if (this.lifetime.isClosed) return;
    const { memory, side, closeMemory, closeSide, ownsPool } = this.#parts;
    const { views, windows, background, slots, fences } = memory;
    if (ownsPool) this.pool.checkUsers(1);
    if (this.lifetime.beginClose()) {
      this.#parts.tiers?.end();
      slots.endAll();
      this.#parts.tiers?.selections.endAll();
      views.revokeAll();
      for (const set of windows?.all ?? []) set.views.revokeAll();
      side.close();
      this.prefixes.close();
    }
    fences.finish();
    closeSide();
    closeMemory();
    this.pool.removeUser(this.#membership.memory);
    if (ownsPool) this.pool.close();
    else background.attempt(() => this.pool.keepToBudget());
    this.lifetime.endClose();
    unclosed.unregister(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.shutdown();
  }

  #pollFences(): void {
    const { leases, memory } = this.#parts;
    if (leases.waiting > 0) memory.background.attempt(() => { leases.pollRetirement(); });
  }

  /** Before a commit, where it does more than a step of steady decode. */
  #checkStack(): void {
    if (this.#parts.leases.waiting > 0 || this.prefixes.hasBlockEvents) checkStack();
  }
}

const stepEntries = { owner: 'KvCache.step', option: 'entries' } as const;

/** Throws KV_INVALID_OPTION for what is no array of pairs; `Batch.add` checks what is in them. */
function readStepEntries(entries: unknown): (readonly [Sequence, number])[] {
  return readArray(entries, stepEntries, (entry) => {
    const [sequence, tokens] = readArray(entry, stepEntries, (part) => part);
    return [sequence as Sequence, tokens as number];
  });
}
