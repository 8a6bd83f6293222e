// Rows that the mapper maps ahead of a sequence that ends meanwhile.

import { ahead } from 'virtual-kv';

import { cacheTest, rowTokens } from '../helpers/cache.js';
import { turn } from './tiers/device-index.js';

cacheTest('the mapper maps no further row for a sequence that was released while it mapped one', {
  growth: ahead(12 * rowTokens), eagerRows: 0, idleRowsLimit: 0, prefixCache: 'off',
}, async (t, bench) => {
  const { cache, mock } = bench;
  const maps = (): number => mock.callCounts().cuMemMap;
  let fewest = Infinity;
  for (let tries = 0; tries < 20 && fewest >= 11; tries += 1) { // it may have mapped all before this thread gets to run
    mock.setLatencyNs('cuMemMap', 0);
    const sequence = cache.acquire({ promptTokens: 1, reserve: 'none' });
    bench.prepare(sequence, 1);
    const [before, { backgroundRows }] = [maps(), cache.metrics];
    mock.setLatencyNs('cuMemMap', 2e6);
    bench.commit(); // asks for 12 rows more, of 4 pages each
    while (maps() === before) await turn();
    sequence.release();
    await cache.settled();
    fewest = Math.min(fewest, cache.metrics.backgroundRows - backgroundRows);
  }
  t.true(fewest < 11, `${fewest} rows`);
});
