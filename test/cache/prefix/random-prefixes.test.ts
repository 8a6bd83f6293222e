// 100,000 random operations on requests that begin alike: acquire, compute in chunks, decode, fork, truncate, release behind
// fences, reset, on every driver, against a model, with and without shortage. VKV_TEST_SEED repeats a run, VKV_TEST_SCALE
// (0 … 1) makes it shorter.

import test from 'ava';

import { ahead } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { CacheBench, type BenchOptions } from '../../helpers/cache.js';
import { assertNothingHeld } from '../../helpers/nothing-held.js';
import { seedOf } from '../../helpers/seed.js';
import { PrefixWorld, type WorldOptions } from './prefix-world.js';
import { scale } from '../../runner/tier.js';

const device = { granularityBytes: 4096, hasGarbage: true, journalEntries: 0 } as const;
/** Rows of 8 tokens in pages of 4 KiB. */
const common = {
  on: 'mock', device, model: { layers: 1, kvHeads: 1, headDim: 256, dtype: 'float16' }, slots: 10, maxTokens: 200, pageBytes: 4096,
} as const satisfies BenchOptions;

interface World extends WorldOptions {
  readonly options: BenchOptions;
  readonly operations: number;
}

const worlds: Readonly<Record<string, World>> = {
  'room for everything': {
    options: { ...common, memoryBudgetBytes: 60_000 * 4096 }, isExact: true, alphabet: 2, operations: 8_000,
  },
  'short of pages': {
    options: { ...common, memoryBudgetBytes: 90 * 4096, growth: ahead(8), eagerRows: 1, scrub: 'between-tenants' },
    isExact: false, alphabet: 3, operations: 40_000,
  },
  'hardly room for one text': {
    options: { ...common, slots: 3, maxTokens: 80, memoryBudgetBytes: 24 * 4096 }, isExact: false, alphabet: 1, operations: 20_000,
  },
  'bounds on the pool': {
    options: { ...common, memoryBudgetBytes: 400 * 4096, prefixCache: { poolRows: 30, tenantRows: 12 } },
    isExact: false, alphabet: 3, operations: 15_000,
  },
  'layers that differ': {
    options: {
      ...common, memoryBudgetBytes: 300 * 4096, scrub: 'between-tenants',
      model: { layers: 2, layerShapes: [{ kvHeads: 1, headDim: 256 }, { kvHeads: 1, headDim: 128 }], dtype: 'float16' },
    },
    isExact: false, alphabet: 3, operations: 15_000,
  },
  'rows that end inside a token': {
    options: { ...common, layout: 'fused', memoryBudgetBytes: 120 * 4096, model: { layers: 1, kvHeads: 1, headDim: 300, dtype: 'float16' } },
    isExact: false, alphabet: 3, operations: 15_000,
  },
  'host memory': {
    options: {
      ...common, on: 'host', pageBytes: 65_536, memoryBudgetBytes: 150 * 65_536,
      model: { layers: 1, kvHeads: 1, headDim: 4096, dtype: 'float16' },
    },
    isExact: false, alphabet: 3, operations: 10_000,
  },
};

for (const [name, { options, operations: most, ...world }] of Object.entries(worlds)) {
  const seed = seedOf(`prefixes ${name}`);
  const operations = Math.ceil(most * scale);
  test.serial(`${operations} operations on prefixes agree with the model, seed ${seed} (${name})`, (t) => {
    t.log(`VKV_TEST_SEED=${seed}`);
    const bench = new CacheBench(t, options);
    const prefixes = new PrefixWorld(bench, new Random(seed), world);
    let operation = 0;
    try {
      for (; operation < operations; operation += 1) prefixes.operate();
      prefixes.end();
      bench.cache.verify();
    } catch (error) {
      t.log(`at operation ${operation}`);
      bench.abandon();
      throw error;
    }
    const { counts } = prefixes;
    t.log(JSON.stringify({ ...counts, ...bench.cache.prefixes.metrics.droppedRows }));
    for (const how of ['adoptedTokens', 'aliasedTokens', 'copiedTokens', 'forks']) t.true(operations < 5_000 || (counts[how] ?? 0) > operations / 500, how);
    t.is(bench.cache.metrics.lateErrors, 0);
    assertNothingHeld(t, bench.cache);
    bench.close();
  });
}
