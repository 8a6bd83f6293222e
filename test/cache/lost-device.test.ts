// A device that is lost at any call: the call that met it and every later one that needs the device say so, no promise or
// length is changed, closing works at the first try, and this process goes on.

import test, { type ExecutionContext } from 'ava';

import { ahead, isKvError, KvCache } from 'virtual-kv';
import { mockCalls, MockDevice, type MockCall } from 'virtual-kv/testing';

import { cacheOptions, cacheTest, CacheBench, pageBytes, rowTokens } from '../helpers/cache.js';
import { isSampling, isTried } from '../runner/tier.js';
import { scenarios, type FaultScenario } from './fault-scenarios.js';

const illegalAddress = 700;
const contextIsDestroyed = 709;

cacheTest('the error of a lost device names the driver in use', {}, (t, bench) => {
  const sequence = bench.cache.acquire();
  bench.fail('cuInit', 1);
  t.like(t.throws(() => bench.mock.openDriver(), { code: 'KV_DRIVER_UNAVAILABLE' }), { details: { driver: 'mock' } });
  bench.mock.loseDevice();
  t.like(t.throws(() => bench.prepare(sequence, 1), { code: 'KV_DRIVER_LOST' }), { details: { driver: 'mock' } });
  t.like(t.throws(() => bench.driver.memory(), { code: 'KV_DRIVER_LOST' }), { details: { driver: 'mock' } });
});

for (const scenario of scenarios) {
  for (const [name, result] of Object.entries({ ILLEGAL_ADDRESS: illegalAddress, CONTEXT_IS_DESTROYED: contextIsDestroyed })) {
    test(`${scenario.title}: the device is lost at any call (${name})`, (t) => {
      const tried = mockCalls.filter((call) => isTried(`${scenario.title} ${call} ${name}`, 10));
      const reached = tried.filter((call) => loseAtEach(t, scenario, call, result) > 0);
      t.log(reached.join(', '));
      t.true(isSampling || reached.includes('cuCtxPushCurrent'));
    });
  }
}

function loseAtEach(t: ExecutionContext, scenario: FaultScenario, call: MockCall, result: number): number {
  for (let nth = 1; nth < 200; nth += 1) {
    const bench = new CacheBench(t, scenario.options);
    try {
      if (!loseAt(bench, scenario, call, nth, result)) return nth - 1;
    } catch (error) {
      t.log(`${scenario.title}: lost at ${call} number ${nth}`);
      bench.abandon();
      throw error;
    }
  }
  throw new Error(`${scenario.title} makes too many calls of ${call}`);
}

/** False when the scenario does not make so many calls of this kind. */
function loseAt(bench: CacheBench, scenario: FaultScenario, call: MockCall, nth: number, result: number): boolean {
  const { t, cache, mock, driver } = bench;
  const what = `${call} number ${nth}`;
  const prepared = scenario.prepare(bench);
  const active = prepared.kept.map(({ sequence }) => sequence.length);
  mock.resetCallCounts();
  mock.failCall(call, { nth, result });
  let error: unknown;
  try {
    prepared.act();
  } catch (caught) {
    error = caught;
  }
  if (mock.callCounts()[call] < nth) {
    mock.clearFailures();
    prepared.clean?.();
    bench.close();
    return false;
  }
  const isNoticed = driver.isLost;
  if (error !== undefined) t.true(isKvError(error, 'KV_DRIVER_LOST'), `${what}: ${String(error)}`);
  if (scenario.mayChange === undefined && isNoticed) t.not(error, undefined, what);
  if (isNoticed && !cache.isClosed) {
    t.throws(() => cache.acquire(), { code: 'KV_DRIVER_LOST' }, what);
    for (const { sequence } of prepared.kept) {
      t.throws(() => bench.prepare(sequence, 6 * rowTokens), { code: 'KV_DRIVER_LOST' }, what);
    }
    t.notThrows(() => cache.verify(), what);
    t.notThrows(() => cache.inspect(), what);
  }
  if (!cache.isClosed) t.deepEqual(prepared.kept.map(({ sequence }) => sequence.length), active, what);
  prepared.clean?.();
  t.notThrows(() => cache.close(), what);
  t.true(cache.isClosed);
  mock.clearMisuses();
  driver.close();
  mock.close();
  return true;
}

// What still works

cacheTest('steps that need no memory go on, and releases are not refused', {}, (t, bench) => {
  const { cache } = bench;
  const [sequence, other] = [bench.sequenceOf(10), bench.sequenceOf(10)];
  bench.mock.loseDevice();
  t.throws(() => bench.prepare(sequence, rowTokens), { code: 'KV_DRIVER_LOST' });
  bench.compute(sequence, 1);
  t.is(sequence.length, 11);
  other.release();
  t.throws(() => sequence.release({ fence: { stream: 0n } }), { code: 'KV_DRIVER_LOST' });
  sequence.release();
  t.like(cache.counts(), { activeSlots: 0, idleSlots: 8 });
});

cacheTest('`slotFree` does not wait for a fence on a lost device', { slots: 1 }, async (t, bench) => {
  const sequence = bench.sequenceOf(10);
  bench.mock.queueWork(0n, [{ address: sequence.address(0), bytes: 1, access: 'read' }]);
  sequence.release({ fence: { stream: 0n } });
  bench.mock.loseDevice();
  await t.throwsAsync(bench.cache.slotFree(), { code: 'KV_DRIVER_LOST' });
});

cacheTest('a loss that the mapper meets is a late error, and the next call says so', { growth: ahead(300) }, async (t, bench) => {
  const { cache, mock } = bench;
  mock.failCall('cuMemSetAccess', { nth: 6, result: illegalAddress });
  cache.acquire();
  await cache.settled();
  t.true(bench.driver.isLost);
  t.true(cache.metrics.lateErrors >= 1);
  t.throws(() => cache.acquire(), { code: 'KV_DRIVER_LOST' });
  cache.verify();
});

test('every cache of a lost device says so, and each closes', (t) => {
  const device = new MockDevice({ granularityBytes: pageBytes });
  const caches = [1, 2].map(() => new KvCache(cacheOptions({}, device.driver)));
  device.loseDevice(illegalAddress);
  t.throws(() => device.driver.memory(), { code: 'KV_DRIVER_LOST' });
  for (const cache of caches) t.throws(() => cache.acquire(), { code: 'KV_DRIVER_LOST' });
  t.throws(() => new KvCache(cacheOptions({}, device.driver)), { code: 'KV_DRIVER_LOST' });
  for (const cache of caches) cache.close();
  device.driver.close();
  device.close();
});
