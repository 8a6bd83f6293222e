// Steps: the hot path. Before a forward pass every sequence of the batch gets memory for its tokens, after it their lengths
// advance and the mapper hears what will be needed soon. Loops over typed arrays; in steady decode it neither allocates nor
// crosses into the addon.

import { createError, isKvError } from '../base/errors.js';
import { Batch } from './batch.js';
import { GivenFence } from './fence.js';
import type { CopyRoom } from './row-copies.js';
import type { SideTensors } from '../side/side-tensors.js';
import type { RowSharing } from './row-sharing.js';
import type { RowSupply } from './row-supply.js';
import type { RowsAhead } from './rows-ahead.js';
import type { SequenceTokens } from './sequence-tokens.js';
import type { SlotFences } from './slot-fences.js';
import type { SlotMemory } from './slot-memory.js';
import type { Slots } from './slots.js';

export interface StepCollaborators {
  readonly supply: RowSupply;
  readonly sharing: RowSharing;
  readonly tokens: SequenceTokens;
  readonly fences: SlotFences;
  readonly side: SideTensors;
}

/** Of a slot that was released already: what it has is recorded. */
const released = new GivenFence();

export class Steps {
  readonly #memory: SlotMemory;
  readonly #slots: Slots;
  readonly #supply: RowSupply;
  readonly #sharing: RowSharing;
  readonly #tokens: SequenceTokens;
  readonly #fences: SlotFences;
  readonly #side: SideTensors;
  readonly #ahead: RowsAhead;
  readonly #pairs: Int32Array;
  readonly #open = new Set<Batch>();

  constructor(memory: SlotMemory, { supply, sharing, tokens, fences, side }: StepCollaborators, ahead: RowsAhead) {
    this.#memory = memory;
    this.#slots = memory.slots;
    this.#supply = supply;
    this.#sharing = sharing;
    this.#tokens = tokens;
    this.#fences = fences;
    this.#side = side;
    this.#ahead = ahead;
    this.#pairs = new Int32Array(2 * memory.slots.count);
  }

