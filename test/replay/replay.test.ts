import test from 'ava';

import { isKvError } from '#internal/base/errors.js';
import { Driver } from '#internal/device/driver.js';
import { MockDevice } from '#internal/device/mock-device.js';
import { layoutKinds } from '#internal/layout/layout.js';
import { evictionPolicyNames } from '#internal/prefix/index.js';
import { replay, type ReplayOptions } from '#internal/replay/replay.js';
import { isSound, type Replay } from '#internal/replay/result.js';
import { TraceReader } from '#internal/replay/trace-reader.js';
import { Workload } from '#internal/replay/workload.js';
import { testWithTrace, traceFile } from './traces.js';
import { slow } from '../runner/slow.js';
import { tier } from '../runner/tier.js';

/** 512 B a token, in four tensors; a row of 64 KiB pages holds 512 tokens. */
const SMALL = { layers: 2, kvHeads: 2, headDim: 32, dtype: 'float16' } as const;
const smallHost: Partial<ReplayOptions> = { model: SMALL, driver: 'host', pageBytes: 65_536, memoryBytes: 256 * 2 ** 20 };

const workload = (requests: number, maxPromptTokens = 4_096): Workload => new Workload({ requests, seed: 11, maxPromptTokens });

async function onMock(options: Partial<ReplayOptions>, before = (_: MockDevice): void => undefined): Promise<Replay> {
  const device = new MockDevice({ granularityBytes: 65_536 });
  try {
    before(device);
    const done = await replay({
      trace: workload(100), model: SMALL, driver: device.driver, pageBytes: 65_536, memoryBytes: 64 * 2 ** 20,
      maxTokens: 8_192, maxBatch: 16, verify: 'full', ...options,
    });
    device.assertNoLeaks();
    return done;
  } finally {
    device.close();
  }
}

for (const layout of layoutKinds) {
  slow('replays traces')(`a workload on host and on the mock, every token verified: ${layout}`, async (t) => {
    const onHost = (await replay({ ...smallHost, trace: workload(100), maxTokens: 8_192, maxBatch: 16, layout, verify: 'full' })).result;
    const { result } = await onMock({ layout });
    for (const { mismatches, leakedPages, completedRequests, verifiedTokens, promptTokens, generatedTokens, preemptions } of [onHost, result]) {
      t.deepEqual({ mismatches, leakedPages, completedRequests }, { mismatches: 0, leakedPages: 0, completedRequests: 100 });
      if (preemptions === 0) t.is(verifiedTokens, promptTokens + generatedTokens - 100);
    }
    t.deepEqual([onHost.driver.kind, result.driver.kind], ['host', 'mock']);
  });
}

slow('replays traces')('models with MLA, and with tokens that fill no whole page, are replayed with every token right', async (t) => {
  const mla = await onMock({ model: { layers: 3, attention: 'latent', latentDim: 576, dtype: 'bfloat16' } });
  t.is(mla.result.cache.tokenBytes, 3 * 576 * 2);
  const mixed = await onMock({ model: { layers: 2, headDim: 40, dtype: 'float16', layerShapes: [{ kvHeads: 1 }, { kvHeads: 3 }] } });
  for (const { result } of [mla, mixed]) t.true(isSound(result) && result.completedRequests === 100);
});

slow('replays traces')('with little memory requests are preempted, and every token is still right', async (t) => {
  const { result } = await replay({
    ...smallHost, trace: new Workload({ requests: 300, seed: 2, maxPromptTokens: 2_048 }), memoryBytes: 4 * 2 ** 20,
    maxTokens: 8_192, maxBatch: 32, verify: 'full',
  });
  t.like(result, { completedRequests: 300, refusedRequests: 0, mismatches: 0, leakedPages: 0 });
  t.true(result.preemptions > 0 && result.recomputedTokens > 0, 'the load is meant to preempt');
  t.true(result.peakPoolBytes <= 4 * 2 ** 20 && result.peakPhysicalBytes <= result.peakPoolBytes);
  t.true(result.usedBytesAtPeak <= result.pagedBytesAtPeak && result.usedBytesAtPeak <= result.peakPhysicalBytes);
});

