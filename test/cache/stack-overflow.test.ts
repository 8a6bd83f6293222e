// A call that finds too little room on the stack: it throws the RangeError before it has changed anything, wherever the stack would have ended.

import test from 'ava';

import { EncoderCache, type Sequence } from 'virtual-kv';

import { Random } from '#internal/base/random.js';

import { cacheTests } from '../helpers/cache.js';
import { seedOf } from '../helpers/seed.js';

/** Calls `work` behind so many calls. */
function behind(calls: number, work: () => void): void {
  if (calls > 0) behind(calls - 1, work);
  else work();
}

/** How many calls the stack has room for, once `behind` is compiled. */
function mostCalls(): number {
  countCalls();
  countCalls();
  return countCalls();
}

function countCalls(): number {
  let [low, high] = [0, 65_536];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    try {
      behind(middle, () => {});
      low = middle;
    } catch {
      high = middle - 1;
    }
  }
  return low;
}

const seed = seedOf('stack-overflow');

cacheTests(`[seed ${seed}] after a call that the stack had no room for, all counts agree`, { rows: 60, slots: 8, maxTokens: 4096 }, (t, bench) => {
  const { cache } = bench;
  const random = new Random(seed);
  const tokens = Int32Array.from({ length: 700 }, (_, index) => index % 50);
  const batch = cache.createBatch();
  const live: Sequence[] = [];
  const calls = [
    () => live.push(cache.acquire({ tokens: tokens.subarray(0, 100 + random.integer(600)), tenant: `t${random.integer(3)}` })),
    () => {
      if (!batch.isPrepared) {
        batch.clear();
        for (const sequence of live) batch.add(sequence, 64);
        cache.prepare(batch);
      }
      cache.commit(batch);
    },
    () => live.push(live[0]!.fork()),
    () => live[0]!.truncate(live[0]!.length >> 1),
    () => live[0]!.release(),
  ];
  const most = mostCalls();
  let overflows = 0;
  for (let call = 0; call < 300; call += 1) {
    const work = calls[random.integer(calls.length)]!;
    const room = random.integer(2) === 0 ? most : Math.floor(Math.exp(random.next() * Math.log(600)));
    try {
      behind(most - room, work);
    } catch (error) {
      if (error instanceof RangeError) overflows += 1;
    }
    cache.verify();
    for (const sequence of live.filter(({ isReleased }) => isReleased)) live.splice(live.indexOf(sequence), 1);
    while (live.length > 5) live.shift()!.release();
  }
  t.true(overflows > 50, `${overflows} overflows`);
  if (batch.isPrepared) cache.discard(batch);
  for (const sequence of live) sequence.release();
});

test('an encoder cache whose call the stack had no room for is as before', async (t) => {
  const encoder = new EncoderCache({ budgetBytes: 1024, kinds: { image: { width: 4, dtype: 'float32' } } });
  const most = mostCalls();
  for (let room = 1; room < 400; room += 7) {
    let got: Promise<{ release(): void }> | undefined;
    try {
      behind(most - room, () => {
        got = encoder.acquire({ kind: 'image', hash: `${room}`, compute: () => new Float32Array(4) });
      });
    } catch { /* the stack was full before */ }
    const hold = await got?.catch(() => undefined);
    hold?.release();
    const { items, holds, waitingRequests, heldBytes, usedBytes } = encoder.counts();
    t.deepEqual([holds, waitingRequests, heldBytes, usedBytes], [0, 0, 0, 16 * items]);
  }
  encoder.close();
});
