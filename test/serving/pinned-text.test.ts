// Text that the eviction policy withholds is no other user of the cache: nobody releases it. A request that lacks its memory waits only
// where pins end by themselves.

import { NaiveScheduler, OfflineScheduler, OnlineScheduler, priority } from 'virtual-kv';

import { cacheTest, drivers, type CacheBench } from '../helpers/cache.js';
import { PatternEngine, turn } from './pattern-engine.js';
import { assertAnswer, collect, promptOf, resultOf, servingTests, smallModel } from './serving-bench.js';
import { SteppedClock } from './stepped-clock.js';
import { sampled } from '../runner/tier.js';

const options = { rows: 6, prefixCache: { policy: priority({ pinnedLevel: 1, pinnedShare: 1 }) } };

/** Pins most of the memory. */
function pin(bench: CacheBench): void {
  const sequence = bench.cache.acquire({ tokens: Array.from({ length: 150 }, (_, at) => 900 + at), priority: 1 });
  bench.compute(sequence, 150);
  sequence.release();
}

servingTests('a request that lacks only what pinned text keeps is refused', options, async ({ t, cache, engine, bench }) => {
  const request = { tokens: promptOf(200), maxNewTokens: 3 };
  const answers = {
    naive: async () => resultOf((await collect(new NaiveScheduler({ cache, engine }).run([request])))[0]),
    offline: async () => resultOf((await collect(new OfflineScheduler({ cache, engine }).run([request])))[0]),
    online: async () => new OnlineScheduler({ cache, engine }).submit(request).result,
  };
  for (const [name, answer] of Object.entries(answers)) {
    pin(bench);
    await t.throwsAsync(answer, { code: 'KV_OUT_OF_PAGES' }, name);
    cache.prefixes.reset();
    assertAnswer(t, request, await answer());
    cache.prefixes.reset();
  }
});

for (const on of sampled(drivers, 2)) {
  let nowMs = 0;
  const policy = priority({ pinnedLevel: 1, pinnedShare: 1, lifetimeMs: () => 2_500, now: () => nowMs });
  const title = `a request that fits when the time of the pins is over waits until then (${on})`;
  cacheTest(title, { model: smallModel, maxTokens: 400, rows: 6, prefixCache: { policy }, on }, async (t, bench) => {
    const { cache } = bench;
    const engine = new PatternEngine({ cache });
    const clock = new SteppedClock();
    pin(bench);
    const request = { tokens: promptOf(200), maxNewTokens: 3 };
    const { result } = new OnlineScheduler({ cache, engine, ...clock.options }).submit(request);
    const pass = async (ms: number): Promise<void> => {
      nowMs += ms;
      clock.advance(ms);
      for (let turns = 0; turns < 10; turns += 1) await turn();
    };
    for (let second = 0; second < 2; second += 1) {
      await pass(1_000);
      t.is(engine.passes, 0);
      t.is(clock.alarms, 1);
    }
    await pass(1_000);
    assertAnswer(t, request, await result);
  });
}
