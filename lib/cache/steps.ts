// Steps: the hot path. Before a forward pass every sequence of the batch gets memory for its tokens, after it their
// lengths advance and the mapper hears what will be needed soon. Loops over typed arrays; in steady decode it neither
// allocates nor crosses into the addon.

import { createError, isKvError } from '../base/errors.js';
import { checkInteger } from '../base/options.js';
import { checkStack, checkStackOfStep, type PolicyGuard } from '../device/cache-calls.js';
import type { SideTensors } from '../side/side-tensors.js';
import { Batch } from './batch.js';
import type { CachedRows } from './cached-rows.js';
import type { RowRegistry } from './row-registry.js';
import type { CopyRoom, RowSharing } from './row-sharing.js';
import type { RowSupply } from './row-supply.js';
import { GivenFence } from './slot-fences.js';
import { noForeignRow, type SlotMemory, type Slots } from './slots.js';
import { nothingMissing, type WindowSets } from './window-sets.js';

/** Of a slot that was released already: what it has is recorded. */
const released = new GivenFence();

export class Steps {
  readonly #memory: SlotMemory;
  readonly #slots: Slots;
  readonly #rows: BatchRows;
  readonly #cached: CachedRows;
  readonly #fences: SlotMemory['fences'];
  readonly #side: SideTensors;
  readonly #ahead: RowsAhead;
  readonly #windows: WindowSets | undefined;

  constructor(memory: SlotMemory, rows: BatchRows, cached: CachedRows, side: SideTensors, ahead: RowsAhead) {
    this.#memory = memory;
    this.#slots = memory.slots;
    this.#rows = rows;
    this.#cached = cached;
    this.#fences = memory.fences;
    this.#side = side;
    this.#ahead = ahead;
    this.#windows = memory.windows;
  }

