// LlamaEngine: the forward pass of a Llama over one cache, on any driver. It knows slots, positions and tokens, and
// nothing of requests or sharing: K and V of a token are where the cache says, whichever request computed them.
//
// A pass is all layers for some new tokens of some sequences: rows [row, width], one sequence after the other. All of it is queued on
// one stream, on a GPU decoding as a captured step, and awaited at the end, where the logits are read: threads compute while
// JavaScript goes on. `logits` are valid until the next pass.

import { setImmediate } from 'node:timers/promises';

import { EitherSignal } from '../base/either-signal.js';
import { createError } from '../base/errors.js';
import { checkInteger } from '../base/options.js';
import { isKvError, Kernels } from '../index.js';
import { kernelsOf } from '../kernels/load-kernels.js';

import { CapturedDecoding } from './captured-decoding.js';
import { givenTo, readLlamaEngineOptions, type LlamaEngineOptions } from './engine-options.js';
import { attentionRules, LlamaLayers, type Attention, type PassRows } from './layers.js';
import type { LlamaModel } from './model.js';
import { PassBuffers } from './pass-buffers.js';
import { readPass, type LlamaPass, type PassLimits } from './pass-reader.js';
import type { LlamaPlace } from './place.js';
import { SelectedPass } from './selected-pass.js';

/** Layers that are queued before the event loop has its turn: fewer than it takes ms to queue, more than threads compute meanwhile. */
const layersPerTurn = 8;

/** What a pass is answered with: [sequence, token of the vocabulary], and side rows if the engine has a name for them. */
export interface LlamaOutput {
  /** [sequence, token of the vocabulary]; valid until the next pass. */
  readonly logits: Float32Array;
  /** Hidden states by the name in `LlamaEngineOptions.hidden`. */
  readonly side?: Readonly<Record<string, Float32Array>> | undefined;
}

/** Queues a pass, until the signal is aborted; returns what reads its answer. */
type Queue = (signal: AbortSignal) => (() => LlamaOutput) | Promise<() => LlamaOutput>;

/** The forward pass of a model over one cache: an `Engine` for the schedulers. Close it before the cache. */
export class LlamaEngine {
  /** Tokens of the vocabulary. */
  readonly vocabularyTokens: number;
  /** Of a request beside its tokens: rows as `input`, and the items that these are of. */
  readonly reads = ['input', 'items'] as const;
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
  readonly #limits: PassLimits;
  /** How one token of each sequence attends. */
  readonly #decodeAttention: Attention;
  /** Drops what is left of a pass when the engine is closed. */
  readonly #closing = new AbortController();
  #whyQueued: string | undefined;
  #isClosed = false;
  /** Closed, and nothing is left to give back. */
  #isReleased = false;
  /** The pass that is awaited. */
  #underWay: Promise<LlamaOutput> | undefined;
  /** [row]: the token's place in its text. */
  #positions = new Int32Array(0);
  /** [sequence]: the row of its last new token. */
  #lastRows = new Int32Array(0);
  /** Above all positions of the pass. */
  #reach = 0;

