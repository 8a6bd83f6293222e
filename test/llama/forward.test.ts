// The engine's forward pass against the plain model: every kind of config it reads, every way weights are stored.

import test, { type ExecutionContext } from 'ava';

import { KvCache, type DenseKernelsOptions, type KvCacheOptions, type RowDtype } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { fakeCublas } from '../helpers/fake-cublas.js';
import { layerKinds } from '../helpers/layer-kinds.js';
import { pageBytes } from '../helpers/llama-shapes.js';
import { LlamaWorld } from '../helpers/llama-world.js';
import { randomLlama, removeFolder, writeLlama, type Json, type LlamaSizes } from '../helpers/made-llama.js';
import { hasCompiler } from '../helpers/native-probe.js';
import { PlainLlama } from '../helpers/plain-llama.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';

const sizes: LlamaSizes = {
  layers: 2, hidden: 40, intermediate: 72, queryHeads: 4, kvHeads: 2, headDim: 16, vocabularyTokens: 61,
};
const llama3 = {
  rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 32,
};

const families: Readonly<Record<string, { readonly more: Json; readonly sizes?: Partial<LlamaSizes> }>> = {
  ...layerKinds,
  'Llama': { more: {} },
  'Llama with one KV head': { more: {}, sizes: { kvHeads: 1 } },
  'Llama without grouped heads': { more: {}, sizes: { kvHeads: 4, headDim: 10 } },
  'Llama with a tied head': { more: { tie_word_embeddings: true } },
  'Llama 3.1 with scaled positions': { more: { rope_theta: 500_000, rope_scaling: llama3 } },
  'Llama with linearly scaled positions': { more: { rope_scaling: { rope_type: 'linear', factor: 4 } } },
  'Llama with biases everywhere': { more: { attention_bias: true, mlp_bias: true } },
  'Qwen2': { more: { model_type: 'qwen2', tie_word_embeddings: true, sliding_window: 4096, use_sliding_window: false } },
  'Qwen2 with its window behind its last layer': {
    more: { model_type: 'qwen2', sliding_window: 8, use_sliding_window: true, max_window_layers: 2 },
  },
  'Qwen3': { more: { model_type: 'qwen3', tie_word_embeddings: true, layer_types: ['full_attention', 'full_attention'] } },
  'Qwen3 with biases, as newer files say it': {
    more: { model_type: 'qwen3', attention_bias: true, rope_theta: undefined, rope_parameters: { rope_type: 'default', rope_theta: 1e6 } },
  },
  'Qwen3 with a window in some layers': {
    more: { model_type: 'qwen3', sliding_window: 9, layer_types: ['full_attention', 'sliding_attention'] },
  },
  'Gemma 3 as newer files say it': {
    more: {
      ...layerKinds['Gemma 3'].more, tie_word_embeddings: true, rope_theta: undefined, rope_scaling: undefined,
      layer_types: [...new Array<string>(5).fill('sliding_attention'), 'full_attention'],
      rope_parameters: {
        full_attention: { rope_type: 'default', rope_theta: 50_000 }, sliding_attention: { rope_type: 'default', rope_theta: 10_000 },
      },
    },
    sizes: layerKinds['Gemma 3'].sizes,
  },
  'Mistral without a window': { more: { model_type: 'mistral', sliding_window: null, attention_bias: null } },
  'Llama 3.1 as newer files say it': { more: { rope_theta: undefined, rope_parameters: { rope_theta: 500_000, ...llama3 } } },
};

for (const [name, { more, sizes: others }] of Object.entries(families)) {
  const seed = seedOf(name);
  test(`${name}: the logits of every prefix are those of the plain model (seed ${seed})`, async (t) => {
    const random = new Random(seed);
    const world = new LlamaWorld(t, randomLlama(random, { ...sizes, ...others }, more));
    const member = world.acquire(Array.from({ length: 50 }, () => random.integer(sizes.vocabularyTokens)));
    await world.step([[member, 33]], 'prefill');
    while (world.remaining(member) > 0) await world.step([[member, 1]], 'decode');
    world.close();
  });
}

