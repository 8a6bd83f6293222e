// LlamaLayers: the forward pass's arithmetic, from the embedding to the logits, over rows whose place in their texts is known. It
// queues on the place's stream and waits for nothing, so that a captured step runs through it as well as any other.

import type { FloatBuffer, Kernels, Norm, StepSequences, Weight } from '../index.js';

import type { LlamaModel } from './model.js';
import type { Activations } from './pass-buffers.js';
import type { LlamaPlace } from './place.js';
import type { LayerWeights } from './weights.js';

/** The kernel by which new tokens attend. */
export type Attention = 'prefillAttention' | 'decodeAttention';

/** The rows of a pass. */
export interface PassRows {
  readonly count: number;
  /** [row]: the token, and its place in its text. */
  readonly tokens: Int32Array | bigint;
  readonly positions: Int32Array | bigint;
  /** As the kernels take them. */
  readonly sequences: StepSequences;
  readonly attention: Attention;
  /** Rotary positions, as far as the rows reach. */
  readonly table: FloatBuffer;
  /** Of `count` rows. */
  readonly at: Activations;
  /** Changes what the tokens begin with, in `at.hidden`. */
  readonly embed?: (() => void) | undefined;
}

export class LlamaLayers {
  readonly #model: LlamaModel;
  readonly #place: LlamaPlace;
  readonly #kernels: Kernels;

  constructor(model: LlamaModel, place: LlamaPlace, kernels: Kernels) {
    [this.#model, this.#place, this.#kernels] = [model, place, kernels];
  }

  /** hidden = what all layers make of the tokens; writes their K and V. */
  compute(rows: PassRows): void {
    this.begin(rows);
    for (let layer = 0; layer < this.count; layer += 1) this.computeLayer(layer, rows);
  }

  get count(): number {
    return this.#place.weights.layers.length;
  }

  /** hidden = what the layer makes of it; writes its K and V. */
  computeLayer(layer: number, rows: PassRows): void {
    this.project(layer, rows);
    this.attend(layer, rows, rows.sequences);
  }

  /** hidden = what the tokens begin with. Then each layer. */
  begin(rows: PassRows): void {
    const { weights, dense } = this.#place;
    dense.gather(weights.embedding, rows.tokens, rows.count, rows.at.hidden);
    rows.embed?.();
  }

  /** logits of the rows `lastRows`, or of all where there is none to choose. */
  computeLogits({ count, at }: PassRows, lastRows?: { readonly rows: Int32Array; readonly count: number }): void {
    const { config } = this.#model;
    const { weights, dense } = this.#place;
    const norm = this.#norm(weights.norm);
    if (lastRows === undefined) dense.normalize(at.hidden, count, norm, at.last);
    else {
      const all: Weight = { data: at.hidden, dtype: 'float32', outputs: count, inputs: config.hidden };
      dense.gather(all, lastRows.rows, lastRows.count, at.last);
      dense.normalize(at.last, lastRows.count, norm, at.last);
    }
    dense.multiply(at.last, lastRows?.count ?? count, { weight: weights.head, output: at.logits });
  }

  /** queries, keys and values of a layer = those of norm(hidden), rotated to their places. */
  project(index: number, { count, positions, table, at }: PassRows): void {
    const { dense, weights } = this.#place;
    const layer = weights.layers[index]!;
    const { queryHeads, kvHeads, headDim: dim } = this.#model.config;
    const { hidden, normalized, queries, keys, values } = at;
    dense.normalize(hidden, count, this.#norm(layer.attentionNorm), normalized);
    dense.multiply(normalized, count,
      { ...layer.query, output: queries }, { ...layer.key, output: keys }, { ...layer.value, output: values });
    this.#normalizeHeads(queries, count * queryHeads, layer.queryNorm);
    this.#normalizeHeads(keys, count * kvHeads, layer.keyNorm);
    dense.rotate(queries, count, { heads: queryHeads, dim }, positions, table);
    dense.rotate(keys, count, { heads: kvHeads, dim }, positions, table);
  }

  /** hidden += attention, then what the layer makes of that; writes the new K and V behind what the sequences hold of this layer. */
  attend(index: number, rows: PassRows, sequences: StepSequences): void {
    const { dense, weights } = this.#place;
    const layer = weights.layers[index]!;
    const { count, attention, at: { hidden, queries, keys, values, attended } } = rows;
    this.#kernels.append(index, sequences, keys, values);
    this.#kernels[attention](index, sequences, queries, attended);
    dense.multiply(attended, count, { ...layer.attentionOutput, output: hidden, mode: 'add' });
    this.#feedForward(layer, rows);
  }

  /** Each head by itself, where the model does that. */
  #normalizeHeads(heads: FloatBuffer, count: number, weight: FloatBuffer | undefined): void {
    const { headDim: width, normEpsilon: epsilon } = this.#model.config;
    if (weight !== undefined) this.#place.dense.normalize(heads, count, { weight, width, epsilon }, heads);
  }

  /** hidden += down(silu(gate(x)) · up(x)), x = norm(hidden) */
  #feedForward(layer: LayerWeights, { count, at }: PassRows): void {
    const { config } = this.#model;
    const { dense } = this.#place;
    const { hidden, normalized, gate, up } = at;
    dense.normalize(hidden, count, this.#norm(layer.feedForwardNorm), normalized);
    dense.multiply(normalized, count, { ...layer.gate, output: gate }, { ...layer.up, output: up });
    dense.gate(gate, up, count * config.intermediate, gate);
    dense.multiply(gate, count, { ...layer.down, output: hidden, mode: 'add' });
  }

  #norm(weight: FloatBuffer): Norm {
    const { hidden: width, normEpsilon: epsilon } = this.#model.config;
    return { weight, width, epsilon };
  }
}
