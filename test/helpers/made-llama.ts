// MadeLlama: a small Llama made for a test: its config and tensors as plain numbers, written as a Hugging Face folder in any type,
// in one file or several. What a tensor holds is the test's: random numbers, or weights whose right answer is known.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import type { RowDtype } from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import { roundTo, toRows } from './floats.js';

export type Json = Readonly<Record<string, unknown>>;

export interface MadeTensor {
  readonly shape: readonly number[];
  readonly values: readonly number[];
}

export interface MadeLlama {
  readonly config: Json;
  readonly tensors: ReadonlyMap<string, MadeTensor>;
}

export interface LlamaSizes {
  readonly layers: number;
  readonly hidden: number;
  readonly intermediate: number;
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly vocabularyTokens: number;
}

/** Every tensor a config asks for, filled by `fill(name, index)`. `more` goes into the config. */
export function makeLlama(sizes: LlamaSizes, more: Json, fill: (name: string, index: number) => number): MadeLlama {
  const { layers, hidden, intermediate, queryHeads, kvHeads, headDim, vocabularyTokens } = sizes;
  const config: Json = {
    model_type: 'llama', hidden_size: hidden, intermediate_size: intermediate, num_hidden_layers: layers,
    num_attention_heads: queryHeads, num_key_value_heads: kvHeads, head_dim: headDim, vocab_size: vocabularyTokens,
    max_position_embeddings: 4096, rms_norm_eps: 1e-5, rope_theta: 10_000, hidden_act: 'silu', tie_word_embeddings: false, ...more,
  };
  const tensors = new Map<string, MadeTensor>();
  const add = (name: string, ...shape: number[]): void => {
    const length = shape.reduce((product, extent) => product * extent);
    tensors.set(name, { shape, values: Array.from({ length }, (_, index) => fill(name, index)) });
  };
  const type = config['model_type'] as string;
  const [isQwen, isGemma] = [type === 'qwen2', type.startsWith('gemma')];
  const linear = (name: string, outputs: number, inputs: number, hasBias: boolean): void => {
    add(`${name}.weight`, outputs, inputs);
    if (hasBias) add(`${name}.bias`, outputs);
  };
  add('model.embed_tokens.weight', vocabularyTokens, hidden);
  for (let layer = 0; layer < layers; layer += 1) {
    const [at, hasBias] = [`model.layers.${layer}`, config['attention_bias'] === true];
    add(`${at}.input_layernorm.weight`, hidden);
    linear(`${at}.self_attn.q_proj`, queryHeads * headDim, hidden, hasBias || isQwen);
    for (const part of ['k_proj', 'v_proj']) linear(`${at}.self_attn.${part}`, kvHeads * headDim, hidden, hasBias || isQwen);
    if (type === 'qwen3' || type === 'gemma3_text') for (const part of ['q_norm', 'k_norm']) add(`${at}.self_attn.${part}.weight`, headDim);
    linear(`${at}.self_attn.o_proj`, hidden, queryHeads * headDim, hasBias);
    if (type === 'gpt_oss') add(`${at}.self_attn.sinks`, queryHeads);
    if (isGemma) for (const part of ['pre', 'post']) add(`${at}.${part}_feedforward_layernorm.weight`, hidden);
    const feedForward = `${at}.${type === 'llama4_text' ? 'feed_forward' : 'mlp'}`;
    add(`${at}.post_attention_layernorm.weight`, hidden);
    for (const part of ['gate_proj', 'up_proj']) linear(`${feedForward}.${part}`, intermediate, hidden, config['mlp_bias'] === true);
    linear(`${feedForward}.down_proj`, hidden, intermediate, config['mlp_bias'] === true);
  }
  add('model.norm.weight', hidden);
  if (config['tie_word_embeddings'] !== true) add('lm_head.weight', vocabularyTokens, hidden);
  return { config, tensors };
}

/**
 * Random numbers of a type, of the size they have in trained models: scores spread by about 1, so that attention looks at some
 * tokens more than at others, and float32 is not asked for more than it has.
 */
export function randomLlama(random: Random, sizes: LlamaSizes, more: Json = {}, dtype: RowDtype = 'float32'): MadeLlama {
  const isGemma = String(more['model_type']).startsWith('gemma'); // norms add 1 to their weights, and embeddings grow by √hidden
  return makeLlama(sizes, more, (name) => {
    if (name.includes('norm')) return roundTo(dtype, (isGemma ? -0.5 : 0.5) + random.next());
    if (name.includes('sinks')) return roundTo(dtype, random.normal());
    const inputs = name.includes('down_proj') ? sizes.intermediate : sizes.hidden;
    return roundTo(dtype, (name.includes('embed') && !isGemma ? 1 : 1 / Math.sqrt(inputs)) * random.normal());
  });
}

/** The same with heads that look at much the same tokens, as trained ones do: each is the first one and a tenth of its own. */
export function withAlikeHeads({ config, tensors }: MadeLlama): MadeLlama {
  const head = (config['head_dim'] as number) * (config['hidden_size'] as number);
  const alike = [...tensors].map(([name, { shape, values }]) => {
    if (!/[qk]_proj\.weight$/.test(name)) return [name, { shape, values }] as const;
    return [name, { shape, values: values.map((value, index) => values[index % head]! + 0.1 * value) }] as const;
  });
  return { config, tensors: new Map(alike) };
}

/** Writes the folder; the caller removes it with `removeFolder`. `files`: how many the tensors are spread over. */
export function writeLlama({ config, tensors }: MadeLlama, dtype: RowDtype = 'float32', files = 1): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-llama-'));
  writeFileSync(path.join(folder, 'config.json'), JSON.stringify(config));
  const names = [...tensors.keys()];
  const places: Record<string, string> = {};
  for (let file = 0; file < files; file += 1) {
    const title = files === 1 ? 'model.safetensors' : `model-${file + 1}-of-${files}.safetensors`;
    const own = names.filter((_, index) => index % files === file);
    for (const name of own) places[name] = title;
    writeFileSync(path.join(folder, title), safetensorsOf(own.map((name) => [name, tensors.get(name)!]), dtype));
  }
  if (files > 1) writeFileSync(path.join(folder, 'model.safetensors.index.json'), JSON.stringify({ weight_map: places }));
  return folder;
}

export function removeFolder(folder: string): void {
  rmSync(folder, { recursive: true });
}

function safetensorsOf(tensors: readonly (readonly [string, MadeTensor])[], dtype: RowDtype): Buffer {
  const name = { float32: 'F32', float16: 'F16', bfloat16: 'BF16' }[dtype];
  const header: Record<string, unknown> = { __metadata__: { format: 'pt' } };
  const parts: Uint8Array[] = [];
  let at = 0;
  for (const [title, { shape, values }] of tensors) {
    const rows = toRows(dtype, values);
    const bytes = new Uint8Array(rows.buffer, rows.byteOffset, rows.byteLength);
    header[title] = { dtype: name, shape, data_offsets: [at, at + bytes.length] };
    at += bytes.length;
    parts.push(bytes);
  }
  const json = JSON.stringify(header);
  const text = Buffer.from(json.padEnd(Math.ceil(json.length / 8) * 8)); // as the format's own writers align tensors
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([length, text, ...parts]);
}
