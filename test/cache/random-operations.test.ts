// 100,000 random operations on one cache, against a model, with the mapper running: acquire with and without a reservation,
// steps of random chunks, releases behind fences, truncation, changing budgets. VKV_TEST_SEED repeats a
// run, VKV_TEST_SCALE (0 … 1) makes it shorter.

import test from 'ava';

import { ahead } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { CacheBench, type BenchOptions } from '../helpers/cache.js';
import { assertNothingHeld } from '../helpers/nothing-held.js';
import { seedOf } from '../helpers/seed.js';
import { RandomWorld } from './random-world.js';
import { scaled } from '../runner/tier.js';

const operations = scaled(100_000);

const common = {
  slots: 12, maxTokens: 2000, growth: ahead(64), eagerRows: 1, scrub: 'between-tenants', memoryBudgetBytes: 0,
} as const;

/** Rows of 64 tokens in pages of 4 KiB, and of 256 tokens in pages of 64 KiB; a budget of about a third of what all could use. */
const worlds: Readonly<Record<string, BenchOptions>> = {
  mock: {
    ...common, on: 'mock', model: { layers: 2, kvHeads: 1, headDim: 32, dtype: 'float16' }, pageBytes: 4096,
    memoryBudgetBytes: 130 * 4 * 4096, device: { granularityBytes: 4096, streams: 'manual', hasGarbage: true, journalEntries: 0 },
  },
  'mock, layers that differ': {
    ...common, on: 'mock', layout: 'sliced', pageBytes: 4096, memoryBudgetBytes: 400 * 4096, idleRowsLimit: 60,
    model: { layers: 3, kvHeads: 1, headDim: 20, valueHeadDim: 12, dtype: 'float16' },
    device: { granularityBytes: 4096, streams: 'manual', hasGarbage: true, journalEntries: 0 },
  },
  host: {
    ...common, on: 'host', model: { layers: 2, kvHeads: 1, headDim: 128, dtype: 'float16' }, pageBytes: 65_536,
    memoryBudgetBytes: 35 * 4 * 65_536,
  },
};

for (const [name, options] of Object.entries(worlds)) {
  const seed = seedOf(name);
  test.serial(`${operations} operations agree with the model, seed ${seed} (${name})`, async (t) => {
    t.log(`VKV_TEST_SEED=${seed}`);
    const bench = new CacheBench(t, options);
    const world = new RandomWorld(bench, new Random(seed));
    let operation = 0;
    try {
      for (; operation < operations; operation += 1) await world.operate();
      await world.end();
    } catch (error) {
      t.log(`at operation ${operation}`, bench.cache.inspect()['pool']);
      bench.abandon();
      throw error;
    }
    t.log(JSON.stringify(world.counts));
    const { foregroundRows, backgroundRows, unmappedRows, scrubbedPages, droppedRequests } = bench.cache.metrics;
    t.log(JSON.stringify({ foregroundRows, backgroundRows, unmappedRows, scrubbedPages, droppedRequests }));
    for (const [what, value] of Object.entries({ foregroundRows, backgroundRows, unmappedRows, scrubbedPages })) {
      t.true(operations < 20_000 || value > 100, `${what}: ${value}`);
    }
    assertNothingHeld(t, bench.cache);
    bench.close();
  });
}
