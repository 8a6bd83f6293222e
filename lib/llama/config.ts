// LlamaConfig: the numbers of a Hugging Face `config.json` that the engine needs, of the model types in families.ts. An option that would
// change the arithmetic and is not supported is an error that names it, never ignored.

import { existsSync, readFileSync } from 'node:fs';
import path = require('node:path');

import { string } from '../base/options.js';
import type { Activation } from '../index.js';
import { ConfigReader, type Json } from './config-reader.js';
import { families, hasRope, isGiven, type Family, type LayerType } from './families.js';
import { modelError } from './model-error.js';

const folderHint = 'Give the folder of a Hugging Face model.';

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

/** Which tokens a layer's tokens see, and by what its queries and keys are rotated. */
export interface LayerAttention {
  /** `window`: a token and those before it, `tokens` together; `chunk`: of its own stretch of `tokens`, those up to it. */
  readonly kind: 'full' | 'window' | 'chunk';
  /** Of a window or a chunk; 0 where all are seen. */
  readonly tokens: number;
  /** `global`: by `ropeTheta` and `ropeScaling`; `local`: by `localRopeTheta`; `none`: not at all. */
  readonly rope: 'global' | 'local' | 'none';
}

/** The numbers of a model's `config.json` that the engine needs. What is optional is of some model types only. */
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
  /** Of each layer. Default: all see all tokens, and are rotated by `ropeTheta`. */
  readonly layerAttention?: readonly LayerAttention[];
  /** Base of the rotary frequencies of `local` layers. */
  readonly localRopeTheta?: number;
  /** Factor of the products of queries and keys. Default 1 / √headDim. */
  readonly attentionScale?: number;
  /** Scores of attention become cap · tanh(score / cap). */
  readonly attentionCap?: number;
  /** Logits likewise. */
  readonly logitsCap?: number;
  /** Of the feed-forward part. Default `silu`. */
  readonly activation?: Activation;
  /** Factor of embeddings where a text begins. */
  readonly embeddingScale?: number;
  /** What attention and the feed-forward part give is normalized before it is added. */
  readonly hasOutputNorms?: boolean;
  /** Queries and keys are normalized without weights, in layers that rotate them. */
  readonly hasPlainHeadNorms?: boolean;
  /** Layers have a learned sink for each query head. */
  readonly hasSinks?: boolean;
  /** Queries of layers without rotation are multiplied by 1 + factor · ln(1 + ⌊(position + 1) / everyTokens⌋). */
  readonly queryGrowth?: { readonly everyTokens: number; readonly factor: number };
}

/** Reads `config.json` of a folder. Throws KV_MODEL_INVALID and KV_INVALID_OPTION. */
export function readLlamaConfig(folder: string): LlamaConfig {
  string(folder, { owner: 'readLlamaConfig', option: 'folder' });
  return readFolder(folder).config;
}

/** The same, and how the folder keeps its tensors. Throws KV_MODEL_INVALID. */
export function readFolder(folder: string): { readonly config: LlamaConfig; readonly family: Family } {
  const file = path.join(folder, 'config.json');
  const json = readJson(file);
  return { config: parseLlamaConfig(json, file, readEndTokens(folder)), family: familyOf(json)! };
}

/** The family of a config file; undefined: the engine runs none of its kind. */
export function familyOf(json: Json): Family | undefined {
  const { type } = textOf(json);
  return Object.hasOwn(families, type) ? families[type] : undefined;
}

