// Kernels: an engine's work on a cache's memory: append new K and V, attention, copies of tokens. They read the tensors
// as contiguous tokens at a stride, on the CPU (host) or on the cache's GPU.
//
// Per step and layer: `append`, then `decodeAttention` or `prefillAttention`; the same `sequences` in all calls of a
// step. A call is one addon call and allocates nothing. On a GPU, and on a stream of the host driver, work is queued;
// on host's default stream it is done when a call returns. For one Node thread. It maps no memory: tokens must have
// rows already.

import type { RowDtype } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import { Batch } from '../cache/batch.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import type { NativeKernels } from '../device/native-kernels.js';
import { native } from '../device/native.js';
import { callable, checkInteger, isAddress } from '../base/options.js';
import type { StreamWork } from '../device/stream-work.js';
import { lengthOf, typedArrayKind } from '../base/typed-arrays.js';
import { CapturedSteps, type CaptureOptions } from './captured-steps.js';
import { KernelLayers } from './kernel-layers.js';
import { checkShared, readKernelsOptions, type KernelsOptions } from './kernels-options.js';
import { kernelModule, kernelsOf } from './load-kernels.js';
import { checkSynchronous, Recording, StepPlace, type RecordedStep } from './recorded-step.js';
import { StepSpans, type SequenceSpans } from './step-spans.js';
import { TokenCopies, type TokenCopy } from './token-copies.js';

/**
 * Activations of a step, contiguous: a typed array on host (`Float32Array`, or the bits of 16-bit floats in a
 * `Uint16Array`; on a stream over a SharedArrayBuffer, since other memory could be detached under queued work), or an
 * address, which is not checked, of memory that the driver's device can use.
 */
export type RowBuffer = Float32Array | Uint16Array | bigint;

/** The sequences of a step: a prepared batch, typed arrays of the engine's own, or a step that is being recorded. */
export type StepSequences = Batch | SequenceSpans | RecordedStep;

/**
 * Kernels over a cache's tensors: append K and V, attention, copies of tokens. Queued on one stream. For one Node
 * thread.
 */
export class Kernels {
  /** The cache whose tensors the kernels read and write. */
  readonly cache: KvCache;
  /** Type of the activations: new K and V, queries, outputs. */
  readonly rowDtype: RowDtype;
  /** The code that runs: `avx512`, `avx2` or `portable` on host, `sm_90` and the like on a GPU. */
  readonly target: string;
  /** As `cache`, a property that JavaScript can overwrite. */
  readonly #cache: KvCache;
  readonly #isOnCpu: boolean;
  /** The typed array of activations on host. */
  readonly #rowArray: 'Float32Array' | 'Uint16Array';
  readonly #native: NativeKernels;
  readonly #layers: KernelLayers;
  readonly #spans: StepSpans;
  readonly #copies: TokenCopies;
  readonly #stream: bigint;
  /** On a stream of the host driver, what is queued there. */
  readonly #work: StreamWork | undefined;
  readonly #captured = new Set<CapturedSteps>();
  readonly #recording = new Recording();
  /** In a call for a step that is being captured, the address of its sequences; undefined where `#spans` has them. */
  #list: bigint | undefined;
  readonly #checkAppend = (): void => { this.#checkOpen('append'); };
  readonly #checkAttend = (): void => { this.#checkOpen('attend'); };
  readonly #checkCopy = (): void => { this.#checkOpen('copy tokens'); };
  readonly #checkReplay = (): void => { this.#checkOpen('replay'); };
  #isClosed = false;

