// What the contract of a tier says of priority levels: hints that it may keep.

import assert = require('node:assert/strict');

import { digestOf } from './contract-blocks.js';
import { readsExactly, stored, type ContractStore } from './contract-store.js';

/** By title. */
export const levelChecks: Readonly<Record<string, (store: ContractStore) => Promise<void>>> = {
  'a level changes nothing of a block, and is found again as it was put or set later, or not at all': async (store) => {
    const { tier } = await store.open();
    const blocks = [0, 1, 200, 255].map((level, seed) => store.block(seed, { level }));
    await stored(tier, ...blocks);
    tier.setLevel?.(blocks[1]!.record.key, 7);
    tier.setLevel?.(digestOf('unknown'), 7);
    for (const block of blocks) await readsExactly(tier, block);
    if (!tier.isLasting) return;
    await tier.close();
    const { tier: next, found } = await store.open();
    for (const block of blocks) {
      await readsExactly(next, block);
      const { key, level } = block.record;
      const told = found.get(key)?.level;
      assert.ok(
        told === undefined || told === level || (told === 7 && level === 1),
        `a block of level ${level} was found with level ${told}`);
    }
  },
};
