// What a sequence of selected tokens computes: with all tokens what an exact one does, to the bit; with some of them what a model computes that
// has all K and V and is kept from looking at the others. What tiers hold it with, and how its prompt is cut, makes no difference.

import test from 'ava';

import { allHeads, diskTier, firstAndLast, hostTier, layoutKinds, probeHeads, randomTokens, type Tier, type TokenSelector } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { dropFromDevice } from '../cache/tiers/device-index.js';
import { PlainTier } from '../cache/tiers/plain-tier.js';
import { difference } from '../helpers/logits.js';
import { seedOf } from '../helpers/seed.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { choiceOf, MiB, noted, SelectionWorld, sizes } from './selection-world.js';
import { deadlineMs } from '../helpers/patient.js';
import { slow } from '../runner/slow.js';
import { sampled } from '../runner/tier.js';

const seed = seedOf('selections');

function textOf(random: Random, tokens: number): Int32Array {
  return Int32Array.from({ length: tokens }, () => random.integer(sizes.vocabularyTokens));
}

/** Of a page of 64 KiB, in each tensor. */
const rowTokens = 65_536 / (4 * sizes.kvHeads * sizes.headDim);

/** Never trusts its heads. */
const distrusting: TokenSelector = { ...probeHeads(), select: () => undefined };

for (const [title, selection] of [
  ['ratio 1', { ratio: 1 }], ['a selector that trusts no choice', { ratio: 0.2, selector: distrusting }],
  ['ratio 1 by H2O', { ratio: 1, selector: allHeads() }],
] as const) {
  for (const dtype of sampled(['float32', 'bfloat16', 'float16'] as const, 3)) {
    test(`${title}: logits are the exact engine's, to the bit, ${dtype} (seed ${seed})`, async (t) => {
      const random = new Random(seed);
      const world = new SelectionWorld(t, random, { dtype });
      const text = textOf(random, 90);
      await world.store(text.subarray(0, 75));
      await world.cache.prefixes.promote({ tokens: text, deadlineMs });
      const exact = world.cache.acquire({ tokens: text, caching: 'read' });
      t.is(exact.length, 75);
      const expected = await world.finish(exact, text);
      exact.release();
      dropFromDevice(world.cache);
      const lossy = await world.lossy(text, selection);
      t.true(lossy.isLossy);
      t.is(lossy.length, 75);
      t.is(lossy.cachedTokens, 0);
      t.deepEqual(await world.finish(lossy, text), expected);
      t.like(lossy.selection!.counts, { layers: 3, tokens: 3 * 75, selectedTokens: 3 * 75, fallBacks: 'selector' in selection && selection.selector === distrusting ? 3 : 0 });
      lossy.release();
      await world.close();
    });
  }
}

const tiersOf: Readonly<Record<string, (folder: string) => Tier>> = {
  'host memory': () => hostTier({ bytes: 16 * MiB }),
  'disk': (directory) => diskTier({ directory, bytes: 64 * MiB, admit: 'all' }),
  'a tier that reads whole blocks': () => new PlainTier('plain'),
};

/** Selectors over models whose heads look at the same tokens, or each at its own: then layers fall back that ask their probe heads. */
const asked = [
  { selector: probeHeads(), heads: 'alike' }, { selector: probeHeads(), heads: 'apart' }, { selector: allHeads(), heads: 'apart' },
  { selector: firstAndLast(), heads: 'apart' }, { selector: randomTokens({ seed: 3 }), heads: 'apart' },
] as const;