  prepare(batch: Batch): void {
    Batch.check(batch, this.#slots, 'prepare', false);
    const { slots, tokens, generations, length } = batch;
    const numbers = this.#slots;
    const { generation, prepared, length: lengths, sharedTail } = numbers;
    const { maxTokens } = this.#memory.layout;
    const hasSide = this.#side.everything > 0;
    const windows = this.#windows;
    let lacking = 0;
    let sharing = 0;
    let lackingSide = 0;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      if (generation[slot] !== generations[index]) throw this.#stale(slot, generations[index]!);
      if (prepared[slot] !== 0) {
        throw createError('KV_SLOT_BUSY', { slot, operation: 'prepare', holder: 'another prepared batch' });
      }
      // Its length may have changed since `add`, by a truncate or by another batch.
      const lengthTokens = lengths[slot]! + tokens[index]!;
      if (lengthTokens > maxTokens) {
        throw createError('KV_LENGTH_OUT_OF_RANGE', { slot, tokens: lengthTokens, maxTokens });
      }
      if (!numbers.hasRoom(slot, lengthTokens) || windows?.isLacking(slot, lengthTokens) === true) lacking += 1;
      if (sharedTail[slot] !== 0 || windows?.isSharing(slot) === true) sharing += 1;
      if (hasSide && this.#side.ready[slot]! < lengthTokens) lackingSide += 1;
    }
    if (lacking + sharing > 0 || this.#side.all.length > 0) checkStack();
    batch.setPrepared(true); // from here on it cannot be changed, by a policy either
    try {
      if (lacking + sharing > 0) this.#memory.background.attempt(() => { this.#cached.flushBesideWithheld(); });
      if (lackingSide > 0) this.#checkSide(batch); // before K and V make room
      if (sharing > 0) {
        this.#rows.makeWritable(batch);
        lacking += sharing; // it may have unmapped rows
      }
      numbers.prepareAll(slots, tokens, length);
      if (lacking > 0) this.#rows.grow(batch);
      if (lackingSide > 0) this.#side.ensure(batch);
    } catch (error) {
      for (let index = 0; index < length; index += 1) numbers.discard(slots[index]!);
      batch.setPrepared(false);
      throw error;
    }
  }

  /** Before it refuses, what was committed is cached: side pages that texts exchange for it are free then. */
  #checkSide(batch: Batch): void {
    try {
      this.#side.check(batch);
    } catch (error) {
      if (!isKvError(error, 'KV_OUT_OF_PAGES')) throw error;
      this.#memory.background.attempt(() => { this.#cached.flushCommits(); });
      this.#side.check(batch);
    }
  }

  /** `given`: what must be over before the memory that the batch used may change hands. */
  commit(batch: Batch, given: GivenFence): void {
    Batch.check(batch, this.#slots, 'commit', true);
    checkStackOfStep();
    const isFenced = this.#fences.open(given);
    if (this.#ahead.hasRequests) this.#memory.synchronize();
    const { slots, tokens, generations, length } = batch;
    const numbers = this.#slots;
    const { generation } = numbers;
    const known = this.#cached.tokens;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      if (generation[slot] !== generations[index]) { // released since prepare
        numbers.discard(slot);
        continue;
      }
      numbers.commit(slot, tokens[index]!);
      known.hasCommitted(slot);
    }
    if (isFenced) this.#note(batch, given, 0);
    const windows = this.#windows;
    if (windows !== undefined) this.#memory.background.attempt(() => { windows.commit(batch); });
    this.#finish(batch);
    // From here on the commit is done, whatever the growth policy does.
    this.#ahead.request(batch);
  }

  discard(batch: Batch, given: GivenFence): void {
    Batch.check(batch, this.#slots, 'discard', true);
    if (this.#fences.open(given)) this.#note(batch, given, 1);
    for (let index = 0; index < batch.length; index += 1) {
      const slot = batch.slots[index]!;
      this.#slots.discard(slot);
      if (this.#side.everything > 0 && this.#slots.generation[slot] === batch.generations[index]) {
        this.#side.discard(slot);
      }
    }
    this.#finish(batch);
  }

  /**
   * Prepares `more` tokens behind those of the only sequence of a prepared batch, whose computing goes on. Throws as
   * `prepare`, and changes nothing then.
   */
  extend(batch: Batch, more: number): void {
    const slot = batch.slots[0]!;
    const before = batch.tokens[0]!;
    const lengthTokens = this.#slots.length[slot]! + before + more;
    const { maxTokens } = this.#memory.layout;
    if (lengthTokens > maxTokens) {
      throw createError('KV_LENGTH_OUT_OF_RANGE', { slot, tokens: lengthTokens, maxTokens });
    }
    this.#setTokens(batch, before + more);
    try {
      if (!this.#slots.hasRoom(slot, lengthTokens)) this.#rows.grow(batch);
      if (this.#side.everything > 0) this.#side.ensure(batch);
    } catch (error) {
      this.#setTokens(batch, before);
      throw error;
    }
  }

  /** Commits the first `tokens` tokens of the only sequence of a prepared batch; those behind stay prepared. */
  commitFirst(batch: Batch, tokens: number): void {
    const rest = batch.tokens[0]! - tokens;
    if (rest === 0) {
      this.commit(batch, GivenFence.awaited);
      return;
    }
    if (this.#ahead.hasRequests) this.#memory.synchronize();
    const slot = batch.slots[0]!;
    this.#slots.commit(slot, tokens);
    this.#setTokens(batch, rest);
    this.#cached.tokens.hasCommitted(slot);
    this.#memory.pool.capacity.raise();
  }

  /** Discards the last `tokens` tokens of the only sequence of a prepared batch; those before stay prepared. */
  discardLast(batch: Batch, tokens: number): void {
    const rest = batch.tokens[0]! - tokens;
    if (rest === 0) this.discard(batch, GivenFence.awaited);
    else this.#setTokens(batch, rest);
  }

  #setTokens(batch: Batch, tokens: number): void {
    batch.tokens[0] = tokens;
    this.#slots.prepare(batch.slots[0]!, tokens);
  }

  /**
   * Notes the fence for every slot, of sequences released since `prepare` too. `added`: 1 when the batch's tokens do
   * not count.
   */
  #note({ slots, tokens, generations, length }: Batch, given: GivenFence, added: 0 | 1): void {
    const numbers = this.#slots;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      const end = numbers.length[slot]! + added * tokens[index]!;
      this.#fences.note(slot, given, end, end - tokens[index]!);
      if (numbers.generation[slot] !== generations[index]) {
        this.#memory.background.attempt(() => this.#fences.release(slot, released));
      }
    }
  }

  #finish(batch: Batch): void {
    batch.setPrepared(false);
    this.#memory.pool.capacity.raise();
  }

  #stale(slot: number, generation: number): Error {
    return createError('KV_SLOT_RELEASED', { slot, generation, currentGeneration: this.#slots.generation[slot]! });
  }
}

// BatchRows: the rows that a batch is about to write to. Maps what its sequences lack, and gives each that shares the
// row which it writes to next a row of its own. Nothing is copied or mapped unless all of it has room.

export class BatchRows {
  readonly #memory: SlotMemory;
  readonly #supply: RowSupply;
  readonly #registry: RowRegistry;
  readonly #sharing: RowSharing;
  /** Slots and the rows that each is to have, for the addon. */
  readonly #pairs: Int32Array;

  constructor(memory: SlotMemory, supply: RowSupply, registry: RowRegistry, sharing: RowSharing) {
    this.#memory = memory;
    this.#supply = supply;
    this.#registry = registry;
    this.#sharing = sharing;
    this.#pairs = new Int32Array(2 * memory.slots.count);
  }

  /** Maps what the batch lacks in the foreground, in every layer set, once the mapper's news are in. */
  grow(batch: Batch): void {
    this.#memory.synchronize();
    const { slots, tokens, length } = batch;
    const numbers = this.#memory.slots;
    let count = 0;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      const lengthTokens = numbers.length[slot]! + tokens[index]!;
      if (numbers.hasRoom(slot, lengthTokens)) continue;
      this.#pairs[2 * count] = slot;
      this.#pairs[2 * count + 1] = this.#memory.layout.rowsFor(lengthTokens);
      count += 1;
    }
    this.#memory.windows?.list(batch);
    this.#supply.grow(this.#pairs, count);
  }

  /**
   * Gives every sequence of the batch rows of its own where it is going to write: first those that no queued work uses,
   * so that the last user of a shared row is left alone with it. Nothing is copied unless all of it has room, behind
   * what is waited for, and no step is in the way.
   */
  makeWritable(batch: Batch): void {
    const { slots, tokens, length } = batch;
    const { slots: numbers, windows } = this.#memory;
    windows?.checkSteps(batch); // before anything changes
    this.#memory.background.attempt(() => this.#memory.fences.poll());
    this.#memory.background.attempt(() => this.#registry.unmapGivenUp());
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      if (numbers.sharedTail[slot] !== 0) this.#sharing.clearWay(slot, numbers.length[slot]! + tokens[index]!);
    }
    const room = this.#checkRoom(batch);
    const sharing: number[] = [];
    for (let index = 0; index < length; index += 1) {
      if (numbers.sharedTail[slots[index]!] !== 0) sharing.push(slots[index]!);
    }
    const { fences } = this.#memory;
    // Waiting for one ends other slots' queued work too; a step is not waited for.
    const waits = (slot: number): number => (fences.pendingStep(slot) >= 0 ? 2 : fences.isPending(slot) ? 1 : 0);
    const order = [0, 1, 2].flatMap((wait) => sharing.filter((slot) => waits(slot) === wait));
    this.#sharing.checkSteps(order);
    for (const slot of order) this.#makeSlotWritable(slot, room);
    if (windows === undefined) return;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      if (windows.isSharing(slot)) room.withRoom(slot, windows.pagesPerRow, () => { windows.makeWritable(slot); });
    }
  }

