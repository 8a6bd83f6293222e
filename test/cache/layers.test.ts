// The tensors of a layer, as `cache.layer` gives them.

import { layoutKinds } from 'virtual-kv';

import { cacheTest } from '../helpers/cache.js';
import { refuses } from '../helpers/refuses.js';

for (const layout of layoutKinds) {
  cacheTest(`a layer's views, addresses and strides name the same elements [${layout}]`, { on: 'host', layout }, (t, bench) => {
    const { cache } = bench;
    const sequence = cache.acquire();
    bench.compute(sequence, 70);
    for (const number of [0, 1]) {
      for (const role of ['key', 'value'] as const) {
        const tensor = cache.layer(number)[role];
        const { address, strides } = cache.tensors.find((each) => each.layer === number && each.role === role)!;
        t.is(tensor.address, address);
        t.deepEqual({ ...tensor.strides }, {
          slot: strides.slotBytes / 2, token: strides.tokenBytes / 2, head: strides.headBytes / 2,
        });
        t.is(tensor.addressOf(sequence), address + BigInt(2 * sequence.slot * tensor.strides.slot));
        const mark = 1000 * number + (role === 'key' ? 100 : 200);
        const at = 69 * tensor.strides.token + 3 * tensor.strides.head + 127;
        tensor.view(sequence)[at] = mark;
        t.is(sequence.view(tensor.index)[at], mark);
      }
    }
    const marks = [0, 1].flatMap((number) => {
      const { key, value } = cache.layer(number);
      return [key, value].map((tensor) =>
        tensor.view(sequence)[69 * tensor.strides.token + 3 * tensor.strides.head + 127]);
    });
    t.deepEqual(marks, [100, 200, 1100, 1200]);
    t.is(cache.layer(1), cache.layer(1));
    sequence.release();
    t.throws(() => cache.layer(0).key.view(sequence), { code: 'KV_SLOT_RELEASED' });
    t.throws(() => cache.layer(0).key.addressOf(sequence), { code: 'KV_SLOT_RELEASED' });
  });
}

const latent = { layers: 3, attention: 'latent', latentDim: 64, dtype: 'float16', parallel: { pipeline: 2, pipelineRank: 1 } } as const;

cacheTest('layers have their numbers in the whole model, and name what they keep', { model: latent }, (t, { cache }) => {
  const layer = cache.layer(2);
  t.is(layer.latent.dim, 64);
  refuses(t, () => layer.key, 'KV_INVALID_SHAPE', { option: 'layer', value: 2, problem: 'keeps no `key`' });
  t.deepEqual(Object.keys(layer), ['latent']);
  refuses(t, () => cache.layer(1), 'KV_INVALID_OPTION', { option: 'layer', received: 1 });
});

const withShared = {
  layers: 4, kvHeads: 2, headDim: 64, dtype: 'float16',
  layerSets: [{ kind: 'full', layers: [0, 1] }, { kind: 'shared', layers: [2, 3], of: [1, 0] }],
} as const;

cacheTest('a layer of a shared set keeps nothing, and names the layer whose K and V it reads', { model: withShared }, (t, { cache }) => {
  for (const [number, owner] of [[2, 1], [3, 0]] as const) {
    const layer = cache.layer(number);
    t.deepEqual(Object.keys(layer), []);
    const error = t.throws(() => layer.key, { code: 'KV_INVALID_SHAPE' });
    t.regex(error.message, new RegExp(`keeps no \`key\`.*layer ${owner}\\.`));
  }
  refuses(t, () => cache.layer(4), 'KV_INVALID_OPTION', { option: 'layer', expected: 'an integer from 0 to 3' });
});

cacheTest("a layer's tensors refuse what is no sequence of their cache, and what it does not keep", {}, (t, { cache }) => {
  t.throws(() => cache.layer(0).key.addressOf({} as never), { code: 'KV_INVALID_OPTION' });
  refuses(t, () => cache.layer(0).latent,
    'KV_INVALID_SHAPE', { option: 'layer', value: 0, problem: 'keeps no `latent`' });
});
