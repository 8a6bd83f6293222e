// A model written as a file of int8 weights: the blocks and the answers of `weights: 'int8'`, to the bit, with its config and its tokenizer; and
// what fails or is given up, which leaves nothing.

import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, truncateSync, utimesSync, writeFileSync } from 'node:fs';
import promises = require('node:fs/promises');
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { isKvError, type Weight } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { weightBytes } from '#internal/kernels/dense/dense-operands.js';
import { parseLlamaConfig } from '#internal/llama/config.js';
import { GgufFile } from '#internal/llama/gguf/gguf-file.js';
import type { GgufEntry } from '#internal/llama/gguf/gguf-header.js';
import { writeInt8File } from '#internal/llama/int8-file.js';
import { inHalves } from '#internal/llama/head-pairs.js';
import { LlamaModel } from '#internal/llama/model.js';
import { LlamaTokenizer } from '#internal/llama/tokenizer.js';
import type { Linear, LlamaWeights } from '#internal/llama/weights.js';
import { Scene } from '../helpers/llama-scene.js';
import { layerKinds } from '../helpers/layer-kinds.js';
import { randomText, vocabularyTokens } from '../helpers/llama-shapes.js';
import { tokenizerEntries, writeGguf, type GgufTypeName, type TokenizerJson } from '../helpers/made-gguf.js';
import { randomLlama, removeFolder, writeLlama, type Json, type LlamaSizes, type MadeLlama } from '../helpers/made-llama.js';
import { seedOf } from '../helpers/seed.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { slow } from '../runner/slow.js';
import { sampled, scale } from '../runner/tier.js';

const seed = seedOf('int8 file');
const storyteller = path.resolve(__dirname, '..', '..', 'examples', 'llama', 'storyteller');
const sizes: LlamaSizes = { layers: 2, hidden: 64, intermediate: 96, queryHeads: 4, kvHeads: 2, headDim: 32, vocabularyTokens };

function matrices({ embedding, head, layers }: LlamaWeights): Weight[] {
  return [embedding, head, ...layers.flatMap(({ query, key, value, attentionOutput, gate, up, down }) => [query, key, value, attentionOutput, gate, up, down].map(({ weight }) => weight))];
}

function bytesOf(weight: Weight, { files }: LlamaWeights): Buffer {
  if (typeof weight.data !== 'bigint') return Buffer.from(weight.data as Uint8Array);
  const bytes = Buffer.alloc(weightBytes(weight));
  files[0]!.copy(bytes, weight.data);
  return bytes;
}

/** Biases and norms. */
function vectors({ norm, layers }: LlamaWeights): unknown[] {
  return [norm, ...layers.flatMap(({ attentionNorm, queryNorm, keyNorm, feedForwardNorm, attentionOutputNorm, feedForwardOutputNorm, query, key, value }) =>
    [attentionNorm, queryNorm, keyNorm, feedForwardNorm, attentionOutputNorm, feedForwardOutputNorm, query.bias, key.bias, value.bias])];
}

/** With queries and keys in halves. */
function halved({ weights, config: { headDim } }: LlamaModel): LlamaWeights {
  if (weights.pairs === 'halves') return weights;
  const linear = ({ weight, bias }: Linear): Linear => ({
    weight: { ...weight, data: new Uint8Array(inHalves(bytesOf(weight, weights), weight.outputs, headDim)) },
    bias: bias && new Float32Array(inHalves(new Uint8Array((bias as Float32Array).buffer), weight.outputs, headDim)),
  });
  return { ...weights, pairs: 'halves', layers: weights.layers.map((layer) => ({ ...layer, query: linear(layer.query), key: linear(layer.key) })) };
}

async function logitsOf(model: LlamaModel, text: readonly number[]): Promise<Float32Array> {
  const scene = new Scene(model, model.shape().dtype as 'float32', 'per-layer', 'blocking');
  const sequence = scene.cache.acquire();
  const [logits] = await scene.step([{ text, sequence, tokens: text.length }]);
  sequence.release();
  scene.close();
  return logits!;
}

