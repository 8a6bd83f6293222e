// `slide`: the rows in front of a slot go, and their pages become the rows that it needs next.

import test, { type ExecutionContext } from 'ava';

import { isKvError } from 'virtual-kv';
import type { MockCall } from 'virtual-kv/testing';

import { countPages } from '#internal/device/native.js';

import { NativeCacheBench, sum } from '../helpers/native-cache.js';
import { slow } from '../runner/slow.js';

const key = 9n;
/** Of a row: 64 tokens, two pages. */
const rowTokens = 64;

function open(t: ExecutionContext, options: { readonly pages?: number; readonly scrub?: boolean } = {}): NativeCacheBench {
  return new NativeCacheBench(t, { tokenBytes: [1024, 1024], ...options });
}

/** Slides one slot. */
function slide({ cache }: NativeCacheBench, slot: number, first: number, rows = 0): void {
  cache.slide(Int32Array.of(slot, first, rows), 1);
}

/** What a slot maps. */
function rowsOf({ first, rows }: NativeCacheBench, slot: number): readonly [first: number, rows: number] {
  return [first[slot]!, rows[slot]!];
}

function counts({ pool }: NativeCacheBench): { readonly used: number; readonly earmarked: number; readonly created: number } {
  const { mappedPages, quarantinedPages, earmarkedPages, createdPages } = countPages(pool);
  return { used: mappedPages + quarantinedPages, earmarked: earmarkedPages, created: createdPages };
}

test('rows in front go to the pool where the slot lacks none', (t) => {
  const bench = open(t);
  bench.grow(0, 5);
  slide(bench, 0, 2);
  t.deepEqual(rowsOf(bench, 0), [2, 5]);
  t.is(countPages(bench.pool).freePages, 4);
  t.like(bench.cache.counters(), { slidRows: 2, handedRows: 0, unmappedRows: 2, unmaps: 4, mappedRows: 3, mappedPages: 6 });
  bench.verify();
  slide(bench, 0, 1); // it begins later
  t.deepEqual(rowsOf(bench, 0), [2, 5]);
  bench.grow(0, 6);
  bench.cache.shrink(0, 4);
  t.deepEqual(rowsOf(bench, 0), [2, 4]);
  bench.verify();
  bench.cache.shrink(0, 1);
  t.deepEqual(rowsOf(bench, 0), [1, 1]);
  bench.close();
});

test('pages that go become the rows ahead: with the same content, and without a call of the pool', (t) => {
  const bench = open(t, { scrub: true });
  const { cache, device } = bench;
  cache.assign(0, 1n);
  bench.grow(0, 3);
  cache.stamp(0, 0, 3 * rowTokens, key);
  const before = counts(bench);
  device.resetCallCounts();
  const { scrubbedPages } = cache.counters();
  slide(bench, 0, 1, 4);
  t.deepEqual(rowsOf(bench, 0), [1, 4]);
  t.deepEqual(counts(bench), before);
  const calls = device.callCounts();
  t.deepEqual(
    [calls.cuMemUnmap, calls.cuMemMap, calls.cuMemSetAccess, calls.cuMemCreate, calls.cuMemsetD8Async], [2, 2, 2, 0, 0]);
  t.like(cache.counters(), { slidRows: 1, handedRows: 1, foregroundRows: 3, mappedRows: 3, scrubbedPages });
  const [there, gone] = [new Uint8Array(1024), new Uint8Array(1024)];
  cache.stamp(1, 0, 0, key);
  for (const reservation of [0, 1]) { // the page of row 0 is that of row 3
    cache.read(0, reservation, 3 * rowTokens * 1024, there);
    bench.grow(1, 1);
    cache.stamp(1, 0, 1, key);
    cache.read(1, reservation, 0, gone);
    t.deepEqual(there, gone);
  }
  t.is(cache.check(0, rowTokens, 2 * rowTokens, key), 0);
  bench.verify();
  bench.close();
});

test('a window over a long text creates no page after its first rows', (t) => {
  const bench = open(t, { pages: 8 });
  bench.grow(0, 3);
  const { created } = counts(bench);
  for (let first = 1; first + 3 <= 16; first += 1) {
    slide(bench, 0, first, first + 3);
    t.deepEqual(rowsOf(bench, 0), [first, first + 3]);
  }
  t.is(counts(bench).created, created);
  t.like(bench.cache.counters(), { slidRows: 13, handedRows: 13, foregroundRows: 3, mappedRows: 3 });
  bench.close();
});

