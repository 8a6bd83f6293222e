// The truth test of virtual-kv/onnx: tokens and logits are those of onnxruntime-node over the same file with fresh pasts, in every
// form of attention that is taken, whatever the layout, the scheduler, the batch, and the way a prefix came.

import type { ExecutionContext } from 'ava';

import { layoutKinds, type GenerationRequest, type KvCache, type OfflineSchedulerOptions, type Sequence } from 'virtual-kv';
import { Random } from '#internal/base/random.js';

import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';
import { schedulers } from '../serving/all-schedulers.js';
import type { DecoderForm } from './made-decoder.js';
import { onnxTest, openOnnxWorld, withGraphOfDevice, type OnnxWorld } from './onnx-world.js';

const scale = Number(process.env['VKV_TEST_SCALE'] ?? 1);

const forms: Readonly<Record<string, DecoderForm>> = {
  'GroupQueryAttention': {},
  'packed Q, K and V': { isPacked: true },
  'rotary positions outside': { rotary: 'outside' },
  'rotary positions of neighbours, packed': { rotary: 'neighbours', isPacked: true },
  'a scale of its own': { floats: { scale: 0.4 } },
  'a window': { integers: { local_window_size: 7 } },
  'a softcap, and logits with a cap': { floats: { softcap: 3 }, logitCap: 5 },
  'smooth softmax': { integers: { smooth_softmax: 1 } },
  'sinks': { hasSinks: true },
  'sinks, a window and a softcap': { hasSinks: true, integers: { local_window_size: 9 }, floats: { softcap: 2 } },
  'the mask of a causal text': { mask: 'causal', floats: { scale: 0.3 }, integers: { local_window_size: 11 } },
  'the mask of a window': { mask: 'windowed' },
  'as many KV heads as query heads': { kvHeads: 4 },
  'num_logits_to_keep': { keepsLogits: true },
  'MultiHeadAttention': { attention: 'multi-head' },
  'MultiHeadAttention with a mask': { attention: 'multi-head', mask: 'causal' },
  'float16': { isHalf: true },
  'float16, packed': { isHalf: true, isPacked: true, mask: 'causal' },
  'MatMulNBits': { isQuantized: true },
  'products and a softmax, scaled in Q and K': { attention: { kind: 'softmax' }, mask: 'causal' },
  'products and a softmax, a scale of its own, K turned as rows': { attention: { kind: 'softmax', scale: 0.4, turnsByRows: true, hasNaNs: true }, mask: 'causal' },
  'products and a softmax, scaled behind, a softcap': { attention: { kind: 'softmax', scaled: 'scores', softcap: 2 }, mask: 'causal' },
  'products and a softmax, not scaled, the mask of a window': { attention: { kind: 'softmax', scaled: 'none' }, mask: 'windowed', kvHeads: 4 },
  'products and a softmax, one KV head, MatMulNBits': { attention: { kind: 'softmax' }, mask: 'causal', kvHeads: 1, isQuantized: true },
  'products and a softmax, float16': { attention: { kind: 'softmax' }, mask: 'causal', isHalf: true },
  'Attention of opset 23': { attention: { kind: 'rows' }, mask: 'causal' },
  'Attention of opset 23, heads apart, a mask of booleans': { attention: { kind: 'heads', scale: 0.3 }, mask: 'windowed', isMaskBoolean: true },
  'Attention of opset 23, causal by itself': { attention: { kind: 'rows' } },
  'Attention of opset 23, a softcap': { attention: { kind: 'heads', softcap: 2 }, mask: 'causal' },
  'Attention of opset 23, K and V joined and repeated before it': { attention: { kind: 'joined' }, mask: 'causal' },
  'Attention of opset 23, K and V joined before it, a scale': { attention: { kind: 'joined', scale: 0.3 }, mask: 'causal', kvHeads: 4 },
};

for (const [name, form] of Object.entries(forms)) {
  const seed = seedOf(`onnx ${name}`);
  onnxTest(`logits are those of fresh tensors: ${name} (seed ${seed})`, async (t) => {
    const world = await openOnnxWorld(t, form, seed);
    await compareRandomPasses(t, world, new Random(seed), Math.ceil(12 * scale));
  }, undefined, form);
}

/** Forms that are other nodes where a device computes. */
const deviceForms: readonly string[] = [
  'GroupQueryAttention', 'packed Q, K and V', 'rotary positions of neighbours, packed', 'sinks, a window and a softcap', 'smooth softmax', 'float16, packed',
  'products and a softmax, a scale of its own, K turned as rows',
];

