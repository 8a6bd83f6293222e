// Tokens of tiers that give blocks only whole: from the next tier where one does not give a block, and what is damaged
// goes from where it came.

import test from 'ava';

import type { TokenSelector } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { PlainTier } from '../cache/tiers/plain-tier.js';
import { seedOf } from '../helpers/seed.js';
import { SelectionWorld, sizes } from './selection-world.js';

const seed = seedOf('whole-blocks');
const text = Int32Array.from({ length: 17 }, (_, at) => (at * 3) % sizes.vocabularyTokens);
const first: TokenSelector = {
  name: 'first', looksAt: 'nothing', select: ({ count }) => Int32Array.from({ length: count }, (_, token) => token),
};

for (const isDamaged of [false, true]) {
  test(`a tier fails and the next one has a block ${isDamaged ? 'that is damaged: it goes, and the first keeps its own' : 'whole: it is read there'} (seed ${seed})`, async (t) => {
    const [failing, whole] = [new PlainTier('failing'), new PlainTier('whole')];
    const world = new SelectionWorld(t, new Random(seed), { tiers: [failing, whole] });
    await world.cache.prefixes.tiers!.ready();
    await world.store(text.subarray(0, 16));
    failing.get = () => Promise.resolve({ isFound: false, reason: 'failed' });
    if (isDamaged) {
      whole.get = async (key, payload) => {
        const got = await PlainTier.prototype.get.call(whole, key, payload);
        payload.fill(payload[0]! ^ 1);
        return got;
      };
    }
    const sequence = await world.lossy(text, { selector: first, ratio: 0.5 });
    await world.finish(sequence, text);
    t.is((sequence.selection!.failure as { code?: string } | undefined)?.code, isDamaged ? 'KV_SELECTION_LOST' : undefined);
    sequence.release();
    await world.cache.prefixes.tiers!.settled();
    const tiers = world.cache.prefixes.tiers!.metrics().tiers.map(({ blocks, damagedBlocks }) => ({ blocks, damagedBlocks }));
    t.deepEqual(tiers, [{ blocks: 1, damagedBlocks: 0 }, isDamaged ? { blocks: 0, damagedBlocks: 1 } : { blocks: 1, damagedBlocks: 0 }]);
    await world.close();
  });
}