/** Whether a written file is the model that is converted while it is loaded. */
async function isTheSame(t: ExecutionContext, source: string, output: string): Promise<void> {
  const [converted, read] = [new LlamaModel(source, { weights: 'int8' }), new LlamaModel(output, { weights: 'copied' })];
  t.deepEqual(read.config, converted.config);
  t.deepEqual({ ...read.shape(), identity: undefined }, { ...converted.shape(), identity: undefined }); // in another order of halves they are another model's
  t.is(read.weights.bytesPerToken, converted.weights.bytesPerToken);
  const [ours, theirs] = [read, converted].map((model) => matrices(halved(model)).map((weight) => bytesOf(weight, model.weights)));
  ours!.forEach((bytes, index) => { t.true(bytes.equals(theirs![index]!)); });
  t.deepEqual(vectors(halved(read)), vectors(halved(converted)));
  const text = randomText(new Random(seed), 40);
  const expected = await logitsOf(converted, text);
  t.deepEqual(await logitsOf(read, text), expected);
  utimesSync(output, new Date(), new Date(Date.now() - 3_600_000));
  const mapped = new LlamaModel(output);
  t.is(typeof mapped.weights.embedding.data, 'bigint');
  t.deepEqual(await logitsOf(mapped, text), expected);
}

function folderFor(t: ExecutionContext, made: MadeLlama, dtype: 'float32' | 'float16' | 'bfloat16' = 'float32'): string {
  const folder = writeLlama(made, dtype);
  t.teardown(() => removeFolder(folder));
  return folder;
}

const rope = { rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 32 };
const kinds: readonly (readonly [string, Json, 'float32' | 'float16' | 'bfloat16'])[] = [
  ['llama', {}, 'float32'], ['llama with biases', { attention_bias: true, mlp_bias: true }, 'float16'], ['tied llama that ends in five ways', { tie_word_embeddings: true, eos_token_id: [7, 3, 5, 2, 9] }, 'bfloat16'],
  ['llama of Llama 3.1', { rope_scaling: rope, rope_theta: 1_234_567.89 }, 'bfloat16'], ['stretched llama', { rope_scaling: { rope_type: 'linear', factor: 2.7 } }, 'float32'],
  ['mistral', { model_type: 'mistral', sliding_window: null }, 'float16'], ['qwen2', { model_type: 'qwen2' }, 'bfloat16'], ['qwen3', { model_type: 'qwen3', rms_norm_eps: 1.3e-6 }, 'float32'],
  ['mistral with a window', layerKinds['Mistral with a window'].more, 'bfloat16'], ['gemma2', layerKinds['Gemma 2'].more, 'float16'],
  ['gemma3', { ...layerKinds['Gemma 3'].more, sliding_window_pattern: 2 }, 'bfloat16'],
];
for (const [name, more, dtype] of kinds) {
  test(`a folder of a ${name} in ${dtype} becomes a file that loads as its int8 weights, to the bit (seed ${seed})`, async (t) => {
    const source = folderFor(t, randomLlama(new Random(seed), sizes, more, dtype), dtype);
    const output = path.join(folderOf(t), 'int8.gguf');
    const seen: number[] = [];
    const written = await writeInt8File(source, output, { onProgress: ({ bytes, totalBytes }) => { seen.push(bytes / totalBytes); } });
    t.deepEqual(seen, seen.toSorted((a, b) => a - b));
    t.is(seen.at(-1), 1);
    t.is(written.bytes, readFileSync(output).length);
    await isTheSame(t, source, output);
    if ('rope_scaling' in more) t.is(new GgufFile(output, 'copied').tensors.has('rope_freqs.weight'), more['rope_scaling'] === rope, 'for other readers');
  });
}

