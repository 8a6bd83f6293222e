// A step of 4 sequences of 4,096 tokens each, on one thread: onnxruntime-node with pasts as tensors,
// `GroupQueryAttention` of onnxruntime in place through its C API, and the engine of virtual-kv/onnx. K and V are
// zeros, which cost what others do.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import * as path from 'node:path';

import { KvCache, type EnginePass } from 'virtual-kv';
import { OnnxDecoder } from 'virtual-kv/onnx';

import { elements } from '#internal/onnx/graph.js';
import { libraryOf } from '#internal/onnx/library.js';
import { OnnxSession, type OnnxInput } from '#internal/onnx/session.js';
import { median } from '../measure.js';
import { shapes, type ShapeName } from './shapes.js';

const sequences = 4;
const tokens = 4_096;
const steps = 7;

/** Medians of the processor time of a step, in ms. */
export interface DecodeTimes {
  readonly stock: number;
  readonly inPlace: number;
  readonly ours: number;
  readonly oursHalf: number;
}

/** The median of the processor time of `step`, after two. */
async function timed(step: () => Promise<unknown>): Promise<number> {
  const times: number[] = [];
  for (let at = 0; at < steps + 2; at += 1) {
    const before = process.cpuUsage();
    await step();
    const { user, system } = process.cpuUsage(before);
    if (at >= 2) times.push((user + system) / 1e3);
  }
  return median(times);
}

interface StockTensor {
  readonly data: Float32Array;
}

interface Stock {
  readonly Tensor: new (type: string, data: Float32Array | BigInt64Array, dims: readonly number[]) => StockTensor;
  readonly InferenceSession: {
    create(
      file: string,
      options: object,
    ): Promise<{
      run(feeds: Record<string, StockTensor>): Promise<Record<string, StockTensor>>;
      release(): Promise<void>;
    }>;
  };
}

export async function decodeTimes(home: string, folder: string, name: ShapeName): Promise<DecodeTimes> {
  const file = path.join(folder, 'onnx', 'model_q4.onnx');
  const package_ = path.join(home, 'node_modules', 'onnxruntime-node');
  const library = libraryOf(package_);
  const { layers, kvHeads, dim, vocabulary } = shapes[name];
  const ids = new BigInt64Array(sequences).fill(7n);
  const mask = new BigInt64Array(sequences * (tokens + 1)).fill(1n);
  const pasts = Array.from({ length: layers }, (_, layer) => ['key', 'value'].map((kind) => `${layer}.${kind}`)).flat();

  const stock = createRequire(path.join(home, 'package.json'))('onnxruntime-node') as Stock;
  const one = new BigInt64Array(1).fill(1n);
  const session = await stock.InferenceSession.create(file, { executionProviders: ['cpu'], intraOpNumThreads: 1 });
  const feeds: Record<string, StockTensor> = {
    input_ids: new stock.Tensor('int64', ids, [sequences, 1]),
    attention_mask: new stock.Tensor('int64', mask, [sequences, tokens + 1]),
    num_logits_to_keep: new stock.Tensor('int64', one, []),
  };
  const pastDims = [sequences, kvHeads, tokens, dim];
  for (const past of pasts)
    feeds[`past_key_values.${past}`] = new stock.Tensor(
      'float32',
      new Float32Array(sequences * kvHeads * tokens * dim),
      pastDims,
    );
  const stockMs = await timed(() => session.run(feeds));
  await session.release();
  for (const past of pasts) delete feeds[`past_key_values.${past}`];

  const own = await OnnxSession.open({ library, folder: '', threads: 1, model: readFileSync(file) });
  const room = pasts.map(() => new Float32Array(sequences * kvHeads * (tokens + 1) * dim)); // past and present in one place
  const roomDims = [sequences, kvHeads, tokens + 1, dim];
  const kept = (prefix: string): OnnxInput[] =>
    pasts.map((past, at) => ({ name: `${prefix}.${past}`, type: elements.float32, dims: roomDims, data: room[at]! }));
  const inPlace = await timed(() =>
    own.run({
      inputs: [
        { name: 'input_ids', type: elements.int64, dims: [sequences, 1], data: ids },
        { name: 'attention_mask', type: elements.int64, dims: [sequences, tokens + 1], data: mask },
        { name: 'num_logits_to_keep', type: elements.int64, dims: [], data: one },
        ...kept('past_key_values'),
      ],
      outputs: [
        {
          name: 'logits',
          type: elements.float32,
          dims: [sequences, 1, vocabulary],
          data: new Float32Array(sequences * vocabulary),
        },
        ...kept('present'),
      ],
    }),
  );
  own.close();

  const decoder = await OnnxDecoder.open(file, { library, threads: 1 });
  const ours: number[] = [];
  for (const dtype of ['float32', 'bfloat16'] as const) {
    using cache = new KvCache({
      model: decoder.model({ dtype }),
      driver: 'host',
      slots: sequences,
      maxTokens: tokens + 64,
      memoryBudgetBytes: 2 ** 32,
      pageBytes: 65_536,
      prefixCache: 'off',
    });
    const engine = decoder.engine(cache);
    const members = Array.from({ length: sequences }, () => cache.acquire({ promptTokens: tokens + 1 }));
    const batch = cache.createBatch();
    for (const sequence of members) batch.add(sequence, tokens + 1);
    cache.prepare(batch);
    cache.commit(batch);
    for (const [tensor] of cache.tensors.entries()) for (const sequence of members) sequence.view(tensor).fill(0);
    const ones = new Int32Array(sequences).fill(1);
    const pass: EnginePass = {
      length: sequences,
      slots: Int32Array.from(members, ({ slot }) => slot),
      positions: new Int32Array(sequences).fill(tokens),
      tokenCounts: ones,
      starts: Int32Array.from(members, (_, row) => row),
      tokens: new Int32Array(sequences).fill(7),
      wantsLogits: Uint8Array.from(ones),
      sequences: members,
      contextTokens: members.map(() => new Int32Array(0)),
      inputs: members.map(() => undefined),
      items: members.map(() => []),
      adapters: members.map(() => undefined),
      signal: new AbortController().signal,
    };
    ours.push(await timed(() => engine.decode(pass)));
  }
  decoder.close();
  return { stock: stockMs, inPlace, ours: ours[0]!, oursHalf: ours[1]! };
}
