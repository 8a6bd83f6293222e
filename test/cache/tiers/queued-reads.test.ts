// Text that tiers read while work is queued on its rows, also by another sequence than the one that left it: it is read behind that work.

import { setImmediate } from 'node:timers/promises';

import test from 'ava';

import { CacheBench } from '../../helpers/cache.js';
import { RunAheadEngine } from '../../helpers/run-ahead-engine.js';
import { tokensOf } from '../prefix/spoken.js';
import { dropFromDevice } from './device-index.js';
import { PlainTier } from './plain-tier.js';

/** Lets all work be done that is queued, of the oldest stream first, until the threads of copies have come so far. */
async function completeUntil(bench: CacheBench, isOver: () => boolean): Promise<void> {
  while (!isOver()) {
    await setImmediate();
    bench.mock.completeAll();
  }
}

test('what a released fork leaves is read behind the work that its parent has queued on it', async (t) => {
  const tier = new PlainTier('other');
  const bench = new CacheBench(t, {
    device: { streams: 'manual', granularityBytes: 4096, hasGarbage: true }, pageBytes: 4096, model: { layers: 2, kvHeads: 1, headDim: 256, dtype: 'float16' },
    slots: 4, rows: 24, prefixCache: { tiers: [tier], tierBlockTokens: 8, modelId: 'm' },
  });
  const { prefixes } = bench.cache;
  await prefixes.tiers!.ready();
  const other = bench.cache.acquire({ tokens: tokensOf(2, 8) });
  bench.compute(other, 8);
  other.release();
  await completeUntil(bench, () => tier.blocks.size === 1); // the streams of copies come before the engine's
  const engine = new RunAheadEngine(bench, { streams: 1, probes: 0 });
  const prompt = tokensOf(1, 16);
  const parent = engine.start(prompt);
  engine.step([parent]);
  const reads = bench.mock.callCounts().cuMemcpyDtoHAsync;
  engine.release(engine.fork(parent));
  while (bench.mock.callCounts().cuMemcpyDtoHAsync === reads) await setImmediate(); // reads are queued before any work is done
  await completeUntil(bench, () => tier.blocks.size === 3);
  engine.assertAll();
  engine.release(parent);
  dropFromDevice(bench.cache);
  let promoted = 0;
  void prefixes.promote({ tokens: prompt }).then(({ cachedTokens }) => { promoted = cachedTokens; });
  await completeUntil(bench, () => promoted > 0);
  t.is(promoted, 16);
  const again = engine.start([...prompt, 1]);
  t.is(again.sequence.cachedTokens, 16);
  engine.assertAll(); // with the bytes that the work has written
  engine.close();
  await bench.cache.shutdown();
  bench.close();
});
