// What the engine says of folders that it cannot run: the file, what is wrong with it, and no half-loaded model.

import { rmSync, truncateSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { LlamaModel } from '#internal/llama/model.js';
import { isKvError } from 'virtual-kv';
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
    if (!isKvError(error, 'KV_MODEL_INVALID')) throw error;
    return error.message;
  } finally {
    removeFolder(folder);
  }
}

test('a complete folder loads', (t) => {
  t.is(refusalOf({}), 'nothing');
  t.is(refusalOf({ tensors: (tensors) => tensors.set('model.layers.0.self_attn.rotary_emb.inv_freq', { shape: [2], values: [1, 2] }) }), 'nothing');
});

const unsupported: readonly (readonly [Json, RegExp])[] = [
  [{ model_type: 'gpt2' }, /model_type "gpt2" is not supported\. This engine runs llama, mistral, qwen2, qwen3/],
  [{ model_type: undefined }, /model_type undefined/],
  [{ hidden_act: 'gelu' }, /hidden_act "gelu"/],
  [{ quantization_config: { bits: 4 } }, /quantization_config/],
  [{ quantization: { bits: 4, group_size: 64 } }, /quantization is not supported/],
  [{ model_type: 'mistral', sliding_window: 4096 }, /sliding_window 4096/],
  [{ model_type: 'qwen2', use_sliding_window: true, sliding_window: 4096 }, /sliding_window 4096/],
  [{ model_type: 'qwen2', use_sliding_window: true, sliding_window: 4096, max_window_layers: 1 }, /sliding_window 4096/],
  [{ model_type: 'qwen3', layer_types: ['full_attention', 'sliding_attention'] }, /layer_types "sliding_attention"/],
  [{ partial_rotary_factor: 0.5 }, /partial_rotary_factor 0\.5/],
  [{ rope_parameters: { rope_type: 'default', partial_rotary_factor: 0.25 } }, /rope_parameters\.partial_rotary_factor 0\.25/],
  [{ rope_scaling: { rope_type: 'yarn', factor: 4 } }, /rope_scaling of type "yarn" is not supported\. Only default, linear and llama3 are/],
  [{ rope_scaling: { type: 'dynamic', factor: 4 } }, /rope_scaling of type "dynamic"/],
  [{ rope_scaling: { type: 'linear' } }, /`rope_scaling\.factor` is missing, but must be a number above 0/],
  [{ rope_parameters: { rope_type: 'llama3', rope_theta: 5e5 } }, /`rope_parameters\.factor` is missing/],
  [{ rope_parameters: { full_attention: { rope_theta: 1e6 }, sliding_attention: { rope_theta: 1e4 } } }, /rope_parameters of their own for `full_attention`/],
  [{ rope_parameters: [] }, /`rope_parameters` is \[\], but must be an object/],
  [{ rope_theta: '10000' }, /`rope_theta` is "10000", but must be a number above 0/],
  [{ rms_norm_eps: '1e-5' }, /`rms_norm_eps` is "1e-5"/],
  [{ tie_word_embeddings: 'yes' }, /`tie_word_embeddings` is "yes", but must be true or false/],
  [{ num_key_value_heads: 3 }, /2 query heads over 3 KV heads/],
  [{ num_key_value_heads: 0 }, /`num_key_value_heads` is 0/],
  [{ head_dim: 3 }, /head_dim 3/],
  [{ hidden_size: 'many' }, /`hidden_size` is "many"/],
  [{ num_hidden_layers: undefined }, /`num_hidden_layers` is missing, but must be a whole number above 0/],
];
for (const [config, message] of unsupported) {
  test(`an option that changes the arithmetic is refused by name: ${JSON.stringify(config)} ${Object.keys(config).join()}`, (t) => {
    t.regex(refusalOf({ config }), message);
  });
}

test('options that change nothing, and null for what is not there, are read', (t) => {
  const harmless: readonly Json[] = [
    { torch_dtype: 'bfloat16' }, { dtype: 'float16' }, { rope_scaling: null, rope_parameters: null, attention_bias: null, mlp_bias: null },
    { rope_scaling: { type: 'default' } }, { rope_parameters: { rope_type: 'default', rope_theta: 1e6 }, rope_theta: undefined },
    { model_type: 'mistral', sliding_window: null }, { sliding_window: 4096 }, { tie_word_embeddings: undefined }, { hidden_act: undefined },
    { quantization_config: null, partial_rotary_factor: 1, pretraining_tp: 1 }, { head_dim: null, rms_norm_eps: undefined },
  ];
  for (const config of harmless) t.is(refusalOf({ config }), 'nothing', JSON.stringify(config));
});

test('tokens that end a text are those of both files, one or several', (t) => {
  const endTokensOf = (config: Json, generation: Json | undefined): readonly number[] => {
    const folder = writeLlama({ config: { ...made.config, ...config }, tensors: made.tensors });
    if (generation !== undefined) writeFileSync(path.join(folder, 'generation_config.json'), JSON.stringify(generation));
    const { endTokens } = new LlamaModel(folder).config;
    removeFolder(folder);
    return endTokens;
  };
  t.deepEqual(endTokensOf({}, undefined), []);
  t.deepEqual(endTokensOf({ eos_token_id: 2 }, undefined), [2]);
  t.deepEqual(endTokensOf({ eos_token_id: [3, 4] }, { eos_token_id: 5 }), [3, 4, 5]);
  t.deepEqual(endTokensOf({ eos_token_id: 3 }, { eos_token_id: [3, 7] }), [3, 7]);
  t.deepEqual(endTokensOf({ eos_token_id: null }, { eos_token_id: null }), []);
});

