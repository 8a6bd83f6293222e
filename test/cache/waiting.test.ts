// `slotFree` and `settled`: what they wait for, and how a wait is given up.

import { getEventListeners } from 'node:events';
import { setImmediate } from 'node:timers/promises';

import test from 'ava';

import { ahead } from 'virtual-kv';

import { ChangeSignal, waitUntil } from '#internal/device/wait.js';
import { cacheTest, cacheTests } from '../helpers/cache.js';

/** The mapper is busy for seconds, and a row is soon finished all the same. */
const slowNs = 40_000_000;

cacheTests('`slotFree` resolves at once where a slot is free', {}, async (t, { cache }) => {
  await cache.slotFree();
  await cache.slotFree({ timeoutMs: 0 });
  t.pass();
});

cacheTests('`slotFree` resolves when a sequence is released', { slots: 1 }, async (t, { cache }) => {
  const sequence = cache.acquire();
  const waiting = cache.slotFree();
  globalThis.setImmediate(() => sequence.release());
  await waiting;
  t.is(cache.acquire().slot, 0);
});

cacheTest('`slotFree` resolves when the fence of a released slot has passed', {
  slots: 1, device: { streams: 'manual' },
}, async (t, bench) => {
  const { cache, mock } = bench;
  const sequence = bench.sequenceOf(1);
  mock.queueWork(0n, [{ address: sequence.address(0), bytes: 1, access: 'read' }]);
  sequence.release({ fence: { stream: 0n } });
  t.throws(() => cache.acquire(), { code: 'KV_NO_FREE_SLOT' });
  const waiting = cache.slotFree();
  globalThis.setImmediate(() => mock.completeAll());
  await waiting;
  cache.acquire();
});

cacheTest('`slotFree` rejects with the driver\'s error, and can be called again', { slots: 1 }, async (t, bench) => {
  bench.sequenceOf(1).release({ fence: { step: 1 } });
  const { cache } = bench;
  const waiting = cache.slotFree();
  cache.completeStep(1);
  await waiting;
  bench.sequenceOf(1).release({ fence: { stream: 0n } });
  bench.fail('cuEventQuery', 1);
  await t.throwsAsync(cache.slotFree(), { code: 'KV_DRIVER_CALL_FAILED' });
  await cache.slotFree();
});

cacheTest('`settled` resolves when the mapper is done, and its rows are known then', { growth: ahead(500) }, async (t, { cache, mock }) => {
  mock.setLatencyNs('cuMemMap', slowNs);
  const sequence = cache.acquire();
  t.true(sequence.mappedRows < 8);
  mock.setLatencyNs('cuMemMap', 0);
  await cache.settled();
  t.is(sequence.mappedRows, 8);
});

const waits = {
  slotFree: 'a free slot',
  settled: 'the mapper',
} as const;

for (const [wait, waitedFor] of Object.entries(waits) as [keyof typeof waits, string][]) {
  const options = { slots: 1, growth: ahead(1024) };

  cacheTest(`\`${wait}\` gives up after \`timeoutMs\``, options, async (t, { cache, mock }) => {
    mock.setLatencyNs('cuMemMap', slowNs);
    cache.acquire();
    const error = await t.throwsAsync(cache[wait]({ timeoutMs: 3 }), { code: 'KV_TIMEOUT' });
    t.like(error, { recovery: 'retry', details: { timeoutMs: 3, waitedFor } });
    await t.throwsAsync(cache[wait]({ timeoutMs: 0 }), { code: 'KV_TIMEOUT' });
    t.is(cache.counts().activeSlots, 1);
  });

  cacheTest(`\`${wait}\` gives up when its signal says so, and leaves no listener`, options, async (t, { cache, mock }) => {
    mock.setLatencyNs('cuMemMap', slowNs);
    cache.acquire();
    const controller = new AbortController();
    const waiting = cache[wait]({ signal: controller.signal });
    globalThis.setImmediate(() => controller.abort(new Error('enough')));
    const error = await t.throwsAsync(waiting, { code: 'KV_ABORTED' });
    t.like(error, {
      name: 'AbortError', recovery: 'none', details: { operation: `waiting for ${waitedFor}` }, cause: { message: 'enough' },
    });
    t.deepEqual(getEventListeners(controller.signal, 'abort'), []);
    await t.throwsAsync(cache[wait]({ signal: controller.signal }), { code: 'KV_ABORTED' });
  });
}

test('a wait that is told of changes asks at each of them, and at no other time', async (t) => {
  const signal = new ChangeSignal();
  let asked = 0;
  const waiting = waitUntil('the third', {}, () => (asked += 1) > 3, { signals: [signal], mustAsk: () => false });
  for (let change = 1; change <= 3; change += 1) {
    for (let turns = 0; turns < 10; turns += 1) await setImmediate();
    t.is(asked, change);
    signal.raise();
  }
  await waiting;
  t.is(asked, 4);
});

for (const [what, fence, count] of [
  ['nothing', undefined, 0], ['a step', { step: 1 }, 0], ['a stream', { stream: 0n }, 1],
] as const) {
  cacheTest(`\`slotFree\` sets a timer only where a fence must be asked for: ${what}`, { slots: 2, device: { streams: 'manual' } }, async (t, bench) => {
    const { cache, mock } = bench;
    const held = bench.sequenceOf(1);
    const fenced = bench.sequenceOf(1);
    if (fence !== undefined) {
      mock.queueWork(0n, [{ address: fenced.address(0), bytes: 1, access: 'read' }]);
      fenced.release({ fence });
    }
    const timers = recordTimers();
    const waiting = cache.slotFree();
    timers.end();
    t.is(timers.asked.length, count);
    mock.completeAll();
    held.release();
    await waiting;
    cache.completeStep(1);
  });
}

/** Timers and turns that are asked for until `end`, with their delays. */
function recordTimers(): { readonly asked: readonly string[]; readonly end: () => void } {
  const original = { setTimeout: globalThis.setTimeout, setImmediate: globalThis.setImmediate };
  const asked: string[] = [];
  for (const name of ['setTimeout', 'setImmediate'] as const) {
    const recorded = (...parameters: Parameters<typeof setTimeout>): unknown => {
      asked.push([name, ...parameters.slice(1)].join(' '));
      return (original[name] as (...all: unknown[]) => unknown)(...parameters);
    };
    Object.assign(globalThis, { [name]: recorded });
  }
  return { asked, end: () => { Object.assign(globalThis, original); } };
}

test('a long wait leaves the processor to others: after some turns it asks once in a millisecond', async (t) => {
  const asked: string[] = [];
  const enough = new AbortController();
  await t.throwsAsync(waitUntil('nothing', { signal: enough.signal }, () => {
    if (asked.length === 80) enough.abort();
    const timers = recordTimers();
    queueMicrotask(() => { // the wait goes on before it
      timers.end();
      asked.push(...timers.asked);
    });
    return false;
  }), { code: 'KV_ABORTED' });
  t.deepEqual(asked, [...new Array<string>(64).fill('setImmediate'), ...new Array<string>(16).fill('setTimeout 1')]);
});
