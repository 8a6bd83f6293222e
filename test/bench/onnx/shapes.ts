// Decoders of published shapes with random weights of 4 bits, as transformers.js reads models.

import { mkdirSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import { madeDecoder, type DecoderForm } from '../../onnx/made-decoder.js';

const q4 = { positions: 8_192, isQuantized: true, accuracyLevel: 4, keepsLogits: true } as const;

export const shapes = {
  'smollm2-135m': {
    ...q4,
    layers: 30,
    hidden: 576,
    intermediate: 1_536,
    heads: 9,
    kvHeads: 3,
    dim: 64,
    vocabulary: 49_152,
  },
  'qwen3-0.6b': {
    ...q4,
    layers: 28,
    hidden: 1_024,
    intermediate: 3_072,
    heads: 16,
    kvHeads: 8,
    dim: 128,
    vocabulary: 151_936,
  },
  'gemma3-1b': {
    ...q4,
    layers: 26,
    hidden: 1_152,
    intermediate: 6_912,
    heads: 4,
    kvHeads: 1,
    dim: 256,
    vocabulary: 262_144,
  },
} as const satisfies Readonly<Record<string, DecoderForm>>;

export type ShapeName = keyof typeof shapes;

/** Writes `onnx/model_q4.onnx` and its configs to a folder. */
export function writeModel(folder: string, name: ShapeName): void {
  const { layers, heads, kvHeads, dim, vocabulary, hidden } = shapes[name];
  mkdirSync(path.join(folder, 'onnx'));
  writeFileSync(path.join(folder, 'onnx', 'model_q4.onnx'), madeDecoder(shapes[name], 1).bytes);
  const none = vocabulary + 1; // no answer ends early
  const config = {
    model_type: 'llama',
    architectures: ['LlamaForCausalLM'],
    vocab_size: vocabulary,
    hidden_size: hidden,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: dim,
    eos_token_id: none,
    pad_token_id: 0,
  };
  writeFileSync(path.join(folder, 'config.json'), JSON.stringify(config));
  writeFileSync(path.join(folder, 'generation_config.json'), JSON.stringify({ eos_token_id: none, pad_token_id: 0 }));
}