for (const architecture of ['llama', 'qwen2', 'qwen3', 'gemma3'] as const) {
  for (const type of sampled(['F32', 'F16', 'BF16', 'Q8_0'] as const satisfies readonly GgufTypeName[], 2)) {
    slow('many damaged files')(`a GGUF file of a ${architecture} of ${type} becomes one of int8, with all of its keys (seed ${seed})`, async (t) => {
      const more = architecture === 'llama' ? { attention_bias: true }
        : architecture === 'gemma3' ? { ...layerKinds['Gemma 3'].more, query_pre_attn_scalar: 32, sliding_window_pattern: 2 } : { model_type: architecture };
      const made = randomLlama(new Random(seed), sizes, more);
      const [source, output] = ['model.gguf', 'int8.gguf'].map((name) => path.join(folderOf(t), name)) as [string, string];
      const factors = architecture === 'llama' ? { tensors: new Map([...made.tensors, ['rope_freqs.weight', { shape: [16], values: Array.from({ length: 16 }, (_, pair) => Math.fround(1 + pair / 7)) }]]) } : {};
      const json = JSON.parse(readFileSync(path.join(storyteller, 'tokenizer.json'), 'utf8')) as TokenizerJson;
      const keys: readonly GgufEntry[] = [['general.name', 8, 'a model'], ['general.file_type', 4, 1], ...tokenizerEntries(json, 'gpt-2', { template: 'of this model' }).filter(([key]) => key !== 'tokenizer.ggml.tokens')];
      writeGguf(source, { ...made, ...factors }, parseLlamaConfig(made.config, 'made'), architecture, type, keys);
      await writeInt8File(source, output);
      const [before, after] = [source, output].map((file) => new GgufFile(file, 'copied', new Set(['tokenizer.ggml.merges'])).values) as [Map<string, unknown>, Map<string, unknown>];
      t.deepEqual([...after].filter(([key]) => !key.startsWith('virtual_kv.') && key !== 'general.quantization_version').toSorted(), [...before.set('general.file_type', 7)].toSorted());
      await isTheSame(t, source, output);
      const again = path.join(path.dirname(output), 'again.gguf');
      await writeInt8File(output, again);
      await isTheSame(t, output, again);
    });
  }
}

test('a folder that GGUF files have no name for is refused, and runs with int8 weights all the same', async (t) => {
  const { more, sizes: others } = layerKinds['gpt-oss, dense'];
  const source = folderFor(t, randomLlama(new Random(seed), { ...sizes, ...others, headDim: 16 }, more));
  const output = path.join(folderOf(t), 'int8.gguf');
  await t.throwsAsync(writeInt8File(source, output), { code: 'KV_MODEL_INVALID', message: /"gpt_oss"/ });
  t.false(existsSync(output));
  t.true((await logitsOf(new LlamaModel(source, { weights: 'int8' }), randomText(new Random(seed), 20))).every(Number.isFinite));
});

test('the tokenizer comes along: the same tokens and conversations', async (t) => {
  const output = path.join(folderOf(t), 'storyteller.gguf');
  await writeInt8File(storyteller, output);
  const [before, after] = [storyteller, output].map((model) => new LlamaTokenizer(model)) as [LlamaTokenizer, LlamaTokenizer];
  for (const text of ['Tell me a story about a fox.', '<|im_end|> grüße 🦊\n\n']) {
    t.deepEqual(after.encode(text), before.encode(text));
    t.deepEqual(after.encode(text, { specialTokens: 'parse' }), before.encode(text, { specialTokens: 'parse' }));
    t.deepEqual(after.encodeChat([{ role: 'user', content: text }]), before.encodeChat([{ role: 'user', content: text }]));
  }
  t.deepEqual(after.endTokens, before.endTokens);
  await isTheSame(t, storyteller, output);
  const beside = path.join(folderOf(t), 'model');
  cpSync(storyteller, beside, { recursive: true });
  await writeInt8File(output, path.join(beside, 'again.gguf'));
  t.deepEqual(new LlamaTokenizer(path.join(beside, 'again.gguf')).encode('a fox'), before.encode('a fox'));
});

