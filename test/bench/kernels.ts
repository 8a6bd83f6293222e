// The CPU kernels against the machine: decode attention reads K and V once, so its speed is memory's; copies are memcpy with
// all threads. Measured in the same run is what this memory gives: the traffic (read and written) of copyTokens, which is a
// memcpy per thread. Prefill is bound by arithmetic and is given in GFLOP/s.

import { Kernels, KvCache, layoutKinds, onDemand, type Dtype, type ModelShape, type RowDtype } from 'virtual-kv';

import { format, median, microseconds, type BenchResult } from './measure.js';

const kvHeads = 8;
const dim = 128;
const contextTokens = 65_536;
const runs = 15;

interface Shape {
  readonly dtype: RowDtype;
  readonly group: number;
}

/** A cache of one layer with two full slots, written once, so that every page has its own memory. */
function openCache(dtype: Dtype): KvCache {
  const cache = new KvCache({
    model: { layers: 1, kvHeads, headDim: dim, dtype }, slots: 2, maxTokens: contextTokens, memoryBudgetBytes: 4 * 2 ** 30,
    driver: 'host', growth: onDemand(), mapper: 'off',
  });
  const batch = cache.createBatch();
  for (const sequence of [cache.acquire(), cache.acquire()]) batch.add(sequence, contextTokens);
  cache.prepare(batch);
  const kernels = new Kernels({ cache });
  const chunk = 1024;
  const rows = Float32Array.from({ length: chunk * kvHeads * dim }, (_, i) => Math.sin(i));
  for (let from = 0; from < contextTokens; from += chunk) {
    for (const slot of [0, 1]) {
      kernels.append(0, { slots: Int32Array.of(slot), lengths: Int32Array.of(from), tokens: Int32Array.of(chunk) }, rows, rows);
    }
  }
  kernels.close();
  cache.commit(batch);
  return cache;
}

function measure(run: () => void): number {
  run();
  return median(Array.from({ length: runs }, () => microseconds(run)));
}

function decode({ dtype, group }: Shape, sequences: number): BenchResult {
  using cache = openCache(dtype);
  using kernels = new Kernels({ cache, queryHeads: kvHeads * group });
  // The last token of each slot is the new one.
  const count = Math.min(2, sequences);
  const spans = {
    slots: Int32Array.of(0, 1), lengths: new Int32Array(2).fill(contextTokens - 1), tokens: new Int32Array(2).fill(1), count,
  };
  const queries = Float32Array.from({ length: count * kvHeads * group * dim }, (_, i) => Math.cos(i));
  const output = new Float32Array(queries.length);
  const decodeUs = measure(() => kernels.decodeAttention(0, spans, queries, output));
  const copyUs = measure(() => kernels.copyTokens([
    { fromSlot: 0, fromToken: 0, toSlot: 1, toToken: 0, tokens: contextTokens },
  ]));
  const bytes = cache.layout.usedBytes(contextTokens);
  const decodeRate = (count * bytes) / decodeUs / 1e3;
  const copyRate = (2 * bytes) / copyUs / 1e3;
  return {
    name: `decode attention on host, ${dtype}, ${kvHeads} KV heads × ${group}, ${count} × ${contextTokens} tokens, ${kernels.target}`,
    value: `${format(decodeRate)} GB/s of K and V`,
    against: `${format(100 * (decodeRate / copyRate), 0)} % of the traffic of memcpy on all threads (${format(copyRate)} GB/s); goal ≥ 80 %`,
    isGoalMet: decodeRate >= 0.8 * copyRate,
    numbers: { decodeGBPerS: decodeRate, copyTrafficGBPerS: copyRate, ratio: decodeRate / copyRate },
  };
}

