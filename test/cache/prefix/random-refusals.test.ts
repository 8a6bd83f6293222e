// Random operations with too little memory on every shape of model: whatever is refused for want of pages does not fit beside what
// running sequences need, page by page, without any slack; and `counts` says what would be admitted. VKV_TEST_SEED repeats a run,
// VKV_TEST_SCALE makes it shorter or longer.

import test from 'ava';

import { adaptive, ahead, onDemand, priority, type ModelShape } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { CacheBench, type BenchOptions } from '../../helpers/cache.js';
import { assertNothingHeld } from '../../helpers/nothing-held.js';
import { seedOf } from '../../helpers/seed.js';
import { pinnedLevel } from './pinned-texts.js';
import { RefusalWorld } from './refusal-world.js';
import { scaled } from '../../runner/tier.js';

const operations = scaled(500);

const device = { granularityBytes: 4096, journalEntries: 600 } as const;
const common = { on: 'mock', device, slots: 6, maxTokens: 64, pageBytes: 4096, growth: onDemand(), mapper: 'off' } as const satisfies BenchOptions;
const layers = (...kvHeads: number[]): ModelShape =>
  ({ layers: kvHeads.length, layerShapes: kvHeads.map((heads) => ({ kvHeads: heads, headDim: 64 })), dtype: 'float16' });
const pages = (count: number): { readonly memoryBudgetBytes: number } => ({ memoryBudgetBytes: count * 4096 });

const pinning = { policy: priority({ pinnedLevel, pinnedShare: 1 }) };

const shapes: Readonly<Record<string, BenchOptions>> = {
  'one KV head': { ...common, model: layers(8), ...pages(30) },
  'a budget of one slot': { ...common, slots: 3, model: layers(8), ...pages(32) },
  'hardly more than a row': { ...common, slots: 4, model: layers(8), ...pages(6) },
  'grouped heads, sliced': { ...common, layout: 'sliced', model: layers(4, 4), ...pages(34) },
  'fused': { ...common, layout: 'fused', model: layers(4, 4), ...pages(34) },
  'rows that end inside a token': { ...common, layout: 'fused', model: layers(3, 2), ...pages(31) },
  'rows that end inside a token, per layer': { ...common, model: layers(6, 6), ...pages(60) },
  'latent': { ...common, model: { layers: 2, attention: 'latent', latentDim: 512, dtype: 'float16' }, ...pages(30) },
  'layers of 8 and 4 KV heads': { ...common, model: layers(8, 4), ...pages(50) },
  'layers of 8 and 2 KV heads': { ...common, model: layers(8, 2), ...pages(44) },
  'layers of 8, 4 and 6 KV heads': { ...common, model: layers(8, 4, 6), ...pages(70) },
  'layers of 5 and 3 KV heads': { ...common, maxTokens: 96, model: layers(5, 3), ...pages(50) },
  'K longer than V, sliced': {
    ...common, layout: 'sliced', maxTokens: 96, model: { layers: 3, kvHeads: 2, headDim: 160, valueHeadDim: 96, dtype: 'float16' }, ...pages(60),
  },
  'a group longer than a slot': { ...common, model: layers(8, 7), ...pages(60) },
  'no prefix cache': { ...common, model: layers(8, 4), prefixCache: 'off', ...pages(40) },
  'bounds on the pool': { ...common, model: layers(8), prefixCache: { poolRows: 6, tenantRows: 4 }, ...pages(40) },
  'adaptive eviction, scrubbing': { ...common, model: layers(8, 4), prefixCache: { policy: adaptive() }, scrub: 'between-tenants', ...pages(50) },
  'a bound on idle rows': { ...common, model: layers(8), idleRowsLimit: 4, ...pages(40) },
  'a mapper': { ...common, model: layers(8), mapper: 'background', growth: ahead(16), eagerRows: 2, ...pages(40) },
  'a mapper, layers that differ': { ...common, model: layers(8, 4), mapper: 'background', growth: ahead(16), eagerRows: 2, ...pages(60) },
  'pinned text': { ...common, model: layers(8), prefixCache: pinning, ...pages(40) },
  'pinned text, fused': { ...common, layout: 'fused', model: layers(4, 4), prefixCache: pinning, ...pages(40) },
  'pinned text, rows that end inside a token': { ...common, layout: 'fused', model: layers(3, 2), prefixCache: pinning, ...pages(40) },
  'pinned text, layers of 8 and 4 KV heads': { ...common, model: layers(8, 4), prefixCache: pinning, ...pages(60) },
  'pinned text, layers of 5 and 3 KV heads': { ...common, maxTokens: 96, model: layers(5, 3), prefixCache: pinning, ...pages(60) },
  'pinned text, a mapper': { ...common, model: layers(8), prefixCache: pinning, mapper: 'background', growth: ahead(16), eagerRows: 2, ...pages(50) },
};

for (const [name, options] of Object.entries(shapes)) {
  const seed = seedOf(`refusals ${name}`);
  test.serial(`${operations} operations are refused only what does not fit, seed ${seed} (${name})`, (t) => {
    t.log(`VKV_TEST_SEED=${seed}`);
    const bench = new CacheBench(t, options);
    const world = new RefusalWorld(bench, new Random(seed), options.mapper === 'off', options.prefixCache === pinning);
    let operation = 0;
    try {
      for (; operation < operations; operation += 1) world.operate();
      world.end();
    } catch (error) {
      t.log(`at operation ${operation}`);
      bench.abandon();
      throw error;
    }
    t.log(JSON.stringify(world.counts));
    t.true(operations < 2_000 || (world.counts['KV_OUT_OF_PAGES'] ?? 0) > operations / 200, 'memory was short');
    t.is(bench.cache.metrics.lateErrors, 0);
    assertNothingHeld(t, bench.cache);
    bench.close();
  });
}
