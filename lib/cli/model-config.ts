// Reads the shape of a model from a Hugging Face `config.json`, or from the header of a GGUF file, which is put into the same names: which
// layers keep what, the number and size of heads, or MLA's latent, under the names that model families use. Notes what the shape leaves
// out: layers that keep nothing, states whose size the file does not say, compressed entries. Where the file lacks a number, the error
// asks for a flag.

import { readFileSync, statSync } from 'node:fs';
import path = require('node:path');

import { createError } from '../base/errors.js';
import { formatBytes, formatCount, formatList, formatNumber } from '../base/format.js';
import { dtypeBytes, type LayerSetShape, type LayerShape, type ModelShape } from '../index.js';
import { isCount, isObject, listIn, numberIn, type Json } from './config-values.js';
import { layerCount, maxLayers } from '../layout/layer-set-shape.js';
import { dtypeNamed } from './flag-values.js';
import { readGgufMetadata } from './gguf-metadata.js';
import { stateTensorsOf } from './layer-states.js';
import { compressRatiosIn, layerTypesOf, unreadPattern, type LayerKind, type LayerType, type LayerTypes } from './layer-types.js';

/** The model of a config file, with numbers that flags replace. */
export interface ConfigModel {
  /** The name to show: the model's own, otherwise its folder's or its file's. */
  readonly name: string;
  readonly model: ModelShape;
  /** Longest sequence that the model was made for; undefined when the file does not say. */
  readonly maxTokens: number | undefined;
  /** What the shape leaves out or overestimates: one sentence each, without a full stop. */
  readonly notes: readonly string[];
}

/** Numbers that replace those of the file, which may then lack them. */
export type ConfigOverrides = Partial<Pick<ModelShape, 'layers' | 'kvHeads' | 'headDim' | 'latentDim' | 'dtype'>>;

/** The names that model families give to each number, most common first. */
const names = {
  layers: ['num_hidden_layers', 'n_layer', 'n_layers', 'num_layers', 'num_transformer_layers'],
  queryHeads: ['num_attention_heads', 'n_head', 'n_heads', 'num_heads', 'num_query_heads'],
  kvHeads: [
    'num_key_value_heads', 'num_kv_heads', 'n_head_kv', 'multi_query_group_num', 'num_key_value_heads_per_layer',
  ],
  headDim: ['head_dim', 'kv_channels', 'attention_head_dim'],
  hidden: ['hidden_size', 'n_embd', 'd_model', 'model_dim'],
  maxTokens: ['max_position_embeddings', 'n_positions', 'max_seq_len', 'seq_length', 'max_context_length'],
} as const;

/** Where a multimodal model keeps the config of its language model. */
const languageParts = ['text_config', 'llm_config', 'language_config'];

const deltaRule = {
  linear_conv_kernel_dim: 4, linear_key_head_dim: 128, linear_value_head_dim: 128, linear_num_key_heads: 16, linear_num_value_heads: 32,
  full_attention_interval: 4,
};

/** Hugging Face's defaults for a model type, where a file may leave numbers out. */
const familyDefaults: Readonly<Record<string, Json>> = {
  gemma2: { sliding_window: 4096 },
  gemma3_text: { num_attention_heads: 8, num_key_value_heads: 4, head_dim: 256, max_position_embeddings: 131_072, sliding_window: 4096 },
  gemma3n_text: {
    num_attention_heads: 8, num_key_value_heads: 2, head_dim: 256, max_position_embeddings: 32_768, sliding_window: 512,
    num_kv_shared_layers: 15,
  },
  gpt_oss: { sliding_window: 128 },
  llama4_text: { attention_chunk_size: 8192, no_rope_layer_interval: 4 },
  ...Object.fromEntries(['qwen2', 'qwen2_moe', 'qwen3', 'qwen3_moe'].map((type) => [type, { use_sliding_window: false }])),
  qwen3_next: deltaRule, qwen3_5_text: deltaRule, qwen3_5_moe_text: deltaRule,
};

const giveConfig = "Give a model's `config.json`, the folder it is in, or a .gguf file.";

/**
 * Reads a config file, the `config.json` in a folder, or the header of a .gguf file. Throws KV_CONFIG_INVALID when it cannot be read, or
 * when a number is missing both there and in `overrides`; KV_MODEL_INVALID for what is no GGUF file.
 */
