// What cannot be computed is refused by the name of its node, and bytes that are no graph by a typed error, before onnxruntime or a cache has
// anything to do with it.

import { writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { Driver, isKvError } from 'virtual-kv';
import { OnnxDecoder } from 'virtual-kv/onnx';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { planDecoder, writeDecoder, type DecoderGraph } from '#internal/onnx/decoder-graph.js';
import { elements, makeValue, readGraph } from '#internal/onnx/graph.js';

import { buildFakeLibcuda, fakeLibcuda } from '../helpers/fake-libcuda.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';
import { scale, tier } from '../runner/tier.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { madeDecoder, type DecoderForm } from './made-decoder.js';
import { libraryFile, madeFile, onnxTest } from './onnx-world.js';

/** Damaged graphs that are rewritten, and that are opened. */
const rounds = tier === 'release' ? { rewritten: 100_000, opened: 1_000 } : { rewritten: 150 * scale, opened: 12 * scale };

const rewritten = (bytes: Uint8Array): DecoderGraph => writeDecoder(planDecoder(bytes, 'a.onnx'), new Map());

const refused: Readonly<Record<string, readonly [DecoderForm, RegExp]>> = {
  'K and V that are quantized': [{ integers: { kv_cache_bit_width: 8 } }, /"layer_0\.attended" \(GroupQueryAttention\) has `kv_cache_bit_width`/],
  'attributes of later versions': [{ floats: { novelty: 2 } }, /"layer_0\.attended" \(GroupQueryAttention\) has `novelty`/],
  'attention that sees later tokens': [
    { attention: 'multi-head', integers: { unidirectional: 0 } }, /"layer_0\.attended" \(MultiHeadAttention\) lets tokens see the tokens after them/,
  ],
  'a past that is read outside of attention': [
    { more: { nodes: [{ name: 'peek', operator: 'Add', inputs: ['hidden_2', 'past_key_values.1.key'], outputs: ['last'] }] } },
    /the node "peek" \(Add\) reads the input "past_key_values\.1\.key", a past, outside of attention/,
  ],
  'lengths that are computed from the mask': [
    { more: { nodes: [{ name: 'positions', operator: 'Add', inputs: ['last', 'attention_mask'], outputs: ['last'] }] } },
    /the node "positions" \(Add\) reads the input "attention_mask".*`position_ids`/s,
  ],
  'products and a softmax without a mask': [
    { attention: { kind: 'softmax' } }, /"layer_0\.weights" \(Softmax\) lets tokens see the tokens after them: nothing is added to its scores/,
  ],
  'a mask that replaces scores': [
    { attention: { kind: 'softmax', replacesScores: true }, mask: 'causal', isMaskBoolean: true }, /"layer_0\.weights" \(Softmax\) takes scores that are no products/,
  ],
  'Attention without a mask': [
    { attention: { kind: 'joined' } }, /"layer_0\.attended4" \(Attention\) lets tokens see the tokens after them/,
  ],
  'inputs that are no text': [
    { more: { nodes: [{ name: 'see', operator: 'Add', inputs: ['last', 'pixel_values'], outputs: ['last'] }], inputs: [makeValue('pixel_values', elements.float32, [1])] } },
    /the node "see" \(Add\) reads the input "pixel_values"/,
  ],
};

for (const [what, [form, message]] of Object.entries(refused)) {
  test(`${what}: refused by the name of the node`, (t) => {
    t.throws(() => rewritten(madeDecoder(form).bytes), { code: 'KV_MODEL_INVALID', message });
  });
}

onnxTest('a device is refused before memory is taken: one that onnxruntime does not compute on, and one whose provider is not installed', async (t) => {
  const file = madeFile(t, madeDecoder());
  const device = new MockDevice();
  t.teardown(() => { device.close(); });
  await t.throwsAsync(OnnxDecoder.open(file, { driver: device.driver, library: libraryFile() }), {
    code: 'KV_INVALID_OPTION', message: /`driver` must be one of kind 'cuda' or 'host'/,
  });
  buildFakeLibcuda();
  using driver = Driver.open('cuda', { libraryPath: fakeLibcuda() });
  await t.throwsAsync(OnnxDecoder.open(file, { driver, library: libraryFile() }), { code: 'KV_ONNX_UNAVAILABLE', message: /its CUDA provider cannot be used/ });
}, slow('loads the kernels on the simulated driver'));

test('a graph keeps its weights, and loses pasts, presents and masks', (t) => {
  const { bytes } = madeDecoder({ mask: 'causal' });
  const graph = rewritten(bytes);
  t.deepEqual(graph.inputs.map(({ name }) => name), ['input_ids', 'virtualkv_rows']);
  t.is(graph.vocabularyTokens, 96);
  t.is(graph.maxTokens, 512);
  t.deepEqual(graph.layers.map(({ heads, kvHeads, dim, valueDim }) => [heads, kvHeads, dim, valueDim]), [[4, 2, 16, 16], [4, 2, 16, 16]]);
  const before = readGraph(bytes, 'before').tensors;
  const after = readGraph(graph.bytes, 'after');
  t.deepEqual(after.inputs.map(({ name }) => name), ['input_ids', 'virtualkv_rows']);
  t.deepEqual(after.outputs.map(({ name }) => name), ['logits']);
  t.deepEqual(new Set(after.nodes.map(({ operator }) => operator)), new Set(['Gather', 'SimplifiedLayerNormalization', 'MatMul', 'Attention', 'Add', 'Sigmoid', 'Mul']));
  for (const { name, raw } of after.tensors.values()) t.deepEqual(before.get(name)!.raw, raw, name);
  t.true(after.tensors.has('embeddings') && !after.tensors.has('axis1'));
});

test('only the rows that are wanted reach the head, through what is computed of each logit', (t) => {
  const { nodes } = readGraph(rewritten(madeDecoder({ logitCap: 3 }).bytes).bytes, 'a.onnx');
  t.deepEqual(nodes.slice(-5).map(({ operator }) => operator), ['Gather', 'MatMul', 'Div', 'Tanh', 'Mul']);
});

test('a file that is none is refused, and so is one without a past', async (t) => {
  await t.throwsAsync(OnnxDecoder.open('/nowhere/model.onnx'), { code: 'KV_MODEL_INVALID', message: /\/nowhere\/model\.onnx cannot be read/ });
  const folder = folderOf(t);
  for (const [name, bytes, message] of [
    ['empty', new Uint8Array(0), /is no ONNX model: it has no graph/],
    ['text', Buffer.from('a text'), /is no ONNX model/],
    ['graph', Uint8Array.of(0x3a, 0), /has no attention with a past/],
  ] as const) {
    const file = path.join(folder, `${name}.onnx`);
    writeFileSync(file, bytes);
    await t.throwsAsync(OnnxDecoder.open(file), { code: 'KV_MODEL_INVALID', message });
  }
});

test('options that do not exist, and values out of range, are refused', async (t) => {
  const unknown = await t.throwsAsync(OnnxDecoder.open('a.onnx', { thread: 2 } as never));
  t.like(unknown, { code: 'KV_UNKNOWN_OPTION', details: { suggestion: 'threads' } });
  await t.throwsAsync(OnnxDecoder.open('a.onnx', { threads: 0 }), { code: 'KV_INVALID_OPTION' });
  await t.throwsAsync(OnnxDecoder.open(7 as never), { code: 'KV_INVALID_OPTION' });
});

test('without the library of onnxruntime, and with another one, there is a typed error', async (t) => {
  const file = madeFile(t, madeDecoder());
  const code = 'KV_ONNX_UNAVAILABLE';
  await t.throwsAsync(OnnxDecoder.open(file, { library: '/nowhere/libonnxruntime.so' }), { code });
  await t.throwsAsync(OnnxDecoder.open(file, { library: 'libm.so.6' }), { code, message: /it has no `OrtGetApiBase`/ });
});

const seed = seedOf('damaged graphs');
const damagedForms: readonly DecoderForm[] = [{}, { attention: { kind: 'softmax' }, mask: 'causal' }, { attention: { kind: 'heads' }, mask: 'causal' }];

test(`damaged graphs are rewritten or refused by a typed error (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const graphs = damagedForms.map((form) => madeDecoder({ mask: 'causal', hidden: 32, vocabulary: 32, dim: 8, positions: 8, ...form }, seed).bytes);
  let taken = 0;
  for (let round = 0; round < rounds.rewritten; round += 1) {
    const damaged = damage(graphs[round % graphs.length]!, random);
    try {
      rewritten(damaged);
      taken += 1;
    } catch (error) {
      if (!isKvError(error, 'KV_MODEL_INVALID')) {
        t.fail(`round ${round}: ${String(error)}`);
        return;
      }
    }
  }
  t.true(taken > 0 && taken < rounds.rewritten, `${taken} were taken`);
});

onnxTest(`damaged graphs that are still taken are opened, or refused by a typed error (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const graphs = damagedForms.map((form) => madeDecoder({ layers: 1, hidden: 32, vocabulary: 32, dim: 8, positions: 8, ...form }, seed).bytes);
  const folder = folderOf(t);
  const library = libraryFile();
  for (let round = 0; round < rounds.opened; round += 1) {
    const file = path.join(folder, `${round}.onnx`);
    writeFileSync(file, damage(graphs[round % graphs.length]!, random));
    try {
      (await OnnxDecoder.open(file, { library, threads: 1 })).close();
    } catch (error) {
      if (!isKvError(error, 'KV_MODEL_INVALID') && !isKvError(error, 'KV_ONNX_FAILED')) {
        t.fail(`round ${round}: ${String(error)}`);
        return;
      }
    }
  }
  t.pass();
});

onnxTest('masks that are more than the mask of a causal text are refused', async (t) => {
  const open = (form: DecoderForm) => OnnxDecoder.open(madeFile(t, madeDecoder(form)), { library: libraryFile(), threads: 1 });
  await t.throwsAsync(open({ mask: 'distances' }), { code: 'KV_MODEL_INVALID', message: /"layer_0\.attended" \(GroupQueryAttention\) adds "mask" to its scores, which is more than the mask/ });
});

const [kvHeads, mask] = [2, 'causal'] as const;
const otherAttention: Readonly<Record<string, readonly [DecoderForm, RegExp]>> = {
  'products of heads in another order': [
    { attention: { kind: 'softmax', repeatsInTurn: true }, kvHeads, mask },
    /"layer_0\.attended4" \(MatMul\) ends attention whose scores are no scaled products/,
  ],
  'Attention of heads in another order': [
    { attention: { kind: 'joined', repeatsInTurn: true }, kvHeads, mask },
    /"layer_0\.attended4" \(Attention\) ends attention that gives something else/,
  ],
  'products and distances': [
    { attention: { kind: 'softmax' }, mask: 'distances' },
    /"layer_0\.attended4" \(MatMul\) adds "mask" to its scores, which is more than the mask/,
  ],
};

for (const [what, [form, message]] of Object.entries(otherAttention)) {
  onnxTest(`attention in several nodes that computes something else is refused: ${what}`, async (t) => {
    const opened = OnnxDecoder.open(madeFile(t, madeDecoder(form)), { library: libraryFile(), threads: 1 });
    await t.throwsAsync(opened, { code: 'KV_MODEL_INVALID', message });
  }, undefined, form);
}

/** Some bytes changed, cut out or cut off, most of them where nodes are. */
function damage(bytes: Uint8Array, random: Random): Uint8Array {
  const damaged = bytes.slice(0, random.chance(0.1) ? random.integer(bytes.length) : undefined);
  const changes = 1 + random.integer(3);
  for (let change = 0; change < changes && damaged.length > 0; change += 1) {
    const at = random.integer(random.chance(0.7) ? Math.min(damaged.length, 4_096) : damaged.length);
    if (random.chance(0.3)) damaged.copyWithin(at, at + 1 + random.integer(8));
    else damaged[at] = random.integer(256);
  }
  return damaged;
}
