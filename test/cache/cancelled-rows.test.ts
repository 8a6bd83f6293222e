// Rows that the mapper maps ahead of a sequence that ends meanwhile.

import { ahead } from 'virtual-kv';

import { cacheTest, rowTokens } from '../helpers/cache.js';
import { turn } from './tiers/device-index.js';

cacheTest('the mapper maps no further row for a sequence that was released while it mapped one', {
  growth: ahead(12 * rowTokens), eagerRows: 0, prefixCache: 'off',
}, async (t, bench) => {
  const { cache, mock } = bench;
  const maps = (): number => mock.callCounts().cuMemMap;
  const sequence = cache.acquire({ promptTokens: 1, reserve: 'none' });
  bench.prepare(sequence, 1);
  const before = maps();
  mock.setLatencyNs('cuMemMap', 2e6);
  bench.commit(); // asks for 12 rows, of 4 pages each
  while (maps() === before) await turn();
  sequence.release();
  const released = maps();
  await cache.settled();
  t.is(maps(), released);
});
