// LlamaConfig: the numbers of a Hugging Face `config.json` that the engine needs. Reads Llama, Mistral, Qwen2 and Qwen3. An option that
// would change the arithmetic and is not supported is an error that names it, never ignored.

import { existsSync, readFileSync } from 'node:fs';
import path = require('node:path');

import { string } from '../base/options.js';
import { ConfigReader } from './config-reader.js';
import { modelError } from './model-error.js';

export type Json = Readonly<Record<string, unknown>>;

const folderHint = 'Give the folder of a Hugging Face model.';
const types: readonly string[] = ['llama', 'mistral', 'qwen2', 'qwen3'];

/** How positions beyond the trained ones are scaled into their range. */
export type RopeScaling =
  | { readonly kind: 'none' }
  | { readonly kind: 'linear'; readonly factor: number }
  /** Each pair's own, the fastest first. */
  | { readonly kind: 'factors'; readonly factors: readonly number[] }
  | {
    readonly kind: 'llama3'; readonly factor: number; readonly lowFrequencyFactor: number;
    readonly highFrequencyFactor: number; readonly originalMaxTokens: number;
  };

/** The numbers of a model's `config.json` that the engine needs. */
export interface LlamaConfig {
  /** Layers, each with attention and a feed-forward part. */
  readonly layers: number;
  /** Width of a token between layers. */
  readonly hidden: number;
  /** Width between the two products of the feed-forward part. */
  readonly intermediate: number;
  /** Heads of queries; a multiple of `kvHeads`. */
  readonly queryHeads: number;
  /** Heads of K and V. */
  readonly kvHeads: number;
  /** Elements of a head, an even number. */
  readonly headDim: number;
  /** Tokens of the vocabulary. */
  readonly vocabularyTokens: number;
  /** Longest text the model was made for. */
  readonly maxTokens: number;
  /** Added to the mean square in norms. */
  readonly normEpsilon: number;
  /** Base of the rotary frequencies. */
  readonly ropeTheta: number;
  /** How positions beyond the trained ones are scaled. */
  readonly ropeScaling: RopeScaling;
  /** The head is the embedding. */
  readonly tiesHead: boolean;
  /** Which products have a bias. */
  readonly biases: { readonly qkv: boolean; readonly attentionOutput: boolean; readonly feedForward: boolean };
  /** Queries and keys are normalized head by head before they are rotated. */
  readonly normalizesHeads: boolean;
  /** Tokens that end a text. */
  readonly endTokens: readonly number[];
}

/** Reads `config.json` of a folder. Throws KV_MODEL_INVALID and KV_INVALID_OPTION. */
export function readLlamaConfig(folder: string): LlamaConfig {
  string(folder, { owner: 'readLlamaConfig', option: 'folder' });
  const file = path.join(folder, 'config.json');
  return parseLlamaConfig(readJson(file), file, readEndTokens(folder));
}

/** The same from a parsed file; `file` is for messages. Throws KV_MODEL_INVALID. */
export function parseLlamaConfig(json: Json, file: string, moreEndTokens: readonly number[] = []): LlamaConfig {
  const reader = new ConfigReader(json, file);
  const type = json['model_type'];
  if (typeof type !== 'string' || !types.includes(type)) reader.refuse(`model_type ${JSON.stringify(type)}`, `This engine runs ${types.join(', ')}.`);
  reader.refuseUnless('hidden_act', ['silu', 'swish'], 'Only silu is.');
  for (const name of ['quantization_config', 'quantization', 'compression_config']) {
    if (isGiven(json[name])) reader.refuse(name, 'Give float32, float16 or bfloat16 weights: the model before it was quantized.');
  }
  const layers = reader.count('num_hidden_layers');
  checkWindow(reader, layers);

  const [hidden, queryHeads] = [reader.count('hidden_size'), reader.count('num_attention_heads')];
  const kvHeads = reader.count('num_key_value_heads', queryHeads);
  if (queryHeads % kvHeads !== 0) reader.refuse(`${queryHeads} query heads over ${kvHeads} KV heads`, 'They must divide.');
  const headDim = reader.count('head_dim', type === 'qwen3' ? 128 : hidden / queryHeads);
  if (headDim % 2 !== 0) reader.refuse(`head_dim ${headDim}`, 'Rotary positions need an even one.');
  const hasBias = reader.flag('attention_bias');
  return {
    layers, hidden, intermediate: reader.count('intermediate_size'), queryHeads, kvHeads, headDim,
    vocabularyTokens: reader.count('vocab_size'), maxTokens: reader.count('max_position_embeddings', 2048),
    normEpsilon: reader.positive('rms_norm_eps', 1e-6), ...readRope(reader),
    tiesHead: reader.flag('tie_word_embeddings'), // false where it is missing, in all of these
    biases: { qkv: type === 'qwen2' || hasBias, attentionOutput: type !== 'qwen2' && hasBias, feedForward: reader.flag('mlp_bias') },
    normalizesHeads: type === 'qwen3',
    endTokens: [...new Set([...tokensIn(json['eos_token_id']), ...moreEndTokens])],
  };
}

