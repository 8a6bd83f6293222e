// Steady decode: 256 sequences of different lengths, a step of simulated compute between `prepare` and `commit`, and the
// mapper in the background. Goal: no page mapped in the foreground once warm. Compared with growth on demand, where each
// row's mapping is waited for: the 99th percentile of a step's overhead shows what the mapper hides.

import { ahead, KvCache, onDemand } from 'virtual-kv';

import { format, microseconds, percentiles, type BenchResult } from './measure.js';

const sequences = 256;
const steps = 1_500;
const computeMs = 2; // a fast engine; the mapper has this long to be ahead
const nothing = new Int32Array(new SharedArrayBuffer(4));

interface Run {
  readonly foregroundMaps: number;
  readonly backgroundMaps: number;
  readonly maxUs: number;
  readonly p99Us: number;
}

export function decode(): BenchResult {
  const mapped = run(ahead(16));
  const demanded = run(onDemand());
  return {
    name: `steady decode, ${sequences} sequences, ${format(steps, 0)} steps of ${computeMs} ms`,
    value: `${mapped.foregroundMaps} foreground maps (${format(mapped.backgroundMaps, 0)} in the background), ` +
      `p99 of a step ${format(mapped.p99Us)} µs`,
    against: `goal 0; on demand: ${format(demanded.foregroundMaps, 0)} maps, p99 of a step ${format(demanded.p99Us)} µs`,
    isGoalMet: mapped.foregroundMaps === 0 && mapped.backgroundMaps > 0,
    numbers: {
      foregroundMaps: mapped.foregroundMaps, backgroundMaps: mapped.backgroundMaps,
      aheadP99Us: mapped.p99Us, aheadMaxUs: mapped.maxUs, onDemandP99Us: demanded.p99Us, onDemandMaxUs: demanded.maxUs,
    },
  };
}

function run(growth: ReturnType<typeof ahead>): Run {
  const cache = new KvCache({
    model: { layers: 8, kvHeads: 8, headDim: 64, dtype: 'float16' }, slots: sequences, maxTokens: 8_192, growth,
    memoryBudgetBytes: 12 * 2 ** 30, driver: 'host', pageBytes: 256 * 1024,
  });
  const batch = cache.createBatch();
  const leases = Array.from({ length: sequences }, () => cache.acquire());
  leases.forEach((sequence, index) => batch.add(sequence, 1 + 3 * index)); // rows of 256 tokens end at different steps
  cache.prepare(batch);
  cache.commit(batch);
  for (let warm = 0; warm < 20; warm += 1) Atomics.wait(nothing, 0, 0, computeMs);

  const before = cache.metrics;
  const times: number[] = [];
  for (let index = 0; index < steps; index += 1) {
    batch.clear();
    for (const sequence of leases) batch.add(sequence, 1);
    let us = microseconds(() => cache.prepare(batch));
    Atomics.wait(nothing, 0, 0, computeMs);
    us += microseconds(() => cache.commit(batch));
    times.push(us);
  }
  const after = cache.metrics;
  const { p99, max } = percentiles(times);
  cache.close();
  return {
    foregroundMaps: after.foregroundMaps - before.foregroundMaps,
    backgroundMaps: after.backgroundMaps - before.backgroundMaps, p99Us: p99, maxUs: max,
  };
}
