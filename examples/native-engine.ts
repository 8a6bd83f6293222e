// A native engine: a C++ addon that writes K and V into the cache and attends over them, on CPU threads, or on a stream where
// there is a GPU and nvcc. It reads the cache by two plain structs (include/virtual_kv.h), which `writeTensors` and
// `writeSequences` fill in one call each. The answers are checked against the same attention over ordinary arrays.
// Run it: npm run example -- native-engine

import { spawnSync } from 'node:child_process';

import { Driver, KvCache, type Sequence } from 'virtual-kv';

import { loadEngine } from './native-engine/addon.js';

const [LAYERS, KV_HEADS, QUERY_HEADS, DIM, SLOTS] = [2, 2, 4, 32, 4];
const hasNvcc = spawnSync('nvcc', ['--version']).status === 0;
const driver = Driver.open(hasNvcc ? 'auto' : 'host');
const onGpu = driver.info.kind === 'cuda';
const engine = loadEngine(onGpu);
const stream = onGpu ? driver.acquireStream() : 0n;

const cache = new KvCache({
  model: { layers: LAYERS, kvHeads: KV_HEADS, headDim: DIM, dtype: 'float32' },
  slots: SLOTS, maxTokens: 4_096, memoryBudgetBytes: 2 ** 26, driver, stream,
});
const tensors = new BigInt64Array(8 * cache.tensors.length);
cache.writeTensors(tensors); // once: tensors do not move
const sequences = new Int32Array(4 * SLOTS); // filled in each pass
const batch = cache.createBatch();

/** Stands for a model: rows that differ for every text, token, layer and head. */
function rowsOf(kind: number, layer: number, heads: number, places: readonly (readonly [text: number, token: number])[]): Float32Array {
  const width = heads * DIM;
  const rows = new Float32Array(places.length * width);
  places.forEach(([text, token], row) => {
    for (let i = 0; i < width; i += 1) rows[row * width + i] = Math.sin(kind + layer + 7 * text + 0.1 * token * (1 + i % 5) + 0.3 * i);
  });
  return rows;
}

/** softmax(q · Kᵀ / √dim) · V of the last token of a text, from the numbers that were put into the cache. */
function expected(layer: number, text: number, tokens: number, queryHead: number): number[] {
  const places = Array.from({ length: tokens }, (_, token) => [text, token] as const);
  const [keys, values] = [1, 2].map((kind) => rowsOf(kind, layer, KV_HEADS, places)) as [Float32Array, Float32Array];
  const query = rowsOf(3, layer, QUERY_HEADS, places.slice(-1)).subarray(queryHead * DIM, (queryHead + 1) * DIM);
  const head = Math.floor(queryHead / (QUERY_HEADS / KV_HEADS));
  const at = (token: number): number => (token * KV_HEADS + head) * DIM;
  const weights = places.map((_, token) => Math.exp(query.reduce((sum, q, i) => sum + q * keys[at(token) + i]!, 0) / Math.sqrt(DIM)));
  const total = weights.reduce((sum, weight) => sum + weight);
  return Array.from({ length: DIM }, (_, i) => weights.reduce((sum, weight, token) => sum + weight * values[at(token) + i]!, 0) / total);
}

let passes = 0;
let worst = 0;

/** One pass: so many new tokens of each sequence. Its slot is its text. */
function compute(entries: readonly (readonly [Sequence, number])[]): void {
  batch.clear();
  for (const [sequence, tokens] of entries) batch.add(sequence, tokens);
  cache.prepare(batch);
  const count = cache.writeSequences(batch, sequences);
  const places = entries.flatMap(([{ slot, length }, tokens]) => Array.from({ length: tokens }, (_, at) => [slot, length + at] as const));
  const ends = entries.map((_, index) => places.findLastIndex(([slot]) => slot === entries[index]![0].slot));
  for (let layer = 0; layer < LAYERS; layer += 1) {
    const [keys, values] = [rowsOf(1, layer, KV_HEADS, places), rowsOf(2, layer, KV_HEADS, places)];
    const output = new Float32Array(places.length * QUERY_HEADS * DIM);
    engine.attend(tensors, layer, sequences, count, QUERY_HEADS, keys, values, rowsOf(3, layer, QUERY_HEADS, places), output, stream);
    if (passes % 8 !== 0) continue; // the reference is slow
    entries.forEach(([{ slot, length }, tokens], index) => {
      const queryHead = (passes + layer) % QUERY_HEADS;
      const answer = output.subarray((ends[index]! * QUERY_HEADS + queryHead) * DIM).subarray(0, DIM);
      expected(layer, slot, length + tokens, queryHead).forEach((value, i) => { worst = Math.max(worst, Math.abs(value - answer[i]!)); });
    });
  }
  cache.commit(batch);
  passes += 1;
}

const [first, second] = [cache.acquire({ promptTokens: 600 }), cache.acquire({ promptTokens: 37 })];
compute([[first, 500], [second, 37]]);
compute([[first, 100], [second, 1]]); // a chunk beside a decoding sequence
for (let step = 0; step < 30; step += 1) compute([[second, 1], [first, 1]]);

const { mappedPages } = cache.counts();
console.log(`${passes} passes over ${first.length} and ${second.length} tokens in ${mappedPages} pages, on ${onGpu ? 'a stream' : 'CPU threads'}: ` +
  `largest difference ${worst.toExponential(1)}`);
for (const sequence of [first, second]) sequence.release();
cache.close();
if (onGpu) driver.releaseStream(stream);
driver.close();
if (!(worst < 1e-5)) process.exitCode = 1;