for (const [name, cublas] of [['our own kernels', undefined], ['cuBLAS', fakeCublas]] as const) {
  const seed = seedOf(`device ${name}`);
  (cublas === undefined || hasCompiler ? slow('runs models on the simulated device') : test.skip)(`so are those on a device, by ${name} (seed ${seed})`, async (t) => {
    const random = new Random(seed);
    for (const { more, sizes: others } of Object.values(families)) {
      const device = new MockDevice({ granularityBytes: pageBytes, memoryBytes: 2 ** 28, hasGarbage: true });
      const made = randomLlama(random, { ...sizes, ...others }, more);
      const world = new LlamaWorld(t, made, { driver: device.driver }, { cublas: cublas?.() ?? 'off' });
      const member = world.acquire(Array.from({ length: 20 }, () => random.integer(sizes.vocabularyTokens)));
      await world.step([[member, 17]], 'prefill');
      while (world.remaining(member) > 0) await world.step([[member, 1]], 'decode');
      world.close();
      device.assertNoLeaks();
      device.close();
    }
  });
}

/** Logits of a text by an engine over weights of a type, in a number of files, and K and V of a type. */
async function logitsOf(
  seed: number, weights: RowDtype, files: number, keys: RowDtype, driver: KvCacheOptions['driver'] = 'host',
  dense: DenseKernelsOptions = {},
): Promise<{ actual: Float32Array; expected: Float64Array }> {
  const made = randomLlama(new Random(seed), sizes, {}, weights);
  const folder = writeLlama(made, weights, files);
  const text = Array.from({ length: 40 }, (_, index) => (index * 7) % sizes.vocabularyTokens);
  const model = new LlamaModel(folder, dense);
  using cache = new KvCache({ model: model.shape(keys), slots: 1, maxTokens: 64, memoryBudgetBytes: 2 ** 26, driver });
  using engine = new LlamaEngine({ model, cache });
  const batch = cache.createBatch();
  batch.add(cache.acquire({ tokens: text }), text.length);
  cache.prepare(batch);
  const { logits } = await engine.prefill({
    length: 1, slots: Int32Array.of(batch.slotAt(0)), positions: Int32Array.of(0), tokenCounts: Int32Array.of(text.length),
    tokens: Int32Array.from(text), wantsLogits: Uint8Array.of(1),
  });
  cache.commit(batch);
  removeFolder(folder);
  return { actual: logits.slice(0, sizes.vocabularyTokens), expected: new PlainLlama(made).logits(text).at(-1)! };
}

/** `tolerance`: of the largest logit. */
function compare(t: ExecutionContext, actual: Float32Array, expected: Float64Array, tolerance: number): void {
  const largest = Math.max(...expected.map(Math.abs));
  const wrong = expected.findIndex((logit, token) => !(Math.abs(logit - actual[token]!) <= tolerance * largest));
  t.is(wrong, -1, `token ${wrong}: ${actual[wrong]} is not ${expected[wrong]}`);
}

const kinds: readonly (readonly [RowDtype, number, RowDtype, number])[] = [
  ['float32', 3, 'float32', 1e-5], ['float16', 1, 'float32', 1e-5], ['bfloat16', 2, 'float32', 1e-5],
  ['float16', 1, 'float16', 5e-3], ['bfloat16', 1, 'bfloat16', 4e-2],
];
for (const [weights, files, keys, tolerance] of kinds) {
  const seed = seedOf(`${weights} ${files} ${keys}`);
  test(`weights of ${weights} in ${files} files with a cache of ${keys} (seed ${seed})`, async (t) => {
    const { actual, expected } = await logitsOf(seed, weights, files, keys);
    compare(t, actual, expected, tolerance);
  });
}

// cuBLAS multiplies activations in the weights' type: what that rounds away is of the size of what such a model rounds everywhere.
const narrow: readonly (readonly [RowDtype, typeof fakeCublas | undefined, number])[] = [
  ['float16', undefined, 1e-5], ['bfloat16', undefined, 1e-5], ['float32', fakeCublas, 1e-5], ['float16', fakeCublas, 5e-3],
  ['bfloat16', fakeCublas, 4e-2],
];
for (const [weights, cublas, tolerance] of narrow) {
  const seed = seedOf(`${weights} on a device`);
  const by = cublas === undefined ? 'our own kernels' : 'cuBLAS';
  (cublas === undefined || hasCompiler ? slow('runs models on the simulated device') : test.skip)(`weights of ${weights} on a device, by ${by} (seed ${seed})`, async (t) => {
    const device = new MockDevice({ memoryBytes: 2 ** 28, hasGarbage: true });
    const { actual, expected } = await logitsOf(seed, weights, 1, 'float32', device.driver, { cublas: cublas?.() ?? 'off' });
    compare(t, actual, expected, tolerance);
    device.assertNoLeaks();
    device.close();
  });
}
