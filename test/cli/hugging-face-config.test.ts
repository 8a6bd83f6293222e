import * as path from 'node:path';

import test from 'ava';

import { readHuggingFaceConfig, type ConfigModel } from '#internal/cli/hugging-face-config.js';
import type { ModelShape } from 'virtual-kv';
import { withTemporaryFolder } from '../helpers/temporary-folder.js';

const configs = path.resolve(__dirname, '..', '..', 'test', 'fixtures', 'configs');
const read = (family: string): ConfigModel => readHuggingFaceConfig(path.join(configs, `${family}.json`));

const families: Readonly<Record<string, { model: ModelShape; maxTokens?: number }>> = {
  'llama': { model: { layers: 32, kvHeads: 8, headDim: 128, dtype: 'bfloat16' }, maxTokens: 8192 },
  'qwen2': { model: { layers: 28, kvHeads: 4, headDim: 128, dtype: 'bfloat16' }, maxTokens: 131_072 },
  'qwen3': { model: { layers: 28, kvHeads: 8, headDim: 128, dtype: 'bfloat16' }, maxTokens: 40_960 },
  'qwen3-next': { model: { layers: 2, kvHeads: 2, headDim: 256, dtype: 'bfloat16' }, maxTokens: 262_144 },
  'mistral': { model: { layers: 32, kvHeads: 8, headDim: 128, dtype: 'bfloat16' }, maxTokens: 32_768 },
  'mixtral': { model: { layers: 32, kvHeads: 8, headDim: 128, dtype: 'bfloat16' }, maxTokens: 32_768 },
  'gemma2': { model: { layers: 42, kvHeads: 8, headDim: 256, dtype: 'float32' }, maxTokens: 8192 },
  'gemma3': { model: { layers: 34, kvHeads: 4, headDim: 256, dtype: 'bfloat16' }, maxTokens: 131_072 },
  'phi3': { model: { layers: 32, kvHeads: 32, headDim: 96, dtype: 'bfloat16' }, maxTokens: 4096 },
  'deepseek-v2-lite': { model: { layers: 27, attention: 'latent', latentDim: 576, dtype: 'bfloat16' }, maxTokens: 163_840 },
  'deepseek-v3': { model: { layers: 61, attention: 'latent', latentDim: 576, dtype: 'bfloat16' }, maxTokens: 163_840 },
  'falcon-7b': { model: { layers: 32, kvHeads: 1, headDim: 64, dtype: 'bfloat16' } },
  'falcon-40b': { model: { layers: 60, kvHeads: 8, headDim: 64, dtype: 'bfloat16' } },
  'gpt2': { model: { layers: 12, kvHeads: 12, headDim: 64, dtype: 'float16' }, maxTokens: 1024 },
  'starcoder': { model: { layers: 40, kvHeads: 1, headDim: 128, dtype: 'float32' }, maxTokens: 8192 },
  'mpt': { model: { layers: 48, kvHeads: 8, headDim: 112, dtype: 'bfloat16' }, maxTokens: 8192 },
  'openelm': {
    model: { layers: 4, headDim: 64, layerShapes: [3, 3, 4, 5].map((kvHeads) => ({ kvHeads })), dtype: 'bfloat16' },
    maxTokens: 2048,
  },
  'llava': { model: { layers: 32, kvHeads: 32, headDim: 128, dtype: 'float16' }, maxTokens: 4096 },
};

for (const [family, { model, maxTokens }] of Object.entries(families)) {
  test(`the shape of ${family}`, (t) => {
    const config = read(family);
    t.deepEqual(config.model, model);
    t.is(config.maxTokens, maxTokens);
  });
}

test('a model is named by itself, its file or its folder', (t) => {
  t.is(read('llava').name, 'example/llava');
  t.is(read('llama').name, 'llama');
  withTemporaryFolder({ 'Tiny-1B/config.json': '{"num_hidden_layers":1,"num_attention_heads":2,"hidden_size":8}' }, (folder) => {
    t.is(readHuggingFaceConfig(path.join(folder, 'Tiny-1B')).name, 'Tiny-1B');
    t.is(readHuggingFaceConfig(path.join(folder, 'Tiny-1B', 'config.json')).model.headDim, 4);
  });
});

