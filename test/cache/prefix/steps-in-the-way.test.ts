// A batch is refused before anything changes where a step of the engine is in the way of a copy, also where streams are, too.

import { cacheTest, rowTokens } from '../../helpers/cache.js';
import { nativeOf } from '../../helpers/native-of.js';
import { tokensOf } from './spoken.js';

cacheTest('a step in the way of a sequence that waits for a stream leaves the rest of the batch as it was', {
  rows: 8, device: { streams: 'manual' },
}, (t, bench) => {
  const { cache, mock } = bench;
  const stream = nativeOf(bench.driver).createStream();
  const text = tokensOf(1, rowTokens);
  const writer = cache.acquire({ tokens: [...text, ...tokensOf(2, 5)] });
  bench.compute(writer, rowTokens + 4);
  const parent = cache.acquire({ tokens: tokensOf(3, 4) });
  bench.compute(parent, 4);
  const free = parent.fork();
  const busy = cache.acquire({ tokens: [...text, ...tokensOf(4, 4)] });
  t.is(busy.cachedBy.aliasedTokens, rowTokens);
  mock.queueWork(stream, []);
  let batch = bench.batchOf([busy, 4]);
  cache.prepare(batch);
  cache.commit(batch, { fence: { stream } });
  batch = bench.batchOf([writer, 1]);
  cache.prepare(batch);
  cache.commit(batch, { fence: { step: 1 } });
  busy.truncate(rowTokens / 2); // into the row that it shares with the writer
  const { admissiblePages } = cache.counts();
  batch = bench.batchOf([free, 1], [busy, 1]);
  t.throws(() => { cache.prepare(batch); }, { code: 'KV_WORK_QUEUED' });
  t.is(cache.metrics.detachedRows, 0);
  t.is(cache.counts().admissiblePages, admissiblePages);
  mock.completeStream(stream);
  cache.completeStep(1);
  cache.prepare(batch);
  cache.commit(batch);
  t.is(cache.metrics.detachedRows, 2);
  for (const sequence of [writer, parent, free, busy]) sequence.release();
  nativeOf(bench.driver).destroyStream(stream);
});
