// The reference engine's captured decoding on the simulated device: the same tokens as by queued steps, one launch a step, and a
// reason wherever it decodes launch by launch instead.

import test from 'ava';

import { KvCache, OfflineScheduler, type Driver, type GenerationRequest } from 'virtual-kv';
import { MockDevice, type MockCall } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { LlamaEngine } from '#internal/llama/engine.js';
import type { LlamaEngineOptions } from '#internal/llama/engine-options.js';
import { LlamaModel } from '#internal/llama/model.js';
import { fakeCublas } from '../helpers/fake-cublas.js';
import { pageBytes, randomText, shapeOf, vocabularyTokens } from '../helpers/llama-shapes.js';
import { removeFolder, writeLlama, randomLlama } from '../helpers/made-llama.js';
import { hasCompiler } from '../helpers/native-probe.js';
import { refusesAsync } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('captured llama');
const folder = writeLlama(randomLlama(new Random(seed), shapeOf('per-layer', 2, 4, 2)));
const model = new LlamaModel(folder);
test.after.always(() => removeFolder(folder));

const openDevice = (streams: 'immediate' | 'manual' = 'immediate'): MockDevice =>
  new MockDevice({ granularityBytes: pageBytes, memoryBytes: 2 ** 28, hasGarbage: true, streams });
const openCache = (driver: Driver, slots = 6): KvCache =>
  new KvCache({ model: model.shape('float32'), slots, maxTokens: 256, memoryBudgetBytes: 2 ** 25, driver, pageBytes, mapper: 'off' });

/** Tokens of each request, and how often the device launched. */
async function generate(
  device: MockDevice, requests: readonly GenerationRequest[], decoding: LlamaEngineOptions['decoding'],
): Promise<{ texts: number[][]; graphs: number; kernels: number }> {
  using cache = openCache(device.driver);
  using engine = new LlamaEngine({ model, cache, decoding });
  const scheduler = new OfflineScheduler({ cache, engine, prefillTokensPerStep: 70 });
  device.resetCallCounts();
  const texts: number[][] = [];
  for await (const outcome of scheduler.run(requests)) {
    if (outcome.status === 'rejected') throw outcome.reason;
    texts[outcome.index] = [...outcome.value.tokens];
  }
  const { cuGraphLaunch: graphs, cuLaunchKernel: kernels } = device.callCounts();
  return { texts, graphs, kernels };
}

for (const streams of ['immediate', 'manual'] as const) {
  slow('runs models on the simulated device')(`captured steps give the tokens of queued ones while sequences come, share rows, grow and end (${streams} streams, seed ${seed})`, async (t) => {
    const random = new Random(seed);
    const shared = randomText(random, 60);
    const requests = Array.from({ length: 14 }, (): GenerationRequest => ({
      tokens: [...(random.chance(0.5) ? shared : []), ...randomText(random, 1 + random.integer(50))], maxNewTokens: 1 + random.integer(60),
    }));
    const device = openDevice(streams);
    const captured = await generate(device, requests, 'auto');
    const queued = await generate(device, requests, 'queued');
    t.deepEqual(captured.texts, queued.texts);
    t.is(queued.graphs, 0);
    t.true(captured.graphs > 60, `${captured.graphs} replays`);
    t.true(captured.kernels < queued.kernels / 3, `${captured.kernels} launches, ${queued.kernels} without`);
    device.assertNoLeaks();
    device.close();
  });
}

/** An engine over sequences with one token each, and one decoding step over the first of them. */
function scene(device: MockDevice, sequences: number, options: Partial<LlamaEngineOptions> = {}) {
  const cache = openCache(device.driver, sequences);
  const engine = new LlamaEngine({ model, cache, ...options });
  const all = Array.from({ length: sequences }, () => cache.acquire());
  const pass = async (count: number, call: 'prefill' | 'decode', firstToken = 0): Promise<Float32Array> => {
    const batch = cache.createBatch();
    const some = all.slice(0, count);
    for (const sequence of some) batch.add(sequence, 1);
    cache.prepare(batch);
    try {
      const { logits } = await engine[call]({
        length: count, slots: Int32Array.from(some, ({ slot }) => slot), positions: Int32Array.from(some, ({ length }) => length),
        tokenCounts: new Int32Array(count).fill(1), tokens: Int32Array.from(some, (_, index) => index === 0 ? firstToken : (7 * index) % vocabularyTokens),
        wantsLogits: new Uint8Array(count).fill(1),
      });
      return logits.slice(0, count * vocabularyTokens);
    } finally {
      cache.discard(batch);
    }
  };
  const close = (): void => {
    for (const sequence of all) sequence.release();
    engine.close();
    cache.close();
    device.assertNoLeaks();
    device.close();
  };
  return { engine, pass, close };
}

