// Scrubbing: with `scrub: 'between-tenants'` no byte of one tenant is ever seen by another, nor what a device leaves in new
// memory; and nothing is zeroed without need. Caches that share a pool: shared-scrub.test.ts.

import { ahead, type Sequence } from 'virtual-kv';

import { cacheTest, cacheTests, pageBytes, rowTokens, type BenchOptions, type CacheBench } from '../helpers/cache.js';
import { nativeOf } from '../helpers/native-of.js';

/** New pages of the simulated device hold garbage, those of host are zeros. */
const scrubbing: BenchOptions = { scrub: 'between-tenants', rows: 4, slots: 3, device: { hasGarbage: true } };

/** Bytes that are not zero in the rows that a sequence has mapped. */
function dirtyBytes({ driver, cache }: CacheBench, sequence: Sequence): number {
  let dirty = 0;
  for (const { index, reservation } of cache.tensors) {
    const bytes = new Uint8Array(cache.layout.pagesIn(reservation, sequence.mappedRows) * cache.layout.pageBytes);
    nativeOf(driver).read(bytes, sequence.address(index));
    dirty += bytes.reduce((count, byte) => count + (byte === 0 ? 0 : 1), 0);
  }
  return dirty;
}

/** A sequence of a tenant that has written all its rows. */
function dirtySequence(bench: CacheBench, rows: number, tenant?: string): Sequence {
  const sequence = bench.sequenceOf(rows * rowTokens, tenant);
  bench.cache.stamp(sequence, 0, rows * rowTokens, 77);
  return sequence;
}

cacheTests('without scrubbing a tenant can see what another one left', { ...scrubbing, scrub: 'off' }, (t, bench) => {
  dirtySequence(bench, 2, 'a').release();
  t.true(dirtyBytes(bench, bench.sequenceOf(1, 'b')) > 0);
  t.is(bench.cache.metrics.scrubbedPages, 0);
});

cacheTests('new memory is zeros, whatever the device left there', scrubbing, (t, bench) => {
  t.is(dirtyBytes(bench, bench.sequenceOf(3 * rowTokens, 'a')), 0);
  t.is(bench.cache.metrics.scrubbedPages, bench.driver.info.hasZeroedPages ? 0 : 12, 'zeros are not zeroed again');
});

cacheTests('a slot that changes tenants is zeroed at once, with all the rows it kept', scrubbing, (t, bench) => {
  const first = dirtySequence(bench, 3, 'a');
  const before = bench.cache.metrics.scrubbedPages;
  first.release();
  const second = bench.cache.acquire({ promptTokens: 3 * rowTokens, tenant: 'b' });
  t.is(second.slot, first.slot);
  t.is(second.mappedRows, 3);
  t.is(dirtyBytes(bench, second), 0);
  t.is(bench.cache.metrics.scrubbedPages - before, 12);
});

cacheTests('a slot that stays with its tenant is not zeroed', scrubbing, (t, bench) => {
  const first = dirtySequence(bench, 2, 'a');
  const before = bench.cache.metrics.scrubbedPages;
  first.release();
  const second = bench.cache.acquire({ promptTokens: rowTokens, tenant: 'a' });
  t.is(second.slot, first.slot);
  t.is(bench.cache.verifyStamp(second, 0, 2 * rowTokens, 77), 0);
  t.is(bench.cache.metrics.scrubbedPages, before);
});

cacheTests('requests that name no tenant are of one tenant', scrubbing, (t, bench) => {
  const first = dirtySequence(bench, 2);
  const before = bench.cache.metrics.scrubbedPages;
  first.release();
  bench.cache.acquire({ promptTokens: rowTokens });
  t.is(bench.cache.metrics.scrubbedPages, before);
});

cacheTests('a tenant with an empty name is another tenant than none', scrubbing, (t, bench) => {
  dirtySequence(bench, 2).release();
  t.is(dirtyBytes(bench, bench.cache.acquire({ promptTokens: 2 * rowTokens, tenant: '' })), 0);
});

cacheTests('rows taken back from one tenant are zeroed when another one grows into their pages', scrubbing, (t, bench) => {
  const { cache } = bench;
  const [left, growing] = [dirtySequence(bench, 3, 'a'), dirtySequence(bench, 1, 'b')];
  left.release();
  bench.compute(growing, 3 * rowTokens);
  t.is(growing.mappedRows, 4);
  t.is(cache.verifyStamp(growing, 0, rowTokens, 77), 0, 'its own bytes stay');
  growing.truncate(0);
  const rest = dirtyBytes(bench, growing);
  t.true(rest > 0 && rest <= rowTokens * 4096, 'only its first row is dirty');
});

