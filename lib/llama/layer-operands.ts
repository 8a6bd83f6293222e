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
  readonly feedForwardNorm: Norm;
  /** What is gated, and what it is multiplied with. */
  readonly expansions: readonly [Product, Product];
  readonly down: Product;
}

type Buffers = Pick<Activations, 'hidden' | 'queries' | 'keys' | 'values' | 'gate' | 'up'>;

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

  #operandsOf(layer: LayerWeights, { hidden, queries, keys, values, gate, up }: Buffers): LayerOperands {
    return {
      attentionNorm: this.norm(layer.attentionNorm),
      projections: [{ ...layer.query, output: queries }, { ...layer.key, output: keys }, { ...layer.value, output: values }],
      queryNorm: this.#headNorm(layer.queryNorm), keyNorm: this.#headNorm(layer.keyNorm),
      attentionOutput: { ...layer.attentionOutput, output: hidden, mode: 'add' },
      feedForwardNorm: this.norm(layer.feedForwardNorm),
      expansions: [{ ...layer.gate, output: gate }, { ...layer.up, output: up }],
      down: { ...layer.down, output: hidden, mode: 'add' },
    };
  }

  #headNorm(weight: FloatBuffer | undefined): Norm | undefined {
    const { headDim: width, normEpsilon: epsilon } = this.#config;
    return weight === undefined ? undefined : { weight, width, epsilon };
  }
}

function areSame(a: Buffers, b: Buffers): boolean {
  return a.hidden === b.hidden && a.queries === b.queries && a.keys === b.keys && a.values === b.values && a.gate === b.gate && a.up === b.up;
}
