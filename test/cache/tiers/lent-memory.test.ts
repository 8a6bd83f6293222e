// Memory that a tier lends is its own again once it was put: no other tier is given it then.

import test from 'ava';

import { PutLimit } from '#internal/tiers/open-tier.js';

import { turn } from './device-index.js';
import { damaged, LendingTier } from './lending-tier.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';

const text = textOf(64);

test('what memory has already goes on to slower tiers from there, not from memory that it took back', async (t) => {
  const [memory, slow] = [new LendingTier('memory'), new PlainTier('slow')];
  const first = benchOf(t, [memory]);
  serve(first, text, 3);
  await close(first);
  t.is(memory.blocks.size, 4);
  const again = Object.assign(new LendingTier('memory'), { blocks: memory.blocks });
  const bench = benchOf(t, [again, slow]);
  serve(bench, text, 3);
  await close(bench);
  t.is(slow.blocks.size, 4);
  t.is(damaged(slow), 0);
});

for (const loses of [false, true]) {
  test(`a tier behind another lends memory, ${loses ? 'loses what is put at once, ' : ''}and no tier has other bytes`, async (t) => {
    const [plain, memory] = [new PlainTier('plain'), Object.assign(new LendingTier('memory'), { loses })];
    const slow = new PlainTier('slow');
    const { put } = PlainTier.prototype;
    for (const tier of [plain, slow]) {
      tier.put = async (record, payload) => {
        for (let round = 0; round < 3; round += 1) await turn();
        return put.call(tier, record, payload);
      };
    }
    const bench = benchOf(t, [plain, memory, slow]);
    serve(bench, text, 3);
    await bench.cache.prefixes.tiers!.settled();
    t.is(bench.cache.metrics.lateErrors, 0);
    await close(bench);
    t.deepEqual([damaged(plain), damaged(slow), damaged(memory)], [0, 0, 0]);
    t.is(memory.lent.size, 0, 'all is put or given back');
    if (!loses) t.deepEqual([plain.blocks.size, memory.blocks.size, slow.blocks.size], [4, 4, 4]);
  });
}

test('memory of a tier that cannot be read in place is not borrowed for others', async (t) => {
  const memory = new LendingTier('memory');
  Object.assign(memory, { borrow: undefined, loses: true });
  const slow = new PlainTier('slow');
  const bench = benchOf(t, [memory, slow]);
  serve(bench, text, 3);
  await close(bench);
  t.deepEqual([slow.blocks.size, damaged(slow)], [4, 0]);
});

test('of many puts that wait, no more go on than may be under way', async (t) => {
  const puts = new PutLimit();
  let [begun, most] = [0, 0];
  const all = Array.from({ length: 100 }, async () => {
    await puts.begin();
    begun += 1;
    most = Math.max(most, begun);
    await turn();
    begun -= 1;
    puts.end();
  });
  await Promise.all(all);
  await puts.idle();
  t.is(most, 16);
});
