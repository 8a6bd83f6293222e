import * as path from 'node:path';

import test from 'ava';

import { readModelConfig, type ConfigModel } from '#internal/cli/model-config.js';
import type { LayerSetShape, ModelShape } from 'virtual-kv';
import { refuses } from '../helpers/refuses.js';
import { withTemporaryFolder } from '../helpers/temporary-folder.js';

const configs = path.resolve(__dirname, '..', '..', 'test', 'fixtures', 'configs');
const read = (family: string): ConfigModel => readModelConfig(path.join(configs, `${family}.json`));

/** One layer of each `period` sees all. */
function alternating(count: number, period: number, windowTokens: number): LayerSetShape[] {
  const layers = Array.from({ length: count }, (_, layer) => layer);
  return [
    { kind: 'window', layers: layers.filter((layer) => (layer + 1) % period !== 0), windowTokens },
    { kind: 'full', layers: layers.filter((layer) => (layer + 1) % period === 0) },
  ];
}

const families: Readonly<Record<string, { model: ModelShape; maxTokens?: number }>> = {
  'llama': { model: { layers: 32, kvHeads: 8, headDim: 128, dtype: 'bfloat16' }, maxTokens: 8192 },
  'qwen2': { model: { layers: 28, kvHeads: 4, headDim: 128, dtype: 'bfloat16' }, maxTokens: 131_072 },
  'qwen3': { model: { layers: 28, kvHeads: 8, headDim: 128, dtype: 'bfloat16' }, maxTokens: 40_960 },
  'qwen3-next': {
    model: {
      layers: 8, kvHeads: 2, headDim: 256, dtype: 'bfloat16',
      layerSets: [
        {
          kind: 'state', layers: [0, 1, 2, 4, 5, 6],
          tensors: [{ name: 'conv', shape: [3, 8192], dtype: 'bfloat16' }, { name: 'recurrent', shape: [32, 128, 128], dtype: 'float32' }],
        },
        { kind: 'full', layers: [3, 7] },
      ],
    },
    maxTokens: 262_144,
  },
  'mistral': { model: { layers: 32, kvHeads: 8, headDim: 128, dtype: 'bfloat16' }, maxTokens: 32_768 },
  'mixtral': { model: { layers: 32, kvHeads: 8, headDim: 128, dtype: 'bfloat16' }, maxTokens: 32_768 },
  'gemma2': { model: { layers: 42, kvHeads: 8, headDim: 256, dtype: 'float32', layerSets: alternating(42, 2, 4096) }, maxTokens: 8192 },
  'gemma3': { model: { layers: 34, kvHeads: 4, headDim: 256, dtype: 'bfloat16', layerSets: alternating(34, 6, 1024) }, maxTokens: 131_072 },
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
    t.is(readModelConfig(path.join(folder, 'Tiny-1B')).name, 'Tiny-1B');
    t.is(readModelConfig(path.join(folder, 'Tiny-1B', 'config.json')).model.headDim, 4);
  });
});

test('overrides win over the file, and fill in what it lacks', (t) => {
  const file = path.join(configs, 'llama.json');
  t.deepEqual(readModelConfig(file, { dtype: 'float8', layers: 4 }).model, {
    layers: 4, kvHeads: 8, headDim: 128, dtype: 'float8',
  });
  const mla = path.join(configs, 'deepseek-v3.json');
  t.deepEqual(readModelConfig(mla, { kvHeads: 128, headDim: 192 }).model, {
    layers: 61, kvHeads: 128, headDim: 192, dtype: 'bfloat16',
  }, 'heads ask for the uncompressed cache of an MLA model');
  withTemporaryFolder({ 'c.json': '{"num_hidden_layers":3}' }, (folder) => {
    const bare = path.join(folder, 'c.json');
    t.throws(() => readModelConfig(bare), { code: 'KV_CONFIG_INVALID', message: /`--kv-heads`/ });
    t.throws(() => readModelConfig(bare, { kvHeads: 2 }), { code: 'KV_CONFIG_INVALID', message: /`--head-dim`/ });
    t.is(readModelConfig(bare, { kvHeads: 2, headDim: 5 }).model.headDim, 5);
  });
});

test('layers that share the K and V of others name the last one before them', (t) => {
  const json = { num_hidden_layers: 35, num_kv_shared_layers: 15, num_attention_heads: 8, head_dim: 256 };
  withTemporaryFolder({ 'c.json': JSON.stringify(json) }, (folder) => {
    const { layers, layerSets } = readModelConfig(path.join(folder, 'c.json')).model;
    t.is(layers, 35);
    t.deepEqual(layerSets!.map((set) => [set.kind, set.layers.length, 'of' in set ? set.of : undefined]), [['full', 20, undefined], ['shared', 15, 19]]);
  });
});

test('a file of which all is planned has no notes', (t) => {
  for (const family of Object.keys(families)) t.deepEqual(read(family).notes, [], family);
});

test('more layers than a model can have are refused before there is a list of them', (t) => {
  withTemporaryFolder({ 'config.json': JSON.stringify({ num_hidden_layers: 2 ** 50, num_attention_heads: 8, hidden_size: 1024 }) }, (folder) => {
    const file = path.join(folder, 'config.json');
    refuses(t, () => readModelConfig(file), 'KV_CONFIG_INVALID', { problem: 'it has 1,125,899,906,842,624 layers, more than 65,536' });
    refuses(t, () => readModelConfig(file, { layers: 2 ** 50 }), 'KV_INVALID_OPTION', { option: '--layers', received: 2 ** 50 });
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
      t.throws(() => readModelConfig(path.join(folder, file)), { code: 'KV_CONFIG_INVALID', message });
    };
    wrong('absent.json', /absent\.json: .* there/);
    wrong('.', /config\.json: .* there/);
    wrong('broken.json', /broken\.json: .*at position 24/);
    wrong('list.json', /object/);
    wrong('t5.json', /encoder-decoder/);
    wrong('types.json', /types of 2 .*24/);
    wrong('short.json', /heads for 2 .*3/);
    wrong('empty.json', /number of layers/);
  });
});
