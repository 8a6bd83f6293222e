// The contract of a tier, run over the tiers that there are. A new tier is one line in `tiers`.

import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import { diskTier, hostTier, redisTier, type Tier } from 'virtual-kv';
import { tierContract, type TierContractPlace } from 'virtual-kv/testing';

import { patient } from '../helpers/patient.js';
import { hasRedis, RedisServer } from '../helpers/redis-server.js';
import { MemoryTier, type Fault } from './memory-tier.js';
import { slow } from '../runner/slow.js';
import { sampled } from '../runner/tier.js';

const folder = fs.mkdtempSync(path.join(tmpdir(), 'vkv-tiers-'));
test.after.always(() => { fs.rmSync(folder, { recursive: true, force: true }); });

let server: Promise<RedisServer> | undefined;
test.after.always(async () => (await server)?.stop());

/** By name; of the second kind those that need something installed. */
const tiers: Readonly<Record<string, (place: TierContractPlace) => Tier | Promise<Tier>>> = {
  memory: ({ store, capacityBytes }) => new MemoryTier(store, capacityBytes),
  host: ({ capacityBytes }) => hostTier({ bytes: capacityBytes ?? 256 * 2 ** 20 }),
  disk: ({ store, capacityBytes }) => diskTier({ directory: path.join(folder, store), bytes: Math.max(64 * 2 ** 20, 2 * (capacityBytes ?? 0)), admit: 'all' }),
  'disk of small chunks': ({ store }) => diskTier({ directory: path.join(folder, `small ${store}`), bytes: 256 * 2 ** 20, admit: 'all', chunkBytes: 4_096, direct: false }),
  redis: async () => {
    server ??= RedisServer.start(undefined);
    return redisTier({ url: (await server).url, ...patient });
  },
};
const lacking: Readonly<Record<string, string | false>> = { redis: !hasRedis && 'redis-server' };

for (const [name, make] of Object.entries(tiers)) {
  for (const { title, run } of tierContract(make)) {
    if (lacking[name]) test.skip(`${name}: ${title} (no ${lacking[name]})`, () => {});
    else {
      const declare = title.includes('capacityBytes') ? slow('fills a tier') : test;
      declare(`${name}: ${title}`, async (t) => {
        await t.notThrowsAsync(run);
      });
    }
  }
}

test('each check has a title of its own', (t) => {
  const titles = tierContract(tiers['memory']!).map(({ title }) => title);
  t.is(new Set(titles).size, titles.length);
});

const faults: readonly Fault[] = [
  'keeps payload', 'swaps sums', 'forgets removal', 'answers after close', 'counts holes', 'writes beside', 'is never full',
  'reuses borrowed memory', 'finds other namespaces', 'rejects', 'loses the notes', 'gives other tokens', 'reads past damage',
];

for (const fault of sampled(faults, 3)) {
  test(`a tier that ${fault} does not pass`, async (t) => {
    const results = await Promise.allSettled(tierContract(({ store, capacityBytes }) => new MemoryTier(`${fault} ${store}`, capacityBytes, fault)).map(({ run }) => run()));
    const failed = results.filter(({ status }) => status === 'rejected').length;
    t.true(failed > 0 && failed < results.length, `${failed} of ${results.length} checks failed`);
  });
}