  /**
   * Opens kernels over a cache. Loads the CUDA code unless `loadKernels` has done so on another thread. Throws
   * KV_INVALID_OPTION, KV_KERNELS_REFUSED, or the driver's error. Close it before its cache.
   */
  constructor(options: KernelsOptions) {
    const { cache, queryHeads, scale, attention, rowDtype, ...rest } = readKernelsOptions(options);
    cache.lifetime.check('open kernels over it');
    this.cache = cache;
    this.rowDtype = rowDtype;
    this.#cache = cache;
    this.#isOnCpu = kernelsOf(cache.driver) === 'cpu';
    this.#rowArray = rowDtype === 'float32' ? 'Float32Array' : 'Uint16Array';
    this.#layers = new KernelLayers(cache, { queryHeads, scale, attention });
    this.#stream = rest.stream;
    this.#work = cache.driver.workOn(rest.stream, 'Kernels');
    this.#spans = new StepSpans(cache);
    this.#copies = new TokenCopies(cache);
    this.#native = new (native().NativeKernels)(cache.driver.native, {
      ...rest, ...this.#layers.numbers(), slots: cache.layout.slots, maxTokens: cache.layout.maxTokens,
      module: kernelModule(cache.driver), rowDtype: dtypeNumbers[rowDtype],
      cacheDtype: dtypeNumbers[this.#layers.cacheDtype as RowDtype] ?? 0,
    });
    this.target = this.#native.target();
  }

  /** Whether `close` was called. Every other call then throws KV_CLOSED. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /**
   * Writes new tokens' K and V of one layer past each sequence's length, converted to the cache's type: `keys` is
   * `[row, kvHead, dim]`, `values` `[row, kvHead, valueDim]`, one row per new token, sequence by sequence.
   * Throws KV_BATCH_STATE (the batch is not prepared), KV_COPY_OUT_OF_RANGE (a sequence has no memory for its tokens),
   * KV_ROW_SHARED (spans over tokens that the sequence shares), KV_INVALID_OPTION, KV_LENGTH_OUT_OF_RANGE, or the
   * driver's error; nothing was written then, except when the driver failed.
   */
  append(layer: number, sequences: StepSequences, keys: RowBuffer, values: RowBuffer): void {
    const owner = 'Kernels.append';
    const index = this.#layers.indexOf(layer, owner);
    const rows = this.#read(sequences, owner, this.#checkAppend);
    const { kvHeads, dim, valueDim } = this.#layers.at(index);
    this.#checkRows(owner, 'keys', keys, rows * kvHeads * dim);
    this.#checkRows(owner, 'values', values, rows * kvHeads * valueDim);
    if (this.#list !== undefined) {
      this.#native.appendStep(index, this.#list, rows, keys, values);
      return;
    }
    this.#spans.checkWritable(sequences as Batch | SequenceSpans);
    this.#queued(this.#spans);
    this.#native.append(index, this.#spans.entries, this.#spans.count, keys, values);
  }

  /**
   * Attention of one new token per sequence (0: the sequence is left out) over all tokens of its slot, or those that
   * the layer's rules let it see, the new one included: call it after `append`. `queries` is `[row, queryHead, dim]`,
   * `output` `[row, queryHead, valueDim]`; query heads h · group … share KV head h. Bound by memory: K and V of each
   * sequence are read once, by all threads together even when there is one sequence. Throws as `append`, and
   * KV_INVALID_OPTION when a sequence has more than one new token.
   */
  decodeAttention(layer: number, sequences: StepSequences, queries: RowBuffer, output: RowBuffer): void {
    const owner = 'Kernels.decodeAttention';
    const index = this.#checkAttention(owner, layer, sequences, queries, output);
    if (this.#list !== undefined) {
      this.#native.decodeStep(index, this.#list, (sequences as RecordedStep).size, queries, output);
      return;
    }
    if (this.#spans.mostTokens > 1) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option: 'sequences', expected: 'one new token per sequence at most',
        received: this.#spans.mostTokens, hint: 'Use `prefillAttention` for more.',
      });
    }
    this.#queued(this.#spans);
    this.#native.decodeAttention(index, this.#spans.entries, this.#spans.count, queries, output);
  }

  /**
   * Causal attention of any number of new tokens per sequence: new token j sees the slot's tokens from before the step
   * and the new tokens up to j, as far as the layer's rules let it, so that a prompt can come in parts, and after a
   * cached prefix. Shapes and errors as
   * `decodeAttention`. Bound by arithmetic: K and V are read once for 64 queries.
   */
  prefillAttention(layer: number, sequences: StepSequences, queries: RowBuffer, output: RowBuffer): void {
    const owner = 'Kernels.prefillAttention';
    if (StepPlace.isInstance(sequences)) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option: 'sequences', expected: 'a batch or typed arrays', received: 'a recorded step',
        hint: 'Only decoding can be captured: use `decodeAttention`.',
      });
    }
    const index = this.#checkAttention(owner, layer, sequences, queries, output);
    this.#queued(this.#spans);
    this.#native.prefillAttention(index, this.#spans.entries, this.#spans.count, queries, output);
  }

  /**
   * Copies ranges of tokens between slots, in every tensor of the cache, of any dtype. No range of a call may read or
   * write tokens that another range of it writes. Throws KV_COPY_OUT_OF_RANGE when a range has no memory, KV_ROW_SHARED
   * when one would write tokens that a sequence shares, KV_INVALID_OPTION, KV_LENGTH_OUT_OF_RANGE, or the driver's
   * error.
   */
  copyTokens(copies: readonly TokenCopy[]): void {
    this.#copies.read(copies, this.#checkCopy);
    this.#recording.checkNone('Kernels.copyTokens', 'copies');
    this.#queued(this.#copies);
    this.#native.copyTokens(this.#copies.entries, this.#copies.count);
  }

  /**
   * Captures decoding steps, one for each of some sizes, to be repeated with `replay`. On a device the kernels must be
   * open for a stream of the engine's own (`driver.acquireStream()`), which nothing else may use meanwhile, and the
   * driver know CUDA 11.4; `record` may use whatever queues on that stream, cuBLAS included. On host a replay runs
   * `record`. Throws what `record` throws, KV_INVALID_OPTION, KV_OUT_OF_DEVICE_MEMORY, or the driver's error; nothing
   * stays then. Closed with the kernels.
   */
  captureSteps(options: CaptureOptions): CapturedSteps {
    this.#checkOpen('capture steps');
    const steps = new CapturedSteps(options, {
      cache: this.#cache, native: this.#native, stream: this.#stream, recording: this.#recording,
      checkOpen: this.#checkReplay,
      forget: (closed) => { this.#captured.delete(closed); },
    });
    this.#captured.add(steps);
    return steps;
  }

  /**
   * Calls `body` with the device made current once for all calls of the package in it, instead of by each of them: four
   * calls of the driver less for each launch. `body` must be synchronous: KV_INVALID_OPTION when it returns a promise.
   * Returns what it returns.
   */
  step<Result>(body: () => Result): Result {
    bodyField(body, { owner: 'Kernels.step', option: 'body' });
    this.#checkOpen('compute a step');
    this.#native.enter();
    try {
      const result = body();
      checkSynchronous(result, 'Kernels.step', 'body');
      return result;
    } finally {
      this.#native.leave();
    }
  }

  /** Frees its memory on the device; queued work must be over, and on host is waited for. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    for (const steps of this.#captured) steps.close();
    this.#native.close();
    this.#isClosed = true;
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** Checks a call and returns the position of its layer. */
  #checkAttention(
    owner: string, layer: number, sequences: StepSequences, queries: RowBuffer, output: RowBuffer,
  ): number {
    const index = this.#layers.indexOf(layer, owner);
    const rows = this.#read(sequences, owner, this.#checkAttend);
    const { queryHeads, dim, valueDim } = this.#layers.at(index);
    this.#checkRows(owner, 'queries', queries, rows * queryHeads * dim);
    this.#checkRows(owner, 'output', output, rows * queryHeads * valueDim);
    return index;
  }

  /** Reads the sequences of a call into `#spans`, or into `#list`; returns the number of rows of its buffers. */
  #read(sequences: StepSequences, owner: string, checkOpen: () => void): number {
    this.#list = undefined;
    if (!StepPlace.isInstance(sequences)) {
      this.#recording.checkNone(owner, 'sequences');
      return this.#spans.read(sequences as Batch | SequenceSpans, owner, checkOpen).rows;
    }
    checkOpen();
    const list = sequences.listFor(this.#native, owner);
    if (typeof list === 'bigint') this.#list = list;
    else this.#spans.read(list, owner, checkOpen);
    return sequences.size;
  }

  /** Tells the cache of queued work, so that no memory is reused under it. */
  #queued(spans: StepSpans | TokenCopies): void {
    this.#work?.keep(this); // and so the cache
    if (this.#work !== undefined || this.#cache.driver.info.hasStreams) spans.noteQueued(this.#stream);
  }

  #checkRows(owner: string, option: string, buffer: RowBuffer, elements: number): void {
    if (isAddress(buffer) && buffer > 0n) return;
    const wanted = this.#rowArray;
    const isOnCpu = this.#isOnCpu;
    if (isOnCpu && typedArrayKind(buffer) === wanted) {
      const length = lengthOf(buffer as Float32Array);
      if (length < elements) checkInteger(owner, `${option}.length`, length, elements);
      if (this.#work === undefined) return;
      checkShared(owner, option, buffer);
      this.#work.keep(buffer);
      return;
    }
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner, option, received: buffer,
      expected: isOnCpu ? `a ${wanted} or an address` : 'the address of device memory, a bigint',
    });
  }

  #checkOpen(operation: string): void {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation, owner: 'Kernels' });
    if (this.#cache.isClosed) throw createError('KV_CLOSED', { operation, owner: 'KvCache' });
  }
}

const bodyField = callable<() => unknown>();

/** As native: `enum class Dtype` of kernels/commands.h. */
const dtypeNumbers: Readonly<Record<RowDtype, number>> = { float32: 0, float16: 1, bfloat16: 2 };
