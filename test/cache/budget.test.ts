// The budget: raised and lowered while sequences run, and what happens when the machine has less than the budget allows.

import test from 'ava';

import { Driver, isKvError, KvCache, PagePool, type Sequence } from 'virtual-kv';

import {
  assertNothingLeft, cacheOptions, cacheTest, cacheTests, drivers, openDriver, pageBytes, rowTokens, tinyModel, type CacheBench,
} from '../helpers/cache.js';
import { refuses } from '../helpers/refuses.js';

const rowPages = 4;
const rowBytes = rowPages * pageBytes;

cacheTests('raising the budget lets a refused growth through', { rows: 2 }, (t, bench) => {
  const sequence = bench.sequenceOf(2 * rowTokens);
  t.throws(() => bench.prepare(sequence, 1), { code: 'KV_OUT_OF_PAGES' });
  bench.cache.pool.setBudget(3 * rowBytes);
  t.is(bench.cache.pool.memoryBudgetBytes, 3 * rowBytes);
  bench.compute(sequence, 1);
  t.is(sequence.mappedRows, 3);
});

cacheTests('lowering the budget gives free pages and idle rows back to the system at once', { rows: 10 }, (t, bench) => {
  const { cache, driver } = bench;
  const kept = bench.sequenceOf(2 * rowTokens);
  cache.stamp(kept, 0, 2 * rowTokens, 1);
  bench.idleSlotOf(4);
  t.is(driver.memory().livePages, 6 * rowPages);
  cache.pool.setBudget(4 * rowBytes);
  t.is(driver.memory().livePages, 4 * rowPages);
  t.is(cache.counts().idleRows, 2);
  cache.pool.setBudget(rowBytes);
  t.is(driver.memory().livePages, 2 * rowPages, 'what a sequence uses stays');
  t.true(bench.isIntact(kept, 1));
});

cacheTests('below a lowered budget nothing grows, and what is released goes back', { rows: 10 }, (t, bench) => {
  const { cache, driver } = bench;
  const [first, second] = [bench.sequenceOf(4 * rowTokens), bench.sequenceOf(4 * rowTokens)];
  cache.pool.setBudget(5 * rowBytes);
  const error = t.throws(() => bench.prepare(first, 1), { code: 'KV_OUT_OF_PAGES' });
  t.like(error, { details: { needRows: 1, haveRows: 0, havePages: 0, budgetBytes: 5 * rowBytes } });
  second.release();
  t.is(driver.memory().livePages, 5 * rowPages);
  bench.compute(first, 1);
  t.is(driver.memory().livePages, 5 * rowPages);
  t.throws(() => bench.prepare(first, rowTokens), { code: 'KV_OUT_OF_PAGES' });
});

cacheTests('a slot behind a fence goes back to a lowered budget when its fence has passed', { rows: 10 }, (t, bench) => {
  const { cache, driver } = bench;
  const sequence = bench.sequenceOf(8 * rowTokens);
  cache.pool.setBudget(3 * rowBytes);
  sequence.release({ fence: { step: 7 } });
  t.is(driver.memory().livePages, 8 * rowPages);
  cache.completeStep(7);
  t.is(driver.memory().livePages, 3 * rowPages);
});

cacheTests('an earmark outlives a lowered budget', { rows: 10 }, (t, bench) => {
  const { cache, driver } = bench;
  bench.idleSlotOf(4);
  const sequence = cache.acquire({ promptTokens: 8 * rowTokens });
  bench.compute(sequence, 5 * rowTokens);
  cache.pool.setBudget(2 * rowBytes);
  t.is(driver.memory().livePages, 5 * rowPages);
  bench.compute(sequence, 3 * rowTokens);
  t.is(sequence.mappedRows, 8);
  t.throws(() => bench.prepare(sequence, 1), { code: 'KV_OUT_OF_PAGES' });
  sequence.release();
  t.is(driver.memory().livePages, 2 * rowPages);
});

cacheTests('tails of active sequences go back to a lowered budget too', { rows: 10 }, (t, bench) => {
  const sequence = bench.sequenceOf(6 * rowTokens);
  sequence.truncate(rowTokens);
  bench.cache.pool.setBudget(2 * rowBytes);
  t.is(sequence.mappedRows, 2);
  t.is(bench.driver.memory().livePages, 2 * rowPages);
});

