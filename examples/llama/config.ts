// LlamaConfig: what the engine needs of a Hugging Face `config.json`. Reads Llama, Mistral and Qwen2; an option that would
// change the arithmetic and that this engine does not have is refused by name, never ignored.

import { existsSync, readFileSync } from 'node:fs';
import * as path from 'node:path';

import { ModelError } from './model-error.js';

type Json = Readonly<Record<string, unknown>>;

/** How positions beyond those trained on are brought within them. */
export type RopeScaling =
  | { readonly kind: 'none' }
  | { readonly kind: 'linear'; readonly factor: number }
  | {
    readonly kind: 'llama3'; readonly factor: number; readonly lowFrequencyFactor: number;
    readonly highFrequencyFactor: number; readonly originalMaxTokens: number;
  };

export interface LlamaConfig {
  readonly layers: number;
  readonly hidden: number;
  /** Width between the two products of the feed-forward part. */
  readonly intermediate: number;
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly vocabularyTokens: number;
  /** Longest text the model was made for. */
  readonly maxTokens: number;
  readonly normEpsilon: number;
  readonly ropeTheta: number;
  readonly ropeScaling: RopeScaling;
  /** The head is the embedding. */
  readonly tiesHead: boolean;
  /** Which products have a bias. */
  readonly biases: { readonly qkv: boolean; readonly attentionOutput: boolean; readonly feedForward: boolean };
  /** Tokens that end a text. */
  readonly endTokens: readonly number[];
}

/** Reads `config.json` of a folder. Throws ModelError. */
export function readLlamaConfig(folder: string): LlamaConfig {
  const file = path.join(folder, 'config.json');
  return parseLlamaConfig(readJson(file), file, readEndTokens(folder));
}

/** The same from a parsed file; `file` is for messages. Throws ModelError. */
export function parseLlamaConfig(json: Json, file: string, moreEndTokens: readonly number[] = []): LlamaConfig {
  const refuse = (what: string, hint = 'This engine runs Llama, Mistral and Qwen2.'): never => {
    throw new ModelError(`${file}: ${what} is not supported. ${hint}`);
  };
  const count = (name: string, fallback?: number): number => {
    const value = json[name] ?? fallback;
    if (Number.isSafeInteger(value) && (value as number) > 0) return value as number;
    throw new ModelError(`${file}: \`${name}\` is ${JSON.stringify(json[name])}, but must be a whole number above 0.`);
  };

  const type = json['model_type'];
  if (type !== 'llama' && type !== 'mistral' && type !== 'qwen2') refuse(`model_type ${JSON.stringify(type)}`);
  const activation = json['hidden_act'] ?? 'silu';
  if (activation !== 'silu') refuse(`hidden_act ${JSON.stringify(activation)}`, 'Only silu is.');
  if (isGiven(json['quantization_config'])) refuse('quantization_config', 'Give float32, float16 or bfloat16 weights.');
  if ((json['partial_rotary_factor'] ?? 1) !== 1) refuse('partial_rotary_factor');
  const slides = type === 'qwen2' ? json['use_sliding_window'] === true : isGiven(json['sliding_window']);
  if (slides) refuse(`sliding_window ${JSON.stringify(json['sliding_window'])}`, 'Attention here sees all tokens.');

  const [hidden, queryHeads] = [count('hidden_size'), count('num_attention_heads')];
  const kvHeads = count('num_key_value_heads', queryHeads);
  if (queryHeads % kvHeads !== 0) refuse(`${queryHeads} query heads over ${kvHeads} KV heads`, 'They must divide.');
  const headDim = count('head_dim', hidden / queryHeads);
  if (headDim % 2 !== 0) refuse(`head_dim ${headDim}`, 'Rotary positions need an even one.');
  const rope = (json['rope_parameters'] ?? {}) as Json; // where newer files have theta and scaling
  return {
    layers: count('num_hidden_layers'), hidden, intermediate: count('intermediate_size'), queryHeads, kvHeads, headDim,
    vocabularyTokens: count('vocab_size'), maxTokens: count('max_position_embeddings', 2048),
    normEpsilon: numberOr(json['rms_norm_eps'], 1e-6),
    ropeTheta: numberOr(rope['rope_theta'] ?? json['rope_theta'], 10_000),
    ropeScaling: readScaling((json['rope_scaling'] ?? rope) as Json, refuse),
    tiesHead: json['tie_word_embeddings'] === true,
    biases: {
      qkv: type === 'qwen2' || json['attention_bias'] === true,
      attentionOutput: type !== 'qwen2' && json['attention_bias'] === true,
      feedForward: json['mlp_bias'] === true,
    },
    endTokens: [...new Set([...tokensIn(json['eos_token_id']), ...moreEndTokens])],
  };
}

function readScaling(json: Json, refuse: (what: string) => never): RopeScaling {
  const kind = json['rope_type'] ?? json['type'] ?? 'default';
  const number = (name: string): number => {
    const value = json[name];
    return typeof value === 'number' && value > 0 ? value : refuse(`rope_scaling without \`${name}\``);
  };
  if (kind === 'default') return { kind: 'none' };
  if (kind === 'linear') return { kind, factor: number('factor') };
  if (kind !== 'llama3') return refuse(`rope_scaling of type ${JSON.stringify(kind)}`);
  return {
    kind, factor: number('factor'), lowFrequencyFactor: number('low_freq_factor'), highFrequencyFactor: number('high_freq_factor'),
    originalMaxTokens: number('original_max_position_embeddings'),
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

/** null is what these files write for nothing. */
function isGiven(value: unknown): boolean {
  return value !== undefined && value !== null;
}

function numberOr(value: unknown, fallback: number): number {
  return typeof value === 'number' ? value : fallback;
}

/** Throws ModelError when it is not there or not JSON. */
export function readJson(file: string): Json {
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as Json;
  } catch (cause) {
    const what = cause instanceof SyntaxError ? `is not JSON (${cause.message})` : `cannot be read (${(cause as Error).message})`;
    throw new ModelError(`${file} ${what}. Give the folder of a Hugging Face model.`, { cause });
  }
}
