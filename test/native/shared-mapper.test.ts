// Caches of one pool whose rows one thread maps in the background.

import test, { type ExecutionContext } from 'ava';

import { countPages, native, type NativeCache } from '#internal/device/native.js';

import { drivers, pageBytes } from '../helpers/cache.js';
import { NativeCaches, type NativeCachesOptions, type NativeSet } from '../helpers/native-caches.js';

function open(t: ExecutionContext, options: Partial<NativeCachesOptions> = {}): NativeCaches {
  return new NativeCaches(t, { pages: 200, tensors: [2, 1, 3], slots: 4, mapper: true, ...options });
}

/** Asks for `rows` rows of every slot. */
function request({ sets }: NativeCaches, rows: number): void {
  for (const { cache } of sets) cache.request(Int32Array.from([0, 1, 2, 3].flatMap((slot) => [slot, rows])), 4);
}

for (const on of drivers) {
  test(`every cache gets the rows that it asked for, from its slots' first rows on (${on})`, async (t) => {
    const bench = open(t, { on });
    bench.sets[1]!.cache.slide(Int32Array.of(2, 3, 0), 1);
    request(bench, 6);
    await bench.idle();
    for (const { rows } of bench.sets) t.deepEqual([...rows], [6, 6, 6, 6]);
    t.deepEqual([...bench.sets[1]!.first], [0, 0, 3, 0]);
    for (const { cache, tensors } of bench.sets) {
      const rows = tensors === 1 ? 21 : 24;
      t.like(cache.counters(), { backgroundRows: rows, backgroundMaps: rows * tensors, foregroundRows: 0, mappedRows: rows });
    }
    bench.verify();
    bench.close();
  });

  test(`each can be closed first, while the others go on (${on})`, async (t) => {
    for (const [first, second, third] of [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] as const) {
      const bench = open(t, { on });
      const order = [bench.sets[first], bench.sets[second], bench.sets[third]] as const;
      request(bench, 5);
      order[0]!.cache.close();
      t.true(order[0]!.cache.mapperState().isIdle);
      order[1]!.cache.request(Int32Array.of(3, 8), 1);
      order[1]!.cache.close();
      order[2]!.cache.request(Int32Array.of(3, 8), 1);
      do await new Promise(setImmediate); while (!order[2]!.cache.mapperState().isIdle);
      order[2]!.cache.synchronize();
      t.deepEqual([...order[2]!.rows], [5, 5, 5, 8]);
      bench.close(order as readonly (typeof bench.sets)[number][]);
    }
  });
}

test('one cache drops its requests, and the others keep theirs', async (t) => {
  const bench = open(t);
  const [one, other] = bench.sets;
  for (let round = 0; round < 20; round += 1) {
    request(bench, 4);
    if (round % 2 === 0) one!.cache.quiesce();
    else for (const slot of [0, 1, 2, 3]) one!.cache.cancel(slot);
    const seen = [...one!.rows];
    await bench.idle();
    t.deepEqual([...one!.rows], seen);
    t.deepEqual([...other!.rows], [4, 4, 4, 4]);
    for (const { cache } of bench.sets) for (const slot of [0, 1, 2, 3]) cache.shrink(slot, 0);
  }
  bench.close();
});

for (const drop of ['cancel', 'quiesce'] as const) {
  test(`a row at hand that is dropped by ${drop} is the last of its slot`, async (t) => {
    const bench = open(t, { tensors: [4] });
    const [{ cache, rows }] = bench.sets as [NativeSet];
    bench.device!.setLatencyNs('cuMemMap', 20_000_000); // of four in a row
    let dropped = 0;
    for (let round = 0; round < 4; round += 1) {
      const before = bench.device!.callCounts().cuMemMap;
      cache.request(Int32Array.of(0, 6), 1);
      while (bench.device!.callCounts().cuMemMap === before) await new Promise(setImmediate);
      cache[drop](0);
      dropped += rows[0] === 1 ? 1 : 0;
      t.true(cache.mapperState().isIdle, 'no other row is asked for');
      cache.shrink(0, 0);
    }
    t.log(`${dropped} of 4 were at hand`);
    bench.close();
  });
}

test('a failure is told by the cache whose row it was', async (t) => {
  const bench = open(t, { pages: 20 });
  const [one, other] = bench.sets;
  bench.device!.failCall('cuMemMap', { result: 999 });
  other!.cache.request(Int32Array.of(0, 1), 1);
  await bench.idle();
  one!.cache.request(Int32Array.of(0, 16), 1); // more than there is
  await bench.idle();
  t.like(one!.cache.mapperState(), { lateErrors: 0, droppedRequests: 1, lastError: undefined });
  t.like(other!.cache.mapperState(), { lateErrors: 1, droppedRequests: 0, lastError: { code: 'KV_DRIVER_CALL_FAILED' } });
  bench.sets[0]!.cache.close();
  t.is(one!.cache.mapperState().droppedRequests, 1); // also once it is closed
  bench.close();
});

test('pages are created ahead for all of them', async (t) => {
  const bench = open(t, { readyPages: 6 });
  await bench.idle();
  t.is(countPages(bench.pool).freePages, 6);
  bench.sets[2]!.cache.grow(Int32Array.of(0, 2), 1);
  await bench.idle();
  t.is(countPages(bench.pool).freePages, 6);
  bench.sets[0]!.cache.close();
  bench.sets[2]!.cache.shrink(0, 0);
  bench.sets[1]!.cache.grow(Int32Array.of(0, 14), 1);
  do await new Promise(setImmediate); while (!bench.sets[1]!.cache.mapperState().isIdle);
  t.is(countPages(bench.pool).freePages, 6);
  bench.close();
});

test('a cache that has none to share, another pool, and what is no cache are refused', (t) => {
  const bench = open(t), other = open(t, { mapper: false, tensors: [1] }), closed = open(t, { tensors: [1, 1] });
  closed.sets[0]!.cache.close();
  const openWith = ({ pool }: NativeCaches, mapper: unknown): NativeCache => new (native().NativeCache)(pool, {
    pageBytes, slots: 1, maxTokens: 16, scrub: false, mapper: mapper as NativeCache, tokenBytes: Float64Array.of(4096),
    tensors: Float64Array.of(0, 0, 4096),
  }, new Int32Array(1), new Uint8Array(1));
  for (const mapper of [{}, undefined, 1, bench.pool]) t.throws(() => openWith(bench, mapper), { code: 'KV_INTERNAL' });
  t.throws(() => openWith(other, other.sets[0]!.cache), { code: 'KV_INTERNAL' });
  t.throws(() => openWith(other, bench.sets[0]!.cache), { code: 'KV_INTERNAL' });
  t.throws(() => openWith(closed, closed.sets[0]!.cache), { code: 'KV_CLOSED' });
  openWith(closed, closed.sets[1]!.cache).close();
  for (const one of [bench, other, closed]) one.close();
});