for (const layout of layoutKinds) {
  for (const driver of ['host', 'mock'] as const) {
    slow('replays traces')(`prefixes are shared, every token verified under the key of its text: ${layout}, ${driver}`, async (t) => {
      const options = { layout, trace: workload(300), maxTokens: 8_192, maxBatch: 16, prefixCache: 'on', verify: 'full' } as const;
      const { result } = driver === 'host' ? await replay({ ...smallHost, ...options }) : await onMock(options);
      t.like(result, { completedRequests: 300, mismatches: 0, leakedPages: 0, cache: { prefixCache: { policy: 'adaptive', poolRows: null } } });
      const { cachedTokens, adoptedTokens, aliasedTokens, copiedTokens, promptTokens, hitRate } = result;
      t.is(adoptedTokens + aliasedTokens + copiedTokens, cachedTokens);
      t.true(aliasedTokens > 0 && hitRate > 0.1, `hit rate ${hitRate}`);
      t.true(Math.abs(hitRate - cachedTokens / promptTokens) < 1e-6);
      t.true(result.verifiedTokens >= promptTokens, 'those from the cache too');
    });
  }
}

for (const policy of evictionPolicyNames) {
  slow('replays traces')(`with little memory and shared prefixes preempted requests find their own rows again: ${policy}`, async (t) => {
    const { result } = await replay({
      ...smallHost, trace: new Workload({ requests: 300, seed: 2, maxPromptTokens: 2_048 }), memoryBytes: 4 * 2 ** 20,
      maxTokens: 8_192, maxBatch: 32, prefixCache: 'on', policy, verify: 'full',
    });
    t.like(result, { completedRequests: 300, refusedRequests: 0, mismatches: 0, leakedPages: 0 });
    t.true(result.preemptions > 0 && result.recoveredTokens > 0, 'the load is meant to preempt');
    t.true(result.peakPoolBytes <= 4 * 2 ** 20 && result.peakPhysicalBytes <= result.peakPoolBytes);
  });
}

slow('replays traces')('poolRows 0 keeps nothing after release; a pool of a few rows keeps little; promptOnly asks for no answer', async (t) => {
  const run = async (poolRows?: number): Promise<Replay['result']> =>
    (await onMock({ trace: workload(200), maxBatch: 1, prefixCache: 'on', promptOnly: true, poolRows })).result;
  const [none, few, all] = [await run(0), await run(20), await run()];
  t.deepEqual([none.cachedTokens, none.generatedTokens], [0, 0]);
  t.true(few.cachedTokens > 0 && few.cachedTokens < all.cachedTokens);
  t.deepEqual(few.cache.prefixCache, { policy: 'adaptive', poolRows: 20 });
  t.true(none.cache.promptOnly && none.completedRequests === 200);
});

test('a request larger than the whole budget, or longer than maxTokens, is refused and the rest is served', async (t) => {
  const request = (line: number, promptTokens: number): object => ({ line, arrivalMs: 0, promptTokens, outputTokens: 1 });
  const trace = [request(1, 100), request(2, 9_000), request(3, 4_096), request(4, 100), request(5, 4_097)] as never;
  const { result } = await replay({ ...smallHost, trace, maxTokens: 8_192, maxBatch: 2, memoryBytes: 2 * 2 ** 20 });
  t.like(result, { requests: 5, completedRequests: 3, refusedRequests: 2, leakedPages: 0 });
});

test('arrivals at their times: the clock jumps over pauses, and memory is low between bursts', async (t) => {
  const trace = [0, 1, 2, 60_000, 60_001].map((arrivalMs, at) => ({ line: at + 1, arrivalMs, promptTokens: 600, outputTokens: 20 }));
  const { timeline, result } = await replay({ ...smallHost, trace, maxBatch: 8, maxTokens: 1_024, arrivals: 'trace', stepMs: 10 });
  t.is(result.completedRequests, 5);
  t.true(timeline.at(-1)!.at >= 60_000 && timeline.at(-1)!.at < 61_000);
  t.true(timeline.some(({ at, mappedBytes }) => at > 1_000 && at < 59_000 && mappedBytes === 0), 'nothing is held in the pause');
  t.true(result.steps < 60, 'nothing runs in the pause');
});

test('a signal ends it with the numbers so far; what ran was verified and released', async (t) => {
  const stop = new AbortController();
  const { result } = await replay({
    ...smallHost, trace: workload(1_000_000), signal: stop.signal,
    onProgress: ({ completedRequests }) => { if (completedRequests > 0) stop.abort(); },
  });
  t.true(result.interrupted && isSound(result));
  t.true(result.completedRequests > 0 && result.completedRequests < 1_000_000);
  const before = await replay({ ...smallHost, trace: workload(10), signal: AbortSignal.abort() });
  t.like(before.result, { interrupted: true, completedRequests: 0, steps: 0, leakedPages: 0 });
});

