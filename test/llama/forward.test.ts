// The engine's forward pass against the plain model: every kind of config it reads, every way weights are stored.

import test from 'ava';

import { KvCache, type RowDtype } from 'virtual-kv';

import { Random } from '../../dist/random.js';
import { LlamaEngine } from '../../build-examples/llama/engine.js';
import { LlamaModel } from '../../build-examples/llama/model.js';
import { LlamaWorld } from '../helpers/llama-world.js';
import { randomLlama, removeFolder, writeLlama, type Json, type LlamaSizes } from '../helpers/made-llama.js';
import { PlainLlama } from '../helpers/plain-llama.js';
import { seedOf } from '../helpers/seed.js';

const sizes: LlamaSizes = {
  layers: 2, hidden: 40, intermediate: 72, queryHeads: 4, kvHeads: 2, headDim: 16, vocabularyTokens: 61,
};
const llama3 = {
  rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 32,
};

const families: Readonly<Record<string, { readonly more: Json; readonly sizes?: Partial<LlamaSizes> }>> = {
  'Llama': { more: {} },
  'Llama with one KV head': { more: {}, sizes: { kvHeads: 1 } },
  'Llama without grouped heads': { more: {}, sizes: { kvHeads: 4, headDim: 10 } },
  'Llama with a tied head': { more: { tie_word_embeddings: true } },
  'Llama 3.1 with scaled positions': { more: { rope_theta: 500_000, rope_scaling: llama3 } },
  'Llama with linearly scaled positions': { more: { rope_scaling: { rope_type: 'linear', factor: 4 } } },
  'Llama with biases everywhere': { more: { attention_bias: true, mlp_bias: true } },
  'Qwen2': { more: { model_type: 'qwen2', tie_word_embeddings: true, sliding_window: 4096, use_sliding_window: false } },
};

for (const [name, { more, sizes: others }] of Object.entries(families)) {
  const seed = seedOf(name);
  test(`${name}: the logits of every prefix are those of the plain model (seed ${seed})`, (t) => {
    const random = new Random(seed);
    const world = new LlamaWorld(t, randomLlama(random, { ...sizes, ...others }, more));
    const member = world.acquire(Array.from({ length: 50 }, () => random.integer(sizes.vocabularyTokens)));
    world.step([[member, 33]], 'prefill');
    while (world.remaining(member) > 0) world.step([[member, 1]], 'decode');
    world.close();
  });
}

/** Logits of a text by an engine over weights of a type, in a number of files, and K and V of a type. */
function logitsOf(seed: number, weights: RowDtype, files: number, keys: RowDtype): { actual: Float32Array; expected: Float64Array } {
  const made = randomLlama(new Random(seed), sizes, {}, weights);
  const folder = writeLlama(made, weights, files);
  const text = Array.from({ length: 40 }, (_, index) => (index * 7) % sizes.vocabularyTokens);
  const model = new LlamaModel(folder);
  using cache = new KvCache({ model: model.shape(keys), slots: 1, maxTokens: 64, memoryBudgetBytes: 2 ** 26, driver: 'host' });
  using engine = new LlamaEngine({ model, cache });
  const batch = cache.createBatch();
  batch.add(cache.acquire({ tokens: text }), text.length);
  cache.prepare(batch);
  const { logits } = engine.prefill({
    length: 1, slots: Int32Array.of(batch.slotAt(0)), positions: Int32Array.of(0), tokenCounts: Int32Array.of(text.length),
    tokens: Int32Array.from(text), wantsLogits: Uint8Array.of(1),
  });
  cache.commit(batch);
  removeFolder(folder);
  return { actual: logits.slice(0, sizes.vocabularyTokens), expected: new PlainLlama(made).logits(text).at(-1)! };
}

const kinds: readonly (readonly [RowDtype, number, RowDtype, number])[] = [
  ['float32', 3, 'float32', 1e-5], ['float16', 1, 'float32', 1e-5], ['bfloat16', 2, 'float32', 1e-5],
  ['float16', 1, 'float16', 5e-3], ['bfloat16', 1, 'bfloat16', 4e-2],
];
for (const [weights, files, keys, tolerance] of kinds) {
  const seed = seedOf(`${weights} ${files} ${keys}`);
  test(`weights of ${weights} in ${files} files with a cache of ${keys} (seed ${seed})`, (t) => {
    const { actual, expected } = logitsOf(seed, weights, files, keys);
    const largest = Math.max(...expected.map(Math.abs));
    expected.forEach((logit, token) => {
      if (!(Math.abs(logit - actual[token]!) <= tolerance * largest)) t.fail(`token ${token}: ${actual[token]} is not ${logit}`);
    });
    t.pass();
  });
}
