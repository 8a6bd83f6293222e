// A made Llama as a GGUF file, with the names, types and order of rows that llama.cpp's converter gives it.

import { writeFileSync } from 'node:fs';

import type { LlamaConfig } from '#internal/llama/config.js';
import { ggufHeader, padding, type GgufEntry, type GgufPlace } from '#internal/llama/gguf/gguf-header.js';
import { roundTo, toRows, valueOf } from './floats.js';
import type { MadeLlama, MadeTensor } from './made-llama.js';

export type GgufTypeName = 'F32' | 'F16' | 'BF16' | 'Q8_0';

/** The part of a tokenizer.json that is written. */
export interface TokenizerJson {
  readonly model: { readonly vocab: Readonly<Record<string, number>>; readonly merges: readonly (string | readonly [string, string])[] };
  readonly added_tokens: readonly { readonly id: number; readonly content: string; readonly special: boolean }[];
}

export interface RawTensor extends Omit<GgufPlace, 'bytes'> {
  readonly bytes: Uint8Array;
}

export const ggufTypeNumbers = { F32: 0, F16: 1, Q8_0: 8, BF16: 30 } as const;
const rowTypes = { F32: 'float32', F16: 'float16', BF16: 'bfloat16' } as const;
const gemmaNames: readonly (readonly [RegExp, string])[] = [
  [/post_attention_layernorm/, 'post_attention_norm'], [/pre_feedforward_layernorm/, 'ffn_norm'], [/post_feedforward_layernorm/, 'post_ffw_norm'],
];
const names: readonly (readonly [RegExp, string])[] = [
  [/^model\.embed_tokens/, 'token_embd'], [/^model\.norm/, 'output_norm'], [/^lm_head/, 'output'], [/^model\.layers\.(\d+)\./, 'blk.$1.'],
  [/input_layernorm/, 'attn_norm'], [/post_attention_layernorm/, 'ffn_norm'], [/self_attn\.([qkv])_proj/, 'attn_$1'], [/self_attn\.o_proj/, 'attn_output'],
  [/self_attn\.([qk])_norm/, 'attn_$1_norm'], [/mlp\.(gate|up|down)_proj/, 'ffn_$1'],
];

export type Architecture = 'llama' | 'qwen2' | 'qwen3' | 'gemma2' | 'gemma3';

/** The keys of a Gemma's windows and caps. */
function gemmaEntries(of: (key: string) => string, { layerAttention = [], attentionCap, logitsCap, ropeScaling }: LlamaConfig): GgufEntry[] {
  const every = layerAttention.findIndex(({ kind }) => kind === 'full') + 1;
  return [
    [of('attention.sliding_window'), 4, layerAttention[0]!.tokens],
    ...attentionCap === undefined ? [[of('attention.sliding_window_pattern'), 4, every]] as const : [[of('attn_logit_softcapping'), 6, attentionCap]] as const,
    ...logitsCap === undefined ? [] : [[of('final_logit_softcapping'), 6, logitsCap]] as const,
    ...ropeScaling.kind === 'linear' ? [[of('rope.scaling.type'), 8, 'linear'], [of('rope.scaling.factor'), 6, ropeScaling.factor]] as const : [],
  ];
}

/** Writes the model; matrices become `type`, vectors F32. */
export function writeGguf(file: string, { tensors }: MadeLlama, config: LlamaConfig, architecture: Architecture, type: GgufTypeName, more: readonly GgufEntry[] = []): void {
  const isGemma = architecture.startsWith('gemma');
  const of = (key: string): string => `${architecture}.${key}`;
  writeRawGguf(file, [
    ['general.architecture', 8, architecture], [of('block_count'), 4, config.layers], [of('embedding_length'), 4, config.hidden],
    [of('feed_forward_length'), 4, config.intermediate], [of('attention.head_count'), 4, config.queryHeads], [of('attention.head_count_kv'), 4, config.kvHeads],
    [of('attention.key_length'), 4, config.headDim], [of('attention.value_length'), 4, config.headDim], [of('rope.dimension_count'), 4, config.headDim],
    [of('context_length'), 4, config.maxTokens], [of('attention.layer_norm_rms_epsilon'), 6, config.normEpsilon], [of('rope.freq_base'), 6, config.ropeTheta],
    ['tokenizer.ggml.tokens', 9, 8, Array.from({ length: config.vocabularyTokens }, (_, token) => `token ${token}`)],
    ...config.endTokens.map((token): GgufEntry => ['tokenizer.ggml.eos_token_id', 4, token]), ...isGemma ? gemmaEntries(of, config) : [], ...more,
  ], [...tensors].map(([name, tensor]) => {
    const heads = architecture !== 'llama' ? 0 : /q_proj/.test(name) ? config.queryHeads : /k_proj/.test(name) ? config.kvHeads : 0;
    const { shape, values: kept } = heads === 0 ? tensor : interleaved(tensor, config.headDim);
    const values = isGemma && name.endsWith('norm.weight') ? kept.map((value) => 1 + value) : kept;
    const own = shape.length === 1 ? 'F32' : type;
    return {
      name: [...isGemma ? gemmaNames : [], ...names].reduce((text, [from, to]) => text.replace(from, to), name), shape, type: ggufTypeNumbers[own],
      bytes: own === 'Q8_0' ? inBlocks(values) : bytesOf(toRows(rowTypes[own], values)),
    };
  }));
}

