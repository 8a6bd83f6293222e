// Three requests with one system prompt: what each gets from the cache, how, and what it saves. The shapes are those of Yi-34B on
// one of two GPUs; the device is simulated and only counts its pages, so this runs anywhere.
// Run it: npm run example -- shared-prefix

import { KvCache, type Sequence } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

const GiB = 2 ** 30;
const device = new MockDevice({ memoryBytes: 32 * GiB, backing: 'none' });
const cache = new KvCache({
  model: { layers: 60, kvHeads: 8, headDim: 128, dtype: 'float16', parallel: { tensor: 2 } },
  slots: 8, maxTokens: 204_800, memoryBudgetBytes: 32 * GiB, driver: device.driver, // a row: 120 pages of 2 MiB, 2,048 tokens
});
const batch = cache.createBatch();

/** Stands for a tokenizer. */
const text = (length: number, seed: number): number[] => Array.from({ length }, (_, at) => (seed * 7919 + at * 31) % 64_000);

/** Stands for the prefill: only tokens that are not cached are computed. */
function prefill(name: string, tokens: number[]): Sequence {
  const sequence = cache.acquire({ tokens });
  const computed = tokens.length - sequence.cachedTokens;
  batch.clear();
  batch.add(sequence, computed);
  cache.prepare(batch);
  cache.commit(batch);
  const { adoptedTokens, aliasedTokens, copiedTokens } = sequence.cachedBy;
  console.log(`${name}: ${tokens.length} tokens, ${sequence.cachedTokens} cached (${adoptedTokens} adopted, ${aliasedTokens} aliased, ` +
    `${copiedTokens} copied), ${computed} computed`);
  return sequence;
}

const system = text(5_000, 1);
const first = [...system, ...text(28_000, 2)];
const one = prefill('first request        ', first);
const two = prefill('another user         ', [...system, ...text(28_000, 3)]);

const mapped = cache.counts().mappedPages; // every mapping, as if nothing were shared
const real = cache.pool.counts().mappedPages;
console.log(`two sequences map ${mapped} pages and have ${real}: ${(mapped - real) * 2} MiB saved`);

one.release(); // its rows stay mapped until other sequences need them
const three = prefill('first one, next turn ', [...first, ...text(300, 4)]);
console.log(`hit rate: ${(100 * cache.prefixes.metrics.hitRate).toFixed(1)} % of all prompt tokens`);

two.release();
three.release();
cache.close();
device.close();
