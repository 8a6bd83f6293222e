// The dense arithmetic on a real GPU against the CPU's: every kernel there is, by the shapes that choose it, and cuBLAS where it is
// found. Skipped, with the reason, where there is no GPU; scripts/gpu-check runs it where there is one.

import test from 'ava';

import { Driver } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { cudaDriver } from '../helpers/drivers.js';
import { DenseWorld } from '../helpers/dense-world.js';
import { seedOf } from '../helpers/seed.js';

const why = cudaDriver.whyAbsent?.();
const isFull = (process.env['VKV_TEST_SCALE'] || '1') === '1'; // small where it is simulated, which is slow
const seed = seedOf('dense cuda');
const widths = isFull ? [1, 100, 264, 4096] : [1, 100, 264];

/** One context and one module for the process. */
let opened: Driver | undefined;
const openOnce = (): Driver => (opened ??= Driver.open('cuda'));

for (const cublas of new Set(['off', process.env['VKV_CUBLAS'] || 'auto'])) {
  const title = `products, norms, rotations, gates, caps and embeddings are the CPU's, cublas ${cublas} (seed ${seed})`;
  const declare = why === undefined ? test.serial : test.serial.skip;
  declare(why === undefined ? title : `${title}: ${why}`, (t) => {
    const random = new Random(seed);
    const driver = openOnce();
    const world = new DenseWorld(t, driver, random, { cublas });
    t.log(world.dense.target);
    for (const rows of [1, 2, 3, 8, 9, 33, ...(isFull ? [300, 5000] : [])]) {
      for (const inputs of widths) world.multiply(rows, inputs, rows * inputs > 2 ** 18 ? [40] : [1, 17, 130]);
      world.transform(rows, 3, 64);
      world.transform(rows, 1, 200);
    }
    world.close();
  });
}
