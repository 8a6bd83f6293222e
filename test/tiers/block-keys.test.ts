import test from 'ava';

import { layoutKinds, tensorsOf, type ModelShape, type PrefixDomainParts, type PromptOptions, type TensorSpec } from 'virtual-kv';

import { BlockKeys } from '#internal/tiers/block-record.js';
import type { ItemNames } from '#internal/prefix/prompt-encoder.js';
import { cacheTest, cacheTests, tinyModel, withCache } from '../helpers/cache.js';

const model: ModelShape = { layers: 2, kvHeads: 8, headDim: 64, dtype: 'float16' };
const text = Int32Array.from({ length: 10 }, (_, at) => at + 1);
const domain = { namespace: '', tenant: '' };

const externalKeys = ({ tensors, domain, text, blockTokens, names }: {
  readonly tensors: readonly TensorSpec[]; readonly domain: PrefixDomainParts; readonly text: Int32Array; readonly blockTokens: number;
  readonly names?: ItemNames;
}): string[] => new BlockKeys(tensors, blockTokens).ofText(domain, text, names);

// Vectors computed by a Python program from the description in block-keys.ts and KeyWords alone.

test('keys are the same in every process', (t) => {
  t.deepEqual(externalKeys({ tensors: tensorsOf(model), domain, text, blockTokens: 4 }), [
    'a220fc37830fe1fa2b51846cc72918caa42e0e1495ee72dcf0c3936506c7b674',
    '1f2d8ddb4dd3277b8c0817c761ee647ec3d104f5044a80670a01ada1e0132bc8',
  ]);
  const latent: ModelShape = {
    layers: 6, attention: 'latent', latentDim: 576, dtype: 'bfloat16', parallel: { pipeline: 6, pipelineRank: 2 },
  };
  const items = Int32Array.of(5, -1, -2, 6); // an item covers two positions, across the border of two blocks
  t.deepEqual(externalKeys({
    tensors: tensorsOf(latent), domain: { namespace: 'w2', tenant: 't', salt: 'sü', adapter: 'a' }, text: items, blockTokens: 2,
    names: { nameOf: () => 'item cat' },
  }), [
    '3d6373150eaf75372ae175b4c5d5b6b2ec91f35886b7fea7783fb76bae81d935',
    '28696edad70d4c19a9f355fe262661bf6df3beffe7b6cfabf9eeca5d28deefe9',
  ]);
});

test('whatever K and V depend on changes the key', (t) => {
  const keyOf = (shape: Partial<ModelShape>, parts = {}, blockTokens = 4, tokens = text): string =>
    externalKeys({ tensors: tensorsOf({ ...model, ...shape } as ModelShape), domain: { ...domain, ...parts }, text: tokens, blockTokens })[0]!;
  const keys = [
    keyOf({}), keyOf({ layers: 3 }), keyOf({ kvHeads: 16 }), keyOf({ headDim: 128 }), keyOf({ valueHeadDim: 32 }),
    keyOf({ dtype: 'bfloat16' }), keyOf({ dtype: 'float8' }), keyOf({ dtype: 'int8' }),
    keyOf({ parallel: { tensor: 2 } }), keyOf({ layers: 4, parallel: { pipeline: 2 } }),
    keyOf({ layers: 4, parallel: { pipeline: 2, pipelineRank: 1 } }), keyOf({ layerShapes: [{}, { kvHeads: 4 }] }),
    keyOf({}, { namespace: 'a' }), keyOf({}, { tenant: 'a' }), keyOf({}, { salt: 'a' }), keyOf({}, { adapter: 'a' }), keyOf({}, { salt: '' }),
    keyOf({}, {}, 5), keyOf({}, {}, 4, text.with(0, 9)), keyOf({}, {}, 4, text.with(3, 9)),
  ];
  // Pipeline rank 0 of two with two layers each holds what a model of two layers has: the same tensors, the same key.
  t.is(keys[9], keys[0]);
  t.is(new Set(keys).size, keys.length - 1);
});

const prompt: PromptOptions = { tokens: text, tenant: 'a', salt: 's' };

cacheTests('a cache gives the keys of a prompt without keeping anything', { model }, (t, bench) => {
  const { prefixes } = bench.cache;
  const keys = prefixes.externalKeys(prompt, 4);
  t.deepEqual(keys, externalKeys({ tensors: tensorsOf(model), domain: { ...domain, tenant: 'a', salt: 's' }, text, blockTokens: 4 }));
  const anonymous = externalKeys({ tensors: tensorsOf(model), domain: { namespace: '' }, text, blockTokens: 4 });
  t.deepEqual(prefixes.externalKeys({ tokens: text }, 4), anonymous, 'no tenant is not the empty one');
  t.deepEqual(prefixes.externalKeys({ ...prompt, tokens: text.slice(0, 7) }, 4), keys.slice(0, 1));
  t.deepEqual(prefixes.externalKeys({ ...prompt, tokens: [1, 2, 3] }, 4), [], 'no whole block');
  t.is(prefixes.lookup(prompt).cachedTokens, 0);
  prefixes.setNamespace('w2');
  t.not(prefixes.externalKeys(prompt, 4)[0], keys[0]);
});

test('the layout and the page size do not change a key', async (t) => {
  const keys = new Set<string>();
  for (const layout of layoutKinds) {
    for (const pageBytes of [64 * 1024, 128 * 1024]) {
      await withCache(t, { layout, pageBytes }, ({ cache }) => { keys.add(cache.prefixes.externalKeys(prompt, 5).join()); });
    }
  }
  t.is(keys.size, 1);
});

cacheTest('a closed cache names no block', { model: tinyModel }, (t, { cache }) => {
  cache.close();
  t.throws(() => cache.prefixes.externalKeys(prompt, 4), { code: 'KV_CLOSED' });
});
