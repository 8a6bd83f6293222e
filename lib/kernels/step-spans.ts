// StepSpans: the sequences of one step as the addon takes them: [slot, length, tokens, first row] of each, in one
// reused array that only grows. Checks what the kernels do not: slots exist and come once, tokens have memory.

import { createError } from '../base/errors.js';
import { Batch } from '../cache/batch.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import { checkInteger } from '../base/options.js';
import { isInt32Array, lengthOf } from '../base/typed-arrays.js';

/** Sequences of a step in an engine's own arrays; index: the sequence. Read during the call only. */
export interface SequenceSpans {
  /** Slot of each sequence, none twice. */
  readonly slots: Int32Array;
  /** Tokens that the slot held before this step. */
  readonly lengths: Int32Array;
  /** New tokens in this step; 0 leaves the sequence out. */
  readonly tokens: Int32Array;
  /** How many entries count. Default: all. */
  readonly count?: number | undefined;
}

const span = 4;

export class StepSpans {
  readonly #cache: KvCache;
  /** By slot: number of the last call that named it. */
  readonly #seen: Float64Array;
  #entries = new Int32Array(span * 16);
  #reading = 0;
  #rows = 0;
  #count = 0;
  #mostTokens = 0;

  constructor(cache: KvCache) {
    this.#cache = cache;
    this.#seen = new Float64Array(cache.layout.slots);
  }

  /** Entries of four numbers; the first `count` are valid. */
  get entries(): Int32Array {
    return this.#entries;
  }

  get count(): number {
    return this.#count;
  }

  /** New tokens of all sequences. */
  get rows(): number {
    return this.#rows;
  }

  /** Most new tokens of one sequence. */
  get mostTokens(): number {
    return this.#mostTokens;
  }

  /** Throws KV_ROW_SHARED unless every sequence may write its new tokens: those of a prepared batch always may. */
  checkWritable(sequences: Batch | SequenceSpans): void {
    if (Batch.isInstance(sequences)) return;
    const entries = this.#entries;
    for (let at = 0; at < span * this.#count; at += span) {
      const from = entries[at + 1]!;
      this.#cache.access.requireWritable('append', entries[at]!, from, from + entries[at + 2]!);
    }
  }

  /** Tells the cache that work on the sequences will be queued on the stream. */
  noteQueued(stream: bigint): void {
    const entries = this.#entries;
    for (let at = 0; at < span * this.#count; at += span) {
      const [slot, length, tokens] = [entries[at]!, entries[at + 1]!, entries[at + 2]!];
      if (tokens > 0) this.#cache.access.hasQueued(stream, slot, length, length + tokens);
    }
  }

  /**
   * Reads the sequences of a call. Calls `checkOpen` after the caller's getters, which may have closed the kernels.
   * Throws KV_BATCH_STATE, KV_INVALID_OPTION, KV_LENGTH_OUT_OF_RANGE, KV_COPY_OUT_OF_RANGE.
   */
  read(sequences: Batch | SequenceSpans, owner: string, checkOpen: () => void): this {
    if (Batch.isInstance(sequences)) {
      checkOpen();
      this.#readBatch(sequences, owner);
    } else this.#readArrays(sequences, owner, checkOpen);
    return this;
  }

  #readBatch(batch: Batch, owner: string): void {
    if (!this.#cache.access.owns(batch)) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option: 'sequences', expected: 'a batch of the same cache', received: batch,
      });
    }
    if (!batch.isPrepared) {
      throw createError('KV_BATCH_STATE', { operation: 'run kernels on', problem: 'is not prepared' });
    }
    const { slots, lengths, tokens } = batch;
    this.#start(batch.length);
    for (let index = 0; index < batch.length; index += 1) {
      const slot = slots[index]!;
      this.#add(index, slot, lengths[slot]!, tokens[index]!);
    }
  }

  #readArrays(sequences: SequenceSpans, owner: string, checkOpen: () => void): void {
    if (typeof sequences !== 'object' || sequences === null) throw noSequences(sequences, owner);
    if (sequences instanceof Batch) throw noSequences(sequences, owner); // it only has a Batch's prototype
    // Reads each once, so that getters run before anything is checked.
    const { slots, lengths, tokens, count: given } = sequences;
    checkOpen();
    if (!(isInt32Array(slots) && isInt32Array(lengths) && isInt32Array(tokens))) throw noSequences(sequences, owner);
    const most = Math.min(lengthOf(slots), lengthOf(lengths), lengthOf(tokens));
    const count = given ?? Math.max(lengthOf(slots), lengthOf(lengths), lengthOf(tokens));
    checkInteger(owner, 'sequences.count', count, 0, most);
    const { access, layout: { maxTokens } } = this.#cache;
    this.#start(count);
    for (let index = 0; index < count; index += 1) {
      const [slot, length, added] = [slots[index]!, lengths[index]!, tokens[index]!];
      checkInteger(owner, 'sequences.slots', slot, 0, this.#seen.length - 1);
      checkInteger(owner, 'sequences.lengths', length, 0, maxTokens);
      checkInteger(owner, 'sequences.tokens', added, 0, maxTokens);
      if (length + added > maxTokens) {
        throw createError('KV_LENGTH_OUT_OF_RANGE', { slot, tokens: length + added, maxTokens });
      }
      if (this.#seen[slot] === this.#reading) {
        throw createError('KV_INVALID_OPTION', {
          reason: 'range', owner, option: 'sequences.slots', expected: 'different slots', received: slot,
        });
      }
      this.#seen[slot] = this.#reading;
      if (added > 0) access.requirePass('run kernels over', slot, length, length + added);
      this.#add(index, slot, length, added);
    }
  }

  #start(count: number): void {
    if (span * count > this.#entries.length) this.#entries = new Int32Array(2 * span * count);
    this.#count = count;
    this.#reading += 1;
    this.#rows = 0;
    this.#mostTokens = 0;
  }

  #add(index: number, slot: number, length: number, tokens: number): void {
    const entries = this.#entries;
    const at = span * index;
    entries[at] = slot;
    entries[at + 1] = length;
    entries[at + 2] = tokens;
    entries[at + 3] = this.#rows;
    this.#rows += tokens;
    if (tokens > this.#mostTokens) this.#mostTokens = tokens;
  }
}

function noSequences(sequences: unknown, owner: string): Error {
  return createError('KV_INVALID_OPTION', {
    reason: 'type', owner, option: 'sequences', expected: 'a Batch, or slots, lengths and tokens, each an Int32Array',
    received: sequences,
  });
}
