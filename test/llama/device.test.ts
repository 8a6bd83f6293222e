// The reference engine on the simulated device, when calls of the driver fail: opening leaves nothing behind, and a pass that failed
// is over, does not count, and can be computed again.

import test, { type ExecutionContext } from 'ava';

import { KvCache, type Driver } from 'virtual-kv';
import { MockDevice, type MockCall } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { nativeOf } from '../helpers/native-of.js';
import { removeFolder, writeLlama, randomLlama } from '../helpers/made-llama.js';

const pageBytes = 2 ** 21;
const folder = writeLlama(randomLlama(new Random(1), {
  layers: 2, hidden: 128, intermediate: 160, queryHeads: 4, kvHeads: 2, headDim: 32, vocabularyTokens: 60,
}, { attention_bias: true }));
const model = new LlamaModel(folder);
test.after.always(() => removeFolder(folder));

const openDevice = (streams: 'immediate' | 'manual' = 'immediate'): MockDevice =>
  new MockDevice({ granularityBytes: pageBytes, memoryBytes: 2 ** 28, hasGarbage: true, streams });
const openCache = (driver: Driver): KvCache =>
  new KvCache({ model: model.shape(), slots: 1, maxTokens: 64, memoryBudgetBytes: 2 ** 24, driver, pageBytes, mapper: 'off' });

for (const call of [
  'cuDeviceGetAttribute', 'cuMemAddressReserve', 'cuMemCreate', 'cuMemMap', 'cuMemSetAccess', 'cuMemcpyHtoDAsync',
] as const satisfies readonly MockCall[]) {
  test(`opening the engine leaves nothing behind when any ${call} fails`, (t) => {
    const device = openDevice();
    const cache = openCache(device.driver);
    new LlamaEngine({ model, cache }).close(); // the kernels' module stays
    const before = device.leaks();
    let failures = 0;
    for (let nth = 1, hasFailed = true; hasFailed; nth += 1) {
      device.resetCallCounts();
      device.failCall(call, { nth });
      try {
        new LlamaEngine({ model, cache }).close();
        hasFailed = false;
      } catch (error) {
        t.regex((error as { code: string }).code, /^KV_(DRIVER_CALL_FAILED|OUT_OF_)/);
        failures += 1;
      }
      device.clearFailures();
      t.deepEqual(device.leaks(), before, `call ${nth}`);
    }
    t.true(failures > 0);
    cache.close();
    device.assertNoLeaks();
    device.close();
  });
}

/** One prompt of ten tokens, its logits. */
async function prefill(cache: KvCache, engine: LlamaEngine): Promise<Float32Array> {
  const sequence = cache.acquire();
  const batch = cache.createBatch();
  batch.add(sequence, 10);
  cache.prepare(batch);
  try {
    const { logits } = await engine.prefill({
      length: 1, slots: Int32Array.of(sequence.slot), positions: Int32Array.of(0), tokenCounts: Int32Array.of(10),
      tokens: Int32Array.from({ length: 10 }, (_, at) => 5 * at), wantsLogits: Uint8Array.of(1),
    });
    return logits.slice(0, engine.vocabularyTokens);
  } finally {
    cache.discard(batch);
    sequence.release();
  }
}

async function failsAndGoesOn(t: ExecutionContext, call: MockCall, nths: readonly number[]): Promise<void> {
  const device = openDevice('manual');
  const cache = openCache(device.driver);
  const engine = new LlamaEngine({ model, cache });
  const expected = await prefill(cache, engine);
  for (const nth of nths) {
    device.failCall(call, { nth });
    await t.throwsAsync(() => prefill(cache, engine), { code: 'KV_DRIVER_CALL_FAILED' }, `call ${nth}`);
    t.is(device.pendingWork, 0, 'nothing still runs');
    device.clearFailures();
    t.deepEqual(await prefill(cache, engine), expected, 'and the same again is right');
  }
  engine.close();
  cache.close();
  device.assertNoLeaks();
  device.close();
}

test('a pass that fails at a launch is over, and can be repeated', async (t) => {
  await failsAndGoesOn(t, 'cuLaunchKernel', [1, 2, 7, 19]);
});

test('so is one whose logits cannot be read', async (t) => {
  await failsAndGoesOn(t, 'cuMemcpyDtoHAsync', [1]);
});

test('a pass makes the context current once for all it queues', async (t) => {
  const device = openDevice();
  const cache = openCache(device.driver);
  const engine = new LlamaEngine({ model, cache });
  await prefill(cache, engine); // makes the pass's buffers
  device.resetCallCounts();
  await prefill(cache, engine);
  const { cuCtxPushCurrent, cuCtxPopCurrent, cuLaunchKernel } = device.callCounts();
  t.is(cuCtxPushCurrent, cuCtxPopCurrent);
  t.true(cuLaunchKernel > 2 * cuCtxPushCurrent, `${cuLaunchKernel} launches, ${cuCtxPushCurrent} times current`); // the others: pages, logits
  engine.close();
  cache.close();
  device.assertNoLeaks();
  device.close();
});

test('engines on one device share one copy of the weights, which goes with the last', async (t) => {
  const device = openDevice();
  const caches = [openCache(device.driver), openCache(device.driver)];
  const { livePages } = device.driver.memory();
  const [first, second] = caches.map((cache) => new LlamaEngine({ model, cache }));
  const both = device.driver.memory().livePages;
  first!.close();
  first!.close();
  const one = device.driver.memory().livePages;
  t.true(one > livePages && both > one, `${livePages}, ${one}, ${both}`);
  t.is((await prefill(caches[1]!, second!)).length, 60);
  second!.close();
  for (const cache of caches) cache.close();
  device.assertNoLeaks();
  device.close();
});

test('an engine that is closed in the middle of a pass waits for what is queued before its memory goes', async (t) => {
  const device = openDevice('manual');
  const cache = openCache(device.driver);
  const engine = new LlamaEngine({ model, cache });
  let end = (): void => {};
  const slow = (): Promise<void> => new Promise((resolve) => { end = resolve; }); // the thread that waits has not begun
  Object.defineProperty(nativeOf(device.driver), 'synchronizeAsync', { value: slow });
  const pass = t.throwsAsync(prefill(cache, engine), { code: 'KV_ABORTED' });
  t.true(device.pendingWork > 0);
  engine.close();
  t.deepEqual(device.misuses(), []);
  end();
  await pass;
  cache.close();
  device.assertNoLeaks();
  device.close();
});