test('a steady decoding step is one launch; a larger one captures anew, for all smaller ones too', async (t) => {
  const device = openDevice();
  const { engine, pass, close } = scene(device, 6);
  const graphsOf = async (count: number): Promise<readonly number[]> => {
    device.resetCallCounts();
    await pass(count, 'decode');
    const { cuGraphInstantiateWithFlags, cuGraphLaunch } = device.callCounts();
    return [cuGraphInstantiateWithFlags, cuGraphLaunch];
  };
  t.deepEqual(await graphsOf(3), [3, 1], 'for 1, 2 and 4');
  const before = device.callCounts();
  t.deepEqual(await graphsOf(4), [0, 1]);
  t.true(before.cuLaunchKernel > 0);
  t.is(device.callCounts().cuLaunchKernel, 0);
  t.deepEqual(await graphsOf(5), [4, 1], 'and for as many as there are slots, 6');
  t.deepEqual(await graphsOf(1), [0, 1]);
  t.is(engine.whyQueued, undefined);
  t.is(device.leaks().graphs, 4);
  close();
});

for (const call of ['cuStreamBeginCapture', 'cuStreamEndCapture', 'cuGraphInstantiateWithFlags', 'cuMemCreate'] as const satisfies readonly MockCall[]) {
  test(`a step that cannot be captured, as ${call} fails, is queued from then on and says why`, async (t) => {
    const device = openDevice();
    const { engine, pass, close } = scene(device, 2);
    const expected = await pass(2, 'prefill');
    device.failCall(call);
    const actual = await pass(2, 'decode');
    t.regex(engine.whyQueued!, new RegExp(`the driver refused: .*${call}`));
    t.true(actual.every((logit, at) => Math.abs(logit - expected[at]!) < 1e-4));
    device.resetCallCounts();
    await pass(2, 'decode');
    t.is(device.callCounts().cuGraphLaunch, 0);
    close();
  });

  test(`where captured steps were asked for, the failure of ${call} is the caller's, and may be tried again`, async (t) => {
    const device = openDevice();
    const { engine, pass, close } = scene(device, 2, { decoding: 'captured' });
    device.failCall(call);
    await t.throwsAsync(() => pass(2, 'decode'), { code: 'KV_DRIVER_CALL_FAILED' });
    t.is(device.leaks().graphs, 0);
    t.is((await pass(2, 'decode')).length, 2 * vocabularyTokens);
    t.is(engine.whyQueued, undefined);
    close();
  });
}

test('a replay that fails is over, and the next one is right', async (t) => {
  const device = openDevice('manual');
  const { pass, close } = scene(device, 2);
  const expected = await pass(2, 'decode');
  for (const call of ['cuMemcpyHtoDAsync', 'cuGraphLaunch', 'cuMemcpyDtoHAsync', 'cuStreamSynchronize'] as const) {
    device.failCall(call);
    await t.throwsAsync(() => pass(2, 'decode'), { code: 'KV_DRIVER_CALL_FAILED' });
    t.is(device.pendingWork, 0, call);
    t.deepEqual(await pass(2, 'decode'), expected, call);
  }
  close();
});

test('a captured step refuses a token that is not in the vocabulary, before anything is queued', async (t) => {
  const device = openDevice();
  const { pass, close } = scene(device, 2);
  const expected = await pass(2, 'decode');
  for (const token of [-1, vocabularyTokens, 2 ** 31 - 1]) {
    await refusesAsync(t, pass(2, 'decode', token), 'KV_INVALID_OPTION', { option: 'pass.tokens[0]', received: token });
  }
  t.deepEqual(await pass(2, 'decode'), expected);
  close();
});

test('closing goes on where the device refused to end a graph', async (t) => {
  const device = openDevice();
  const { engine, pass, close } = scene(device, 2);
  await pass(2, 'decode');
  device.failCall('cuGraphExecDestroy');
  t.throws(() => { engine.close(); }, { code: 'KV_DRIVER_CALL_FAILED' });
  await refusesAsync(t, pass(2, 'decode'), 'KV_CLOSED', { owner: 'LlamaEngine' });
  engine.close();
  t.throws(close, { message: /clean:\n- not given back: 1 graph$/ }, 'all but that graph is given back');
  device.close();
});

test('a closed engine says so, and takes no memory for captured steps', async (t) => {
  for (const passes of ['awaited', 'blocking'] as const) {
    const device = openDevice();
    const { engine, pass, close } = scene(device, 2, { decoding: 'captured', passes });
    await pass(2, 'prefill');
    engine.close();
    const before = device.leaks();
    await refusesAsync(t, pass(2, 'decode'), 'KV_CLOSED', { owner: 'LlamaEngine' });
    t.deepEqual(device.leaks(), before, passes);
    close();
  }
});

(hasCompiler ? slow('runs models on the simulated device') : test.skip)('with cuBLAS decoding is captured', async (t) => {
  const byCublas = new LlamaModel(folder, { cublas: fakeCublas(), workspaceBytes: pageBytes });
  const device = openDevice();
  const { engine, pass, close } = scene(device, 1, { model: byCublas });
  await pass(1, 'decode');
  t.is(engine.whyQueued, undefined);
  t.is(device.callCounts().cuGraphLaunch, 1);
  close();
});

test('on the CPU, and where it was asked for, decoding is queued and says so', (t) => {
  using cache = new KvCache({ model: model.shape('float32'), slots: 1, maxTokens: 8, memoryBudgetBytes: 2 ** 24, driver: 'host', pageBytes });
  using onHost = new LlamaEngine({ model, cache });
  t.regex(onHost.whyQueued!, /CPU/);
  using asked = new LlamaEngine({ model, cache, decoding: 'queued' });
  t.truthy(asked.whyQueued);
});
