// LlamaEngine: the forward pass of a Llama over one cache, on any driver. It knows slots, positions and tokens, and
// nothing of requests or sharing: K and V of a token are where the cache says, whichever request computed them.
//
// A pass is all layers for some new tokens of some sequences: rows [row, width], one sequence after the other. On a GPU all of it
// is queued on the default stream, and waited for at the end, where the logits are read back. `logits` are valid until the next pass.

import { Kernels, type FloatBuffer, type KvCache, type Norm, type Weight } from 'virtual-kv';

import type { LlamaModel } from './model.js';
import { PassBuffers } from './pass-buffers.js';
import type { LlamaPlace } from './place.js';
import type { LayerWeights } from './weights.js';

/** What a pass computes; index: the sequence. The first `length` entries count. As the package's EnginePass. */
export interface LlamaPass {
  readonly length: number;
  readonly slots: Int32Array;
  /** Tokens that the slot holds. */
  readonly positions: Int32Array;
  /** New tokens, 1 or more. */
  readonly tokenCounts: Int32Array;
  /** New tokens of all sequences, one sequence after the other. */
  readonly tokens: Int32Array;
  /** 1 when the logits of the last new token are read. */
  readonly wantsLogits: Uint8Array;
}

/** The sequences of a pass as the kernels take them. */
interface Spans {
  readonly slots: Int32Array;
  readonly lengths: Int32Array;
  readonly tokens: Int32Array;
  readonly count: number;
}

export interface LlamaEngineOptions {
  readonly model: LlamaModel;
  /** A cache of `model.shape()`. */
  readonly cache: KvCache;
}

export class LlamaEngine {
  readonly vocabularyTokens: number;
  readonly #model: LlamaModel;
  readonly #kernels: Kernels;
  readonly #place: LlamaPlace;
  readonly #buffers: PassBuffers;
  #isClosed = false;
  /** [row]: the token's place in its text. */
  #positions = new Int32Array(0);
  /** [sequence]: the row of its last new token. */
  #lastRows = new Int32Array(0);
  /** Above all positions of the pass. */
  #reach = 0;

  /** On a device this copies the model's weights there, unless another engine has done it. Throws what the driver throws. */
  constructor({ model, cache }: LlamaEngineOptions) {
    this.#model = model;
    this.#place = model.acquirePlace(cache.driver);
    try {
      this.#kernels = new Kernels({ cache, queryHeads: model.config.queryHeads });
    } catch (error) {
      model.releasePlace(cache.driver);
      throw error;
    }
    this.#buffers = new PassBuffers(cache.driver);
    this.vocabularyTokens = model.config.vocabularyTokens;
  }

