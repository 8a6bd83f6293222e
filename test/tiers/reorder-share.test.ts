// Which blocks are worth storing anew follows what requests select of them, whatever share that is.

import test from 'ava';

import { BlockReorderer } from '#internal/tiers/selection/reordering.js';
import { ImportanceMeans } from '#internal/tiers/selection/importance-means.js';

const block = 256;

/** A block of which every request selects the same tokens, `every` apart; whether it is stored anew, in chunks of two rows. */
async function isReordered(every: number, ratio?: number): Promise<boolean> {
  const means = new ImportanceMeans();
  const weights = Float32Array.from({ length: block }, (_, token) => (token % every === 0 ? 1 : 0));
  for (let request = 0; request < 4; request += 1) means.note('block', weights);
  const orders: Int32Array[] = [];
  const reorderer = new BlockReorderer({
    means, chunkTokens: 2, ...(ratio === undefined ? {} : { ratio }),
    tier: {
      has: () => true, rowsOf: () => undefined,
      reorder: (_key, order) => {
        orders.push(order);
        return Promise.resolve({ isStored: true });
      },
    },
  });
  await reorderer.run(1);
  const selected = Array.from({ length: Math.ceil(block / every) }, (_, index) => every * index);
  return orders.length === 1 && selected.every((token, row) => orders[0]![row] === token);
}

for (const every of [40, 20, 10, 4]) {
  test(`tokens that are selected together are stored together: one of ${every}`, async (t) => {
    t.true(await isReordered(every));
  });
}

test('a block of which all is selected stays as it is', async (t) => {
  t.false(await isReordered(1));
});

test('a share that is given goes before what was selected', async (t) => {
  t.false(await isReordered(40, 1));
});
