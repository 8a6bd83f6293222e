// Layer states: the tensors that a layer without attention keeps of a sequence, from a model's config. Convolutions keep their last inputs
// in the model's dtype, recurrences a matrix per head, in float32 where the file names no dtype.

import type { Dtype, StateTensorShape } from '../index.js';
import { isCount, isObject, numberIn, type Json } from './config-values.js';
import { dtypeNamed } from './flag-values.js';

/** The state of one layer that the file calls `name`; undefined where the file does not say its size. `dtype`: the model's own. */
export function stateTensorsOf(config: Json, name: string, dtype: Dtype): readonly StateTensorShape[] | undefined {
  const tensors = /mamba/.test(name) ? mamba2(config) : /conv/.test(name) ? shortConvolution(config) : deltaRule(config);
  if (tensors === undefined) return undefined;
  const stated = config['mamba_ssm_cache_dtype'] ?? config['mamba_ssm_dtype'];
  const recurrentDtype = (typeof stated === 'string' ? dtypeNamed(stated) : undefined) ?? 'float32';
  return Object.entries(tensors).map(([tensor, shape]) =>
    ({ name: tensor, shape, dtype: tensor === 'conv' ? dtype : recurrentDtype }));
}

type Shapes = Readonly<Record<string, readonly number[]>>;

/** Undefined unless all are counts above 0. */
function shapes(given: Readonly<Record<string, readonly (number | undefined)[]>>): Shapes | undefined {
  return Object.values(given).every((axes) => axes.every(isCount)) ? given as Shapes : undefined;
}

const less1 = (kernel: number | undefined): number | undefined => (kernel === undefined ? undefined : kernel - 1);

/** Gated delta rule: Qwen3-Next and 3.5 with keys shared by values, Kimi's (KDA) with one head size for all. */
function deltaRule(config: Json): Shapes | undefined {
  const kimi = config['linear_attn_config'];
  if (isObject(kimi)) {
    const [heads, dim] = [numberIn(kimi, ['num_heads']), numberIn(kimi, ['head_dim'])];
    const kernel = numberIn(kimi, ['short_conv_kernel_size']);
    return shapes({ conv: [less1(kernel), 3 * (heads ?? 0) * (dim ?? 0)], recurrent: [heads, dim, dim] });
  }
  const [keyHeads, keyDim] = [numberIn(config, ['linear_num_key_heads']), numberIn(config, ['linear_key_head_dim'])];
  const [heads, dim] = [numberIn(config, ['linear_num_value_heads']), numberIn(config, ['linear_value_head_dim'])];
  const width = 2 * (keyHeads ?? 0) * (keyDim ?? 0) + (heads ?? 0) * (dim ?? 0);
  return shapes({ conv: [less1(numberIn(config, ['linear_conv_kernel_dim'])), width], recurrent: [heads, dim, keyDim] });
}

/** Mamba2, under the names of Nemotron-H, and of Granite and Bamba. */
function mamba2(config: Json): Shapes | undefined {
  const heads = numberIn(config, ['mamba_num_heads', 'mamba_n_heads']);
  const hidden = numberIn(config, ['hidden_size']);
  const expand = numberIn(config, ['mamba_expand', 'expand']);
  const inner = hidden === undefined || expand === undefined ? undefined : hidden * expand;
  // Granite may write "auto".
  const dim = numberIn(config, ['mamba_head_dim', 'mamba_d_head']) ?? (inner === undefined || heads === undefined ? undefined : inner / heads);
  const state = numberIn(config, ['ssm_state_size', 'mamba_d_state']);
  const groups = numberIn(config, ['n_groups', 'mamba_n_groups']) ?? 1;
  const kernel = numberIn(config, ['conv_kernel', 'mamba_d_conv']);
  return shapes({ conv: [less1(kernel), (heads ?? 0) * (dim ?? 0) + 2 * groups * (state ?? 0)], recurrent: [heads, dim, state] });
}

/** LFM2. */
function shortConvolution(config: Json): Shapes | undefined {
  return shapes({ conv: [less1(numberIn(config, ['conv_L_cache'])), numberIn(config, ['conv_dim', 'hidden_size'])] });
}
