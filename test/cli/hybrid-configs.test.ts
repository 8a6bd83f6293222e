import { writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { readModelConfig, type ConfigModel } from '#internal/cli/model-config.js';
import { ggufHeader, valueType, type GgufEntry } from '#internal/llama/gguf/gguf-header.js';
import { computeLayout, type LayerSetShape } from 'virtual-kv';
import { withTemporaryFolder } from '../helpers/temporary-folder.js';
import { hybridFiles, type HybridName } from './hybrid-configs.js';

const KiB = 1024;
const MiB = 1024 * KiB;

/** What a config comes to: its sets, bytes of a token in those with rows, of a face in those without. */
function summaryOf({ model, maxTokens = 131_072 }: ConfigModel): string[] {
  const layout = computeLayout({ model, layout: 'per-layer', slots: 1, maxTokens, pageBytes: 2 * MiB });
  return [
    ...layout.sets.map(({ kind, layers, windowTokens, chunkTokens, usedBytes }) =>
      [kind, windowTokens ?? chunkTokens ?? '', `× ${layers.length}:`, usedBytes(1) / KiB, 'KiB a token'].filter((part) => part !== '').join(' ')),
    ...layout.constantSets.map(({ kind, layers, owners, faceBytes }) =>
      (kind === 'shared' ? `shared × ${layers.length}: of ${[...new Set(owners)].join()}` : `${kind} × ${layers.length}: ${(faceBytes / MiB).toFixed(2)} MiB`)),
  ];
}

const expected: Readonly<Record<HybridName, readonly string[]>> = {
  'gemma2-9b': ['full × 21: 168 KiB a token', 'window 4096 × 21: 168 KiB a token'],
  'gemma3-27b': ['full × 10: 80 KiB a token', 'window 1024 × 52: 416 KiB a token'],
  'gemma3n-e4b': ['full × 4: 8 KiB a token', 'window 512 × 16: 32 KiB a token', 'shared × 12: of 18', 'shared × 3: of 19'],
  'gemma4-31b': ['full × 10: 80 KiB a token', 'window 1024 × 50: 800 KiB a token'],
  'gemma4-e2b': ['full × 3: 6 KiB a token', 'window 512 × 12: 12 KiB a token', 'shared × 16: of 13', 'shared × 4: of 14'],
  'gpt-oss-20b': ['full × 12: 24 KiB a token', 'window 128 × 12: 24 KiB a token'],
  'llama4-scout': ['full × 12: 48 KiB a token', 'chunk 8192 × 36: 144 KiB a token'],
  'mistral-7b-v0.1': ['window 4096 × 32: 128 KiB a token'],
  'qwen3-next-80b': ['full × 12: 24 KiB a token', 'state × 36: 73.69 MiB'],
  'qwen3.5-27b': ['full × 16: 64 KiB a token', 'state × 48: 146.81 MiB'],
  'nemotron-3-nano': ['full × 6: 6 KiB a token', 'state × 23: 46.81 MiB'],
  'nemotron-3-listed': ['full × 6: 6 KiB a token', 'state × 23: 46.81 MiB'],
  'granite-4-h-small': ['full × 4: 16 KiB a token', 'state × 36: 145.74 MiB'],
  'lfm2-1.2b': ['full × 6: 12 KiB a token', 'state × 10: 0.08 MiB'],
  'kimi-linear-48b': ['full × 7: 7.875 KiB a token', 'state × 20: 41.41 MiB'],
  'deepseek-v3.2': ['full × 61: 83.875 KiB a token'],
  'deepseek-v4-flash': ['window 128 × 43: 43 KiB a token'],
};

for (const [name, sets] of Object.entries(expected)) {
  test(`the layer sets of ${name}`, (t) => {
    withTemporaryFolder(hybridFiles, (folder) => {
      t.deepEqual(summaryOf(readModelConfig(path.join(folder, `${name}.json`))), sets);
    });
  });
}

test('notes say what is left out, and how much that is', (t) => {
  withTemporaryFolder(hybridFiles, (folder) => {
    const notes = (name: HybridName): readonly string[] => readModelConfig(path.join(folder, `${name}.json`)).notes;
    t.deepEqual(notes('deepseek-v4-flash'), [
      'compressed entries (one for 4 tokens in 21 layers and one for 128 tokens in 20 layers) and the state of their compressors are not held, ' +
      'so they are not planned: 6.72 GiB of entries at 1,048,576 tokens',
    ]);
    t.deepEqual(notes('nemotron-3-nano'), ['23 of 52 layers keep nothing of a text (moe) and are left out']);
    t.deepEqual(notes('nemotron-3-listed'), ['23 of 52 layers keep nothing of a text (moe) and are left out']);
    for (const name of ['gemma3-27b', 'gpt-oss-20b', 'llama4-scout', 'qwen3-next-80b', 'kimi-linear-48b', 'deepseek-v3.2'] as const) {
      t.deepEqual(notes(name), [], name);
    }
  });
});

test('flags for heads go before those of a file\'s sets; a number of layers is of layers that keep all', (t) => {
  withTemporaryFolder(hybridFiles, (folder) => {
    const file = path.join(folder, 'gemma4-31b.json');
    const { model } = readModelConfig(file, { kvHeads: 2, headDim: 64, dtype: 'int8' });
    t.like(model, { layers: 60, kvHeads: 2, headDim: 64, dtype: 'int8' });
    t.deepEqual(model.layerSets!.map(({ kind, layers }) => [kind, layers.length]), [['window', 50], ['full', 10]]);
    t.false('headDim' in model.layerSets![1]!);
    t.deepEqual(readModelConfig(file, { layers: 7 }).model, { layers: 7, kvHeads: 16, headDim: 256, dtype: 'bfloat16' });
  });
});

test('layers are read by list, by period and by the family\'s rule alike', (t) => {
  const shape = { num_attention_heads: 2, num_key_value_heads: 2, head_dim: 4 };
  const read = (config: object): readonly LayerSetShape[] | undefined => {
    let sets: readonly LayerSetShape[] | undefined;
    withTemporaryFolder({ 'c.json': JSON.stringify({ ...shape, ...config }) }, (folder) => {
      sets = readModelConfig(path.join(folder, 'c.json')).model.layerSets;
    });
    return sets;
  };
  const windowOf = (config: object): unknown => read(config)?.map(({ kind, layers }) => `${kind} ${layers.join()}`);
  const sliding = { num_hidden_layers: 6, sliding_window: 8 };
  t.deepEqual(windowOf({ ...sliding, layer_types: ['sliding_attention', 'full_attention', 'local_attention', 'full_attention', 'full_attention', 'full_attention'] }), ['window 0,2', 'full 1,3,4,5']);
  t.deepEqual(windowOf({ ...sliding, sliding_window_pattern: 3 }), ['window 0,1,3,4', 'full 2,5']);
  t.deepEqual(windowOf({ ...sliding, sliding_window_pattern: 'LLG' }), ['window 0,1,3,4', 'full 2,5']);
  t.deepEqual(windowOf({ ...sliding, model_type: 'gpt_oss' }), ['window 0,2,4', 'full 1,3,5']);
  t.deepEqual(windowOf({ ...sliding, model_type: 'gemma4_text', num_hidden_layers: 8 }), ['window 0,1,2,3,4,6', 'full 5,7']);
  t.deepEqual(windowOf({ ...sliding, use_sliding_window: true, max_window_layers: 4 }), ['full 0,1,2,3', 'window 4,5']);
  t.deepEqual(windowOf({ num_hidden_layers: 8, attention_chunk_size: 16 }), ['chunk 0,1,2,4,5,6', 'full 3,7']);
  t.deepEqual(windowOf({ num_hidden_layers: 4, attn_layer_indices: [1], mamba_n_heads: 2, mamba_d_head: 4, mamba_d_state: 8, mamba_d_conv: 4 }), ['state 0,2,3', 'full 1']);
  for (const all of [{ use_sliding_window: false }, { model_type: 'qwen3' }, { sliding_window: null }, { max_position_embeddings: 8 }, { layer_types: Array(6).fill('full_attention') }]) {
    t.is(read({ ...sliding, ...all }), undefined, JSON.stringify(all));
  }
});

test('a file whose layers cannot be told is refused, or noted', (t) => {
  const shape = { num_hidden_layers: 4, num_attention_heads: 2, head_dim: 4 };
  const files = {
    'mamba.json': { ...shape, layer_types: Array(4).fill('mamba') }, 'shared.json': { ...shape, num_kv_shared_layers: 4 },
    'unsized.json': { ...shape, layer_types: ['mamba', 'attention', 'mamba', 'attention'] },
    'unread.json': { ...shape, hybrid_layer_pattern: [0, 1, 1, 1] },
  };
  withTemporaryFolder(Object.fromEntries(Object.entries(files).map(([name, json]) => [name, JSON.stringify(json)])), (folder) => {
    const read = (name: string): ConfigModel => readModelConfig(path.join(folder, `${name}.json`));
    t.throws(() => read('mamba'), { code: 'KV_CONFIG_INVALID', message: /none of its layers/ });
    t.throws(() => read('shared'), { code: 'KV_CONFIG_INVALID', message: /layer 0/ });
    t.deepEqual(read('unsized').notes, ['2 of 4 layers keep a state in place of K and V (mamba), whose size the file does not say; they are left out']);
    t.deepEqual(read('unsized').model, { layers: 2, kvHeads: 2, headDim: 4, dtype: 'float16' });
    t.regex(read('unread').notes.join(), /^`hybrid_layer_pattern` is not read: .*`--layers`/);
  });
});

type Value = number | string | readonly number[];

/** A file of no tensors with these keys. */
function ggufFile(folder: string, architecture: string, values: Readonly<Record<string, Value>>): string {
  const entries = Object.entries(values).map(([name, value]): GgufEntry => {
    const key = `${architecture}.${name}`;
    if (typeof value === 'string') return [key, valueType.string, value];
    return typeof value === 'number' ? [key, valueType.u32, value] : [key, valueType.list, valueType.i32, value];
  });
  const file = path.join(folder, `${architecture}.gguf`);
  writeFileSync(file, ggufHeader([['general.architecture', valueType.string, architecture], ['general.name', valueType.string, 'Named'], ...entries], []));
  return file;
}

const byLayer = (count: number, value: (layer: number) => number): number[] => Array.from({ length: count }, (_, layer) => value(layer));

const ggufs: Readonly<Record<string, { values: Readonly<Record<string, Value>>; sets: readonly string[] }>> = {
  'gemma3': {
    values: { 'block_count': 62, 'attention.head_count': 32, 'attention.head_count_kv': 16, 'attention.key_length': 128, 'attention.value_length': 128, 'attention.sliding_window': 1024 },
    sets: ['full × 10: 80 KiB a token', 'window 1024 × 52: 416 KiB a token'],
  },
  'gemma3n': {
    values: {
      'block_count': 30, 'attention.head_count': 8, 'attention.head_count_kv': 2, 'attention.key_length': 256, 'attention.value_length': 256,
      'attention.sliding_window': 512, 'attention.shared_kv_layers': 10, 'attention.sliding_window_pattern': byLayer(30, (layer) => Number((layer + 1) % 5 !== 0)),
    },
    sets: ['full × 4: 8 KiB a token', 'window 512 × 16: 32 KiB a token', 'shared × 8: of 18', 'shared × 2: of 19'],
  },
  'gemma4': {
    values: {
      'block_count': 60, 'attention.head_count': 32, 'attention.head_count_kv': byLayer(60, (layer) => ((layer + 1) % 6 === 0 ? 4 : 16)),
      'attention.key_length': 512, 'attention.value_length': 512, 'attention.key_length_swa': 256, 'attention.value_length_swa': 256,
      'attention.sliding_window': 1024, 'attention.shared_kv_layers': 0, 'attention.sliding_window_pattern': byLayer(60, (layer) => Number((layer + 1) % 6 !== 0)),
    },
    sets: ['full × 10: 80 KiB a token', 'window 1024 × 50: 800 KiB a token'],
  },
  'gpt-oss': {
    values: { 'block_count': 24, 'attention.head_count': 64, 'attention.head_count_kv': 8, 'attention.key_length': 64, 'attention.value_length': 64, 'attention.sliding_window': 128 },
    sets: ['full × 12: 24 KiB a token', 'window 128 × 12: 24 KiB a token'],
  },
  'llama4': {
    values: { 'block_count': 48, 'attention.head_count': 40, 'attention.head_count_kv': 8, 'embedding_length': 5120 },
    sets: ['full × 12: 48 KiB a token', 'chunk 8192 × 36: 144 KiB a token'],
  },
  'qwen35': {
    values: {
      'block_count': 65, 'nextn_predict_layers': 1, 'attention.head_count': 24, 'attention.head_count_kv': 4, 'attention.key_length': 256, 'attention.value_length': 256,
      'ssm.conv_kernel': 4, 'ssm.state_size': 128, 'ssm.group_count': 16, 'ssm.time_step_rank': 48, 'ssm.inner_size': 6144, 'full_attention_interval': 4,
    },
    sets: ['full × 16: 64 KiB a token', 'state × 48: 146.81 MiB'],
  },
  'nemotron_h_moe': {
    values: {
      'block_count': 5, 'attention.head_count': [0, 0, 32, 0, 0], 'attention.head_count_kv': [0, 0, 2, 0, 0], 'attention.key_length': 128, 'attention.value_length': 128,
      'feed_forward_length': [0, 1856, 0, 1856, 0], 'ssm.conv_kernel': 4, 'ssm.inner_size': 4096, 'ssm.state_size': 128, 'ssm.time_step_rank': 64, 'ssm.group_count': 8,
    },
    sets: ['full × 1: 1 KiB a token', 'state × 2: 4.07 MiB'],
  },
  'lfm2': {
    values: { 'block_count': 3, 'embedding_length': 2048, 'attention.head_count': 32, 'attention.head_count_kv': [0, 0, 8], 'feed_forward_length': 8192, 'shortconv.l_cache': 3 },
    sets: ['full × 1: 2 KiB a token', 'state × 2: 0.02 MiB'],
  },
  'kimi-linear': {
    values: {
      'block_count': 4, 'attention.head_count': 32, 'attention.head_count_kv': [0, 0, 0, 1], 'attention.key_length': 576, 'attention.value_length': 512,
      'attention.kv_lora_rank': 512, 'rope.dimension_count': 64, 'kda.head_dim': 128, 'ssm.conv_kernel': 4,
    },
    sets: ['full × 1: 1.125 KiB a token', 'state × 3: 6.21 MiB'],
  },
  'deepseek4': {
    values: {
      'block_count': 3, 'attention.head_count': 64, 'attention.head_count_kv': 1, 'attention.key_length': 512, 'attention.value_length': 512,
      'attention.sliding_window': 128, 'attention.indexer.key_length': 128, 'attention.compress_ratios': [0, 4, 128],
    },
    sets: ['window 128 × 3: 3 KiB a token'],
  },
};

for (const [architecture, { values, sets }] of Object.entries(ggufs)) {
  test(`the layer sets of a GGUF file of ${architecture}`, (t) => {
    withTemporaryFolder({}, (folder) => {
      const config = readModelConfig(ggufFile(folder, architecture, { context_length: 131_072, ...values }));
      t.deepEqual(summaryOf(config), sets);
      t.is(config.name, 'Named');
      t.is(config.maxTokens, 131_072);
    });
  });
}