export function readModelConfig(fileOrFolder: string, overrides: ConfigOverrides = {}): ConfigModel {
  const { file, json } = fileOrFolder.toLowerCase().endsWith('.gguf')
    ? { file: fileOrFolder, json: readGgufMetadata(fileOrFolder) }
    : readJson(fileOrFolder);
  const config = languageConfig(json);
  if (json['is_encoder_decoder'] === true) {
    throw invalid(file, 'it is an encoder-decoder model', 'Give `--layers`, `--kv-heads` and `--head-dim` instead.');
  }
  const ownDtype = dtypeOf(config) ?? dtypeOf(json) ?? 'float16';
  const dtype = overrides.dtype ?? ownDtype;
  const maxTokens = numberIn(config, names.maxTokens) ?? numberIn(json, names.maxTokens);
  const named = { name: nameOf(json, file), maxTokens };
  if (overrides.layers !== undefined) {
    const layers = layerCount(overrides.layers, { owner: 'vkv', option: '--layers' });
    const all = Array.from({ length: layers }, (_, layer) => layer);
    return { ...named, model: { ...attentionOf(config, file, all, overrides), layers, dtype }, notes: [] };
  }
  const count = numberIn(config, names.layers) ?? listIn(config, ['layer_types'])?.length ?? missing(file, 'number of layers', '--layers');
  if (count > maxLayers) throw invalid(file, `it has ${formatNumber(count)} layers, more than ${formatNumber(maxLayers)}`, giveConfig);
  const types = layerTypesOf(config, count, maxTokens);
  if ('listed' in types) throw invalid(file, `it lists the types of ${types.listed} layers but has ${count}`, 'Give `--layers`.');

  const states = types.layers.map(({ kind, name }) => (kind === 'state' ? stateTensorsOf(config, name, ownDtype) : undefined));
  const kept = upTo(count).filter((layer) => types.layers[layer]!.kind !== 'nothing' &&
    (types.layers[layer]!.kind !== 'state' || states[layer] !== undefined));
  const attention = kept.filter((layer) => types.layers[layer]!.kind !== 'state');
  if (attention.length === 0) throw invalid(file, 'none of its layers keeps tokens', 'Such a model has no K and V to plan.');
  const heads = attentionOf(config, file, attention, overrides);
  const sets = layerSetsOf(config, file, kept, types, (layer) => states[layer], overrides);
  const isOneFull = sets.length === 1 && sets[0]!.kind === 'full';
  return {
    ...named,
    model: {
      ...heads.layerShapes === undefined ? heads : { ...heads, layerShapes: spread(heads.layerShapes, attention, kept) },
      layers: kept.length, dtype, ...isOneFull ? {} : { layerSets: sets },
    },
    notes: [
      ...notesOnLeftOut(types.layers, states), ...notesOnCompressed(config, count, ownDtype, maxTokens),
      ...notesOnPattern(config),
    ],
  };
}

const upTo = (count: number): number[] => Array.from({ length: count }, (_, layer) => layer);

/** The heads of `layers` with K and V. */
function attentionOf(
  config: Json, file: string, layers: readonly number[], overrides: ConfigOverrides,
): Omit<ModelShape, 'layers' | 'dtype'> {
  const latentDim = overrides.latentDim ?? latentDimOf(config);
  const asksForHeads = overrides.kvHeads !== undefined || overrides.headDim !== undefined;
  if (latentDim !== undefined && !asksForHeads) {
    const indexDim = listIn(config, ['compress_ratios']) === undefined ? numberIn(config, ['index_head_dim']) : undefined;
    return { attention: 'latent', latentDim, ...indexDim === undefined ? {} : { indexDim } };
  }
  const kvHeads = overrides.kvHeads ?? kvHeadsOf(config) ?? missing(file, 'number of KV heads', '--kv-heads');
  const headDim = overrides.headDim ?? headDimOf(config) ?? missing(file, 'head dimension', '--head-dim');
  const valueHeadDim = overrides.headDim === undefined && latentDim === undefined ? numberIn(config, ['v_head_dim']) : undefined;
  const dims = { headDim, ...valueHeadDim === undefined || valueHeadDim === headDim ? {} : { valueHeadDim } };
  if (typeof kvHeads === 'number') return { kvHeads, ...dims };
  const all = numberIn(config, names.layers) ?? layers.length;
  if (kvHeads.length !== (overrides.layers ?? all)) {
    const problem = `it gives KV heads for ${kvHeads.length} layers but has ${overrides.layers ?? all}`;
    throw invalid(file, problem, 'Give `--kv-heads` and `--layers`.');
  }
  const own = layers.map((layer) => kvHeads[layer]!);
  if (own.every((heads) => heads === own[0])) return { kvHeads: own[0]!, ...dims };
  return { ...dims, layerShapes: own.map((heads): LayerShape => ({ kvHeads: heads })) };
}

