// Llamas whose weights are zeros that take no disk: for times, which do not depend on them. Or the weights are given, for two programs' same tokens.

import { closeSync, ftruncateSync, mkdtempSync, openSync, rmSync, utimesSync, writeFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import { LlamaModel } from '#internal/llama/model.js';
import type { LlamaSizes } from '../helpers/made-llama.js';

/** SmolLM2 360M's shape. */
export const smallSizes = { layers: 32, hidden: 960, intermediate: 2_560, queryHeads: 15, kvHeads: 5, headDim: 64, vocabularyTokens: 49_152 };

/** By dtype, the bytes of a weight. */
const weightBytes = { F16: 2, F32: 4 };

/** A model of SmolLM2 360M's shape, in this process's own memory. */
export function openZeroModel(dtype: keyof typeof weightBytes = 'F16'): LlamaModel {
  const folder = writeZeroModel(smallSizes, dtype);
  const model = new LlamaModel(folder, { weights: 'copied' });
  rmSync(folder, { recursive: true });
  return model;
}

/** A temporary folder with the model; the caller removes it. */
export function writeZeroModel(sizes: LlamaSizes, dtype: keyof typeof weightBytes = 'F16'): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-bench-zero-'));
  writeModel(folder, sizes, dtype);
  return folder;
}

/**
 * Writes the files of a model, an hour old, so that they are mapped. Its head is the embedding.
 *
 * @param weights Of the tensor of this name, in the dtype; undefined: zeros.
 */
export function writeModel(
  folder: string, sizes: LlamaSizes, dtype: keyof typeof weightBytes, weights?: (name: string, elements: number) => Uint8Array,
): void {
  const { layers, hidden, intermediate, queryHeads, kvHeads, headDim, vocabularyTokens } = sizes;
  const [width, kvWidth] = [queryHeads * headDim, kvHeads * headDim];
  const tensors: [string, number[]][] = [['model.embed_tokens.weight', [vocabularyTokens, hidden]], ['model.norm.weight', [hidden]]];
  for (let layer = 0; layer < layers; layer += 1) {
    const at = `model.layers.${layer}`;
    tensors.push(
      [`${at}.input_layernorm.weight`, [hidden]], [`${at}.post_attention_layernorm.weight`, [hidden]],
      [`${at}.self_attn.q_proj.weight`, [width, hidden]], [`${at}.self_attn.k_proj.weight`, [kvWidth, hidden]],
      [`${at}.self_attn.v_proj.weight`, [kvWidth, hidden]], [`${at}.self_attn.o_proj.weight`, [hidden, width]],
      [`${at}.mlp.gate_proj.weight`, [intermediate, hidden]], [`${at}.mlp.up_proj.weight`, [intermediate, hidden]],
      [`${at}.mlp.down_proj.weight`, [hidden, intermediate]],
    );
  }
  writeFileSync(path.join(folder, 'config.json'), JSON.stringify({
    model_type: 'llama', hidden_size: hidden, intermediate_size: intermediate, num_hidden_layers: layers, num_attention_heads: queryHeads,
    num_key_value_heads: kvHeads, head_dim: headDim, vocab_size: vocabularyTokens, max_position_embeddings: 8_192, tie_word_embeddings: true, rope_theta: 1e4,
    rms_norm_eps: 1e-5,
  }));
  let at = 0;
  const header = Buffer.from(JSON.stringify(Object.fromEntries(tensors.map(([name, shape]) => {
    const begin = at;
    at += shape.reduce((product, extent) => product * extent, weightBytes[dtype]);
    return [name, { dtype, shape, data_offsets: [begin, at] }];
  }))));
  const padded = Buffer.concat([header, Buffer.alloc(-header.length & 7, ' ')]); // tensors at whole elements
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));
  const name = path.join(folder, 'model.safetensors');
  const file = openSync(name, 'w');
  writeSync(file, Buffer.concat([length, padded]));
  if (weights === undefined) ftruncateSync(file, 8 + padded.length + at);
  else for (const [tensor, shape] of tensors) writeSync(file, weights(tensor, shape.reduce((product, extent) => product * extent)));
  closeSync(file);
  utimesSync(name, new Date(), new Date(Date.now() - 3_600_000));
}
