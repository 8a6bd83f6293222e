// Copies and scrubs are queued on a stream: when one of them is refused, those queued before it still run, and their memory must
// not be unmapped under them. The mock loses its device where that happens, as a real one would.

import { cacheTest, rowTokens, type BenchOptions } from '../helpers/cache.js';
import { Speaker, tokensOf } from './prefix/spoken.js';

const queueing: BenchOptions = { device: { streams: 'manual' } };
const prompt = tokensOf(1, rowTokens + 10);

for (const [call, nth] of [['cuMemsetD8Async', 1], ['cuMemsetD8Async', 3], ['cuStreamSynchronize', 1]] as const) {
  cacheTest(`rows are not unmapped under their scrub when call ${nth} of ${call} is refused`, {
    ...queueing, scrub: 'between-tenants',
  }, (t, bench) => {
    const sequence = bench.cache.acquire({ tenant: 'a' });
    bench.fail(call, nth);
    t.throws(() => bench.prepare(sequence, 1), { code: 'KV_DRIVER_CALL_FAILED' });
    t.deepEqual(bench.mock.misuses(), []);
    t.is(bench.mock.pendingWork, 0);
    bench.compute(sequence, 1);
  });
}

for (const [call, nth] of [['cuMemcpyDtoDAsync', 1], ['cuMemcpyDtoDAsync', 3], ['cuStreamSynchronize', 1]] as const) {
  cacheTest(`a fork's own row is not unmapped under its copy when call ${nth} of ${call} is refused`, queueing, (t, bench) => {
    const speaker = new Speaker(bench.cache);
    const parent = speaker.say(prompt);
    const fork = parent.fork();
    bench.fail(call, nth);
    t.throws(() => speaker.goOn(fork, prompt, [1]), { code: 'KV_DRIVER_CALL_FAILED' });
    t.deepEqual(bench.mock.misuses(), []);
    t.is(bench.mock.pendingWork, 0);
    speaker.compute(fork, [...prompt, 1], 1);
    t.is(speaker.wrongTokens(fork, [...prompt, 1]) + speaker.wrongTokens(parent, prompt), 0);
  });

  cacheTest(`a cached row that no slot maps is not unmapped under its copy when call ${nth} of ${call} is refused`, {
    ...queueing, slots: 1,
  }, (t, bench) => {
    const speaker = new Speaker(bench.cache);
    speaker.say(prompt).release();
    speaker.say(tokensOf(2, 5)).release(); // takes the slot, the text stays cached
    const branch = [...prompt.slice(0, rowTokens + 5), 1];
    bench.fail(call, nth);
    t.throws(() => speaker.say(branch), { code: 'KV_DRIVER_CALL_FAILED' });
    t.deepEqual(bench.mock.misuses(), []);
    t.is(bench.mock.pendingWork, 0);
    const sequence = speaker.say(branch);
    t.is(sequence.cachedBy.copiedTokens, 5);
    t.is(speaker.wrongTokens(sequence, branch), 0);
  });
}
