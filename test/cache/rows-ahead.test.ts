// Rows that are asked for ahead of running sequences: what they may take, and what not.

import { lru } from 'virtual-kv';
import { cacheTest } from '../helpers/cache.js';

const model = { layers: 1, kvHeads: 1, headDim: 1024, dtype: 'float32' } as const;
const text = (first: number): number[] => Array.from({ length: 16 }, (_, at) => first + at); // two rows of 64 KiB

for (const [rows, mapper] of [[7, 'background'], [6, 'background'], [5, 'off']] as const) {
  cacheTest(`rows ahead take idle rows without a prefix before cached ones, and none without a mapper (${rows} rows, mapper ${mapper})`, {
    on: 'host', model, layout: 'fused', slots: 3, maxTokens: 64, mapper, memoryBudgetBytes: rows * 65_536, growth: undefined, prefixCache: { policy: lru() },
  }, async (t, bench) => {
    const { cache } = bench;
    for (const first of [100, 200]) {
      const sequence = cache.acquire({ tokens: text(first) });
      bench.compute(sequence, 16);
      await cache.settled();
      sequence.release();
    }
    t.is(cache.prefixes.metrics.droppedRows.evicted, 0);
    t.is(cache.prefixes.lookup({ tokens: [...text(100), 1] }).cachedTokens, 16);
  });
}