cacheTests('`trim` gives free pages back and leaves idle rows mapped', { rows: 10 }, (t, bench) => {
  const { cache, driver } = bench;
  const sequence = bench.sequenceOf(3 * rowTokens);
  bench.idleSlotOf(3);
  cache.pool.setBudget(4 * rowBytes);
  cache.pool.setBudget(10 * rowBytes);
  sequence.release();
  bench.sequenceOf(3 * rowTokens);
  cache.pool.trim();
  t.is(driver.memory().livePages, cache.counts().mappedPages);
  t.is(bench.pool().freePages, 0);
});

for (const on of drivers) {
  test(`a budget that no token fits is refused, as is more than the driver has (${on})`, (t) => {
    const { driver, device } = openDriver({ on });
    const open = (memoryBudgetBytes: number) => (): void => new KvCache({ ...cacheOptions({}, driver), memoryBudgetBytes }).close();
    const small = t.throws(open(rowBytes - 1), { code: 'KV_INVALID_OPTION' });
    t.like(small, { details: { owner: 'KvCache', option: 'memoryBudgetBytes', received: rowBytes - 1 } });
    t.throws(open(pageBytes - 1), { code: 'KV_INVALID_OPTION' });
    t.notThrows(open(rowBytes));
    const { totalBytes } = driver.memory();
    if (on === 'mock') t.notThrows(open(totalBytes + pageBytes), 'a simulated device may be exhausted on purpose');
    else {
      t.notThrows(open(totalBytes));
      for (const bytes of [totalBytes + 1, 1e15]) {
        const large = t.throws(open(bytes), { code: 'KV_INVALID_OPTION' });
        t.like(large, { details: { owner: 'PagePool', option: 'memoryBudgetBytes', received: bytes } });
      }
    }
    assertNothingLeft(t, driver, device);
  });

  test(`a pool needs a budget of a page, and of a row of each cache that is opened with it (${on})`, (t) => {
    const { driver, device } = openDriver({ on });
    const open = (memoryBudgetBytes: number): PagePool => new PagePool({ driver, pageBytes, memoryBudgetBytes });
    const error = t.throws(() => open(pageBytes - 1), { code: 'KV_INVALID_OPTION' });
    t.like(error, { details: { owner: 'PagePool', option: 'memoryBudgetBytes' } });
    const pool = open(rowBytes - 1);
    const options = { model: tinyModel, slots: 1, maxTokens: 64, layout: 'per-layer' as const, pool };
    t.like(t.throws(() => new KvCache(options), { code: 'KV_INVALID_OPTION' }), { details: { owner: 'KvCache', option: 'pool' } });
    if (on === 'host') t.throws(() => pool.setBudget(driver.memory().totalBytes + 1), { code: 'KV_INVALID_OPTION' });
    pool.setBudget(rowBytes);
    new KvCache(options).close();
    pool.close();
    assertNothingLeft(t, driver, device);
  });
}

test('a host driver that is told so may have budgets beyond the machine', (t) => {
  using driver = Driver.open('host', { memoryBytes: 2 ** 50 });
  using cache = new KvCache({ ...cacheOptions({}, driver), memoryBudgetBytes: 2 ** 50 });
  t.is(cache.pool.counts().budgetPages, 2 ** 50 / pageBytes);
});

// The machine has less than the budget

cacheTest('a device with less memory than the budget is an error with both numbers, and nothing changed', {
  rows: 10, device: { memoryBytes: 3 * rowBytes + pageBytes },
}, (t, bench) => {
  const sequence = bench.sequenceOf(3 * rowTokens);
  bench.cache.stamp(sequence, 0, 3 * rowTokens, 1);
  const error = t.throws(() => bench.prepare(sequence, 1), { code: 'KV_OUT_OF_DEVICE_MEMORY' });
  t.like(error, { recovery: 'free', details: { pageBytes, createdPages: 12, budgetPages: 40, freeBytes: pageBytes } });
  t.is(bench.driver.memory().livePages, 12, 'the one page that could be created was given back');
  t.true(bench.isIntact(sequence, 1));
  t.is(sequence.mappedRows, 3);
});