cacheTests('pages that come back to their tenant are not zeroed', scrubbing, (t, bench) => {
  const [left, growing] = [dirtySequence(bench, 2, 'a'), dirtySequence(bench, 2, 'a')];
  const before = bench.cache.metrics.scrubbedPages;
  left.release();
  bench.compute(growing, 2 * rowTokens);
  t.is(bench.cache.metrics.scrubbedPages, before);
});

cacheTests('what the mapper maps ahead is zeroed for the tenant it is for', { ...scrubbing, growth: ahead(rowTokens) }, async (t, bench) => {
  const { cache } = bench;
  const [left, growing] = [dirtySequence(bench, 2, 'a'), bench.sequenceOf(1, 'b')];
  await cache.settled();
  left.release();
  cache.pool.setBudget(2 * 4 * pageBytes);
  cache.pool.setBudget(4 * 4 * pageBytes);
  bench.compute(growing, 2 * rowTokens);
  await cache.settled();
  t.true(growing.mappedRows >= 3);
  t.is(dirtyBytes(bench, growing), 0);
});

cacheTests('eager rows are zeroed for the sequence that gets them', { ...scrubbing, eagerRows: 2 }, async (t, bench) => {
  const { cache } = bench;
  await cache.settled();
  const first = cache.acquire({ promptTokens: 2 * rowTokens, tenant: 'a' });
  t.is(first.mappedRows, 2);
  t.is(dirtyBytes(bench, first), 0);
  bench.compute(first, 2 * rowTokens);
  cache.stamp(first, 0, 2 * rowTokens, 77);
  first.release();
  await cache.settled();
  const second = cache.acquire({ promptTokens: 2 * rowTokens, tenant: 'b' });
  t.is(second.mappedRows, 2);
  t.is(dirtyBytes(bench, second), 0);
});

cacheTests('a tenant is known again after any number of others, and no two names are the same tenant', scrubbing, (t, bench) => {
  const { cache } = bench;
  const scrubbed = (tenant: string): number => {
    const before = cache.metrics.scrubbedPages;
    bench.sequenceOf(1, tenant).release();
    return cache.metrics.scrubbedPages - before;
  };
  scrubbed('a');
  t.is(scrubbed('a'), 0);
  for (let other = 0; other < 1_000; other += 1) cache.acquire({ tenant: `tenant ${other}`, reserve: 'none' }).release();
  scrubbed('a');
  t.is(scrubbed('a'), 0);
  for (const name of ['\ud800', '\ud801', '\ufffd', '', '\0']) t.true(scrubbed(name) > 0, 'not the one before');
});

// A device that refuses to zero

cacheTest('when zeroing fails the growth fails, with nothing mapped; so does the `acquire`, with nothing leased', scrubbing, (t, bench) => {
  const { cache } = bench;
  const sequence = cache.acquire({ tenant: 'a' });
  for (const call of ['cuMemsetD8Async', 'cuStreamSynchronize']) {
    bench.fail(call, 1);
    t.throws(() => bench.prepare(sequence, 1), { code: 'KV_DRIVER_CALL_FAILED' });
    t.is(sequence.mappedRows, 0);
  }
  bench.compute(sequence, rowTokens);
  cache.stamp(sequence, 0, rowTokens, 77);
  sequence.release();
  for (const call of ['cuMemsetD8Async', 'cuStreamSynchronize']) {
    bench.fail(call, 1);
    t.throws(() => cache.acquire({ promptTokens: 2 * rowTokens, tenant: 'b' }), { code: 'KV_DRIVER_CALL_FAILED' });
    t.like(cache.counts(), { activeSlots: 0, idleSlots: 3 });
    t.is(cache.pool.counts().earmarkedPages, 0);
  }
  const next = cache.acquire({ promptTokens: rowTokens, tenant: 'b' });
  t.is(dirtyBytes(bench, next), 0);
});

cacheTest('zeroing is done on a stream of its own, never on the default one', scrubbing, (t, bench) => {
  dirtySequence(bench, 2, 'a').release();
  bench.mock.clearJournal();
  bench.sequenceOf(1, 'b');
  const fills = bench.mock.journal().filter(({ call }) => call === 'cuMemsetD8Async');
  t.true(fills.length > 0);
  t.true(fills.every(({ stream }) => stream !== 0n));
  t.is(bench.mock.leaks().streams, 2, "the cache's, and the driver's for copies");
});
