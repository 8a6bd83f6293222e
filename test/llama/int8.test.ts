// A model with int8 weights: against a plain Llama of the same integers, the same bits in any company, and how far its answers are from
// those of the weights in the file; and what cannot be loaded so.

import * as path from 'node:path';

import test from 'ava';

import { KvCache, type RowDtype, type Sequence, type Weight } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { LlamaTokenizer } from '#internal/llama/tokenizer.js';
import { Random } from '#internal/base/random.js';
import { Scene } from '../helpers/llama-scene.js';
import { pageBytes, randomText, vocabularyTokens } from '../helpers/llama-shapes.js';
import { difference, mostLikely } from '../helpers/logits.js';
import { randomLlama, removeFolder, writeLlama, type LlamaSizes, type MadeLlama, type MadeTensor } from '../helpers/made-llama.js';
import { PlainLlama } from '../helpers/plain-llama.js';
import { refuses } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';
import { scale } from '../runner/tier.js';

const seed = seedOf('int8 model');
const storyteller = path.resolve(__dirname, '..', '..', 'examples', 'llama', 'storyteller');
const sizes: LlamaSizes = { layers: 2, hidden: 64, intermediate: 96, queryHeads: 2, kvHeads: 1, headDim: 32, vocabularyTokens };

/** The model with the weights that its int8 matrices stand for. */
function restored(made: MadeLlama, model: LlamaModel): MadeLlama {
  const tensors = new Map<string, MadeTensor>(made.tensors);
  const put = (name: string, weight: Weight): void => {
    const { outputs, inputs } = weight;
    const values = new Float32Array(outputs * inputs);
    model.dense.gather(weight, Int32Array.from({ length: outputs }, (_, row) => row), outputs, values);
    tensors.set(`${name}.weight`, { shape: [outputs, inputs], values: [...values] });
  };
  const { embedding, head, layers } = model.weights;
  put('model.embed_tokens', embedding);
  put('lm_head', head);
  layers.forEach(({ query, key, value, attentionOutput, gate, up, down }, layer) => {
    const parts = { 'self_attn.q_proj': query, 'self_attn.k_proj': key, 'self_attn.v_proj': value, 'self_attn.o_proj': attentionOutput,
      'mlp.gate_proj': gate, 'mlp.up_proj': up, 'mlp.down_proj': down };
    for (const [name, { weight }] of Object.entries(parts)) put(`model.layers.${layer}.${name}`, weight);
  });
  return { config: made.config, tensors };
}

/** Norms of few bits make activations that are exactly half way between two integers; those of 16-bit types become 1. */
function withPlainNorms({ config, tensors }: MadeLlama, dtype: RowDtype): MadeLlama {
  const entries = [...tensors].map(([name, { shape, values }]) => [name, { shape, values: values.map((value) => name.includes('norm') && dtype !== 'float32' ? 1 : value) }] as const);
  return { config, tensors: new Map(entries) };
}

/** Inputs of products: 32 at a time as integers of −127 … 127 and a scale. */
function inIntegers(row: Float64Array): Float64Array {
  return row.map((value, i) => {
    const step = Math.max(...row.subarray(i - i % 32, i - i % 32 + 32).map(Math.abs)) / 127;
    return step === 0 ? 0 : Math.round(value / step) * step;
  });
}

