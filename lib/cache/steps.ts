// Steps: the hot path. Before a forward pass every sequence of the batch gets memory for its tokens, after it their
// lengths advance and the mapper hears what will be needed soon. Loops over typed arrays; in steady decode it neither
// allocates nor crosses into the addon.

import { createError } from '../base/errors.js';
import { checkStack, checkStackOfStep } from '../base/stack.js';
import { Batch } from './batch.js';
import type { BatchRows } from './batch-rows.js';
import { GivenFence } from './fence.js';
import type { SideTensors } from '../side/side-tensors.js';
import type { RowsAhead } from './rows-ahead.js';
import type { SequenceTokens } from './sequence-tokens.js';
import type { SlotMemory } from './slot-memory.js';
import type { Slots } from './slots.js';

/** Of a slot that was released already: what it has is recorded. */
const released = new GivenFence();

export class Steps {
  readonly #memory: SlotMemory;
  readonly #slots: Slots;
  readonly #rows: BatchRows;
  readonly #tokens: SequenceTokens;
  readonly #fences: SlotMemory['fences'];
  readonly #side: SideTensors;
  readonly #ahead: RowsAhead;

  constructor(memory: SlotMemory, rows: BatchRows, tokens: SequenceTokens, side: SideTensors, ahead: RowsAhead) {
    this.#memory = memory;
    this.#slots = memory.slots;
    this.#rows = rows;
    this.#tokens = tokens;
    this.#fences = memory.fences;
    this.#side = side;
    this.#ahead = ahead;
  }

  prepare(batch: Batch): void {
    Batch.check(batch, this.#slots, 'prepare', false);
    const { slots, tokens, generations, length } = batch;
    const numbers = this.#slots;
    const { generation, prepared, length: lengths, sharedTail } = numbers;
    const { maxTokens } = this.#memory.layout;
    const hasSide = this.#side.everything > 0;
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
      if (!numbers.hasRoom(slot, lengthTokens)) lacking += 1;
      if (sharedTail[slot] !== 0) sharing += 1;
      if (hasSide && this.#side.ready[slot]! < lengthTokens) lackingSide += 1;
    }
    if (lacking + sharing > 0 || this.#side.all.length > 0) checkStack();
    if (lacking + sharing > 0) this.#rows.flushBesideWithheld();
    if (lackingSide > 0) this.#side.check(batch); // before K and V make room
    batch.setPrepared(true); // from here on it cannot be changed, by a policy either
    try {
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

  /** `given`: what must be over before the memory that the batch used may change hands. */
  commit(batch: Batch, given: GivenFence): void {
    Batch.check(batch, this.#slots, 'commit', true);
    checkStackOfStep();
    const isFenced = this.#fences.open(given);
    if (this.#ahead.hasRequests) this.#memory.synchronize();
    const { slots, tokens, generations, length } = batch;
    const numbers = this.#slots;
    const { generation } = numbers;
    const known = this.#tokens;
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

  /**
   * Notes the fence for every slot, of sequences released since `prepare` too. `added`: 1 when the batch's tokens do
   * not count.
   */
  #note({ slots, tokens, generations, length }: Batch, given: GivenFence, added: 0 | 1): void {
    const numbers = this.#slots;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      this.#fences.note(slot, given, numbers.length[slot]! + added * tokens[index]!);
      if (numbers.generation[slot] !== generations[index]) {
        this.#memory.late.attempt(() => this.#fences.release(slot, released));
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