test('several slots slide in one call, each as far as its own pages reach', (t) => {
  const bench = open(t);
  bench.grow(0, 4);
  bench.grow(1, 2);
  bench.grow(2, 2);
  bench.cache.slide(Int32Array.of(0, 1, 9, 1, 2, 0, 2, 2, 4, 3, 5, 7), 4);
  t.deepEqual([0, 1, 2, 3].map((slot) => rowsOf(bench, slot)), [[1, 5], [2, 2], [2, 4], [5, 5]]);
  bench.verify();
  bench.grow(1, 3);
  bench.grow(3, 7);
  t.deepEqual([1, 3].map((slot) => rowsOf(bench, slot)), [[2, 3], [5, 7]]);
  bench.cache.stamp(3, 5 * rowTokens, 2 * rowTokens, key);
  t.is(bench.cache.check(3, 5 * rowTokens, 2 * rowTokens, key), 0);
  bench.assertSeen('after growth');
  bench.verify();
  bench.close();
});

test('an empty slot moves both ways, and begins at 0 once it was shrunk to nothing', (t) => {
  const bench = open(t);
  slide(bench, 0, 9);
  t.deepEqual(rowsOf(bench, 0), [9, 9]);
  slide(bench, 0, 4);
  t.deepEqual(rowsOf(bench, 0), [4, 4]);
  bench.grow(0, 5);
  bench.cache.shrink(0, 0);
  t.deepEqual(rowsOf(bench, 0), [0, 0]);
  bench.close();
});

test('what is set aside moves along, and nobody else gets it', (t) => {
  const bench = open(t, { pages: 8 });
  const { cache } = bench;
  cache.earmark(0, 4); // all pages
  bench.grow(0, 3);
  t.deepEqual(counts(bench), { used: 6, earmarked: 2, created: 6 });
  slide(bench, 0, 2);
  t.deepEqual([rowsOf(bench, 0), counts(bench).earmarked], [[2, 3], 6]);
  t.throws(() => { bench.grow(1, 1); }, { code: 'KV_OUT_OF_PAGES' });
  slide(bench, 0, 3, 6); // the page that goes is the next row's
  t.deepEqual([rowsOf(bench, 0), counts(bench).earmarked], [[3, 4], 6]);
  bench.grow(0, 7);
  t.is(counts(bench).earmarked, 0);
  slide(bench, 0, 20 - 4); // the stripe ends: as many rows as it has are set aside at most
  t.is(counts(bench).earmarked, 0);
  cache.shrink(0, 0);
  slide(bench, 0, 14);
  cache.earmark(0, 4);
  t.is(counts(bench).earmarked, 4);
  slide(bench, 0, 15);
  t.is(counts(bench).earmarked, 2);
  slide(bench, 0, 0);
  t.is(counts(bench).earmarked, 8);
  cache.earmark(0, 0);
  bench.close();
});

test('a page that others refer to is given up, not handed over, and what is set aside is as much as there is', (t) => {
  const bench = open(t, { pages: 8 });
  const { cache } = bench;
  cache.earmark(0, 3);
  bench.grow(0, 2);
  cache.keep(Int32Array.of(0, 0, 5, 1), 1);
  cache.stamp(0, 0, 2 * rowTokens, key);
  slide(bench, 0, 1, 3);
  t.deepEqual([rowsOf(bench, 0), counts(bench).earmarked], [[1, 2], 4]); // two more, which the pool had
  bench.verify();
  cache.alias(1, Int32Array.of(5), 0, 1);
  t.is(cache.check(1, 0, rowTokens, key), 0);
  cache.keep(Int32Array.of(0, 1, 6, 1), 1);
  slide(bench, 0, 2, 4); // none free now: the last row is lost
  t.deepEqual([rowsOf(bench, 0), counts(bench).earmarked], [[2, 2], 4]);
  bench.grow(0, 4);
  t.is(counts(bench).earmarked, 0);
  cache.drop(Int32Array.of(5, 6), 2);
  bench.close();
});

test('rows that end in the middle of a group cannot be in front', (t) => {
  const bench = new NativeCacheBench(t);
  bench.grow(0, 4);
  t.throws(() => { bench.cache.slide(Int32Array.of(0, 2, 0, 0, 3, 0), 2); }, { code: 'KV_INTERNAL' });
  t.deepEqual(rowsOf(bench, 0), [0, 4]);
  slide(bench, 0, 2, 6); // three pages, a group
  t.deepEqual(rowsOf(bench, 0), [2, 6]);
  bench.verify();
  bench.close();
});

for (const triple of [[4, 0, 0], [-1, 0, 0], [0, -1, 0], [0, 17, 0], [0, 0, 17], [0, 0, -1]]) {
  test(`a slide to ${triple.join(', ')} is refused`, (t) => {
    const bench = open(t);
    t.throws(() => { bench.cache.slide(Int32Array.from(triple), 1); }, { code: 'KV_INTERNAL' });
    bench.close();
  });
}

test('a lost device holds no row any more, and none is handed over', (t) => {
  const bench = open(t);
  bench.grow(0, 3);
  bench.device.loseDevice();
  t.throws(() => { slide(bench, 0, 1, 4); }, { code: 'KV_DRIVER_LOST' });
  t.deepEqual(rowsOf(bench, 0), [1, 3]);
  slide(bench, 0, 2);
  t.deepEqual(rowsOf(bench, 0), [2, 3]);
  bench.verify();
  bench.cache.close();
  bench.pool.close();
});

