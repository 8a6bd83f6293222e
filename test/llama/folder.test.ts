// What the engine says of folders that it cannot run: the file, what is wrong with it, and no half-loaded model.

import { rmSync, truncateSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { parseLlamaConfig } from '#internal/llama/config.js';
import { LlamaModel } from '#internal/llama/model.js';
import { isKvError } from 'virtual-kv';
import { layerKinds } from '../helpers/layer-kinds.js';
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
  [{ model_type: 'gpt2' }, /model_type "gpt2"/],
  [{ model_type: 'toString' }, /model_type "toString"/],
  [{ model_type: undefined }, /model_type undefined/],
  [{ hidden_act: 'gelu' }, /hidden_act "gelu"/],
  [{ quantization_config: { bits: 4 } }, /quantization_config/],
  [{ quantization: { bits: 4, group_size: 64 } }, /\bquantization\b/],
  [{ model_type: 'mistral', sliding_window: 0 }, /`sliding_window` is 0/],
  [{ model_type: 'qwen3', layer_types: ['full_attention', 'sliding_attention'] }, /`sliding_window` is missing/],
  [{ layer_types: ['full_attention', 'chunked_attention'] }, /`attention_chunk_size` is missing/],
  [{ layer_types: ['full_attention', 'linear_attention'] }, /layer_types "linear_attention"/],
  [{ layer_types: ['full_attention'] }, /layer_types \["full_attention"\].* 2 layers/],
  [{ model_type: 'gpt_oss' }, /num_local_experts 128/],
  [{ model_type: 'gpt_oss', num_local_experts: 32 }, /num_local_experts 32/],
  [{ model_type: 'gpt_oss', num_local_experts: 0 }, /rope_scaling of type "yarn"/],
  [{ model_type: 'gemma3_text', hidden_act: null, use_bidirectional_attention: true }, /use_bidirectional_attention true/],
  [{ model_type: 'llama4_text' }, /num_local_experts 16.*`moe_layers`/],
  [{ model_type: 'llama4_text', moe_layers: [1] }, /num_local_experts 16/],
  [{ model_type: 'gemma2' }, /hidden_act "silu"/],
  [{ model_type: 'gemma3_text', hidden_activation: 'gelu' }, /hidden_activation "gelu"/],
  [{ model_type: 'gemma3', text_config: { num_hidden_layers: 2 } }, /`text_config\.hidden_size` is missing/],
  [{ model_type: 'gemma3', text_config: { model_type: 'gpt2' } }, /text_config\.model_type "gpt2"/],
  [{ partial_rotary_factor: 0.5 }, /partial_rotary_factor 0\.5/],
  [{ rope_parameters: { rope_type: 'default', partial_rotary_factor: 0.25 } }, /rope_parameters\.partial_rotary_factor 0\.25/],
  [{ rope_scaling: { rope_type: 'yarn', factor: 4 } }, /rope_scaling of type "yarn"/],
  [{ rope_scaling: { type: 'dynamic', factor: 4 } }, /rope_scaling of type "dynamic"/],
  [{ rope_scaling: { type: 'linear' } }, /`rope_scaling\.factor` is missing/],
  [{ rope_parameters: { rope_type: 'llama3', rope_theta: 5e5 } }, /`rope_parameters\.factor` is missing/],
  [{ rope_parameters: { full_attention: { rope_theta: 1e6 }, sliding_attention: { rope_theta: 1e4 } } }, /rope_parameters .*`full_attention`/],
  [
    { model_type: 'gemma3_text', hidden_act: null, rope_parameters: { full_attention: {}, sliding_attention: { rope_type: 'linear', factor: 2 } } },
    /rope_parameters\.sliding_attention\.rope_type "linear"/,
  ],
  [{ rope_parameters: [] }, /`rope_parameters` is \[\]/],
  [{ rope_theta: '10000' }, /`rope_theta` is "10000"/],
  [{ rms_norm_eps: '1e-5' }, /`rms_norm_eps` is "1e-5"/],
  [{ tie_word_embeddings: 'yes' }, /`tie_word_embeddings` is "yes"/],
  [{ num_key_value_heads: 3 }, /2 query heads over 3 KV heads/],
  [{ num_key_value_heads: 0 }, /`num_key_value_heads` is 0/],
  [{ head_dim: 3 }, /head_dim 3/],
  [{ hidden_size: 'many' }, /`hidden_size` is "many"/],
  [{ num_hidden_layers: undefined }, /`num_hidden_layers` is missing/],
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

test('a Gemma 3 that sees images is read for its text, whichever way its tensors were saved', (t) => {
  const { config, tensors } = randomLlama(new Random(2), { ...sizes, layers: 6 }, { ...layerKinds['Gemma 3'].more, eos_token_id: 4 });
  const expected = writeLlama({ config, tensors });
  const text = { ...config, eos_token_id: undefined };
  const image = { shape: [2], values: [1, 2] };
  for (const [prefixOf, rest] of [
    [(name: string) => `language_model.${name}`, ['vision_tower.a.weight', 'multi_modal_projector.b']],
    [(name: string) => name.replace(/^model\./, 'model.language_model.'), ['model.vision_tower.a.weight', 'model.multi_modal_projector.b']],
  ] as const) {
    const named = new Map([...tensors].map(([name, tensor]) => [prefixOf(name), tensor]));
    for (const name of rest) named.set(name, image);
    const folder = writeLlama({ config: { model_type: 'gemma3', text_config: text, vision_config: {}, eos_token_id: 4 }, tensors: named });
    const model = new LlamaModel(folder);
    t.is(model.shape().identity, new LlamaModel(expected).shape().identity);
    t.deepEqual(model.config.endTokens, [4]);
    removeFolder(folder);
  }
  removeFolder(expected);
});

test('what a config leaves out is what Hugging Face fills in', (t) => {
  const plain = { hidden_size: 64, intermediate_size: 64, num_hidden_layers: 8 };
  const gemma3 = parseLlamaConfig({ ...plain, model_type: 'gemma3_text' }, 'made');
  t.like(gemma3, {
    queryHeads: 8, kvHeads: 4, headDim: 256, tiesHead: true, ropeTheta: 1e6, localRopeTheta: 10_000, attentionScale: 1 / 16, embeddingScale: 8,
    normalizesHeads: true, activation: 'gelu-tanh', hasOutputNorms: true,
  });
  t.is(gemma3.attentionCap ?? gemma3.logitsCap, undefined);
  const window = { kind: 'window', tokens: 4096, rope: 'local' } as const;
  const full = { kind: 'full', tokens: 0, rope: 'global' } as const;
  t.deepEqual(gemma3.layerAttention, [window, window, window, window, window, full, window, window]);
  const gemma2 = parseLlamaConfig({ ...plain, model_type: 'gemma2' }, 'made');
  t.like(gemma2, { attentionCap: 50, logitsCap: 30, ropeTheta: 10_000, normalizesHeads: false });
  t.deepEqual(gemma2.layerAttention!.slice(0, 2), [{ ...window, rope: 'global' }, full]);
  t.is(parseLlamaConfig({ ...plain, model_type: 'gemma2', attn_logit_softcapping: null }, 'made').attentionCap, undefined);
  const mistral = { ...plain, model_type: 'mistral', num_attention_heads: 4, vocab_size: 9 };
  t.is(parseLlamaConfig(mistral, 'made').layerAttention![0]!.tokens, 4096);
  t.is(parseLlamaConfig({ ...mistral, sliding_window: null }, 'made').layerAttention, undefined);
  const qwen = { ...mistral, model_type: 'qwen2', sliding_window: 7, max_window_layers: 6 };
  t.is(parseLlamaConfig(qwen, 'made').layerAttention, undefined);
  t.deepEqual(parseLlamaConfig({ ...qwen, use_sliding_window: true }, 'made').layerAttention!.map(({ kind }) => kind).slice(5), ['full', 'window', 'window']);
  const llama4 = { ...mistral, model_type: 'llama4_text', num_key_value_heads: 4, moe_layers: [], intermediate_size_mlp: 12 };
  t.like(parseLlamaConfig(llama4, 'made'), { intermediate: 12, headDim: 128, hasPlainHeadNorms: true, queryGrowth: { everyTokens: 8192, factor: 0.1 } });
  t.deepEqual(parseLlamaConfig(llama4, 'made').layerAttention!.slice(2, 4), [{ kind: 'chunk', tokens: 8192, rope: 'global' }, { kind: 'full', tokens: 0, rope: 'none' }]);
  const other = parseLlamaConfig({ ...llama4, no_rope_layers: [0, 1, 1, 1, 1, 1, 1, 1], use_qk_norm: false, attn_temperature_tuning: false }, 'made');
  t.is(other.hasPlainHeadNorms ?? other.queryGrowth, undefined);
  t.deepEqual(other.layerAttention!.map(({ rope }) => rope).slice(0, 4), ['none', 'global', 'global', 'global']);
});

test('a tensor that is missing, shaped differently or of no use is named', (t) => {
  const name = 'model.layers.1.mlp.up_proj.weight';
  const norm = { shape: [4], values: [1, 1, 1, 1] };
  t.regex(refusalOf({ tensors: (tensors) => tensors.delete(name) }), /no tensor .*up_proj/);
  t.regex(refusalOf({ tensors: (tensors) => tensors.set(name, { shape: [2, 8], values: new Array(16).fill(0) }) }), /\[2, 8\].*\[8, 8\]/);
  t.regex(refusalOf({ tensors: (tensors) => tensors.set('model.layers.0.self_attn.q_norm.weight', norm) }), /q_norm/);
  t.regex(refusalOf({ config: { model_type: 'qwen3' } }), /no tensor .*q_norm/);
  t.regex(refusalOf({ config: { attention_bias: true } }), /no tensor .*q_proj\.bias/);
  t.regex(refusalOf({ tensors: (tensors) => tensors.delete('lm_head.weight') }), /no tensor `lm_head\.weight`.*`tie_word_embeddings`/);
});

test('files that are missing, cut off or something else are named', (t) => {
  const at = (folder: string, file: string): string => path.join(folder, file);
  const index = 'model.safetensors.index.json';
  t.regex(refusalOf({ folder: (folder) => rmSync(at(folder, 'config.json')) }), /config\.json .*ENOENT/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(at(folder, 'config.json'), '{') }), /config\.json is not JSON/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(at(folder, 'config.json'), 'null') }), /config\.json .*object/);
  t.regex(refusalOf({ folder: (folder) => rmSync(at(folder, 'model-2-of-2.safetensors')) }), /model-2-of-2\.safetensors .*index\.json/);
  t.regex(refusalOf({ folder: (folder) => rmSync(at(folder, index)) }), /model\.safetensors is not there/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(at(folder, index), '{}') }), /`weight_map`/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(at(folder, index), '{"weight_map":{"a":"../b"}}') }), /`a` in "\.\.\/b"/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(at(folder, index), '{"weight_map":{"a":7}}') }), /`a` in 7/);
  t.regex(refusalOf({ folder: (folder) => truncateSync(at(folder, 'model-2-of-2.safetensors'), 1500) }), /no safetensors file/);
  t.regex(refusalOf({ folder: (folder) => writeFileSync(at(folder, 'model-1-of-2.safetensors'), 'PK\u0003\u0004 not at all') }), /no safetensors file/);
});