  #makeSlotWritable(slot: number, room: CopyRoom): void {
    this.#orderBehindOthers(slot);
    try {
      this.#sharing.makeWritable(slot, room);
    } catch (error) {
      if (!isKvError(error, 'KV_OUT_OF_PAGES') || !this.#sharing.claimTail(slot)) throw error;
      this.#sharing.makeWritable(slot, room);
    }
  }

  /**
   * What will be queued for the slot runs after the work that is queued on other streams: it may read a row that the
   * slot is left alone with, and goes on writing in place. Throws what the driver throws.
   */
  #orderBehindOthers(slot: number): void {
    const stream = this.#memory.fences.streamOf(slot);
    if (stream === undefined) return;
    for (let other = 0; other < this.#memory.slots.count; other += 1) {
      if (other !== slot && this.#memory.fences.isPendingBeside(other, stream)) {
        this.#memory.fences.order(stream, other);
      }
    }
  }

  /** Where the batch's copies go. Throws KV_OUT_OF_PAGES unless its copies and growth have room together. */
  #checkRoom(batch: Batch): CopyRoom {
    const { slots, tokens, length } = batch;
    const numbers = this.#memory.slots;
    const supply = this.#supply;
    this.#memory.synchronize(); // pages are counted by its news
    const { windows } = this.#memory;
    const copied = new Map<number, number>();
    windows?.list(batch);
    let { pages, rows } = windows?.missing() ?? nothingMissing;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      const target = this.#memory.layout.rowsFor(numbers.length[slot]! + tokens[index]!);
      const needed = numbers.neededRows(slot);
      if (target > needed) {
        pages += this.#memory.layout.pagesBetween(needed, target);
        rows += target - needed;
      }
      if (windows?.isSharing(slot) === true) pages += windows.pagesPerRow;
      if (numbers.sharedTail[slot] === 0) continue;
      const id = this.#sharing.contestedTail(slot, copied);
      if (id < 0) continue;
      copied.set(id, (copied.get(id) ?? 0) + 1);
      pages += this.#sharing.detachPages(slot);
      rows += 1;
    }
    supply.checkObtainable(pages, rows, Array.from(slots.subarray(0, length)));
    return {
      withRoom: (slot, copyPages, work) => {
        supply.withRoom(slot, copyPages, work);
      },
      canSpare: (more) => {
        if (more <= 0) return true;
        this.#memory.synchronize(); // copies have been made since
        return supply.canObtain(pages + more);
      },
    };
  }
}

