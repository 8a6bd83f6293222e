// `cache.step`: one call for prepare, the pass, and commit or discard.

import { KvCache, type Batch } from 'virtual-kv';

import { cacheTests } from '../helpers/cache.js';

cacheTests('a step gives memory, runs the pass between, and makes its tokens valid', {}, async (t, { cache }) => {
  const [one, other] = [cache.acquire(), cache.acquire()];
  const seen: unknown[] = [];
  const answer = await cache.step([[one, 10], [other, 3]], async (batch) => {
    seen.push(batch.isPrepared, batch.length, batch.tokensAt(1), one.length, cache.stamp(one, 0, 10, 7) > 0);
    await Promise.resolve();
    return 'logits';
  });
  t.is(answer, 'logits');
  t.deepEqual(seen, [true, 2, 3, 0, true]);
  t.deepEqual([one.length, other.length], [10, 3]);
  t.is(cache.verifyStamp(one, 0, 10, 7), 0);
  t.is(await cache.step([[one, 1]], () => 5), 5, 'a pass that answers at once');
  t.is(one.length, 11);
});

cacheTests('a pass that throws or rejects leaves lengths as they were, and its error is the step\'s', {}, async (t, { cache }) => {
  const sequence = cache.acquire();
  const error = new Error('of the kernel');
  for (const fail of [() => { throw error; }, async () => { await Promise.resolve(); throw error; }]) {
    t.is(await t.throwsAsync(cache.step([[sequence, 4]], fail)), error);
    t.is(sequence.length, 0);
  }
  await cache.step([[sequence, 4]], () => {});
  t.is(sequence.length, 4, 'it is in no prepared batch any more');
});

cacheTests('steps overlap where their sequences differ, each with a batch of its own', {}, async (t, { cache }) => {
  const [one, other] = [cache.acquire(), cache.acquire()];
  const batches = new Set<Batch>();
  let finish = (): void => {};
  const first = cache.step([[one, 2]], (batch) => new Promise<void>((resolve) => { batches.add(batch); finish = resolve; }));
  await cache.step([[other, 2]], (batch) => { batches.add(batch); });
  await t.throwsAsync(cache.step([[one, 1]], () => {}), { code: 'KV_SLOT_BUSY' });
  finish();
  await first;
  await cache.step([[one, 1]], (batch) => { batches.add(batch); });
  t.is(batches.size, 2, 'the third has a batch of before');
  t.deepEqual([one.length, other.length], [3, 2]);
});

cacheTests('what cannot be done is refused before the pass, and changes nothing', { rows: 2 }, async (t, { cache }) => {
  const sequence = cache.acquire();
  const never = (): void => { t.fail('it ran'); };
  const counts = cache.counts();
  const wrong: [unknown, unknown, unknown, string][] = [
    [undefined, never, {}, 'KV_INVALID_OPTION'], [[sequence], never, {}, 'KV_INVALID_OPTION'], [[[sequence, 0]], never, {}, 'KV_INVALID_OPTION'],
    [[[sequence, 1]], undefined, {}, 'KV_INVALID_OPTION'], [[[sequence, 1]], never, { fences: 1 }, 'KV_UNKNOWN_OPTION'],
    [[[sequence, 1], [sequence, 1]], never, {}, 'KV_BATCH_STATE'], [[[sequence, cache.layout.maxTokens]], never, {}, 'KV_OUT_OF_PAGES'],
  ];
  for (const [entries, compute, options, code] of wrong) {
    await t.throwsAsync(cache.step(entries as never, compute as never, options as never), { code });
    t.deepEqual(cache.counts(), counts);
  }
  await cache.step([[sequence, 1]], () => {});
  t.is(sequence.length, 1);
});

cacheTests('a cache that is closed in the middle of a step ends it', {}, async (t, bench) => {
  const { cache } = bench;
  const sequence = cache.acquire();
  await t.throwsAsync(cache.step([[sequence, 1]], () => { cache.close(); }), { code: 'KV_CLOSED' });
  await t.throwsAsync(cache.step([[sequence, 1]], () => {}), { code: 'KV_CLOSED' });
  t.true(cache instanceof KvCache && cache.isClosed);
});
