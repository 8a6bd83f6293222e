// A toy engine: one attention layer in plain JavaScript, straight over the cache's memory. Two sequences grow side by side,
// far past one page, and the loop over a sequence's tokens is the one for a plain contiguous tensor: no block table, no
// gather. The answer is checked against the same attention over ordinary arrays.
// Run it: npm run example -- toy-engine

import { KvCache, type Sequence, type TensorView } from 'virtual-kv';

const HEADS = 2;
const DIM = 16;
const TOKENS = 1500;

const cache = new KvCache({
  model: { layers: 1, kvHeads: HEADS, headDim: DIM, dtype: 'float32' },
  slots: 2, maxTokens: 4096, memoryBudgetBytes: 8 * 2 ** 20, driver: 'host', pageBytes: 65_536,
});
const { key, value } = cache.layer(0);
const { token: tokenStride, head: headStride } = key.strides; // in elements

/** Stands for a model: numbers that differ for every sequence, token, head and element. */
function project(kind: number, sequence: number, token: number): Float32Array {
  return Float32Array.from({ length: HEADS * DIM }, (_, i) => Math.sin(kind + 7 * sequence + 0.1 * token + 0.3 * i));
}

/** softmax(q · Kᵀ) · V of one head, reading element i of `token` at `at(token) + i`. */
function attend(query: Float32Array, k: TensorView, v: TensorView, tokens: number, at: (token: number) => number): number[] {
  const scores = Array.from({ length: tokens }, (_, token) =>
    Math.exp(query.reduce((sum, q, i) => sum + q * k[at(token) + i]!, 0) / Math.sqrt(DIM)));
  const total = scores.reduce((sum, score) => sum + score);
  return Array.from({ length: DIM }, (_, i) =>
    scores.reduce((sum, score, token) => sum + score * v[at(token) + i]!, 0) / total);
}

const sequences: Sequence[] = [cache.acquire(), cache.acquire()];
const plain = sequences.map(() => ({ k: new Float32Array(TOKENS * HEADS * DIM), v: new Float32Array(TOKENS * HEADS * DIM) }));
const batch = cache.createBatch();
let worst = 0;

for (let token = 0; token < TOKENS; token += 1) {
  batch.clear();
  for (const sequence of sequences) batch.add(sequence, 1);
  cache.prepare(batch); // every sequence has memory for one more token
  sequences.forEach((sequence, index) => {
    const [k, v] = [key.view(sequence), value.view(sequence)]; // this sequence's mapped tokens, as the memory itself
    for (const [view, copy, kind] of [[k, plain[index]!.k, 1], [v, plain[index]!.v, 2]] as const) {
      const row = project(kind, index, token);
      for (let head = 0; head < HEADS; head += 1) {
        view.set(row.subarray(head * DIM, (head + 1) * DIM), token * tokenStride + head * headStride);
      }
      copy.set(row, token * HEADS * DIM);
    }
    if (token % 100 !== 99) return; // attention itself is slow in plain JavaScript
    for (let head = 0; head < HEADS; head += 1) {
      const query = project(3, index, token).subarray(head * DIM, (head + 1) * DIM);
      const ours = attend(query, k, v, token + 1, (t) => t * tokenStride + head * headStride);
      const reference = attend(query, plain[index]!.k, plain[index]!.v, token + 1, (t) => (t * HEADS + head) * DIM);
      ours.forEach((value, i) => { worst = Math.max(worst, Math.abs(value - reference[i]!)); });
    }
  });
  cache.commit(batch); // these tokens' K and V are valid
}

const { foregroundMaps, backgroundMaps } = cache.metrics;
console.log(`${sequences.length} sequences of ${TOKENS} tokens; ${foregroundMaps} pages mapped while the engine waited, ` +
  `${backgroundMaps} behind its back; largest difference ${worst}`);
for (const sequence of sequences) sequence.release();
cache.close();
if (worst !== 0) process.exitCode = 1;
