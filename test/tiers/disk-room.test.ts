// A disk tier whose blocks come and go without order has room for the share of its bytes that it names.

import { diskTier } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { digestOf, makeBlock, type MadeBlock } from '#internal/tiers/contract-store.js';
import { seedOf } from '../helpers/seed.js';
import { inFolder, scale } from '../store/store-world.js';
import { slow } from '../runner/slow.js';

const KiB = 2 ** 10;
const MiB = 2 ** 20;
const namespace = digestOf('room on a disk');
const stripeTokenBytes = [KiB, KiB];
const seed = seedOf('room on a disk');

slow('thousands of blocks')(`a full disk tier takes a block for each that goes, in any order (seed ${seed})`, (t) => inFolder(async (directory) => {
  const tier = diskTier({ directory, bytes: 16 * MiB, admit: 'all', durability: 'none' });
  const blockBytes = 32 * 2 * KiB;
  await tier.open({ namespace, stripeTokenBytes, blockTokens: 32, found: () => {}, lost: () => {} });
  const random = new Random(seed);
  const kept: MadeBlock[] = [];
  let made = 0;
  const add = async (): Promise<void> => {
    const block = makeBlock({ namespace, stripeTokenBytes }, { seed: made += 1, tokens: 32 });
    t.deepEqual(await tier.put(block.record, block.payload), { isStored: true }, `block ${made}`);
    kept.push(block);
  };
  const most = Math.floor(tier.capacityBytes! / tier.sizeOf!(blockBytes));
  while (kept.length < most) await add();
  for (let turn = 0; turn < Math.round(600 * Math.max(0.2, scale)); turn += 1) {
    const [gone] = kept.splice(random.integer(kept.length), 1);
    await tier.remove([gone!.record.key]);
    await add();
  }
  for (const { record, payload } of kept) {
    const read = new Uint8Array(payload.length);
    t.true((await tier.get(record.key, read)).isFound);
    t.is(Buffer.compare(read, payload), 0);
  }
  t.true(Number(tier.statistics()['fileBytes']) <= 16 * MiB);
  await tier.close();
}));