// RowsAhead: asks the mapper for the rows that the growth policy wants ahead of running sequences, so that their next
// steps find them mapped.

/**
 * `lengthTokens`: tokens of the sequence that are valid. `earmarkedTokens`: tokens that memory was earmarked for at
 * `acquire` (its whole prompt; 0 without). Returns the tokens that should be mapped soon; less than `lengthTokens`
 * means nothing, Infinity as many as a slot has. What is no number is refused (KV_INVALID_OPTION) once the commit is
 * done.
 */
export type GrowthPolicy = (lengthTokens: number, earmarkedTokens: number) => number;

/** Maps nothing ahead: rows appear in `prepare`, when they are needed. The fewest pages, and the longest steps. */
export function onDemand(): GrowthPolicy {
  return (lengthTokens) => lengthTokens;
}

/**
 * Maps ahead in the background: the whole earmarked prompt, whose pages are set aside for it anyway, and then the row
 * that the next `tokens` tokens will touch. Default 16: enough steps for the mapper to be done before the row is
 * needed.
 */
export function ahead(tokens = 16): GrowthPolicy {
  checkInteger('ahead', 'tokens', tokens, 1);
  return (lengthTokens, earmarkedTokens) => Math.max(lengthTokens + tokens, earmarkedTokens);
}

export class RowsAhead {
  readonly #memory: SlotMemory;
  readonly #slots: Slots;
  readonly #supply: RowSupply;
  readonly #growth: GrowthPolicy;
  readonly #guard: PolicyGuard;
  /** Slots and the rows that each is to have, for the addon. */
  readonly #pairs: Int32Array;
  readonly #hasMapper: boolean;
  /** Whether some slots are there for transfers. */
  readonly #hasTransfers: boolean;
  /** Undefined without a mapper, too. */
  readonly #windows: WindowSets | undefined;
  /** Slots of the request at hand that lack rows in a layer set with a window. */
  #windowRequests = 0;
  /** Whether the mapper was asked for anything by the latest request. Read only. */
  hasRequests = false;

