// `admit`: one call of the addon that gives a slot to a new sequence. All of it or nothing, whatever the driver refuses.

import test, { type ExecutionContext } from 'ava';

import { isKvError } from 'virtual-kv';
import { mockCalls } from 'virtual-kv/testing';

import { countPages } from '#internal/device/native.js';
import { NativeCacheBench, pagesPerRow, rowTokens, sum } from '../helpers/native-cache.js';

const key = 7n;
const [oldTenant, newTenant] = [1n, 2n];

const half = rowTokens / 2;
const ids = Int32Array.of(10, 11, 12);

/** Slot 3 is admitted beside slot 0, which has three rows, kept as 10, 11 and 12. */
interface Scenario {
  readonly title: string;
  /** What slot 3 has before. */
  prepare?(bench: NativeCacheBench): void;
  admit(bench: NativeCacheBench): void;
  /** What it has then: rows, of which so many are new and so many of those its own, tokens as slot 0 has them, pages set aside. */
  readonly rows: number;
  readonly newRows: number;
  readonly ownRows: number;
  readonly tokens: number;
  readonly earmarkedPages: number;
}

const scenarios: readonly Scenario[] = [
  {
    title: 'a slot with rows of another tenant, and pages set aside', rows: 2, newRows: 0, ownRows: 0, tokens: 0,
    earmarkedPages: pagesPerRow,
    prepare: (bench) => {
      bench.grow(3, 2);
    },
    admit: ({ cache }) => {
      cache.admit(3, newTenant, ids, 0, 0, 0, 3, -1, -1, 0, undefined);
    },
  },
  {
    title: 'shared rows and pages set aside', rows: 2, newRows: 2, ownRows: 0,
    tokens: 2 * rowTokens, earmarkedPages: pagesPerRow,
    admit: ({ cache }) => {
      cache.admit(3, newTenant, ids, 0, 2, 0, 3, -1, -1, 0, undefined);
    },
  },
  {
    title: 'shared rows, a copy of kept ones and pages set aside', rows: 3, newRows: 3,
    ownRows: 1, tokens: 2 * rowTokens + half, earmarkedPages: pagesPerRow,
    admit: ({ cache }) => {
      cache.admit(3, newTenant, ids, 0, 2, 3, 4, -1, 12, 2 * rowTokens + half, undefined);
    },
  },
  {
    title: 'shared rows behind adopted ones, and a copy from another slot', rows: 3,
    newRows: 2, ownRows: 1, earmarkedPages: 0, tokens: 2 * rowTokens + half,
    prepare: ({ cache }) => {
      cache.alias(3, ids, 0, 1);
    },
    admit: ({ cache }) => {
      cache.admit(3, oldTenant, ids, 1, 2, 3, 0, 0, -1, 2 * rowTokens + half, undefined);
    },
  },
  {
    title: 'a copy that is queued', rows: 1, newRows: 1, ownRows: 1, tokens: half, earmarkedPages: 2 * pagesPerRow,
    admit: ({ cache }) => {
      cache.admit(3, newTenant, ids, 0, 0, 1, 3, 0, -1, half, 0n);
    },
  },
];

function open(t: ExecutionContext, { prepare }: Scenario, pages?: number): NativeCacheBench {
  const bench = new NativeCacheBench(t, { scrub: true, pages });
  const { cache } = bench;
  cache.assign(0, oldTenant);
  bench.grow(0, 3);
  cache.stamp(0, 0, 3 * rowTokens, key);
  bench.keep(0, [10, 11, 12]);
  cache.assign(3, oldTenant);
  prepare?.(bench);
  return bench;
}

/** What a refused call leaves as it was. */
function stateOf({ pool, rows }: NativeCacheBench): object {
  const { earmarkedPages, mappedPages, quarantinedPages } = countPages(pool);
  return { rows: [...rows], earmarkedPages, usedPages: mappedPages + quarantinedPages };
}

function assertAdmitted(bench: NativeCacheBench, { rows, tokens, earmarkedPages }: Scenario, what: string): void {
  const { t, cache, device, pool } = bench;
  device.completeAll(); // a copy that is queued
  t.is(bench.rows[3], rows, what);
  t.is(countPages(pool).earmarkedPages, earmarkedPages, what);
  t.is(cache.check(3, 0, tokens, key), 0, what);
  t.is(cache.check(0, 0, 3 * rowTokens, key), 0, what);
}

function end(bench: NativeCacheBench): void {
  bench.device.clearFailures();
  bench.cache.earmark(3, 0);
  bench.drop([10, 11, 12]);
  bench.close();
}

/**
 * Admits while the n-th call of one kind is refused, for every n and kind of call that it makes, and calls `isRefused` where it
 * throws; returns how often.
 */
