// When the undo fails as well: the slot is taken out of service with what the driver left mapped there, its bytes stay, every
// page is counted, nobody else notices, and the next close that the driver allows gives everything back.

import test, { type ExecutionContext } from 'ava';

import type { Sequence } from 'virtual-kv';
import type { MockCall } from 'virtual-kv/testing';

import { cacheTest, CacheBench, drivers, rowTokens, type BenchOptions, type DriverName } from '../helpers/cache.js';
import { keptSequence, type Kept } from './fault-scenarios.js';

const always = 1_000_000;

interface DoubleFault {
  readonly title: string;
  readonly options?: BenchOptions;
  /** Makes call number `nth` fail, and the calls that undo what was done before it. Returns what the first kind is. */
  readonly fail: Readonly<Record<DriverName, (bench: CacheBench, nth: number) => string>>;
  /** What must come of it for some n. On host a script fails one call of a kind, which is not always enough. */
  readonly outcomes: Readonly<Record<DriverName, readonly Outcome[]>>;
  /** Returns the sequences to keep, the slot that may suffer, and the call. */
  prepare(bench: CacheBench): { readonly kept: readonly Kept[]; readonly victim: number; act(): void };
}

type Outcome = 'undone' | 'gone on' | 'quarantined';

function failFrom(bench: CacheBench, call: MockCall, nth = 1): void {
  bench.mock.failCall(call, { nth, times: always });
}

const hostGrowth = (bench: CacheBench, nth: number): string => {
  bench.fail('mmap-map', nth);
  bench.fail('mmap-unmap', 1);
  return 'mmap-map';
};

const growth = {
  outcomes: { mock: ['quarantined'], host: ['undone', 'quarantined'] },
  prepare: (bench: CacheBench) => {
    const kept = [keptSequence(bench, 1), keptSequence(bench, 2)];
    const { sequence } = kept[1]!;
    return { kept, victim: sequence.slot, act: () => { bench.prepare(sequence, 2 * rowTokens); bench.discard(); } };
  },
} as const;

/** On the mock `times` unmaps fail from the n-th on, and mapping again what was unmapped before fails from map `mth` on. */
const shrinking = (times: number, mth: number, outcome: Outcome) => ({
  fail: {
    mock: (bench: CacheBench, nth: number) => {
      bench.mock.failCall('cuMemUnmap', { nth, times });
      failFrom(bench, 'cuMemMap', mth);
      return 'cuMemUnmap';
    },
    host: (bench: CacheBench, nth: number) => {
      bench.fail('mmap-unmap', nth);
      bench.fail('mmap-map', 1);
      return 'mmap-unmap';
    },
  },
  outcomes: { mock: ['undone', outcome], host: ['undone', 'gone on'] },
} as const);

const idleRows = {
  prepare: (bench: CacheBench) => {
    const kept = [keptSequence(bench, 1), keptSequence(bench, 2)];
    const victim = bench.idleSlotOf(3);
    return { kept, victim, act: () => bench.cache.pool.setBudget(4 * bench.cache.layout.rowBytes) };
  },
};

const tail = {
  prepare: (bench: CacheBench) => {
    const kept = [keptSequence(bench, 1), keptSequence(bench, 5)];
    const { sequence } = kept[1]!;
    sequence.truncate(3 * rowTokens);
    return { kept, victim: sequence.slot, act: () => bench.cache.pool.setBudget(4 * bench.cache.layout.rowBytes) };
  },
};

const faults: readonly DoubleFault[] = [
  {
    title: 'a growth that fails at a map',
    fail: {
      mock: (bench, nth) => {
        bench.fail('cuMemMap', nth);
        failFrom(bench, 'cuMemUnmap');
        return 'cuMemMap';
      },
      host: hostGrowth,
    },
    ...growth,
    outcomes: { ...growth.outcomes, mock: ['undone', 'quarantined'] },
  },
  {
    title: 'a growth that fails at an access',
    fail: {
      mock: (bench, nth) => {
        bench.fail('cuMemSetAccess', nth);
        failFrom(bench, 'cuMemUnmap');
        return 'cuMemSetAccess';
      },
      host: hostGrowth,
    },
    ...growth,
  },
  { title: 'taking idle rows back', ...shrinking(always, 1, 'quarantined'), ...idleRows },
  { title: 'taking idle rows back, part of which is mapped again,', ...shrinking(always, 2, 'quarantined'), ...idleRows },
  { title: 'taking a tail back', ...shrinking(always, 1, 'quarantined'), ...tail },
  { title: 'taking a tail back, part of which is mapped again,', ...shrinking(always, 3, 'quarantined'), ...tail },
];

/** The undo fails, but going on where the call was going does not: then nothing is wrong. */
const gotOver: readonly DoubleFault[] = [
  { title: 'idle rows', ...shrinking(1, 1, 'gone on'), ...idleRows },
  { title: 'idle rows, part of which are mapped again,', ...shrinking(1, 2, 'gone on'), ...idleRows },
  { title: 'a tail, part of which is mapped again,', ...shrinking(1, 3, 'gone on'), ...tail },
];

