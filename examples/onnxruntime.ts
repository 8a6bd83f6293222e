// A third-party kernel: onnxruntime's MultiHeadAttention on the CPU reads K and V of sequences in the cache's own memory,
// as plain contiguous tensors [1, token, head · dim], while pages are mapped as they grow. Every decoding step is compared with this
// package's kernel; the two sequences share the pages of their common prompt.
// Run it: npm run example -- onnxruntime

import { Kernels, KvCache, type Sequence } from 'virtual-kv';

import { runExample } from './console/command.js';
import { onnxModel } from './onnxruntime/onnx-model.js';
import { loadOnnxRuntime, whyNoOnnxRuntime, type OnnxTensor } from './onnxruntime/runtime.js';

const HEADS = 8;
const DIM = 64;
const WIDTH = HEADS * DIM;
const PROMPT = 700;
const CHUNK = 256;
const LARGEST_ERROR = 1e-5;

const missing = whyNoOnnxRuntime();
if (missing !== undefined) {
  console.error(`This example cannot run: ${missing}.`);
  process.exit(1);
}
const onnxruntime = loadOnnxRuntime();
const cache = new KvCache({
  model: { layers: 1, kvHeads: HEADS, headDim: DIM, dtype: 'float32' },
  layout: 'per-layer', // a tensor's tokens follow each other
  slots: 4, maxTokens: 131_072, memoryBudgetBytes: 16 * 2 ** 20, driver: 'host', pageBytes: 65_536, // a row: 32 tokens
});
const kernels = new Kernels({ cache });
const batch = cache.createBatch();
const ours = new Float32Array(WIDTH);
let readBytes = 0;
let steps = 0;
let worst = 0;

/** Stands for a model: numbers that differ for every token, position and element. */
function project(kind: number, token: number, at: number): Float32Array {
  return Float32Array.from({ length: WIDTH }, (_, i) => Math.sin(kind + 0.37 * token + 0.011 * at * (1 + i % 7) + 0.61 * i));
}

/** K and V of the next tokens, written by our kernel. */
function append(sequence: Sequence, tokens: readonly number[]): void {
  const rows = (kind: number): Float32Array => {
    const all = new Float32Array(tokens.length * WIDTH);
    tokens.forEach((token, row) => all.set(project(kind, token, sequence.length + row), row * WIDTH));
    return all;
  };
  batch.clear();
  batch.add(sequence, tokens.length);
  cache.prepare(batch);
  kernels.append(0, batch, rows(1), rows(2));
}

/** The first tokens of a sequence in a tensor as an input of onnxruntime: the cache's own memory. */
function inPlace(sequence: Sequence, tensor: number, tokens: number): OnnxTensor {
  const memory = sequence.view(tensor).subarray(0, tokens * WIDTH) as Float32Array;
  readBytes += memory.byteLength;
  return new onnxruntime.Tensor('float32', memory, [1, tokens, WIDTH]);
}

async function main(): Promise<void> {
  const session = await onnxruntime.InferenceSession.create(onnxModel({
    nodes: [{
      operator: 'MultiHeadAttention', domain: 'com.microsoft', inputs: ['query', 'key', 'value'], outputs: ['output'],
      integers: { num_heads: HEADS },
    }],
    inputs: [
      { name: 'query', type: 'float32', shape: [1, 1, WIDTH] },
      { name: 'key', type: 'float32', shape: [1, 'tokens', WIDTH] },
      { name: 'value', type: 'float32', shape: [1, 'tokens', WIDTH] },
    ],
    outputs: [{ name: 'output', type: 'float32', shape: [1, 1, WIDTH] }],
  }), { executionProviders: ['cpu'] });

  /** Computes the tokens of the prompt that are not cached, in chunks. */
  const prefill = (prompt: readonly number[]): Sequence => {
    const sequence = cache.acquire({ tokens: prompt });
    while (sequence.length < prompt.length) {
      append(sequence, prompt.slice(sequence.length, sequence.length + CHUNK));
      cache.commit(batch);
    }
    return sequence;
  };

  /** New tokens, one a step: both kernels attend over everything the sequence holds. */
  const decode = async (name: string, sequence: Sequence, tokens: number): Promise<void> => {
    for (let step = 0; step < tokens; step += 1) {
      const [token, at] = [1000 + step, sequence.length];
      const query = project(3, token, at);
      append(sequence, [token]);
      kernels.decodeAttention(0, batch, query, ours);
      const { output } = await session.run({
        query: new onnxruntime.Tensor('float32', query, [1, 1, WIDTH]),
        key: inPlace(sequence, 0, at + 1), value: inPlace(sequence, 1, at + 1),
      });
      ours.forEach((value, i) => { worst = Math.max(worst, Math.abs(value - (output!.data[i] as number))); });
      steps += 1;
      cache.commit(batch);
    }
    const { cachedBy: { aliasedTokens }, length, mappedRows } = sequence;
    const shared = aliasedTokens > 0 ? `, ${aliasedTokens} of them in rows of the first` : '';
    console.log(`${name}: ${length} tokens in ${mappedRows} rows${shared}`);
  };

  const prompt = Array.from({ length: PROMPT }, (_, at) => (at * 31) % 997);
  const first = prefill(prompt);
  await decode('first sequence ', first, 68);
  const second = prefill([...prompt, 7, 77, 777]);
  await decode('second sequence', second, 40);
  await decode('first one again', first, 32); // the second one's tokens are not in it

  const MiB = 2 ** 20;
  const { virtualBytes, pageBytes } = cache.layout;
  const pages = cache.pool.counts().mappedPages;
  console.log(`memory: ${pages} pages, ${(pages * pageBytes / MiB).toFixed(1)} MiB, mapped ${cache.counts().mappedPages} times ` +
    `under ${virtualBytes / MiB} MiB of addresses; behind the rows there is none`);
  console.log(`onnxruntime's MultiHeadAttention and our kernel (${kernels.target}), ${steps} steps: ` +
    `largest difference ${worst.toExponential(1)}`);
  console.log(`read in place, not copied in: ${(readBytes / MiB).toFixed(1)} MiB of K and V`);
  if (!(worst <= LARGEST_ERROR)) {
    console.error(`The kernels differ by more than ${LARGEST_ERROR}.`);
    process.exitCode = 1;
  }

  await session.release();
  for (const sequence of [first, second]) sequence.release();
  kernels.close();
  cache.close();
}

runExample(main);
