// CapturedSteps: decoding steps that are recorded once and replayed. On a GPU a step of many layers is hundreds of
// launches, which take the CPU about as long as the GPU needs to read the weights; a captured graph is one launch.
// Contiguous slots make that easy: addresses never change; slots, lengths and tokens are in device memory, which one
// small copy a step updates.
//
// A graph is for one number of rows; there is one for each of `sizes`, and a step takes the smallest that holds it.
// CapturedSteps owns the graphs and that memory. Pages may be mapped and unmapped between replays: each replay checks
// its own sequences.

import { createError } from '../base/errors.js';
import type { Batch } from '../cache/batch.js';
import { DeviceMemory } from '../device/device-memory.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import type { NativeKernels } from '../device/native-kernels.js';
import { arrayOf, callable, checkInteger, integer, optional, readOptions } from '../base/options.js';
import { isInt32Array, lengthOf } from '../base/typed-arrays.js';
import { kernelsOf } from './load-kernels.js';
import { StepPlace, type RecordedStep, type Recording } from './recorded-step.js';
import { StepSpans, type SequenceSpans } from './step-spans.js';

/** Options of `Kernels.captureSteps`. */
export interface CaptureOptions {
  /**
   * Queues one decoding step of `step.size` rows: everything from the embedding of `step.tokens` to the logits, on the
   * kernels' stream, with `step` for the sequences and no others. It runs once for each size, and nothing is computed
   * then: it must be synchronous, neither wait nor read results, nor allocate device memory, and every buffer that it
   * names must stay. On host it runs at every replay.
   */
  readonly record: (step: RecordedStep) => void;
  /** Numbers of rows to capture steps for. Default 1, 2, 4, 8 … up to the number of slots. */
  readonly sizes?: readonly number[] | undefined;
}

/** What the kernels give of theirs. @internal */
export interface StepOwner {
  readonly cache: KvCache;
  readonly native: NativeKernels;
  readonly stream: bigint;
  readonly recording: Recording;
  /** Throws unless the kernels are open. */
  readonly checkOpen: () => void;
  readonly forget: (closed: CapturedSteps) => void;
}

const span = 4;
const wordBytes = 4;