for (const on of drivers) {
  for (const fault of faults) {
    test(`${fault.title} and cannot be undone, costs one slot at most (${on})`, (t) => failEach(t, fault, on));
  }
  for (const fault of gotOver) {
    test(`${fault.title} that cannot be given back or kept whole are given back after all (${on})`, (t) => failEach(t, fault, on));
  }
}

function failEach(t: ExecutionContext, fault: DoubleFault, on: DriverName): void {
  const outcomes: Outcome[] = [];
  for (let nth = 1; nth < 20; nth += 1) {
    const outcome = failTwice(new CacheBench(t, { ...fault.options, on }), fault, on, nth);
    if (outcome === undefined) break;
    outcomes.push(outcome);
  }
  t.log(outcomes.join(', '));
  t.true(outcomes.length >= 4);
  for (const outcome of outcomes) t.true(fault.outcomes[on].includes(outcome), outcome);
  t.true(outcomes.includes(fault.outcomes[on].at(-1)!));
}

/** Undefined when the call makes fewer than `nth` calls of the first kind. */
function failTwice(bench: CacheBench, fault: DoubleFault, on: DriverName, nth: number): Outcome | undefined {
  const { t, cache } = bench;
  const { kept, victim, act } = fault.prepare(bench);
  bench.device?.resetCallCounts();
  const kind = fault.fail[on](bench, nth);
  const error = failureOf(act);
  const isReached = bench.device === undefined ? nth <= 4 : bench.device.callCounts()[kind as MockCall] >= nth;
  const { quarantinedSlots } = cache.metrics;
  t.is(error !== undefined && isReached, error !== undefined);
  if (error !== undefined) t.regex(error.code, /KV_(DRIVER_CALL_FAILED|OUT_OF_MAPPINGS)/);
  assertConserved(bench);
  for (const { sequence, key } of kept) t.true(bench.isIntact(sequence, key), `${kind} number ${nth}`);
  bench.forgiveAll();
  if (quarantinedSlots > 0) {
    assertOutOfService(bench, kept, victim);
    bench.fail(on === 'mock' ? 'cuMemUnmap' : 'mmap-unmap', 1);
    t.throws(() => cache.close(), { code: 'KV_DRIVER_CALL_FAILED' }, 'the driver still refuses');
    cache.close();
  }
  bench.close();
  if (!isReached) return undefined;
  return error === undefined ? 'gone on' : quarantinedSlots > 0 ? 'quarantined' : 'undone';
}

/** The victim's slot is never changed nor leased again; the rest goes on. */
function assertOutOfService(bench: CacheBench, kept: readonly Kept[], victim: number): void {
  const { t, cache } = bench;
  t.is(cache.metrics.quarantinedSlots, 1);
  t.true(bench.pool().quarantinedPages > 0);
  t.true((cache.inspect()['slots'] as { slot: number; isQuarantined: boolean }[]).find(({ slot }) => slot === victim)!.isQuarantined);
  const own = kept.find(({ sequence }) => sequence.slot === victim);
  if (own !== undefined) {
    const { sequence, key } = own;
    sequence.truncate(1);
    bench.compute(sequence, sequence.mappedRows * rowTokens - 1);
    t.like(t.throws(() => bench.prepare(sequence, 1), { code: 'KV_SLOT_BUSY' }), { details: { slot: victim } });
    t.is(cache.verifyStamp(sequence, 0, rowTokens, key), 0, 'the rows it has go on working');
    sequence.release({ fence: { step: 1 } });
    cache.completeStep(1);
  }
  t.like(cache.counts(), { quarantinedSlots: 1, retiringSlots: 0 });
  cache.pool.setBudget(2 ** 30);
  const others: Sequence[] = [];
  while (cache.counts().idleSlots > 0) others.push(cache.acquire({ promptTokens: 10 }));
  t.false(others.some(({ slot }) => slot === victim));
  t.throws(() => cache.acquire(), { code: 'KV_NO_FREE_SLOT' });
  for (const sequence of others) bench.compute(sequence, 3 * rowTokens);
  cache.pool.setBudget(bench.cache.layout.rowBytes);
  for (const sequence of others) sequence.release();
  assertConserved(bench);
}

function failureOf(act: () => void): { readonly code: string } | undefined {
  try {
    act();
    return undefined;
  } catch (error) {
    return error as { readonly code: string };
  }
}

function assertConserved({ t, cache, driver }: CacheBench): void {
  cache.verify();
  const { createdPages, freePages, mappedPages, quarantinedPages } = cache.pool.counts();
  t.is(freePages + mappedPages + quarantinedPages, createdPages);
  t.is(driver.memory().livePages, createdPages);
}

// The rest of the undo