test('a tensor that is missing, shaped differently or of no use is named', (t) => {
  const name = 'model.layers.1.mlp.up_proj.weight';
  const norm = { shape: [4], values: [1, 1, 1, 1] };
  t.regex(refusalOf({ tensors: (tensors) => tensors.delete(name) }), /has no tensor `model\.layers\.1\.mlp\.up_proj\.weight`/);
  t.regex(refusalOf({ tensors: (tensors) => tensors.set(name, { shape: [2, 8], values: new Array(16).fill(0) }) }), /is \[2, 8\], but config\.json makes it \[8, 8\]/);
  t.regex(refusalOf({ tensors: (tensors) => tensors.set('model.layers.0.self_attn.q_norm.weight', norm) }), /q_norm/);
  t.regex(refusalOf({ config: { model_type: 'qwen3' } }), /has no tensor `model\.layers\.0\.self_attn\.q_norm\.weight`/);
  t.regex(refusalOf({ config: { attention_bias: true } }), /has no tensor `model\.layers\.0\.self_attn\.q_proj\.bias`/);
  t.regex(refusalOf({ tensors: (tensors) => tensors.delete('lm_head.weight') }), /no tensor `lm_head\.weight`.*`tie_word_embeddings`/);
});

test('files that are missing, cut off or something else are named', (t) => {
  const at = (folder: string, file: string): string => path.join(folder, file);
  const index = 'model.safetensors.index.json';
  t.regex(refusalOf({ folder: (folder) => rmSync(at(folder, 'config.json')) }), /config\.json cannot be read/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(at(folder, 'config.json'), '{') }), /config\.json is not JSON/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(at(folder, 'config.json'), 'null') }), /config\.json is not a JSON object/);
  t.regex(refusalOf({ folder: (folder) => rmSync(at(folder, 'model-2-of-2.safetensors')) }), /model-2-of-2\.safetensors is not there, but .*index\.json places tensors in it/);
  t.regex(refusalOf({ folder: (folder) => rmSync(at(folder, index)) }), /model\.safetensors is not there\. Only safetensors/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(at(folder, index), '{}') }), /index\.json has no `weight_map`/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(at(folder, index), '{"weight_map":{"a":"../b"}}') }), /places `a` in "\.\.\/b"/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(at(folder, index), '{"weight_map":{"a":7}}') }), /places `a` in 7/);
  t.regex(refusalOf({ folder: (folder) => truncateSync(at(folder, 'model-2-of-2.safetensors'), 1500) }), /is no safetensors file/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(at(folder, 'model-1-of-2.safetensors'), 'PK\u0003\u0004 not at all') }), /is no safetensors file/);
});

const entry = { dtype: 'F32', shape: [2], data_offsets: [0, 8] };
const headers: readonly (readonly [unknown, RegExp])[] = [
  ['nothing', /its header is not JSON/],
  [null, /its header is not a JSON object/],
  [{ a: null }, /its header says null of tensor `a`/],
  [{ a: 3 }, /its header says 3 of tensor `a`/],
  [{ a: { ...entry, data_offsets: undefined } }, /its header says .* of tensor `a`/],
  [{ a: { ...entry, data_offsets: [8, 0] } }, /of tensor `a`/],
  [{ a: { ...entry, data_offsets: [-8, 0] } }, /of tensor `a`/],
  [{ a: { ...entry, shape: 'large' } }, /of tensor `a`/],
  [{ a: { ...entry, shape: [-2] } }, /of tensor `a`/],
  [{ a: { ...entry, shape: [3] } }, /tensor `a`, F32 \[3\], has 8 bytes instead of 12/],
  [{ a: { ...entry, data_offsets: [0, 2 ** 40] } }, /tensor `a` is at 0 … 1099511627776; there is room at 0 … 16/],
  [{ a: entry, b: { ...entry, data_offsets: [4, 12] } }, /tensor `b` is at 4 … 12; there is room at 8 … 16/],
  [{ a: { ...entry, dtype: 'F8_E4M3', data_offsets: [0, 2] } }, /tensor `a` is F8_E4M3\. Give float32, float16 or bfloat16/],
  [{ a: { ...entry, dtype: 'I64' } }, /tensor `a` is I64/],
];
for (const [header, message] of headers) {
  test(`an impossible header is refused: ${JSON.stringify(header)}`, (t) => {
    const text = typeof header === 'string' ? header : JSON.stringify(header);
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    const bytes = Buffer.concat([length, Buffer.from(text), Buffer.alloc(16)]);
    t.regex(refusalOf({ folder: (folder) => writeFileSync(path.join(folder, 'model.safetensors'), bytes) }), message);
  });
}
