import test from 'ava';

import { dtypeBytes, dtypes } from '#internal/base/dtypes.js';
import { tensorsOf, type ModelShape } from '#internal/layout/model-shape.js';

const llama: ModelShape = { layers: 2, kvHeads: 8, headDim: 128, dtype: 'float16' };
const shapes = (model: ModelShape): string[] =>
  tensorsOf(model).map(({ name, heads, dim, tokenBytes }) => `${name} ${heads}x${dim} ${tokenBytes}`);

test('a dtype has 1, 2 or 4 bytes', (t) => {
  t.deepEqual(dtypes.map(dtypeBytes), [4, 2, 2, 1, 1]);
  t.is(tensorsOf({ ...llama, dtype: 'float8' })[0]!.tokenBytes, 1024);
  t.is(tensorsOf({ ...llama, dtype: 'float32' })[0]!.tokenBytes, 4096);
});

test('tensors come layer by layer, K before V', (t) => {
  t.deepEqual(shapes(llama), [
    'layer.0.key 8x128 2048', 'layer.0.value 8x128 2048', 'layer.1.key 8x128 2048', 'layer.1.value 8x128 2048',
  ]);
});

test('V may have its own dimension', (t) => {
  t.deepEqual(shapes({ ...llama, layers: 1, valueHeadDim: 64 }), ['layer.0.key 8x128 2048', 'layer.0.value 8x64 1024']);
});

test('MLA keeps one latent tensor per layer, whole on every tensor-parallel worker', (t) => {
  const deepseek: ModelShape = {
    layers: 61, attention: 'latent', latentDim: 576, dtype: 'bfloat16', parallel: { tensor: 8 },
  };
  t.is(tensorsOf(deepseek).length, 61);
  t.is(shapes(deepseek)[60], 'layer.60.latent 1x576 1152');
});

test('layers may differ', (t) => {
  t.deepEqual(shapes({ ...llama, layerShapes: [{}, { kvHeads: 2, headDim: 256, valueHeadDim: 32 }] }), [
    'layer.0.key 8x128 2048', 'layer.0.value 8x128 2048', 'layer.1.key 2x256 1024', 'layer.1.value 2x32 128',
  ]);
  t.deepEqual(
    shapes({ layers: 1, dtype: 'int8', layerShapes: [{ kvHeads: 1, headDim: 3 }] }),
    ['layer.0.key 1x3 3', 'layer.0.value 1x3 3'],
    'what every layer states need not be stated for the model',
  );
});

test('tensor parallelism divides heads', (t) => {
  const heads = (kvHeads: number, tensor: number): number =>
    tensorsOf({ ...llama, kvHeads, parallel: { tensor } })[0]!.heads;
  t.is(heads(8, 2), 4);
  t.is(heads(8, 8), 1);
  t.is(heads(1, 8), 1, 'MQA: the one head is replicated');
  t.is(heads(2, 8), 1, 'two heads on eight workers: each head on four');
});

test('pipeline parallelism divides layers; the first workers have one more; numbers stay those of the whole model', (t) => {
  const layers = (pipelineRank: number): number[] =>
    tensorsOf({ ...llama, layers: 7, parallel: { pipeline: 3, pipelineRank } })
      .filter(({ role }) => role === 'key').map(({ layer }) => layer);
  t.deepEqual([0, 1, 2].map(layers), [[0, 1, 2], [3, 4], [5, 6]]);
});

test('a pipeline worker takes its own part of differing layers', (t) => {
  const model: ModelShape = {
    ...llama, layerShapes: [{ kvHeads: 1 }, { kvHeads: 2 }], parallel: { pipeline: 2, pipelineRank: 1 },
  };
  t.deepEqual(shapes(model), ['layer.1.key 2x128 512', 'layer.1.value 2x128 512']);
});

test('a model may have very many layers', (t) => {
  t.is(tensorsOf({ ...llama, layers: 2 ** 16 }).length, 2 ** 17);
});