cacheTest('pages that cannot be given back after a refused growth stay in the pool, free', {}, (t, bench) => {
  const sequence = bench.cache.acquire();
  for (let nth = 2; nth <= 4; nth += 1) {
    bench.fail('cuMemCreate', nth, 2);
    failFrom(bench, 'cuMemRelease');
    t.throws(() => bench.prepare(sequence, 1), { code: 'KV_OUT_OF_DEVICE_MEMORY' });
    t.like(bench.pool(), { createdPages: nth - 1, freePages: nth - 1, mappedPages: 0 });
    bench.forgiveAll();
    bench.cache.pool.trim();
  }
  bench.compute(sequence, 1);
});

cacheTest('an earmark of a slot in quarantine ends with its release', { rows: 6 }, (t, bench) => {
  const { cache } = bench;
  const sequence = cache.acquire({ promptTokens: 6 * rowTokens });
  bench.fail('cuMemSetAccess', 2);
  failFrom(bench, 'cuMemUnmap');
  t.throws(() => bench.prepare(sequence, rowTokens), { code: 'KV_DRIVER_CALL_FAILED' });
  bench.forgiveAll();
  t.is(bench.pool().earmarkedPages, 24);
  sequence.release();
  t.is(bench.pool().earmarkedPages, 0);
  const { quarantinedPages } = bench.pool();
  t.is(quarantinedPages, 2, 'the pages of two tensors');
  bench.sequenceOf(5 * rowTokens);
  t.throws(() => bench.sequenceOf(rowTokens), { code: 'KV_OUT_OF_PAGES' });
});

cacheTest('an earmark of a slot whose row is lost ends with its release, and no other slot\'s with it', {}, (t, bench) => {
  const { cache, mock } = bench;
  const sequence = cache.acquire({ promptTokens: 5 * rowTokens });
  bench.compute(sequence, rowTokens + 1);
  const other = cache.acquire({ promptTokens: 4 * rowTokens });
  t.is(bench.pool().earmarkedPages, 12 + 16);
  sequence.fork();
  mock.failCall('cuMemMap', { nth: 5, times: always }); // behind the copy: neither the copy nor what was there can be mapped
  t.throws(() => bench.prepare(sequence, 1), { code: 'KV_DRIVER_CALL_FAILED' });
  bench.forgiveAll();
  t.is(cache.metrics.quarantinedSlots, 1);
  sequence.release();
  t.is(bench.pool().earmarkedPages, 16, 'what the other was earmarked');
  bench.compute(other, 4 * rowTokens);
  t.is(bench.pool().earmarkedPages, 0);
});

cacheTest('a page that is stuck where it was copied can be scrubbed for another tenant', {
  scrub: 'between-tenants', prefixCache: 'off', slots: 2,
}, (t, bench) => {
  const { cache, mock } = bench;
  const sequence = bench.sequenceOf(10, 'a');
  const fork = sequence.fork();
  mock.failCall('cuMemUnmap'); // of the copy, before it is mapped in its slot
  bench.compute(fork, 1);
  t.is(bench.pool().quarantinedPages, 1);
  for (const used of [sequence, fork]) used.release();
  for (const other of [bench.sequenceOf(5, 'b'), bench.sequenceOf(5, 'b')]) other.release();
  t.is(cache.metrics.quarantinedSlots, 0);
});

cacheTest('pages that are stuck in two slots are counted once', {}, (t, bench) => {
  const { cache, mock } = bench;
  const sequence = bench.sequenceOf(2 * rowTokens);
  const sequences = [sequence, sequence.fork()];
  for (const shared of sequences) {
    mock.failCall('cuMemUnmap', { nth: 2, times: always }); // the first tensor is unmapped already, and stays so
    failFrom(bench, 'cuMemMap');
    shared.release();
    bench.forgiveAll();
    assertConserved(bench);
    t.like(bench.pool(), { createdPages: 8, quarantinedPages: 6 });
  }
  t.is(cache.metrics.quarantinedSlots, 2);
});

cacheTest('of a batch only the slot that could not be undone suffers', {}, (t, bench: CacheBench) => {
  const { cache } = bench;
  const [first, second] = [keptSequence(bench, 1), keptSequence(bench, 1)];
  bench.fail('cuMemSetAccess', 6); // the second slot's second tensor
  bench.mock.failCall('cuMemUnmap', { nth: 2 }); // its first tensor, when it is taken back
  const batch = bench.batchOf([first.sequence, rowTokens], [second.sequence, rowTokens]);
  t.throws(() => cache.prepare(batch), { code: 'KV_DRIVER_CALL_FAILED' });
  assertOutOfServiceOnly(t, bench, second.sequence);
  bench.compute(first.sequence, rowTokens);
  t.true([first, second].every(({ sequence, key }) => cache.verifyStamp(sequence, 0, rowTokens, key) === 0));
});

function assertOutOfServiceOnly(t: ExecutionContext, bench: CacheBench, sequence: Sequence): void {
  t.is(bench.cache.metrics.quarantinedSlots, 1);
  t.throws(() => bench.prepare(sequence, rowTokens), { code: 'KV_SLOT_BUSY' });
}