for (const dtype of ['float32', 'float16', 'bfloat16'] as const satisfies readonly RowDtype[]) {
  slow('runs models')(`a model of ${dtype} in int8 computes what a plain Llama does with the same integers (seed ${seed})`, async (t) => {
    const random = new Random(seed);
    const made = withPlainNorms(randomLlama(random, sizes, { attention_bias: true }, dtype), dtype);
    const folder = writeLlama(made, dtype);
    t.teardown(() => removeFolder(folder));
    const model = new LlamaModel(folder, { weights: 'int8' });
    const matrices = [...made.tensors.values()].filter(({ shape }) => shape.length === 2);
    const [bytes, embedded] = [matrices, [made.tensors.get('model.embed_tokens.weight')!]].map((tensors) =>
      tensors.reduce((sum, { values }) => sum + values.length / 32 * 34, 0));
    t.is(model.weights.bytesPerToken, bytes! - embedded!);
    t.is(model.shape().dtype, dtype);
    const whole = restored(made, model);
    const [plain, unrounded] = [new PlainLlama(whole, inIntegers), new PlainLlama(whole)];
    const scene = new Scene(model, 'float32', 'per-layer', 'blocking');
    const [apart, rounding] = [[0], [0]];
    for (let at = 0; at < 12; at += 1) {
      const text = randomText(random, 5);
      const sequence = scene.cache.acquire();
      const [logits] = await scene.step([{ text, sequence, tokens: text.length }]);
      sequence.release();
      apart[at] = difference(logits!, plain.logits(text).at(-1)!);
      rounding[at] = difference(logits!, unrounded.logits(text).at(-1)!);
    }
    scene.close();
    t.log(`apart by ${Math.max(...apart).toExponential(1)} of the largest logit, and by ${Math.max(...rounding).toExponential(1)} from a Llama that does not round activations`);
    // An activation half way between two integers goes to either, and answers differ from there on; that is rare.
    t.true(apart.filter((each) => each <= 1e-5).length >= 9, String(apart));
    t.true(Math.max(...apart, ...rounding) <= 0.1);
    t.true(Math.max(...rounding) > 1e-4, 'activations are rounded');
  });
}