test('what cannot be written leaves nothing, and what was there stays', async (t) => {
  const made = randomLlama(new Random(seed), sizes);
  const folder = folderOf(t);
  const output = path.join(folder, 'int8.gguf');
  writeFileSync(output, 'before');
  const unchanged = (): void => {
    t.deepEqual(readdirSync(folder), ['int8.gguf']);
    t.is(readFileSync(output, 'utf8'), 'before');
  };
  const name = 'model.layers.1.mlp.up_proj.weight';
  const { shape, values } = made.tensors.get(name)!;
  for (const [wrong, message] of [
    [{ ...made, tensors: new Map(made.tensors).set(name, { shape, values: values.with(80 * 64 + 3, NaN) }) }, /up_proj\.weight` .*0 to 95/],
    [randomLlama(new Random(seed), { ...sizes, intermediate: 40 }), /rows of 40 /],
    [{ ...made, tensors: new Map(made.tensors).set('model.layers.0.adapter.weight', { shape: [1], values: [1] }) }, /`model\.layers\.0\.adapter\.weight`/],
  ] as readonly (readonly [MadeLlama, RegExp])[]) {
    await t.throwsAsync(writeInt8File(folderFor(t, wrong), output), { code: 'KV_MODEL_INVALID', message });
    unchanged();
  }
  const source = folderFor(t, made);
  utimesSync(path.join(source, 'model.safetensors'), new Date(), new Date(Date.now() - 3_600_000));
  const stop = new AbortController();
  const aborted = writeInt8File(source, output, { signal: stop.signal, onProgress: ({ bytes, totalBytes }) => { if (bytes > totalBytes / 2) stop.abort('enough'); } });
  t.is((await t.throwsAsync(aborted, { code: 'KV_ABORTED' })).cause, 'enough');
  unchanged();
  const failing = new Error('in the progress');
  t.is(await t.throwsAsync(writeInt8File(source, output, { onProgress: () => { throw failing; } })), failing);
  unchanged();
  const cut = writeInt8File(source, output, { onProgress: ({ bytes, totalBytes }) => { if (bytes > totalBytes / 2) truncateSync(path.join(source, 'model.safetensors'), 8_192); } });
  await t.throwsAsync(cut, { code: 'KV_MODEL_INVALID', message: /cut short/ });
  unchanged();
  await t.throwsAsync(writeInt8File(path.join(source, 'none'), output), { code: 'KV_MODEL_INVALID' });
  unchanged();
});

test('a place that cannot be written to, and a full disk, are KV_OUTPUT_FAILED', async (t) => {
  const folder = folderOf(t);
  await t.throwsAsync(writeInt8File(storyteller, path.join(folder, 'none', 'int8.gguf')), { code: 'KV_OUTPUT_FAILED', message: /ENOENT/ });
  mkdirSync(path.join(folder, 'folder.gguf'));
  await t.throwsAsync(writeInt8File(storyteller, path.join(folder, 'folder.gguf')), { code: 'KV_OUTPUT_FAILED', message: /EISDIR/ });
  t.deepEqual(readdirSync(folder), ['folder.gguf']);
  const { open } = promises;
  let writes = 0;
  const fills: typeof open = async (...given) => {
    const handle = await open(...given);
    const write = handle.write.bind(handle) as (...parameters: unknown[]) => Promise<unknown>;
    handle.write = ((...parameters: unknown[]) => {
      writes += 1;
      return writes < 10 ? write(...parameters) : Promise.reject(Object.assign(new Error('ENOSPC: no space left on device, write'), { code: 'ENOSPC', syscall: 'write' }));
    }) as typeof handle.write;
    return handle;
  };
  Object.assign(promises, { open: fills });
  try {
    await t.throwsAsync(writeInt8File(storyteller, path.join(folder, 'full.gguf')), { code: 'KV_OUTPUT_FAILED', message: /full\.gguf .*ENOSPC/ });
  } finally {
    Object.assign(promises, { open });
  }
  t.is(writes, 10);
  t.deepEqual(readdirSync(folder), ['folder.gguf']);
});

slow('many damaged files')(`a written file with other bits in its header is the model or KV_MODEL_INVALID (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const file = path.join(folderOf(t), 'int8.gguf');
  await writeInt8File(folderFor(t, randomLlama(random, sizes)), file);
  const whole = readFileSync(file);
  const headerBytes = Math.min(...[...new GgufFile(file, 'copied').tensors.values()].map(({ offset }) => offset));
  const counts = { loads: 0, refused: 0 };
  for (let flip = 0; flip < 300 * scale; flip += 1) {
    const damaged = Buffer.from(whole);
    damaged[random.integer(headerBytes)]! ^= 1 << random.integer(8);
    writeFileSync(file, damaged);
    try {
      new LlamaModel(file);
      counts.loads += 1;
    } catch (error) {
      if (!isKvError(error, 'KV_MODEL_INVALID')) throw error;
      counts.refused += 1;
    }
  }
  t.log(counts);
  t.true(counts.loads > 0 && counts.refused > 0);
  t.true(existsSync(file));
});
