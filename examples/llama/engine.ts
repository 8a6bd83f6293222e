// LlamaEngine: the forward pass of a Llama over one cache on the host driver. It knows slots, positions and tokens, and nothing
// of requests or sharing: K and V of a token are where the cache says, whoever computed them.
//
// A pass is all layers for some new tokens of some sequences: rows [row, width], one sequence after the other. Buffers are
// made for the largest pass so far and reused; `logits` are valid until the next pass.

import { Kernels, type KvCache } from 'virtual-kv';

import type { LlamaModel } from './model.js';
import { ModelError } from './model-error.js';
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
  /** 1 when the logits behind the last new token are read. */
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
  /** A cache of `model.shape()` on the host driver. */
  readonly cache: KvCache;
}

export class LlamaEngine {
  readonly vocabularyTokens: number;
  readonly #model: LlamaModel;
  readonly #kernels: Kernels;
  readonly #buffers = new Map<string, Float32Array>();
  /** [row]: the token's place in its text. */
  #positions = new Int32Array(0);
  /** Above all positions of the pass. */
  #reach = 0;

  /** Throws ModelError when the cache is not on the host driver. */
  constructor({ model, cache }: LlamaEngineOptions) {
    if (cache.driver.kind !== 'host') throw new ModelError(`The engine computes on the CPU, but the cache is on ${cache.driver.kind}.`);
    this.#model = model;
    this.#kernels = new Kernels({ cache, queryHeads: model.config.queryHeads });
    this.vocabularyTokens = model.config.vocabularyTokens;
  }

  /** Computes chunks of prompts. `logits` is [sequence, token of the vocabulary]. */
  prefill(pass: LlamaPass): { readonly logits: Float32Array } {
    return { logits: this.#run(pass, 'prefillAttention') };
  }

  /** Computes one token of each sequence. */
  decode(pass: LlamaPass): { readonly logits: Float32Array } {
    return { logits: this.#run(pass, 'decodeAttention') };
  }

  /** Before its cache is closed. Idempotent. */
  close(): void {
    this.#kernels.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #run(pass: LlamaPass, attention: 'prefillAttention' | 'decodeAttention'): Float32Array {
    const { config, weights, dense } = this.#model;
    const rows = this.#placeRows(pass);
    const { positions: lengths, tokenCounts: tokens, slots, length: count } = pass;
    const spans = { slots, lengths, tokens, count };
    const hidden = this.#buffer('hidden', rows * config.hidden);
    dense.gather(weights.embedding, pass.tokens, rows, hidden);
    weights.layers.forEach((layer, index) => {
      this.#attend(index, layer, hidden, rows, spans, attention);
      this.#feedForward(layer, hidden, rows);
    });
    return this.#logits(pass, hidden);
  }

  /** hidden += attention(norm(hidden)); writes the new K and V. */
  #attend(
    index: number, layer: LayerWeights, hidden: Float32Array, rows: number, spans: Spans,
    attention: 'prefillAttention' | 'decodeAttention',
  ): void {
    const { config, dense, rotary } = this.#model;
    const { queryHeads, kvHeads, headDim: dim } = config;
    const normalized = this.#buffer('normalized', rows * config.hidden);
    const queries = this.#buffer('queries', rows * queryHeads * dim);
    const [keys, values] = [this.#buffer('keys', rows * kvHeads * dim), this.#buffer('values', rows * kvHeads * dim)];
    const attended = this.#buffer('attended', rows * queryHeads * dim);
    dense.normalize(hidden, rows, layer.attentionNorm, config.normEpsilon, normalized);
    dense.multiply(normalized, rows, { ...layer.query, output: queries }, { ...layer.key, output: keys }, { ...layer.value, output: values });
    const table = rotary.upTo(this.#reach);
    dense.rotate(queries, rows, { heads: queryHeads, dim }, this.#positions, table);
    dense.rotate(keys, rows, { heads: kvHeads, dim }, this.#positions, table);
    this.#kernels.append(index, spans, keys, values);
    this.#kernels[attention](index, spans, queries, attended);
    dense.multiply(attended, rows, { ...layer.attentionOutput, output: hidden, mode: 'add' });
  }

  /** hidden += down(silu(gate(x)) · up(x)), x = norm(hidden) */
  #feedForward(layer: LayerWeights, hidden: Float32Array, rows: number): void {
    const { config, dense } = this.#model;
    const normalized = this.#buffer('normalized', rows * config.hidden);
    const gate = this.#buffer('gate', rows * config.intermediate);
    const up = this.#buffer('up', rows * config.intermediate);
    dense.normalize(hidden, rows, layer.feedForwardNorm, config.normEpsilon, normalized);
    dense.multiply(normalized, rows, { ...layer.gate, output: gate }, { ...layer.up, output: up });
    dense.gate(gate, up, rows * config.intermediate, gate);
    dense.multiply(gate, rows, { ...layer.down, output: hidden, mode: 'add' });
  }

  /** Of the last new token of each sequence; not computed when nobody reads any. */
  #logits(pass: LlamaPass, hidden: Float32Array): Float32Array {
    const { config, weights, dense } = this.#model;
    const logits = this.#buffer('logits', pass.length * config.vocabularyTokens);
    if (!pass.wantsLogits.subarray(0, pass.length).includes(1)) return logits;
    const last = this.#buffer('last', pass.length * config.hidden);
    let row = -1;
    for (let index = 0; index < pass.length; index += 1) {
      row += pass.tokenCounts[index]!;
      last.set(hidden.subarray(row * config.hidden, (row + 1) * config.hidden), index * config.hidden);
    }
    dense.normalize(last, pass.length, weights.norm, config.normEpsilon, last);
    dense.multiply(last, pass.length, { weight: weights.head, output: logits });
    return logits;
  }

  /** Says where each row stands in its text; returns how many rows there are. */
  #placeRows({ length, positions, tokenCounts }: LlamaPass): number {
    let rows = 0;
    this.#reach = 0;
    for (let index = 0; index < length; index += 1) rows += tokenCounts[index]!;
    if (rows > this.#positions.length) this.#positions = new Int32Array(2 * rows);
    let row = 0;
    for (let index = 0; index < length; index += 1) {
      for (let token = 0; token < tokenCounts[index]!; token += 1) this.#positions[row++] = positions[index]! + token;
      this.#reach = Math.max(this.#reach, positions[index]! + tokenCounts[index]!);
    }
    return rows;
  }

  #buffer(name: string, elements: number): Float32Array {
    const held = this.#buffers.get(name);
    if (held !== undefined && held.length >= elements) return held;
    const buffer = new Float32Array(elements);
    this.#buffers.set(name, buffer);
    return buffer;
  }
}