/** Decoding steps captured as graphs, one per batch size, which `replay` repeats for any sequences. */
export class CapturedSteps {
  /** Rows of the captured steps, ascending. */
  readonly sizes: readonly number[];
  readonly #owner: StepOwner;
  readonly #record: (step: RecordedStep) => void;
  readonly #spans: StepSpans;
  /** Spans, positions, tokens, each as many as the largest size. */
  readonly #words: Int32Array;
  readonly #bytes: Uint8Array;
  readonly #mostRows: number;
  /** The memory that graphs read; undefined on host. */
  readonly #memory: DeviceMemory | undefined;
  /** Graphs by size, on a device. */
  readonly #graphs: bigint[] = [];
  /** Recorded steps by size, on host. */
  readonly #places: StepPlace[] = [];
  /** On host, the sequences of the current replay that have a new token. */
  readonly #sequences: {
    readonly slots: Int32Array; readonly lengths: Int32Array; readonly tokens: Int32Array; count: number;
  };
  readonly #checkOpen = (): void => {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation: 'replay', owner: 'Kernels' });
    this.#owner.checkOpen();
  };
  #isClosed = false;

  /** @internal Use `Kernels.captureSteps`. */
  constructor(options: CaptureOptions, stepOwner: StepOwner) {
    const owner = 'Kernels.captureSteps';
    const { cache, stream } = stepOwner;
    const { slots } = cache.layout;
    const { record, sizes = usualSizes(slots) } = readOptions(owner, options, {
      record: callable<(step: RecordedStep) => void>(), sizes: optional(arrayOf(integer({ min: 1, max: slots }))),
    });
    stepOwner.checkOpen(); // a getter may have closed them
    const isOnCpu = kernelsOf(cache.driver) === 'cpu';
    if (!isOnCpu && stream <= 2n) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option: 'stream', expected: 'a stream of the engine\'s own', received: stream,
        hint: 'A default stream cannot be captured: open the kernels for another stream.',
      });
    }
    if (sizes.length === 0) checkInteger(owner, 'sizes.length', 0, 1);
    this.sizes = Object.freeze([...new Set(sizes)].sort((a, b) => a - b));
    this.#owner = stepOwner;
    this.#record = record;
    this.#spans = new StepSpans(cache);
    const rows = this.#mostRows = this.sizes.at(-1)!;
    this.#words = new Int32Array((span + 2) * rows);
    this.#bytes = new Uint8Array(this.#words.buffer);
    this.#sequences =
      { slots: new Int32Array(rows), lengths: new Int32Array(rows), tokens: new Int32Array(rows).fill(1), count: 0 };
    this.#memory = isOnCpu ? undefined : new DeviceMemory({ driver: cache.driver, bytes: this.#bytes.length });
    try {
      for (const size of this.sizes) {
        if (isOnCpu) this.#places.push(this.#placeOf(size));
        else this.#graphs.push(this.#capture(this.#placeOf(size)));
      }
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /** Whether `close` was called. `replay` then throws KV_CLOSED. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /**
   * Queues the step for these sequences, a prepared batch or typed arrays, and returns without waiting. Sequences
   * without a new token are left out; `tokens` has the new token's id of each other sequence, in their order. Returns
   * the number of queued rows, 0 when no sequence has a new token. Throws as `append`, and KV_INVALID_OPTION when there
   * are more sequences than the largest size, or one has more than one new token; nothing was queued then.
   */
  replay(sequences: Batch | SequenceSpans, tokens: Int32Array): number {
    const owner = 'CapturedSteps.replay';
    this.#owner.recording.checkNone(owner, 'sequences');
    const { rows, mostTokens } = this.#spans.read(sequences, owner, this.#checkOpen);
    if (mostTokens > 1) checkInteger(owner, 'sequences.tokens', mostTokens, 0, 1);
    if (rows > this.#mostRows) checkInteger(owner, 'sequences.length', rows, 0, this.#mostRows);
    if (!isInt32Array(tokens)) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner, option: 'tokens', expected: 'an Int32Array', received: tokens,
      });
    }
    checkInteger(owner, 'tokens.length', lengthOf(tokens), rows);
    this.#spans.checkWritable(sequences);
    if (rows === 0) return 0;
    const index = this.#indexFor(rows);
    const size = this.sizes[index]!;
    this.#write(rows, size, tokens);
    const { cache, native, stream, recording } = this.#owner;
    if (this.#memory === undefined) {
      recording.run(this.#places[index]!, this.#record);
      return size;
    }
    if (cache.driver.info.hasStreams) this.#spans.noteQueued(stream);
    native.replay(this.#graphs[index]!, this.#memory.address, this.#bytes);
    return size;
  }

  /** Frees the graphs and their memory; queued work must be over. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    for (const graph of this.#graphs) this.#owner.native.dropGraph(graph);
    this.#memory?.close();
    this.#isClosed = true;
    this.#owner.forget(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #indexFor(rows: number): number {
    let index = 0;
    while (this.sizes[index]! < rows) index += 1;
    return index;
  }

  #capture(place: StepPlace): bigint {
    const { native, recording } = this.#owner;
    native.enter();
    try {
      native.beginCapture();
      try {
        recording.run(place, this.#record);
      } catch (error) {
        native.abortCapture();
        throw error;
      }
      return native.endCapture();
    } finally {
      native.leave();
    }
  }

  /** Rows past the sequences have no token, and so no slot. */
  #write(rows: number, size: number, tokens: Int32Array): void {
    const words = this.#words;
    const { entries, count } = this.#spans;
    const { slots, lengths } = this.#sequences;
    const positions = span * this.#mostRows;
    const ids = positions + this.#mostRows;
    this.#sequences.count = rows;
    let row = 0;
    for (let index = 0; index < count; index += 1) {
      const at = span * index;
      if (entries[at + 2] === 0) continue;
      words[span * row] = slots[row] = entries[at]!;
      words[span * row + 1] = words[positions + row] = lengths[row] = entries[at + 1]!;
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
    const { native } = this.#owner;
    const [positions, tokens] = [span * this.#mostRows, (span + 1) * this.#mostRows];
    const address = this.#memory?.address;
    if (address !== undefined) {
      const at = (word: number): bigint => address + BigInt(wordBytes * word);
      return new StepPlace(size, native, { list: address, positions: at(positions), tokens: at(tokens) });
    }
    const part = (from: number): Int32Array => this.#words.subarray(from, from + size);
    return new StepPlace(size, native, { list: this.#sequences, positions: part(positions), tokens: part(tokens) });
  }
}

function usualSizes(slots: number): readonly number[] {
  const sizes = [slots];
  for (let size = 1; size < slots; size *= 2) sizes.push(size);
  return sizes;
}