test('the reported progress never falls, and ends at 1', async (t) => {
  const fractions: (number | undefined)[] = [];
  await replay({ ...smallHost, trace: workload(300), onProgress: ({ fraction }) => fractions.push(fraction) });
  t.is(fractions.at(-1), 1);
  t.deepEqual(fractions, fractions.toSorted((a, b) => a! - b!));
});

test('a driver call that fails once is retried; a lost device ends it, with everything closed', async (t) => {
  const { result } = await onMock({}, (device) => device.failCall('cuMemMap', { nth: 5 }));
  t.true(isSound(result) && result.completedRequests === 100);

  const device = new MockDevice({ granularityBytes: 65_536 });
  const lost = replay({
    trace: workload(100), model: SMALL, driver: device.driver, pageBytes: 65_536, memoryBytes: 64 * 2 ** 20, verify: 'off',
    onProgress: () => undefined,
  });
  device.loseDevice();
  t.is(((await t.throwsAsync(lost)) as { code?: string }).code, 'KV_DRIVER_LOST');
  t.notThrows(() => device.close(), 'the driver is not in use any more');
});

test('a driver that was given stays open; a broken trace closes everything else', async (t) => {
  const driver = Driver.open('host');
  const broken = { async *[Symbol.asyncIterator]() { yield* workload(200); throw new Error('line 201'); } };
  await t.throwsAsync(replay({ ...smallHost, driver, trace: broken }), { message: 'line 201' });
  t.true(isSound((await replay({ ...smallHost, driver, trace: workload(10) })).result));
  t.is(driver.memory().livePages, 0);
  driver.close();
});

test('options are checked before anything is opened', async (t) => {
  const code = async (options: object): Promise<string> => {
    try {
      await replay({ trace: [], ...options } as ReplayOptions);
      return 'none';
    } catch (error) {
      return isKvError(error) ? error.code : String(error);
    }
  };
  t.is(await code({ maxToken: 5 }), 'KV_UNKNOWN_OPTION');
  t.is(await code({ maxBatch: 0 }), 'KV_INVALID_OPTION');
  t.is(await code({ verify: 'some' }), 'KV_INVALID_OPTION');
  t.is(await code({ model: { layers: 2, kvHeads: 3, headDim: 8, dtype: 'float16', parallel: { tensor: 2 } } }), 'KV_INVALID_SHAPE');
});

// scripts/replay-traces.mjs runs them, too; here their memory counts.
if (tier === 'release') {
  testWithTrace('the Azure trace, whole, on host, sampled', 'azure-code.csv', async (t) => {
    const { result } = await replay({ trace: new TraceReader({ source: traceFile('azure-code.csv') }), driver: 'host', verify: 'sampled' });
    t.like(result, {
      requests: 8_819, completedRequests: 8_819, refusedRequests: 0, skippedLines: 0, promptTokens: 18_059_974,
      generatedTokens: 245_896, mismatches: 0, leakedPages: 0, interrupted: false,
    });
    t.true(result.verifiedTokens > 40_000);
    t.is(result.staticBytes, 64 * result.longestTokens * 32_768);
    t.true(result.peakPhysicalBytes < result.staticBytes / 4);
  });

  testWithTrace('the Mooncake trace, whole, on host, sampled', 'mooncake-synthetic.jsonl', async (t) => {
    const { result } = await replay({ trace: new TraceReader({ source: traceFile('mooncake-synthetic.jsonl') }), driver: 'host', verify: 'sampled' });
    t.like(result, {
      requests: 3_993, completedRequests: 3_993, refusedRequests: 0, skippedLines: 0, promptTokens: 61_194_628,
      generatedTokens: 595_432, mismatches: 0, leakedPages: 0, interrupted: false,
    });
    t.true(result.usedBytesAtPeak > 0.8 * result.peakPhysicalBytes, 'long prompts fill their pages');
  });
}

for (const [name, limit] of [['azure-code.csv', 400], ['mooncake-synthetic.jsonl', 60]] as const) {
  testWithTrace(`the first ${limit} requests of ${name}, on host, every token verified`, name, async (t) => {
    const { result } = await replay({
      trace: new TraceReader({ source: traceFile(name) }), driver: 'host', verify: 'full', limit, model: SMALL, pageBytes: 65_536,
      memoryBytes: 128 * 2 ** 20,
    });
    t.like(result, { requests: limit, completedRequests: limit, mismatches: 0, leakedPages: 0 });
    t.true(result.verifiedTokens >= result.promptTokens + result.generatedTokens - limit);
  });
}