function prefill(dtype: RowDtype): BenchResult {
  using cache = openCache(dtype);
  const group = 4;
  const [cached, tokens] = [3072, 1024];
  using kernels = new Kernels({ cache, queryHeads: kvHeads * group });
  const spans = { slots: Int32Array.of(0), lengths: Int32Array.of(cached), tokens: Int32Array.of(tokens) };
  const queries = Float32Array.from({ length: tokens * kvHeads * group * dim }, (_, i) => Math.cos(i));
  const output = new Float32Array(queries.length);
  const us = median(Array.from({ length: 3 }, () => microseconds(() => kernels.prefillAttention(0, spans, queries, output))));
  const operations = 4 * kvHeads * group * dim * tokens * (cached + tokens / 2);
  return {
    name: `prefill attention on host, ${dtype}, ${tokens} new tokens behind ${cached}, ${kvHeads} KV heads × ${group}`,
    value: `${format(us / 1e3)} ms, ${format(operations / us / 1e3, 0)} GFLOP/s`,
    against: 'no goal',
    isGoalMet: undefined,
    numbers: { ms: us / 1e3, gflopPerS: operations / us / 1e3 },
  };
}

/** Tokens of each of so many sequences whose every layer is read, as a decoding step does. */
const layoutTokens = 1_024;
const layoutSequences = 8;

/** Decode attention over all layers of a model by layout: a token's next lies behind those of all layers in `sliced` and `fused`. */
function layouts(name: string, model: ModelShape, group: number): BenchResult {
  const scenes = layoutKinds.map((layout) => {
    const cache = new KvCache({
      model, layout, slots: layoutSequences, maxTokens: layoutTokens, memoryBudgetBytes: 4 * 2 ** 30,
      driver: 'host', growth: onDemand(), mapper: 'off', prefixCache: 'off',
    });
    const batch = cache.createBatch();
    const slots = Int32Array.from({ length: layoutSequences }, () => {
      const sequence = cache.acquire();
      batch.add(sequence, layoutTokens);
      return sequence.slot;
    });
    cache.prepare(batch);
    const kernels = new Kernels({ cache, queryHeads: model.kvHeads! * group });
    const fill = { slots, lengths: new Int32Array(layoutSequences), tokens: new Int32Array(layoutSequences).fill(layoutTokens) };
    const rows = Float32Array.from({ length: layoutSequences * layoutTokens * model.kvHeads! * model.headDim! }, (_, i) => Math.sin(i));
    for (let layer = 0; layer < model.layers; layer += 1) kernels.append(layer, fill, rows, rows);
    cache.commit(batch);
    const spans = { slots, lengths: fill.lengths.fill(layoutTokens - 1), tokens: fill.tokens.fill(1) };
    const queries = Float32Array.from({ length: layoutSequences * model.kvHeads! * group * model.headDim! }, (_, i) => Math.cos(i));
    const output = new Float32Array(queries.length);
    const times: number[] = [];
    const step = (): void => {
      for (let layer = 0; layer < model.layers; layer += 1) kernels.decodeAttention(layer, spans, queries, output);
    };
    return { layout, cache, kernels, step, times };
  });
  for (let round = 0; round < runs + 2; round += 1) {
    for (const { step, times } of scenes) times.push(microseconds(step));
  }
  const [perLayer, sliced, fused] = scenes.map(({ times }) => median(times.slice(2))) as [number, number, number];
  for (const { kernels, cache } of scenes) {
    kernels.close();
    cache.close();
  }
  return {
    name: `decode attention on host by layout, ${name}, ${layoutSequences} × ${layoutTokens} tokens`,
    value: `sliced ${format(sliced / perLayer, 2)} × the time of per-layer, fused ${format(fused / perLayer, 2)} ×`,
    against: `per-layer ${format(perLayer / 1e3)} ms a step`,
    isGoalMet: undefined,
    numbers: { perLayerMs: perLayer / 1e3, slicedRatio: sliced / perLayer, fusedRatio: fused / perLayer },
  };
}

export function kernels(): BenchResult[] {
  return [
    decode({ dtype: 'float16', group: 4 }, 1), decode({ dtype: 'float16', group: 1 }, 1), decode({ dtype: 'float16', group: 8 }, 1),
    decode({ dtype: 'bfloat16', group: 4 }, 2), decode({ dtype: 'float32', group: 4 }, 1),
    prefill('float16'),
    layouts('Llama 3 8B', { layers: 32, kvHeads: 8, headDim: 128, dtype: 'float16' }, 4),
    layouts('Llama 3.2 1B', { layers: 16, kvHeads: 8, headDim: 64, dtype: 'float16' }, 4),
    layouts('SmolLM2 360M', { layers: 32, kvHeads: 5, headDim: 64, dtype: 'float16' }, 3),
  ];
}
