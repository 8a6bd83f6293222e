// Opening the largest cache of the vAttention paper: 60 layers × 500 slots × 204,800 tokens, 12.6 TB of addresses.
// Goal: under 10 ms on host, and closing it as fast.

import { KvCache } from 'virtual-kv';

import { format, median, microseconds, type BenchResult } from './measure.js';

export function reserve(): BenchResult {
  const openTimes: number[] = [];
  const closeTimes: number[] = [];
  let virtualBytes = 0;
  for (let round = 0; round < 11; round += 1) {
    let cache: KvCache | undefined;
    openTimes.push(microseconds(() => {
      cache = new KvCache({
        model: { layers: 60, kvHeads: 4, headDim: 128, dtype: 'float16' }, slots: 500, maxTokens: 204_800,
        memoryBudgetBytes: 2 ** 30, driver: 'host',
      });
    }));
    virtualBytes = cache!.layout.virtualBytes;
    closeTimes.push(microseconds(() => cache!.close()));
  }
  const openMs = median(openTimes) / 1e3;
  return {
    name: `reserve ${format(virtualBytes / 1e12)} TB of addresses on host`,
    value: `${format(openMs, 2)} ms (close ${format(median(closeTimes) / 1e3, 2)} ms)`,
    against: 'goal < 10 ms',
    isGoalMet: openMs < 10,
    numbers: { openMs, closeMs: median(closeTimes) / 1e3, virtualBytes },
  };
}
