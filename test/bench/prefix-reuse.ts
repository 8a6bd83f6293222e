// What a cached prefix costs and saves in memory, on host: one prompt of 12,000 tokens, of which 11,500 are cached, got by
// adoption, by aliases and by copying, against computing them at 20,000 tokens/s. And what sharing costs a request beside the
// index: many requests of rows of 16 tokens, on a device whose memory is only counted.

import { KvCache, onDemand, type Sequence } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { format, median, microseconds, type BenchResult } from './measure.js';

const promptTokens = 12_000;
const cachedTokens = 11_500;
const tokensPerSecond = 20_000;
/** Llama-3.2-1B: 32 tensors, 2,048 tokens in a row. */
const model = { layers: 16, kvHeads: 8, headDim: 64, dtype: 'float16' } as const;
const rounds = 3;

export function prefixReuse(): BenchResult[] {
  const recomputed = (cachedTokens / tokensPerSecond) * 1e6;
  const adopted = median(Array.from({ length: rounds }, () => adopt()));
  const aliased = median(Array.from({ length: rounds }, () => alias(Math.floor(cachedTokens / 2_048) * 2_048)));
  const copied = median(Array.from({ length: rounds }, () => alias(cachedTokens)));
  return [
    result('adopted', adopted, recomputed, cachedTokens),
    result('aliased', aliased, (recomputed * 10_240) / cachedTokens, 10_240),
    result('aliased, the last row copied', copied, recomputed, cachedTokens),
    manyRequests(),
  ];
}

function result(how: string, us: number, recomputed: number, tokens: number): BenchResult {
  return {
    name: `${format(tokens)} cached tokens on host: ${how}`,
    value: `${format(us)} µs for the whole acquire`,
    against: `${format(recomputed / us, 0)} × faster than computing them at ${format(tokensPerSecond)} tokens/s`,
    isGoalMet: undefined,
    numbers: { us, recomputed },
  };
}

function openCache(): KvCache {
  return new KvCache({
    model, slots: 4, maxTokens: 16_384, memoryBudgetBytes: 40 * 32 * 2 ** 21, driver: 'host', growth: onDemand(), mapper: 'off',
  });
}

const text = Int32Array.from({ length: promptTokens }, (_, index) => index);

/** A sequence that has computed the first `tokens` tokens of the text, every page touched. */
function computed(cache: KvCache, tokens: number): Sequence {
  const sequence = cache.acquire({ tokens: text.subarray(0, tokens) });
  const batch = cache.createBatch();
  batch.add(sequence, tokens);
  cache.prepare(batch);
  cache.stamp(sequence, 0, tokens, 1);
  cache.commit(batch);
  return sequence;
}

function adopt(): number {
  const cache = openCache();
  computed(cache, cachedTokens).release();
  const us = microseconds(() => check(cache.acquire({ tokens: text, reserve: 'none' }), cachedTokens));
  cache.close();
  return us;
}

/** From a running sequence, of which `tokens` tokens are the text's. */
function alias(tokens: number): number {
  const cache = openCache();
  computed(cache, cachedTokens);
  const other = text.slice();
  other.fill(7, tokens);
  const us = microseconds(() => check(cache.acquire({ tokens: other, reserve: 'none' }), tokens));
  cache.close();
  return us;
}

function check({ cachedTokens: found }: Sequence, tokens: number): void {
  if (found !== tokens) throw new Error(`found ${found} tokens, not ${tokens}`);
}

/** Half of each prompt is cached; a pool of 3,000,000 tokens is full and evicts all the while. */
function manyRequests(): BenchResult {
  const device = new MockDevice({ memoryBytes: 2 ** 40, granularityBytes: 65_536, backing: 'none', journalEntries: 0 });
  const cache = new KvCache({
    // 4,096 bytes a token in one tensor: 16 tokens in a page of 64 KiB.
    model: { layers: 1, attention: 'latent', latentDim: 2_048, dtype: 'float16' }, slots: 64, maxTokens: 16_384, driver: device.driver,
    pageBytes: 65_536, memoryBudgetBytes: (3_000_000 / 16) * 65_536, growth: onDemand(), mapper: 'off',
  });
  const batch = cache.createBatch();
  const prompt = new Int32Array(promptTokens);
  const times: number[] = [];
  for (let request = 0; request < 700; request += 1) {
    prompt.fill(request % 8, 0, promptTokens / 2);
    for (let index = promptTokens / 2; index < promptTokens; index += 1) prompt[index] = request * promptTokens + index;
    const us = microseconds(() => {
      const sequence = cache.acquire({ tokens: prompt, reserve: 'none' });
      batch.clear();
      batch.add(sequence, promptTokens - sequence.length);
      cache.prepare(batch);
      cache.commit(batch);
      sequence.release();
    });
    if (request >= 550) times.push(us);
  }
  const { hitRate } = cache.prefixes.metrics;
  const { foregroundMaps, aliasMaps, unmaps } = cache.metrics;
  cache.close();
  device.close();
  const us = median(times);
  const calls = (foregroundMaps + aliasMaps + unmaps) / 700;
  return {
    name: 'a request of 12,000 tokens, half cached, rows of 16 tokens, memory only counted',
    value: `${format(us)} µs with every map and unmap`,
    against: `${format(calls, 0)} pages mapped or unmapped, ${format((us * 1e3) / calls, 0)} ns each; hit rate ${format(100 * hitRate)} %`,
    isGoalMet: undefined,
    numbers: { us, calls },
  };
}