  constructor(memory: SlotMemory, supply: RowSupply, growth: GrowthPolicy, hasMapper: boolean) {
    this.#hasMapper = hasMapper;
    this.#memory = memory;
    this.#slots = memory.slots;
    this.#supply = supply;
    this.#growth = growth;
    this.#guard = memory.pool.guard;
    this.#pairs = new Int32Array(2 * memory.slots.count);
    this.#windows = hasMapper ? memory.windows : undefined;
    this.#hasTransfers = memory.slots.count > memory.slots.sequences;
  }

  /**
   * For every sequence of a batch that was not released. Throws what the policy throws, and KV_INVALID_OPTION for what
   * it returns.
   */
  request(batch: Batch): void {
    const { slots, generations, length } = batch;
    let requests = 0;
    const { generation } = this.#slots;
    this.#beginWindows();
    const outer = this.#guard.enter('growth');
    try {
      for (let index = 0; index < length; index += 1) {
        const slot = slots[index]!;
        if (generation[slot] === generations[index] && this.#note(slot, requests)) requests += 1;
      }
    } finally {
      this.#guard.leave(outer);
    }
    this.#send(requests);
  }

  /** For one slot. Throws as `request`. */
  requestFor(slot: number): void {
    this.#beginWindows();
    this.#send(this.#guard.during('growth', () => this.#note(slot, 0)) ? 1 : 0);
  }

  /** Puts a request for the slot into the pairs at `index` if the growth policy wants more than is mapped. */
  #note(slot: number, index: number): boolean {
    const numbers = this.#slots;
    if (this.#hasTransfers && numbers.isTransfer(slot)) return false;
    const lengthTokens = numbers.length[slot]!;
    const wanted = this.#growth(lengthTokens, numbers.earmarkedTokens[slot]!);
    if (typeof wanted !== 'number' || Number.isNaN(wanted)) throw notTokens(wanted);
    if (wanted <= lengthTokens) return false; // nothing ahead: before the work below, for each token of each sequence
    const tokens = Math.min(Math.ceil(wanted), this.#memory.layout.maxTokens);
    if (this.#windows?.addRequest(slot, tokens) === true) this.#windowRequests += 1;
    if (numbers.hasRoom(slot, tokens) || numbers.foreignRow[slot] !== noForeignRow) return false;
    this.#pairs[2 * index] = slot;
    this.#pairs[2 * index + 1] = this.#memory.layout.rowsFor(tokens);
    return true;
  }

  #beginWindows(): void {
    this.#windowRequests = 0;
    this.#windows?.begin();
  }

  #send(count: number): void {
    this.hasRequests = count + this.#windowRequests > 0;
    if (!this.hasRequests) return;
    let pages = 0;
    if (this.#windows !== undefined && this.#windowRequests > 0) {
      const missing = this.#windows.missing();
      pages += missing.pages - missing.earmarkedPages;
    }
    for (let index = 0; index < count; index += 1) {
      const slot = this.#pairs[2 * index]!;
      const rows = this.#pairs[2 * index + 1]!;
      pages += this.#slots.missingPages(slot, rows) - this.#slots.earmarkedPages(slot, rows); // those are set aside
    }
    if (pages > 0 && this.#hasMapper) this.#memory.background.attempt(() => {
      checkStack();
      this.#supply.makeFree(pages);
    });
    if (count > 0) this.#memory.native.request(this.#pairs, count);
    if (this.#windowRequests > 0) this.#windows?.request();
  }
}

function notTokens(received: unknown): Error {
  return createError('KV_INVALID_OPTION', {
    reason: typeof received === 'number' ? 'range' : 'type', owner: 'KvCache', option: 'growth', received,
    isReturned: true,
    expected: 'a function that returns a number of tokens',
  });
}
