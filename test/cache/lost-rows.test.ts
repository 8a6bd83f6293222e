// What a slot in quarantine keeps is free for nobody.

import { isKvError } from 'virtual-kv';

import { cacheTest, type BenchOptions } from '../helpers/cache.js';
import { Speaker, tokensOf } from './prefix/spoken.js';

/** Rows of 8 tokens, 4 pages each. */
const options: BenchOptions = {
  pageBytes: 4096, model: { layers: 2, kvHeads: 1, headDim: 256, dtype: 'float16' }, slots: 2, mapper: 'off', device: { granularityBytes: 4096 },
};
const always = 1_000_000;
const prompt = tokensOf(1, 19);

cacheTest('rows of a slot in quarantine are not counted as free when its sequence is over', options, (t, bench) => {
  const { cache, mock } = bench;
  const speaker = new Speaker(cache);
  const sequence = speaker.say(prompt);
  sequence.append(tokensOf(4, 8));
  mock.failCall('cuMemSetAccess', { nth: 2 });
  mock.failCall('cuMemUnmap', { times: always });
  t.throws(() => { bench.prepare(sequence, 8); }, { code: 'KV_DRIVER_CALL_FAILED' });
  mock.clearFailures();
  sequence.release();
  const { quarantinedSlots, admissibleTokens } = cache.counts();
  t.is(quarantinedSlots, 1);
  const largest = cache.acquire({ promptTokens: admissibleTokens });
  bench.compute(largest, admissibleTokens);
  t.throws(() => { bench.prepare(largest, 8); }, { code: 'KV_OUT_OF_PAGES' });
  largest.release();
  t.true(isKvError(t.throws(() => cache.acquire({ promptTokens: admissibleTokens + 8 }))));
});
