// What the addon's calls leave in the arrays that a cache was opened with. lib/cache reads them without asking.

import test, { type ExecutionContext } from 'ava';

import type { MockCall } from 'virtual-kv/testing';

import { cacheNews } from '#internal/device/native.js';

import { NativeCacheBench, pagesPerRow, rowTokens, slots, sum } from '../helpers/native-cache.js';
import { slow } from '../runner/slow.js';

type Call = (bench: NativeCacheBench) => void;

/** Slot 0 has two groups of its own, kept as 10 and 11, which slot 1 shares; slot 2 has one. */
function sharing(t: ExecutionContext): NativeCacheBench {
  const bench = new NativeCacheBench(t);
  bench.grow(0, 2);
  bench.keep(0, [10, 11]);
  bench.cache.alias(1, Int32Array.of(10, 11), 0, 2);
  bench.grow(2, 1);
  return bench;
}

const calls: Readonly<Record<string, Call>> = {
  'grow': ({ cache }) => {
    cache.grow(Int32Array.of(2, 2, 3, 1), 2);
  },
  'shrink': ({ cache }) => {
    cache.shrink(0, 1);
  },
  'alias': ({ cache }) => {
    cache.alias(3, Int32Array.of(10, 11), 0, 2);
  },
  'admit': ({ cache }) => {
    cache.admit(3, 1n, Int32Array.of(10), 0, 1, 2, 3, 0, -1, 2 * rowTokens, undefined);
  },
  'detach': ({ cache }) => {
    cache.detach(1, 0, rowTokens, -1, 0n);
  },
  'detach behind a stream': ({ cache }) => {
    cache.detach(1, 0, rowTokens, 0, 0n);
  },
  'close': ({ cache }) => {
    cache.close();
  },
};

const failing: readonly MockCall[] = ['cuMemCreate', 'cuMemMap', 'cuMemSetAccess', 'cuMemUnmap', 'cuMemcpyDtoDAsync'];
/** What the driver refuses in the undo as well: how often in a row, of which call. */
const undos: readonly (readonly [MockCall, number])[] = [['cuMemMap', 0], ['cuMemUnmap', 40], ['cuMemMap', 40]];

for (const [name, call] of Object.entries(calls)) {
  slow('a sweep of refusals')(`rows and quarantine are right when ${name} returns or throws, whatever the driver refused`, (t) => {
    let refusals = 0;
    for (const kind of failing) {
      for (const [undo, times] of undos) {
        for (let nth = 1; ; nth += 1) {
          const bench = sharing(t);
          bench.device.failCall(kind, { nth, result: 999 });
          if (times > 0) bench.device.failCall(undo, { nth: undo === kind ? nth + 1 : 1, result: 999, times });
          let hasFailed = false;
          try {
            call(bench);
          } catch {
            hasFailed = true;
          }
          bench.assertSeen(`${kind} ${nth}, undo ${undo} × ${times}`);
          bench.close();
          if (!hasFailed) break;
          refusals += 1;
          if (nth > 40) break;
        }
      }
    }
    t.true(refusals > 0);
  });
}

test('rows that the mapper mapped are seen when its request is cancelled, and when it is quiesced', (t) => {
  const bench = new NativeCacheBench(t);
  const { cache, rows } = bench;
  for (let round = 0; round < 20; round += 1) {
    cache.request(Int32Array.of(0, 6, 1, 6), 2);
    if (round % 2 === 0) {
      cache.cancel(0);
      cache.cancel(1);
    } else {
      cache.quiesce();
    }
    bench.assertSeen(`round ${round}`);
    cache.shrink(0, 0);
    cache.shrink(1, 0);
  }
  t.is(sum(rows), 0);
  bench.close();
});

test('synchronize says in one call what the mapper did and what is free', async (t) => {
  const bench = new NativeCacheBench(t, { pages: 3 * pagesPerRow });
  const { cache, rows, device } = bench;
  const news = cache.news();
  t.is(cache.news(), news);
  t.deepEqual([...news], [0, 0, 0, 0]); // not asked yet
  cache.synchronize();
  t.deepEqual([...news], [0, 0, 1, 3 * pagesPerRow]);

  cache.request(Int32Array.of(0, 1), 1);
  await untilIdle(bench);
  t.deepEqual([...news], [0, 0, 1, 2 * pagesPerRow]);
  t.is(rows[0], 1);

  cache.earmark(1, 2);
  cache.request(Int32Array.of(2, 1), 1); // all that is left is set aside
  await untilIdle(bench);
  t.deepEqual([...news], [0, 1, 1, 0]);
  t.is(rows[2], 0);

  device.failCall('cuMemMap', { result: 999 });
  cache.request(Int32Array.of(1, 1), 1);
  await untilIdle(bench);
  t.deepEqual([...news], [1, 1, 1, 0]);
  t.is((cache.mapperState().lastError as { code?: string } | undefined)?.code, 'KV_DRIVER_CALL_FAILED');
  bench.close();
  t.throws(() => {
    cache.synchronize();
  }, { code: 'KV_CLOSED' });
});

test('an array whose memory was given away fails the call that would write it, and does not keep the cache open', (t) => {
  const bench = new NativeCacheBench(t);
  structuredClone(bench.rows, { transfer: [bench.rows.buffer as ArrayBuffer] });
  t.throws(() => {
    bench.grow(0, 1);
  }, { code: 'KV_INTERNAL' });
  bench.cache.earmark(0, slots); // changes no slot
  bench.cache.close();
  bench.pool.close();
  bench.driver.close();
  bench.device.close();
});

for (const [name, call] of Object.entries<Call>({
  'grow of a slot twice': ({ cache }) => { cache.grow(Int32Array.of(0, 1, 1, 1, 0, 2), 3); },
  'keep of a number below zero': ({ cache }) => { cache.keep(Int32Array.of(0, 0, 12, 0, 1, -1), 2); },
  'keep of a number that no cache comes to': ({ cache }) => { cache.keep(Int32Array.of(0, 0, 12, 0, 1, 2 ** 26), 2); },
  'keep of rows that are not there': ({ cache }) => { cache.keep(Int32Array.of(0, 0, 12, 3, 0, 13), 2); },
  'drop of a number below zero': ({ cache }) => { cache.drop(Int32Array.of(10, -1), 2); },
  'alias of a number below zero': ({ cache }) => { cache.alias(3, Int32Array.of(10, -1), 0, 2); },
})) {
  test(`${name} is refused, and changes nothing`, (t) => {
    const bench = sharing(t);
    const before = { counters: bench.cache.counters(), rows: [...bench.rows] };
    t.throws(() => { call(bench); }, { code: 'KV_INTERNAL' });
    t.deepEqual({ counters: bench.cache.counters(), rows: [...bench.rows] }, before);
    bench.grow(0, 3); // no slot is held
    bench.grow(1, 3);
    bench.close();
  });
}

async function untilIdle({ cache }: NativeCacheBench): Promise<void> {
  do {
    await new Promise(setImmediate);
    cache.synchronize();
  } while (cache.news()[cacheNews.isIdle] === 0);
}
