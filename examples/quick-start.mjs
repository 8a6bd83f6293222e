// The smallest program: one cache, one sequence, a prompt and a few decoded tokens. No GPU needed.
// Run it: npm run example -- quick-start

import { KvCache } from 'virtual-kv';

const cache = new KvCache({
  model: { layers: 16, kvHeads: 8, headDim: 64, dtype: 'float16' }, // Llama 3.2 1B
  slots: 64, maxTokens: 131_072, // 256 GiB of addresses, and no memory yet
  memoryBudgetBytes: 2 ** 30,
});
const { key } = cache.layer(0);
const sequence = cache.acquire({ promptTokens: 700 });
const batch = cache.createBatch();
for (const tokens of [700, 1, 1, 1]) { // the prompt, then one token a step
  batch.clear();
  batch.add(sequence, tokens);
  cache.prepare(batch); // from here these tokens have memory: run the kernels on key.addressOf(sequence) and key.strides
  cache.commit(batch); // their K and V are valid
}
const { mappedPages } = cache.counts();
console.log(`${sequence.length} tokens in ${mappedPages} pages; K of layer 0 at 0x${key.addressOf(sequence).toString(16)}`);
sequence.release();
cache.close();
