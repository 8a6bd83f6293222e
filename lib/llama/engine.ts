// LlamaEngine: the forward pass of a Llama over one cache, on any driver. It knows slots, positions and tokens, and
// nothing of requests or sharing: K and V of a token are where the cache says, whichever request computed them.
//
// A pass is all layers for some new tokens of some sequences: rows [row, width], one sequence after the other. All of it is queued on
// one stream, on a GPU decoding as a captured step, and awaited at the end, where the logits are read: threads compute while
// JavaScript goes on. `logits` are valid until the next pass.

import { setImmediate } from 'node:timers/promises';

import { createError } from '../base/errors.js';
import { isKvError, Kernels, type Sequence } from '../index.js';

import { CapturedDecoding } from './captured-decoding.js';
import { checkResults, type LlamaEngineOptions } from './engine-options.js';
import { givenTo } from './given-rows.js';
import { LlamaLayers, type Attention, type PassRows } from './layers.js';
import type { LlamaModel } from './model.js';
import { PassBuffers } from './pass-buffers.js';
import type { LlamaPlace } from './place.js';
import { hasSelections, SelectedPass } from './selected-pass.js';

/** Layers that are queued before the event loop has its turn: fewer than it takes ms to queue, more than threads compute meanwhile. */
const layersPerTurn = 8;

/** What a pass computes; index: the sequence. The first `length` entries count. As the package's EnginePass. */
export interface LlamaPass {
  /** Sequences in it, 1 or more. */
  readonly length: number;
  /** Slots of the cache. */
  readonly slots: Int32Array;
  /** Tokens that the slot holds. */
  readonly positions: Int32Array;
  /** New tokens, 1 or more. */
  readonly tokenCounts: Int32Array;
  /** New tokens of all sequences, one sequence after the other. */
  readonly tokens: Int32Array;
  /** 1 when the logits of the last new token are read. */
  readonly wantsLogits: Uint8Array;
  /** A list of GivenRows of each sequence, or undefined: embeddings [token, hidden size] in the place of its tokens'. Default: none. */
  readonly inputs?: readonly unknown[] | undefined;
  /** The lease of each slot: needed where one holds selected tokens (`isLossy`). Default: none does. */
  readonly sequences?: readonly (Sequence | undefined)[] | undefined;
}

/** What a pass is answered with: [sequence, token of the vocabulary], and side rows if the engine has a name for them. */
export interface LlamaOutput {
  /** [sequence, token of the vocabulary]; valid until the next pass. */
  readonly logits: Float32Array;
  /** Hidden states by the name in `LlamaEngineOptions.hidden`. */
  readonly side?: Readonly<Record<string, Float32Array>> | undefined;
}

/** Queues a pass; returns what reads its answer. */
type Queue = () => (() => LlamaOutput) | Promise<() => LlamaOutput>;

/** The forward pass of a model over one cache: an `Engine` for the schedulers. Close it before the cache. */
export class LlamaEngine {
  /** Tokens of the vocabulary. */
  readonly vocabularyTokens: number;
  readonly #model: LlamaModel;
  readonly #kernels: Kernels;
  readonly #place: LlamaPlace;
  readonly #buffers: PassBuffers;
  readonly #layers: LlamaLayers;
  readonly #selected: SelectedPass;
  readonly #captured: CapturedDecoding;
  readonly #isCaptureWanted: boolean;
  readonly #hidden: string | undefined;
  readonly #isAwaited: boolean;
  /** How one token of each sequence attends. */
  readonly #decodeAttention: Attention;
  /** Drops what is left of a pass when the engine is closed. */
  readonly #closing = new AbortController();
  #whyQueued: string | undefined;
  #isClosed = false;
  /** The pass that is awaited. */
  #underWay: Promise<LlamaOutput> | undefined;
  /** [row]: the token's place in its text. */
  #positions = new Int32Array(0);
  /** [sequence]: the row of its last new token. */
  #lastRows = new Int32Array(0);
  /** Above all positions of the pass. */
  #reach = 0;