for (const name of deviceForms) {
  const seed = seedOf(`onnx device ${name}`);
  onnxTest(`logits of the graph that a device gets are those of fresh tensors: ${name} (seed ${seed})`, async (t) => {
    const world = await withGraphOfDevice(t, await openOnnxWorld(t, forms[name], seed));
    await compareRandomPasses(t, world, new Random(seed), Math.ceil(12 * scale));
  }, undefined, forms[name]);
}

/** A row of the cache has 32 tokens. */
const wide: DecoderForm = { heads: 8, kvHeads: 4, dim: 128 };

const seed = seedOf('onnx schedulers');
for (const layout of layoutKinds) {
  onnxTest(`every scheduler answers as onnxruntime does, ${layout} (seed ${seed})`, async (t) => {
    const world = await openOnnxWorld(t, wide, seed, 2);
    const random = new Random(seed);
    const system = textOf(random, 60);
    const requests: GenerationRequest[] = Array.from({ length: 12 }, (_, index) => ({
      tokens: [...index === 4 ? [] : system.slice(0, 20 + 4 * (index % 11)), ...textOf(random, 1 + index % 5)], maxNewTokens: 10,
    }));
    const wanted = await Promise.all(requests.map(({ tokens }) => world.stock.greedy([...tokens], 10)));
    for (const answer of Object.values(schedulers)) {
      for (const prefixCache of [undefined, 'off'] as const) {
        const cache = world.cache({ layout, memoryBudgetBytes: 2 ** 22, prefixCache });
        const options: OfflineSchedulerOptions = { cache, engine: world.decoder.engine(cache), prefillTokensPerStep: 32 };
        const outcomes = await answer(options, requests);
        for (const outcome of outcomes) {
          if (outcome.status !== 'fulfilled') throw outcome.reason;
          t.deepEqual([...outcome.value.tokens], wanted[outcome.index]);
        }
        cache.close();
      }
    }
  });
}

/** Which layers see all tokens and which a window, as of Gemma 3, Mistral and gpt-oss. */
const sliding: Readonly<Record<string, DecoderForm>> = {
  'two windows and all': { ...wide, layers: 3, windows: [40, 0, 7] },
  'every layer a window': { ...wide, windows: [20, 20] },
  'a mask and sinks': { ...wide, mask: 'windowed', maskWindow: 33, windows: [0, 12], hasSinks: true },
};

for (const [name, form] of Object.entries(sliding)) {
  const seed = seedOf(`onnx sliding ${name}`);
  onnxTest(`tokens are the same where windows slide: ${name} (seed ${seed})`, async (t) => {
    const world = await openOnnxWorld(t, form, seed, 2);
    const random = new Random(seed);
    const requests: GenerationRequest[] = [1, 90, 150, 200].map((tokens) => ({ tokens: textOf(random, tokens), maxNewTokens: 24 }));
    const wanted = await Promise.all(requests.map(({ tokens }) => world.stock.greedy([...tokens], 24)));
    const pages = new Map<boolean, number>();
    const runs = [['naive', 'per-layer', true], ['online', 'fused', true], ['offline', 'sliced', true], ['offline', 'sliced', false]] as const;
    for (const [scheduler, layout, slides] of runs) {
      const cache = world.cache({ model: world.decoder.model({ slides }), layout, prefixCache: 'off', passTokens: 32 });
      const outcomes = await schedulers[scheduler]({ cache, engine: world.decoder.engine(cache), prefillTokensPerStep: 32 }, requests);
      for (const outcome of outcomes) {
        if (outcome.status !== 'fulfilled') throw outcome.reason;
        t.deepEqual([...outcome.value.tokens], wanted[outcome.index]);
      }
      pages.set(slides, cache.pool.counts().createdPages);
      t.is(cache.metrics.slidRows > 0, slides, layout);
      cache.close();
    }
    t.true(pages.get(true)! < pages.get(false)!, `${pages.get(true)} of ${pages.get(false)} pages`);
  }, slow('computes four texts in four caches'), form);
}

for (const dtype of ['float16', 'bfloat16'] as const) {
  onnxTest(`a cache of ${dtype} has half the pages, and moves logits a little (seed ${seed})`, async (t) => {
    const world = await openOnnxWorld(t, wide, seed);
    const text = textOf(new Random(seed), 200);
    const wanted = await world.stock.logits(text);
    const pages: number[] = [];
    for (const model of [world.decoder.model(), world.decoder.model({ dtype })]) {
      const cache = world.cache({ model });
      const got = await computeAll(world, cache, text, [150, 49, 1]);
      t.true(largestDifference(got, wanted) < (model.dtype === 'float32' ? 1e-4 : 0.2), `${largestDifference(got, wanted)}`);
      pages.push(cache.pool.counts().createdPages);
    }
    t.true(pages[1]! <= pages[0]! / 2 + 4, `${pages.join(' and ')} pages`);
  });
}

