// Reads the attention shape of a model from a Hugging Face `config.json`: which layers keep K and V, the number and size of heads,
// or MLA's latent, under the names that model families use. Notes where the shape simplifies: layers that see a window of the text
// only, and layers that keep a state instead of K and V. Where the file lacks a number, the error asks for a flag.

import { readFileSync, statSync } from 'node:fs';
import path = require('node:path');

import { createError } from '../base/errors.js';
import { formatCount, formatNumber } from '../base/format.js';
import type { LayerShape, ModelShape } from '../index.js';
import { dtypeNamed } from './flag-values.js';

type Json = Readonly<Record<string, unknown>>;

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

/** Hugging Face's defaults for a model type, where a file may leave numbers out. */
const familyDefaults: Readonly<Record<string, Json>> = {
  gemma3_text: { num_attention_heads: 8, num_key_value_heads: 4, head_dim: 256, max_position_embeddings: 131_072 },
};

const giveConfig = "Give a model's `config.json`, or the folder it is in.";

/**
 * Reads a config file, or the `config.json` in a folder. Throws KV_CONFIG_INVALID when it cannot be read, or when a number is
 * missing both there and in `overrides`.
 */
export function readHuggingFaceConfig(fileOrFolder: string, overrides: ConfigOverrides = {}): ConfigModel {
  const { file, json } = readJson(fileOrFolder);
  const config = languageConfig(json);
  if (json['is_encoder_decoder'] === true) {
    throw invalid(file, 'it is an encoder-decoder model', 'Give `--layers`, `--kv-heads` and `--head-dim` instead.');
  }
  const dtype = overrides.dtype ?? dtypeOf(config) ?? dtypeOf(json) ?? 'float16';
  const layers = overrides.layers ?? cachingLayers(config, file) ?? missing(file, 'number of layers', '--layers');
  const maxTokens = numberIn(config, names.maxTokens) ?? numberIn(json, names.maxTokens);
  return {
    name: nameOf(json, file),
    model: { ...attentionOf(config, file, layers, overrides), layers, dtype },
    maxTokens,
    notes: overrides.layers === undefined ? notesOnLayers(config, maxTokens) : [],
  };
}

function attentionOf(
  config: Json, file: string, layers: number, overrides: ConfigOverrides,
): Omit<ModelShape, 'layers' | 'dtype'> {
  const latentDim = overrides.latentDim ?? latentDimOf(config);
  const asksForHeads = overrides.kvHeads !== undefined || overrides.headDim !== undefined;
  if (latentDim !== undefined && !asksForHeads) return { attention: 'latent', latentDim };

  const kvHeads = overrides.kvHeads ?? kvHeadsOf(config) ?? missing(file, 'number of KV heads', '--kv-heads');
  const headDim = overrides.headDim ?? headDimOf(config) ?? missing(file, 'head dimension', '--head-dim');
  if (typeof kvHeads === 'number') return { kvHeads, headDim };
  if (kvHeads.length !== layers) {
    const problem = `it gives KV heads for ${kvHeads.length} layers but has ${layers}`;
    throw invalid(file, problem, 'Give `--kv-heads` and `--layers`.');
  }
  return { headDim, layerShapes: kvHeads.map((count): LayerShape => ({ kvHeads: count })) };
}

/** MLA, as in DeepSeek V2 and V3: the latent and the rotary part of K, kept side by side. */
function latentDimOf(config: Json): number | undefined {
  const latent = numberIn(config, ['kv_lora_rank']);
  const rotary = numberIn(config, ['qk_rope_head_dim']);
  return latent === undefined || rotary === undefined ? undefined : latent + rotary;
}

/** One number, or one per layer. */
function kvHeadsOf(config: Json): number | readonly number[] | undefined {
  // Falcon writes `num_kv_heads` also where `multi_query` makes it one head; only its newer decoder uses that number.
  const isMultiQuery = config['multi_query'] === true && config['new_decoder_architecture'] !== true;
  if (isMultiQuery) return 1;
  for (const name of names.kvHeads) {
    const value = config[name];
    if (Array.isArray(value) && value.length > 0 && value.every(isCount)) return value;
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

/** Counts the layers that keep K and V of their own: neither linear attention nor layers that read another layer's. */
function cachingLayers(config: Json, file: string): number | undefined {
  const types = config['layer_types'];
  const allLayers = numberIn(config, names.layers);
  const isListed = Array.isArray(types) && types.length > 0;
  if (isListed && allLayers !== undefined && types.length !== allLayers) {
    throw invalid(file, `it lists the types of ${types.length} layers but has ${allLayers}`, 'Give `--layers`.');
  }
  const layers = isListed ? types.filter(keepsKeysAndValues).length : allLayers;
  if (layers === undefined) return undefined;
  return layers - (numberIn(config, ['num_kv_shared_layers']) ?? 0);
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

/** The first of these names that holds a count; in these files null and 0 mean "not given". */
function numberIn(config: Json, keys: readonly string[]): number | undefined {
  return keys.map((key) => config[key]).find(isCount);
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) > 0;
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Names under which configs without `layer_types` say which layers have attention. */
const otherPatterns = [
  'full_attention_interval', 'attn_layer_period', 'attn_layer_indices', 'layers_block_type', 'hybrid_override_pattern',
] as const;

/** Whether a layer of this type keeps K and V of its own. */
function keepsKeysAndValues(type: unknown): boolean {
  return /attention/.test(String(type)) && !/linear/.test(String(type));
}

/** One note per kind of layer that the shape leaves out or overestimates. `maxTokens`: the longest text, where the config has it. */
function notesOnLayers(config: Json, maxTokens: number | undefined): string[] {
  const window = [config['sliding_window'], config['attention_chunk_size']].find((value) => Number.isSafeInteger(value)) as number | undefined;
  const seen = window === undefined ? 'a part of the text' : `a window of ${formatCount('token', window)}`;
  const planned = 'planned as if they kept every token';
  const types = config['layer_types'];
  if (Array.isArray(types) && types.length > 0) {
    const of = (some: readonly unknown[]): string => `${formatNumber(some.length)} of ${formatCount('layer', types.length)}`;
    const windowed = types.filter((type) => keepsKeysAndValues(type) && /sliding|chunked|local|window/.test(String(type)));
    const without = types.filter((type) => !keepsKeysAndValues(type));
    return [
      ...windowed.length > 0 ? [`${of(windowed)} see ${seen} only, ${planned}`] : [],
      ...without.length > 0 ? [`${of(without)} keep no K and V (${[...new Set(without)].join(', ')}); they and their state are left out`] : [],
    ];
  }
  const isWindowed = window !== undefined && config['use_sliding_window'] !== false && (maxTokens === undefined || window < maxTokens);
  const pattern = otherPatterns.find((name) => config[name] !== undefined && config[name] !== null);
  return [
    ...isWindowed ? [`layers that see ${seen} only are ${planned}`] : [],
    ...pattern === undefined ? [] : [`\`${pattern}\` is not read: all layers are planned as attention; give \`--layers\` with the number that keep K and V`],
  ];
}