  /**
   * On a device this copies the model's weights there, unless another engine has done it. Throws KV_UNKNOWN_OPTION, KV_INVALID_OPTION
   * (also for a cache of another model's shape, and for exact results on a device), and what the driver throws.
   */
  constructor(options: LlamaEngineOptions) {
    const { model, cache, decoding, passes, results, hidden } = readLlamaEngineOptions(options);
    const { driver, layout: { slots, maxTokens } } = cache;
    this.#limits = { slots, maxTokens, width: model.config.hidden };
    this.#decodeAttention = results === 'exact' ? 'prefillAttention' : 'decodeAttention';
    this.#model = model;
    this.#isAwaited = passes === 'awaited';
    this.#place = model.acquirePlace(driver, passes);
    const { stream } = this.#place;
    try {
      const { queryHeads, attentionScale: scale } = model.config;
      this.#kernels = new Kernels({ cache, queryHeads, scale, attention: attentionRules(model.config, this.#place.weights, cache), stream });
    } catch (error) {
      model.releasePlace(driver, this.#place);
      throw error;
    }
    this.#buffers = new PassBuffers(driver, stream);
    this.#layers = new LlamaLayers(model, this.#place, this.#kernels);
    this.#selected = new SelectedPass({
      model, kernels: this.#kernels, layers: this.#layers, buffers: this.#buffers,
      synchronize: (signal) => driver.synchronize(stream, { signal }),
    });
    this.#captured = new CapturedDecoding({ model, place: this.#place, kernels: this.#kernels, layers: this.#layers });
    this.#isCaptureWanted = decoding === 'captured';
    this.#hidden = hidden;
    if (hidden !== undefined) this.#whyQueued = 'its hidden states are read';
    else if (kernelsOf(driver) === 'cpu') this.#whyQueued = 'the CPU has no launches to save';
    else if (decoding === 'queued') this.#whyQueued = 'it was asked for';
    this.vocabularyTokens = model.config.vocabularyTokens;
  }

  /** The machine, and the code that attends and multiplies: `host memory, avx512`, `NVIDIA H200, sm_90`. */
  get target(): string {
    const { deviceName } = this.#kernels.cache.driver.info;
    return [...new Set([deviceName, this.#kernels.target, this.#place.dense.target])].join(', ');
  }

  /** Whether it computes sequences that hold selected tokens: while they load, a pass must be awaited. */
  get canSelect(): boolean {
    return this.#isAwaited && this.#model.config.layerAttention === undefined;
  }

  /** Why decoding is not captured; undefined where it is, or will be. */
  get whyQueued(): string | undefined {
    return this.#whyQueued;
  }

  /** Computes chunks of prompts. `logits` is [sequence, token of the vocabulary]. Throws KV_INVALID_OPTION, or rejects with it where passes are awaited. */
  prefill(given: LlamaPass): LlamaOutput | Promise<LlamaOutput> {
    return this.#read('LlamaEngine.prefill', given, (pass) =>
      this.#compute(pass, 'prefillAttention', () => this.#queue(pass, 'prefillAttention')));
  }

  /** Computes one token of each sequence. Fails as `prefill`. */
  decode(given: LlamaPass): LlamaOutput | Promise<LlamaOutput> {
    const attention = this.#decodeAttention;
    return this.#read('LlamaEngine.decode', given, (pass) =>
      this.#compute(pass, attention, () => this.#canReplay(pass) ? this.#replay(pass) : this.#queue(pass, attention)));
  }

  /**
   * Before its cache is closed. A pass that is awaited is dropped, on a device waited for, and rejects. Idempotent; after a failure of the
   * driver call it again, it goes on.
   */
  close(): void {
    this.#isClosed = true;
    this.#closing.abort();
    if (this.#isReleased) return; // here: what hears of the abort may close it, too
    this.#place.drop();
    if (this.#underWay !== undefined) this.#finish(); // what is queued on a device uses its memory
    this.#captured.close();
    this.#kernels.close();
    this.#buffers.close();
    this.#model.releasePlace(this.#kernels.cache.driver, this.#place);
    this.#isReleased = true;
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** Checks a pass before anything of it is computed. */
  #read(owner: string, given: LlamaPass, compute: (pass: LlamaPass) => LlamaOutput | Promise<LlamaOutput>): LlamaOutput | Promise<LlamaOutput> {
    let pass: LlamaPass;
    try {
      pass = readPass(owner, given, this.#limits);
    } catch (error) {
      if (!this.#isAwaited) throw error;
      return Promise.reject(error as Error);
    }
    return compute(pass);
  }

  /** Queues a pass and reads its answer. It is over when this returns or rejects, and also when it throws: nothing that was queued still runs. */
  #compute(pass: LlamaPass, attention: Attention, queue: () => () => LlamaOutput): LlamaOutput | Promise<LlamaOutput> {
    if (pass.sequences !== undefined) return this.#computeSelected(pass, attention);
    if (this.#isAwaited) return this.#computeBeside(pass, kernelsOf(this.#kernels.cache.driver) === 'cpu' ? (signal) => this.#queueInTurns(pass, attention, signal) : queue);
    this.#checkOpen();
    checkWanted(pass.signal);
    try {
      return queue()();
    } catch (error) {
      this.#finish();
      throw error;
    }
  }

  /** One pass after the other, since they share buffers. */
  async #computeBeside(pass: LlamaPass, queue: Queue): Promise<LlamaOutput> {
    while (this.#underWay !== undefined) {
      await this.#underWay.catch(() => {});
      await setImmediate(); // its caller reads the answer
    }
    const ending = new EitherSignal(this.#closing.signal, pass.signal);
    const drop = (): void => { if (!this.#isClosed) this.#place.drop(); }; // at once, also while the pass is still being queued
    pass.signal?.addEventListener('abort', drop);
    this.#underWay = this.#computeAlone(queue, ending.signal);
    try {
      return await this.#underWay;
    } finally {
      this.#underWay = undefined;
      ending.forget();
      pass.signal?.removeEventListener('abort', drop);
    }
  }

  async #computeAlone(queue: Queue, signal: AbortSignal): Promise<LlamaOutput> {
    const { driver } = this.#kernels.cache;
    const { stream } = this.#place;
    try {
      this.#checkOpen();
      checkWanted(signal);
      const queued = queue(signal);
      const read = typeof queued === 'function' ? queued : await queued;
      checkWanted(signal);
      await driver.synchronize(stream, { signal });
      return read();
    } catch (error) {
      if (!this.#isClosed) {
        if (kernelsOf(driver) === 'cpu') await driver.synchronize(stream, { signal: AbortSignal.abort() }).catch(() => {}); // what was queued before it
        this.#finish();
      }
      throw error;
    }
  }

  #checkOpen(): void {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation: 'compute a pass', owner: 'LlamaEngine' });
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
    for (let index = 0; index < count; index += 1) { // a graph takes any number for a row of the embedding
      const token = tokens[index]!;
      if (token < 0 || token >= this.vocabularyTokens) {
        checkInteger('LlamaEngine.decode', `pass.tokens[${index}]`, token, 0, this.vocabularyTokens - 1);
      }
    }
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
  async #queueInTurns(pass: LlamaPass, attention: Attention, signal: AbortSignal): Promise<() => LlamaOutput> {
    const rows = this.#rowsOf(pass, attention);
    const layers = this.#layers;
    layers.begin(rows);
    for (let layer = 0; layer < layers.count; layer += 1) {
      if (layer > 0 && layer % layersPerTurn === 0) {
        await setImmediate();
        checkWanted(signal);
      }
      layers.computeLayer(layer, rows);
    }
    return this.#queueLogits(pass, rows);
  }

  async #computeSelected(pass: LlamaPass, attention: Attention): Promise<LlamaOutput> {
    if (!this.#isAwaited) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner: 'LlamaEngine', option: 'passes', expected: "'awaited' for sequences that hold selected tokens", received: 'blocking',
      });
    }
    if (!this.canSelect) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner: 'LlamaEngine', option: 'model', received: 'one of windows or chunks',
        expected: 'one whose layers see all tokens, for sequences that hold selected tokens',
      });
    }
    return this.#computeBeside(pass, async (signal) => {
      const rows = this.#rowsOf(pass, attention);
      await this.#selected.compute(pass, rows, signal);
      return this.#queueLogits(pass, rows);
    });
  }

  #rowsOf(pass: LlamaPass, attention: Attention): PassRows {
    const { config, rotary } = this.#model;
    const buffers = this.#buffers;
    const { positions: lengths, tokenCounts, slots, tokens, length } = pass;
    const count = this.#placeRows(pass);
    this.#place.keep();
    return {
      count, tokens, positions: this.#positions, attention, sequences: { slots, lengths, tokens: tokenCounts, count: length },
      tables: rotary.upTo(this.#reach, (name, table) => buffers.table(`rotary ${name}`, table)), at: buffers.activations(config, count, length),
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

/** Throws KV_ABORTED where the pass was given up since it began, or its engine closed. */
function checkWanted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw createError('KV_ABORTED', { operation: 'computing a pass' }, { cause: signal.reason });
}
