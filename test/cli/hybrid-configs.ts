// Configs of models whose layers do not all keep every token: what their files say of layers, heads and states.

type Config = Readonly<Record<string, unknown>>;

const listed = (count: number, name: (layer: number) => string): string[] => Array.from({ length: count }, (_, layer) => name(layer));
const every = (count: number, period: number, others: string, full = 'full_attention'): string[] =>
  listed(count, (layer) => ((layer + 1) % period === 0 ? full : others));

const nemotron = 'MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME';
const letters: Readonly<Record<string, string>> = { 'M': 'mamba', 'E': 'moe', '*': 'attention' };

export const hybridConfigs = {
  'gemma2-9b': {
    model_type: 'gemma2', num_hidden_layers: 42, num_attention_heads: 16, num_key_value_heads: 8, head_dim: 256, sliding_window: 4096,
    max_position_embeddings: 8192, torch_dtype: 'bfloat16',
  },
  'gemma3-27b': {
    model_type: 'gemma3', torch_dtype: 'bfloat16',
    text_config: {
      model_type: 'gemma3_text', num_hidden_layers: 62, num_attention_heads: 32, num_key_value_heads: 16, head_dim: 128, sliding_window: 1024,
    },
  },
  'gemma3n-e4b': {
    model_type: 'gemma3n',
    text_config: {
      model_type: 'gemma3n_text', num_hidden_layers: 35, num_attention_heads: 8, num_key_value_heads: 2, head_dim: 256, sliding_window: 512,
      layer_types: every(35, 5, 'sliding_attention'), num_kv_shared_layers: 15, max_position_embeddings: 32_768, torch_dtype: 'bfloat16',
    },
  },
  'gemma4-31b': {
    model_type: 'gemma4', dtype: 'bfloat16',
    text_config: {
      model_type: 'gemma4_text', num_hidden_layers: 60, num_attention_heads: 32, num_key_value_heads: 16, head_dim: 256, global_head_dim: 512,
      num_global_key_value_heads: 4, attention_k_eq_v: true, num_kv_shared_layers: 0, sliding_window: 1024,
      layer_types: every(60, 6, 'sliding_attention'), max_position_embeddings: 262_144,
    },
  },
  'gemma4-e2b': {
    model_type: 'gemma4', dtype: 'bfloat16',
    text_config: {
      model_type: 'gemma4_text', num_hidden_layers: 35, num_attention_heads: 8, num_key_value_heads: 1, head_dim: 256, global_head_dim: 512,
      num_global_key_value_heads: null, num_kv_shared_layers: 20, sliding_window: 512, layer_types: every(35, 5, 'sliding_attention'),
      max_position_embeddings: 131_072,
    },
  },
  'gpt-oss-20b': {
    model_type: 'gpt_oss', num_hidden_layers: 24, num_attention_heads: 64, num_key_value_heads: 8, head_dim: 64, sliding_window: 128,
    layer_types: every(24, 2, 'sliding_attention'), max_position_embeddings: 131_072, torch_dtype: 'bfloat16',
  },
  'llama4-scout': {
    model_type: 'llama4',
    text_config: {
      model_type: 'llama4_text', num_hidden_layers: 48, num_attention_heads: 40, num_key_value_heads: 8, head_dim: 128,
      attention_chunk_size: 8192, no_rope_layers: Array.from({ length: 48 }, (_, layer) => ((layer + 1) % 4 === 0 ? 0 : 1)),
      max_position_embeddings: 10_485_760, torch_dtype: 'bfloat16',
    },
  },
  'mistral-7b-v0.1': {
    model_type: 'mistral', num_hidden_layers: 32, num_attention_heads: 32, num_key_value_heads: 8, hidden_size: 4096, sliding_window: 4096,
    max_position_embeddings: 32_768, torch_dtype: 'bfloat16',
  },
  'qwen3-next-80b': {
    model_type: 'qwen3_next', num_hidden_layers: 48, num_attention_heads: 16, num_key_value_heads: 2, head_dim: 256, full_attention_interval: 4,
    linear_conv_kernel_dim: 4, linear_key_head_dim: 128, linear_value_head_dim: 128, linear_num_key_heads: 16, linear_num_value_heads: 32,
    max_position_embeddings: 262_144, torch_dtype: 'bfloat16',
  },
  'qwen3.5-27b': {
    model_type: 'qwen3_5',
    text_config: {
      model_type: 'qwen3_5_text', num_hidden_layers: 64, num_attention_heads: 24, num_key_value_heads: 4, head_dim: 256,
      layer_types: every(64, 4, 'linear_attention'), linear_conv_kernel_dim: 4, linear_key_head_dim: 128, linear_value_head_dim: 128,
      linear_num_key_heads: 16, linear_num_value_heads: 48, mamba_ssm_dtype: 'float32', max_position_embeddings: 262_144, dtype: 'bfloat16',
    },
  },
  'nemotron-3-nano': {
    model_type: 'nemotron_h', hybrid_override_pattern: nemotron, num_hidden_layers: 52, num_attention_heads: 32, num_key_value_heads: 2,
    head_dim: 128, hidden_size: 2688, mamba_num_heads: 64, mamba_head_dim: 64, ssm_state_size: 128, n_groups: 8, conv_kernel: 4,
    mamba_ssm_cache_dtype: 'float32', max_position_embeddings: 262_144, torch_dtype: 'bfloat16',
  },
  'nemotron-3-listed': {
    model_type: 'nemotron_h', layers_block_type: Array.from(nemotron, (letter) => letters[letter]), num_hidden_layers: 52, num_attention_heads: 32,
    num_key_value_heads: 2, head_dim: 128, hidden_size: 2688, mamba_num_heads: 64, mamba_head_dim: 64, ssm_state_size: 128, n_groups: 8,
    conv_kernel: 4, max_position_embeddings: 262_144, torch_dtype: 'bfloat16',
  },
  'granite-4-h-small': {
    model_type: 'granitemoehybrid', num_hidden_layers: 40, num_attention_heads: 32, num_key_value_heads: 8, hidden_size: 4096,
    layer_types: listed(40, (layer) => ([5, 15, 25, 35].includes(layer) ? 'attention' : 'mamba')), mamba_n_heads: 128, mamba_d_head: 'auto',
    mamba_d_state: 128, mamba_n_groups: 1, mamba_d_conv: 4, mamba_expand: 2, max_position_embeddings: 131_072, torch_dtype: 'bfloat16',
  },
  'lfm2-1.2b': {
    model_type: 'lfm2', num_hidden_layers: 16, num_attention_heads: 32, num_key_value_heads: 8, hidden_size: 2048, conv_L_cache: 3,
    full_attn_idxs: [2, 5, 8, 10, 12, 14], max_position_embeddings: 128_000, torch_dtype: 'bfloat16',
  },
  'kimi-linear-48b': {
    model_type: 'kimi_linear', num_hidden_layers: 27, num_attention_heads: 32, num_key_value_heads: 32, head_dim: 72, hidden_size: 2304,
    kv_lora_rank: 512, qk_rope_head_dim: 64, v_head_dim: 128,
    linear_attn_config: {
      full_attn_layers: [4, 8, 12, 16, 20, 24, 27], head_dim: 128, num_heads: 32, short_conv_kernel_size: 4,
      kda_layers: Array.from({ length: 27 }, (_, layer) => layer + 1).filter((layer) => ![4, 8, 12, 16, 20, 24, 27].includes(layer)),
    },
    model_max_length: 1_048_576, dtype: 'bfloat16',
  },
  'deepseek-v3.2': {
    model_type: 'deepseek_v32', num_hidden_layers: 61, num_attention_heads: 128, num_key_value_heads: 128, hidden_size: 7168, kv_lora_rank: 512,
    qk_rope_head_dim: 64, v_head_dim: 128, index_head_dim: 128, index_n_heads: 64, index_topk: 2048, max_position_embeddings: 163_840,
    torch_dtype: 'bfloat16',
  },
  'deepseek-v4-flash': {
    model_type: 'deepseek_v4', num_hidden_layers: 43, num_attention_heads: 64, num_key_value_heads: 1, head_dim: 512, hidden_size: 4096,
    qk_rope_head_dim: 64, index_head_dim: 128, index_n_heads: 64, index_topk: 512, sliding_window: 128,
    compress_ratios: [0, 0, 4, ...Array.from({ length: 20 }, () => [128, 4]).flat(), 0], max_position_embeddings: 1_048_576,
    torch_dtype: 'bfloat16',
  },
} as const satisfies Readonly<Record<string, Config>>;

export type HybridName = keyof typeof hybridConfigs;

/** The folder of files that they are. */
export const hybridFiles: Readonly<Record<string, string>> =
  Object.fromEntries(Object.entries(hybridConfigs).map(([name, config]) => [`${name}.json`, JSON.stringify(config)]));
