// The keys of a GGUF file that `vkv quantize` writes: those that any reader knows, and three of its own that keep what they cannot say: the
// folder's config.json (32-bit numbers and three end tokens are not all of it), tokenizer_config.json, and the type of K and V.

import path = require('node:path');

import type { RowDtype } from '../../index.js';
import type { Json } from '../config-reader.js';
import { familyOf, parseJson, parseLlamaConfig, readJson, type LlamaConfig } from '../config.js';
import { modelError } from '../model-error.js';
import type { TokenizerFiles } from '../special-tokens.js';
import { valueType, type GgufEntry } from './gguf-header.js';

const { u32, f32, string } = valueType;
const configKey = 'virtual_kv.config.json';
const dtypeKey = 'virtual_kv.dtype';
const tokenizerConfigKey = 'virtual_kv.tokenizer_config.json';
const tokenizerKey = 'tokenizer.huggingface.json';
const templateKey = 'tokenizer.chat_template';
const dtypes: readonly unknown[] = ['float32', 'float16', 'bfloat16'] satisfies readonly RowDtype[];

type Values = ReadonlyMap<string, unknown>;

/** Of every such file; `dtype`: of the weights that were converted. */
export function int8Entries(dtype: RowDtype): GgufEntry[] {
  return [['general.file_type', u32, 7], ['general.quantization_version', u32, 2], [dtypeKey, string, dtype]];
}

/** Of a model that was a folder. Throws KV_MODEL_INVALID where GGUF files have no name for its kind. */
export function folderEntries(folder: string, config: LlamaConfig): GgufEntry[] {
  const json = readJson(path.join(folder, 'config.json'));
  const architecture = familyOf(json)?.architecture;
  if (architecture === undefined) throw modelError(`${folder}: a GGUF file of model_type ${JSON.stringify(json['model_type'])} is not supported. Load the folder with \`weights: 'int8'\` instead.`);
  const of = (name: string): string => `${architecture}.${name}`;
  const tokens = ['eos', 'eot', 'eom'].flatMap((name, index): GgufEntry[] => {
    const token = config.endTokens[index];
    return token === undefined ? [] : [[`tokenizer.ggml.${name}_token_id`, u32, token]];
  });
  const { ropeScaling: scaling, layerAttention = [], attentionCap, logitsCap } = config;
  const window = config.hasOutputNorms === true ? layerAttention.find(({ kind }) => kind === 'window') : undefined;
  return [
    ['general.architecture', string, architecture], [configKey, string, JSON.stringify({ ...json, eos_token_id: config.endTokens })],
    [of('block_count'), u32, config.layers], [of('embedding_length'), u32, config.hidden], [of('feed_forward_length'), u32, config.intermediate],
    [of('attention.head_count'), u32, config.queryHeads], [of('attention.head_count_kv'), u32, config.kvHeads], [of('attention.key_length'), u32, config.headDim],
    [of('attention.value_length'), u32, config.headDim], [of('rope.dimension_count'), u32, config.headDim], [of('context_length'), u32, config.maxTokens],
    [of('vocab_size'), u32, config.vocabularyTokens], [of('attention.layer_norm_rms_epsilon'), f32, config.normEpsilon], [of('rope.freq_base'), f32, config.ropeTheta],
    ...scaling.kind === 'linear' ? [[of('rope.scaling.type'), string, 'linear'], [of('rope.scaling.factor'), f32, scaling.factor]] as const : [],
    ...window === undefined ? [] : [[of('attention.sliding_window'), u32, window.tokens]] as const,
    ...attentionCap === undefined ? [] : [[of('attn_logit_softcapping'), f32, attentionCap]] as const,
    ...logitsCap === undefined ? [] : [[of('final_logit_softcapping'), f32, logitsCap]] as const,
    ['tokenizer.ggml.model', string, 'no_vocab'], ...tokens, // other programs read no tokenizer.json
  ];
}

/** Of a tokenizer.json and what is beside it. */
export function tokenizerEntries({ tokenizer, config, template }: TokenizerFiles): GgufEntry[] {
  const ofTemplate: GgufEntry[] = template === undefined ? [] : [[templateKey, string, template]];
  return [[tokenizerKey, string, JSON.stringify(tokenizer)], [tokenizerConfigKey, string, JSON.stringify(config)], ...ofTemplate];
}

/** The config of a folder in a header; undefined: it has none. Throws KV_MODEL_INVALID. */
export function configIn(values: Values, file: string): LlamaConfig | undefined {
  const json = jsonIn(values, configKey, file);
  return json && parseLlamaConfig(json, file);
}

/** The type of K and V in a header; undefined: it says none. Throws KV_MODEL_INVALID. */
export function dtypeIn(values: Values, file: string): RowDtype | undefined {
  const dtype = values.get(dtypeKey);
  if (dtype !== undefined && !dtypes.includes(dtype)) throw modelError(`${file}: \`${dtypeKey}\` is ${JSON.stringify(dtype)}, but must be one of ${dtypes.join(', ')}.`);
  return dtype as RowDtype | undefined;
}

/** The files of a tokenizer in a header; undefined: it has none. Throws KV_MODEL_INVALID. */
export function tokenizerIn(values: Values, file: string): Pick<TokenizerFiles, 'tokenizer' | 'config' | 'template'> | undefined {
  const tokenizer = jsonIn(values, tokenizerKey, file);
  if (tokenizer === undefined) return undefined;
  const template = values.get(templateKey);
  return { tokenizer, config: jsonIn(values, tokenizerConfigKey, file) ?? {}, template: typeof template === 'string' ? template : undefined };
}

function jsonIn(values: Values, key: string, file: string): Json | undefined {
  const text = values.get(key);
  return typeof text === 'string' ? parseJson(text, `${file}: \`${key}\``) : undefined;
}
