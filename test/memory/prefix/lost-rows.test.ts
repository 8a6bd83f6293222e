// A slot in quarantine may have lost rows of a cached text. The text stays cached where its pages are kept, and nobody reads it
// through the slot that lost it.

import { cacheTest, rowTokens } from '../../helpers/cache.js';
import { Speaker, tokensOf } from './spoken.js';

cacheTest('a cached row is not copied from a slot that the driver has ruined', { slots: 2 }, (t, bench) => {
  const { cache, mock } = bench;
  const speaker = new Speaker(cache);
  const prompt = tokensOf(1, rowTokens + 20);
  const ruined = speaker.say(prompt);
  const other = speaker.say(tokensOf(2, 5));
  ruined.release();
  mock.failCall('cuMemUnmap', { nth: 2, times: 1_000 }); // the first tensor is unmapped already, and stays so
  mock.failCall('cuMemMap', { times: 1_000 });
  t.throws(() => speaker.say(tokensOf(3, 5)), { code: 'KV_DRIVER_CALL_FAILED' }); // its slot was to be cleared
  mock.clearFailures();
  t.is(cache.metrics.quarantinedSlots, 1);
  other.release();
  const branch = [...prompt.slice(0, rowTokens + 10), 1, 2];
  const sequence = speaker.say(branch);
  t.not(sequence.slot, ruined.slot);
  t.is(sequence.cachedTokens, rowTokens + 10);
  t.is(speaker.wrongTokens(sequence, branch), 0);
  t.deepEqual(mock.misuses(), []);
});
