// What the engine says of folders that it cannot run: the file, what is wrong with it, and no half-loaded model.

import { rmSync, truncateSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { Random } from '../../dist/random.js';
import { LlamaModel } from '../../build-examples/llama/model.js';
import { ModelError } from '../../build-examples/llama/model-error.js';
import { randomLlama, removeFolder, writeLlama, type Json, type LlamaSizes, type MadeLlama } from '../helpers/made-llama.js';

const sizes: LlamaSizes = { layers: 2, hidden: 8, intermediate: 8, queryHeads: 2, kvHeads: 1, headDim: 4, vocabularyTokens: 9 };
const made = randomLlama(new Random(1), sizes);

/** Loads a model after a change to its config, its tensors or its folder; returns what it says. */
function refusalOf(change: { config?: Json; tensors?: (tensors: Map<string, unknown>) => void; folder?: (folder: string) => void }): string {
  const tensors = new Map(made.tensors);
  change.tensors?.(tensors);
  const folder = writeLlama({ config: { ...made.config, ...change.config }, tensors } as MadeLlama, 'float32', 2);
  change.folder?.(folder);
  try {
    new LlamaModel(folder);
    return 'nothing';
  } catch (error) {
    if (!(error instanceof ModelError)) throw error;
    return error.message;
  } finally {
    removeFolder(folder);
  }
}

test('a folder as it should be loads', (t) => {
  t.is(refusalOf({}), 'nothing');
  t.is(refusalOf({ tensors: (tensors) => tensors.set('model.layers.0.self_attn.rotary_emb.inv_freq', { shape: [2], values: [1, 2] }) }), 'nothing');
});

const unsupported: readonly (readonly [Json, RegExp])[] = [
  [{ model_type: 'gpt2' }, /model_type "gpt2" is not supported/],
  [{ hidden_act: 'gelu' }, /hidden_act "gelu"/],
  [{ quantization_config: { bits: 4 } }, /quantization_config/],
  [{ model_type: 'mistral', sliding_window: 4096 }, /sliding_window 4096/],
  [{ rope_scaling: { rope_type: 'yarn', factor: 4 } }, /rope_scaling of type "yarn"/],
  [{ rope_parameters: { rope_type: 'llama3', rope_theta: 5e5 } }, /rope_scaling without `factor`/],
  [{ num_key_value_heads: 3 }, /2 query heads over 3 KV heads/],
  [{ hidden_size: 'many' }, /`hidden_size` is "many"/],
];
for (const [config, message] of unsupported) {
  test(`an option that changes the arithmetic is refused by name: ${JSON.stringify(config)}`, (t) => {
    t.regex(refusalOf({ config }), message);
  });
}

test('a tensor that is missing, shaped differently or of no use is named', (t) => {
  const name = 'model.layers.1.mlp.up_proj.weight';
  t.regex(refusalOf({ tensors: (tensors) => tensors.delete(name) }), /has no tensor `model\.layers\.1\.mlp\.up_proj\.weight`/);
  t.regex(refusalOf({ tensors: (tensors) => tensors.set(name, { shape: [2, 8], values: new Array(16).fill(0) }) }), /is \[2, 8\], but config\.json makes it \[8, 8\]/);
  t.regex(refusalOf({ tensors: (tensors) => tensors.set('model.layers.0.self_attn.q_norm.weight', { shape: [4], values: [1, 1, 1, 1] }) }), /q_norm/);
  t.regex(refusalOf({ config: { attention_bias: true } }), /has no tensor `model\.layers\.0\.self_attn\.q_proj\.bias`/);
});

test('files that are missing, cut off or something else are named', (t) => {
  t.regex(refusalOf({ folder: (folder) => rmSync(path.join(folder, 'config.json')) }), /config\.json cannot be read/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(path.join(folder, 'config.json'), '{') }), /config\.json is not JSON/);
  t.regex(refusalOf({ folder: (folder) => rmSync(path.join(folder, 'model-2-of-2.safetensors')) }), /model-2-of-2\.safetensors is not there/);
  t.regex(refusalOf({ folder: (folder) => truncateSync(path.join(folder, 'model-2-of-2.safetensors'), 1500) }), /is no safetensors file/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(path.join(folder, 'model-1-of-2.safetensors'), 'PK\u0003\u0004 not at all') }), /is no safetensors file/);
});