async function computeAll(world: OnnxWorld, cache: KvCache, text: readonly number[], chunks: readonly number[]): Promise<Float32Array> {
  const sequence = cache.acquire({ tokens: text });
  const member: Member = { sequence, text: [...text] };
  let logits = new Float32Array(0);
  for (const chunk of chunks) [logits] = await step(world, cache, [[member, chunk]]) as [Float32Array<ArrayBuffer>];
  return logits;
}

interface Member {
  readonly sequence: Sequence;
  readonly text: number[];
}

/** Computes so many new tokens of each member in one pass; returns the logits behind the last of each. */
async function step(world: OnnxWorld, cache: KvCache, members: readonly (readonly [Member, number])[]): Promise<Float32Array[]> {
  const batch = cache.createBatch();
  const tokens: number[] = [];
  const starts: number[] = [];
  const positions = members.map(([{ sequence }]) => sequence.length);
  members.forEach(([{ sequence, text }, count], index) => {
    batch.add(sequence, count);
    starts.push(tokens.length);
    tokens.push(...text.slice(positions[index], positions[index]! + count));
  });
  cache.prepare(batch);
  const engine = world.engine(cache);
  const { logits } = await engine.prefill({
    length: members.length, slots: Int32Array.from(members, ([{ sequence }]) => sequence.slot), positions: Int32Array.from(positions),
    tokenCounts: Int32Array.from(members, ([, count]) => count), starts: Int32Array.from(starts), tokens: Int32Array.from(tokens),
    wantsLogits: new Uint8Array(members.length).fill(1), sequences: members.map(([{ sequence }]) => sequence),
    contextTokens: members.map(([{ text }]) => Int32Array.from(text)), inputs: members.map(() => undefined),
    items: members.map(() => []), adapters: members.map(() => undefined), signal: new AbortController().signal,
  });
  cache.commit(batch);
  return members.map((_, index) => logits.slice(index * engine.vocabularyTokens, (index + 1) * engine.vocabularyTokens));
}

/** Sequences come, grow by chunks of their own in passes together, and go; each row of logits is compared. */
async function compareRandomPasses(t: ExecutionContext, world: OnnxWorld, random: Random, passes: number): Promise<void> {
  const cache = world.cache();
  const tolerance = world.made.form.isHalf ? 0.06 : 1e-4;
  const members: Member[] = [];
  const known = textOf(random, 80);
  let worst = 0;
  for (let pass = 0; pass < passes; pass += 1) {
    while (members.length < 3) {
      const text = [...known.slice(0, Math.floor(random.next() * 60)), ...textOf(random, 1 + Math.floor(random.next() * 30))];
      members.push({ sequence: cache.acquire({ tokens: text }), text });
    }
    const chunks = members.map((member) => {
      const left = member.text.length - member.sequence.length;
      if (left === 0) {
        const more = textOf(random, random.next() < 0.6 ? 1 : 5);
        member.text.push(...more);
        member.sequence.append(more);
      }
      const ready = member.text.length - member.sequence.length;
      return [member, random.next() < 0.5 ? ready : 1 + Math.floor(random.next() * ready)] as const;
    });
    const got = await step(world, cache, chunks);
    for (const [index, [{ sequence, text }, count]] of chunks.entries()) {
      const wanted = await world.stock.logits(text.slice(0, sequence.length), Math.min(count, sequence.length));
      const difference = largestDifference(got[index]!, wanted);
      worst = Math.max(worst, difference);
      if (!(difference <= tolerance)) {
        t.fail(`pass ${pass}: ${count} tokens up to ${sequence.length} differ by ${difference}`);
        return;
      }
    }
    const gone = members.findIndex(() => random.next() < 0.1);
    if (gone >= 0) members.splice(gone, 1)[0]!.sequence.release();
  }
  t.log(`largest difference ${worst.toExponential(1)}`);
  t.pass();
}

const largestDifference = (a: Float32Array, b: Float32Array): number =>
  a.reduce((most, value, at) => (Number.isNaN(value - b[at]!) ? Infinity : Math.max(most, Math.abs(value - b[at]!))), a.length === b.length ? 0 : Infinity);

const textOf = (random: Random, tokens: number): number[] => Array.from({ length: tokens }, () => Math.floor(random.next() * 96));
