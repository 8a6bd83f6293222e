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

test('heads that cannot be divided are refused with the numbers that can', (t) => {
  t.throws(() => tensorsOf({ ...llama, parallel: { tensor: 3 } }), {
    instanceOf: RangeError, code: 'KV_INVALID_SHAPE',
    message: '`kvHeads` is 8 and cannot be divided over 3 tensor-parallel workers. Use 1, 2, 4 or 8.',
  });
  t.throws(() => tensorsOf({ ...llama, parallel: { tensor: 12 } }), { code: 'KV_INVALID_SHAPE' });
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

test('more pipeline workers than layers, or a rank that does not exist, is refused', (t) => {
  t.throws(() => tensorsOf({ ...llama, parallel: { pipeline: 3 } }), { code: 'KV_INVALID_SHAPE' });
  t.throws(() => tensorsOf({ ...llama, parallel: { pipeline: 2, pipelineRank: 2 } }), { code: 'KV_INVALID_OPTION' });
});

test('a model that is incomplete or misspelt is refused', (t) => {
  const wrong = (model: unknown): unknown => tensorsOf(model as ModelShape);
  const invalid = (model: unknown, message: RegExp): void => {
    t.throws(() => wrong(model), { code: 'KV_INVALID_OPTION', message });
  };
  invalid({ layers: 2, headDim: 128, dtype: 'float16' }, /^`kvHeads` must be .*; it is missing/);
  invalid({ layers: 2, kvHeads: 1, dtype: 'float16' }, /^`headDim` must be .*; it is missing/);
  invalid({ ...llama, attention: 'latent' }, /^`latentDim` must be .*; it is missing/);
  invalid({ ...llama, dtype: 'float-16' }, /Did you mean 'float16'/);
  invalid({ ...llama, layers: 0 }, /^`layers` must be/);
  t.throws(() => wrong({ ...llama, kvHead: 8 }), { code: 'KV_UNKNOWN_OPTION', message: /Did you mean `kvHeads`/ });
  t.throws(() => wrong({ ...llama, layerShapes: [{}] }), {
    code: 'KV_INVALID_SHAPE', message: /^`layers` is 2 and `layerShapes` has 1 entry/,
  });
});

test('numbers that no model has are refused before they fill the memory', (t) => {
  for (const wrong of [{ layers: 2 ** 31 }, { kvHeads: 2 ** 31 }, { headDim: 2 ** 40 }, { parallel: { tensor: 2 ** 53 } }]) {
    t.throws(() => tensorsOf({ ...llama, ...wrong }), { code: 'KV_INVALID_OPTION' });
  }
  t.is(tensorsOf({ ...llama, layers: 2 ** 16 }).length, 2 ** 17);
});
