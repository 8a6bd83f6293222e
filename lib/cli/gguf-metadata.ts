// GGUF metadata: the header of a GGUF file under the names of a Hugging Face config, so that one reader does for both. Reads keys, no
// tensors. What a file leaves to its architecture (a window's period, a chunk) is left to the family here, too.

import { GgufFile, type GgufValue } from '../llama/gguf/gguf-file.js';
import { isCount, type Json } from './config-values.js';

/** Architectures by the model type whose rules they share; others have a type of their own name. */
const families: Readonly<Record<string, string>> = {
  'gemma3': 'gemma3_text', 'gemma3n': 'gemma3n_text', 'gemma4': 'gemma4_text', 'gpt-oss': 'gpt_oss', 'llama4': 'llama4_text',
  'qwen3next': 'qwen3_next', 'qwen35': 'qwen3_5_text', 'qwen35moe': 'qwen3_5_moe_text',
};

/** Architectures with a gated delta rule beside full attention, at a period. */
const deltaRules: readonly string[] = ['qwen3next', 'qwen35', 'qwen35moe'];

/** Names of a config by the keys whose values they have. */
const sameValues: Readonly<Record<string, string>> = {
  num_attention_heads: 'attention.head_count', hidden_size: 'embedding_length', max_position_embeddings: 'context_length',
  sliding_window: 'attention.sliding_window', num_kv_shared_layers: 'attention.shared_kv_layers',
  kv_lora_rank: 'attention.kv_lora_rank', index_head_dim: 'attention.indexer.key_length',
  compress_ratios: 'attention.compress_ratios', full_attention_interval: 'full_attention_interval',
  conv_L_cache: 'shortconv.l_cache',
};

/** A GGUF file's header as a config. Throws KV_MODEL_INVALID. */
export function readGgufMetadata(path: string): Json {
  const gguf = new GgufFile(path, 'copied');
  try {
    return configOf(gguf.values);
  } finally {
    gguf.file.close();
  }
}

function configOf(values: ReadonlyMap<string, GgufValue>): Json {
  const architecture = String(values.get('general.architecture'));
  const value = (key: string): GgufValue | undefined => values.get(`${architecture}.${key}`);
  const number = (key: string): number | undefined => {
    const given = value(key);
    return isCount(given) ? given : undefined;
  };
  const list = (key: string): readonly unknown[] | undefined => {
    const given = value(key);
    return Array.isArray(given) ? given : undefined;
  };
  // Layers that draft tokens lie behind the model's own.
  const layers = (number('block_count') ?? 0) - (number('nextn_predict_layers') ?? 0);
  const cut = (given: GgufValue | undefined): unknown => (Array.isArray(given) ? given.slice(0, layers) : given);
  const isLatent = number('attention.kv_lora_rank') !== undefined;
  const keyLength = number('attention.key_length');
  const windowKeyLength = number('attention.key_length_swa');
  const valueLength = number('attention.value_length');
  return given({
    model_type: families[architecture] ?? architecture,
    _name_or_path: values.get('general.name'),
    num_hidden_layers: layers,
    num_key_value_heads: cut(value('attention.head_count_kv')),
    ...Object.fromEntries(Object.entries(sameValues).map(([name, key]) => [name, cut(value(key))])),
    head_dim: windowKeyLength ?? keyLength,
    global_head_dim: windowKeyLength === undefined ? undefined : keyLength,
    v_head_dim: valueLength === keyLength || isLatent || windowKeyLength !== undefined ? undefined : valueLength,
    qk_rope_head_dim: isLatent ? number('rope.dimension_count') ?? 0 : undefined,
    sliding_window_pattern: number('attention.sliding_window_pattern'),
    layer_types: layerTypes(),
    ...states(),
  });

  /** Of files that say it layer by layer. */
  function layerTypes(): readonly string[] | undefined {
    const windows = list('attention.sliding_window_pattern');
    if (windows !== undefined) {
      return windows.slice(0, layers).map((isWindow) => (isWindow === true || isWindow === 1 ? 'sliding_attention' : 'full_attention'));
    }
    const heads = list('attention.head_count_kv');
    if (heads?.includes(0) !== true) return undefined;
    const feedForward = list('feed_forward_length'); // Nemotron-H: a layer is attention, Mamba or this
    const other = number('kda.head_dim') !== undefined ? 'linear_attention' : number('shortconv.l_cache') !== undefined ? 'conv' : 'mamba';
    const isMixed = feedForward?.includes(0) === true;
    return heads.slice(0, layers).map((count, layer) =>
      (count !== 0 ? 'full_attention' : isMixed && feedForward[layer] !== 0 ? 'mlp' : other));
  }

  function states(): Json {
    const [kernel, inner, state] = [number('ssm.conv_kernel'), number('ssm.inner_size'), number('ssm.state_size')];
    const [heads, groups] = [number('ssm.time_step_rank'), number('ssm.group_count')];
    const dim = inner === undefined || heads === undefined ? undefined : inner / heads;
    const kda = number('kda.head_dim');
    if (kda !== undefined) {
      const queryHeads = list('attention.head_count');
      const kdaHeads = queryHeads === undefined ? number('attention.head_count') : Math.max(...queryHeads.filter(isCount));
      return { linear_attn_config: { num_heads: kdaHeads, head_dim: kda, short_conv_kernel_size: kernel } };
    }
    if (deltaRules.includes(architecture)) {
      return {
        linear_conv_kernel_dim: kernel, linear_num_key_heads: groups, linear_key_head_dim: state, linear_num_value_heads: heads,
        linear_value_head_dim: dim, full_attention_interval: number('full_attention_interval') ?? 4,
      };
    }
    return { mamba_num_heads: heads, mamba_head_dim: dim, ssm_state_size: state, n_groups: groups, conv_kernel: kernel };
  }
}

/** Without what is not given. */
function given(config: Json): Json {
  return Object.fromEntries(Object.entries(config).filter(([, value]) => value !== undefined));
}