/** Shapes of the attention layers, at their places among all that are kept. */
function spread(shapes: readonly LayerShape[], attention: readonly number[], kept: readonly number[]): readonly LayerShape[] {
  return kept.map((layer) => shapes[attention.indexOf(layer)] ?? {});
}

/** The sets of the layers that are kept, each numbered by its place among them. */
function layerSetsOf(
  config: Json, file: string, kept: readonly number[], { layers, windowTokens, chunkTokens }: LayerTypes,
  stateOf: (layer: number) => ReturnType<typeof stateTensorsOf>, overrides: ConfigOverrides,
): readonly LayerSetShape[] {
  const shared = numberIn(config, ['num_kv_shared_layers']) ?? 0;
  const firstShared = layers.length - shared;
  const ownersByKind = new Map<LayerKind, number>();
  const members = new Map<string, { readonly kind: LayerKind; readonly owner: number | undefined; readonly layers: number[] }>();
  kept.forEach((layer, place) => {
    const { kind } = layers[layer]!;
    const owner = layer >= firstShared ? ownersByKind.get(kind) : undefined;
    if (layer >= firstShared && owner === undefined) {
      throw invalid(file, `layer ${layer} reads the K and V of another layer, and none of its type is before it`, 'Give `--layers`.');
    }
    if (owner === undefined) ownersByKind.set(kind, place);
    const key = owner === undefined ? kind : `shared ${owner}`;
    const set = members.get(key) ?? { kind, owner, layers: [] };
    set.layers.push(place);
    members.set(key, set);
  });
  const ofFull = fullHeadsOf(config, overrides);
  return [...members.values()].map(({ kind, owner, layers: places }): LayerSetShape => {
    if (owner !== undefined) return { kind: 'shared', layers: places, of: owner };
    switch (kind) {
      case 'window':
        return { kind, layers: places, windowTokens: windowTokens! };
      case 'chunk':
        return { kind, layers: places, chunkTokens: chunkTokens! };
      case 'state':
        return { kind, layers: places, tensors: stateOf(kept[places[0]!]!)! };
      case 'full':
      case 'nothing':
        return { kind: 'full', layers: places, ...ofFull };
    }
  });
}

/** Gemma 4: layers that see all have heads of their own. */
function fullHeadsOf(config: Json, { kvHeads, headDim }: ConfigOverrides): Pick<LayerShape, 'kvHeads' | 'headDim'> {
  const full = { kvHeads: numberIn(config, ['num_global_key_value_heads']), headDim: numberIn(config, ['global_head_dim']) };
  return {
    ...full.kvHeads === undefined || kvHeads !== undefined ? {} : { kvHeads: full.kvHeads },
    ...full.headDim === undefined || headDim !== undefined ? {} : { headDim: full.headDim },
  };
}

/**
 * MLA, as in DeepSeek V2 and V3: the latent and the rotary part of K, kept side by side. DeepSeek V4 keeps both in one head of the whole
 * size.
 */
function latentDimOf(config: Json): number | undefined {
  if (listIn(config, ['compress_ratios']) !== undefined) return numberIn(config, names.headDim);
  const latent = numberIn(config, ['kv_lora_rank']);
  const rotary = config['qk_rope_head_dim'] === 0 ? 0 : numberIn(config, ['qk_rope_head_dim']);
  return latent === undefined || rotary === undefined ? undefined : latent + rotary;
}

/** One number, or one per layer. */
function kvHeadsOf(config: Json): number | readonly number[] | undefined {
  // Falcon writes `num_kv_heads` also where `multi_query` makes it one head; only its newer decoder uses that number.
  const isMultiQuery = config['multi_query'] === true && config['new_decoder_architecture'] !== true;
  if (isMultiQuery) return 1;
  for (const name of names.kvHeads) {
    const value = config[name];
    if (Array.isArray(value) && value.length > 0 && value.every((heads) => isCount(heads) || heads === 0)) return value as number[];
  }
  const attention = config['attn_config']; // MPT
  const nested = isObject(attention) ? numberIn(attention, ['kv_n_heads']) : undefined;
  return numberIn(config, names.kvHeads) ?? nested ?? numberIn(config, names.queryHeads);
}

function headDimOf(config: Json): number | undefined {
  const given = numberIn(config, names.headDim);
  if (given !== undefined) return given;
  const hidden = numberIn(config, names.hidden);
  const heads = numberIn(config, names.queryHeads);
  const headDim = hidden === undefined || heads === undefined ? undefined : hidden / heads;
  return isCount(headDim) ? headDim : undefined;
}