/** Refuses a window that some layer has. */
function checkWindow(reader: ConfigReader, layers: number): void {
  const { model_type: type, sliding_window: window, use_sliding_window: uses, max_window_layers: fullLayers, layer_types: kinds } = reader.json;
  const hint = 'Attention here sees all tokens.';
  if (Array.isArray(kinds) && kinds.some((kind) => kind !== 'full_attention')) {
    reader.refuse(`layer_types ${JSON.stringify(kinds.find((kind) => kind !== 'full_attention'))}`, hint);
  }
  if (!isGiven(window) || type === 'llama' || Array.isArray(kinds)) return;
  // A Qwen has a window only where it says so, and only in layers from `max_window_layers` on.
  const hasWindow = type === 'mistral' || (uses === true && !(typeof fullLayers === 'number' && fullLayers >= layers));
  if (hasWindow) reader.refuse(`sliding_window ${JSON.stringify(window)}`, hint);
}

/** Newer files have theta and scaling in `rope_parameters`. */
function readRope(reader: ConfigReader): { readonly ropeTheta: number; readonly ropeScaling: RopeScaling } {
  const parameters = reader.within('rope_parameters');
  const scaling = isGiven(reader.json['rope_scaling']) ? reader.within('rope_scaling') : parameters;
  for (const place of [reader, parameters, scaling]) place.refuseUnless('partial_rotary_factor', [1], 'All of a head is rotated.');
  const nested = Object.entries(parameters.json).find(([, value]) => typeof value === 'object' && value !== null && !Array.isArray(value));
  if (nested !== undefined) reader.refuse(`rope_parameters of their own for \`${nested[0]}\``, 'All layers have the same.');
  const theta = [parameters, scaling, reader].find(({ json }) => isGiven(json['rope_theta'])) ?? reader;
  return { ropeTheta: theta.positive('rope_theta', 10_000), ropeScaling: readScaling(scaling) };
}

function readScaling(reader: ConfigReader): RopeScaling {
  const kind = reader.json['rope_type'] ?? reader.json['type'] ?? 'default';
  if (kind === 'default') return { kind: 'none' };
  if (kind === 'linear') return { kind, factor: reader.positive('factor') };
  if (kind !== 'llama3') return reader.refuse(`rope_scaling of type ${JSON.stringify(kind)}`, 'Only default, linear and llama3 are.');
  return {
    kind, factor: reader.positive('factor'), lowFrequencyFactor: reader.positive('low_freq_factor'),
    highFrequencyFactor: reader.positive('high_freq_factor'), originalMaxTokens: reader.positive('original_max_position_embeddings'),
  };
}

function readEndTokens(folder: string): number[] {
  const file = path.join(folder, 'generation_config.json');
  return existsSync(file) ? tokensIn(readJson(file)['eos_token_id']) : [];
}

/** One token or several. */
function tokensIn(value: unknown): number[] {
  return [value].flat().filter((token): token is number => Number.isSafeInteger(token));
}

/** null counts as missing. */
function isGiven(value: unknown): boolean {
  return value !== undefined && value !== null;
}

/** Throws KV_MODEL_INVALID when the file is missing or no JSON object. */
export function readJson(file: string): Json {
  return parseJson(readText(file), file);
}

/** Throws KV_MODEL_INVALID when the file is missing. */
export function readText(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (cause) {
    throw modelError(`${file} cannot be read (${(cause as Error).message}). ${folderHint}`, { cause });
  }
}

/** What `readJson` does, with a file's text. */
export function parseJson(text: string, file: string): Json {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw modelError(`${file} is not JSON (${(cause as Error).message}). ${folderHint}`, { cause });
  }
  if (typeof json === 'object' && json !== null && !Array.isArray(json)) return json as Json;
  throw modelError(`${file} is not a JSON object. ${folderHint}`);
}
