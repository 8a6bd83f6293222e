// LayerOperands: what the dense kernels take for a layer, its weights and the buffers of passes together. Made once for all passes with the same
// buffers, so that a pass makes no objects.

import type { FloatBuffer, Norm, Product } from '../index.js';

import type { LlamaConfig } from './config.js';
import type { Activations } from './pass-buffers.js';
import type { LayerWeights, LlamaWeights } from './weights.js';

/** Of one layer. */
export interface LayerOperands {
  readonly attentionNorm: Norm;
  /** Queries, keys and values. */
  readonly projections: readonly [Product, Product, Product];
  /** Of each head; undefined where they are not normalized. */
  readonly queryNorm: Norm | undefined;
  readonly keyNorm: Norm | undefined;
  readonly attentionOutput: Product;
  /** Adds what attention gives; undefined: the product does. */
  readonly attentionOutputNorm: Norm | undefined;
  readonly feedForwardNorm: Norm;
  /** What is gated, and what it is multiplied with. */
  readonly expansions: readonly [Product, Product];
  readonly down: Product;
  readonly feedForwardOutputNorm: Norm | undefined;
}

const buffersOfOperands = ['hidden', 'normalized', 'queries', 'keys', 'values', 'gate', 'up'] as const;
type Buffers = Pick<Activations, typeof buffersOfOperands[number]>;

export class OperandsOfLayers {
  readonly #config: LlamaConfig;
  readonly #weights: LlamaWeights;
  #buffers: Buffers | undefined;
  #layers: readonly LayerOperands[] = [];

  constructor(config: LlamaConfig, weights: LlamaWeights) {
    [this.#config, this.#weights] = [config, weights];
  }

  /** By layer, for passes that compute in these buffers. */
  with(buffers: Buffers): readonly LayerOperands[] {
    if (this.#buffers === undefined || !areSame(this.#buffers, buffers)) {
      this.#layers = this.#weights.layers.map((layer) => this.#operandsOf(layer, buffers));
      this.#buffers = buffers;
    }
    return this.#layers;
  }

  /** How hidden states are normalized by `weight`. */
  norm(weight: FloatBuffer): Norm {
    const { hidden: width, normEpsilon: epsilon } = this.#config;
    return { weight, width, epsilon };
  }

  #operandsOf(layer: LayerWeights, { hidden, normalized, queries, keys, values, gate, up }: Buffers): LayerOperands {
    const { attentionOutputNorm, feedForwardOutputNorm } = layer;
    const added = { output: hidden, mode: 'add' } as const;
    return {
      attentionNorm: this.norm(layer.attentionNorm),
      projections: [{ ...layer.query, output: queries }, { ...layer.key, output: keys }, { ...layer.value, output: values }],
      queryNorm: this.#headNorm(layer.queryNorm), keyNorm: this.#headNorm(layer.keyNorm),
      attentionOutput: { ...layer.attentionOutput, ...attentionOutputNorm === undefined ? added : { output: normalized } },
      attentionOutputNorm: this.#addedNorm(attentionOutputNorm),
      feedForwardNorm: this.norm(layer.feedForwardNorm),
      expansions: [{ ...layer.gate, output: gate }, { ...layer.up, output: up }],
      down: { ...layer.down, ...feedForwardOutputNorm === undefined ? added : { output: normalized } },
      feedForwardOutputNorm: this.#addedNorm(feedForwardOutputNorm),
    };
  }

  #addedNorm(weight: FloatBuffer | undefined): Norm | undefined {
    return weight === undefined ? undefined : { ...this.norm(weight), mode: 'add' };
  }

  #headNorm(weight: FloatBuffer | undefined): Norm | undefined {
    const { headDim: width, normEpsilon: epsilon } = this.#config;
    return weight === undefined ? undefined : { weight, width, epsilon };
  }
}

function areSame(a: Buffers, b: Buffers): boolean {
  return buffersOfOperands.every((name) => a[name] === b[name]);
}
