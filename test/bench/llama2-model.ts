// Random weights of SmolLM2 360M's shape in float32 as two files that say the same: llama2.c's, and safetensors beside a config.json. In llama2.c
// the two numbers of a head that are rotated together are neighbours, in safetensors half a head apart.

import { createCipheriv, createHash } from 'node:crypto';
import { closeSync, openSync, writeFileSync, writeSync } from 'node:fs';
import * as path from 'node:path';

import { smallSizes, writeModel } from './zero-model.js';

/** Of llama2.c's caches and tables. */
const maxTokens = 2_048;

/** Writes `random.bin`, `tokenizer.bin`, `model.safetensors` and `config.json` into the folder. */
export function writeLlama2(folder: string): void {
  writeTokenizer(path.join(folder, 'tokenizer.bin'));
  writeModel(folder, smallSizes, 'F32', (name, elements) => {
    const weights = randomWeights(name, elements);
    return /q_proj|k_proj/.test(name) ? inHalves(weights) : weights;
  });
  writeCheckpoint(path.join(folder, 'random.bin'));
}

/** Signs and fractions are random and magnitudes 2^-7 to 2^-6, so that nothing overflows; the same for the same name. */
function randomWeights(name: string, elements: number): Buffer {
  const bits = createCipheriv('aes-128-ctr', Buffer.alloc(16, 7), createHash('md5').update(name).digest()).update(Buffer.alloc(4 * elements));
  const words = new Uint32Array(bits.buffer, bits.byteOffset, elements);
  for (let at = 0; at < elements; at += 1) words[at] = (words[at]! & 0x807f_ffff) | 0x3c00_0000;
  return bits;
}

/** Puts even rows of each head before odd ones. */
function inHalves(rows: Buffer): Buffer {
  const { hidden, headDim } = smallSizes;
  const rowBytes = 4 * hidden;
  const halves = Buffer.allocUnsafe(rows.length);
  for (let row = 0; row < rows.length / rowBytes; row += 1) {
    const at = row % headDim;
    const into = row - at + (at >> 1) + (at & 1) * headDim / 2;
    rows.copy(halves, into * rowBytes, row * rowBytes, (row + 1) * rowBytes);
  }
  return halves;
}

/** Each tensor of all layers, one kind after another. */
function writeCheckpoint(file: string): void {
  const { layers, hidden, intermediate, queryHeads, kvHeads, headDim, vocabularyTokens } = smallSizes;
  const kvWidth = kvHeads * headDim;
  const into = openSync(file, 'w');
  const ofAll = (name: string, elements: number): void => {
    for (let layer = 0; layer < layers; layer += 1) writeSync(into, randomWeights(`model.layers.${layer}.${name}.weight`, elements));
  };
  writeSync(into, Int32Array.of(hidden, intermediate, layers, queryHeads, kvHeads, vocabularyTokens, maxTokens));
  writeSync(into, randomWeights('model.embed_tokens.weight', vocabularyTokens * hidden));
  ofAll('input_layernorm', hidden);
  ofAll('self_attn.q_proj', hidden * hidden);
  ofAll('self_attn.k_proj', hidden * kvWidth);
  ofAll('self_attn.v_proj', hidden * kvWidth);
  ofAll('self_attn.o_proj', hidden * hidden);
  ofAll('post_attention_layernorm', hidden);
  ofAll('mlp.gate_proj', hidden * intermediate);
  ofAll('mlp.down_proj', hidden * intermediate);
  ofAll('mlp.up_proj', hidden * intermediate);
  writeSync(into, randomWeights('model.norm.weight', hidden));
  writeSync(into, Buffer.alloc(4 * maxTokens * headDim)); // rotations, which llama2.c computes itself
  closeSync(into);
}

/** The text of a token is its number behind a space. */
function writeTokenizer(file: string): void {
  const parts = [Buffer.from(Int32Array.of(8).buffer)];
  for (let token = 0; token < smallSizes.vocabularyTokens; token += 1) {
    const text = Buffer.from(` ${token}`);
    parts.push(Buffer.alloc(4), Buffer.from(Int32Array.of(text.length).buffer), text);
  }
  writeFileSync(file, Buffer.concat(parts));
}
