// GGUF files: the same answers, to the bit, as the same weights in a Hugging Face folder, whatever their type; what cannot be read or run is
// refused by name, and a damaged header never ends in anything but KV_MODEL_INVALID or the model.

import { mkdirSync, mkdtempSync, readFileSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { isKvError, KvCache } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { parseLlamaConfig, type LlamaConfig } from '#internal/llama/config.js';
import { readGgufConfig } from '#internal/llama/gguf/gguf-config.js';
import { GgufFile } from '#internal/llama/gguf/gguf-file.js';
import type { GgufEntry } from '#internal/llama/gguf/gguf-header.js';
import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { rotaryFrequencies } from '#internal/llama/rotary-table.js';
import { LlamaTokenizer } from '#internal/llama/tokenizer.js';
import { Scene } from '../helpers/llama-scene.js';
import { randomText, vocabularyTokens } from '../helpers/llama-shapes.js';
import { layerKinds } from '../helpers/layer-kinds.js';
import { difference } from '../helpers/logits.js';
import { asBlocks, writeGguf, writeRawGguf, type Architecture, type GgufTypeName } from '../helpers/made-gguf.js';
import { randomLlama, removeFolder, writeLlama, type Json, type LlamaSizes, type MadeLlama } from '../helpers/made-llama.js';
import { refuses } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { sampled, scale } from '../runner/tier.js';

const seed = seedOf('gguf');
const sizes: LlamaSizes = { layers: 2, hidden: 64, intermediate: 96, queryHeads: 4, kvHeads: 2, headDim: 32, vocabularyTokens };
const dtypes = { F32: 'float32', F16: 'float16', BF16: 'bfloat16', Q8_0: 'float32' } as const;

function placeFor(t: ExecutionContext): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-gguf-'));
  t.teardown(() => removeFolder(folder));
  return path.join(folder, 'model.gguf');
}

const configOf = ({ config }: MadeLlama): ReturnType<typeof parseLlamaConfig> => parseLlamaConfig(config, 'made');

async function logitsOf(model: LlamaModel, text: readonly number[]): Promise<Float32Array> {
  const scene = new Scene(model, 'float32', 'per-layer', 'blocking');
  const sequence = scene.cache.acquire();
  const [logits] = await scene.step([{ text, sequence, tokens: text.length }]);
  sequence.release();
  scene.close();
  return logits!;
}

const gemma = { hidden_size: 64, query_pre_attn_scalar: 32, tie_word_embeddings: true };
const architectures: readonly (readonly [Architecture, Json])[] = [
  ['llama', {}], ['llama', { attention_bias: true, mlp_bias: true }], ['llama', { tie_word_embeddings: true, eos_token_id: 7 }], ['qwen2', { model_type: 'qwen2' }],
  ['qwen3', { model_type: 'qwen3' }], ['gemma2', { ...layerKinds['Gemma 2'].more, ...gemma }],
  ['gemma3', { ...layerKinds['Gemma 3'].more, ...gemma, sliding_window_pattern: 2 }],
];
for (const [architecture, more] of architectures) {
  for (const type of sampled(['F32', 'F16', 'BF16', 'Q8_0'] as const satisfies readonly GgufTypeName[], 2)) {
    test(`a ${architecture} of ${type}${Object.keys(more).length > 0 ? ` with ${JSON.stringify(more)}` : ''} answers as its folder does, to the bit (seed ${seed})`, async (t) => {
      const random = new Random(seed);
      const drawn = randomLlama(random, sizes, more, dtypes[type]);
      const made = type === 'Q8_0' ? asBlocks(drawn) : drawn;
      const file = placeFor(t);
      writeGguf(file, made, configOf(made), architecture, type);
      const folder = writeLlama(made, dtypes[type]);
      t.teardown(() => removeFolder(folder));
      const expected = new LlamaModel(folder, { weights: type === 'Q8_0' ? 'int8' : 'mapped' });
      const text = randomText(random, 40);
      const answer = await logitsOf(expected, text);
      for (const weights of ['mapped', 'copied', ...(type === 'Q8_0' ? ['int8'] as const : [])] as const) {
        const model = new LlamaModel(file, { weights });
        t.deepEqual({ ...model.config, normEpsilon: 0 }, { ...expected.config, normEpsilon: 0 });
        t.true(Math.abs(model.config.normEpsilon / expected.config.normEpsilon - 1) < 1e-7, 'the file has it in 32 bits');
        t.is(model.shape().dtype, type === 'Q8_0' ? 'float16' : dtypes[type]);
        t.is(model.weights.bytesPerToken, expected.weights.bytesPerToken);
        t.deepEqual(await logitsOf(model, text), answer, weights);
      }
    });
  }
}

