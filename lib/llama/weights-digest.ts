// WeightsDigest: a name for a model's weights that another file does not share: for tiers, whose text is of use only to the weights that
// computed it. It reads the ends of each tensor, not all of it: weights that were trained on differ there, a download that was damaged in
// the middle need not.

import { createHash } from 'node:crypto';

import { weightBytes } from '../kernels/dense/dense-operands.js';
import type { FloatBuffer, Weight } from '../index.js';

import type { LlamaConfig } from './config.js';
import { modelError } from './model-error.js';
import type { LlamaWeights, LayerWeights, Linear } from './weights.js';

/** Bytes at each end of a tensor. */
const endBytes = 1024;

/** Of the config, and of each tensor its type, its shape and its first and last bytes. Throws KV_MODEL_INVALID when a mapped file has changed. */
export function digestOf(config: LlamaConfig, weights: LlamaWeights): string {
  const hash = createHash('sha256').update(JSON.stringify(['virtual-kv llama', 1, config, weights.pairs]));
  const bytes = new Uint8Array(endBytes);
  const addEnd = (data: Weight['data'], at: number, count: number): void => {
    const end = bytes.subarray(0, count);
    if (typeof data !== 'bigint') end.set(new Uint8Array(data.buffer, data.byteOffset + at, count));
    else if (!weights.files.some((file) => file.copy(end, data + BigInt(at)))) throw modelError('A tensor lies in none of the model\'s files.');
    hash.update(end);
  };
  const add = (name: string, data: Weight['data'], total: number): void => {
    hash.update(JSON.stringify([name, total]));
    const count = Math.min(endBytes, total);
    addEnd(data, 0, count);
    addEnd(data, total - count, count);
  };
  const addMatrix = (name: string, weight: Weight): void => {
    add(JSON.stringify([name, weight.dtype, weight.outputs, weight.inputs]), weight.data, weightBytes(weight));
  };
  const addFloats = (name: string, floats: FloatBuffer | undefined): void => {
    if (typeof floats === 'object') add(name, floats, floats.byteLength);
  };
  addMatrix('embedding', weights.embedding);
  for (const layer of weights.layers) {
    for (const [name, part] of Object.entries(layer) as [keyof LayerWeights, FloatBuffer | Linear | undefined][]) {
      if (typeof part === 'object' && 'weight' in part) {
        addMatrix(name, part.weight);
        addFloats(name, part.bias);
      } else addFloats(name, part);
    }
  }
  addFloats('norm', weights.norm);
  addMatrix('head', weights.head);
  for (const file of weights.files) file.check();
  return hash.digest('hex');
}