cacheTest('idle rows are reused where the device has no memory for new pages', {
  rows: 10, device: { memoryBytes: 4 * rowBytes },
}, (t, bench) => {
  const idle = bench.idleSlotOf(2);
  const sequence = bench.sequenceOf(2 * rowTokens);
  t.is(sequence.slot, idle);
  const other = bench.sequenceOf(2 * rowTokens);
  sequence.release();
  bench.compute(other, 2 * rowTokens);
  t.is(other.mappedRows, 4);
  t.is(bench.driver.memory().livePages, 16);
});

cacheTest('earmarked pages that the device has no memory for are taken from idle rows', {
  rows: 10, device: { memoryBytes: 3 * rowBytes },
}, (t, bench) => {
  const { cache } = bench;
  const [first, second] = [bench.sequenceOf(rowTokens), bench.sequenceOf(2 * rowTokens)];
  second.release();
  const reserved = cache.acquire({ promptTokens: 3 * rowTokens });
  t.is(reserved.slot, second.slot);
  first.release();
  bench.compute(reserved, 3 * rowTokens);
  t.is(reserved.mappedRows, 3);
  const next = cache.acquire({ promptTokens: 2 * rowTokens });
  t.like(t.throws(() => bench.prepare(next, 1), { code: 'KV_OUT_OF_DEVICE_MEMORY' }), { details: { createdPages: 12 } });
  t.is(bench.pool().earmarkedPages, 2 * rowPages, 'the earmark stands');
});

/** Lets sequences grow in turn, a row each. */
function growInTurn(bench: CacheBench, sequences: readonly Sequence[], rows: number): void {
  for (let row = 0; row < rows; row += 1) for (const sequence of sequences) bench.compute(sequence, rowTokens);
}

cacheTest('the kernel mappings of host are refused by number before the kernel is at its limit', {
  on: 'host', mappingLimit: 12, slots: 4,
}, (t, bench) => {
  const { cache } = bench;
  // A slot needs one mapping per tensor, and the hole behind it one more.
  const sequences = [cache.acquire(), cache.acquire(), cache.acquire(), cache.acquire()];
  const error: unknown = t.throws(() => growInTurn(bench, sequences, 4));
  if (!isKvError(error, 'KV_OUT_OF_MAPPINGS')) throw error;
  const { neededMappings, limitMappings, otherMappings } = error.details;
  t.deepEqual([error.recovery, limitMappings, otherMappings], ['free', 12, undefined]);
  t.true(neededMappings > 12 && neededMappings < 20, `${neededMappings}`);
  t.true(bench.driver.memory().mappings <= 12);
});

cacheTest('idle rows make room for mappings, as they do for pages', { on: 'host', mappingLimit: 16, slots: 4 }, (t, bench) => {
  const { cache } = bench;
  const sequences = [cache.acquire(), cache.acquire(), cache.acquire()];
  const active: Sequence[] = [];
  for (const sequence of sequences) {
    try {
      bench.compute(sequence, rowTokens);
      active.push(sequence);
    } catch {
      break;
    }
  }
  t.true(active.length > 0 && active.length < 3, `${active.length} slots fit`);
  for (const sequence of active) sequence.release();
  const next = sequences[active.length]!;
  bench.compute(next, rowTokens);
  t.is(next.mappedRows, 1);
  t.true(cache.metrics.unmaps > 0);
});

// Memory that is not for pages

cacheTest('new pages leave the headroom free, and what is mapped stays usable', {
  rows: 10, headroomBytes: 2 * rowBytes, device: { memoryBytes: 5 * rowBytes + pageBytes },
}, (t, bench) => {
  const sequence = bench.sequenceOf(3 * rowTokens);
  bench.cache.stamp(sequence, 0, 3 * rowTokens, 1);
  refuses(t, () => bench.prepare(sequence, 1),
    'KV_OUT_OF_DEVICE_MEMORY', { createdPages: 12, budgetPages: 40, freeBytes: 576 * 1024, headroomBytes: 2 * rowBytes });
  t.true(bench.isIntact(sequence, 1));
});

cacheTest('where the headroom leaves no new pages idle rows are reused', {
  rows: 10, headroomBytes: rowBytes, device: { memoryBytes: 5 * rowBytes },
}, (t, bench) => {
  bench.idleSlotOf(2);
  const [sequence, other] = [bench.sequenceOf(2 * rowTokens), bench.sequenceOf(2 * rowTokens)];
  sequence.release();
  bench.compute(other, 2 * rowTokens);
  t.is(other.mappedRows, 4);
  t.is(bench.driver.memory().livePages, 16);
});
