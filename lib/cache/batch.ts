// Batch: the sequences of one forward pass and how many tokens each computes. Filled anew every step and reused: its
// arrays are made once and only grow. A batch is open (add, clear), then prepared, then open again after commit or
// discard, with what was added until `clear`: a decoding batch whose sequences stay the same need not be filled again.

import { createError } from '../base/errors.js';
import { checkInteger, notConstructible } from '../base/options.js';
import { enlarged } from '../base/typed-arrays.js';
import { Sequence } from './sequence.js';
import { Slots, type SlotNumbers } from './slots.js';

/**
 * Sequences of one forward pass and their new tokens. Made by `KvCache.createBatch` and used again: clear, add,
 * prepare, commit.
 */
export class Batch {
  readonly #owner: Slots;
  readonly #maxTokens: number;
  #slots: Int32Array;
  #generations: Uint32Array;
  #tokens: Int32Array;
  /** By slot: the filling in which it was added last. */
  readonly #filling: Float64Array;
  #fillings = 1;
  #length = 0;
  #isPrepared = false;

  /** @internal Use `cache.createBatch`. */
  constructor(slots: Slots, maxTokens: number, capacity: number) {
    if (!Slots.isInstance(slots)) throw notConstructible('Batch', 'cache.createBatch');
    this.#owner = slots;
    this.#maxTokens = maxTokens;
    this.#slots = new Int32Array(capacity);
    this.#generations = new Uint32Array(capacity);
    this.#tokens = new Int32Array(capacity);
    this.#filling = new Float64Array(slots.count);
  }

  /** Whether it is a Batch that a cache made, and no object that only has its prototype. @internal */
  static isInstance(value: unknown): value is Batch {
    return typeof value === 'object' && value !== null && #owner in value;
  }

  /** Throws KV_INVALID_OPTION or KV_BATCH_STATE unless it is a batch of these slots, prepared or not. @internal */
  static check(
    batch: Batch, slots: Slots, operation: 'prepare' | 'commit' | 'discard' | 'writeSide' | 'writeSequences',
    isPrepared: boolean,
  ): void {
    if (!Batch.isInstance(batch)) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner: `KvCache.${operation}`, option: 'batch', expected: 'a Batch', received: batch,
      });
    }
    if (batch.#owner !== slots) {
      throw createError('KV_BATCH_STATE', {
        operation, problem: 'belongs to another cache', hint: "Create it with this cache's `createBatch`.",
      });
    }
    if (batch.#isPrepared === isPrepared) return;
    throw createError('KV_BATCH_STATE', {
      operation, ...isPrepared
        ? {
          problem: 'is not prepared', hint: 'Call `prepare` before the pass, and `commit` or `discard` once after it.',
        }
        : { problem: 'is prepared already', hint: 'Commit or discard it first.' },
    });
  }

  /** Sequences in it. */
  get length(): number {
    return this.#length;
  }

  /** True between `prepare` and `commit` or `discard`. */
  get isPrepared(): boolean {
    return this.#isPrepared;
  }

  /** Slot of the sequence at `index`, in the order of `add`: row of the tensors for a kernel. */
  slotAt(index: number): number {
    checkInteger('Batch', 'index', index, 0, this.#length - 1);
    return this.#slots[index]!;
  }

  /** Tokens that the sequence at `index` computes in this pass. */
  tokensAt(index: number): number {
    checkInteger('Batch', 'index', index, 0, this.#length - 1);
    return this.#tokens[index]!;
  }

  /** Empties it. Throws KV_BATCH_STATE while it is prepared. */
  clear(): void {
    this.#checkOpen('clear');
    this.#length = 0;
    this.#fillings += 1;
  }

  /**
   * Adds a sequence that will compute its next `tokens` tokens (1 … what `maxTokens` leaves). Throws KV_SLOT_RELEASED,
   * KV_LENGTH_OUT_OF_RANGE, and KV_BATCH_STATE when it is in this batch already or the batch is prepared.
   */
  add(sequence: Sequence, tokens: number): void {
    this.#checkOpen('add to');
    this.addSlot(Sequence.slotIn(this.#owner, sequence, 'Batch.add'), tokens);
  }

  /** As `add`, of the sequence that has the slot. @internal */
  addSlot(slot: number, tokens: number): void {
    const slots = this.#owner;
    if (!Number.isSafeInteger(tokens) || tokens < 1) checkInteger('Batch', 'tokens', tokens, 1, this.#maxTokens);
    if (slots.length[slot]! + tokens > this.#maxTokens) {
      throw createError('KV_LENGTH_OUT_OF_RANGE', {
        slot, tokens: slots.length[slot]! + tokens, maxTokens: this.#maxTokens,
      });
    }
    if (this.#filling[slot] === this.#fillings) {
      throw createError('KV_BATCH_STATE', {
        operation: 'add to', problem: `has the sequence in slot ${slot} already`,
        hint: 'Add a sequence once, with all tokens it computes in the pass.',
      });
    }
    if (this.#length === this.#slots.length) this.#extend();
    this.#filling[slot] = this.#fillings;
    this.#slots[this.#length] = slot;
    this.#generations[this.#length] = slots.generation[slot]!;
    this.#tokens[this.#length] = tokens;
    this.#length += 1;
  }

  /** @internal */
  belongsTo(slots: Slots): boolean {
    return this.#owner === slots;
  }

  /** @internal The arrays themselves, for the cache's loops; the first `length` entries count. */
  get slots(): Int32Array {
    return this.#slots;
  }

  /** @internal Valid tokens by slot: the cache's own array. */
  get lengths(): SlotNumbers {
    return this.#owner.length;
  }

  /** @internal */
  get generations(): Uint32Array {
    return this.#generations;
  }

  /** @internal */
  get tokens(): Int32Array {
    return this.#tokens;
  }

  /** @internal */
  setPrepared(isPrepared: boolean): void {
    this.#isPrepared = isPrepared;
  }

  #checkOpen(operation: string): void {
    if (this.#isPrepared) {
      throw createError('KV_BATCH_STATE', { operation, problem: 'is prepared', hint: 'Commit or discard it first.' });
    }
  }

  #extend(): void {
    const capacity = Math.max(8, 2 * this.#slots.length);
    this.#generations = enlarged(this.#generations, capacity);
    this.#tokens = enlarged(this.#tokens, capacity);
    this.#slots = enlarged(this.#slots, capacity); // last: its length is asked for
  }
}
