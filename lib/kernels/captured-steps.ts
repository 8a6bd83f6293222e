// CapturedSteps: decoding steps that are queued once and repeated. On a GPU a step of many layers is hundreds of launches, which take
// the CPU about as long as the GPU needs to read the weights; captured as a graph they are one. Contiguous slots make that easy:
// addresses never change, and what does, slots, lengths and tokens, is in device memory and written by one small copy a step.
//
// A graph is for one number of rows; there is one for each of `sizes`, and a step takes the smallest that holds it. It owns the
// graphs and that memory. Rows may be mapped, unmapped and moved to other slots between replays: each replay checks its own.

import { createError } from '../errors/index.js';
import type { Batch } from '../memory/batch.js';
import { DeviceMemory } from '../memory/device-memory.js';
import type { KvCache } from '../memory/kv-cache.js';
import type { NativeKernels } from '../memory/native-kernels.js';
import { arrayOf, callable, checkInteger, integer, optional, readOptions } from '../options.js';
import { StepSpans, type SequenceSpans } from './step-spans.js';

export interface CaptureOptions {
  /**
   * Queues one decoding step of `step.size` rows: everything from the embedding of `step.tokens` to the logits, on the kernels'
   * stream, with `step` for the sequences. It runs once for each size, and nothing is computed then: it must neither wait nor read
   * results, nor allocate device memory, and every buffer that it names must stay. On host it runs at every replay.
   */
  readonly record: (step: RecordedStep) => void;
  /** Rows to capture steps for. Default 1, 2, 4, 8 … and as many as there are slots. */
  readonly sizes?: readonly number[] | undefined;
}

/** What a step is recorded with: stands for its sequences in `append` and `decodeAttention`. Row i is sequence i of the replay. */
export interface RecordedStep {
  /** Rows that it computes; those behind the sequences of a replay come to nothing. */
  readonly size: number;
  /** [row]: the new token's id, for DenseKernels.gather: an address on a device. 0 in rows that come to nothing. */
  readonly tokens: Int32Array | bigint;
  /** [row]: its place in its text, for DenseKernels.rotate; a table for it must reach as far as `maxTokens`. */
  readonly positions: Int32Array | bigint;
}

/** Its list of spans, for the kernels. @internal */
export class StepPlace implements RecordedStep {
  readonly size: number;
  readonly tokens: Int32Array | bigint;
  readonly positions: Int32Array | bigint;
  /** An address on a device, [slot, length, tokens, first row] of each row on host. */
  readonly spans: Int32Array | bigint;

  constructor(size: number, { spans, positions, tokens }: Omit<StepPlace, 'size'>) {
    [this.size, this.spans, this.positions, this.tokens] = [size, spans, positions, tokens];
  }
}

const span = 4;
const wordBytes = 4;

export class CapturedSteps {
  /** Rows of the steps that are captured, ascending. */
  readonly sizes: readonly number[];
  readonly #native: NativeKernels;
  readonly #record: (step: RecordedStep) => void;
  readonly #spans: StepSpans;
  /** Spans, positions, tokens, each as many as the largest size. */
  readonly #words: Int32Array;
  readonly #bytes: Uint8Array;
  readonly #mostRows: number;
  /** Undefined on host. */
  readonly #memory: DeviceMemory | undefined;
  readonly #graphs: bigint[] = [];
  readonly #isOpen: () => boolean;
  #isClosed = false;