const entry = { dtype: 'F32', shape: [2], data_offsets: [0, 8] };
const headers: readonly (readonly [unknown, RegExp])[] = [
  ['nothing', /header is not JSON/],
  [null, /header is .*object/],
  [{ a: null }, /null of tensor `a`/],
  [{ a: 3 }, /3 of tensor `a`/],
  [{ a: { ...entry, data_offsets: undefined } }, /of tensor `a`/],
  [{ a: { ...entry, data_offsets: [8, 0] } }, /of tensor `a`/],
  [{ a: { ...entry, data_offsets: [-8, 0] } }, /of tensor `a`/],
  [{ a: { ...entry, shape: 'large' } }, /of tensor `a`/],
  [{ a: { ...entry, shape: [-2] } }, /of tensor `a`/],
  [{ a: { ...entry, shape: [3] } }, /`a`, F32 \[3\], .* 8 .* 12/],
  [{ a: { ...entry, data_offsets: [0, 2 ** 40] } }, /`a` .*1099511627776.* 16/],
  [{ a: entry, b: { ...entry, data_offsets: [4, 12] } }, /`b` .*4 … 12.*8 … 16/],
  [{ a: { ...entry, dtype: 'F8_E4M3', data_offsets: [0, 2] } }, /`a` is F8_E4M3/],
  [{ a: { ...entry, dtype: 'I64' } }, /`a` is I64/],
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
