// What examples/onnxruntime.ts rests on: onnxruntime-node hands the cache's memory to its kernels as it is. Newer versions than
// the pinned one copy their inputs; the answers stay right then, so memory is measured too. The kernel is Gather, which reads
// one token and needs no room of its own: what the process grows by is what the way into onnxruntime takes.

import { resourceUsage } from 'node:process';

import test, { type ExecutionContext } from 'ava';

import { KvCache, type Sequence } from 'virtual-kv';

import { onnxModel } from '../../build-examples/onnxruntime/onnx-model.js';
import {
  loadOnnxRuntime, whyNoOnnxRuntime, type OnnxRuntime, type OnnxSession, type OnnxTensor,
} from '../../build-examples/onnxruntime/runtime.js';

const missing = whyNoOnnxRuntime();
const run = missing === undefined ? test.serial : test.serial.skip;
const suffix = missing === undefined ? '' : ` [${missing}]`;

const MiB = 2 ** 20;
const WIDTH = 512; // elements of a token: 2 KiB
const LARGE_TOKENS = 32_768;
const LARGE_BYTES = LARGE_TOKENS * WIDTH * 4;

let onnxruntime: OnnxRuntime;
let session: OnnxSession;

if (missing === undefined) {
  test.before(async () => {
    onnxruntime = loadOnnxRuntime();
    session = await onnxruntime.InferenceSession.create(onnxModel({
      nodes: [{ operator: 'Gather', domain: '', inputs: ['data', 'token'], outputs: ['output'] }],
      inputs: [{ name: 'data', type: 'float32', shape: ['tokens', WIDTH] }, { name: 'token', type: 'int64', shape: [] }],
      outputs: [{ name: 'output', type: 'float32', shape: [WIDTH] }],
    }), { executionProviders: ['cpu'] });
  });
  test.after.always(() => session.release());
}

/** Two tensors of `tokens` tokens, with pages of 64 KiB: 32 tokens. */
function openCache(t: ExecutionContext, tokens: number): KvCache {
  const cache = new KvCache({
    model: { layers: 1, kvHeads: 8, headDim: 64, dtype: 'float32' }, slots: 2, maxTokens: tokens,
    memoryBudgetBytes: 2 * LARGE_BYTES, driver: 'host', pageBytes: 65_536,
  });
  t.teardown(() => cache.close());
  return cache;
}

function compute(cache: KvCache, tokens: readonly number[]): Sequence {
  const sequence = cache.acquire({ tokens });
  const batch = cache.createBatch();
  batch.add(sequence, tokens.length - sequence.cachedTokens);
  cache.prepare(batch);
  cache.commit(batch);
  return sequence;
}

const memoryOf = (sequence: Sequence, tensor = 0): Float32Array =>
  sequence.view(tensor).subarray(0, sequence.length * WIDTH) as Float32Array;

/** The different elements of one token of an input, as onnxruntime reads it. */
async function readToken(input: OnnxTensor, token: number): Promise<readonly number[]> {
  const index = new onnxruntime.Tensor('int64', BigInt64Array.of(BigInt(token)), []);
  const { output } = await session.run({ data: input, token: index });
  return [...new Set(output!.data as Float32Array)];
}

const tensorOf = (data: Float32Array): OnnxTensor =>
  new onnxruntime.Tensor('float32', data, [data.length / WIDTH, WIDTH]);

/** The most memory the process had at a time since before the work, beyond what it had then. */
async function growth(work: () => Promise<unknown>): Promise<number> {
  const before = process.memoryUsage.rss();
  await work();
  return resourceUsage().maxRSS * 1024 - before;
}

run(`onnxruntime reads what the cache holds when it runs, in whichever sequence it was written${suffix}`, async (t) => {
  const cache = openCache(t, 256);
  const prompt = Array.from({ length: 100 }, (_, at) => at);
  const first = compute(cache, prompt);
  const second = compute(cache, [...prompt, 7, 8, 9]);
  t.is(second.cachedBy.aliasedTokens, 96, 'three rows are one memory at two addresses');
  const input = tensorOf(memoryOf(second));
  for (const value of [1, 2]) {
    memoryOf(first).fill(value, 95 * WIDTH, 96 * WIDTH);
    t.deepEqual(await readToken(input, 95), [value]);
  }
});

run(`onnxruntime copies no input, and a copy would be noticed${suffix}`, async (t) => {
  const cache = openCache(t, LARGE_TOKENS);
  const small = compute(cache, [1]);
  await readToken(tensorOf(memoryOf(small)), 0); // what a first run takes is taken
  small.release();
  const sequence = compute(cache, Array.from({ length: LARGE_TOKENS }, (_, at) => at));
  for (const tensor of [0, 1]) {
    const memory = memoryOf(sequence, tensor);
    t.is(memory.byteLength, LARGE_BYTES);
    memory.fill(3 + tensor, memory.length - WIDTH);
    let read: readonly number[] = [];
    const bytes = await growth(async () => { read = await readToken(tensorOf(memory), LARGE_TOKENS - 1); });
    t.deepEqual(read, [3 + tensor]);
    t.true(bytes < LARGE_BYTES / 2, `an input of ${LARGE_BYTES / MiB} MiB took ${bytes / MiB} MiB: it was copied`);
    t.log(`tensor ${tensor}: ${(bytes / MiB).toFixed(1)} MiB for an input of ${LARGE_BYTES / MiB} MiB`);
  }
  const copied = await growth(() => readToken(tensorOf(memoryOf(sequence).slice()), LARGE_TOKENS - 1));
  t.true(copied >= LARGE_BYTES, `${copied / MiB} MiB`);
  t.log(`with a copy: ${(copied / MiB).toFixed(1)} MiB`);
});
