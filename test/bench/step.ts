// The cost of a decoding step: `prepare` and `commit` of 256 sequences that have room. Goal: 10 µs together, and no object
// allocated per token, which is counted as bytes of heap per step.

import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { MockDevice } from 'virtual-kv/testing';
import { KvCache, onDemand } from 'virtual-kv';

import { format, microseconds, percentiles, type BenchResult } from './measure.js';

const sequences = 256;
const steps = 20_000;

export function step(): BenchResult {
  const mock = new MockDevice({ memoryBytes: 2 ** 42, backing: 'none' });
  const cache = new KvCache({
    work: 'awaited', model: { layers: 32, kvHeads: 8, headDim: 128, dtype: 'float16' }, slots: sequences, maxTokens: 131_072,
    memoryBudgetBytes: 2 ** 42, driver: mock.driver, growth: onDemand(),
  });
  const batch = cache.createBatch();
  const leases = Array.from({ length: sequences }, () => cache.acquire());
  const run = (): void => {
    batch.clear();
    for (const sequence of leases) batch.add(sequence, 1);
  };
  // A row holds 1,024 tokens: room for all that follows, mapped before anything is timed.
  for (const sequence of leases) batch.add(sequence, 2 * steps);
  cache.prepare(batch);
  cache.discard(batch);

  const times = new Float64Array(steps);
  const pass = (): void => {
    for (let index = 0; index < steps; index += 1) {
      run();
      times[index] = microseconds(() => {
        cache.prepare(batch);
        cache.commit(batch);
      });
    }
  };
  pass();
  for (const sequence of leases) sequence.truncate(0);
  pass();
  const { p50, p99 } = percentiles(times);

  for (const sequence of leases) sequence.truncate(0);
  collectGarbage();
  const before = process.memoryUsage().heapUsed;
  for (let index = 0; index < 2_000; index += 1) {
    run();
    cache.prepare(batch);
    cache.commit(batch);
  }
  const heapBytes = Math.max(0, process.memoryUsage().heapUsed - before) / 2_000;
  cache.close();
  mock.close();
  return {
    name: `prepare + commit, ${sequences} decoding sequences, no growth`,
    value: `${format(p50, 2)} µs (p99 ${format(p99, 2)}), ${format(heapBytes)} heap bytes per step`,
    against: 'goal ≤ 10 µs, nothing allocated per token',
    isGoalMet: p50 <= 10 && heapBytes < sequences,
    numbers: { p50Us: p50, p99Us: p99, heapBytesPerStep: heapBytes },
  };
}

/** So that what is counted afterwards was allocated afterwards. */
function collectGarbage(): void {
  setFlagsFromString('--expose-gc');
  (runInNewContext('gc') as () => void)();
}
