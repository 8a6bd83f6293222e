// Which blocks are worth storing anew follows what requests select of them, whatever share that is.

import test from 'ava';

import { ReorderingWorld } from './reordering-world.js';

const block = 256;

/** A block of which every request selects the same tokens, `every` apart; whether it is stored anew, in chunks of two rows. */
async function isReordered(every: number): Promise<boolean> {
  const orders: Int32Array[] = [];
  const world = new ReorderingWorld({
    name: 'made', chunkBytes: 2,
    reorder: (_key, order) => {
      orders.push(order);
      return Promise.resolve({ isStored: true });
    },
  }, 1);
  world.add('block', new Int32Array(block));
  const weights = Float32Array.from({ length: block }, (_, token) => (token % every === 0 ? 1 : 0));
  for (let request = 0; request < 4; request += 1) world.means.note('block', weights);
  await world.run(1);
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
