// The CUDA kernels on a real GPU against plain attention in double precision: every kernel there is, by the shapes that
// choose it. Skipped, with the reason, where there is no GPU; scripts/gpu-check runs it where there is one.

import test from 'ava';

import { Driver, layoutKinds, type RowDtype } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { cudaDriver } from '../helpers/drivers.js';
import { kernelShapes } from '../helpers/kernel-shapes.js';
import { KernelWorld } from '../helpers/kernel-world.js';
import { randomRules } from '../helpers/random-rules.js';
import { scale } from '../runner/tier.js';

const why = cudaDriver.whyAbsent?.();
const dtypes: readonly RowDtype[] = ['float32', 'float16', 'bfloat16'];
const devicePageBytes = 2 * 2 ** 20;
// Fewer where it is simulated, which is slow; scripts/gpu/plan.mjs names the same ones.
const shapes = kernelShapes.filter((_, index) => index % Math.max(1, Math.round(0.4 / scale)) === 0);

/** One context and one module for the process; gpu-check has a process for each type and shape, for a device may be lost. */
let opened: Driver | undefined;
const openOnce = (): Driver => (opened ??= Driver.open('cuda'));

for (const cacheDtype of dtypes) {
  for (const { dim, group } of shapes) {
    const title = `${cacheDtype}, head dim ${dim}, ${group} query heads to a KV head`;
    const declare = why === undefined ? test.serial : test.skip;
    declare(why === undefined ? title : `${title}: ${why}`, (t) => {
      const random = new Random(dim * group);
      const driver = openOnce();
      for (const layout of layoutKinds) {
        const rowDtype = dtypes[random.integer(3)]!;
        const world = new KernelWorld(t, driver, random, {
          kvHeads: 2, group, dim, cacheDtype, rowDtype, layout, maxTokens: 2000, pageBytes: devicePageBytes,
          rules: [{}, randomRules(random, 2 * group)],
        });
        world.acquire();
        world.acquire();
        world.acquire();
        world.step([Math.ceil(600 * scale), 0, 33]);
        world.step([1, 1, 0], { through: 'arrays' });
        world.step([1, 17, 40]);
        world.copyTokens(2, 0, 20);
        world.step([1, 1, 1]);
        world.close();
      }
    });
  }
}