/** A tokenizer.json of byte-level BPE, as llama.cpp's converter writes it. */
export function tokenizerEntries({ model: { vocab, merges }, added_tokens: added }: TokenizerJson, pre: string, { bos, eos, template }: { readonly bos?: string | undefined; readonly eos?: string; readonly template?: string }): GgufEntry[] {
  const ids = new Map([...Object.entries(vocab), ...added.map(({ content, id }): [string, number] => [content, id])]);
  const count = [...ids.values()].reduce((most, id) => Math.max(most, id), 0) + 1;
  const tokens = Array.from({ length: count }, (_, token) => `[PAD${token}]`);
  const types = new Array<number>(count).fill(5);
  for (const id of Object.values(vocab)) types[id] = 1;
  for (const { id, special } of added) types[id] = special ? 3 : 4;
  for (const [content, id] of ids) tokens[id] = content;
  const token = (name: string, content: string | undefined): GgufEntry[] => (content === undefined ? [] : [[`tokenizer.ggml.${name}_token_id`, 4, ids.get(content)!]]);
  return [
    ['tokenizer.ggml.model', 8, 'gpt2'], ['tokenizer.ggml.pre', 8, pre], ['tokenizer.ggml.tokens', 9, 8, tokens], ['tokenizer.ggml.token_type', 9, 5, types],
    ['tokenizer.ggml.merges', 9, 8, merges.map((merge) => (typeof merge === 'string' ? merge : merge.join(' ')))], ...token('bos', bos), ...token('eos', eos),
    ...template === undefined ? [] : [['tokenizer.chat_template', 8, template] as const],
  ];
}

/** As it is said, right or wrong. */
export function writeRawGguf(file: string, entries: readonly GgufEntry[], tensors: readonly RawTensor[]): void {
  writeFileSync(file, Buffer.concat([
    ggufHeader(entries, tensors.map(({ bytes, ...tensor }) => ({ ...tensor, bytes: bytes.length }))),
    ...tensors.flatMap(({ bytes }) => [bytes, Buffer.alloc(padding(bytes.length))]),
  ]));
}

/** What llama.cpp's converter does to a Llama's queries and keys: the two halves of each head in turns. */
function interleaved({ shape, values }: MadeTensor, headDim: number): MadeTensor {
  const width = shape.length === 2 ? shape[1]! : 1;
  const rows = Array.from({ length: shape[0]! }, (_, row) => {
    const within = row % headDim;
    return row - within + (within % 2) * headDim / 2 + Math.floor(within / 2);
  });
  return { shape, values: rows.flatMap((row) => values.slice(row * width, (row + 1) * width)) };
}

/** As ggml's own quantize_row_q8_0: 32 integers after the float16 that a step of them is worth. */
function inBlocks(values: readonly number[]): Uint8Array {
  const blocks = new Uint8Array(values.length / 32 * 34);
  const view = new DataView(blocks.buffer);
  for (let block = 0; block < values.length / 32; block += 1) {
    const own = values.slice(32 * block, 32 * (block + 1));
    const step = Math.fround(Math.max(...own.map(Math.abs)) / 127);
    view.setUint16(34 * block, (toRows('float16', [roundTo('float16', step)]) as Uint16Array)[0]!, true);
    const inverse = step === 0 ? 0 : Math.fround(1 / step);
    own.forEach((value, index) => { view.setInt8(34 * block + 2 + index, roundAway(Math.fround(Math.fround(value) * inverse))); });
  }
  return blocks;
}

/** The model whose matrices have the values that their blocks stand for. */
export function asBlocks({ config, tensors }: MadeLlama): MadeLlama {
  return { config, tensors: new Map([...tensors].map(([name, { shape, values }]) => [name, { shape, values: shape.length === 1 ? values : fromBlocks(inBlocks(values)) }])) };
}

function fromBlocks(blocks: Uint8Array): number[] {
  const view = new DataView(blocks.buffer);
  return Array.from({ length: blocks.length / 34 * 32 }, (_, index) => {
    const at = 34 * Math.floor(index / 32);
    return valueOf('float16', view.getUint16(at, true)) * view.getInt8(at + 2 + index % 32);
  });
}

function roundAway(value: number): number {
  return Math.sign(value) * Math.floor(Math.abs(value) + 0.5);
}

function bytesOf(rows: ArrayBufferView): Uint8Array {
  return new Uint8Array(rows.buffer, rows.byteOffset, rows.byteLength);
}