for (const [name, tierOf] of Object.entries(tiersOf)) {
  for (const { selector, heads } of asked) {
    const title = `${selector.name}, heads ${heads}, from ${name}`;
    slow('runs a model with selections')(`${title}: the selection and the logits are those of a model that has everything (seed ${seed})`, async (t) => {
      const random = new Random(seed + 1);
      const world = new SelectionWorld(t, random, { tiers: [tierOf(folderOf(t))], heads });
      await world.cache.prefixes.tiers!.ready();
      for (const [ratio, exactTokens] of [[0.1, 0], [0.3, 0], [0.3, 37], [0.3, 300]] as const) {
        const text = textOf(random, exactTokens + 80 + random.integer(40));
        const to = text.length - 1 - random.integer(12);
        await world.store(text.subarray(0, to));
        if (exactTokens > 0) await world.cache.prefixes.promote({ tokens: text.subarray(0, exactTokens), deadlineMs });
        const notes = noted(selector);
        const lossy = await world.lossy(text, { ratio, selector: notes });
        t.is(lossy.length, to);
        t.is(lossy.cachedTokens, exactTokens);
        const from = lossy.selection!.exactTokens;
        t.is(from, exactTokens - exactTokens % rowTokens, 'no row is gone on in that others may share');
        const logits = await world.finish(lossy, text);
        const chosen = new Map<number, number[]>();
        const choose = choiceOf(selector, ratio, from, to);
        const expected = world.plain.logits(text, {
          from, to, choose: (layer, queries, keys) => {
            const set = choose(layer, queries, keys);
            chosen.set(layer, [...set].map((token) => token - from));
            return set;
          },
        }).at(-1)!;
        for (let layer = 0; layer < sizes.layers; layer += 1) {
          const own = notes.chosen.get(layer);
          t.deepEqual(own ?? Array.from({ length: to - from }, (_, token) => token), chosen.get(layer), `layer ${layer}, ratio ${ratio}`);
          t.is(lossy.selection!.droppedTokens(layer), to - from - chosen.get(layer)!.length);
        }
        const worst = difference(logits, expected);
        t.true(worst < 2e-5, `off by ${worst} of the largest logit`);
        lossy.release();
        dropFromDevice(world.cache);
      }
      const { layers, fallBacks, tokens, selectedTokens } = world.cache.prefixes.tiers!.metrics().selections;
      t.is(layers, 4 * sizes.layers);
      const falls = selector.name === 'probe-heads' && heads === 'apart';
      t.is(fallBacks > 0, falls, `${fallBacks} of ${layers} layers fell back`);
      if (!falls) t.true(selectedTokens < tokens / 2, `${selectedTokens} of ${tokens} tokens`);
      await world.close();
    });
  }
}

/** Each drops tokens in every layer. */
const dropping = [{ selector: probeHeads(), heads: 'alike' }, { selector: allHeads(), heads: 'apart' }, { selector: firstAndLast(), heads: 'apart' }] as const;

for (const layout of layoutKinds) {
  for (const on of ['host', 'mock'] as const) {
    for (const { selector, heads } of dropping) {
      test(`new tokens that come one by one and in chunks stand behind those of ${selector.name} at their places (${on}, ${layout}, seed ${seed})`, async (t) => {
        const random = new Random(seed + 2);
        const device = on === 'mock' ? new MockDevice({ granularityBytes: 65_536, memoryBytes: 2 ** 28, hasGarbage: true }) : undefined;
        const world = new SelectionWorld(t, random, { layout, driver: device?.driver, heads });
        const text = textOf(random, 120);
        await world.store(text.subarray(0, 80));
        const notes = noted(selector);
        const lossy = await world.lossy(text, { ratio: 0.25, selector: notes });
        const passes: [length: number, logits: Float32Array][] = [];
        for (const tokens of [20, 1, 1, 7, 1, 10]) {
          const logits = await world.compute(lossy, text, tokens);
          t.true(lossy.selection!.isLoaded);
          passes.push([lossy.length, logits]);
        }
        for (let layer = 0; layer < sizes.layers; layer += 1) t.is(lossy.selection!.droppedTokens(layer), 60, `layer ${layer}`);
        const expected = world.plain.logits(text, { from: 0, to: 80, choose: (layer) => new Set(notes.chosen.get(layer)) });
        for (const [length, logits] of passes) {
          const worst = difference(logits, expected[length - 1]!);
          t.true(worst < 2e-5, `${length} tokens: off by ${worst} of the largest logit`);
        }
        lossy.release();
        await world.close();
        device?.assertNoLeaks();
        device?.close();
      });
    }
  }
}
