// Probe keys in stored blocks: what a tier is given of them, under every layout and on every driver, and which caches find such blocks.

import test from 'ava';

import { hostTier, layoutKinds } from 'virtual-kv';

import { drivers } from '../helpers/cache.js';
import { dropFromDevice } from '../cache/tiers/device-index.js';
import { PlainTier } from '../cache/tiers/plain-tier.js';
import { benchOf, close, serve, textOf } from '../cache/tiers/tier-bench.js';
import { crc32c } from '#internal/tiers/contract-store.js';

const model = { layers: 2, kvHeads: 4, headDim: 32, dtype: 'float16' } as const;
const tensorBytes = 4 * 32 * 2;


for (const on of drivers) {
  for (const layout of layoutKinds) {
    test(`a stored block has the keys of its first heads once more, with sums of their own (${on}, ${layout})`, async (t) => {
      const tier = new PlainTier('mine');
      const bench = benchOf(t, [tier], { on, layout, model, prefixCache: { importance: { probeHeads: 3 } } });
      const text = textOf(40);
      serve(bench, text, 5);
      await bench.cache.prefixes.tiers!.settled();
      t.is(tier.blocks.size, 3);
      for (const { record: { tokens: { length: tokens }, sums, bytes }, payload } of tier.blocks.values()) {
        t.is(bytes, tokens * (4 * tensorBytes + 2 * 192));
        t.is(payload.length, bytes);
        t.is(sums.length, 6);
        for (const layer of [0, 1]) {
          const keys = payload.subarray(2 * layer * tensorBytes * tokens);
          const probes = payload.subarray((4 * tensorBytes + layer * 192) * tokens, (4 * tensorBytes + (layer + 1) * 192) * tokens);
          for (let token = 0; token < tokens; token += 1) {
            t.deepEqual(probes.subarray(192 * token, 192 * (token + 1)), keys.subarray(tensorBytes * token, tensorBytes * token + 192));
          }
          t.is(sums[4 + layer], crc32c(probes));
        }
      }
      dropFromDevice(bench.cache);
      t.like(await bench.cache.prefixes.promote({ tokens: text }), { promotedFrom: { mine: 40 }, end: 'complete' });
      t.deepEqual(serve(bench, text, 5), { found: 39, wrong: 0, demoted: 0 });
      await close(bench);
    });
  }
}

test('a cache finds no blocks with other probes than its own', async (t) => {
  const namespaces = new Set<string>();
  for (const importance of [undefined, { probeHeads: 3 }, { probeHeads: 2 }]) {
    const tier = new PlainTier('mine');
    const open = tier.open.bind(tier);
    tier.open = (context) => {
      namespaces.add(context.namespace);
      t.is(context.stripeTokenBytes.length, importance === undefined ? 4 : 6);
      return open(context);
    };
    const bench = benchOf(t, [tier], { model, prefixCache: { importance } });
    await bench.cache.prefixes.tiers!.ready();
    await close(bench);
  }
  t.is(namespaces.size, 3);
});

test('three heads of each layer are probes where no number is given', async (t) => {
  for (const importance of [{}, { probeHeads: undefined }]) {
    const tier = new PlainTier('mine');
    const bench = benchOf(t, [tier], { model: { ...model, kvHeads: 4 }, prefixCache: { importance } });
    serve(bench, textOf(16), 5);
    await bench.cache.prefixes.tiers!.settled();
    const headBytes = 2 * model.headDim * 2; // of both layers
    t.is([...tier.blocks.values()][0]!.payload.length, 16 * headBytes * (2 * 4 + 3));
    await close(bench);
  }
});

test('a layer with fewer heads has all of them as probes', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier], { model, prefixCache: { importance: { probeHeads: 9 } } });
  serve(bench, textOf(16), 5);
  await bench.cache.prefixes.tiers!.settled();
  t.is([...tier.blocks.values()][0]!.payload.length, 16 * 6 * tensorBytes);
  await close(bench);
});

test('MLA, and K and V of 8 bits, have no probes, which is said by name', (t) => {
  const tiers = [hostTier({ bytes: 2 ** 20 })];
  for (const [wrong, says] of [
    [{ layers: 1, attention: 'latent', latentDim: 64, dtype: 'float16' }, /MLA/], [{ ...model, dtype: 'int8' }, /int8/],
  ] as const) {
    t.throws(() => benchOf(t, tiers, { model: wrong, prefixCache: { importance: { probeHeads: 3 } } }), { code: 'KV_INVALID_OPTION', message: says });
  }
  t.throws(() => benchOf(t, tiers, { model, prefixCache: { importance: { probeHeads: 0 } } }), { code: 'KV_INVALID_OPTION' });
});
