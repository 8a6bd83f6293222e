// Levels of blocks that a disk has already.

import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import { diskTier, type BlockRecord, type Tier } from 'virtual-kv';

const folder = fs.mkdtempSync(path.join(tmpdir(), 'vkv-disk-levels-'));
test.after.always(() => { fs.rmSync(folder, { recursive: true, force: true }); });

const record: BlockRecord = {
  key: 'ab'.repeat(32), parent: '00'.repeat(32), position: 0, tokens: Int32Array.from({ length: 16 }, (_, at) => at), notes: new Uint8Array(0),
  sums: Uint32Array.of(1), bytes: 16 * 64, level: 1,
};
const payload = new Uint8Array(record.bytes).fill(7);
const backwards = Int32Array.from({ length: 16 }, (_, at) => 15 - at);

async function open(directory: string): Promise<{ readonly tier: Tier; readonly levels: readonly (number | undefined)[] }> {
  const tier = diskTier({ directory, bytes: 16 * 2 ** 20, admit: 'all', durability: 'none', threads: 1 });
  const levels: (number | undefined)[] = [];
  await tier.open({ namespace: '11'.repeat(32), stripeTokenBytes: [64], blockTokens: 16, found: ({ level }) => { levels.push(level); }, lost: () => {} });
  return { tier, levels };
}

const raises: Readonly<Record<string, (tier: Tier) => unknown>> = {
  'is put again': (tier) => tier.put({ ...record, level: 5 }, payload),
  'is said to be of another level': (tier) => tier.setLevel!(record.key, 5),
};

for (const [how, raise] of Object.entries(raises)) {
  test(`a block that a disk has and that ${how} has that level from its next copy on`, async (t) => {
    const directory = path.join(folder, how.replaceAll(' ', '-'));
    const first = await open(directory);
    t.deepEqual(await first.tier.put(record, payload), { isStored: true });
    await raise(first.tier);
    t.deepEqual(await first.tier.reorder!(record.key, backwards), { isStored: true });
    await first.tier.close();
    const { tier, levels } = await open(directory);
    t.deepEqual(levels, [5]);
    await tier.close();
  });
}