  /**
   * On a device this copies the model's weights there, unless another engine has done it. Throws KV_INVALID_OPTION for exact results
   * on a device, and what the driver throws.
   */
  constructor({ model, cache, decoding = 'auto', passes = 'awaited', results = 'fast', hidden }: LlamaEngineOptions) {
    const { driver } = cache;
    checkResults(results, driver);
    this.#decodeAttention = results === 'exact' ? 'prefillAttention' : 'decodeAttention';
    this.#model = model;
    this.#isAwaited = passes === 'awaited';
    this.#place = model.acquirePlace(driver, passes);
    const { stream, dense } = this.#place;
    try {
      this.#kernels = new Kernels({ cache, queryHeads: model.config.queryHeads, stream });
    } catch (error) {
      model.releasePlace(driver, this.#place);
      throw error;
    }
    this.#buffers = new PassBuffers(driver, stream);
    this.#layers = new LlamaLayers(model, this.#place, this.#kernels);
    this.#selected = new SelectedPass({
      model, kernels: this.#kernels, layers: this.#layers, buffers: this.#buffers,
      synchronize: () => driver.synchronize(stream, { signal: this.#closing.signal }),
    });
    this.#captured = new CapturedDecoding({ model, place: this.#place, kernels: this.#kernels, layers: this.#layers });
    this.#isCaptureWanted = decoding === 'captured';
    this.#hidden = hidden;
    if (hidden !== undefined) this.#whyQueued = 'its hidden states are read';
    else if (driver.kind === 'host') this.#whyQueued = 'the CPU has no launches to save';
    else if (decoding === 'queued') this.#whyQueued = 'it was asked for';
    else if (decoding === 'auto' && dense.target.startsWith('cublas')) {
      this.#whyQueued = 'cuBLAS multiplies, and no GPU has run it within a captured step yet';
    }
    this.vocabularyTokens = model.config.vocabularyTokens;
  }

  /** The machine, and the code that attends and multiplies: `host memory, avx512`, `NVIDIA H200, sm_90`. */
  get target(): string {
    const { deviceName } = this.#kernels.cache.driver.info;
    return [...new Set([deviceName, this.#kernels.target, this.#place.dense.target])].join(', ');
  }

  /** Whether it computes sequences that hold selected tokens: while they load, a pass must be awaited. */
  get canSelect(): boolean {
    return this.#isAwaited;
  }

  /** Why decoding is not captured; undefined where it is, or will be. */
  get whyQueued(): string | undefined {
    return this.#whyQueued;
  }

  /** Computes chunks of prompts. `logits` is [sequence, token of the vocabulary]. */
  prefill(pass: LlamaPass): LlamaOutput | Promise<LlamaOutput> {
    return this.#compute(pass, 'prefillAttention', () => this.#queue(pass, 'prefillAttention'));
  }

  /** Computes one token of each sequence. */
  decode(pass: LlamaPass): LlamaOutput | Promise<LlamaOutput> {
    const attention = this.#decodeAttention;
    return this.#compute(pass, attention, () => this.#canReplay(pass) ? this.#replay(pass) : this.#queue(pass, attention));
  }

  /** Before its cache is closed. A pass that is awaited is dropped, on a device waited for, and rejects. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#closing.abort();
    this.#place.drop();
    this.#captured.close();
    this.#kernels.close();
    this.#buffers.close();
    this.#model.releasePlace(this.#kernels.cache.driver, this.#place);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** Queues a pass and reads its answer. It is over when this returns or rejects, and also when it throws: nothing that was queued still runs. */
  #compute(pass: LlamaPass, attention: Attention, queue: () => () => LlamaOutput): LlamaOutput | Promise<LlamaOutput> {
    if (hasSelections(pass)) return this.#computeSelected(pass, attention);
    if (this.#isAwaited) return this.#computeBeside(this.#kernels.cache.driver.kind === 'host' ? () => this.#queueInTurns(pass, attention) : queue);
    try {
      return queue()();
    } catch (error) {
      this.#finish();
      throw error;
    }
  }

  /** One pass after the other, since they share buffers. */
  async #computeBeside(queue: Queue): Promise<LlamaOutput> {
    while (this.#underWay !== undefined) {
      await this.#underWay.catch(() => {});
      await setImmediate(); // its caller reads the answer
    }
    this.#underWay = this.#computeAlone(queue);
    try {
      return await this.#underWay;
    } finally {
      this.#underWay = undefined;
    }
  }

  async #computeAlone(queue: Queue): Promise<LlamaOutput> {
    const { driver } = this.#kernels.cache;
    const { stream } = this.#place;
    try {
      const queued = queue();
      const read = typeof queued === 'function' ? queued : await queued;
      this.#checkOpen();
      await driver.synchronize(stream, { signal: this.#closing.signal });
      return read();
    } catch (error) {
      if (!this.#isClosed) {
        if (driver.kind === 'host') await driver.synchronize(stream, { signal: AbortSignal.abort() }).catch(() => {}); // what was queued before it
        this.#finish();
      }
      throw error;
    }
  }

  #finish(): void {
    if (this.#kernels.cache.driver.isLost) return;
    this.#buffers.finish();
    this.#captured.finish();
  }

  /** Whether there is a captured step for the pass. Where one cannot be captured for `auto`, decoding is queued from then on. */
  #canReplay({ length, inputs = [] }: LlamaPass): boolean {
    if (inputs.some((input) => input !== undefined)) return false;
    if (length === 0 || this.#whyQueued !== undefined) return false;
    try {
      this.#captured.reach(length);
      return true;
    } catch (error) {
      const { driver } = this.#kernels.cache;
      if (this.#isCaptureWanted || driver.isLost || !isKvError(error)) throw error;
      this.#captured.close();
      this.#whyQueued = `the driver refused: ${error.message}`;
      return false;
    }
  }

  #replay({ length: count, positions: lengths, tokenCounts, slots, tokens }: LlamaPass): () => LlamaOutput {
    this.#captured.replay({ slots, lengths, tokens: tokenCounts, count }, tokens);
    return () => ({ logits: this.#captured.readLogits(count) });
  }

  /** Queues a pass; on host without a stream computes it. Returns what reads its answer, and waits for it. */
  #queue(pass: LlamaPass, attention: Attention): () => LlamaOutput {
    return this.#kernels.step(() => {
      const rows = this.#rowsOf(pass, attention);
      this.#layers.compute(rows);
      return this.#queueLogits(pass, rows);
    });
  }

  /** Queues a pass beside threads of the same processors: some layers at a time, and the event loop has its turn in between. */
  async #queueInTurns(pass: LlamaPass, attention: Attention): Promise<() => LlamaOutput> {
    const rows = this.#rowsOf(pass, attention);
    const layers = this.#layers;
    layers.begin(rows);
    for (let layer = 0; layer < layers.count; layer += 1) {
      if (layer > 0 && layer % layersPerTurn === 0) {
        await setImmediate();
        this.#checkOpen();
      }
      layers.computeLayer(layer, rows);
    }
    return this.#queueLogits(pass, rows);
  }

  /** Throws KV_ABORTED where the engine was closed since the pass began. */
  #checkOpen(): void {
    if (this.#isClosed) throw createError('KV_ABORTED', { operation: 'computing a pass' }, { cause: this.#closing.signal.reason });
  }

  async #computeSelected(pass: LlamaPass, attention: Attention): Promise<LlamaOutput> {
    if (!this.#isAwaited) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner: 'LlamaEngine', option: 'passes', expected: "'awaited' for sequences that hold selected tokens", received: 'blocking',
      });
    }
    return this.#computeBeside(async () => {
      const rows = this.#rowsOf(pass, attention);
      await this.#selected.compute(pass, rows, this.#closing.signal);
      return this.#queueLogits(pass, rows);
    });
  }

  #rowsOf(pass: LlamaPass, attention: Attention): PassRows {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation: 'compute a pass', owner: 'LlamaEngine' });
    const { config, rotary } = this.#model;
    const buffers = this.#buffers;
    const { positions: lengths, tokenCounts, slots, tokens, length } = pass;
    const count = this.#placeRows(pass);
    this.#place.keep();
    return {
      count, tokens, positions: this.#positions, attention, sequences: { slots, lengths, tokens: tokenCounts, count: length },
      table: buffers.table('rotary', rotary.upTo(this.#reach)), at: buffers.activations(config, count, length),
      embed: () => { this.#embed(pass); },
    };
  }

  /** Returns what reads the pass's answer, and waits for it. */
  #queueLogits(pass: LlamaPass, rows: PassRows): () => LlamaOutput {
    const { length } = pass;
    const { config } = this.#model;
    const buffers = this.#buffers;
    const { count } = rows;
    // Logits of the last new token of each sequence; not computed for a pass that reads none.
    if (pass.wantsLogits.subarray(0, length).includes(1)) this.#layers.computeLogits(rows, { rows: this.#lastRows, count: length });
    return () => {
      this.#place.check();
      const logits = buffers.readLogits(length * config.vocabularyTokens);
      return this.#hidden === undefined ? { logits } : { logits, side: { [this.#hidden]: buffers.readHidden(count * config.hidden) } };
    };
  }

  /** Puts the rows that sequences were given in the place of their tokens' embeddings. */
  #embed({ length, positions, tokenCounts, inputs }: LlamaPass): void {
    const width = this.#model.config.hidden;
    let row = 0;
    for (let index = 0; index < length; index += 1) {
      const position = positions[index]!;
      const end = position + tokenCounts[index]!;
      for (const { at, rows } of givenTo(inputs, index)) {
        const from = Math.max(at, position);
        const to = Math.min(at + rows.length / width, end);
        if (from < to) this.#buffers.writeHidden(rows.subarray((from - at) * width, (to - at) * width), row + from - position, width, this.#place.dense);
      }
      row += tokenCounts[index]!;
    }
  }

  /** Sets the position of each row; returns the number of rows. */
  #placeRows({ length, positions, tokenCounts }: LlamaPass): number {
    let rows = 0;
    this.#reach = 0;
    for (let index = 0; index < length; index += 1) rows += tokenCounts[index]!;
    if (rows > this.#positions.length) this.#positions = new Int32Array(2 * rows);
    if (length > this.#lastRows.length) this.#lastRows = new Int32Array(2 * length);
    let row = 0;
    for (let index = 0; index < length; index += 1) {
      for (let token = 0; token < tokenCounts[index]!; token += 1) this.#positions[row++] = positions[index]! + token;
      this.#lastRows[index] = row - 1;
      this.#reach = Math.max(this.#reach, positions[index]! + tokenCounts[index]!);
    }
    return rows;
  }
}