function failEachCall(t: ExecutionContext, scenario: Scenario, isRefused: (bench: NativeCacheBench, before: object, what: string) => void,
  script?: (bench: NativeCacheBench) => void): number {
  let refusals = 0;
  for (const kind of mockCalls) {
    if (kind === 'cuCtxPopCurrent') continue; // the end of a batch of calls, which nothing depends on
    for (let nth = 1, calls = 1; nth <= calls; nth += 1) {
      const bench = open(t, scenario);
      const what = `${kind} ${nth}`;
      const before = stateOf(bench);
      bench.device.resetCallCounts();
      bench.device.failCall(kind, { nth, result: 999 });
      script?.(bench);
      const error = failureOf(() => {
        scenario.admit(bench);
      });
      calls = bench.device.callCounts()[kind];
      bench.assertSeen(what);
      if (error === undefined) {
        bench.device.clearFailures();
        assertAdmitted(bench, scenario, what);
      } else {
        t.true(isKvError(error, 'KV_DRIVER_CALL_FAILED'), `${what}: ${String(error)}`);
        refusals += 1;
        bench.verify();
        isRefused(bench, before, what);
      }
      end(bench);
    }
  }
  return refusals;
}

for (const scenario of scenarios) {
  test(`admitting ${scenario.title}: all or nothing, and possible again, whatever call the driver refuses`, (t) => {
    const refusals = failEachCall(t, scenario, (bench, before, what) => {
      t.deepEqual(stateOf(bench), before, what);
      t.is(sum(bench.isQuarantined), 0, what);
      bench.device.clearFailures();
      scenario.admit(bench);
      assertAdmitted(bench, scenario, what);
    });
    t.log(`${refusals} refusals`);
    t.true(refusals > 1);
  });

  test(`admitting ${scenario.title}: where the undo is refused too, the slot has the rows it had and is in quarantine`, (t) => {
    let quarantines = 0;
    failEachCall(t, scenario, (bench, before, what) => {
      t.deepEqual([...bench.rows], (before as { rows: number[] }).rows, what);
      t.is(countPages(bench.pool).earmarkedPages, 0, what);
      t.is(bench.cache.check(0, 0, 3 * rowTokens, key), 0, what);
      quarantines += bench.isQuarantined[3]!;
      if (bench.isQuarantined[3] === 0) t.deepEqual(stateOf(bench), before, what);
    }, ({ device }) => {
      device.failCall('cuMemUnmap', { result: 999, times: 100 });
    });
    t.log(`${quarantines} times`);
    t.is(quarantines > 0, scenario.newRows > 0);
  });

  test(`admitting ${scenario.title}: a refusal for want of pages makes no call and changes nothing`, (t) => {
    const { pages, more } = needOf(t, scenario);
    for (const missing of [1, more]) {
      const bench = open(t, scenario, pages - missing);
      const before = stateOf(bench);
      bench.device.resetCallCounts();
      const error = t.throws(() => {
        scenario.admit(bench);
      }, { code: 'KV_OUT_OF_PAGES' });
      t.like(error, { details: { needPages: more, havePages: more - missing } });
      t.is(sum(Object.values(bench.device.callCounts())), 0);
      t.deepEqual(stateOf(bench), before);
      end(bench);
    }
    const bench = open(t, scenario, pages); // just enough
    scenario.admit(bench);
    end(bench);
  });

  test(`admitting ${scenario.title}: a device without memory refuses it whole`, (t) => {
    const bench = open(t, scenario);
    const before = stateOf(bench);
    bench.device.failCall('cuMemCreate', { result: 'CUDA_ERROR_OUT_OF_MEMORY' });
    if (scenario.ownRows === 0) { // it takes no page yet
      scenario.admit(bench);
    } else {
      t.throws(() => {
        scenario.admit(bench);
      }, { code: 'KV_OUT_OF_DEVICE_MEMORY' });
      t.deepEqual(stateOf(bench), before);
      scenario.admit(bench);
    }
    assertAdmitted(bench, scenario, 'after it');
    end(bench);
  });
}

function failureOf(call: () => void): unknown {
  try {
    call();
    return undefined;
  } catch (error) {
    return error;
  }
}

test('shared rows and rows of the slot\'s own get access together, by one call per reservation', (t) => {
  const bench = open(t, scenarios[1]!);
  const { device, cache } = bench;
  device.resetCallCounts();
  cache.admit(3, newTenant, ids, 0, 2, 3, 0, 0, -1, 2 * rowTokens + half, 0n);
  t.is(device.callCounts().cuMemSetAccess, 2);
  end(bench);
});

/** Pages that a scenario needs, all and those of the call. */
function needOf(t: ExecutionContext, scenario: Scenario): { pages: number; more: number } {
  const bench = open(t, scenario);
  const before = bench.pool.available();
  const used = countPages(bench.pool).budgetPages - before;
  scenario.admit(bench);
  const more = before - bench.pool.available();
  end(bench);
  return { pages: used + more, more };
}