test(`with int8 weights an exact answer has one value to the bit, in any company and cut in any way (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const pick = <T>(choices: readonly T[]): T => choices[random.integer(choices.length)]!;
  const shared = randomText(random, 90);
  let hits = 0;
  for (let round = 0; round < 3 * scale; round += 1) {
    const scene = new Scene(new LlamaModel(storyteller, { weights: 'int8', threads: pick([1, 2, 3]) }), 'float32', 'per-layer', pick(['awaited', 'blocking'] as const));
    const plain = new Scene(new LlamaModel(storyteller, { weights: 'int8', threads: 1 }), 'float32', 'per-layer', 'blocking');
    const open = new Map<Sequence, number[]>();
    for (let step = 0; step < 25; step += 1) {
      if (open.size < 5) {
        const text = [...shared.slice(0, random.integer(90)), ...randomText(random, 1 + random.integer(50))];
        const sequence = scene.cache.acquire({ tokens: text });
        hits += sequence.length > 0 ? 1 : 0;
        open.set(sequence, text);
      }
      const isDecoding = random.integer(2) === 0;
      const chunks = [...open].map(([sequence, text]) => ({ sequence, text, tokens: isDecoding ? 1 : 1 + random.integer(text.length - sequence.length) }));
      const answers = await scene.step(chunks);
      for (const [index, { text, sequence }] of chunks.entries()) {
        if (sequence.length < text.length) continue;
        const alone = plain.cache.acquire();
        const [expected] = await plain.step([{ text, sequence: alone, tokens: text.length }]);
        alone.release();
        t.deepEqual(answers[index], expected, `round ${round}, step ${step}: ${chunks.length} sequences, ${sequence.length} tokens`);
        sequence.release();
        open.delete(sequence);
      }
    }
    for (const sequence of open.keys()) sequence.release();
    scene.close();
    plain.close();
  }
  t.true(hits > 0, 'some texts were cached');
});

/** Logits behind each token of a text, one token a pass. */
async function logitsOf(model: LlamaModel, text: readonly number[]): Promise<Float32Array[]> {
  const scene = new Scene(model, 'float32', 'per-layer', 'blocking');
  const sequence = scene.cache.acquire();
  const logits: Float32Array[] = [];
  for (let at = 0; at < text.length; at += 1) logits.push((await scene.step([{ text, sequence, tokens: 1 }]))[0]!);
  sequence.release();
  scene.close();
  return logits;
}

function probabilities(logits: Float32Array): Float64Array {
  const powers = Float64Array.from(logits, (logit) => Math.exp(logit - logits[mostLikely(logits)]!));
  const total = powers.reduce((sum, power) => sum + power);
  return powers.map((power) => power / total);
}

slow('runs models')('int8 weights answer nearly as the weights in the file do', async (t) => {
  const [model, int8, tokenizer] = [new LlamaModel(storyteller), new LlamaModel(storyteller, { weights: 'int8' }), new LlamaTokenizer(storyteller)];
  let [tokens, same, clear, changed, divergence, most] = [0, 0, 0, 0, 0, 0];
  for (const [question, answer] of [
    ['Tell me a story about a fox named Mia and a red ball.', 'Once upon a time there was a fox named Mia. Mia lived by a river and had a red ball. One sunny morning the ball was gone.'],
    ['Tell me a story about a goat named Otto and a silver bell.', 'Once upon a time there was a goat named Otto. Otto lived by a lake and had a silver bell. One windy morning the bell was gone.'],
  ] as const) {
    const text = tokenizer.encodeChat([{ role: 'user', content: question }, { role: 'assistant', content: answer }]);
    const [expected, actual] = [await logitsOf(model, text), await logitsOf(int8, text)];
    for (const [at, logits] of expected.entries()) {
      const [p, q] = [probabilities(logits), probabilities(actual[at]!)];
      const apart = p.reduce((sum, share, token) => share === 0 ? sum : sum + share * Math.log(share / q[token]!), 0);
      tokens += 1;
      const isSame = mostLikely(logits) === mostLikely(actual[at]!);
      const [first, second] = [...p].sort((a, b) => b - a);
      const isClear = first! - second! >= 0.02;
      same += isSame ? 1 : 0;
      clear += isClear ? 1 : 0;
      changed += isClear && !isSame ? 1 : 0;
      divergence += apart;
      most = Math.max(most, apart);
    }
  }
  t.log(`${tokens} tokens: the likeliest next token is the same behind ${same}; behind ${clear} it leads by 2 % or more, and ${changed} of these changed. ` +
    `KL divergence ${(divergence / tokens).toExponential(1)} nats (at most ${most.toExponential(1)})`);
  t.is(changed, 0);
  t.true(same / tokens >= 0.9 && clear / tokens >= 0.5);
  t.true(divergence / tokens <= 2e-4 && most <= 3e-3);
  t.true(divergence > 0, 'they are other weights');
});

test('what cannot be int8 is refused by name', (t) => {
  const refused = (made: MadeLlama, message: RegExp): void => {
    const folder = writeLlama(made);
    t.throws(() => new LlamaModel(folder, { weights: 'int8' }), { code: 'KV_MODEL_INVALID', message });
    removeFolder(folder);
  };
  refused(randomLlama(new Random(seed), { ...sizes, intermediate: 40 }), /`model\.layers\.0\.mlp\.down_proj\.weight` .* 40 /);
  for (const wrong of [NaN, Infinity, 1e30]) {
    const made = randomLlama(new Random(seed), sizes);
    const name = 'model.layers.1.mlp.up_proj.weight';
    const { shape, values } = made.tensors.get(name)!;
    const tensors = new Map(made.tensors).set(name, { shape, values: values.with(80 * 64 + 3, wrong) });
    refused({ config: made.config, tensors }, /`model\.layers\.1\.mlp\.up_proj\.weight` .*64 to 95/);
  }
  refuses(t, () => new LlamaModel(storyteller, { weights: 'int4' as 'int8' }),
    'KV_INVALID_OPTION', { option: 'weights', received: 'int4' });
});

test('int8 weights are refused on a device, before it has anything of the model', (t) => {
  const device = new MockDevice({ granularityBytes: pageBytes, memoryBytes: 2 ** 28 });
  const model = new LlamaModel(storyteller, { weights: 'int8' });
  const cache = new KvCache({ model: model.shape(), slots: 1, maxTokens: 64, memoryBudgetBytes: 2 ** 24, driver: device.driver, pageBytes, mapper: 'off' });
  const { livePages } = device.driver.memory();
  refuses(t, () => new LlamaEngine({ model, cache }), 'KV_INVALID_OPTION', { option: 'weights', received: 'int8' });
  t.is(device.driver.memory().livePages, livePages);
  cache.close();
  device.assertNoLeaks();
  device.close();
});
