// Any model, layout, slot length and page size on real memory: every token of every tensor has bytes of its own, also where
// a slot ends inside a page, a page inside a token, and where layers differ. A seeded sample of shapes comes last.

import test from 'ava';

import { layoutKinds, type KvCacheOptions, type ModelShape } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { cacheTests, drivers, withCache, type BenchOptions, type CacheBench } from '../helpers/cache.js';
import { seedOf } from '../helpers/seed.js';

const pageBytes = 64 * 1024;
const models = {
  'grouped-query': { layers: 2, kvHeads: 4, headDim: 128, dtype: 'float16' },
  'multi-query float32': { layers: 3, kvHeads: 1, headDim: 80, dtype: 'float32' },
  'int8': { layers: 2, kvHeads: 3, headDim: 96, dtype: 'int8' },
  'latent': { layers: 3, attention: 'latent', latentDim: 576, dtype: 'bfloat16' },
  'layers that differ': {
    layers: 3, kvHeads: 2, headDim: 64, dtype: 'float16', layerShapes: [{ kvHeads: 16 }, {}, { kvHeads: 5, valueHeadDim: 96 }],
  },
  'a value smaller than its key': { layers: 2, kvHeads: 8, headDim: 192, valueHeadDim: 128, dtype: 'float16' },
  'tokens larger than a page': { layers: 1, kvHeads: 64, headDim: 576, dtype: 'float16' },
} as const satisfies Readonly<Record<string, ModelShape>>;

/** Fills three sequences side by side in uneven chunks, and checks all bytes of all after each. */
function fillAndCheck(bench: CacheBench, chunks: readonly number[]): void {
  const { cache, t } = bench;
  const sequences = [1, 2, 3].map(() => cache.acquire());
  for (const chunk of chunks) {
    for (const [key, sequence] of sequences.entries()) {
      const tokens = Math.min(chunk, cache.layout.maxTokens - sequence.length);
      if (tokens === 0) continue;
      bench.prepare(sequence, tokens);
      cache.stamp(sequence, sequence.length, tokens, key);
      bench.commit();
      t.is(sequence.mappedRows, cache.layout.rowsFor(sequence.length));
    }
    for (const [key, sequence] of sequences.entries()) t.true(bench.isIntact(sequence, key), `after chunks of ${chunk}`);
  }
  t.is(cache.counts().mappedPages, sequences.reduce((pages, { mappedRows }) => pages + cache.layout.pagesFor(mappedRows), 0));
  cache.verify();
}

const shape = (options: BenchOptions): BenchOptions => ({ slots: 3, memoryBudgetBytes: 64 * 2 ** 20, pageBytes, ...options });

for (const [name, model] of Object.entries(models)) {
  for (const layout of layoutKinds) {
    cacheTests(`${name}, ${layout}: tokens keep to themselves`, shape({ model, layout, maxTokens: 97 }), (_t, bench) => {
      fillAndCheck(bench, [1, 2, 30, 31, 33]);
    });
  }
}

cacheTests('a slot smaller than a page', shape({ maxTokens: 5 }), (t, bench) => {
  fillAndCheck(bench, [1, 1, 3]);
  t.is(bench.cache.counts().mappedRows, 3);
});

cacheTests('a cache of one slot and one token', shape({ maxTokens: 1, slots: 1 }), (t, bench) => {
  const sequence = bench.sequenceOf(1);
  bench.cache.stamp(sequence, 0, 1, 3);
  t.true(bench.isIntact(sequence, 3));
  t.throws(() => bench.prepare(sequence, 1), { code: 'KV_LENGTH_OUT_OF_RANGE' });
  t.throws(() => bench.cache.acquire(), { code: 'KV_NO_FREE_SLOT' });
});

cacheTests('where layers differ a row has as many pages of each tensor as end at the same token', shape({
  model: { layers: 2, kvHeads: 1, headDim: 512, dtype: 'float16', layerShapes: [{}, { kvHeads: 3 }] }, maxTokens: 128,
}), (t, bench) => {
  const { cache } = bench;
  const sequence = cache.acquire();
  for (let rows = 1; rows <= 2; rows += 1) {
    bench.compute(sequence, cache.layout.tokensIn(rows) - sequence.length);
    t.is(sequence.mappedRows, rows);
    t.is(cache.counts().mappedPages, rows * 2 * (3 + 1)); // K and V of 3,072 bytes, and of 1,024
  }
  sequence.truncate(cache.layout.tokensIn(1));
  const taken = bench.changes(() => cache.pool.setBudget(cache.layout.pagesPerRow * pageBytes));
  t.is(taken.unmaps, cache.layout.pagesPerRow);
  t.is(sequence.mappedRows, 1);
});

for (const on of drivers) {
  const seed = seedOf('shapes');
  test(`shapes drawn at random, seed ${seed} (${on})`, async (t) => {
    t.log(`VKV_TEST_SEED=${seed}`);
    const random = new Random(seed);
    for (let round = 0; round < 12; round += 1) {
      const options = shape({ ...randomShape(random), on });
      await withCache(t, options, (bench) => fillAndCheck(bench, Array.from({ length: 6 }, () => 1 + random.integer(40))));
    }
  });
}

function randomShape(random: Random): Pick<KvCacheOptions, 'model' | 'layout' | 'maxTokens' | 'pageBytes'> {
  const layers = 1 + random.integer(4);
  const dtype = (['float32', 'float16', 'bfloat16', 'float8', 'int8'] as const)[random.integer(5)]!;
  const headDim = 8 * (1 + random.integer(40));
  const layerShapes = Array.from({ length: layers }, () => (random.chance(0.5) ? {} : { kvHeads: 1 + random.integer(20) }));
  return {
    model: { layers, kvHeads: 1 + random.integer(8), headDim, dtype, ...(random.chance(0.4) ? { layerShapes } : {}) },
    layout: layoutKinds[random.integer(layoutKinds.length)],
    maxTokens: 1 + random.integer(300),
    pageBytes: pageBytes * (1 + random.integer(3)),
  };
}

const tiny: BenchOptions = { model: { layers: 2, kvHeads: 4, headDim: 128, dtype: 'float16' }, slots: 4, maxTokens: 1_024, pageBytes, layout: 'auto' };
cacheTests('`auto` is `per-layer` where its rows are short and the budget is large', { ...tiny, memoryBudgetBytes: 64 * pageBytes }, (t, bench) => {
  t.is(bench.cache.layout.kind, 'per-layer');
  fillAndCheck(bench, [5, 64]);
});
cacheTests('`auto` is `fused` on a CPU where the budget is small', { ...tiny, memoryBudgetBytes: 63 * pageBytes }, (t, bench) => {
  const { kind, sets: [set] } = bench.cache.layout;
  t.deepEqual([kind, set!.layoutReason], bench.device === undefined ? ['fused', 'budget'] : ['per-layer', 'short-rows']);
  fillAndCheck(bench, [5, 64]);
});
cacheTests('`auto` is the default, and `fused` where a prompt would leave more than half of its rows unused', {
  ...tiny, layout: undefined, maxTokens: 31,
}, (t, bench) => {
  const { kind, sets: [set] } = bench.cache.layout;
  t.deepEqual([kind, set!.layoutReason], ['fused', bench.device === undefined ? 'smallest' : 'short-rows']);
  fillAndCheck(bench, [5, 31]);
});