  /** The machine, and the code that attends and multiplies: `host memory, avx512`, `NVIDIA H200, sm_90`. */
  get target(): string {
    const { deviceName } = this.#kernels.cache.driver.info;
    return [...new Set([deviceName, this.#kernels.target, this.#place.dense.target])].join(', ');
  }

  /** Computes chunks of prompts. `logits` is [sequence, token of the vocabulary]. */
  prefill(pass: LlamaPass): { readonly logits: Float32Array } {
    return this.#compute(pass, 'prefillAttention');
  }

  /** Computes one token of each sequence. */
  decode(pass: LlamaPass): { readonly logits: Float32Array } {
    return this.#compute(pass, 'decodeAttention');
  }

  /** Before its cache is closed. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#kernels.close();
    this.#buffers.close();
    this.#model.releasePlace(this.#kernels.cache.driver);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** The pass is over when this returns, and also when it throws: nothing that was queued still runs. */
  #compute(pass: LlamaPass, attention: 'prefillAttention' | 'decodeAttention'): { readonly logits: Float32Array } {
    try {
      return { logits: this.#run(pass, attention) };
    } catch (error) {
      if (!this.#kernels.cache.driver.isLost) this.#buffers.finish();
      throw error;
    }
  }

  #run(pass: LlamaPass, attention: 'prefillAttention' | 'decodeAttention'): Float32Array {
    const { config } = this.#model;
    const { weights, dense } = this.#place;
    const rows = this.#placeRows(pass);
    const { positions: lengths, tokenCounts: tokens, slots, length: count } = pass;
    const spans = { slots, lengths, tokens, count };
    const hidden = this.#buffers.floats('hidden', rows * config.hidden);
    dense.gather(weights.embedding, pass.tokens, rows, hidden);
    weights.layers.forEach((layer, index) => {
      this.#attend(index, layer, hidden, rows, spans, attention);
      this.#feedForward(layer, hidden, rows);
    });
    return this.#logits(pass, hidden, rows);
  }

  /** hidden += attention(norm(hidden)); writes the new K and V. */
  #attend(
    index: number, layer: LayerWeights, hidden: FloatBuffer, rows: number, spans: Spans,
    attention: 'prefillAttention' | 'decodeAttention',
  ): void {
    const { config, rotary } = this.#model;
    const { dense } = this.#place;
    const { queryHeads, kvHeads, headDim: dim } = config;
    const buffers = this.#buffers;
    const normalized = buffers.floats('normalized', rows * config.hidden);
    const queries = buffers.floats('queries', rows * queryHeads * dim);
    const [keys, values] = [buffers.floats('keys', rows * kvHeads * dim), buffers.floats('values', rows * kvHeads * dim)];
    const attended = buffers.floats('attended', rows * queryHeads * dim);
    dense.normalize(hidden, rows, this.#norm(layer.attentionNorm), normalized);
    dense.multiply(normalized, rows,
      { ...layer.query, output: queries }, { ...layer.key, output: keys }, { ...layer.value, output: values });
    this.#normalizeHeads(queries, rows * queryHeads, layer.queryNorm);
    this.#normalizeHeads(keys, rows * kvHeads, layer.keyNorm);
    const table = buffers.table('rotary', rotary.upTo(this.#reach));
    dense.rotate(queries, rows, { heads: queryHeads, dim }, this.#positions, table);
    dense.rotate(keys, rows, { heads: kvHeads, dim }, this.#positions, table);
    this.#kernels.append(index, spans, keys, values);
    this.#kernels[attention](index, spans, queries, attended);
    dense.multiply(attended, rows, { ...layer.attentionOutput, output: hidden, mode: 'add' });
  }

  /** Normalizes each head, where the model does that. */
  #normalizeHeads(heads: FloatBuffer, count: number, weight: FloatBuffer | undefined): void {
    const { headDim: width, normEpsilon: epsilon } = this.#model.config;
    if (weight !== undefined) this.#place.dense.normalize(heads, count, { weight, width, epsilon }, heads);
  }

  /** hidden += down(silu(gate(x)) · up(x)), x = norm(hidden) */
  #feedForward(layer: LayerWeights, hidden: FloatBuffer, rows: number): void {
    const { config } = this.#model;
    const { dense } = this.#place;
    const normalized = this.#buffers.floats('normalized', rows * config.hidden);
    const gate = this.#buffers.floats('gate', rows * config.intermediate);
    const up = this.#buffers.floats('up', rows * config.intermediate);
    dense.normalize(hidden, rows, this.#norm(layer.feedForwardNorm), normalized);
    dense.multiply(normalized, rows, { ...layer.gate, output: gate }, { ...layer.up, output: up });
    dense.gate(gate, up, rows * config.intermediate, gate);
    dense.multiply(gate, rows, { ...layer.down, output: hidden, mode: 'add' });
  }

  /** Logits of the last new token of each sequence; not computed when none is read. Waits for the pass. */
  #logits(pass: LlamaPass, hidden: FloatBuffer, rows: number): Float32Array {
    const { config } = this.#model;
    const { weights, dense } = this.#place;
    const buffers = this.#buffers;
    const count = pass.length * config.vocabularyTokens;
    const logits = buffers.floats('logits', count);
    if (!pass.wantsLogits.subarray(0, pass.length).includes(1)) return buffers.read('logits', count); // for the wait
    const last = buffers.floats('last', pass.length * config.hidden);
    const all: Weight = { data: hidden, dtype: 'float32', outputs: rows, inputs: config.hidden };
    dense.gather(all, this.#lastRows, pass.length, last);
    dense.normalize(last, pass.length, this.#norm(weights.norm), last);
    dense.multiply(last, pass.length, { weight: weights.head, output: logits });
    return buffers.read('logits', count);
  }

  #norm(weight: FloatBuffer): Norm {
    const { hidden: width, normEpsilon: epsilon } = this.#model.config;
    return { weight, width, epsilon };
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
