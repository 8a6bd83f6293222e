// Caches over one pool, whose slots slide, grow, shrink, share and detach rows at random, against a model.

import test from 'ava';

import { Random } from '#internal/base/random.js';

import { drivers } from '../helpers/cache.js';
import { NativeCaches } from '../helpers/native-caches.js';
import { seedOf } from '../helpers/seed.js';
import { scaled } from '../runner/tier.js';
import { SlideWorld } from './slide-world.js';

for (const on of drivers) {
  for (const mapper of [false, true]) {
    const seed = seedOf(`slides ${on} ${String(mapper)}`);
    const steps = scaled(8_000, 400);
    test(`${steps} operations on slots that slide agree with the model${mapper ? ', beside a shared mapper' : ''}, seed ${seed} (${on})`, (t) => {
      const bench = new NativeCaches(t, { on, pages: 40, tensors: [2, 1, 3], slots: 4, mapper, scrub: true });
      const world = new SlideWorld(bench, new Random(seed), mapper);
      for (let step = 0; step < steps; step += 1) {
        try {
          world.operate();
        } catch (error) {
          t.log(`at operation ${step}`);
          throw error;
        }
      }
      t.log(JSON.stringify(world.counts));
      for (const what of ['slide', 'grow', 'grow: too few pages', 'share', 'handed over']) {
        t.true(world.counts[what]! > 0, what);
      }
      if (mapper) t.true(world.counts['mapped in the background']! > 0);
      world.end();
      bench.close();
    });
  }
}