function dtypeOf(config: Json): ModelShape['dtype'] | undefined {
  const name = config['torch_dtype'] ?? config['dtype'];
  return typeof name === 'string' ? dtypeNamed(name) : undefined;
}

function languageConfig(json: Json): Json {
  const part = languageParts.map((name) => json[name]).find(isObject);
  const config = part ?? json;
  const defaults = familyDefaults[String(config['model_type'])];
  return defaults === undefined ? config : { ...defaults, ...config };
}

function nameOf(json: Json, file: string): string {
  const given = json['_name_or_path'];
  if (typeof given === 'string' && given !== '') return given;
  const folder = path.basename(path.dirname(path.resolve(file)));
  return path.basename(file) === 'config.json' ? folder : path.basename(file, '.json');
}

function readJson(fileOrFolder: string): { file: string; json: Json } {
  let file = fileOrFolder;
  let json: unknown;
  try {
    if (statSync(file).isDirectory()) file = path.join(file, 'config.json');
    json = JSON.parse(readFileSync(file, 'utf8'));
  } catch (cause) {
    const { code, message } = cause as NodeJS.ErrnoException;
    const isJson = !(cause instanceof SyntaxError);
    const problem = isJson ? code === 'ENOENT' ? 'it is not there' : `it cannot be read (${code ?? message})` : `it is not JSON (${message})`;
    throw invalid(file, problem, giveConfig, cause);
  }
  if (!isObject(json)) throw invalid(file, 'it is not a JSON object', giveConfig);
  return { file, json };
}

function missing(file: string, what: string, flag: string): never {
  throw invalid(file, `it does not say the ${what}`, `Give \`${flag}\` as well.`);
}

function invalid(source: string, problem: string, hint: string, cause?: unknown): Error {
  return createError('KV_CONFIG_INVALID', { source, problem, hint }, { cause });
}

/** One note for each kind of layer that is left out. */
function notesOnLeftOut(layers: readonly LayerType[], states: readonly unknown[]): string[] {
  const of = (some: readonly LayerType[]): string => `${formatNumber(some.length)} of ${formatCount('layer', layers.length)}`;
  const namesOf = (some: readonly LayerType[]): string => [...new Set(some.map(({ name }) => name))].join(', ');
  const nothing = layers.filter(({ kind }) => kind === 'nothing');
  const unsized = layers.filter(({ kind }, layer) => kind === 'state' && states[layer] === undefined);
  return [
    ...nothing.length === 0 ? [] : [`${of(nothing)} keep nothing of a text (${namesOf(nothing)}) and are left out`],
    ...unsized.length === 0 ? [] : [`${of(unsized)} keep a state in place of K and V (${namesOf(unsized)}), whose size the file does not say; they are left out`],
  ];
}

/** DeepSeek V4: layers with an index of their compressed entries have this ratio. */
const indexedRatio = 4;

/** The entries that stand for tokens before the window are not held: how many bytes that is. */
function notesOnCompressed(config: Json, count: number, dtype: ModelShape['dtype'], maxTokens: number | undefined): string[] {
  const ratios = (compressRatiosIn(config, count) ?? []).filter((ratio) => ratio > 0);
  const entryDim = numberIn(config, names.headDim);
  if (ratios.length === 0 || entryDim === undefined) return [];
  const indexDim = numberIn(config, ['index_head_dim']) ?? 0;
  const entryBytes = (ratio: number): number => (entryDim + (ratio === indexedRatio ? indexDim : 0)) * dtypeBytes(dtype);
  const bytesAt = (tokens: number): number => ratios.reduce((sum, ratio) => sum + Math.floor(tokens / ratio) * entryBytes(ratio), 0);
  const tokens = maxTokens ?? 131_072;
  const kinds = [...new Set(ratios)].sort((a, b) => a - b)
    .map((ratio) => `one for ${formatCount('token', ratio)} in ${formatCount('layer', ratios.filter((other) => other === ratio).length)}`);
  return [`compressed entries (${formatList(kinds, 'and')}) and the state of their compressors are not held, so they are not planned: ` +
    `${formatBytes(bytesAt(tokens), 2)} of entries at ${formatCount('token', tokens)}`];
}

function notesOnPattern(config: Json): string[] {
  const pattern = unreadPattern(config);
  return pattern === undefined
    ? []
    : [`\`${pattern}\` is not read: all layers are planned as attention; give \`--layers\` with the number that keep K and V`];
}