  /** @internal Use `Kernels.captureSteps`. `isOpen` says whether the kernels are, or throws. */
  constructor(cache: KvCache, nativeKernels: NativeKernels, stream: bigint, options: CaptureOptions, isOpen: () => boolean) {
    const owner = 'Kernels.captureSteps';
    const { slots } = cache.layout;
    const { record, sizes = usualSizes(slots) } = readOptions(owner, options, {
      record: callable<(step: RecordedStep) => void>(), sizes: optional(arrayOf(integer({ min: 1, max: slots }))),
    });
    const isHost = cache.driver.kind === 'host';
    if (!isHost && stream <= 2n) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option: 'stream', expected: 'a stream of the engine\'s own', received: stream,
        hint: 'A default stream cannot be captured: open the kernels for another.',
      });
    }
    if (sizes.length === 0) checkInteger(owner, 'sizes.length', 0, 1);
    this.sizes = [...new Set(sizes)].sort((a, b) => a - b);
    this.#native = nativeKernels;
    this.#record = record;
    this.#isOpen = isOpen;
    this.#spans = new StepSpans(cache);
    const rows = this.#mostRows = this.sizes.at(-1)!;
    this.#words = new Int32Array((span + 2) * rows);
    this.#bytes = new Uint8Array(this.#words.buffer);
    this.#memory = isHost ? undefined : new DeviceMemory({ driver: cache.driver, bytes: this.#bytes.length });
    try {
      if (!isHost) for (const size of this.sizes) this.#graphs.push(this.#capture(size));
    } catch (error) {
      this.close();
      throw error;
    }
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /**
   * Repeats the step for these sequences, a prepared batch or typed arrays, of which those with no new token are left out; `tokens`
   * are the new tokens' ids, one for each of the others, in their order. Returns the rows that were queued, 0 when there is nothing
   * to do. Queued on the stream, and waits for nothing. Throws as `append`, KV_INVALID_OPTION when there are more sequences than
   * the largest size holds, or one has more than one new token; nothing was queued then.
   */
  replay(sequences: Batch | SequenceSpans, tokens: Int32Array): number {
    const owner = 'CapturedSteps.replay';
    if (this.#isClosed) throw createError('KV_CLOSED', { operation: 'replay', owner: 'Kernels' });
    this.#isOpen();
    const { entries, count, rows, mostTokens } = this.#spans.read(sequences, owner);
    if (mostTokens > 1) checkInteger(owner, 'sequences.tokens', mostTokens, 0, 1);
    if (rows > this.#mostRows) checkInteger(owner, 'sequences.length', rows, 0, this.#mostRows);
    if (!(tokens instanceof Int32Array)) {
      throw createError('KV_INVALID_OPTION', { reason: 'type', owner, option: 'tokens', expected: 'an Int32Array', received: tokens });
    }
    checkInteger(owner, 'tokens.length', tokens.length, rows);
    if (rows === 0) return 0;
    const index = this.sizes.findIndex((size) => size >= rows);
    const size = this.sizes[index]!;
    this.#write(entries, count, size, tokens);
    if (this.#memory === undefined) this.#record(this.#placeOf(size));
    else this.#native.replay(this.#graphs[index]!, this.#memory.address, this.#bytes);
    return size;
  }

  /** Gives back the graphs and their memory; queued work must be over. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    for (const graph of this.#graphs) this.#native.dropGraph(graph);
    this.#memory?.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #capture(size: number): bigint {
    this.#native.enter();
    try {
      this.#native.beginCapture();
      try {
        this.#record(this.#placeOf(size));
      } catch (error) {
        this.#native.abortCapture();
        throw error;
      }
      return this.#native.endCapture();
    } finally {
      this.#native.leave();
    }
  }

  /** Rows behind the sequences have no token, and so no slot. */
  #write(entries: Int32Array, count: number, size: number, tokens: Int32Array): void {
    const words = this.#words;
    const positions = span * this.#mostRows;
    const ids = positions + this.#mostRows;
    let row = 0;
    for (let index = 0; index < count; index += 1) {
      const at = span * index;
      if (entries[at + 2] === 0) continue;
      words[span * row] = entries[at]!;
      words[span * row + 1] = words[positions + row] = entries[at + 1]!;
      words[span * row + 2] = 1;
      words[span * row + 3] = row;
      words[ids + row] = tokens[row]!;
      row += 1;
    }
    for (; row < size; row += 1) {
      words[span * row] = words[span * row + 1] = words[span * row + 2] = words[positions + row] = words[ids + row] = 0;
      words[span * row + 3] = row;
    }
  }

  #placeOf(size: number): StepPlace {
    const [positions, tokens] = [span * this.#mostRows, (span + 1) * this.#mostRows];
    const address = this.#memory?.address;
    if (address !== undefined) {
      const at = (word: number): bigint => address + BigInt(wordBytes * word);
      return new StepPlace(size, { spans: address, positions: at(positions), tokens: at(tokens) });
    }
    const part = (from: number, length: number): Int32Array => this.#words.subarray(from, from + length);
    return new StepPlace(size, { spans: part(0, span * size), positions: part(positions, size), tokens: part(tokens, size) });
  }
}

function usualSizes(slots: number): readonly number[] {
  const sizes = [slots];
  for (let size = 1; size < slots; size *= 2) sizes.push(size);
  return sizes;
}