/** The same from a parsed file; `file` is for messages. Throws KV_MODEL_INVALID. */
export function parseLlamaConfig(given: Json, file: string, moreEndTokens: readonly number[] = []): LlamaConfig {
  const { text, type, place } = textOf(given);
  const family = familyOf(given);
  if (family === undefined) {
    return new ConfigReader(text, file, place).refuse(`${place}model_type ${JSON.stringify(text['model_type'])}`, `This engine runs ${Object.keys(families).join(', ')}.`);
  }
  const json = { ...family.defaults, ...text };
  const reader = new ConfigReader(json, file, place);
  const activation = isGiven(json['hidden_activation']) ? 'hidden_activation' : 'hidden_act';
  if (family.activation === 'silu') reader.refuseUnless(activation, ['silu', 'swish'], 'Only silu is.');
  else reader.refuseUnless(activation, ['gelu_pytorch_tanh'], 'Only gelu_pytorch_tanh is.');
  for (const name of ['quantization_config', 'quantization', 'compression_config']) {
    if (isGiven(json[name] ?? given[name])) reader.refuse(name, 'Give float32, float16 or bfloat16 weights: the model before it was quantized.');
  }
  checkDense(reader, type);
  reader.refuseUnless('use_bidirectional_attention', [false], 'A token sees none behind it.');
  const layers = reader.count('num_hidden_layers');
  const [hidden, queryHeads] = [reader.count('hidden_size'), reader.count('num_attention_heads')];
  const kvHeads = reader.count('num_key_value_heads', queryHeads);
  if (queryHeads % kvHeads !== 0) reader.refuse(`${queryHeads} query heads over ${kvHeads} KV heads`, 'They must divide.');
  const headDim = reader.count('head_dim', hidden / queryHeads);
  if (headDim % 2 !== 0) reader.refuse(`head_dim ${headDim}`, 'Rotary positions need an even one.');
  const hasBias = reader.flag('attention_bias');
  return {
    layers, hidden, intermediate: reader.count(type === 'llama4_text' ? 'intermediate_size_mlp' : 'intermediate_size'), queryHeads, kvHeads, headDim,
    vocabularyTokens: reader.count('vocab_size'), maxTokens: reader.count('max_position_embeddings', 2048),
    normEpsilon: reader.positive('rms_norm_eps', 1e-6), ...readRope(reader),
    tiesHead: reader.flag('tie_word_embeddings'),
    biases: { qkv: type === 'qwen2' || hasBias, attentionOutput: type !== 'qwen2' && hasBias, feedForward: reader.flag('mlp_bias') },
    normalizesHeads: family.normalizesHeads,
    endTokens: [...new Set([...tokensIn(json['eos_token_id'] ?? given['eos_token_id']), ...moreEndTokens])],
    ...readLayers(reader, family, layers),
    ...family.isGemma ? gemmaConfig({
      hidden, queryDim: reader.positive('query_pre_attn_scalar'), attentionCap: reader.optional('attn_logit_softcapping'),
      logitsCap: reader.optional('final_logit_softcapping'),
    }) : {},
    ...family.hasSinks ? { hasSinks: true } : {},
    ...type === 'llama4_text' ? llama4Config(reader) : {},
  };
}

/** What all Gemmas have, of numbers that their files name differently. */
export function gemmaConfig({ hidden, queryDim, attentionCap, logitsCap }: {
  readonly hidden: number; readonly queryDim: number; readonly attentionCap: number | undefined; readonly logitsCap: number | undefined;
}): Partial<LlamaConfig> {
  return {
    activation: 'gelu-tanh', embeddingScale: Math.sqrt(hidden), hasOutputNorms: true, attentionScale: 1 / Math.sqrt(queryDim),
    ...attentionCap === undefined ? {} : { attentionCap }, ...logitsCap === undefined ? {} : { logitsCap },
  };
}

function llama4Config(reader: ConfigReader): Partial<LlamaConfig> {
  const grows = isGiven(reader.json['attn_temperature_tuning']) && reader.json['attn_temperature_tuning'] !== false;
  return {
    ...reader.flag('use_qk_norm') ? { hasPlainHeadNorms: true } : {},
    ...grows ? { queryGrowth: { everyTokens: reader.positive('floor_scale'), factor: reader.positive('attn_scale') } } : {},
  };
}

/** The text model of a config, which may see images besides; `place` is before its fields' names. */
function textOf(json: Json): { readonly text: Json; readonly type: string; readonly place: string } {
  const nested = json['model_type'] === 'gemma3' ? json['text_config'] : undefined;
  if (typeof nested !== 'object' || nested === null) return { text: json, type: String(json['model_type']), place: '' };
  return { text: nested as Json, type: String((nested as Json)['model_type'] ?? 'gemma3_text'), place: 'text_config.' };
}

