// Rows that the mapper maps ahead of a sequence that ends meanwhile.

import { ahead } from 'virtual-kv';

import { cacheTest, rowTokens } from '../helpers/cache.js';
import { turn } from './tiers/device-index.js';

cacheTest('the mapper maps no further row for a sequence that was released while it mapped one', {
  growth: ahead(12 * rowTokens), eagerRows: 0, idleRowsLimit: 0, prefixCache: 'off',
}, async (t, bench) => {
  const { cache, mock } = bench;
  const { pagesPerRow } = cache.layout;
  const maps = (): number => mock.callCounts().cuMemMap;
  let stops = 0;
  for (let tries = 0; tries < 7; tries += 1) {
    mock.setLatencyNs('cuMemMap', 0);
    const sequence = cache.acquire({ promptTokens: 1, reserve: 'none' });
    bench.prepare(sequence, 1);
    const before = maps();
    mock.setLatencyNs('cuMemMap', 1e6);
    bench.commit(); // asks for 12 rows more
    while (maps() === before) await turn();
    const released = maps();
    sequence.release();
    await cache.settled();
    if (maps() - released <= 2 * pagesPerRow) stops += 1;
  }
  // Between the count and the release this thread may stand still while rows are mapped; a mapper that goes on maps all of them as a rule.
  t.true(stops >= 4, `it stopped ${stops} times of 7`);
});
