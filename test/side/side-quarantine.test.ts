// Side pages that the driver neither unmaps nor puts back: they are lost, and nobody waits for them.

import test from 'ava';

import type { Sequence } from 'virtual-kv';
import { CacheBench } from '../helpers/cache.js';
import { CapacityWait } from '#internal/serving/capacity-wait.js';
import { SideSpeaker } from './side-speaker.js';

const KiB = 1024;
const text = [1, 2, 3, 4, 5, 6, 20, 21, 22, 23, 24, 25, 26, 27];
const clock = { now: () => 0, after: () => () => {} };

test('what a failing driver keeps is in quarantine and not held: a request that lacks it is refused and does not wait', (t) => {
  const seen = new Set<number>();
  for (let nth = 1; nth <= 12; nth += 1) {
    const bench = new CacheBench(t, {
      on: 'mock', pageBytes: 4 * KiB, model: { layers: 1, kvHeads: 1, headDim: 256, dtype: 'float32' }, device: { granularityBytes: 4 * KiB }, slots: 3,
      maxTokens: 64, sideTensors: { hidden: { width: 256, dtype: 'float32', place: 'device' } }, sideBudgetBytes: 1024 * KiB, handOverSlots: 2, mapper: 'off',
    });
    const { cache } = bench;
    const speaker = new SideSpeaker(cache);
    speaker.cacheText([1, 2, 3, 4, 5, 6, 7, 8]);
    bench.fail('cuMemSetAccess', nth);
    bench.mock.failCall('cuMemUnmap', { nth: 1, times: 1000 });
    let sequence: Sequence | undefined;
    try {
      sequence = cache.acquire({ tokens: text });
      speaker.compute([{ sequence, text: [...text] }], text.length - sequence.cachedTokens);
    } catch (error) {
      t.regex((error as { details: { call: string } }).details.call, /^cuMem/);
    }
    bench.forgiveAll();
    sequence?.release();
    const { usedBytes, heldBytes, quarantinedBytes } = cache.sideCounts();
    seen.add(quarantinedBytes);
    t.is(heldBytes, 0, `call ${nth}`);
    t.true(quarantinedBytes <= usedBytes);
    t.false(new CapacityWait(cache, clock).isHeldByOthers(), `call ${nth}: others are waited for`);
    cache.close();
    bench.mock.clearFailures();
    bench.driver.close();
    bench.mock.close();
  }
  t.true([...seen].some((bytes) => bytes > 0), 'some pages were lost');
});