for (const weights of ['mapped', 'copied'] as const) {
  test(`a llama whose weights are ${weights} answers on a device as its folder does there, to the bit (seed ${seed})`, async (t) => {
    const random = new Random(seed);
    const made = randomLlama(random, sizes, { attention_bias: true }, 'float16');
    const file = placeFor(t);
    writeGguf(file, made, configOf(made), 'llama', 'F16');
    utimesSync(file, new Date(), new Date(Date.now() - 3_600_000)); // what was written just now is copied
    const folder = writeLlama(made, 'float16');
    t.teardown(() => removeFolder(folder));
    const text = Int32Array.from(randomText(random, 10));
    const [onDevice, expected] = await Promise.all([file, folder].map(async (place) => {
      const device = new MockDevice({ granularityBytes: 2 ** 21, memoryBytes: 2 ** 28, hasGarbage: true });
      const model = new LlamaModel(place, { weights });
      if (place === file) t.is(typeof model.weights.layers[0]!.query.weight.data, weights === 'mapped' ? 'bigint' : 'object');
      const cache = new KvCache({ model: model.shape(), slots: 1, maxTokens: 64, memoryBudgetBytes: 2 ** 24, driver: device.driver, pageBytes: 2 ** 21, mapper: 'off' });
      const engine = new LlamaEngine({ model, cache });
      const sequence = cache.acquire();
      const batch = cache.createBatch();
      batch.add(sequence, text.length);
      cache.prepare(batch);
      const { logits } = await engine.prefill({
        length: 1, slots: Int32Array.of(sequence.slot), positions: Int32Array.of(0), tokenCounts: Int32Array.of(text.length), tokens: text, wantsLogits: Uint8Array.of(1),
      });
      const answer = logits.slice(0, engine.vocabularyTokens);
      cache.commit(batch);
      sequence.release();
      engine.close();
      cache.close();
      device.close();
      return answer;
    }));
    t.deepEqual(onDevice, expected);
  });
}