  prepare(batch: Batch): void {
    Batch.check(batch, this.#slots, 'prepare', false);
    const { slots, tokens, generations, length } = batch;
    const numbers = this.#slots;
    const { generation, prepared, length: lengths, sharedTail } = numbers;
    const { maxTokens } = this.#memory.layout;
    let lacking = 0;
    let sharing = 0;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      if (generation[slot] !== generations[index]) throw this.#stale(slot, generations[index]!);
      if (prepared[slot] !== 0) throw createError('KV_SLOT_BUSY', { slot, operation: 'prepare', holder: 'another prepared batch' });
      // Its length may have changed since `add`, by a truncate or by another batch.
      const lengthTokens = lengths[slot]! + tokens[index]!;
      if (lengthTokens > maxTokens) throw createError('KV_LENGTH_OUT_OF_RANGE', { slot, tokens: lengthTokens, maxTokens });
      if (!numbers.hasRoom(slot, lengthTokens)) lacking += 1;
      if (sharedTail[slot] !== 0) sharing += 1;
    }
    if (lacking + sharing > 0) this.#memory.late.attempt(() => { this.#sharing.flushBesideWithheld(); });
    batch.setPrepared(true); // from here on it cannot be changed, by a policy either
    try {
      if (sharing > 0) {
        this.#makeWritable(batch);
        lacking += sharing; // it may have unmapped rows
      }
      numbers.prepareAll(slots, tokens, length);
      if (lacking > 0) this.#grow(batch);
      if (this.#side.all.length > 0) this.#growSide(batch);
    } catch (error) {
      for (let index = 0; index < length; index += 1) numbers.prepare(slots[index]!, 0);
      batch.setPrepared(false);
      throw error;
    }
    this.#open.add(batch);
  }

  /** `given`: what must be over before the memory that the batch used may change hands. */
  commit(batch: Batch, given: GivenFence): void {
    Batch.check(batch, this.#slots, 'commit', true);
    const isFenced = this.#fences.open(given);
    if (this.#ahead.hasRequests) this.#memory.synchronize();
    const { slots, tokens, generations, length } = batch;
    const numbers = this.#slots;
    const { generation } = numbers;
    const known = this.#tokens;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      if (generation[slot] !== generations[index]) continue; // released since prepare
      numbers.commit(slot, tokens[index]!);
      known.hasCommitted(slot);
    }
    if (isFenced) this.#note(batch, given, 0);
    this.#finish(batch);
    // From here on the commit is done, whatever the growth policy does.
    this.#ahead.request(batch);
  }

  discard(batch: Batch, given: GivenFence): void {
    Batch.check(batch, this.#slots, 'discard', true);
    if (this.#fences.open(given)) this.#note(batch, given, 1);
    for (let index = 0; index < batch.length; index += 1) {
      const slot = batch.slots[index]!;
      if (this.#slots.generation[slot] !== batch.generations[index]) continue;
      this.#slots.prepare(slot, 0);
      if (this.#side.everything > 0) this.#side.discard(slot);
    }
    this.#finish(batch);
  }

  /**
   * Prepares `more` tokens behind those of the only sequence of a prepared batch, whose computing goes on. Throws as `prepare`, and changes
   * nothing then.
   */
  extend(batch: Batch, more: number): void {
    const slot = batch.slots[0]!;
    const before = batch.tokens[0]!;
    const lengthTokens = this.#slots.length[slot]! + before + more;
    const { maxTokens } = this.#memory.layout;
    if (lengthTokens > maxTokens) throw createError('KV_LENGTH_OUT_OF_RANGE', { slot, tokens: lengthTokens, maxTokens });
    this.#setTokens(batch, before + more);
    try {
      if (!this.#slots.hasRoom(slot, lengthTokens)) this.#grow(batch);
      if (this.#side.all.length > 0) this.#growSide(batch);
    } catch (error) {
      this.#setTokens(batch, before);
      throw error;
    }
  }

  /** Commits the first `tokens` tokens of the only sequence of a prepared batch; those behind stay prepared. */
  commitFirst(batch: Batch, tokens: number): void {
    const rest = batch.tokens[0]! - tokens;
    if (rest === 0) {
      this.commit(batch, new GivenFence());
      return;
    }
    if (this.#ahead.hasRequests) this.#memory.synchronize();
    const slot = batch.slots[0]!;
    this.#slots.commit(slot, tokens);
    this.#setTokens(batch, rest);
    this.#tokens.hasCommitted(slot);
    this.#memory.pool.capacity.raise();
  }

  /** Discards the last `tokens` tokens of the only sequence of a prepared batch; those before stay prepared. */
  discardLast(batch: Batch, tokens: number): void {
    const rest = batch.tokens[0]! - tokens;
    if (rest === 0) this.discard(batch, new GivenFence());
    else this.#setTokens(batch, rest);
  }

  #setTokens(batch: Batch, tokens: number): void {
    batch.tokens[0] = tokens;
    this.#slots.prepare(batch.slots[0]!, tokens);
  }

  /** Notes the fence for every slot, of sequences released since `prepare` too. `added`: 1 when the batch's tokens do not count. */
  #note({ slots, tokens, generations, length }: Batch, given: GivenFence, added: 0 | 1): void {
    const numbers = this.#slots;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      this.#fences.note(slot, given, numbers.length[slot]! + added * tokens[index]!);
      if (numbers.generation[slot] !== generations[index]) this.#memory.late.attempt(() => this.#fences.release(slot, released));
    }
  }

  /** The prepared batch that is computing on a slot, if any. */
  batchOf(slot: number): Batch | undefined {
    if (this.#slots.prepared[slot] === 0) return undefined;
    for (const batch of this.#open) if (batch.slots.subarray(0, batch.length).includes(slot)) return batch;
    return undefined;
  }

  /**
   * Gives every sequence of the batch rows of its own where it is going to write: first those that no queued work uses, so that the
   * last user of a shared row is left alone with it. Nothing is copied unless all of it has room, behind what is waited for.
   */
  #makeWritable(batch: Batch): void {
    const { slots, tokens, length } = batch;
    const numbers = this.#slots;
    this.#memory.late.attempt(() => this.#fences.poll());
    this.#memory.late.attempt(() => this.#sharing.givenUp.unmapAll());
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      if (numbers.sharedTail[slot] !== 0) this.#sharing.clearWay(slot, numbers.length[slot]! + tokens[index]!);
    }
    const room = this.#checkRoom(batch);
    const later: number[] = []; // waiting for one ends other slots' queued work too
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      if (numbers.sharedTail[slot] === 0) continue;
      if (this.#fences.isPending(slot)) later.push(slot);
      else this.#makeSlotWritable(slot, room);
    }
    for (const slot of later) this.#makeSlotWritable(slot, room);
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
   * What will be queued for the slot runs after the work that is queued on other streams: it may read a row that the slot is left
   * alone with, and goes on writing in place. Throws what the driver throws.
   */
  #orderBehindOthers(slot: number): void {
    const stream = this.#fences.streamOf(slot);
    if (stream === undefined) return;
    for (let other = 0; other < this.#slots.count; other += 1) {
      if (other !== slot && this.#fences.isPendingBeside(other, stream)) this.#fences.order(stream, other);
    }
  }

  /** Where the batch's copies go. Throws KV_OUT_OF_PAGES unless its copies and growth have room together. */
  #checkRoom({ slots, tokens, length }: Batch): CopyRoom {
    const numbers = this.#slots;
    const supply = this.#supply;
    this.#memory.synchronize(); // pages are counted by its news
    const copied = new Map<number, number>();
    let pages = 0;
    let rows = 0;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      const target = this.#memory.layout.rowsFor(numbers.length[slot]! + tokens[index]!);
      const needed = numbers.neededRows(slot);
      if (target > needed) {
        pages += this.#memory.layout.pagesBetween(needed, target);
        rows += target - needed;
      }
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
      earmark: (slot, earmarkedRows) => {
        supply.earmark(slot, earmarkedRows);
      },
      canSpare: (more) => {
        if (more <= 0) return true;
        this.#memory.synchronize(); // copies have been made since
        return supply.canObtain(pages + more);
      },
    };
  }

  /** Maps what the batch lacks in the foreground, once the mapper's news are in. */
  #grow(batch: Batch): void {
    this.#memory.synchronize();
    const { slots, tokens, length } = batch;
    const numbers = this.#slots;
    let count = 0;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      const lengthTokens = numbers.length[slot]! + tokens[index]!;
      if (numbers.hasRoom(slot, lengthTokens)) continue;
      this.#pairs[2 * count] = slot;
      this.#pairs[2 * count + 1] = this.#memory.layout.rowsFor(lengthTokens);
      count += 1;
    }
    if (count > 0) this.#supply.grow(this.#pairs, count);
  }

  #growSide({ slots, tokens, length }: Batch): void {
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      const lengthTokens = this.#slots.length[slot]! + tokens[index]!;
      if (this.#side.ready[slot]! < lengthTokens) this.#side.ensure(slot, lengthTokens);
    }
  }

  #finish(batch: Batch): void {
    batch.setPrepared(false);
    this.#open.delete(batch);
    this.#memory.pool.capacity.raise();
  }

  #stale(slot: number, generation: number): Error {
    return createError('KV_SLOT_RELEASED', { slot, generation, currentGeneration: this.#slots.generation[slot]! });
  }
}
