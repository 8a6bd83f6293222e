// LlamaModel: a model's config, weights and arithmetic, loaded once; engines over different caches may share it. It says what
// a cache must be like for it.

import { DenseKernels, type DenseKernelsOptions, type Dtype, type ModelShape } from 'virtual-kv';

import { readLlamaConfig, type LlamaConfig } from './config.js';
import { RotaryTable } from './rotary-table.js';
import { Safetensors } from './safetensors.js';
import { readLlamaWeights, type LlamaWeights } from './weights.js';

export class LlamaModel {
  readonly config: LlamaConfig;
  readonly weights: LlamaWeights;
  readonly dense: DenseKernels;
  readonly rotary: RotaryTable;

  /** Loads a Hugging Face folder: config.json and safetensors. Throws ModelError. */
  constructor(folder: string, options: DenseKernelsOptions = {}) {
    this.dense = new DenseKernels(options);
    this.config = readLlamaConfig(folder);
    this.weights = readLlamaWeights(new Safetensors(folder), this.config, this.dense);
    this.rotary = new RotaryTable(this.config);
  }

  /** The `model` of a KvCache for it; K and V may be kept in another type than the weights'. */
  shape(dtype: Dtype = this.weights.embedding.dtype): ModelShape {
    const { layers, kvHeads, headDim } = this.config;
    return { layers, kvHeads, headDim, dtype };
  }
}