test(`the factors of Llama 3 stretch what its config does (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const rope = { rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 32 };
  const made = randomLlama(random, sizes, { rope_scaling: rope });
  const config = configOf(made);
  const plain = rotaryFrequencies({ ...config, ropeScaling: { kind: 'none' } });
  const factors = rotaryFrequencies(config).map((frequency, pair) => plain[pair]! / frequency);
  t.true(new Set(factors.map((factor) => factor.toFixed(3))).size > 3, 'some pairs are stretched, and some between');
  const file = placeFor(t);
  const withFactors = { ...made, tensors: new Map([...made.tensors, ['rope_freqs.weight', { shape: [factors.length], values: factors }]]) };
  writeGguf(file, withFactors, config, 'llama', 'F32');
  const folder = writeLlama(made);
  t.teardown(() => removeFolder(folder));
  const text = randomText(random, 90);
  const [ours, theirs] = [await logitsOf(new LlamaModel(file), text), await logitsOf(new LlamaModel(folder), text)];
  t.true(difference(ours, theirs) < 1e-5);
  writeGguf(file, made, config, 'llama', 'F32');
  t.true(difference(await logitsOf(new LlamaModel(file), text), theirs) > 1e-3, 'without them it would be another answer');
});

const made = randomLlama(new Random(1), sizes);

/** What loading says of a file that was changed. */
function refusalOf(t: ExecutionContext, more: readonly GgufEntry[], change: (made: MadeLlama) => MadeLlama = (same) => same): string {
  const file = placeFor(t);
  writeGguf(file, change(made), configOf(made), 'llama', 'F16', more);
  return loadingOf(file);
}

/** `loads`, or what is wrong. */
function loadingOf(file: string): string {
  try {
    new LlamaModel(file);
    return 'loads';
  } catch (error) {
    if (!isKvError(error, 'KV_MODEL_INVALID')) throw error;
    return error.message;
  }
}

test('what would change the arithmetic and is not supported is refused by its key', (t) => {
  const cases: readonly (readonly [GgufEntry, RegExp])[] = [
    [['llama.expert_count', 4, 8], /llama\.expert_count 8/], [['llama.attention.sliding_window', 4, 4096], /sliding_window 4096/],
    [['llama.rope.scaling.type', 8, 'yarn'], /"yarn"/], [['llama.logit_scale', 6, 0.5], /llama\.logit_scale 0\.5/],
    [['split.count', 4, 3], /3 files/], [['llama.attention.causal', 7, false], /attention\.causal false/],
    [['llama.attn_logit_softcapping', 6, 50], /llama\.attn_logit_softcapping 50/],
    [['general.alignment', 4, 12], /alignment 12/], [['general.architecture', 8, 'gemma'], /"general\.architecture" twice/],
  ];
  for (const [entry, expected] of cases) t.regex(refusalOf(t, [entry]), expected);
  t.is(refusalOf(t, [['llama.expert_count', 4, 0], ['llama.attention.causal', 7, true], ['general.name', 8, 'a model']]), 'loads');
});

test('a Gemma whose header says little has the windows and scales of its kind', (t) => {
  const said = (architecture: string, layers: number, more: readonly GgufEntry[] = []): LlamaConfig => {
    const file = placeFor(t);
    const of = (key: string): string => `${architecture}.${key}`;
    writeRawGguf(file, [
      ['general.architecture', 8, architecture], [of('block_count'), 4, layers], [of('embedding_length'), 4, 96], [of('feed_forward_length'), 4, 64],
      [of('attention.head_count'), 4, 8], [of('attention.key_length'), 4, 16], [of('attention.value_length'), 4, 16], [of('context_length'), 4, 64],
      [of('vocab_size'), 4, 9], [of('attention.layer_norm_rms_epsilon'), 6, 1e-6], ...more,
    ], []);
    return readGgufConfig(new GgufFile(file, 'copied'));
  };
  const gemma2 = said('gemma2', 46);
  t.like(gemma2, { attentionCap: 50, logitsCap: 30, attentionScale: 1 / Math.sqrt(12), embeddingScale: Math.sqrt(96) });
  t.deepEqual(gemma2.layerAttention!.slice(0, 2), [{ kind: 'window', tokens: 4096, rope: 'global' }, { kind: 'full', tokens: 0, rope: 'global' }]);
  t.is(said('gemma2', 26).attentionScale, 0.25);
  const window: GgufEntry = ['gemma3.attention.sliding_window', 4, 512];
  const gemma3 = said('gemma3', 62, [window]);
  t.like(gemma3, { localRopeTheta: 10_000, attentionScale: 1 / Math.sqrt(12) });
  t.deepEqual(gemma3.layerAttention!.slice(4, 6), [{ kind: 'window', tokens: 512, rope: 'local' }, { kind: 'full', tokens: 0, rope: 'global' }]);
  t.is(gemma3.attentionCap ?? gemma3.logitsCap, undefined);
  t.is(said('gemma3', 26).layerAttention, undefined, 'no window, no local layers');
  t.is(said('gemma3', 26, [window, ['gemma3.rope.freq_base_swa', 6, 5000]]).localRopeTheta, 5000);
});

test('tensors that are missing, unknown, of another shape or of a type that nothing computes with are named', (t) => {
  const without = (name: string) => ({ config, tensors }: MadeLlama): MadeLlama => ({ config, tensors: new Map([...tensors].filter(([key]) => key !== name)) });
  t.regex(refusalOf(t, [], without('model.layers.1.mlp.up_proj.weight')), /no tensor .*up_proj/);
  t.regex(refusalOf(t, [], ({ config, tensors }) => ({ config, tensors: new Map([...tensors, ['blk.0.attn_sinks.weight', { shape: [4], values: [0, 0, 0, 0] }]]) })),
    /`blk\.0\.attn_sinks\.weight`/);
  t.regex(refusalOf(t, [], ({ config, tensors }) => ({ config, tensors: new Map([...tensors, ['model.norm.weight', { shape: [32], values: Array.from({ length: 32 }, () => 1) }]]) })),
    /`output_norm\.weight` is \[32\].* \[64\]/);
  const file = placeFor(t);
  const entries: readonly GgufEntry[] = [
    ['general.architecture', 8, 'llama'], ['llama.block_count', 4, 1], ['llama.embedding_length', 4, 256], ['llama.feed_forward_length', 4, 256], ['llama.attention.head_count', 4, 8],
    ['llama.context_length', 4, 64], ['llama.attention.layer_norm_rms_epsilon', 6, 1e-5],
  ];
  writeRawGguf(file, entries, [{ name: 'token_embd.weight', shape: [2, 256], type: 12, bytes: new Uint8Array(2 * 144) }]);
  t.regex(loadingOf(file), /`token_embd\.weight` is Q4_K/);
  writeRawGguf(file, entries, [{ name: 'token_embd.weight', shape: [2, 256], type: 77, bytes: new Uint8Array(4) }]);
  t.regex(loadingOf(file), /`token_embd\.weight` the type 77/);
  writeRawGguf(file, entries, [{ name: 'token_embd.weight', shape: [2, 256], type: 0, bytes: new Uint8Array(64) }]);
  t.regex(loadingOf(file), /`token_embd\.weight`, 2048 bytes/);
  mkdirSync(path.join(path.dirname(file), 'folder.gguf'));
  t.regex(loadingOf(path.join(path.dirname(file), 'folder.gguf')), /folder\.gguf is no file/);
  for (const wrong of [5, null, {}, Symbol('path')]) {
    for (const Opened of [LlamaModel, LlamaTokenizer]) refuses(t, () => new Opened(wrong as string), 'KV_INVALID_OPTION', { option: 'model', received: wrong });
  }
  t.regex(loadingOf(path.join(path.dirname(file), 'absent.gguf')), /absent\.gguf is not there/);
});

test(`a header that is cut or has other bits gives the model or KV_MODEL_INVALID (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const file = placeFor(t);
  writeGguf(file, made, configOf(made), 'llama', 'Q8_0');
  const whole = readFileSync(file);
  const headerBytes = whole.length - [...made.tensors.values()].reduce((sum, { shape, values }) => sum + (shape.length === 1 ? 4 * values.length : values.length / 32 * 34), 0);
  const counts = { loads: 0, refused: 0 };
  const tryIt = (bytes: Buffer): void => {
    writeFileSync(file, bytes);
    counts[loadingOf(file) === 'loads' ? 'loads' : 'refused'] += 1;
  };
  for (let cut = 0; cut < 200 * scale; cut += 1) tryIt(whole.subarray(0, random.integer(whole.length)));
  t.is(counts.loads, 0, 'every byte is needed');
  for (let flip = 0; flip < 600 * scale; flip += 1) {
    const damaged = Buffer.from(whole);
    const at = random.integer(headerBytes);
    damaged[at] = random.integer(4) === 0 ? random.integer(256) : damaged[at]! ^ (1 << random.integer(8));
    tryIt(damaged);
  }
  t.log(counts);
  t.true(counts.loads > 0 && counts.refused > 200 * scale);
});
