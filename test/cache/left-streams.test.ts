// What the cache says to streams: work that reads shared rows waits for the work that writes them, and a stream is left alone once
// its sequences are released.

import { cacheTest, type BenchOptions } from '../helpers/cache.js';
import { nativeOf } from '../helpers/native-of.js';
import { RunAheadEngine } from '../helpers/run-ahead-engine.js';
import { tokensOf } from './prefix/spoken.js';

/** Rows of 8 tokens. */
const options: BenchOptions = {
  pageBytes: 4096, model: { layers: 2, kvHeads: 1, headDim: 256, dtype: 'float16' }, slots: 4, mapper: 'off',
  device: { streams: 'manual', granularityBytes: 4096 },
};

cacheTest('what a request reads on its stream is written before, on whatever stream', options, (t, bench) => {
  const { cache, mock } = bench;
  const engine = new RunAheadEngine(bench, { streams: 2, probes: 40 });
  const text = tokensOf(1, 16);
  engine.step([engine.start([...text, 5])]);
  const before = mock.callCounts().cuStreamWaitEvent;
  const other = engine.start([...text, 6, 7], {}, 1);
  t.is(other.sequence.cachedBy.aliasedTokens, 16, 'whole rows, of which nothing is copied');
  t.is(mock.callCounts().cuStreamWaitEvent, before + 1);
  engine.step([other]);
  mock.completeStream(engine.streams[1]!); // does first what that stream waits for
  engine.assertAll();
  engine.close();
  t.is(cache.metrics.lateErrors, 0);
});

cacheTest('a stream may be destroyed once its sequences are released, whatever else they wait for', options, (t, bench) => {
  const { cache, mock } = bench;
  const native = nativeOf(bench.driver);
  const stream = native.createStream();
  const sequence = cache.acquire({ promptTokens: 16, stream });
  for (let step = 0; step < 2; step += 1) {
    const batch = bench.batchOf([sequence, 1]);
    cache.prepare(batch);
    mock.queueWork(stream, [{ address: sequence.address(0), bytes: 4096, access: 'write' }]);
    cache.commit(batch, { fence: { stream } });
  }
  sequence.release({ fence: { step: 1 } });
  native.destroyStream(stream);
  cache.completeStep(1);
  t.is(cache.counts().retiringSlots, 1);
  mock.completeAll();
  t.like(cache.counts(), { retiringSlots: 0, idleSlots: 4 });
  t.is(cache.metrics.lateErrors, 0);
  t.deepEqual(mock.misuses(), []);
});

for (const isNamed of [true, false]) {
  cacheTest(`copying tokens of a released sequence for one ${isNamed ? 'on another stream' : 'without a stream'} queues nothing on the stream of the released one`, options, (t, bench) => {
    const { cache, mock } = bench;
    const native = nativeOf(bench.driver);
    const [stream, other] = [native.createStream(), native.createStream()];
    const text = tokensOf(1, 12);
    const [first, last] = [cache.acquire({ tokens: text, stream: other }), cache.acquire({ promptTokens: 8, stream })];
    for (const [sequence, lane, tokens] of [[first, other, 12], [last, stream, 8]] as const) {
      const batch = bench.batchOf([sequence, tokens]);
      cache.prepare(batch);
      mock.queueWork(lane, [{ address: sequence.address(0), bytes: tokens * 512, access: 'write' }]);
      cache.commit(batch, { fence: { stream: lane } });
    }
    last.release();
    native.destroyStream(stream);
    if (isNamed) {
      first.release();
      native.destroyStream(other);
    }
    const named = isNamed ? native.createStream() : undefined;
    const second = cache.acquire({ tokens: [...text.slice(0, 11), 99], stream: named });
    t.like(second.cachedBy, { aliasedTokens: 8, copiedTokens: 3 });
    mock.completeAll();
    for (const sequence of isNamed ? [second] : [first, second]) sequence.release();
    t.is(cache.metrics.lateErrors, 0);
    t.deepEqual(mock.misuses(), []);
    native.destroyStream(named ?? other);
  });
}