test('overrides win over the file, and fill in what it lacks', (t) => {
  const file = path.join(configs, 'llama.json');
  t.deepEqual(readHuggingFaceConfig(file, { dtype: 'float8', layers: 4 }).model, {
    layers: 4, kvHeads: 8, headDim: 128, dtype: 'float8',
  });
  const mla = path.join(configs, 'deepseek-v3.json');
  t.deepEqual(readHuggingFaceConfig(mla, { kvHeads: 128, headDim: 192 }).model, {
    layers: 61, kvHeads: 128, headDim: 192, dtype: 'bfloat16',
  }, 'heads ask for the uncompressed cache of an MLA model');
  withTemporaryFolder({ 'c.json': '{"num_hidden_layers":3}' }, (folder) => {
    const bare = path.join(folder, 'c.json');
    t.throws(() => readHuggingFaceConfig(bare), { code: 'KV_CONFIG_INVALID', message: /number of KV heads.*`--kv-heads`/ });
    t.throws(() => readHuggingFaceConfig(bare, { kvHeads: 2 }), { code: 'KV_CONFIG_INVALID', message: /`--head-dim`/ });
    t.is(readHuggingFaceConfig(bare, { kvHeads: 2, headDim: 5 }).model.headDim, 5);
  });
});

test('layers that share the K and V of others keep none', (t) => {
  const json = { num_hidden_layers: 35, num_kv_shared_layers: 15, num_attention_heads: 8, head_dim: 256 };
  withTemporaryFolder({ 'c.json': JSON.stringify(json) }, (folder) => {
    t.is(readHuggingFaceConfig(path.join(folder, 'c.json')).model.layers, 20);
  });
});

test('a plan notes what it overestimates or leaves out', (t) => {
  t.deepEqual(read('gemma3').notes, ['layers that see a window of 1,024 tokens only are planned as if they kept every token']);
  t.deepEqual(read('qwen3-next').notes, ['6 of 8 layers keep no K and V (linear_attention); they and their state are left out']);
  for (const family of ['llama', 'mistral', 'qwen2', 'deepseek-v3', 'gpt2']) t.deepEqual(read(family).notes, [], family);
  const shape = { num_hidden_layers: 4, num_attention_heads: 2, head_dim: 4 };
  const full = 'full_attention';
  const configs = {
    mixed: { ...shape, sliding_window: 512, layer_types: ['sliding_attention', full, 'chunked_attention', full] },
    pattern: { ...shape, full_attention_interval: 4 }, unused: { ...shape, sliding_window: 512, use_sliding_window: false },
    wide: { ...shape, sliding_window: 4096, max_position_embeddings: 4096 },
  };
  const files = Object.fromEntries(Object.entries(configs).map(([name, json]) => [`${name}.json`, JSON.stringify(json)]));
  withTemporaryFolder(files, (folder) => {
    const notes = (name: string, overrides = {}): readonly string[] => readHuggingFaceConfig(path.join(folder, `${name}.json`), overrides).notes;
    t.deepEqual(notes('mixed'), ['2 of 4 layers see a window of 512 tokens only, planned as if they kept every token']);
    t.regex(notes('pattern').join(), /^`full_attention_interval` is not read: .*`--layers`/);
    t.deepEqual([...notes('pattern', { layers: 1 }), ...notes('unused'), ...notes('wide')], []);
  });
});

test('a missing, broken or different file is refused with the reason', (t) => {
  const files = {
    'broken.json': '{"num_hidden_layers": 3,', 'list.json': '[]', 't5.json': '{"is_encoder_decoder": true, "num_layers": 6}',
    'types.json': '{"num_hidden_layers":24,"layer_types":["full_attention","full_attention"],"num_attention_heads":2,"head_dim":4}',
    'short.json': '{"num_hidden_layers":3,"num_kv_heads":[1,2],"head_dim":4}', 'empty.json': '{}',
  };
  withTemporaryFolder(files, (folder) => {
    const wrong = (file: string, message: RegExp): void => {
      t.throws(() => readHuggingFaceConfig(path.join(folder, file)), { code: 'KV_CONFIG_INVALID', message });
    };
    wrong('absent.json', /absent\.json: it is not there/);
    wrong('.', /config\.json: it is not there/);
    wrong('broken.json', /it is not JSON/);
    wrong('list.json', /it is not a JSON object/);
    wrong('t5.json', /encoder-decoder/);
    wrong('types.json', /types of 2 layers but has 24.*`--layers`/);
    wrong('short.json', /KV heads for 2 layers but has 3/);
    wrong('empty.json', /number of layers/);
  });
});
