// What a user reads after a mistake: the message speaks of what was typed, says what it must be, and names what helps.

import test, { type ExecutionContext } from 'ava';

import { ahead, isKvError, type Batch, type Sequence } from 'virtual-kv';

import { cacheTests, withCache, type CacheBench } from '../helpers/cache.js';

/** The call fails with a typed error of this message. */
function says(t: ExecutionContext, call: () => unknown, message: RegExp): void {
  const error = t.throws(call, { any: true });
  t.true(isKvError(error), String(error));
  t.regex((error as Error).message, message);
}

for (const [name, answer, said] of [
  ['NaN', NaN, 'NaN'], ['nothing', undefined, 'undefined'], ['a BigInt', 1n, '1n'], ['text', '5', "'5'"], ['a policy', ahead(), 'a function'],
] as const) {
  cacheTests(`a growth policy that returns ${name} is refused, and the batch is committed`, { growth: (tokens: number) => (tokens < 10 ? 0 : answer) as number },
    (t, bench) => {
      const sequence = bench.cache.acquire();
      says(t, () => bench.compute(sequence, 10), new RegExp(`^\`growth\` must be a function that returns a number of tokens; it returned ${said.replaceAll("'", '.')}\\.$`));
      t.is(sequence.length, 10);
      bench.cache.verify();
    });
}

test('a stream fence on host is refused with what to do instead, and the sequence stays', async (t) => {
  await withCache(t, { on: 'host' }, ({ cache }) => {
    const sequence = cache.acquire();
    for (const stream of [1n, 5n]) {
      says(t, () => { sequence.release({ fence: { stream } }); },
        /^`fence\.stream` must be 0n or left out on host, which has no streams, got \dn\. Release once the work is over, or behind the engine's step: `fence: \{ step \}`\.$/);
    }
    t.false(sequence.isReleased);
    sequence.release({ fence: { step: 1 } });
    cache.completeStep(1);
    t.is(cache.counts().activeSlots + cache.counts().retiringSlots, 0);
  });
});

cacheTests('a batch that is prepared again asks for the same tokens once more', {}, (t, bench) => {
  const sequence = bench.sequenceOf(5);
  const batch = bench.batchOf([sequence, 3]);
  for (const length of [8, 11]) {
    bench.cache.prepare(batch);
    bench.cache.commit(batch);
    t.is(sequence.length, length);
  }
  bench.cache.prepare(batch);
  bench.cache.discard(batch);
  t.is(sequence.length, 11);
});

test('a batch and a sequence of another cache are told where they belong', async (t) => {
  await withCache(t, {}, async ({ cache }) => {
    await withCache(t, {}, ({ cache: other }) => {
      says(t, () => { cache.prepare(other.createBatch()); }, /belongs to another cache\. Create it with this cache's `createBatch`\.$/);
      says(t, () => { cache.createBatch().add(other.acquire(), 1); }, /^`sequence` must be a sequence of this cache, got a Sequence\. It belongs to another cache\.$/);
    });
  });
});

/** Everything that a sequence can be asked, with the batch and the cache. */
const uses: Readonly<Record<string, (sequence: Sequence, bench: CacheBench, batch: Batch) => unknown>> = {
  length: (sequence) => sequence.length, mappedRows: (sequence) => sequence.mappedRows, view: (sequence) => sequence.view(0),
  address: (sequence) => sequence.address(0), truncate: (sequence) => sequence.truncate(0), append: (sequence) => sequence.append(1),
  keepValue: (sequence) => sequence.keepValue(1), fork: (sequence) => sequence.fork(), release: (sequence) => sequence.release(),
  'batch.add': (sequence, _, batch) => batch.add(sequence, 1),
};

cacheTests('after the cache has closed its sequences say so', {}, (t, bench) => {
  const sequence = bench.sequenceOf(5);
  const batch = bench.cache.createBatch();
  bench.cache.close();
  t.true(sequence.isReleased);
  for (const use of Object.values(uses)) {
    t.throws(() => use(sequence, bench, batch), { code: 'KV_CLOSED' });
  }
  t.notThrows(() => { sequence[Symbol.dispose](); });
});
