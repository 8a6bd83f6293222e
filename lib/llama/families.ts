// Families: the model types that the engine runs, as a table of facts: what a `config.json` may leave out, which tokens
// a layer sees where the file does not say, and how a folder keeps its tensors. config.ts reads numbers by it.

import type { Activation, HeadPairs } from '../index.js';
import type { Json } from './config-reader.js';

/** What a layer's tokens see, in the words of `layer_types`. */
export type LayerType = 'full_attention' | 'sliding_attention' | 'chunked_attention';

/** How a folder keeps its tensors. */
export interface TensorForm {
  /** How the rows of queries' and keys' weights follow each other in a head. */
  readonly pairs: HeadPairs;
  /** Added to the weights of norms. */
  readonly normShift: 0 | 1;
  /** The name of a tensor as Llama has it; undefined: it is of another part of the model, not of its text. */
  readonly nameOf: (name: string) => string | undefined;
}

export interface Family extends TensorForm {
  /** What a GGUF file calls it; undefined: this engine reads and writes none of it. */
  readonly architecture: string | undefined;
  /** Fields that a file may leave out, as Hugging Face fills them in. */
  readonly defaults: Json;
  readonly activation: Activation;
  /** What a layer sees where the file has no `layer_types`. */
  readonly layerType: (json: Json, layer: number) => LayerType;
  /** Queries and keys are normalized head by head, with weights. */
  readonly normalizesHeads: boolean;
  /** What both parts of a layer give is normalized before it is added, and embeddings are multiplied by √hidden. */
  readonly isGemma: boolean;
  /** Layers have a learned sink for each query head. */
  readonly hasSinks: boolean;
}

const llama: Family = {
  architecture: 'llama', defaults: {}, activation: 'silu', layerType: () => 'full_attention', normalizesHeads: false,
  isGemma: false, hasSinks: false, pairs: 'halves', normShift: 0, nameOf: (name) => name,
};

/** A Qwen has a window only where it says so, and only in layers from `max_window_layers` on. */
const qwenLayerType: Family['layerType'] = (json, layer) => {
  const hasWindow = json['use_sliding_window'] === true && isGiven(json['sliding_window']);
  return slidingIf(hasWindow && layer >= Number(json['max_window_layers']));
};
const qwen = { defaults: { max_window_layers: 28 }, layerType: qwenLayerType };

const gemma2: Family = {
  ...llama, architecture: 'gemma2', activation: 'gelu-tanh', isGemma: true, normShift: 1,
  layerType: (_, layer) => slidingIf(layer % 2 === 0),
  defaults: {
    num_attention_heads: 8, num_key_value_heads: 4, head_dim: 256, vocab_size: 256_000, max_position_embeddings: 8192,
    query_pre_attn_scalar: 256, sliding_window: 4096, attn_logit_softcapping: 50, final_logit_softcapping: 30,
    tie_word_embeddings: true,
  },
};

/** By `model_type`. */
export const families: Readonly<Record<string, Family>> = {
  llama,
  mistral: {
    ...llama, defaults: { sliding_window: 4096 }, layerType: (json) => slidingIf(isGiven(json['sliding_window'])),
  },
  qwen2: { ...llama, ...qwen, architecture: 'qwen2' },
  qwen3: {
    ...llama, ...qwen, architecture: 'qwen3', normalizesHeads: true, defaults: { ...qwen.defaults, head_dim: 128 },
  },
  gemma2,
  gemma3_text: {
    ...gemma2, architecture: 'gemma3', normalizesHeads: true, nameOf: textNameOf,
    layerType: ({ sliding_window_pattern: every }, layer) => slidingIf((layer + 1) % Number(every) !== 0),
    defaults: {
      ...gemma2.defaults, vocab_size: 262_208, max_position_embeddings: 131_072, rope_theta: 1e6,
      rope_local_base_freq: 10_000, sliding_window_pattern: 6,
      attn_logit_softcapping: null, final_logit_softcapping: null,
    },
  },
  gpt_oss: {
    ...llama, architecture: undefined, hasSinks: true, layerType: gemma2.layerType,
    defaults: {
      head_dim: 64, num_key_value_heads: 8, sliding_window: 128, attention_bias: true, rope_theta: 150_000,
      rope_parameters: { rope_type: 'yarn' }, rms_norm_eps: 1e-5, max_position_embeddings: 131_072,
      num_local_experts: 128,
    },
  },
  llama4_text: {
    ...llama, architecture: undefined, pairs: 'neighbours', nameOf: (name) => name.replace('.feed_forward.', '.mlp.'),
    layerType: (json, layer) => (hasRope(json, layer) ? 'chunked_attention' : 'full_attention'),
    defaults: {
      head_dim: 128, num_key_value_heads: 8, attention_chunk_size: 8192, no_rope_layer_interval: 4, use_qk_norm: true,
      attn_temperature_tuning: true, attn_scale: 0.1, floor_scale: 8192, rope_theta: 500_000, rms_norm_eps: 1e-5,
      max_position_embeddings: 131_072, num_local_experts: 16,
    },
  },
};

/** Whether a Llama 4's layer rotates queries and keys. */
export function hasRope({ no_rope_layers: given, no_rope_layer_interval: every }: Json, layer: number): boolean {
  if (Array.isArray(given) && given.length > 0) return given[layer] !== 0; // 1: it does
  return (layer + 1) % Number(every ?? Infinity) !== 0;
}

function slidingIf(slides: boolean): LayerType {
  return slides ? 'sliding_attention' : 'full_attention';
}

/** null counts as missing. */
export function isGiven(value: unknown): boolean {
  return value !== undefined && value !== null;
}

/** Of a folder whose model sees images, too: its text model's tensors, whichever way they were saved. */
function textNameOf(name: string): string | undefined {
  const [, old, newer] = /^(?:language_model\.(.+)|model\.language_model\.(.+))$/.exec(name) ?? [];
  if (old !== undefined) return old;
  if (newer !== undefined) return `model.${newer}`;
  return /^(?:model\.)?(?:vision_tower|multi_modal_projector)\./.test(name) ? undefined : name;
}
