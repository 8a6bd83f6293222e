// Another process with a Redis tier, for redis-sharing.test.ts: stores blocks, or reads them and says what came. Blocks are made from their
// number, so that both processes know their bytes.

import { redisTier } from 'virtual-kv';

import { patient } from '../helpers/patient.js';
import { makeBlock, sumsOf } from '#internal/tiers/contract-store.js';
import { stripeTokenBytes } from './redis-world.js';

async function main(): Promise<void> {
  const [, , url, namespace, work, count] = process.argv as unknown as [string, string, string, string, 'put' | 'get', string];
  const tier = redisTier({ url, required: true, ...patient });
  await tier.open({ namespace, stripeTokenBytes, blockTokens: 64, found: () => {}, lost: () => {} });
  const blocks = Array.from({ length: Number(count) }, (_, seed) => makeBlock({ namespace, stripeTokenBytes }, { seed, tokens: 64 }));
  process.send!('ready');
  await new Promise((resolve) => process.once('message', resolve));
  const results = await Promise.all(blocks.map(async ({ record, payload }) => {
    if (work === 'put') return (await tier.put(record, payload)).isStored;
    const target = new Uint8Array(record.bytes);
    const result = await tier.get(record.key, target);
    return result.isFound && Buffer.compare(target, payload) === 0 && String(sumsOf(target, 64, stripeTokenBytes)) === String(result.sums) &&
      String(result.record?.tokens) === String(record.tokens) && result.record?.parent === record.parent;
  }));
  const found = await tier.find(blocks.map(({ record }) => record.key));
  const { blocks: stored, putsAlreadyThere } = tier.statistics();
  await tier.close();
  process.send!({ results, found, stored, putsAlreadyThere });
  process.disconnect();
}

void main();
