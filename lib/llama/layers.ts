// LlamaLayers: the forward pass's arithmetic, from the embedding to the logits, over rows whose place in their texts is known. It
// queues on the place's stream and waits for nothing, so that a captured step runs through it as well as any other.

import type { AttentionRules, Kernels, KvCache, RotationShape, StepSequences, Weight } from '../index.js';

import { OperandsOfLayers, type LayerOperands } from './layer-operands.js';
import type { LlamaConfig } from './config.js';
import type { LlamaModel } from './model.js';
import type { Activations } from './pass-buffers.js';
import type { LlamaPlace } from './place.js';
import type { TablesOfPass } from './rotary-table.js';
import type { LlamaWeights } from './weights.js';

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
  readonly tables: TablesOfPass;
  /** Of `count` rows. */
  readonly at: Activations;
  /** Changes what the tokens begin with, in `at.hidden`. */
  readonly embed?: (() => void) | undefined;
}

/**
 * What the attention of each layer of a cache does beyond softmax; undefined where none does more. `weights`: where the kernels run. Layers
 * that the model does not have do nothing more.
 */
export function attentionRules(
  { layerAttention, attentionCap: softcap }: LlamaConfig, { layers }: LlamaWeights, { tensors }: KvCache,
): readonly AttentionRules[] | undefined {
  if (layerAttention === undefined && softcap === undefined && layers[0]!.sinks === undefined) return undefined;
  return Array.from({ length: tensors.at(-1)!.layer + 1 }, (_, layer) => {
    const { kind, tokens } = layerAttention?.[layer] ?? { kind: 'full', tokens: 0 };
    return {
      softcap, sinks: layers[layer]?.sinks,
      windowTokens: kind === 'window' ? tokens : undefined, chunkTokens: kind === 'chunk' ? tokens : undefined,
    };
  });
}

const allGlobal = { rope: 'global' } as const;

export class LlamaLayers {
  readonly #model: LlamaModel;
  readonly #place: LlamaPlace;
  readonly #kernels: Kernels;
  readonly #operands: OperandsOfLayers;
  /** As `DenseKernels.rotate` takes them. */
  readonly #queryHeads: RotationShape;
  readonly #kvHeads: RotationShape;
  /** Of queries that are not rotated, whose elements stay where they are. */
  readonly #stillHeads: RotationShape;

  constructor(model: LlamaModel, place: LlamaPlace, kernels: Kernels) {
    [this.#model, this.#place, this.#kernels] = [model, place, kernels];
    const { queryHeads, kvHeads, headDim: dim } = model.config;
    this.#operands = new OperandsOfLayers(model.config, place.weights);
    const { pairs } = place.weights;
    [this.#queryHeads, this.#kvHeads] = [{ heads: queryHeads, dim, pairs }, { heads: kvHeads, dim, pairs }];
    this.#stillHeads = { heads: queryHeads, dim };
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
    dense.gather(weights.embedding, rows.tokens, rows.count, rows.at.hidden, this.#model.config.embeddingScale);
    rows.embed?.();
  }

  /** logits of the rows `lastRows`, or of all where there is none to choose. */
  computeLogits({ count, at }: PassRows, lastRows?: { readonly rows: Int32Array; readonly count: number }): void {
    const { config } = this.#model;
    const { weights, dense } = this.#place;
    const norm = this.#operands.norm(weights.norm);
    if (lastRows === undefined) dense.normalize(at.hidden, count, norm, at.last);
    else {
      const all: Weight = { data: at.hidden, dtype: 'float32', outputs: count, inputs: config.hidden };
      dense.gather(all, lastRows.rows, lastRows.count, at.last);
      dense.normalize(at.last, lastRows.count, norm, at.last);
    }
    const rows = lastRows?.count ?? count;
    dense.multiply(at.last, rows, { weight: weights.head, output: at.logits });
    if (config.logitsCap !== undefined) dense.cap(at.logits, rows * config.vocabularyTokens, config.logitsCap);
  }

  /** queries, keys and values of a layer = those of norm(hidden), rotated to their places. */
  project(index: number, { count, positions, tables, at }: PassRows): void {
    const { dense } = this.#place;
    const { attentionNorm, projections, queryNorm, keyNorm } = this.#operands.with(at)[index]!;
    const { hidden, normalized, queries, keys } = at;
    dense.normalize(hidden, count, attentionNorm, normalized);
    dense.multiply(normalized, count, ...projections);
    if (queryNorm !== undefined) dense.normalize(queries, count * this.#queryHeads.heads, queryNorm, queries);
    if (keyNorm !== undefined) dense.normalize(keys, count * this.#kvHeads.heads, keyNorm, keys);
    const { rope } = this.#model.config.layerAttention?.[index] ?? allGlobal;
    if (rope !== 'none') {
      dense.rotate(queries, count, this.#queryHeads, positions, tables[rope]!);
      dense.rotate(keys, count, this.#kvHeads, positions, tables[rope]!);
    } else if (tables.growth !== undefined) {
      dense.rotate(queries, count, this.#stillHeads, positions, tables.growth);
    }
  }

  /** hidden += attention, then what the layer makes of that; writes the new K and V behind what the sequences hold of this layer. */
  attend(index: number, { count, attention, at }: PassRows, sequences: StepSequences): void {
    const { dense } = this.#place;
    const operands = this.#operands.with(at)[index]!;
    const { queries, keys, values, attended, hidden, normalized } = at;
    this.#kernels.append(index, sequences, keys, values);
    this.#kernels[attention](index, sequences, queries, attended);
    dense.multiply(attended, count, operands.attentionOutput);
    if (operands.attentionOutputNorm !== undefined) dense.normalize(normalized, count, operands.attentionOutputNorm, hidden);
    this.#feedForward(operands, count, at);
  }

  /** hidden += down(activation(gate(x)) · up(x)), normalized where the model says so; x = norm(hidden) */
  #feedForward({ feedForwardNorm, expansions, down, feedForwardOutputNorm }: LayerOperands, count: number, { hidden, normalized, gate, up }: Activations): void {
    const { dense } = this.#place;
    dense.normalize(hidden, count, feedForwardNorm, normalized);
    dense.multiply(normalized, count, ...expansions);
    const { intermediate, activation } = this.#model.config;
    dense.gate(gate, up, count * intermediate, gate, activation);
    dense.multiply(gate, count, down);
    if (feedForwardOutputNorm !== undefined) dense.normalize(normalized, count, feedForwardOutputNorm, hidden);
  }
}
