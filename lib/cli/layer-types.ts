// Layer types: what each layer of a model keeps, from its config: all tokens, a window, a chunk, a state, or nothing. Files say it by a
// list, a pattern of letters, a period, or not at all, where the family's own rule holds. Reads a config; knows no shapes.

import { isCount, isObject, listIn, numberIn, type Json } from './config-values.js';

/** What a layer keeps of a text. */
export type LayerKind = 'full' | 'window' | 'chunk' | 'state' | 'nothing';

/** One layer: what it keeps, and what the file calls it. */
export interface LayerType {
  readonly kind: LayerKind;
  readonly name: string;
}

/** The layers of a model, and how much of a text they see. */
export interface LayerTypes {
  readonly layers: readonly LayerType[];
  readonly windowTokens: number | undefined;
  readonly chunkTokens: number | undefined;
}

/** A file's list does not fit its number of layers. */
export interface WrongList {
  readonly listed: number;
}

/** Of Nemotron-H: Mamba, attention, feed-forward, experts. */
const blocks: Readonly<Record<string, string>> = { 'M': 'mamba', '*': 'attention', '-': 'mlp', 'E': 'moe' };

/** Every how many layers a family has one that sees all, where its files do not say so. */
const fullEvery: Readonly<Record<string, number>> = {
  gemma2: 2, gemma3_text: 6, gemma3n_text: 5, gemma4_text: 6, gpt_oss: 2, cohere2: 4,
};

/** The types of all layers. `maxTokens`: the longest text; a window as long as that sees all. */
export function layerTypesOf(config: Json, count: number, maxTokens: number | undefined): LayerTypes | WrongList {
  const names = namesIn(config, count);
  if (names.length !== count) return { listed: names.length };
  const shorter = (tokens: number | undefined): number | undefined =>
    tokens === undefined || (maxTokens !== undefined && tokens >= maxTokens) ? undefined : tokens;
  const windowTokens = shorter(numberIn(config, ['sliding_window', 'sliding_window_size', 'window_size']));
  const chunkTokens = shorter(numberIn(config, ['attention_chunk_size']));
  const layers = names.map((name): LayerType => {
    const kind = kindOf(name);
    const seesAll = (kind === 'window' && windowTokens === undefined) || (kind === 'chunk' && chunkTokens === undefined);
    return { name, kind: seesAll ? 'full' : kind };
  });
  return { layers, windowTokens, chunkTokens };
}

/** Whether the file is of a model whose older tokens are kept as compressed entries. */
export function compressRatiosIn(config: Json, count: number): readonly number[] | undefined {
  return listIn(config, ['compress_ratios'])?.slice(0, count).map((ratio) => (isCount(ratio) ? ratio : 0));
}

/** Names under which files say which layers have attention, and that are not read. */
const unread = ['attn_layer_period', 'attn_type_list', 'hybrid_layer_pattern', 'block_configs'] as const;

/** The first pattern of layers in the file that is not read. */
export function unreadPattern(config: Json): string | undefined {
  return listIn(config, ['layer_types']) === undefined
    ? unread.find((name) => config[name] !== undefined && config[name] !== null)
    : undefined;
}

function kindOf(name: string): LayerKind {
  if (/linear|mamba|conv|recurrent|kda|delta/.test(name)) return 'state';
  if (/sliding|local|window|compressed/.test(name)) return 'window';
  if (/chunk/.test(name)) return 'chunk';
  return /attention/.test(name) ? 'full' : 'nothing';
}

function namesIn(config: Json, count: number): readonly string[] {
  const family = String(config['model_type']);
  const each = (name: (layer: number) => string): string[] => Array.from({ length: count }, (_, layer) => name(layer));
  if (compressRatiosIn(config, count) !== undefined) return each(() => 'sliding_attention');

  const listed = listIn(config, ['layer_types', 'layers_block_type']);
  if (listed !== undefined) return listed.map(String);
  const pattern = config['hybrid_override_pattern'];
  if (typeof pattern === 'string' || Array.isArray(pattern)) return Array.from(pattern, (letter) => blocks[String(letter)] ?? String(letter));

  const linear = config['linear_attn_config']; // Kimi Linear; its layers are counted from 1
  const kda = isObject(linear) ? listIn(linear, ['kda_layers']) : undefined;
  if (kda !== undefined) return each((layer) => (kda.includes(layer + 1) ? 'linear_attention' : 'full_attention'));
  const attention = listIn(config, ['full_attn_idxs', 'attn_layer_indices']); // LFM2, Bamba
  const other = config['full_attn_idxs'] === undefined ? 'mamba' : 'conv';
  if (attention !== undefined) return each((layer) => (attention.includes(layer) ? 'full_attention' : other));
  const interval = numberIn(config, ['full_attention_interval']);
  if (interval !== undefined) return each((layer) => ((layer + 1) % interval === 0 ? 'full_attention' : 'linear_attention'));

  if (numberIn(config, ['attention_chunk_size']) !== undefined) return each(chunkedBy(config));
  if (numberIn(config, ['sliding_window']) === undefined || config['use_sliding_window'] === false) return each(() => 'full_attention');
  const letters = config['sliding_window_pattern']; // EXAONE 4: local and global
  if (typeof letters === 'string' && letters !== '') {
    return each((layer) => (letters[layer % letters.length] === 'L' ? 'sliding_attention' : 'full_attention'));
  }
  const period = numberIn(config, ['sliding_window_pattern', '_sliding_window_pattern']) ?? fullEvery[family];
  if (period !== undefined) {
    const isLastFull = family === 'gemma4_text'; // whatever the period
    return each((layer) => ((layer + 1) % period === 0 || (isLastFull && layer === count - 1) ? 'full_attention' : 'sliding_attention'));
  }
  const firstWindow = config['use_sliding_window'] === true ? config['max_window_layers'] : 0; // Qwen2: those before it see all
  return each((layer) => (isCount(firstWindow) && layer < firstWindow ? 'full_attention' : 'sliding_attention'));
}

/** Llama 4: layers with rotary positions see a chunk. */
function chunkedBy(config: Json): (layer: number) => string {
  const rotary = listIn(config, ['no_rope_layers']);
  const interval = numberIn(config, ['no_rope_layer_interval']) ?? 4;
  const hasRotary = (layer: number): boolean => (rotary === undefined ? (layer + 1) % interval !== 0 : rotary[layer] !== 0);
  return (layer) => (hasRotary(layer) ? 'chunked_attention' : 'full_attention');
}