/** Slots 0 to 2 slide: the first hands a row over, the second gives one up, the third does both. */
function slideThree(bench: NativeCacheBench): void {
  bench.cache.slide(Int32Array.of(0, 1, 4, 1, 1, 0, 2, 2, 4), 3);
}

const before = [[0, 3], [0, 2], [0, 3]] as const, after = [[1, 4], [1, 2], [2, 4]] as const;

function openThree(t: ExecutionContext): NativeCacheBench {
  const bench = open(t, { pages: 24, scrub: true });
  for (const slot of [0, 1, 2]) {
    bench.cache.assign(slot, BigInt(slot + 1));
    bench.cache.earmark(slot, 4);
    bench.grow(slot, before[slot]![1]);
    bench.cache.stamp(slot, 0, before[slot]![1] * rowTokens, BigInt(slot));
  }
  return bench;
}

/** What is in the rows that a slot keeps. */
function assertKept({ t, cache, rows, first }: NativeCacheBench, what: string): void {
  for (const slot of [0, 1, 2]) {
    const from = Math.max(first[slot]!, after[slot]![0]), to = Math.min(rows[slot]!, before[slot]![1]);
    if (to > from) t.is(cache.check(slot, from * rowTokens, (to - from) * rowTokens, BigInt(slot)), 0, what);
  }
}

const kinds = ['cuMemUnmap', 'cuMemMap', 'cuMemSetAccess'] as const satisfies readonly MockCall[];
/** How often a slide of the three makes each call. */
const made = { cuMemUnmap: 6, cuMemMap: 4, cuMemSetAccess: 4 };

interface Refusal {
  readonly kind: (typeof kinds)[number];
  readonly nth: number;
  readonly times?: number;
}

/** The three slide while calls are refused; says whether the slide was, and how many slots are in quarantine. */
function slideRefused(t: ExecutionContext, refusals: readonly Refusal[]): { readonly isRefused: boolean; readonly quarantines: number } {
  const bench = openThree(t);
  const { cache, device, isQuarantined } = bench;
  const what = JSON.stringify(refusals);
  for (const { kind, nth, times = 1 } of refusals) device.failCall(kind, { nth, times, result: 999 });
  let error: unknown;
  try {
    slideThree(bench);
  } catch (thrown) {
    error = thrown;
  }
  device.clearFailures();
  if (error !== undefined) t.true(isKvError(error, 'KV_DRIVER_CALL_FAILED'), `${what}: ${String(error)}`);
  bench.assertSeen(what);
  bench.verify();
  assertKept(bench, what);
  const quarantines = sum(isQuarantined);
  let earmarked = 0;
  for (const slot of [0, 1, 2]) {
    const [first, rows] = after[slot]!;
    if (isQuarantined[slot] === 1) {
      t.throws(() => { slide(bench, slot, first); }, { code: 'KV_SLOT_BUSY' });
      continue;
    }
    if (bench.first[slot] === 0) t.is(bench.rows[slot], before[slot]![1], what);
    else t.is(bench.first[slot], first, what);
    slide(bench, slot, first, rows);
    bench.grow(slot, rows); // what is set aside is there for it
    t.deepEqual(rowsOf(bench, slot), after[slot]!, what);
    earmarked += (4 - (rows - first)) * 2;
  }
  assertKept(bench, what);
  bench.verify();
  t.is(counts(bench).earmarked, earmarked, what);
  for (const slot of [0, 1, 2]) cache.earmark(slot, 0);
  bench.close();
  return { isRefused: error !== undefined, quarantines };
}

test('each call of a slide is refused: counts add up, and the slots go on', (t) => {
  for (const kind of kinds) {
    for (let nth = 1; nth <= made[kind]; nth += 1) {
      t.deepEqual(slideRefused(t, [{ kind, nth }]), { isRefused: true, quarantines: 0 }, `${kind} ${nth}`);
    }
    t.deepEqual(slideRefused(t, [{ kind, nth: made[kind] + 1 }]), { isRefused: false, quarantines: 0 }, kind);
  }
});

for (const times of [1, 40]) {
  slow('a sweep of pairs of refusals')(`each pair of calls of a slide and its undo is refused, the second ${times} times: counts add up`, (t) => {
    let quarantines = 0;
    for (const kind of kinds) {
      for (const second of kinds) {
        for (let nth = 1; nth <= made[kind]; nth += 1) {
          for (let later = second === kind ? nth + 1 : 1; later <= made[second] + 3; later += 1) {
            quarantines += slideRefused(t, [{ kind, nth }, { kind: second, nth: later, times }]).quarantines;
          }
        }
      }
    }
    t.log(`${quarantines} slots in quarantine`);
    t.true(quarantines > 0);
  });
}
