// A slot in quarantine may have lost rows of a cached text. The text stays cached where its pages are kept, and nobody reads it
// through the slot that lost it.

import { cacheTest, rowTokens, type BenchOptions } from '../../helpers/cache.js';
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

/** 3 and 2 pages of K to one of V: rows of different tensors end at the same token only every three rows. */
const uneven: BenchOptions = { model: { layers: 1, kvHeads: 1, headDim: 1536, valueHeadDim: 1024, dtype: 'float16' } };

for (const [title, options] of [['every row is a group', {}], ['rows are shared in groups', uneven]] as const) {
  cacheTest(`a sequence that has lost its last row cannot be forked, and says so; others go on (${title})`, options, (t, bench) => {
    const { cache, mock } = bench;
    const speaker = new Speaker(cache);
    const prompt = tokensOf(1, 10);
    const ruined = speaker.say(prompt);
    const fork = ruined.fork();
    const { pagesPerRow } = cache.layout;
    mock.failCall('cuMemMap', { nth: pagesPerRow + 1, times: 1_000 }); // behind the copy: neither it nor what was there is mapped
    t.throws(() => speaker.goOn(ruined, prompt, [1]), { code: 'KV_DRIVER_CALL_FAILED' });
    mock.clearFailures();
    t.is(cache.metrics.quarantinedSlots, 1);
    for (const call of [() => ruined.fork(), () => bench.prepare(ruined, 1)]) {
      t.like(t.throws(call, { code: 'KV_SLOT_BUSY' }), { details: { slot: ruined.slot, holder: 'the quarantine' } });
    }
    const text = speaker.goOn(fork, prompt, [2]);
    ruined.release();
    t.is(speaker.wrongTokens(fork, text), 0);
    t.is(cache.metrics.lateErrors, 0);
  });
}

cacheTest('for want of mappings no slot in quarantine is asked for its own', { on: 'host', slots: 3 }, (t, bench) => {
  const { cache } = bench;
  const speaker = new Speaker(cache);
  const prompt = tokensOf(1, 2 * rowTokens);
  const ruined = speaker.say(prompt);
  bench.fail('mmap-map', 2);
  bench.fail('mmap-unmap', 1);
  t.throws(() => speaker.goOn(ruined, prompt, [1]), { code: 'KV_OUT_OF_MAPPINGS' });
  bench.forgiveAll();
  t.is(cache.metrics.quarantinedSlots, 1);
  ruined.release();
  speaker.say(tokensOf(2, rowTokens)).release();
  bench.fail('mmap-map', 1);
  const sequence = speaker.say(tokensOf(3, 2 * rowTokens)); // once an idle slot has given its own
  bench.forgiveAll();
  t.is(speaker.wrongTokens(sequence, tokensOf(3, 2 * rowTokens)), 0);
  t.is(cache.metrics.lateErrors, 0);
});

cacheTest('a slot in quarantine hides no other that holds the same text', { slots: 3 }, (t, bench) => {
  const { cache, mock } = bench;
  const speaker = new Speaker(cache);
  const prompt = tokensOf(1, 2 * rowTokens);
  const ruined = speaker.say(prompt);
  const other = cache.acquire({ tokens: [...prompt, 1] });
  mock.failCall('cuMemMap', { nth: 2, times: 1_000 });
  mock.failCall('cuMemUnmap', { times: 1_000 });
  t.throws(() => speaker.goOn(ruined, prompt, [1]), { code: 'KV_DRIVER_CALL_FAILED' });
  mock.clearFailures();
  t.is(cache.metrics.quarantinedSlots, 1);
  other.release();
  ruined.release();
  const again = cache.acquire({ tokens: [...prompt, 1] });
  t.is(again.slot, other.slot);
  t.like(again.cachedBy, { adoptedTokens: 2 * rowTokens, aliasedTokens: 0 });
});
