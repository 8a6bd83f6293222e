// Layer kinds: small configs of the models whose layers do not all see all tokens, with windows and chunks that a short text outgrows. What
// makes each of them special is there: rotations, scales, caps, sinks, norms. Where the real one has experts, a dense part is in
// their place.

import type { Json, LlamaSizes } from './made-llama.js';

export interface MadeFamily {
  readonly more: Json;
  readonly sizes: Partial<LlamaSizes>;
}

const gelu = { hidden_act: undefined, hidden_activation: 'gelu_pytorch_tanh' };

export const layerKinds = {
  'Gemma 3': {
    more: {
      ...gelu, model_type: 'gemma3_text', sliding_window: 16, sliding_window_pattern: 6, rope_theta: 1e6, rope_local_base_freq: 10_000,
      rope_scaling: { rope_type: 'linear', factor: 8 }, query_pre_attn_scalar: 20, tie_word_embeddings: false,
    },
    sizes: { layers: 6, queryHeads: 4, kvHeads: 2 },
  },
  'Gemma 2': {
    more: {
      ...gelu, model_type: 'gemma2', sliding_window: 12, query_pre_attn_scalar: 12, attn_logit_softcapping: 3, final_logit_softcapping: 4,
      tie_word_embeddings: false,
    },
    sizes: { layers: 4, queryHeads: 4, kvHeads: 2 },
  },
  'Mistral with a window': { more: { model_type: 'mistral', sliding_window: 10 }, sizes: { layers: 4, queryHeads: 4, kvHeads: 1 } },
  'gpt-oss, dense': {
    more: { model_type: 'gpt_oss', num_local_experts: 0, sliding_window: 8, attention_bias: true, rope_theta: 150_000 },
    sizes: { layers: 4, queryHeads: 8, kvHeads: 2 },
  },
  'Llama 4, dense': {
    more: {
      model_type: 'llama4_text', moe_layers: [], intermediate_size_mlp: 40, attention_chunk_size: 16, use_qk_norm: true,
      attn_temperature_tuning: true, floor_scale: 16, attn_scale: 0.3,
    },
    sizes: { layers: 4, queryHeads: 4, kvHeads: 2, intermediate: 40 },
  },
} as const satisfies Readonly<Record<string, MadeFamily>>;
