// `slide`: the rows in front of a slot go, and their pages become the rows that it needs next.

import test, { type ExecutionContext } from 'ava';

import { Driver, isKvError } from 'virtual-kv';
import type { MockCall } from 'virtual-kv/testing';

import { countPages, native } from '#internal/device/native.js';

import { assertNothingLeft, pageBytes } from '../helpers/cache.js';
import { NativeCacheBench, sum } from '../helpers/native-cache.js';
import { nativeOf } from '../helpers/native-of.js';
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

test('what is set aside moves along, and no other slot gets it', (t) => {
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
  cache.keep(Int32Array.of(0, 0, 5), 1);
  cache.stamp(0, 0, 2 * rowTokens, key);
  slide(bench, 0, 1, 3);
  t.deepEqual([rowsOf(bench, 0), counts(bench).earmarked], [[1, 2], 4]); // two more, which the pool had
  bench.verify();
  cache.alias(1, Int32Array.of(5), 0, 1);
  t.is(cache.check(1, 0, rowTokens, key), 0);
  cache.keep(Int32Array.of(0, 1, 6), 1);
  slide(bench, 0, 2, 4); // none free now: the last row is lost
  t.deepEqual([rowsOf(bench, 0), counts(bench).earmarked], [[2, 2], 4]);
  bench.grow(0, 4);
  t.is(counts(bench).earmarked, 0);
  cache.drop(Int32Array.of(5, 6), 2);
  bench.close();
});

