// Text that the eviction policy withholds is no other user of the cache: nobody releases it, so no request waits for it.

import { NaiveScheduler, OfflineScheduler, OnlineScheduler, priority } from 'virtual-kv';

import { assertAnswer, collect, promptOf, resultOf, servingTests } from './serving-bench.js';

const options = { rows: 6, prefixCache: { policy: priority({ pinnedLevel: 1 }) } };

servingTests('a request that lacks only what pinned text keeps is refused', options, async ({ t, cache, engine, bench }) => {
  const request = { tokens: promptOf(200), maxNewTokens: 3 };
  const answers = {
    naive: async () => resultOf((await collect(new NaiveScheduler({ cache, engine }).run([request])))[0]),
    offline: async () => resultOf((await collect(new OfflineScheduler({ cache, engine }).run([request])))[0]),
    online: async () => new OnlineScheduler({ cache, engine }).submit(request).result,
  };
  for (const [name, answer] of Object.entries(answers)) {
    const sequence = cache.acquire({ tokens: Array.from({ length: 150 }, (_, at) => 900 + at), priority: 1 });
    bench.compute(sequence, 150);
    sequence.release();
    await t.throwsAsync(answer, { code: 'KV_OUT_OF_PAGES' }, name);
    cache.prefixes.reset();
    assertAnswer(t, request, await answer());
    cache.prefixes.reset();
  }
});
