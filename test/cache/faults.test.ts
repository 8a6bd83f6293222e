// Fail the n-th driver call of every kind, for every n until a scenario no longer makes so many: rows, slots, earmarks and
// bytes are as before, every page is counted, the same call succeeds when it is tried again, and nothing leaks.

import { constants } from 'node:os';

import test from 'ava';

import type { MockCall } from 'virtual-kv/testing';

import type { CacheBench, DriverName } from '../helpers/cache.js';
import { failEach, failIn, hostKinds, type Fault } from '../helpers/fail-each.js';
import { assertNothingHeld } from '../helpers/nothing-held.js';
import { scenarios, type FaultScenario } from './fault-scenarios.js';

/** What the memory layer calls. cuCtxPopCurrent is left out: a device whose contexts cannot be popped is beyond help. */
const mockKinds: readonly MockCall[] = [
  'cuCtxPushCurrent', 'cuThreadExchangeStreamCaptureMode', 'cuMemGetInfo', 'cuMemAddressReserve', 'cuMemAddressFree', 'cuMemCreate',
  'cuMemRelease', 'cuMemMap', 'cuMemUnmap', 'cuMemSetAccess', 'cuMemsetD8Async', 'cuStreamSynchronize', 'cuEventCreate',
  'cuEventRecord', 'cuEventQuery', 'cuEventDestroy',
];

const faults = {
  mock: { kinds: mockKinds, results: { UNKNOWN: 999, OUT_OF_MEMORY: 2, NOT_PERMITTED: 800 } },
  host: { kinds: hostKinds, results: { ENOMEM: constants.errno.ENOMEM, EPERM: constants.errno.EPERM } },
} as const satisfies Readonly<Record<DriverName, {
  readonly kinds: readonly string[];
  readonly results: Readonly<Record<string, number>>;
}>>;


for (const [on, { kinds, results }] of Object.entries(faults) as [DriverName, (typeof faults)[DriverName]][]) {
  for (const scenario of scenarios) {
    if (scenario.on !== undefined && scenario.on !== on) continue;
    for (const [name, result] of Object.entries(results)) {
      test(`${scenario.title}: any call that answers ${name} is undone (${on})`, (t) => {
        const { title, options = {} } = scenario;
        failEach(t, { title, on, options, kinds, results: [result] }, (bench, fault) => failOne(bench, scenario, fault));
      });
    }
  }
}

/** False when the scenario did not come so far. */
function failOne(bench: CacheBench, scenario: FaultScenario, fault: Fault): boolean {
  const { t, cache } = bench;
  const { kept, act, clean } = scenario.prepare(bench);
  const before = snapshot(bench);
  const { error, isReached, what } = failIn(bench, fault, act);
  const isChecked = scenario.mayChange !== 'close';
  const assertIntact = (): void => { for (const { sequence, key } of kept) t.true(bench.isIntact(sequence, key), what); };
  if (isReached && isChecked) {
    if (error === undefined) assertConserved(bench, what);
    else assertAsBefore(bench, scenario, before, what);
    assertIntact();
  }
  if (error !== undefined) act();
  if (isReached && isChecked) {
    assertIntact();
    cache.verify();
  }
  clean?.();
  if (isReached && isChecked) {
    for (const { sequence } of kept) sequence.release();
    assertNothingHeld(t, cache, what);
  }
  bench.close();
  return isReached;
}

type SlotRecord = Readonly<Record<string, unknown>> & { readonly state: string; readonly rows: number };

/** Everything of a cache and its pool that a failed call must not change. */
function snapshot({ cache, device }: CacheBench) {
  const { slots } = cache.inspect() as { slots: readonly SlotRecord[] };
  const { mappedPages, earmarkedPages, quarantinedPages, budgetPages } = cache.pool.counts();
  const { lateErrors } = cache.metrics;
  device?.resetCallCounts();
  return {
    active: slots.filter(({ state }) => state !== 'idle'), idle: slots.filter(({ state }) => state === 'idle'),
    pool: { mappedPages, earmarkedPages, quarantinedPages, budgetPages }, budgetBytes: cache.pool.memoryBudgetBytes, lateErrors,
  };
}

type Snapshot = ReturnType<typeof snapshot>;

function assertAsBefore(bench: CacheBench, { mayChange }: FaultScenario, before: Snapshot, what: string): void {
  const { t } = bench;
  assertConserved(bench, what);
  const after = snapshot(bench);
  t.is(after.budgetBytes, before.budgetBytes, what);
  if (mayChange === undefined) {
    t.deepEqual(after, before, what);
    return;
  }
  t.is(after.pool.earmarkedPages, before.pool.earmarkedPages, what);
  t.is(after.pool.quarantinedPages, 0, what);
  t.is(after.pool.budgetPages, before.pool.budgetPages, what);
  const withoutRows = ({ active }: Snapshot) => active.map(({ rows: _rows, ...rest }) => rest);
  if (mayChange === 'idle rows') t.deepEqual(withoutRows(after), withoutRows(before), what);
  const rowsOf = ({ active, idle }: Snapshot) => [...active, ...idle].reduce((sum, { rows }) => sum + rows, 0);
  t.true(rowsOf(after) <= rowsOf(before), what);
}

function assertConserved({ t, cache, driver }: CacheBench, what: string): void {
  t.notThrows(() => cache.verify(), what);
  const { createdPages, freePages, mappedPages, quarantinedPages } = cache.pool.counts();
  t.is(freePages + mappedPages + quarantinedPages, createdPages, what);
  t.is(driver.memory().livePages, createdPages, what);
}
