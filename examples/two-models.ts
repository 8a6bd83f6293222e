// Two models on one GPU's worth of memory: each has a cache of its own, and both draw from one pool of pages. Memory that one
// model does not use goes to the other, without a restart and without dividing it beforehand.
// Run it: npm run example -- two-models

import { KvCache, PagePool, type Sequence } from 'virtual-kv';

const pool = new PagePool({ memoryBudgetBytes: 128 * 2 ** 20, driver: 'host' });
const shared = { slots: 8, maxTokens: 32_768, pool };
const chat = new KvCache({ ...shared, model: { layers: 8, kvHeads: 8, headDim: 128, dtype: 'float16' } });
const draft = new KvCache({ ...shared, model: { layers: 2, kvHeads: 4, headDim: 64, dtype: 'float16' } });

/** Fills a new sequence of `cache` with `tokens` tokens. */
function prefill(cache: KvCache, tokens: number): Sequence {
  const sequence = cache.acquire({ promptTokens: tokens });
  const batch = cache.createBatch(1);
  batch.add(sequence, tokens);
  cache.prepare(batch);
  cache.commit(batch);
  return sequence;
}

function report(what: string): void {
  const { budgetPages, mappedPages } = pool.counts();
  console.log(`${what}: chat has ${chat.counts().mappedPages} pages, draft ${draft.counts().mappedPages}; ` +
    `${budgetPages - mappedPages} of ${budgetPages} are free`);
}

const first = prefill(chat, 2_000);
report('chat answers a request');
first.release();
report('it is over, its pages stay mapped for the next');

const others = [1, 2, 3].map(() => prefill(draft, 14_000)); // more than is free
report('draft has a rush, and takes the idle pages');

for (const sequence of others) sequence.release();
prefill(chat, 2_500).release();
report('chat again');

for (const cache of [chat, draft]) {
  cache.verify();
  cache.close();
}
pool.close();