/** Refuses experts. */
function checkDense(reader: ConfigReader, type: string): void {
  const hint = 'Experts are not computed; a dense feed-forward part in all layers is, with';
  if (type === 'gpt_oss') reader.refuseUnless('num_local_experts', [0], `${hint} 0 of them.`);
  const { moe_layers: layers, num_local_experts: experts } = reader.json;
  if (type === 'llama4_text' && !(Array.isArray(layers) && layers.length === 0)) reader.refuse(`num_local_experts ${JSON.stringify(experts)}`, `${hint} \`moe_layers\` [].`);
}

const kinds = { full_attention: 'full', sliding_attention: 'window', chunked_attention: 'chunk' } as const;
const tokensField = { window: 'sliding_window', chunk: 'attention_chunk_size' } as const;

/** What each layer sees, where some do not see all or are not all rotated alike. */
function readLayers(reader: ConfigReader, family: Family, layers: number): Pick<LlamaConfig, 'layerAttention' | 'localRopeTheta'> {
  const { json } = reader;
  const types = json['layer_types'];
  if (isGiven(types) && !(Array.isArray(types) && types.length === layers)) reader.refuse(`layer_types ${JSON.stringify(types)}`, `It must have one for each of the ${layers} layers.`);
  const typeOf = (layer: number): unknown => (Array.isArray(types) ? types[layer] : family.layerType(json, layer));
  const local = 'rope_local_base_freq' in family.defaults ? readLocalTheta(reader) : undefined;
  const layerAttention = Array.from({ length: layers }, (_, layer) => {
    const type = typeOf(layer);
    if (typeof type !== 'string' || !Object.hasOwn(kinds, type)) return reader.refuse(`layer_types ${JSON.stringify(type)}`, `Only ${Object.keys(kinds).join(', ')} are.`);
    const kind = kinds[type as LayerType];
    const rope = !hasRope(json, layer) ? 'none' as const : kind === 'window' && local !== undefined ? 'local' as const : 'global' as const;
    return { kind, tokens: kind === 'full' ? 0 : reader.count(tokensField[kind]), rope };
  });
  return layerConfig(layerAttention, local);
}

/** Nothing where all layers see all tokens and are rotated alike. */
export function layerConfig(layerAttention: readonly LayerAttention[], localRopeTheta: number | undefined): Pick<LlamaConfig, 'layerAttention' | 'localRopeTheta'> {
  if (layerAttention.every(({ kind, rope }) => kind === 'full' && rope === 'global')) return {};
  return layerAttention.some(({ rope }) => rope === 'local') ? { layerAttention, localRopeTheta: localRopeTheta! } : { layerAttention };
}

/** Newer files have theta and scaling in `rope_parameters`, of a Gemma 3 by the types of layers. */
function readRope(reader: ConfigReader): { readonly ropeTheta: number; readonly ropeScaling: RopeScaling } {
  const given = reader.within('rope_parameters');
  const isByType = isGiven(reader.json['rope_local_base_freq']) && isGiven(given.json['full_attention']);
  const parameters = isByType ? given.within('full_attention') : given;
  const scaling = isGiven(reader.json['rope_scaling']) ? reader.within('rope_scaling') : parameters;
  for (const place of [reader, parameters, scaling]) place.refuseUnless('partial_rotary_factor', [1], 'All of a head is rotated.');
  const nested = Object.entries(parameters.json).find(([, value]) => typeof value === 'object' && value !== null && !Array.isArray(value));
  if (nested !== undefined) reader.refuse(`rope_parameters of their own for \`${nested[0]}\``, 'All layers have the same.');
  const theta = [parameters, scaling, reader].find(({ json }) => isGiven(json['rope_theta'])) ?? reader;
  return { ropeTheta: theta.positive('rope_theta', 10_000), ropeScaling: readScaling(scaling) };
}

/** Of layers with a window, which no scaling stretches. */
function readLocalTheta(reader: ConfigReader): number {
  const parameters = reader.within('rope_parameters').within('sliding_attention');
  parameters.refuseUnless('rope_type', ['default'], 'Positions within a window are not scaled.');
  return isGiven(parameters.json['rope_theta']) ? parameters.positive('rope_theta') : reader.positive('rope_local_base_freq');
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