test('rows of more than one page in a reservation slide too', (t) => {
  const bench = new NativeCacheBench(t); // two pages and one
  bench.grow(0, 2);
  slide(bench, 0, 1, 3);
  t.deepEqual(rowsOf(bench, 0), [1, 3]);
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

test('tokens and bytes before the first row are refused', (t) => {
  const bench = open(t);
  const { cache, device } = bench;
  bench.grow(0, 4);
  cache.stamp(0, 0, 4 * rowTokens, key);
  slide(bench, 0, 2);
  const start = 2 * rowTokens;
  for (const [what, call] of Object.entries<() => void>({
    stamp: () => { cache.stamp(0, start - 1, 2, key); },
    check: () => { cache.check(0, start - 1, 2, key); },
    read: () => { cache.read(0, 1, start * 1024 - 1, new Uint8Array(2)); },
    window: () => { cache.window(0, 1, start * 1024 - 1, start * 1024 + 1); },
  })) t.throws(call, { code: 'KV_COPY_OUT_OF_RANGE' }, what);
  t.is(cache.check(0, start, 2 * rowTokens, key), 0);
  cache.read(0, 1, start * 1024, new Uint8Array(2));
  t.true(device.misuses().length > 0); // the driver refused what it was asked
  device.clearMisuses();
  bench.close();
});

test('blocks are copied to and from rows behind the first one alone', async (t) => {
  const bench = open(t);
  const { cache } = bench;
  const done = new Map<number, unknown>();
  cache.openCopier(1, (id, damagedTensor, error) => { done.set(id, error ?? damagedTensor); }, new Float64Array());
  bench.grow(0, 4);
  cache.stamp(0, 0, 4 * rowTokens, key);
  slide(bench, 0, 2);
  const payload = new Uint8Array(2 * 1024 * rowTokens), sums = new Uint32Array(2);
  const copy = (id: number, isLoad: boolean, slot: number, from: number): void => {
    cache.copyBlock(id, isLoad, slot, from, rowTokens, 0, rowTokens, payload, sums, false);
  };
  t.throws(() => { copy(0, false, 0, 2 * rowTokens - 1); }, { code: 'KV_INTERNAL' });
  t.throws(() => { copy(0, false, 0, 3 * rowTokens + 1); }, { code: 'KV_INTERNAL' });
  copy(1, false, 0, 2 * rowTokens);
  await untilTold(done, 1);
  slide(bench, 1, 2);
  bench.grow(1, 3);
  copy(2, true, 1, 2 * rowTokens);
  await untilTold(done, 2);
  t.deepEqual([...done], [[1, -1], [2, -1]]);
  t.is(cache.check(1, 2 * rowTokens, rowTokens, key), 0);
  bench.close();
});

async function untilTold(done: ReadonlyMap<number, unknown>, copies: number): Promise<void> {
  while (done.size < copies) await new Promise(setImmediate);
}

test('tokens are put and fetched behind the first row alone', (t) => {
  const bench = new NativeCacheBench(t, { tokenBytes: [1024] });
  const { cache, driver } = bench;
  bench.grow(0, 3);
  slide(bench, 0, 1);
  const source = Uint8Array.from({ length: 2 * 1024 }, (_, index) => index % 251), found = new Uint8Array(2 * 1024);
  t.throws(() => { cache.put(Int32Array.of(0, rowTokens - 1, 2, 0), 1, source); }, { code: 'KV_INTERNAL' });
  t.throws(() => { cache.put(Int32Array.of(0, 3 * rowTokens - 1, 2, 0), 1, source); }, { code: 'KV_INTERNAL' });
  cache.put(Int32Array.of(0, 0, 0, 0), 1, source); // of none
  cache.put(Int32Array.of(0, rowTokens, 2, 0), 1, source);
  cache.read(0, 0, rowTokens * 1024, found);
  t.deepEqual(found, source);
  slide(bench, 1, 4);
  bench.grow(1, 5);
  const from = cache.address(0) + BigInt(rowTokens * 1024);
  const fetch = (token: number): void => {
    cache.fetch(Int32Array.of(1, token, 2, 0), 1, nativeOf(driver), from, 2 * 1024, 0n, undefined);
  };
  t.throws(() => { fetch(4 * rowTokens - 1); }, { code: 'KV_INTERNAL' });
  fetch(4 * rowTokens);
  bench.device.completeAll();
  cache.read(1, 0, 4 * rowTokens * 1024, found);
  t.deepEqual(found, source);
  bench.close();
});

test('a window of a slot that has slid shows its rows', (t) => {
  const driver = Driver.open('host');
  const pool = new (native().NativePool)(nativeOf(driver), pageBytes, 8 * pageBytes, 0, 0);
  const cache = new (native().NativeCache)(pool, {
    pageBytes, slots: 2, maxTokens: 1024, tokenBytes: Float64Array.of(1024), tensors: Float64Array.of(0, 0, 1024), scrub: false,
    mapper: false,
  }, new Int32Array(2), new Uint8Array(2));
  cache.grow(Int32Array.of(1, 3), 1);
  for (const first of [0, 1, 2]) {
    cache.slide(Int32Array.of(1, first, first + 3), 1);
    const start = first * pageBytes;
    if (first > 0) t.throws(() => { cache.window(1, 0, start - 1, start + 1); }, { code: 'KV_COPY_OUT_OF_RANGE' });
    const one = new Uint8Array(cache.window(1, 0, start + pageBytes, start + pageBytes + 2));
    const all = new Uint8Array(cache.window(1, 0, start, start + 3 * pageBytes));
    const token = new Uint8Array(2);
    all.set([first + 1, 7], pageBytes);
    t.deepEqual([...one], [first + 1, 7]);
    cache.read(1, 0, start + pageBytes, token);
    t.deepEqual([...token], [first + 1, 7]);
    cache.beforeRevoke(1);
    cache.revoke(1, false);
  }
  cache.close();
  pool.close();
  assertNothingLeft(t, driver, undefined);
});

test('a slot shares the rows of another, from its first one on, and what is set aside for it shrinks by as much', (t) => {
  const bench = open(t, { pages: 16, scrub: true });
  const { cache, device } = bench;
  cache.assign(0, 5n);
  bench.grow(0, 5);
  cache.stamp(0, 0, 5 * rowTokens, key);
  slide(bench, 0, 2);
  cache.earmark(1, 5);
  t.is(counts(bench).earmarked, 10);
  device.resetCallCounts();
  cache.shareRows(0, 1, 4);
  t.deepEqual([device.callCounts().cuMemMap, device.callCounts().cuMemSetAccess, device.callCounts().cuMemCreate], [4, 2, 0]);
  t.deepEqual([rowsOf(bench, 1), counts(bench)], [[2, 4], { used: 6, earmarked: 6, created: 10 }]);
  t.is(cache.check(1, 2 * rowTokens, 2 * rowTokens, key), 0);
  bench.verify();
  const { scrubbedPages } = cache.counters();
  cache.shrink(0, 0);
  bench.grow(1, 5); // of pages of the same tenant
  t.is(cache.counters().scrubbedPages, scrubbedPages);
  t.is(cache.check(1, 2 * rowTokens, 2 * rowTokens, key), 0);
  for (const [from, to, rows] of [[0, 1, 0], [1, 0, 1], [1, 0, 6], [0, 2, 1]] as const) {
    t.throws(() => { cache.shareRows(from, to, rows); }, { code: 'KV_INTERNAL' }, `${from} ${to} ${rows}`);
  }
  cache.shareRows(1, 0, 2); // none: it begins there
  t.deepEqual(rowsOf(bench, 0), [2, 2]);
  cache.earmark(1, 0);
  bench.close();
});

test('a row is detached where another slot maps it, and left alone where none does', (t) => {
  const bench = open(t);
  const { cache, device } = bench;
  bench.grow(0, 5);
  cache.stamp(0, 0, 5 * rowTokens, key);
  slide(bench, 0, 2);
  cache.shareRows(0, 1, 5);
  cache.detach(1, 3, 4 * rowTokens, -1, 0n);
  t.is(cache.counters().detachedRows, 1);
  t.is(cache.check(1, 2 * rowTokens, 3 * rowTokens, key), 0);
  cache.stamp(1, 3 * rowTokens, rowTokens, key + 1n);
  t.is(cache.check(0, 2 * rowTokens, 3 * rowTokens, key), 0);
  device.resetCallCounts();
  cache.detach(1, 3, 4 * rowTokens, -1, 0n);
  t.is(sum(Object.values(device.callCounts())), 0);
  t.is(cache.counters().detachedRows, 1);
  t.throws(() => { cache.detach(1, 1, 2 * rowTokens, -1, 0n); }, { code: 'KV_INTERNAL' }); // before its first row
  slide(bench, 1, 4, 8); // one of its rows is its own
  t.deepEqual(rowsOf(bench, 1), [4, 6]);
  t.is(cache.check(1, 4 * rowTokens, rowTokens, key), 0);
  t.is(cache.check(0, 2 * rowTokens, 3 * rowTokens, key), 0);
  bench.verify();
  bench.close();
});

for (const undo of [undefined, 'cuMemUnmap', 'cuMemMap'] as const) {
  test(`a share and a detach behind the first row: all or nothing, whatever is refused${undo === undefined ? '' : `, and ${undo} in the undo`}`, (t) => {
    let refusals = 0;
    for (const kind of ['cuMemCreate', 'cuMemMap', 'cuMemSetAccess', 'cuMemUnmap', 'cuMemcpyDtoDAsync'] as const) {
      for (let nth = 1, isReached = true; isReached; nth += 1) {
        const bench = open(t);
        const { cache, device } = bench;
        bench.grow(0, 4);
        cache.stamp(0, 0, 4 * rowTokens, key);
        slide(bench, 0, 2);
        let error: unknown;
        device.resetCallCounts();
        device.failCall(kind, { nth, result: 999 });
        if (undo !== undefined) device.failCall(undo, { nth: undo === kind ? nth + 1 : nth, result: 999, times: 40 });
        const before = { ...cache.counters(), scrubbedPages: 0 };
        try {
          cache.shareRows(0, 1, 4);
          cache.detach(1, 3, 4 * rowTokens, -1, 0n);
        } catch (thrown) {
          error = thrown;
        }
        isReached = device.callCounts()[kind] >= nth;
        device.clearFailures();
        const what = `${kind} ${nth}: ${String(error)}`;
        bench.assertSeen(what);
        bench.verify();
        t.is(cache.check(0, 2 * rowTokens, 2 * rowTokens, key), 0, what);
        if (error !== undefined) refusals += 1;
        const [first, rows] = rowsOf(bench, 1);
        if (bench.isQuarantined[1] === 0) t.true((first === 0 && rows === 0) || (first === 2 && rows === 4), what);
        if (rows > first) t.is(cache.check(1, first * rowTokens, (rows - first) * rowTokens, key), 0, what);
        else if (bench.isQuarantined[1] === 0) t.like(cache.counters(), { mappedRows: before.mappedRows, mappedPages: before.mappedPages }, what);
        bench.close();
      }
    }
    t.log(`${refusals} refusals`);
    t.true(refusals > 6);
  });
}

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
